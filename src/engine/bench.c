/* bench.c: the parts of a cycle, timed one by one. Everything here leaves timeline and statistics as they were. */

#include "base/clock.h"
#include "engine/engine.h"

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
