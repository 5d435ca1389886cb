/* bench.c: the parts of a cycle, timed one by one. Everything here leaves timeline and statistics as they were. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "file/quant.h"

static int time_rows(ds4_session *s, const int32_t *tokens, int n, double *seconds, double *issued, ds4_error *err)
{
    int32_t choice[BE_NARROW];
    const double start = clock_now();
    int rc = session_begin(&s->s, tokens, n, 0, err);
    if (rc)
        return rc;
    if (issued)
        *issued = clock_now() - start;
    rc = cycle_choose(&s->e->c, &s->s, 0, n, s->s.pos + 1, choice, err);
    *seconds = clock_now() - start;
    if (!rc)
        session_commit(&s->s, 0, -1);
    return rc;
}

int ds4_bench_rows(ds4_session *s, const int32_t *tokens, int n, double *seconds, double *issued, ds4_error *err)
{
    cycle *c = &s->e->c;
    const sample_params sample = c->sample;
    const ds4_stats stats = s->e->stats;
    const bool keep = c->keep_logits;
    if (n < 1 || n > BE_NARROW)
        return ds4_fail(err, DS4_EARG, "a forward of %d rows, expected 1 to %d", n, BE_NARROW);
    engine_own(s);
    c->sample = (sample_params){0};
    c->keep_logits = false;
    int rc = time_rows(s, tokens, n, seconds, issued, err);
    c->sample = sample;
    c->keep_logits = keep;
    s->e->stats = stats;
    return rc;
}

/* One proposal, with the newest committed row still to be absorbed. */
static int time_proposal(ds4_session *s, int32_t anchor, bool parts, double *seconds, ds4_error *err)
{
    proposer *p = &s->e->ds.base;
    const sample_params greedy = {0};
    proposal drafts;
    if (s->s.absorbed == s->s.pos && s->s.absorbed > s->s.absorbed_from)
        s->s.absorbed--;
    s->e->stats.timing = parts;
    const double start = clock_now();
    int rc = p->propose(p, &s->s, anchor, p->most, 0.0f, &greedy, &drafts, err);
    *seconds = clock_now() - start;
    if (rc)
        s->s.state = SESSION_POISONED;
    return rc;
}

int ds4_bench_proposal(ds4_session *s, int32_t anchor, ds4_proposal_times *out, ds4_error *err)
{
    ds4_engine *e = s->e;
    const ds4_stats before = e->stats;
    double apart;
    if (!e->has_dspark || s->s.state != SESSION_READY)
        return ds4_fail(err, DS4_ESTATE, "a proposal needs %s", e->has_dspark ? "a prompt" : "a drafter");
    if (s->s.ctx - s->s.pos < e->ds.base.most + 1)
        return ds4_fail(err, DS4_EARG, "a proposal at position %d needs room for %d tokens, the context holds %d",
                        s->s.pos, e->ds.base.most + 1, s->s.ctx);
    if (anchor < 0 || anchor >= e->m.s.dims.vocab)
        return ds4_fail(err, DS4_EARG, "token id %d, expected 0 to %d", anchor, e->m.s.dims.vocab - 1);
    engine_own(s);
    int rc = time_proposal(s, anchor, false, &out->total, err);
    e->stats = (ds4_stats){0};
    if (!rc)
        rc = time_proposal(s, anchor, true, &apart, err);
    out->setup = e->stats.setup;
    out->chain = e->stats.chain;
    out->conf0 = e->stats.conf0;
    out->logits = e->stats.logits;
    out->markov = e->stats.markov;
    out->confidence = e->stats.confidence;
    e->stats = before;
    return rc;
}

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

uint64_t ds4_bench_token_bytes(const ds4_engine *e)
{
    const shape *s = &e->m.s;
    char unread[24] = "";
    uint64_t sum = 0;
    if (s->mtp_layer >= 0)
        snprintf(unread, sizeof unread, "blk.%d.", s->mtp_layer);
    for (size_t i = 0; i < gguf_n_tensors(e->trunk); i++) {
        const gguf_tensor *t = gguf_tensor_at(e->trunk, i);
        const size_t skip = strlen(unread);
        if (skip && t->name.n > skip && !memcmp(t->name.p, unread, skip))
            continue;
        if (ends_with(t->name, "token_embd.weight") || ends_with(t->name, "ffn_gate_tid2eid.weight"))
            sum += quant_row_bytes(t->type, t->ne[0]);
        else if (ends_with(t->name, "_exps.weight"))
            sum += t->nbytes / (uint64_t)s->dims.experts * (uint64_t)s->dims.used;
        else
            sum += t->nbytes;
    }
    return sum;
}

uint64_t ds4_bench_kv_bytes(const ds4_session *s)
{
    const kv *k = &s->e->k;
    uint64_t sum = 0;
    for (int i = 0; i < k->fields; i++)
        sum += (uint64_t)kv_field_rows(&k->field[i], s->s.pos) * (uint64_t)k->field[i].store.width * sizeof(float);
    return sum;
}
