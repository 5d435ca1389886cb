/* dot_avx2.c: inner loops for AVX2. */
#include "backend/cpu/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

#define W 8

static inline __m256i add2(__m256i acc, __m256i a, __m256i b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }

static inline __m256i add4(__m256i acc, __m256i u, __m256i x)
{
    return add2(acc, _mm256_maddubs_epi16(u, x), _mm256_set1_epi16(1));
}

/* Signed bytes: the sign of w moves to x. |w| <= 128 and |x| <= 127: two products fit 16 bits. */
static inline __m256i signed_bytes(__m256i w, __m256i x)
{
    return add4(_mm256_setzero_si256(), _mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}

static inline __m256i signed_sums(__m256i sums, __m256i sum32)
{
    (void)sum32;
    return sums;
}

#include "backend/cpu/dot_x86.h"

const cpu_kernels cpu_avx2 = {.name = "AVX2", ROW_KERNELS};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
