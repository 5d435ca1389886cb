/* sched.h: how many drafts to verify, and whether to draft at all.
 *
 * FIXED: keep drafts while their confidence is at least the threshold; no cost model.
 * AUTO: the paper's Algorithm 1 for one sequence. With survival a_j = c_1 ... c_j and measured costs, rows are admitted
 * while the expected tokens per second (1 + a_1 + ... + a_k) / (P + T(1+k)) rise. T(n): seconds of a forward of n rows,
 * P: of a proposal, both measured at start and refreshed by running averages per context bucket. The whole proposal is
 * skipped while a running average of what it gains over plain steps is negative, and probed again at growing intervals;
 * it is never made where even full acceptance could not pay. */
#ifndef DS4_SPEC_SCHED_H
#define DS4_SPEC_SCHED_H

#include <stdbool.h>
#include <stddef.h>

#include "spec/proposer.h"

enum { SCHED_BUCKETS = 6, SCHED_ROWS = SHAPE_MAX_BLOCK + 2 };
enum sched_mode { SCHED_OFF, SCHED_AUTO, SCHED_FIXED };

typedef struct sched_costs {
    bool known;
    double t[SCHED_ROWS]; /* t[n]: seconds of n rows; t[0] unused */
    double p;             /* seconds of a full proposal */
} sched_costs;

typedef struct sched {
    enum sched_mode mode;
    float threshold; /* FIXED */
    int most;        /* drafts per proposal */
    sched_costs cost[SCHED_BUCKETS];
    double gain; /* running average of plain steps saved per proposal */
    bool gain_known;
    int pause;    /* cycles until the next probe */
    int interval; /* length of the next pause */
    size_t proposals, skips, quenches;
} sched;

void sched_init(sched *s, int most);
/* Costs measured for contexts of bucket 0; the rest start from them. */
void sched_set_costs(sched *s, const sched_costs *c);
void sched_set_mode(sched *s, enum sched_mode mode, float threshold);

/* Asked at the start of a cycle at position pos that may verify at most max drafts. false: plain step. */
bool sched_wants(sched *s, int pos, int max);
/* Smallest first confidence with which drafting could still pay. */
float sched_gate(const sched *s, int pos, int max);
/* How drafts are chosen at position pos when at most max may be verified (backend/plan.h). */
void sched_rule(const sched *s, int pos, int max, be_rule *out);
/* How many of the proposal's drafts to verify. */
int sched_choose(const sched *s, int pos, const proposal *p);
/* After the cycle: seconds of the proposal (0 if none was made), rows and seconds of the forward, tokens committed. */
void sched_note(sched *s, int pos, bool proposed, bool gated, double propose_s, int rows, double forward_s, int tokens);
/* Several lines of text for --stats. */
size_t sched_report(const sched *s, char *buf, size_t n);

#endif
