/* confidence.h: the confidence head, z = w . [h ; W1[prev]], c = sigmoid(z): h is the drafter's hidden row before its
 * norm, prev the token before the draft in question; no bias (paper: DSpark, confidence head). */
#ifndef DS4_SPEC_CONFIDENCE_H
#define DS4_SPEC_CONFIDENCE_H

#include "model/model.h"

/* On the host, from host memory: hidden[d]. The Markov row is decoded from the file for this very token on every call,
 * so there is no state that could be stale. Same arithmetic as the CPU backend's operation: double accumulation in
 * index order. *z: the logit. */
int confidence_host(const model *m, const float *hidden, int32_t prev, float *z, ds4_err *e);

#endif
