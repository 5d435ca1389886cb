/* dot_x86_open.h: weight blocks to unsigned bytes, for x86 vector units. Included by dot_x86.h, which says how.
 *
 * A block becomes bytes u = q + offset and its scales. The bytes never exceed 127 (Q8_0 apart, which is kept signed),
 * so that the sum of two products with int8 activations fits 16 bits. */
#ifndef DS4_BACKEND_CPU_DOT_X86_OPEN_H
#define DS4_BACKEND_CPU_DOT_X86_OPEN_H

#include <stddef.h>
#include <string.h>

#include "file/quant.h"

/* Loops over registers must be unrolled, or the registers become memory. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

static inline __m256i load32(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* --- blocks of 32 with one scale, eight at a time --- */

typedef struct eight {
    __m256i u[8]; /* of each block */
    __m256 d;
} eight;

static inline uint16_t half_at(const char *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

/* The float16 scales at p, p + step, ... */
static inline __m256 eight_halves(const char *p, int step)
{
    __m128i h = _mm_cvtsi32_si128(half_at(p));
    h = _mm_insert_epi16(h, half_at(p + step), 1);
    h = _mm_insert_epi16(h, half_at(p + 2 * step), 2);
    h = _mm_insert_epi16(h, half_at(p + 3 * step), 3);
    h = _mm_insert_epi16(h, half_at(p + 4 * step), 4);
    h = _mm_insert_epi16(h, half_at(p + 5 * step), 5);
    h = _mm_insert_epi16(h, half_at(p + 6 * step), 6);
    h = _mm_insert_epi16(h, half_at(p + 7 * step), 7);
    return _mm256_cvtph_ps(h);
}

static inline void open_q8_0(const char *p, eight *o) /* signed */
{
    UNROLL
    for (int i = 0; i < 8; i++)
        o->u[i] = load32(p + 34 * i + 2);
    o->d = eight_halves(p, 34);
}

/* Low nibbles of 16 bytes in the lower half, high nibbles in the upper. */
static inline __m256i nibbles(const void *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), _mm256_set1_epi8(15));
}

static inline void open_q4_0(const char *p, eight *o) /* offset 8 */
{
    UNROLL
    for (int i = 0; i < 8; i++)
        o->u[i] = nibbles(p + 18 * i + 2);
    o->d = eight_halves(p, 18);
}

/* num_e8m0(e) / 2: exponent e - 1, or a denormal for e < 2; NaN for 255 */
static inline __m256 half_e8m0(__m256i e)
{
    __m256i v = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e), two = _mm256_set1_epi32(2);
    v = _mm256_blendv_epi8(v, small, _mm256_cmpgt_epi32(two, e));
    v = _mm256_blendv_epi8(v, _mm256_set1_epi32(0x7fc00000), _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)));
    return _mm256_castsi256_ps(v);
}

/* Doubled FP4 values + 12. */
static inline __m256i mxfp4_codes(__m256i nibble)
{
    const __m128i code = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(code), nibble);
}

static inline void open_mxfp4(const char *p, eight *o) /* offset 12 */
{
    UNROLL
    for (int i = 0; i < 8; i++)
        o->u[i] = mxfp4_codes(nibbles(p + 17 * i + 1));
    o->d = half_e8m0(_mm256_setr_epi32(p[0] & 255, p[17] & 255, p[34] & 255, p[51] & 255, p[68] & 255, p[85] & 255,
                                       p[102] & 255, p[119] & 255));
}

/* --- blocks of 256 --- */

typedef struct block256 {
    __m256i u[8];     /* unsigned bytes of each 32: q + offset */
    __m256i scale;    /* 16-bit numbers: those of groups 0, 2, ... 14, then those of 1, 3, ... 15 */
    __m256i low;      /* per 16: the minimum, or scale * offset */
    float d, dmin;
} block256;

/* Sixteen scales as signed bytes -> the order of block256.scale */
static inline __m256i even_odd(__m128i bytes)
{
    return _mm256_set_m128i(_mm_srai_epi16(bytes, 8), _mm_srai_epi16(_mm_slli_epi16(bytes, 8), 8));
}

/* Two-bit numbers: element 32 * (4h + s) + l is in bits 2s of byte 32h + l. */
static inline void two_bits(const uint8_t *q, __m256i u[8])
{
    const __m256i three = _mm256_set1_epi8(3);
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m256i v = load32(q + 32 * h);
        u[4 * h] = _mm256_and_si256(v, three);
        u[4 * h + 1] = _mm256_and_si256(_mm256_srli_epi16(v, 2), three);
        u[4 * h + 2] = _mm256_and_si256(_mm256_srli_epi16(v, 4), three);
        u[4 * h + 3] = _mm256_and_si256(_mm256_srli_epi16(v, 6), three);
    }
}

static inline float scale_at(const char *p) { return _cvtsh_ss(half_at(p)); }

static inline void open_q2_k(const char *p, block256 *o)
{
    const quant_q2_k *k = (const void *)p;
    const __m128i fifteen = _mm_set1_epi8(15);
    __m128i s = _mm_loadu_si128((const __m128i *)k->scales);
    two_bits(k->q, o->u);
    o->scale = even_odd(_mm_and_si128(s, fifteen));
    o->low = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(s, 4), fifteen));
    o->d = scale_at(p + offsetof(quant_q2_k, d));
    o->dmin = scale_at(p + offsetof(quant_q2_k, dmin));
}

static inline void open_q3_k(const char *p, block256 *o) /* offset 4 */
{
    const quant_q3_k *k = (const void *)p;
    int8_t sc[16];
    quant_unpack_q3_scales(k->scales, sc);
    two_bits(k->q, o->u);
    __m256i high = load32(k->hmask), s = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)sc));
    UNROLL
    for (int j = 0; j < 8; j++) {
        __m256i bit = _mm256_set1_epi8((char)(1 << j)), set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
        o->u[j] = _mm256_or_si256(o->u[j], _mm256_and_si256(set, _mm256_set1_epi8(4)));
    }
    o->scale = even_odd(_mm_loadu_si128((const __m128i *)sc));
    o->low = _mm256_slli_epi16(s, 2);
    o->d = scale_at(p + offsetof(quant_q3_k, d));
}

/* Eight 6-bit scales and minimums of Q4_K and Q5_K, 12 bytes: each serves 32 elements. */
static inline void k4_scales(block256 *o, const uint8_t packed[12])
{
    uint32_t w[3];
    memcpy(w, packed, 12);
    uint32_t sc0 = w[0] & 0x3f3f3f3f, mn0 = w[1] & 0x3f3f3f3f;
    uint32_t sc1 = (w[2] & 0x0f0f0f0f) | (w[0] >> 2 & 0x30303030);
    uint32_t mn1 = (w[2] >> 4 & 0x0f0f0f0f) | (w[1] >> 2 & 0x30303030);
    __m128i sc = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)((uint64_t)sc1 << 32 | sc0)));
    __m128i mn = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)((uint64_t)mn1 << 32 | mn0)));
    o->scale = _mm256_set_m128i(sc, sc);
    o->low = _mm256_set_m128i(_mm_unpackhi_epi16(mn, mn), _mm_unpacklo_epi16(mn, mn));
}

static inline void four_bits(const uint8_t *q, __m256i u[8])
{
    const __m256i fifteen = _mm256_set1_epi8(15);
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m256i v = load32(q + 32 * i);
        u[2 * i] = _mm256_and_si256(v, fifteen);
        u[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16(v, 4), fifteen);
    }
}

static inline void open_q4_k(const char *p, block256 *o)
{
    const quant_q4_k *k = (const void *)p;
    four_bits(k->q, o->u);
    k4_scales(o, k->scales);
    o->d = scale_at(p + offsetof(quant_q4_k, d));
    o->dmin = scale_at(p + offsetof(quant_q4_k, dmin));
}

static inline void open_q5_k(const char *p, block256 *o)
{
    const quant_q5_k *k = (const void *)p;
    __m256i high = load32(k->qh);
    four_bits(k->q, o->u);
    UNROLL
    for (int j = 0; j < 8; j++) {
        __m256i bit = _mm256_set1_epi8((char)(1 << j)), set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
        o->u[j] = _mm256_or_si256(o->u[j], _mm256_and_si256(set, _mm256_set1_epi8(16)));
    }
    k4_scales(o, k->scales);
    o->d = scale_at(p + offsetof(quant_q5_k, d));
    o->dmin = scale_at(p + offsetof(quant_q5_k, dmin));
}

static inline void open_q6_k(const char *p, block256 *o) /* offset 32 */
{
    const quant_q6_k *k = (const void *)p;
    const __m256i fifteen = _mm256_set1_epi8(15), three = _mm256_set1_epi8(0x30);
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m256i a = load32(k->ql + 64 * h), b = load32(k->ql + 64 * h + 32), hi = load32(k->qh + 32 * h);
        __m256i *u = o->u + 4 * h;
        u[0] = _mm256_or_si256(_mm256_and_si256(a, fifteen), _mm256_and_si256(_mm256_slli_epi16(hi, 4), three));
        u[1] = _mm256_or_si256(_mm256_and_si256(b, fifteen), _mm256_and_si256(_mm256_slli_epi16(hi, 2), three));
        u[2] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), fifteen), _mm256_and_si256(hi, three));
        u[3] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), fifteen),
                               _mm256_and_si256(_mm256_srli_epi16(hi, 2), three));
    }
    __m128i s = _mm_loadu_si128((const __m128i *)k->scales);
    o->scale = even_odd(s);
    o->low = _mm256_slli_epi16(_mm256_cvtepi8_epi16(s), 5);
    o->d = scale_at(p + offsetof(quant_q6_k, d));
}

/* The 8-bit sign masks of four 7-bit sign indices: bit 7 makes the number of ones even. */
static inline __m256i sign_masks(__m256i aux)
{
    __m256i a = _mm256_and_si256(aux, _mm256_set1_epi32(0x7f));
    __m256i b = _mm256_and_si256(_mm256_slli_epi32(aux, 1), _mm256_set1_epi32(0x7f00));
    __m256i c = _mm256_and_si256(_mm256_slli_epi32(aux, 2), _mm256_set1_epi32(0x7f0000));
    __m256i d = _mm256_and_si256(_mm256_slli_epi32(aux, 3), _mm256_set1_epi32(0x7f000000));
    __m256i v = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
    __m256i fold = _mm256_and_si256(_mm256_xor_si256(v, _mm256_srli_epi16(v, 4)), _mm256_set1_epi8(15));
    const __m128i odd = _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
    return _mm256_or_si256(v, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(odd), fold));
}

static inline void open_iq2_xxs(const char *p, block256 *o) /* offset 43 */
{
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u), offset = _mm256_set1_epi8(43);
    const __m256i by_byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const uint8_t *q = (const uint8_t *)p + 2;
    /* every second word of the 64 bytes, in order */
    __m256 a = _mm256_castsi256_ps(load32(q)), b = _mm256_castsi256_ps(load32(q + 32));
    __m256i aux = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
    uint32_t sign[8];
    _mm256_storeu_si256((__m256i *)sign, sign_masks(aux));
    UNROLL
    for (int g = 0; g < 8; g++) {
        const uint8_t *i = q + 8 * g;
        __m256i grid = _mm256_set_epi64x((long long)quant_iq2xxs_grid[i[3]], (long long)quant_iq2xxs_grid[i[2]],
                                         (long long)quant_iq2xxs_grid[i[1]], (long long)quant_iq2xxs_grid[i[0]]);
        __m256i neg = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)sign[g]), by_byte), bit);
        neg = _mm256_cmpeq_epi8(neg, bit); /* -1 where negative: (g ^ -1) + 43 + 1 = 43 - g */
        o->u[g] = _mm256_add_epi8(_mm256_xor_si256(grid, neg), _mm256_sub_epi8(offset, neg));
    }
    __m256i s = _mm256_add_epi32(_mm256_slli_epi32(_mm256_srli_epi32(aux, 28), 1), _mm256_set1_epi32(1));
    __m128i s16 = _mm_packs_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    o->scale = _mm256_set_m128i(s16, s16);
    __m256i pairs = _mm256_set_m128i(_mm_unpackhi_epi16(s16, s16), _mm_unpacklo_epi16(s16, s16));
    o->low = _mm256_mullo_epi16(pairs, _mm256_set1_epi16(43));
    o->d = scale_at(p) * 0.125f;
}

#endif
