/* num.h: small number formats and the simulated roundings of DeepSeek-V4's KV rows.
 *
 * Everything here is exact and the same on every machine (no fast-math, no contraction). */
#ifndef DS4_BASE_NUM_H
#define DS4_BASE_NUM_H

#include <stdint.h>
#include <string.h>

static inline uint32_t num_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float num_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

static inline float num_bf16(uint16_t h) { return num_float((uint32_t)h << 16); }
float num_f16(uint16_t h);          /* exact */
uint16_t num_to_f16(float f);       /* round to nearest even; overflow gives infinity */
uint16_t num_to_bf16(float f);      /* round to nearest even; NaN stays NaN */
float num_e8m0(uint8_t s);          /* 2^(s-127); 0 gives 2^-127 (a float32 denormal), 255 gives NaN */
float num_e4m3(uint8_t c);          /* e4m3fn: bias 7, largest 448, 0x7f/0xff NaN */
uint8_t num_to_e4m3(float f);       /* round to nearest even, saturating at 448 */
float num_e2m1(uint8_t c);          /* FP4: 0 .5 1 1.5 2 3 4 6, bit 3 = sign */
uint8_t num_to_e2m1(float f);       /* nearest, ties to the even code, saturating at 6 */

/* Smallest power of two not below amax/limit, as an exponent: ceil(log2(amax * (1/limit))) from the float bits. */
int num_ceil_log2(float x);

/* DeepSeek-V4: simulated FP8 of KV rows, in place, n a multiple of 64: per block of 64 a power-of-two scale from
 * max(amax, 1e-4)/448, e4m3fn round to nearest even. */
void num_sim_fp8(float *v, int n);
/* DeepSeek-V4: simulated FP4 of index rows and queries, in place, n a multiple of 32: per block of 32 a power-of-two
 * scale from max(amax, 6*2^-126)/6, e2m1 ties to even. */
void num_sim_fp4(float *v, int n);
/* Walsh-Hadamard transform in natural order times n^-0.5, in place; n a power of two (the index width, 128). */
void num_hadamard(float *v, int n);

#endif
