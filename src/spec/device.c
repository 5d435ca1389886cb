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
    in->serial = m->sc.record->serial + 1;
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

int device_step(cycle *c, session *s, int32_t anchor, cycle_plan *pl, int32_t *out, int *accepted, ds4_err *e)
{
    model *m = c->m;
    backend *b = m->b;
    ds4_stats *st = c->stats;
    be_cycle_in in;
    int32_t tokens[PLAN_ROWS];
    const double start = clock_now();
    int rc = session_reserve(s, anchor, pl->most + 1, e);
    if (rc)
        return rc;
    fill(c, s, anchor, pl->most, &in);
    b->op->upload(b, &m->sc.cycle->in, &in, sizeof in);
    pl->first = forward_cycle(m, s->k, pl->most, s->pos + pl->most, pl->most && st->timing);
    const double issued = clock_now();
    rc = session_wait(s, e);
    const double waited = clock_now();
    const be_record *r = m->sc.record;
    if (!rc)
        rc = check_record(s, r, in.serial, pl->most, e);
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
    if (pl->most)
        s->absorbed = s->pos;
    session_settle(s, tokens, a + 1, a);
    const double end = clock_now();
    pl->forward_s = end - start - pl->propose_s;
    st->bytes_to_host += sizeof *r;
    if (pl->wanted) {
        st->device_cycles++;
        st->host += (issued - start) + (end - waited);
    }
    return 0;
}
