#include "spec/device.h"

#include <string.h>

#include "base/clock.h"

_Static_assert(sizeof(be_record) <= 256, "what a cycle reads back");

bool device_can(cycle *c, session *s, int most)
{
    if (!c->m->sc.record || c->keep_logits || !sample_is_plain(&c->sample))
        return false;
    if (s->state != SESSION_READY && s->state != SESSION_EMPTY)
        return false;
    return most == 0 || (c->proposer->ready && c->proposer->ready(c->proposer, s));
}

/* Rows of one set: consecutive positions from `pos`. */
static void set_rows(be_cycle_in *in, int set, int n, int32_t first, int32_t rest, int pos, int slot)
{
    for (int i = 0; i < n; i++) {
        in->token[set][i] = i ? rest : first;
        in->pos[set][i] = pos + i;
        in->seq[set][i] = slot;
    }
}

static void fill(const cycle *c, const session *s, int32_t anchor, int most, be_cycle_in *in)
{
    const model *m = c->m;
    memset(in, 0, sizeof *in);
    in->seed = c->sample.seed;
    in->temp = c->sample.temp;
    in->eos = c->eos;
    in->vocab = m->s.dims.vocab;
    in->most = most;
    set_rows(in, 0, most + 1, anchor, anchor, s->pos, s->slot);
    for (int i = 0; i < PLAN_ROWS; i++)
        in->choice_pos[i] = in->draft_pos[i] = s->pos + 1 + i;
    in->draft[0] = anchor;
    if (most == 0)
        return;
    cycle_rule(c, s->pos, most, &in->rule);
    set_rows(in, 1, m->ds.block, anchor, m->ds.noise, s->pos, s->slot);
    set_rows(in, 2, m->ds.block + 1, 0, 0, s->pos - m->ds.block - 1, s->slot);
}

/* With timing on, the record tells all parts; without, the time of the proposal as a whole. */
static void account(ds4_stats *st, const be_record *r, cycle_plan *pl)
{
    double *const part[] = {&st->setup, &st->chain, &st->conf0, &st->logits, &st->markov, &st->confidence};
    pl->propose_s = r->ns[5] * 1e-9;
    for (int i = 0; i < 6 && st->timing; i++)
        *part[i] += (double)(r->ns[i] - (i ? r->ns[i - 1] : 0)) * 1e-9;
    pl->proposed = true;
    pl->gated = r->gated;
    st->invalid += (uint64_t)r->invalid;
}

/* Nothing on the host is trusted to be right about a device that may be dying. */
static int check_record(session *s, const be_record *r, int32_t serial, int most, ds4_err *e)
{
    if (r->serial == serial && 0 <= r->accepted && r->accepted <= r->k && r->k <= most)
        return 0;
    s->open = 0;
    s->state = SESSION_POISONED;
    return ds4_fail(e, DS4_EBACKEND, "the device left no valid record of a cycle at position %d", s->pos);
}

/* What a step took, by the host's clock. */
typedef struct step_clock {
    double start, issued, waited;
} step_clock;

/* Reserves rows, uploads, issues, waits; a valid record is there afterwards. */
static int run(cycle *c, session *s, be_cycle_in *in, bool timing, bool *first, step_clock *t, ds4_err *e)
{
    model *m = c->m;
    int rc = session_reserve(s, in->draft[0], in->most + 1, e);
    if (rc)
        return rc;
    in->serial = m->sc.record->serial + 1;
    m->b->op->upload(m->b, &m->sc.cycle->in, in, sizeof *in);
    *first = forward_cycle(m, s->k, in->most, s->pos + in->most, timing);
    t->issued = clock_now();
    rc = session_wait(s, e);
    t->waited = clock_now();
    if (!rc)
        rc = check_record(s, m->sc.record, in->serial, in->most, e);
    if (!rc && in->most)
        s->absorbed = s->pos;
    return rc;
}

int device_step(cycle *c, session *s, int32_t anchor, cycle_plan *pl, int32_t *out, int *accepted, ds4_err *e)
{
    ds4_stats *st = c->stats;
    const be_record *r = c->m->sc.record;
    be_cycle_in in;
    int32_t tokens[PLAN_ROWS];
    step_clock t = {.start = clock_now()};
    fill(c, s, anchor, pl->most, &in);
    int rc = run(c, s, &in, pl->most && st->timing, &pl->first, &t, e);
    if (rc)
        return rc;
    if (pl->most)
        account(st, r, pl);
    const int a = cycle_accepts(c, r->k, r->accepted);
    pl->k = r->k;
    *accepted = a;
    memcpy(out, r->choice, (size_t)(a + 1) * sizeof *out);
    tokens[0] = anchor;
    memcpy(tokens + 1, out, (size_t)a * sizeof *out);
    session_settle(s, tokens, a + 1, a);
    const double end = clock_now();
    pl->forward_s = end - t.start - pl->propose_s;
    st->bytes_to_host += sizeof *r;
    if (pl->wanted) {
        st->device_cycles++;
        st->host += (t.issued - t.start) + (end - t.waited);
    }
    return 0;
}

int device_time_proposal(cycle *c, session *s, int most, double *seconds, ds4_err *e)
{
    be_cycle_in in;
    step_clock t;
    bool first;
    fill(c, s, 0, most, &in);
    in.rule = (be_rule){.threshold = 2}; /* no gate, and nothing is sure enough to be verified */
    int rc = run(c, s, &in, false, &first, &t, e);
    if (rc)
        return rc;
    *seconds = c->m->sc.record->ns[5] * 1e-9;
    session_commit(s, 0, -1);
    return 0;
}
