/* cycle.h: the one decoding loop. Plain decoding is the cycle with an empty draft.
 *
 *     drafts d1..dk = propose(anchor)                        k = 0 when drafting is off, paused, gated, or out of room
 *     rows [anchor, d1..dk] at pos .. pos+k in one narrow forward
 *     choice[i] = choose(logits of row i, position pos+i+1)
 *     a = longest prefix with d[i+1] == choice[i]; commit(a+1); next anchor = choice[a]
 *
 * Every emitted token is the trunk's own choice with position-keyed noise, rows are invariant, so the tokens and the
 * committed state are those of plain decoding, bit for bit. EOS never enters the state: drafts are cut before it, and
 * it can only be the next anchor. */
#ifndef DS4_SPEC_CYCLE_H
#define DS4_SPEC_CYCLE_H

#include "sample/sample.h"
#include "session/session.h"
#include "spec/proposer.h"
#include "spec/sched.h"
#include "spec/stats.h"

/* Acceptance that is prescribed, to measure speed at a given one: all work is done, but of a drafted cycle's drafts the
 * next accept[i] count as accepted, whatever the trunk chose. The text is then nobody's. */
typedef struct cycle_script {
    const uint8_t *accept; /* [n], used over and over */
    int n, at;
    float conf; /* AUTO: every draft's confidence, in place of the head's */
} cycle_script;

typedef struct cycle {
    model *m;
    sched *sched;
    proposer *proposer; /* NULL: plain decoding */
    ds4_stats *stats;
    sample_params sample;
    int eos;           /* token at which drafts are cut; -1: none */
    float *logits;     /* [BE_NARROW][vocab] host copy, filled when the sampler has filters or keep_logits is set */
    sample_cand *room; /* [vocab] */
    bool keep_logits;
    cycle_script *script; /* NULL: acceptance is what it is */
} cycle;

/* Takes host scratch; m, sched and stats must outlive it. */
int cycle_open(cycle *c, model *m, sched *sched, ds4_stats *stats, ds4_err *e);
void cycle_close(cycle *c);

/* Chooses tokens from scratch logits rows [0, n) for positions pos .. pos+n-1 and waits. */
int cycle_choose(cycle *c, session *s, int first_row, int n, int pos, int32_t *out, ds4_err *e);

/* One cycle: evaluates `anchor` at s->pos and emits 1 .. max tokens into out (room for SHAPE_MAX_BLOCK + 1): the
 * accepted drafts, then the next anchor. max >= 1. c->logits row i belongs to out[i] if keep_logits. On error the
 * session is POISONED or unchanged. */
int cycle_step(cycle *c, session *s, int32_t anchor, int max, int32_t *out, int *n_out, ds4_err *e);

/* Measures T(1 .. block+1) and P at the session's position and fills the scheduler's cost table. Commits nothing; the
 * logits of the last position are lost. Does nothing if the context has no room. */
int cycle_measure(cycle *c, session *s, ds4_err *e);

#endif
