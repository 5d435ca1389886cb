/* compress.c: the compressor. Rows wait in a ring by position; a compressed row is pooled from the ring when its
 * window ends. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/num.h"

void cpu_comp_put(backend *b, const be_rows *r, int ratio, const float *kv, const float *gate, const float *ape,
                  const be_store *ring)
{
    int w = ring->width / 2;
    for (int i = 0; cpu_ok(cpu_of(b)) && i < r->n; i++) {
        float *row = cpu_ring_row(ring, r->seq[i], r->pos[i]);
        const float *bias = ape + r->pos[i] % ratio * w;
        memcpy(row, kv + (size_t)i * (size_t)w, (size_t)w * sizeof *row);
        for (int k = 0; k < w; k++)
            row[w + k] = gate[(size_t)i * (size_t)w + (size_t)k] + bias[k];
    }
}

enum { MAX_POOLED = 256 /* rows of one window; ratio 128, or 2 * 4 */, PIECE = 64 };

typedef struct pool_job {
    const cpu *c;
    const be_rows *r;
    const be_store *ring, *out;
    const float *norm, *freq;
    int ratio, width; /* of a compressed row */
    bool index, sim;
} pool_job;

/* Softmax over the rows, each column by itself: y[k] = sum_t e_t kv_t[k] / sum_t e_t, rows in order of position. */
static void pool_piece(const float *const *kv, const float *const *score, int rows, int at, int len, float *y)
{
    float top[PIECE], sum[PIECE], acc[PIECE];
    for (int k = 0; k < len; k++) {
        top[k] = score[0][at + k];
        sum[k] = acc[k] = 0;
    }
    for (int t = 1; t < rows; t++)
        for (int k = 0; k < len; k++)
            top[k] = score[t][at + k] > top[k] ? score[t][at + k] : top[k];
    for (int t = 0; t < rows; t++)
        for (int k = 0; k < len; k++) {
            float e = expf(score[t][at + k] - top[k]);
            sum[k] += e;
            acc[k] += e * kv[t][at + k];
        }
    for (int k = 0; k < len; k++)
        y[at + k] = acc[k] / sum[k];
}

/* The rows that window s pools: with overlap, lane A (first half of the columns) of the previous window, then lane B
 * of its own. */
static int window_rows(const pool_job *j, int32_t seq, int64_t s, const float **kv, const float **score)
{
    int w = j->ring->width / 2, n = 0;
    bool overlap = w == 2 * j->width;
    for (int64_t p = overlap && s > 0 ? (s - 1) * j->ratio : s * j->ratio; p < (s + 1) * j->ratio; p++) {
        int lane = overlap && p >= s * j->ratio ? j->width : 0;
        kv[n] = cpu_ring_row(j->ring, seq, p) + lane;
        score[n] = kv[n] + w;
        n++;
    }
    return n;
}

static void pool_row(void *ctx, int i, int thread)
{
    (void)thread;
    const pool_job *j = ctx;
    int32_t pos = j->r->pos[i], seq = j->r->seq[i];
    if ((pos + 1) % j->ratio)
        return;
    int d = j->width, rope = j->c->base.dims.rope_dim;
    int64_t s = pos / j->ratio;
    const float *kv[MAX_POOLED], *score[MAX_POOLED];
    float cs[256], *row = cpu_array_row(j->out, seq, s);
    int rows = window_rows(j, seq, s, kv, score);
    for (int at = 0; at < d; at += PIECE)
        pool_piece(kv, score, rows, at, d - at < PIECE ? d - at : PIECE, row);
    cpu_rms(j->c, row, j->norm, row, d);
    cpu_angles((int32_t)(s * j->ratio), j->freq, rope / 2, cs);
    cpu_rotate(row + d - rope, cs, rope / 2, false);
    if (j->sim && j->index) {
        num_hadamard(row, d);
        num_sim_fp4(row, d);
    } else if (j->sim) {
        num_sim_fp8(row, d - rope);
    }
}

void cpu_comp_pool(backend *b, const be_rows *r, int ratio, const be_store *ring, const float *norm,
                   const float *freq, bool index, bool sim, const be_store *out)
{
    cpu *c = cpu_of(b);
    if (!cpu_ok(c))
        return;
    if (2 * ratio > MAX_POOLED || b->dims.rope_dim > 256) {
        cpu_fail(c, "compression ratio %d with %d rotary dimensions is not supported", ratio, b->dims.rope_dim);
        return;
    }
    pool_job j = {c, r, ring, out, norm, freq, ratio, out->width, index, sim};
    cpu_for(c, r->n, 20.0 * r->n * out->width, pool_row, &j);
}
