/* attn.c: softmax attention with a sink over the window, the compressed rows and, for the drafter, the block's own rows.
 * Keys and values are the same rows. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

typedef struct attn_job {
    const cpu *c;
    const be_rows *r;
    const be_attn *a;
    const float *cs;
    const float **row; /* per thread: the visible rows in order, `most` pointers */
    float *logit;      /* per thread: their logits, then their weights */
    size_t most;
} attn_job;

/* The rows that token i sees: ring by position, compressed by index, block. Returns how many. */
static int visible_rows(const attn_job *j, int i, const float **row)
{
    const be_attn *a = j->a;
    const be_dims *m = &j->c->base.dims;
    int32_t pos = j->r->pos[i], seq = j->r->seq[i];
    int64_t end = a->block ? j->r->pos[0] : (int64_t)pos + 1, from = end > m->window ? end - m->window : 0;
    int n = 0;
    for (int64_t p = from; p < end; p++)
        row[n++] = cpu_ring_row(a->raw, seq, p);
    if (a->comp && a->sel) {
        const int32_t *sel = a->sel + (size_t)i * (size_t)m->idx_topk;
        for (int k = 0; k < m->idx_topk && sel[k] >= 0; k++)
            row[n++] = cpu_array_row(a->comp, seq, sel[k]);
    } else if (a->comp) {
        for (int64_t s = 0; s < (pos + 1) / a->ratio; s++)
            row[n++] = cpu_array_row(a->comp, seq, s);
    }
    for (int k = 0; a->block && k < j->r->n; k++)
        row[n++] = a->block + (size_t)k * (size_t)m->head_dim;
    return n;
}

/* z_t = q . row_t / sqrt(dim) becomes exp(z_t - max), the sink taking part in maximum and sum. Returns the sum. */
static float softmax(const attn_job *j, const float *q, float sink, const float *const *row, int n, float *z)
{
    int dim = j->c->base.dims.head_dim;
    float scale = (float)(1 / sqrt((double)dim)), top = sink;
    for (int t = 0; t < n; t++) {
        z[t] = cpu_dot_row(j->c, q, row[t], dim) * scale;
        top = z[t] > top ? z[t] : top;
    }
    float sum = expf(sink - top);
    for (int t = 0; t < n; t++)
        sum += z[t] = expf(z[t] - top);
    return sum;
}

static void attend_head(void *ctx, int task, int thread)
{
    const attn_job *j = ctx;
    const be_dims *m = &j->c->base.dims;
    int i = task / m->heads, h = task % m->heads, dim = m->head_dim;
    const float **row = j->row + (size_t)thread * j->most, *q = j->a->q + (size_t)task * (size_t)dim;
    float *z = j->logit + (size_t)thread * j->most, *o = j->a->o + (size_t)task * (size_t)dim;
    int n = visible_rows(j, i, row);
    float inverse = 1 / softmax(j, q, j->a->sinks[h], row, n, z);
    float sum[4096];
    memset(sum, 0, (size_t)dim * sizeof *sum);
    for (int t = 0; t < n; t++)
        j->c->k->add_scaled(sum, row[t], z[t], dim);
    for (int k = 0; k < dim; k++)
        o[k] = sum[k] * inverse;
    cpu_rotate(o + dim - m->rope_dim, j->cs + i * m->rope_dim, m->rope_dim / 2, true);
}

void cpu_attend(backend *b, const be_rows *r, const be_attn *a)
{
    cpu *c = cpu_of(b);
    const be_dims *m = &b->dims;
    if (!cpu_ok(c) || r->n <= 0)
        return;
    if (m->head_dim > 4096) {
        cpu_fail(c, "head dimension %d is not supported", m->head_dim);
        return;
    }
    attn_job j = {.c = c, .r = r, .a = a, .cs = cpu_row_angles(c, r, a->freq)};
    size_t comp = !a->comp ? 0 : a->sel ? (size_t)m->idx_topk : (size_t)a->comp->cap;
    j.most = (size_t)m->window + comp + CPU_MAX_ROWS;
    size_t strips = (size_t)c->threads * j.most;
    j.row = cpu_scratch(c, S_LOGIT, strips * (sizeof *j.row + sizeof *j.logit));
    if (!j.cs || !j.row)
        return;
    j.logit = (float *)(j.row + strips);
    double keys = m->window + (a->comp ? (a->sel ? m->idx_topk : r->max_pos / a->ratio) : 0);
    cpu_for(c, r->n * m->heads, 2 * keys * r->n * m->heads * m->head_dim, attend_head, &j);
}
