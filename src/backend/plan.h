/* plan.h: the decisions of a drafting cycle, in one place for host and device: how sure a draft is, whether to go on
 * after the first confidence, how many drafts to verify, where they are cut.
 *
 * Every function is exact arithmetic in float64 without contraction (no fused multiply-add, no library function), so
 * both sides get the same bits. Device code includes this file with PLAN_FN defined for its compiler. */
#ifndef DS4_BACKEND_PLAN_H
#define DS4_BACKEND_PLAN_H

#include <stdint.h>
#include <string.h>

#ifndef PLAN_FN
#define PLAN_FN static inline
#endif

enum { PLAN_MOST = 15, PLAN_ROWS = PLAN_MOST + 1, PLAN_STAMPS = 7 };

/* How the number of drafts is chosen. by_rate 0: drafts are kept while their confidence is at least `threshold`. 1: the
 * paper's Algorithm 1 for one sequence: rows are admitted while (1 + a_1 + ... + a_k) / (p + t[k + 1]) rises, a_j being
 * the product of the first j confidences. */
typedef struct be_rule {
    int32_t by_rate;
    float threshold;
    float gate; /* first confidences below this end the proposal */
    int32_t cap; /* most drafts that are kept; 0: no limit */
    double p;                 /* seconds of a proposal */
    double t[PLAN_ROWS + 1];  /* t[n]: seconds of a forward of n rows; t[0] unused */
} be_rule;

/* exp(x) for |x| <= 88, error below 1e-15 relative. */
PLAN_FN double plan_exp(double x)
{
    const double log2e = 1.4426950408889634;
    const double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
    const int k = (int)(x * log2e + (x < 0 ? -0.5 : 0.5));
    const double r = (x - (double)k * ln2_high) - (double)k * ln2_low;
    double sum = 1.0;
    for (int i = 14; i >= 1; i--) /* 1 + r (1 + r/2 (1 + r/3 ...)) */
        sum = 1.0 + r * sum / (double)i;
    const uint64_t bits = (uint64_t)(k + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

/* Chance that a draft survives, from its confidence logit; NaN stays NaN. */
PLAN_FN float plan_sigmoid(float z)
{
    double x = (double)z;
    x = x > 88.0 ? 88.0 : x < -88.0 ? -88.0 : x;
    return x == x ? (float)(1.0 / (1.0 + plan_exp(-x))) : z;
}

/* Whether the first confidence says that the rest of the proposal is not worth computing. */
PLAN_FN int plan_gated(float gate, float conf) { return !(conf >= gate); }

/* How many of n drafts to verify. A confidence that is no number ends them. */
PLAN_FN int plan_choose(const be_rule *r, int n, const float *conf)
{
    int k = 0;
    n = r->cap > 0 && r->cap < n ? r->cap : n;
    if (!r->by_rate) {
        while (k < n && conf[k] >= r->threshold)
            k++;
        return k;
    }
    double tokens = 1, a = 1, rate = 1 / (r->p + r->t[1]);
    for (int i = 0; i < n; i++) {
        a *= (double)conf[i];
        const double next = (tokens + a) / (r->p + r->t[2 + i]);
        if (!(next > rate))
            break;
        tokens += a;
        rate = next;
        k = i + 1;
    }
    return k;
}

/* Cuts k drafts at EOS, which must never enter the state, and at an id outside the vocabulary (*invalid counts it). */
PLAN_FN int plan_usable(const int32_t *draft, int k, int32_t eos, int32_t vocab, int32_t *invalid)
{
    for (int i = 0; i < k; i++) {
        if (draft[i] == eos)
            return i;
        if (draft[i] < 0 || draft[i] >= vocab) {
            ++*invalid;
            return i;
        }
    }
    return k;
}

/* What a cycle's operations read. The host fills it and uploads it in one piece before the step. */
typedef struct be_cycle_in {
    be_rule rule;
    uint64_t seed;
    float temp;
    int32_t serial; /* comes back in the record */
    int32_t eos, vocab;
    int32_t most; /* drafts that may be verified; 0: a plain step */
    int32_t unused;
    /* rows of the forwards: trunk, drafter's block, absorption */
    int32_t token[3][PLAN_ROWS], pos[3][PLAN_ROWS], seq[3][PLAN_ROWS];
    int32_t draft[PLAN_ROWS]; /* [0]: the anchor; operations write the drafts behind it */
    int32_t draft_pos[PLAN_ROWS], choice_pos[PLAN_ROWS]; /* positions that drafts and choices will take */
} be_cycle_in;

/* What comes back, in memory that the host can read. */
typedef struct be_record {
    int32_t serial;
    int32_t k, accepted; /* drafts verified; of these accepted */
    int32_t gated, invalid;
    int32_t choice[PLAN_ROWS]; /* of rows 0 .. accepted */
    uint32_t ns[PLAN_STAMPS];  /* stamps 1, 2, ... by the device's clock, in nanoseconds after stamp 0; 0: not set */
} be_record;

/* Device memory of a cycle. */
typedef struct be_cycle {
    be_cycle_in in;
    int32_t go;     /* 0: the gate closed */
    int32_t wanted; /* rows of the trunk's forward */
    int32_t k, gated, invalid, unused;
    float logit[PLAN_ROWS]; /* of the confidences */
    int32_t choice[PLAN_ROWS];
    uint64_t stamp[PLAN_STAMPS + 1];
} be_cycle;

#undef PLAN_FN
#endif
