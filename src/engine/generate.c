#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "engine/engine.h"

/* Below this the likeliest token wins anyway, and logits divided by it could overflow. */
static const float least_temp = 1e-5f;

ds4_generate_options ds4_generate_defaults(void)
{
    return (ds4_generate_options){.temp = 1.0f, .top_p = 0.95f, .max_tokens = 512, .drafting = DS4_DRAFT_AUTO};
}

/* One generation in progress. */
typedef struct run {
    ds4_session *s;
    const ds4_generate_options *o;
    ds4_result *r;
    cycle *c;
    double_proposer fake;
    bool stopped;
    cycle_script script;
} run;

/* The confidence with which k drafts in a row survive as often as the script says: c + c^2 + ... + c^k is the mean. */
static float calibrated(const uint8_t *accept, int n, int k)
{
    double sum = 0, lo = 0.5, hi = 1;
    for (int i = 0; i < n; i++)
        sum += accept[i];
    for (int i = 0; i < 20; i++) {
        double c = (lo + hi) / 2, got = 0;
        for (int j = k; j > 0; j--)
            got = (got + 1) * c;
        if (got < sum / n)
            lo = c;
        else
            hi = c;
    }
    return (float)lo;
}

/* Fills the cost table before the first automatic drafting, or for the statistics (time saved). Measuring is no
 * drafting: nothing of it shows in the counters. */
static int measure(run *g, ds4_error *err)
{
    ds4_engine *e = g->s->e;
    const bool wanted = e->sched.mode == SCHED_AUTO || (e->sched.mode == SCHED_FIXED && e->o.stats);
    if (e->measured || !wanted || g->c->proposer != &e->ds.base)
        return 0;
    if (g->stopped || g->r->tokens >= g->o->max_tokens)
        return 0;
    const ds4_stats before = e->stats;
    int rc = cycle_measure(&e->c, &g->s->s, err);
    e->measured = !rc && e->sched.cost[0].known; /* not where the context had no room */
    e->stats = before;
    return rc;
}

static int choose_proposer(run *g, ds4_error *err)
{
    ds4_engine *e = g->s->e;
    const ds4_generate_options *o = g->o;
    enum sched_mode mode = SCHED_OFF;
    g->c->proposer = NULL;
    if (o->drafting != DS4_DRAFT_OFF && o->test_proposer) {
        int rc =
            double_open(&g->fake, o->test_proposer, o->oracle_tokens, o->oracle_count, g->s->s.pos, &e->stats, err);
        if (rc)
            return rc;
        g->c->proposer = &g->fake.base;
        mode = SCHED_FIXED;
    } else if (o->drafting != DS4_DRAFT_OFF && e->has_dspark) {
        g->c->proposer = &e->ds.base;
        mode = o->drafting == DS4_DRAFT_FIXED ? SCHED_FIXED : SCHED_AUTO;
    }
    g->c->script = NULL;
    if (o->scripted && g->c->proposer) {
        g->script = (cycle_script){.accept = o->scripted, .n = o->scripted_count};
        g->script.conf = calibrated(o->scripted, o->scripted_count, g->c->proposer->most);
        g->c->script = &g->script;
    }
    sched_set_mode(&e->sched, mode, o->test_proposer ? 0.0f : o->confidence);
    return 0;
}

static int check(const ds4_generate_options *o, const ds4_engine *e, ds4_error *err)
{
    sample_params sp = {o->temp, o->top_k, o->top_p, o->min_p, o->seed};
    int rc = sample_check(&sp, err);
    if (rc)
        return rc;
    if (o->max_tokens < 1)
        return ds4_fail(err, DS4_EARG, "max tokens is %d, expected at least 1", o->max_tokens);
    if (o->drafting == DS4_DRAFT_FIXED && !(o->confidence >= 0 && o->confidence <= 1))
        return ds4_fail(err, DS4_EARG, "confidence threshold is %g, expected 0 to 1", (double)o->confidence);
    if (o->scripted && (o->scripted_count < 1 || o->drafting == DS4_DRAFT_OFF || !e->has_dspark))
        return ds4_fail(err, DS4_EARG, "scripted acceptance needs a drafter that drafts, and at least one number");
    if (e->o.dspark && !e->has_dspark)
        return ds4_fail(err, DS4_ESTATE, "drafting was asked for but no drafter is loaded");
    return 0;
}

/* Hands a token to the caller; false: stop before it. */
static bool emit(run *g, int32_t token, const float *logits)
{
    if (g->o->on_token && !g->o->on_token(g->o->ctx, token, g->o->want_logits ? logits : NULL)) {
        g->r->finish = DS4_FINISH_CALLER;
        return false;
    }
    g->r->tokens++;
    return true;
}

static bool is_eos(const run *g, int32_t token) { return token == g->c->eos; }

/* Takes back what follows position pos - 1, whose logits are row `row` of the cycle's forward and stay valid. */
static int stop_before(session *s, int pos, int row, ds4_error *err)
{
    int rc = session_rewind(s, pos, err);
    if (!rc)
        s->logits_row = row;
    return rc;
}

/* Emits what a cycle produced. If the caller stops at token i, the timeline goes back to where plain decoding would
 * have stopped: that token chosen, not evaluated. */
static int emit_all(run *g, const int32_t *out, int n, int base, ds4_error *err)
{
    const size_t vocab = (size_t)g->s->s.m->s.dims.vocab;
    for (int i = 0; i < n; i++) {
        if (is_eos(g, out[i])) {
            g->r->finish = DS4_FINISH_EOS;
            g->stopped = true;
            return 0;
        }
        if (!emit(g, out[i], g->c->logits + (size_t)i * vocab)) {
            g->stopped = true;
            return stop_before(&g->s->s, base + 1 + i, i, err);
        }
    }
    return 0;
}

static int loop(run *g, int32_t anchor, ds4_error *err)
{
    session *s = &g->s->s;
    while (!g->stopped && g->r->tokens < g->o->max_tokens) {
        int32_t out[SHAPE_MAX_BLOCK + 1];
        int n = 0, base = s->pos;
        if (s->pos >= s->ctx) {
            g->r->finish = DS4_FINISH_CONTEXT;
            return 0;
        }
        int rc = cycle_step(g->c, s, anchor, g->o->max_tokens - g->r->tokens, out, &n, err);
        if (rc)
            return rc;
        anchor = out[n - 1];
        rc = emit_all(g, out, n, base, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int hash_logits(run *g, ds4_error *err)
{
    const size_t vocab = (size_t)g->s->s.m->s.dims.vocab;
    if (g->s->s.logits_row < 0)
        return 0;
    int rc = ds4_session_logits(g->s, g->c->logits, err);
    if (!rc)
        g->r->logits_hash = hash64(g->c->logits, vocab * sizeof(float), 0);
    return rc;
}

static int start(run *g, int32_t *anchor, ds4_error *err)
{
    session *s = &g->s->s;
    if (s->logits_row < 0)
        return ds4_fail(err, DS4_ESTATE, "no logits to start from; call ds4_session_sync first");
    int rc = cycle_choose(g->c, s, s->logits_row, 1, s->pos, anchor, err);
    if (rc)
        return rc;
    if (is_eos(g, *anchor)) {
        g->r->finish = DS4_FINISH_EOS;
        g->stopped = true;
    } else if (!emit(g, *anchor, g->c->logits))
        g->stopped = true;
    return 0;
}

int ds4_generate(ds4_session *s, const ds4_generate_options *o, ds4_result *r, ds4_error *err)
{
    ds4_engine *e = s->e;
    run g = {.s = s, .o = o, .r = r, .c = &e->c};
    int32_t anchor = 0;
    *r = (ds4_result){.finish = DS4_FINISH_LIMIT};
    int rc = check(o, e, err);
    if (!rc)
        rc = choose_proposer(&g, err);
    if (rc)
        return rc;
    e->c.sample = (sample_params){o->temp < least_temp ? 0 : o->temp, o->top_k, o->top_p, o->min_p, o->seed};
    e->c.eos = o->ignore_eos ? -1 : vocab_eos(e->words);
    e->c.keep_logits = o->want_logits;
    const ds4_stats before = e->stats;
    double t = clock_now();
    engine_own(s);
    rc = start(&g, &anchor, err);
    double pause = clock_now();
    if (!rc)
        rc = measure(&g, err);
    t += clock_now() - pause;
    if (!rc)
        rc = loop(&g, anchor, err);
    r->seconds = clock_now() - t;
    e->c.script = NULL;
    r->cycles = e->stats.cycles - before.cycles;
    r->proposed = e->stats.proposed - before.proposed;
    r->accepted = e->stats.accepted - before.accepted;
    return rc ? rc : hash_logits(&g, err);
}
