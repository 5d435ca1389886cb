/* cycle.c: see cycle.h, which states the loop. Read cycle_step first: draft, one forward, accept, commit, account. */
#include "spec/cycle.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "spec/device.h"

int cycle_open(cycle *c, model *m, sched *sched, ds4_stats *stats, ds4_err *e)
{
    const size_t vocab = (size_t)m->s.dims.vocab;
    *c = (cycle){.m = m, .sched = sched, .stats = stats, .eos = -1};
    c->logits = malloc(BE_NARROW * vocab * sizeof *c->logits);
    c->room = malloc(vocab * sizeof *c->room);
    if (c->logits && c->room)
        return 0;
    cycle_close(c);
    return ds4_fail(e, DS4_ENOMEM, "no memory for the sampler (%zu tokens)", vocab);
}

void cycle_close(cycle *c)
{
    free(c->logits);
    free(c->room);
    c->logits = NULL;
    c->room = NULL;
}

int cycle_choose(cycle *c, session *s, int first_row, int n, int pos, int32_t *out, ds4_err *e)
{
    backend *b = c->m->b;
    const size_t vocab = (size_t)c->m->s.dims.vocab;
    const float *rows = c->m->sc.logits + (size_t)first_row * vocab;
    const bool on_device = sample_is_plain(&c->sample);
    int32_t *ids = c->m->sc.ids, at[BE_NARROW];
    if (on_device) {
        for (int i = 0; i < n; i++)
            at[i] = pos + i;
        b->op->upload(b, ids + IDS_CHOICE_POS, at, (size_t)n * sizeof *at);
        b->op->pick(b, n, rows, c->sample.temp, c->sample.seed, ids + IDS_CHOICE_POS, ids + IDS_CHOICE);
        b->op->download(b, out, ids + IDS_CHOICE, (size_t)n * sizeof *out);
        c->stats->bytes_to_host += (size_t)n * sizeof *out;
    }
    if (!on_device || c->keep_logits) {
        b->op->download(b, c->logits, rows, (size_t)n * vocab * sizeof(float));
        c->stats->bytes_to_host += (size_t)n * vocab * sizeof(float);
    }
    int rc = session_wait(s, e);
    for (int i = 0; i < n && !rc && !on_device; i++)
        out[i] = sample_choose(&c->sample, c->logits + (size_t)i * vocab, (int)vocab, (uint32_t)(pos + i), c->room);
    return rc;
}

/* Whether to draft, and how many drafts may be verified. */
static void decide(cycle *c, session *s, int max, cycle_plan *pl)
{
    ds4_stats *st = c->stats;
    memset(pl, 0, sizeof *pl);
    if (!c->proposer || c->sched->mode == SCHED_OFF)
        return;
    pl->wanted = true;
    st->cycles++;
    int room = s->ctx - s->pos - 1, most = max - 1 < c->proposer->most ? max - 1 : c->proposer->most;
    if (most < 1) {
        st->tail_skips++;
        return;
    }
    most = most < room ? most : room;
    if (most < 1) {
        st->no_room++;
        return;
    }
    if (!sched_wants(c->sched, s->pos, most)) {
        st->scheduler_skips++;
        return;
    }
    pl->most = most;
}

static void count(cycle *c, const cycle_plan *pl, int accepted, double seconds)
{
    ds4_stats *st = c->stats;
    const int k = pl->k;
    if (!pl->wanted)
        return;
    st->first_tokens++;
    st->proposed += (uint64_t)k;
    st->accepted += (uint64_t)accepted;
    st->draft_hist[k]++;
    st->accepted_hist[accepted]++;
    st->gated += pl->gated;
    st->no_draft += pl->proposed && k == 0;
    st->propose += pl->propose_s;
    if (k == 0) {
        st->plain_steps++;
        st->target += seconds;
        st->spent += pl->propose_s;
        return;
    }
    st->full += accepted == k;
    st->partial += accepted < k;
    st->miss_first += accepted == 0;
    st->verify += seconds;
    st->verify_rows += (uint64_t)k + 1;
    double plain = c->sched->cost[0].known ? c->sched->cost[0].t[1]
                   : st->plain_steps       ? st->target / (double)st->plain_steps
                                           : 0;
    if (plain > 0) {
        st->saved += plain * (accepted + 1);
        st->spent += pl->propose_s + seconds;
    }
}

void cycle_rule(const cycle *c, int pos, int max, be_rule *r)
{
    float conf[PLAN_ROWS];
    sched_rule(c->sched, pos, max, r);
    if (!c->script || c->sched->mode != SCHED_AUTO)
        return;
    for (int i = 0; i < max; i++)
        conf[i] = c->script->conf;
    r->cap = plan_choose(r, max, conf);
    r->gate = plan_gated(r->gate, c->script->conf) ? 2 : 0; /* the head says at most 1 */
    r->threshold = r->cap ? 0 : 2;
    r->by_rate = 0;
}

int cycle_accepts(cycle *c, int k, int accepted)
{
    if (!c->script || k == 0)
        return accepted;
    const int a = c->script->accept[c->script->at];
    c->script->at = (c->script->at + 1) % c->script->n;
    return a < k ? a : k;
}

/* Asks the proposer and cuts what it gives. */
static int draft(cycle *c, session *s, int32_t anchor, cycle_plan *pl, proposal *p, ds4_err *e)
{
    int32_t invalid = 0;
    be_rule rule;
    p->n = 0;
    if (pl->most == 0)
        return 0;
    cycle_rule(c, s->pos, pl->most, &rule);
    double t = clock_now();
    int rc = c->proposer->propose(c->proposer, s, anchor, pl->most, rule.gate, &c->sample, p, e);
    pl->propose_s = clock_now() - t;
    pl->proposed = true;
    if (rc) {
        s->state = SESSION_POISONED;
        return rc;
    }
    pl->gated = p->gated;
    pl->k = plan_usable(p->draft, plan_choose(&rule, p->n, p->conf), c->eos, c->m->s.dims.vocab, &invalid);
    c->stats->invalid += (uint64_t)invalid;
    return 0;
}

/* A cycle that the host drives: proposal, forward, choice, each waited for. */
static int host_step(cycle *c, session *s, int32_t anchor, cycle_plan *pl, int32_t *out, int *accepted, ds4_err *e)
{
    proposal p;
    int32_t rows[SHAPE_MAX_BLOCK + 1] = {anchor}, choice[SHAPE_MAX_BLOCK + 1];
    const int pos = s->pos;
    int rc = draft(c, s, anchor, pl, &p, e);
    if (rc)
        return rc;
    memcpy(rows + 1, p.draft, (size_t)pl->k * sizeof *rows);
    double t = clock_now();
    rc = session_begin(s, rows, pl->k + 1, 0, e);
    if (!rc)
        rc = cycle_choose(c, s, 0, pl->k + 1, pos + 1, choice, e);
    if (rc)
        return rc;
    pl->forward_s = clock_now() - t;
    int a = 0;
    while (a < pl->k && choice[a] == p.draft[a])
        a++;
    a = cycle_accepts(c, pl->k, a);
    session_commit(s, a + 1, a);
    memcpy(out, choice, (size_t)(a + 1) * sizeof *out);
    *accepted = a;
    return 0;
}

int cycle_step(cycle *c, session *s, int32_t anchor, int max, int32_t *out, int *n_out, ds4_err *e)
{
    cycle_plan pl;
    int a = 0;
    *n_out = 0;
    if (s->pos >= s->ctx)
        return ds4_fail(e, DS4_EARG, "the context is full: %d tokens; use a larger --ctx", s->ctx);
    const int pos = s->pos;
    decide(c, s, max, &pl);
    int rc = device_can(c, s, pl.most) ? device_step(c, s, anchor, &pl, out, &a, e)
                                       : host_step(c, s, anchor, &pl, out, &a, e);
    if (rc) {
        c->stats->errors++;
        return rc;
    }
    *n_out = a + 1;
    count(c, &pl, a, pl.forward_s);
    sched_note(c->sched, pos, pl.proposed, pl.gated, pl.propose_s, pl.first ? 0 : pl.k + 1, pl.forward_s, a + 1);
    return 0;
}

/* Best of a few times of one job: after a warm-up (two where the first is issued and the second captured) three more,
 * or the first one alone if the machine is slow. */
typedef int (*timed_fn)(cycle *c, session *s, int n, double *seconds, ds4_err *e);

static int time_job(cycle *c, session *s, timed_fn fn, int n, double *best, ds4_err *e)
{
    const int warm = c->m->b->graphs ? 2 : 1;
    for (int i = 0; i < warm + 3; i++) {
        double t;
        int rc = fn(c, s, n, &t, e);
        if (rc)
            return rc;
        *best = i <= warm || t < *best ? t : *best;
        if (t > 0.25)
            break;
    }
    return 0;
}

/* A forward of n rows that is not committed. Unlike tokens, so that the rows do not share their experts. */
static int job_rows(cycle *c, session *s, int n, double *seconds, ds4_err *e)
{
    int32_t rows[SHAPE_MAX_BLOCK + 1], choice[SHAPE_MAX_BLOCK + 1];
    for (int i = 0; i < n; i++)
        rows[i] = (int32_t)((uint32_t)(i + 1) * 2654435761u % (uint32_t)c->m->s.dims.vocab);
    const double start = clock_now();
    int rc = session_begin(s, rows, n, 0, e);
    if (!rc)
        rc = cycle_choose(c, s, 0, n, s->pos + 1, choice, e);
    *seconds = clock_now() - start;
    if (!rc)
        session_commit(s, 0, -1);
    return rc;
}

static int job_proposal(cycle *c, session *s, int n, double *seconds, ds4_err *e)
{
    const sample_params greedy = {0};
    proposal p;
    if (device_can(c, s, n))
        return device_time_proposal(c, s, n, seconds, e);
    const double start = clock_now();
    int rc = c->proposer->propose(c->proposer, s, 0, n, 0.0f, &greedy, &p, e);
    *seconds = clock_now() - start;
    return rc;
}

int cycle_measure(cycle *c, session *s, ds4_err *e)
{
    sched_costs costs = {.known = true};
    const int most = c->proposer ? c->sched->most : 0;
    const sample_params keep = c->sample;
    if (s->ctx - s->pos < most + 1)
        return 0;
    c->sample = (sample_params){0};
    int rc = 0;
    for (int n = 1; n <= most + 1 && !rc; n++)
        rc = time_job(c, s, job_rows, n, &costs.t[n], e);
    if (most && !rc)
        rc = time_job(c, s, job_proposal, most, &costs.p, e);
    c->sample = keep;
    if (!rc)
        sched_set_costs(c->sched, &costs);
    return rc;
}
