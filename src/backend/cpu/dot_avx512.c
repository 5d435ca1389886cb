/* dot_avx512.c: inner loops for AVX-512 with VNNI. Floats use 512-bit vectors, bytes 256-bit ones with the
 * dot-product instructions. */
#include "backend/cpu/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni"))), \
                             apply_to = function)
#else
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")
#endif

#define W 16

static inline __m256i add2(__m256i acc, __m256i a, __m256i b)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); /* a shorter chain than the fused instruction */
}

static inline __m256i add4(__m256i acc, __m256i u, __m256i x) { return _mm256_dpbusd_epi32(acc, u, x); }

/* Signed bytes: w + 128 is unsigned; the share of the 128 is taken out of the sums. */
static inline __m256i signed_bytes(__m256i w, __m256i x)
{
    return add4(_mm256_setzero_si256(), _mm256_xor_si256(w, _mm256_set1_epi8(-128)), x);
}

static inline __m256i signed_sums(__m256i sums, __m256i sum32)
{
    return _mm256_sub_epi32(sums, _mm256_slli_epi32(sum32, 7));
}

#include "backend/cpu/dot_x86.h"

#include "backend/cpu/dot_tile.h"

const cpu_kernels cpu_avx512 = {
    .name = "AVX-512 VNNI",
    ROW_KERNELS,
    .tile = {
        [Q_Q8_0] = {tile_of_q8_0, 1},
        [Q_Q4_0] = {tile_of_q4_0, 1},
        [Q_MXFP4] = {tile_of_mxfp4, 1},
        [Q_Q2_K] = {tile_of_q2_k, 2},
        [Q_Q3_K] = {tile_of_q3_k, 3},
        [Q_Q4_K] = {tile_of_q4_k, 3},
        [Q_Q5_K] = {tile_of_q5_k, 4},
        [Q_Q6_K] = {tile_of_q6_k, 8},
        [Q_IQ2_XXS] = {tile_of_iq2_xxs, 4},
    },
};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
