/* noise.h: position-keyed noise. The same (seed, position, token) gives the same number everywhere, so that the token
 * chosen for a position does not depend on whether, or how, it was drafted. */
#ifndef DS4_BASE_NOISE_H
#define DS4_BASE_NOISE_H

#include <stdint.h>

/* Uniform in (0, 1), never 0 or 1; 24 significant bits at every magnitude, so rare tokens keep their true chance. */
float noise_uniform(uint64_t seed, uint32_t pos, uint32_t token);
/* Standard Gumbel: -log(-log(1 - v)), v = noise_uniform. argmax(logit/T + gumbel) is a sample of softmax(logit/T). */
float noise_gumbel(uint64_t seed, uint32_t pos, uint32_t token);

#endif
