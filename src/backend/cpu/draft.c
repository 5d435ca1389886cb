/* draft.c: choosing a token, and the drafter's Markov and confidence heads. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/noise.h"
#include "file/quant.h"

enum { PICK_CHUNK = 2048, MARKOV_CHUNK = CPU_TILE };

typedef struct candidate {
    float value;
    int32_t token; /* -1: the chunk held only NaN and -infinity */
} candidate;

typedef struct pick_job {
    const float *logits;
    candidate *best; /* [n][chunks] */
    const int32_t *pos;
    uint64_t seed;
    float temp;
    int vocab, chunks;
} pick_job;

static void pick_chunk(void *ctx, int task, int thread)
{
    (void)thread;
    const pick_job *j = ctx;
    int r = task / j->chunks, from = task % j->chunks * PICK_CHUNK;
    int to = from + PICK_CHUNK < j->vocab ? from + PICK_CHUNK : j->vocab;
    const float *logit = j->logits + (size_t)r * (size_t)j->vocab;
    candidate best = {-INFINITY, -1};
    for (int t = from; t < to; t++) {
        float v = logit[t];
        if (j->temp > 0)
            v = v / j->temp + noise_gumbel(j->seed, (uint32_t)j->pos[r], (uint32_t)t);
        if (v > best.value) /* false for NaN, and for an equal value at a higher token */
            best = (candidate){v, t};
    }
    j->best[task] = best;
}

void cpu_pick(backend *b, int n, const float *logits, float temp, uint64_t seed, const int32_t *pos, int32_t *out)
{
    cpu *c = cpu_of(b);
    int vocab = b->dims.vocab, chunks = (vocab + PICK_CHUNK - 1) / PICK_CHUNK;
    if (!cpu_ok(c) || n <= 0)
        return;
    pick_job j = {.logits = logits, .pos = pos, .seed = seed, .temp = temp, .vocab = vocab, .chunks = chunks};
    j.best = cpu_scratch(c, S_DRAFT, (size_t)CPU_MAX_ROWS * (size_t)chunks * sizeof *j.best);
    if (!j.best)
        return;
    cpu_for(c, n * chunks, (double)n * vocab * (temp > 0 ? 100 : 1), pick_chunk, &j);
    for (int r = 0; r < n; r++) {
        candidate best = {-INFINITY, 0};
        for (int k = 0; k < chunks; k++) {
            candidate v = j.best[r * chunks + k];
            if (v.token >= 0 && v.value > best.value)
                best = v;
        }
        out[r] = best.token;
    }
}

/* Row `token` of the Markov table as float32, in scratch. */
static float *markov_row(cpu *c, const be_weight *w1, int32_t token)
{
    if (token < 0 || token >= w1->ne1) {
        cpu_fail(c, "token %d is outside the Markov table of %lld", token, (long long)w1->ne1);
        return NULL;
    }
    float *row = cpu_scratch(c, S_DRAFT, (size_t)w1->ne0 * sizeof *row);
    if (row)
        quant_decode(w1->type, cpu_row(w1, 0, token), row, (uint64_t)w1->ne0);
    return row;
}

typedef struct markov_job {
    const cpu *c;
    const be_weight *w2;
    cpu_act act;
    float *logits;
} markov_job;

static void markov_chunk(void *ctx, int task, int thread)
{
    (void)thread;
    const markov_job *j = ctx;
    int64_t from = (int64_t)task * MARKOV_CHUNK;
    int count = (int)(j->w2->ne1 - from < MARKOV_CHUNK ? j->w2->ne1 - from : MARKOV_CHUNK);
    float y[MARKOV_CHUNK];
    cpu_dots(j->c, j->w2, 0, from, count, &j->act, cpu_iota, 1, y, MARKOV_CHUNK);
    for (int i = 0; i < count; i++)
        j->logits[from + i] += y[i];
}

void cpu_markov(backend *b, const be_weight *w1, const be_weight *w2, const int32_t *prev, float *logits)
{
    cpu *c = cpu_of(b);
    const float *row = cpu_ok(c) ? markov_row(c, w1, *prev) : NULL;
    markov_job j = {.c = c, .w2 = w2, .logits = logits};
    if (!row || !cpu_act_make(c, &j.act, cpu_act_group(c, w2->type), row, (size_t)w2->ne0, w2->ne0, 1, 1, S_ACT_A))
        return;
    cpu_for(c, (int)((w2->ne1 + MARKOV_CHUNK - 1) / MARKOV_CHUNK), (double)w2->ne0 * (double)w2->ne1, markov_chunk, &j);
}

/* In index order, as spec/ computes it on the host for backends without this operation. */
void cpu_confidence(backend *b, int n, const be_weight *w, const be_weight *w1, const float *hidden,
                    const int32_t *prev, float *out)
{
    cpu *c = cpu_of(b);
    int64_t d = b->dims.d, rank = w1->ne0;
    float *weight = cpu_ok(c) ? cpu_scratch(c, S_HIDDEN, (size_t)w->ne0 * sizeof *weight) : NULL;
    if (!weight)
        return;
    if (w->ne0 != d + rank) {
        cpu_fail(c, "confidence head of width %lld, expected %lld", (long long)w->ne0, (long long)(d + rank));
        return;
    }
    quant_decode(w->type, cpu_row(w, 0, 0), weight, (uint64_t)w->ne0);
    for (int i = 0; i < n; i++) {
        const float *row = markov_row(c, w1, prev[i]), *h = hidden + (size_t)i * (size_t)d;
        double z = 0;
        for (int64_t k = 0; row && k < d; k++)
            z += (double)weight[k] * (double)h[k];
        for (int64_t k = 0; row && k < rank; k++)
            z += (double)weight[d + k] * (double)row[k];
        if (row)
            out[i] = (float)z;
    }
}
