/* synth.cu: weights that no file holds. Random blocks are made on the device in the file's layout, a piece at a time,
 * and take the way of rows that were read. */
#include <math.h>

#include "backend/cuda/num.cuh"

#define SYNTH_FN DEV
#include "backend/cuda/gpu.cuh"
#include "file/synth.h"

static __global__ void fill_blocks(synth_recipe r, uint64_t seed, uint64_t first, uint64_t n, uint8_t *to)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        synth_block(&r, seed, first + i, to + i * r.bytes);
}

/* Pieces are whole groups of 16 rows, as packing wants them. */
static void fill_rows(gpu *g, const be_weight *w, const synth_recipe *r, uint64_t seed, uint8_t *to)
{
    const size_t row = w->row_bytes;
    const int64_t group = 16, rows = w->ne1 * w->ne2, per = (int64_t)(row / r->bytes);
    for (int64_t o = 0, count; o < rows; o += count) {
        size_t room;
        const int64_t left = rows - o;
        const size_t want = row * (size_t)(left < group ? group : left);
        int i = gpu_stage_take(g, want, &room, true);
        if (i < 0)
            return;
        count = (int64_t)(room / row) / group * group;
        count = count < left ? count : left;
        uint8_t *raw = (uint8_t *)g->stage_raw[i].p;
        uint8_t *units = count > 0 ? (uint8_t *)gpu_scratch_get(g, G_PACK, gpu_pack_room(w, count)) : NULL;
        if (!units) {
            gpu_fail(g, "tensor %s: a row of %zu bytes is too large", w->name, row);
            return;
        }
        GPU_LAUNCH(g, fill_blocks, gpu_blocks(count * per, GPU_THREADS), GPU_THREADS, 0, *r, seed, (uint64_t)(o * per),
                   (uint64_t)(count * per), raw);
        gpu_pack_rows(g, w, raw, units, to, o, count);
        gpu_stage_give(g, i);
    }
}

int gpu_synth(backend *b, be_weight *w, uint64_t seed, float scale, ds4_err *e)
{
    gpu *g = gpu_of(b);
    synth_recipe r;
    if (w->ne0 <= 0 || w->ne1 <= 0 || w->ne2 <= 0 || w->ne0 > 1 << 20 ||
        !synth_plan(&r, w->type, (double)scale / sqrt((double)w->ne0)) || w->ne0 % r.block)
        return ds4_fail(e, DS4_EMODEL, "tensor %s: random weights of type %s and %lld inputs cannot be made", w->name,
                        quant_type_name(w->type), (long long)w->ne0);
    w->row_bytes = quant_row_bytes(w->type, (uint64_t)w->ne0);
    uint8_t *to = (uint8_t *)gpu_alloc(g, gpu_weight_bytes(b, w));
    if (to)
        fill_rows(g, w, &r, seed, to);
    if (!gpu_ok(g))
        return ds4_fail(e, DS4_EBACKEND, "tensor %s: %s", w->name, g->error.msg);
    w->data = to;
    return 0;
}
