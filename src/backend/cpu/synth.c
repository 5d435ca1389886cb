/* synth.c: weights that no file holds. */
#include "backend/cpu/cpu.h"
#include "file/synth.h"

#include <math.h>

enum { PIECE = 4096 /* blocks of a task */ };

typedef struct job {
    synth_recipe r;
    uint64_t seed, blocks;
    uint8_t *to;
} job;

static void fill_piece(void *ctx, int task, int thread)
{
    const job *j = ctx;
    const uint64_t from = (uint64_t)task * PIECE, to = from + PIECE < j->blocks ? from + PIECE : j->blocks;
    (void)thread;
    for (uint64_t i = from; i < to; i++)
        synth_block(&j->r, j->seed, i, j->to + i * j->r.bytes);
}

int cpu_synth(backend *b, be_weight *w, uint64_t seed, float scale, ds4_err *e)
{
    job j = {.seed = seed};
    if (!synth_plan(&j.r, w->type, (double)scale / sqrt((double)w->ne0)))
        return ds4_fail(e, DS4_EMODEL, "tensor %s: random weights of type %s cannot be made", w->name,
                        quant_type_name(w->type));
    size_t row = quant_row_bytes(w->type, (uint64_t)w->ne0), bytes;
    if (!row || __builtin_mul_overflow(row, (size_t)(w->ne1 * w->ne2), &bytes))
        return ds4_fail(e, DS4_EMODEL, "tensor %s: its size overflows", w->name);
    j.to = b->op->alloc(b, bytes);
    if (!j.to)
        return ds4_fail(e, DS4_ENOMEM, "tensor %s: no memory for %.1f MB", w->name, (double)bytes / 1e6);
    j.blocks = bytes / j.r.bytes;
    cpu_for(cpu_of(b), (int)((j.blocks + PIECE - 1) / PIECE), 1e12, fill_piece, &j);
    w->host = j.to;
    return b->op->bind(b, w, e);
}
