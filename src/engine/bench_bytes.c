/* bench_bytes.c: what a forward reads, and how fast the device can read: the figures that speeds are compared with. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "file/quant.h"

int ds4_bench_place(ds4_session *s, const int32_t *tokens, int n, ds4_error *err)
{
    engine_own(s);
    return session_place(&s->s, tokens, n, err);
}

/* Adds to distinct[k] how many of the ids of rows 0 .. k are different. */
static void count_distinct(const int32_t *ids, int n, int used, double *distinct)
{
    int found = 0;
    for (int at = 0; at < n * used; at++) {
        bool seen = false;
        for (int i = 0; i < at && !seen; i++)
            seen = ids[i] == ids[at];
        found += !seen;
        if (at % used == used - 1)
            distinct[at / used] += found;
    }
}

/* A forward layer by layer, which leaves the experts of each in scratch. */
static int route_layers(ds4_session *ses, const int32_t *tokens, int n, double *distinct, ds4_error *err)
{
    session *s = &ses->s;
    model *m = s->m;
    const int used = m->s.dims.used;
    int32_t pos[BE_NARROW] = {0}, ids[BE_NARROW * 64];
    int rc = 0;
    for (int i = 0; i < n; i++)
        pos[i] = s->pos + i;
    be_rows r = model_rows(m, 0, n, tokens, pos, s->slot);
    m->b->op->embed(m->b, &r, &m->w.embed, m->sc.streams);
    for (int l = 0; l < m->s.layers && !rc; l++) {
        forward_layer(m, s->k, l, &r);
        m->b->op->download(m->b, ids, m->sc.route_id, (size_t)(n * used) * sizeof *ids);
        rc = session_wait(s, err);
        if (!rc)
            count_distinct(ids, n, used, distinct);
    }
    for (int i = 0; i < n; i++)
        distinct[i] /= m->s.layers;
    s->high = s->pos + n > s->high ? s->pos + n : s->high;
    s->logits_row = -1;
    return rc;
}

int ds4_bench_experts(ds4_session *s, const int32_t *tokens, int n, double *distinct, ds4_error *err)
{
    backend *b = s->e->b;
    const backend_ops *ops = b->op;
    if (n < 1 || n > BE_NARROW || n > s->s.ctx - s->s.pos)
        return ds4_fail(err, DS4_EARG, "a forward of %d rows at position %d of %d, expected 1 to %d", n, s->s.pos,
                        s->s.ctx, BE_NARROW);
    if (s->s.state != SESSION_READY && s->s.state != SESSION_EMPTY)
        return ds4_fail(err, DS4_ESTATE, "the session is poisoned by an earlier backend failure: reset it");
    for (int i = 0; i < n; i++) {
        distinct[i] = 0;
        if (tokens[i] < 0 || tokens[i] >= s->e->m.s.dims.vocab)
            return ds4_fail(err, DS4_EARG, "token id %d, expected 0 to %d", tokens[i], s->e->m.s.dims.vocab - 1);
    }
    backend_ops composed = *ops;
    composed.block = NULL; /* a whole block keeps its experts to itself */
    b->op = &composed;
    engine_own(s);
    int rc = route_layers(s, tokens, n, distinct, err);
    b->op = ops;
    return rc;
}

static bool ends_with(gguf_str s, const char *end)
{
    const size_t n = strlen(end);
    return s.n >= n && !memcmp(s.p + s.n - n, end, n);
}

/* Weights of the trunk by how a forward reads them. */
typedef struct weight_bytes {
    uint64_t once, expert, row; /* once; each expert of every layer; for each row */
} weight_bytes;

static weight_bytes weigh(const ds4_engine *e)
{
    const shape *s = &e->m.s;
    weight_bytes w = {0};
    char unread[24] = "";
    if (s->mtp_layer >= 0)
        snprintf(unread, sizeof unread, "blk.%d.", s->mtp_layer);
    for (size_t i = 0; i < gguf_n_tensors(e->trunk); i++) {
        const gguf_tensor *t = gguf_tensor_at(e->trunk, i);
        const size_t skip = strlen(unread);
        if (skip && t->name.n > skip && !memcmp(t->name.p, unread, skip))
            continue;
        if (ends_with(t->name, "token_embd.weight") || ends_with(t->name, "ffn_gate_tid2eid.weight"))
            w.row += quant_row_bytes(t->type, t->ne[0]);
        else if (ends_with(t->name, "_exps.weight"))
            w.expert += t->nbytes / (uint64_t)s->dims.experts;
        else
            w.once += t->nbytes;
    }
    return w;
}

uint64_t ds4_bench_token_bytes(const ds4_engine *e)
{
    const weight_bytes w = weigh(e);
    return w.once + w.row + w.expert * (uint64_t)e->m.s.dims.used;
}

double ds4_bench_rows_bytes(const ds4_engine *e, int n)
{
    const weight_bytes w = weigh(e);
    const double all = e->m.s.dims.experts, missed = pow(1 - e->m.s.dims.used / all, n);
    return (double)w.once + (double)w.row * n + (double)w.expert * all * (1 - missed);
}

uint64_t ds4_bench_kv_bytes(const ds4_session *s)
{
    const kv *k = &s->e->k;
    uint64_t sum = 0;
    for (int i = 0; i < k->fields; i++)
        sum += (uint64_t)kv_field_rows(&k->field[i], s->s.pos) * (uint64_t)k->field[i].store.width * sizeof(float);
    return sum;
}

int ds4_bench_bandwidth(ds4_engine *e, double *copy, double *read, ds4_error *err)
{
    *copy = *read = 0;
    return e->b->op->bandwidth ? e->b->op->bandwidth(e->b, copy, read, err) : 0;
}
