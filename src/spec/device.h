/* device.h: the two ways through a cycle share what is decided before it and accounted after it (cycle.c). Here: the
 * way without a visit to the host. One upload, one step (a replayed graph where the backend has graphs), one wait, one
 * record of about a hundred bytes. Tokens, state and decisions equal those of the host's way. */
#ifndef DS4_SPEC_DEVICE_H
#define DS4_SPEC_DEVICE_H

#include "spec/cycle.h"

typedef struct cycle_plan {
    bool wanted;     /* drafting is on */
    int most;        /* drafts that may be verified; 0: plain step */
    bool proposed, gated;
    bool first;      /* the step was issued or captured, not replayed: its time is no measurement */
    int k;           /* drafts verified */
    double propose_s, forward_s;
} cycle_plan;

/* How the scheduler, or the script in its place, wants the drafts of a cycle to be chosen. */
void cycle_rule(const cycle *c, int pos, int max, be_rule *r);
/* How many of k drafts count as accepted: as many as were, or as the script says next. */
int cycle_accepts(cycle *c, int k, int accepted);

/* Whether a cycle at the session's position can go this way: the backend has the operations, it alone can choose the
 * tokens, and nobody wants the logits. Brings the proposer up to the position if most > 0. */
bool device_can(cycle *c, session *s, int most);
/* The cycle; commits. out: accepted drafts, then the next anchor. */
int device_step(cycle *c, session *s, int32_t anchor, cycle_plan *pl, int32_t *out, int *accepted, ds4_err *e);
/* Seconds of a full proposal at the session's position, where device_can(c, s, most). Commits nothing. */
int device_time_proposal(cycle *c, session *s, int most, double *seconds, ds4_err *e);

#endif
