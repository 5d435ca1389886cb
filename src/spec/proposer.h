/* proposer.h: where drafts come from. The cycle knows nothing else about drafting.
 *
 * A proposer is asked for drafts of the tokens at positions pos+1 .. pos+max, given the anchor at pos = session->pos.
 * It may read the session's taps; it must not move the session. Committed rows need no announcement: a proposer catches
 * up from the positional tap ring when it is asked next, so a paused proposer costs nothing. */
#ifndef DS4_SPEC_PROPOSER_H
#define DS4_SPEC_PROPOSER_H

#include "sample/sample.h"
#include "session/session.h"
#include "spec/stats.h"

typedef struct proposal {
    int n; /* drafts, 0 .. max */
    int32_t draft[SHAPE_MAX_BLOCK + 1];
    float conf[SHAPE_MAX_BLOCK + 1]; /* chance that draft i survives if its predecessors did */
    bool gated;                      /* the first confidence was below the gate: nothing else was computed */
} proposal;

typedef struct proposer proposer;
struct proposer {
    int most; /* most drafts of one proposal */
    /* gate: if the first confidence is below it, stop there (n = 0). sp: temperature and seed; drafts use the same
     * noise as the trunk's choice at the same position. Returns 0 or an error that poisons the session. */
    int (*propose)(proposer *p, session *s, int32_t anchor, int max, float gate, const sample_params *sp, proposal *out,
                   ds4_err *e);
    /* (optional) Brings the drafter's rings so far up to the session's position that forward_cycle can make the
     * proposal by itself, absorbing the last rows. False: it cannot, propose must be asked. */
    bool (*ready)(proposer *p, session *s);
    ds4_stats *stats;
};

/* --- DSpark (dspark.c): three stages over [anchor, noise...], trunk head, Markov chain, confidence (paper: DSpark,
 * sections on the semi-autoregressive block and the confidence head) --- */
typedef struct dspark {
    proposer base;
    model *m;
    bool host_confidence; /* diagnostic, and the only way where a backend has no confidence kernel */
    float *hidden;        /* [block][d] host copy for the diagnostic path */
} dspark;

int dspark_open(dspark *d, model *m, bool host_confidence, ds4_stats *stats, ds4_err *e);
void dspark_close(dspark *d);

/* --- test doubles (doubles.c) --- */
enum double_kind { DOUBLE_ORACLE, DOUBLE_WRONG, DOUBLE_RANDOM, DOUBLE_SHORT };
typedef struct double_proposer {
    proposer base;
    enum double_kind kind;
    const int32_t *truth; /* tokens that plain decoding emits, truth[0] standing at position `start` */
    int count, start;
    uint32_t seed;
} double_proposer;
/* DS4_EARG on an unknown name. ORACLE: the truth; WRONG: truth + 1; RANDOM: truth with chance 0.7 per token, else any
 * token, random length; SHORT: one true draft. */
int double_open(double_proposer *d, const char *name, const int32_t *truth, int count, int start, ds4_stats *stats,
                ds4_err *e);

#endif
