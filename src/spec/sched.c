#include "spec/sched.h"

#include <stdio.h>
#include <string.h>

/* START_PAUSE: before the first probe where typical acceptance would not pay; a probe costs a plain step or two. */
enum { START_PAUSE = 8, FIRST_PAUSE = 64, LONGEST_PAUSE = 1024 };
static const double refresh = 0.1;      /* weight of a new cost measurement */
static const double gain_weight = 0.35; /* weight of a new gain */
static const double typical = 0.7;      /* assumed survival per draft before anything was seen */

static int bucket(int pos)
{
    int b = 0;
    for (int limit = 2048; b < SCHED_BUCKETS - 1 && pos >= limit; limit *= 4)
        b++;
    return b;
}

static const sched_costs *costs(const sched *s, int pos) { return &s->cost[bucket(pos)]; }

void sched_init(sched *s, int most)
{
    memset(s, 0, sizeof *s);
    s->most = most;
    s->interval = FIRST_PAUSE;
}

void sched_set_costs(sched *s, const sched_costs *c)
{
    sched_costs sane = *c;
    /* fewer rows never cost more: a larger time of the smaller forward was a disturbance */
    for (int n = s->most; n >= 1; n--)
        sane.t[n] = sane.t[n] > sane.t[n + 1] ? sane.t[n + 1] : sane.t[n];
    for (int b = 0; b < SCHED_BUCKETS; b++)
        s->cost[b] = sane;
}

void sched_set_mode(sched *s, enum sched_mode mode, float threshold)
{
    s->mode = mode;
    s->threshold = threshold;
}

/* Best expected gain, in seconds per cycle, of proposing when every draft survives with the same chance. */
static double prospect(const sched_costs *c, int max, double survival)
{
    double best = -1e9, tokens = 1, a = 1;
    for (int k = 1; k <= max; k++) {
        a *= survival;
        tokens += a;
        double gain = tokens * c->t[1] - c->p - c->t[1 + k];
        best = gain > best ? gain : best;
    }
    return best;
}

static int clip(const sched *s, int max) { return max < s->most ? max : s->most; }

bool sched_wants(sched *s, int pos, int max)
{
    if (s->mode == SCHED_OFF || max < 1)
        return false;
    if (s->mode == SCHED_FIXED)
        return true;
    const sched_costs *c = costs(s, pos);
    if (!c->known || prospect(c, clip(s, max), 1.0) <= 0) {
        s->skips++;
        return false;
    }
    if (!s->gain_known) {
        s->gain = prospect(c, s->most, typical) / c->t[1];
        s->gain_known = true;
        if (s->gain < 0)
            s->pause = START_PAUSE;
    }
    if (s->pause > 0) {
        s->pause--;
        s->skips++;
        return false;
    }
    return true;
}

float sched_gate(const sched *s, int pos, int max)
{
    if (s->mode == SCHED_FIXED)
        return s->threshold;
    const sched_costs *c = costs(s, pos);
    /* optimistic: everything after the first draft survives; what is left of the proposal is still to be paid */
    double lo = 0, hi = 1;
    for (int i = 0; i < 12; i++) {
        double mid = (lo + hi) / 2, best = -1;
        for (int k = 1; k <= clip(s, max); k++) {
            double gain = (1 + mid * k) * c->t[1] - c->t[1 + k];
            best = gain > best ? gain : best;
        }
        if (best > 0)
            hi = mid;
        else
            lo = mid;
    }
    return (float)lo;
}

void sched_rule(const sched *s, int pos, int max, be_rule *out)
{
    const sched_costs *c = costs(s, pos);
    *out = (be_rule){.by_rate = s->mode != SCHED_FIXED, .threshold = s->threshold, .p = c->p};
    out->gate = sched_gate(s, pos, max);
    _Static_assert(sizeof out->t == sizeof c->t, "costs of as many rows");
    memcpy(out->t, c->t, sizeof out->t);
}

int sched_choose(const sched *s, int pos, const proposal *p)
{
    be_rule r;
    sched_rule(s, pos, p->n, &r);
    return plan_choose(&r, p->n, p->conf);
}

/* A single slow measurement (another process had the machine) counts at most double. */
static void blend(double *v, double x)
{
    *v += refresh * ((x < 2 * *v ? x : 2 * *v) - *v);
}

void sched_note(sched *s, int pos, bool proposed, bool gated, double propose_s, int rows, double forward_s, int tokens)
{
    sched_costs *c = &s->cost[bucket(pos)];
    s->proposals += proposed;
    if (!c->known || rows < 1 || rows >= SCHED_ROWS)
        return;
    blend(&c->t[rows], forward_s);
    if (!proposed)
        return;
    if (!gated)
        blend(&c->p, propose_s);
    /* judged by the averages, not by this cycle's clock: acceptance is what a cycle tells, a disturbance is not */
    double gain = tokens - ((gated ? propose_s : c->p) + c->t[rows]) / c->t[1];
    s->gain += gain_weight * (gain - s->gain);
    if (s->mode != SCHED_AUTO)
        return;
    if (s->gain >= 0) {
        s->interval = FIRST_PAUSE;
        return;
    }
    s->pause = s->interval;
    s->interval = s->interval * 2 < LONGEST_PAUSE ? s->interval * 2 : LONGEST_PAUSE;
    s->quenches++;
}

size_t sched_report(const sched *s, char *buf, size_t n)
{
    static const char *const names[] = {"off", "auto", "fixed threshold"};
    const sched_costs *c = &s->cost[0];
    size_t at = 0;
#define PUT(...) (at += at < n ? (size_t)snprintf(buf + at, n - at, __VA_ARGS__) : 0)
    PUT("ds4: scheduler %s", names[s->mode]);
    if (s->mode == SCHED_FIXED)
        PUT(" %.3f", (double)s->threshold);
    if (c->known) {
        PUT("\nds4: T(n) ms");
        for (int i = 1; i <= s->most + 1; i++)
            PUT(" %d:%.3f", i, c->t[i] * 1e3);
        PUT("; proposal %.3f ms", c->p * 1e3);
        PUT("\nds4: gain if all %d drafts survive %+.2f, at survival %.1f %+.2f, running average %+.2f plain steps a "
            "cycle",
            s->most, prospect(c, s->most, 1.0) / c->t[1], typical, prospect(c, s->most, typical) / c->t[1], s->gain);
    }
    PUT("\nds4: decisions: %zu proposals, %zu skipped, %zu times quenched%s", s->proposals, s->skips, s->quenches,
        s->mode == SCHED_AUTO && c->known && prospect(c, s->most, 1.0) <= 0
            ? " (drafting cannot pay on this machine: off)"
            : "");
#undef PUT
    return at < n ? at : n - 1;
}
