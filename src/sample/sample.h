/* sample.h: choosing a token from logits. Pure functions: the choice depends on the logits, the parameters, the
 * position that the token will take, and nothing else. With position-keyed noise (Gumbel-max) the same seed gives the
 * same text however tokens were drafted. */
#ifndef DS4_SAMPLE_SAMPLE_H
#define DS4_SAMPLE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

typedef struct sample_params {
    float temp;  /* <= 0: the largest logit */
    int top_k;   /* 0 or less: off */
    float top_p; /* 1 or more: off */
    float min_p; /* 0 or less: off; relative to the most likely token */
    uint64_t seed;
} sample_params;

/* Checks ranges; DS4_EARG names the parameter, the value and the range. */
int sample_check(const sample_params *p, ds4_err *e);

/* True when a backend's pick() alone implements p: greedy, or temperature without filters. */
bool sample_is_plain(const sample_params *p);

typedef struct sample_cand {
    float logit;
    int32_t id;
} sample_cand;

/* Chooses from `vocab` logits for position `pos`. `room`: vocab entries of scratch. Filters apply in the order top-k,
 * top-p (over what top-k kept), min-p; among the kept tokens the largest logit/temp + noise wins. Ties go to the lowest
 * id, NaN is never chosen, an all-NaN row gives 0. */
int32_t sample_choose(const sample_params *p, const float *logits, int vocab, uint32_t pos, sample_cand *room);

#endif
