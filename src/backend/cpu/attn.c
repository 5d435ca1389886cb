/* attn.c: softmax attention with a sink over the window, the compressed rows and, for the drafter, the block's own
 * rows. Keys and values are the same rows. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

typedef struct attn_job {
    const cpu *c;
    const be_rows *r;
    const be_attn *a;
    const float *cs;
    const float **row; /* per thread: the visible rows in order, `most` pointers */
    float *logit;      /* per thread and head: their logits, then their weights */
    size_t most;
    int parts;         /* tasks per token */
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

/* z_t = q . row_t becomes exp(z_t / sqrt(dim) - max), the sink taking part in maximum and sum. Returns the sum. */
static float softmax(float *z, int n, float sink, int dim)
{
    float scale = (float)(1 / sqrt((double)dim)), top = sink;
    for (int t = 0; t < n; t++) {
        z[t] *= scale;
        top = z[t] > top ? z[t] : top;
    }
    float sum = expf(sink - top);
    for (int t = 0; t < n; t++)
        sum += z[t] = expf(z[t] - top);
    return sum;
}

/* Heads of one token that one task serves: they read the same rows, tile by tile. */
enum { HEADS_PER_TASK = 4, TILE = 16 };

static void attend_heads(void *ctx, int task, int thread)
{
    const attn_job *j = ctx;
    const be_dims *m = &j->c->base.dims;
    int i = task / j->parts, h0 = task % j->parts * HEADS_PER_TASK, dim = m->head_dim;
    int heads = m->heads - h0 < HEADS_PER_TASK ? m->heads - h0 : HEADS_PER_TASK;
    const float **row = j->row + (size_t)thread * j->most;
    const float *q = j->a->q + ((size_t)i * (size_t)m->heads + (size_t)h0) * (size_t)dim;
    float *z = j->logit + (size_t)thread * HEADS_PER_TASK * j->most, *o = j->a->o + (q - j->a->q);
    int n = visible_rows(j, i, row);
    for (int t = 0; t < n; t += TILE)
        for (int h = 0; h < heads; h++)
            j->c->k->dots(q + h * dim, row + t, n - t < TILE ? n - t : TILE, dim, z + (size_t)h * j->most + t);
    for (int h = 0; h < heads; h++, o += dim, z += j->most) {
        float inverse = 1 / softmax(z, n, j->a->sinks[h0 + h], dim);
        j->c->k->mix(z, row, n, dim, o);
        for (int k = 0; k < dim; k++)
            o[k] *= inverse;
        cpu_rotate(o + dim - m->rope_dim, j->cs + i * m->rope_dim, m->rope_dim / 2, true);
    }
}

void cpu_attend(backend *b, const be_rows *r, const be_attn *a)
{
    cpu *c = cpu_of(b);
    const be_dims *m = &b->dims;
    if (!cpu_ok(c) || r->n <= 0)
        return;
    attn_job j = {.c = c, .r = r, .a = a, .cs = cpu_row_angles(c, r, a->freq)};
    size_t comp = !a->comp ? 0 : a->sel ? (size_t)m->idx_topk : (size_t)a->comp->cap;
    j.most = (size_t)m->window + comp + CPU_MAX_ROWS;
    size_t strips = (size_t)c->threads * j.most;
    j.row = cpu_scratch(c, S_LOGIT, strips * (sizeof *j.row + HEADS_PER_TASK * sizeof *j.logit));
    if (!j.cs || !j.row)
        return;
    j.logit = (float *)(j.row + strips);
    j.parts = (m->heads + HEADS_PER_TASK - 1) / HEADS_PER_TASK;
    double keys = m->window + (a->comp ? (a->sel ? m->idx_topk : r->max_pos / a->ratio) : 0);
    cpu_for(c, r->n * j.parts, 2 * keys * r->n * m->heads * m->head_dim, attend_heads, &j);
}
