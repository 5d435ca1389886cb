/* index.c: the indexer: queries, scores, and the choice of the best compressed rows. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/num.h"

typedef struct query_job {
    const cpu *c;
    const float *cs;
    float *qi;
    bool sim;
} query_job;

static void finish_query(void *ctx, int task, int thread)
{
    (void)thread;
    const query_job *j = ctx;
    const be_dims *m = &j->c->base.dims;
    float *q = j->qi + (size_t)task * (size_t)m->idx_dim;
    cpu_rotate(q + m->idx_dim - m->rope_dim, j->cs + task / m->idx_heads * m->rope_dim, m->rope_dim / 2, false);
    if (j->sim) {
        num_hadamard(q, m->idx_dim);
        num_sim_fp4(q, m->idx_dim);
    }
}

void cpu_index_query(backend *b, const be_rows *r, const float *freq, bool sim, float *qi)
{
    cpu *c = cpu_of(b);
    const be_dims *m = &b->dims;
    query_job j = {c, cpu_ok(c) ? cpu_row_angles(c, r, freq) : NULL, qi, sim};
    if (j.cs)
        cpu_for(c, r->n * m->idx_heads, 10.0 * r->n * m->idx_heads * m->idx_dim, finish_query, &j);
}

enum { SCORE_CHUNK = 64 };

typedef struct score_job {
    const cpu *c;
    const be_rows *r;
    const be_store *rows;
    const float *qi, *wi;
    uint32_t *keys; /* [n][most] */
    int32_t *sel;
    int ratio, chunks, most;
} score_job;

/* Order of floats as order of unsigned integers; NaN is last, -0 equals +0. */
static uint32_t order_key(float f)
{
    if (isnan(f))
        return 0;
    uint32_t u = num_bits(f + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static int visible(const score_job *j, int r) { return (j->r->pos[r] + 1) / j->ratio; }

/* score_s = sum_h w_h * max(0, q_h . k_s), heads in order; NaN stays NaN and loses */
static void score_chunk(void *ctx, int task, int thread)
{
    (void)thread;
    const score_job *j = ctx;
    const be_dims *m = &j->c->base.dims;
    int r = task / j->chunks, from = task % j->chunks * SCORE_CHUNK, have = visible(j, r);
    int n = have - from < SCORE_CHUNK ? have - from : SCORE_CHUNK;
    if (have <= m->idx_topk || n <= 0)
        return;
    const float *q = j->qi + (size_t)r * (size_t)(m->idx_heads * m->idx_dim);
    const float *w = j->wi + (size_t)r * (size_t)m->idx_heads;
    const float *row[SCORE_CHUNK];
    float scale = (float)(1 / sqrt((double)m->idx_dim * m->idx_heads)), dot[SCORE_CHUNK], score[SCORE_CHUNK] = {0};
    for (int s = 0; s < n; s++)
        row[s] = cpu_array_row(j->rows, j->r->seq[r], from + s);
    for (int h = 0; h < m->idx_heads; h++) {
        float weight = w[h] * scale;
        j->c->k->dots(q + h * m->idx_dim, row, n, m->idx_dim, dot);
        for (int s = 0; s < n; s++)
            score[s] += weight * (dot[s] < 0 ? 0 : dot[s]);
    }
    for (int s = 0; s < n; s++)
        j->keys[(size_t)r * (size_t)j->most + (size_t)(from + s)] = order_key(score[s]);
}

/* The k-th largest of n keys (k <= n), byte by byte from the top; *above = how many keys are larger. */
static uint32_t kth_largest(const uint32_t *key, int n, int k, int *above)
{
    uint32_t prefix = 0, mask = 0;
    int left = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int count[256] = {0}, digit = 255;
        for (int i = 0; i < n; i++)
            if ((key[i] & mask) == prefix)
                count[key[i] >> shift & 255]++;
        while (count[digit] < left)
            left -= count[digit--];
        prefix |= (uint32_t)digit << shift;
        mask |= 255u << shift;
    }
    *above = k - left;
    return prefix;
}

/* All rows when they fit, else the best: everything above the k-th largest key, and the first that equal it. */
static void select_row(void *ctx, int r, int thread)
{
    (void)thread;
    const score_job *j = ctx;
    int top = j->c->base.dims.idx_topk, have = visible(j, r), n = 0;
    int32_t *sel = j->sel + (size_t)r * (size_t)top;
    if (have <= top) {
        for (; n < have; n++)
            sel[n] = n;
    } else {
        const uint32_t *key = j->keys + (size_t)r * (size_t)j->most;
        int above, equal;
        uint32_t border = kth_largest(key, have, top, &above);
        equal = top - above;
        for (int s = 0; s < have; s++)
            if (key[s] > border || (key[s] == border && equal-- > 0))
                sel[n++] = s;
    }
    while (n < top)
        sel[n++] = -1;
}

void cpu_index_select(backend *b, const be_rows *r, int ratio, const float *qi, const float *wi, const be_store *rows,
                      int32_t *sel)
{
    cpu *c = cpu_of(b);
    if (!cpu_ok(c))
        return;
    int most = 0;
    for (int i = 0; i < r->n; i++)
        most = (r->pos[i] + 1) / ratio > most ? (r->pos[i] + 1) / ratio : most;
    score_job j = {.c = c, .r = r, .rows = rows, .qi = qi, .wi = wi, .sel = sel, .ratio = ratio, .most = most};
    if (most > b->dims.idx_topk) {
        j.keys = cpu_scratch(c, S_SCORE, (size_t)CPU_MAX_ROWS * (size_t)rows->cap * sizeof *j.keys);
        if (!j.keys)
            return;
        j.chunks = (most + SCORE_CHUNK - 1) / SCORE_CHUNK;
        cpu_for(c, r->n * j.chunks, (double)r->n * most * b->dims.idx_heads * b->dims.idx_dim, score_chunk, &j);
    }
    cpu_for(c, r->n, 10.0 * r->n * most, select_row, &j);
}
