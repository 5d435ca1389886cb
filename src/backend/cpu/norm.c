/* norm.c: RMS norms, partial rotation, the finishing of query and KV rows, taps. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/num.h"

void cpu_rms(const cpu *c, const float *x, const float *w, float *y, int n)
{
    float r = (float)(1 / sqrt(cpu_square(c, x, n) / n + c->base.dims.rms_eps));
    for (int i = 0; i < n; i++)
        y[i] = w ? x[i] * r * w[i] : x[i] * r;
}

void cpu_angles(int32_t pos, const float *freq, int half, float *cs)
{
    for (int i = 0; i < half; i++) {
        float angle = (float)pos * freq[i];
        cs[2 * i] = (float)cos((double)angle);
        cs[2 * i + 1] = (float)sin((double)angle);
    }
}

void cpu_rotate(float *tail, const float *cs, int half, bool inverse)
{
    for (int i = 0; i < half; i++) {
        float a = tail[2 * i], b = tail[2 * i + 1], cosine = cs[2 * i], sine = inverse ? -cs[2 * i + 1] : cs[2 * i + 1];
        tail[2 * i] = a * cosine - b * sine;
        tail[2 * i + 1] = a * sine + b * cosine;
    }
}

const float *cpu_row_angles(cpu *c, const be_rows *r, const float *freq)
{
    int rope = c->base.dims.rope_dim;
    float *cs = cpu_scratch(c, S_ROTATE, (size_t)CPU_MAX_ROWS * (size_t)rope * sizeof *cs);
    for (int i = 0; cs && i < r->n; i++)
        cpu_angles(r->pos[i], freq, rope / 2, cs + i * rope);
    return cs;
}

void cpu_norm(backend *b, int n, int dim, const float *x, const float *w, float *y)
{
    cpu *c = cpu_of(b);
    for (int r = 0; cpu_ok(c) && r < n; r++)
        cpu_rms(c, x + (size_t)r * (size_t)dim, w, y + (size_t)r * (size_t)dim, dim);
}

typedef struct q_job {
    const cpu *c;
    const float *cs;
    float *q;
} q_job;

static void finish_head(void *ctx, int task, int thread)
{
    (void)thread;
    const q_job *j = ctx;
    const be_dims *m = &j->c->base.dims;
    float *q = j->q + (size_t)task * (size_t)m->head_dim;
    cpu_rms(j->c, q, NULL, q, m->head_dim);
    cpu_rotate(q + m->head_dim - m->rope_dim, j->cs + task / m->heads * m->rope_dim, m->rope_dim / 2, false);
}

void cpu_q_finish(backend *b, const be_rows *r, const float *freq, float *q)
{
    cpu *c = cpu_of(b);
    const be_dims *m = &b->dims;
    q_job j = {c, cpu_ok(c) ? cpu_row_angles(c, r, freq) : NULL, q};
    if (j.cs)
        cpu_for(c, r->n * m->heads, 2.0 * r->n * m->heads * m->head_dim, finish_head, &j);
}

void cpu_kv_finish(backend *b, const be_rows *r, const float *norm, const float *freq, bool sim, float *kv,
                   const be_store *ring)
{
    cpu *c = cpu_of(b);
    int dim = b->dims.head_dim, rope = b->dims.rope_dim;
    const float *cs = cpu_ok(c) ? cpu_row_angles(c, r, freq) : NULL;
    for (int i = 0; cs && i < r->n; i++) {
        float *row = kv + (size_t)i * (size_t)dim;
        cpu_rms(c, row, norm, row, dim);
        cpu_rotate(row + dim - rope, cs + i * rope, rope / 2, false);
        if (sim)
            num_sim_fp8(row, dim - rope);
        if (ring)
            memcpy(cpu_ring_row(ring, r->seq[i], r->pos[i]), row, (size_t)dim * sizeof *row);
    }
}

void cpu_tap(backend *b, const be_rows *r, const float *streams, int slot, const be_store *ring)
{
    int d = b->dims.d, s = b->dims.streams;
    for (int i = 0; cpu_ok(cpu_of(b)) && i < r->n; i++) {
        float *to = cpu_ring_row(ring, r->seq[i], r->pos[i]) + (size_t)slot * (size_t)d;
        const float *from = streams + (size_t)i * (size_t)(s * d);
        for (int k = 0; k < d; k++) {
            float sum = from[k];
            for (int h = 1; h < s; h++)
                sum += from[h * d + k];
            to[k] = sum / (float)s;
        }
    }
}

void cpu_gather(backend *b, const be_rows *r, const be_store *ring, float *out)
{
    size_t w = (size_t)ring->width;
    for (int i = 0; cpu_ok(cpu_of(b)) && i < r->n; i++)
        memcpy(out + (size_t)i * w, cpu_ring_row(ring, r->seq[i], r->pos[i]), w * sizeof *out);
}
