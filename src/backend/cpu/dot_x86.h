/* dot_x86.h: the inner loops for x86 vector units, written once and compiled per unit. The including file defines
 *
 *   W        floats per vector: 8 or 16
 *   EACH(M)  M(0) M(1) ... for the 32 / W vectors that hold the lanes of a float32 sum
 *   add4     acc + products of unsigned and signed bytes, four of them per 32-bit lane
 *   add2     acc + products of signed 16-bit numbers, two per 32-bit lane
 *   KERNELS, KERNELS_NAME   the table to define
 *
 * and sets the compilation target. Integer sums are exact, so their order is free; bytes of the weights are made unsigned by an offset
 * whose share, offset * (sum of the activations), is subtracted from the sum. No unsigned byte exceeds 127 where pairs of products are
 * added in 16 bits, so nothing saturates. */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "file/quant.h"

/* --- float32 and float64 lanes --- */

typedef float vec __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef float half_vec __attribute__((vector_size(W * 2), aligned(4), may_alias));
typedef double vec64 __attribute__((vector_size(W * 4), aligned(8), may_alias));

static inline vec at(const float *p) { return *(const vec *)p; }
static inline vec64 wide(const float *p) { return __builtin_convertvector(*(const half_vec *)p, vec64); }

static void lanes32(const float *w, const float *x, int64_t n, float *lane)
{
    int64_t i = 0;
#define M(k) vec a##k = at(lane + k * W);
    EACH(M)
#undef M
    for (; i + CPU_LANES <= n; i += CPU_LANES) {
#define M(k) a##k += at(w + i + k * W) * at(x + i + k * W);
        EACH(M)
#undef M
    }
#define M(k) *(vec *)(lane + k * W) = a##k;
    EACH(M)
#undef M
    for (; i < n; i++)
        lane[i % CPU_LANES] += w[i] * x[i];
}

static void lanes64(const float *w, const float *x, int64_t n, double *lane)
{
    int64_t i = 0;
#define M(k) vec64 a##k = *(vec64 *)(lane + k * W / 2);
    EACH(M)
#undef M
    for (; i + CPU_LANES64 <= n; i += CPU_LANES64) {
#define M(k) a##k += wide(w + i + k * W / 2) * wide(x + i + k * W / 2);
        EACH(M)
#undef M
    }
#define M(k) *(vec64 *)(lane + k * W / 2) = a##k;
    EACH(M)
#undef M
    for (; i < n; i++)
        lane[i % CPU_LANES64] += (double)w[i] * (double)x[i];
}

/* cpu_tree of 8 lanes */
static inline float tree8(__m256 v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* cpu_tree of 32 lanes */
static inline float tree32(const float *lane)
{
    __m256 a = _mm256_add_ps(_mm256_loadu_ps(lane), _mm256_loadu_ps(lane + 16));
    __m256 b = _mm256_add_ps(_mm256_loadu_ps(lane + 8), _mm256_loadu_ps(lane + 24));
    return tree8(_mm256_add_ps(a, b));
}

static void dots(const float *q, const float *const *row, int n, int dim, float *z)
{
    for (int t = 0; t < n; t++) {
        _Alignas(64) float lane[CPU_LANES] = {0};
        lanes32(q, row[t], dim, lane);
        z[t] = tree32(lane);
    }
}

static void mix(const float *p, const float *const *row, int n, int dim, float *o)
{
    int k = 0;
    for (; k + CPU_LANES <= dim; k += CPU_LANES) {
#define M(v) vec a##v = {0};
        EACH(M)
#undef M
        for (int t = 0; t < n; t++) {
            const float *x = row[t] + k;
#define M(v) a##v += p[t] * at(x + v * W);
            EACH(M)
#undef M
        }
#define M(v) *(vec *)(o + k + v * W) = a##v;
        EACH(M)
#undef M
    }
    for (; k < dim; k++) {
        float sum = 0;
        for (int t = 0; t < n; t++)
            sum += p[t] * row[t][k];
        o[k] = sum;
    }
}

static void add_scaled(float *y, const float *x, float s, int n)
{
    int i = 0;
    for (; i + W <= n; i += W)
        *(vec *)(y + i) += s * at(x + i);
    for (; i < n; i++)
        y[i] += s * x[i];
}

static void half(const void *src, float *dst, int n)
{
    const char *p = src;
    int i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 2 * i))));
    if (i < n)
        quant_decode(Q_F16, p + 2 * i, dst + i, (uint64_t)(n - i));
}

/* --- activations --- */

/* As in dot_plain.c: NaN for a group with NaN or infinity, 0 where 1/d overflows. */
static inline float scale_of(__m256i top8, float *recip)
{
    __m128i t = _mm_max_epu32(_mm256_castsi256_si128(top8), _mm256_extracti128_si256(top8, 1));
    t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0xb1));
    uint32_t top = (uint32_t)_mm_cvtsi128_si32(t);
    *recip = 0;
    if (top >= 0x7f800000u)
        return NAN;
    float d = num_float(top) / 127.0f, r = 1.0f / d;
    if (isinf(r))
        return 0;
    *recip = r;
    return d;
}

static inline __m256i largest(const float *x, int n)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8)
        top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), magnitude));
    return top;
}

/* 32 numbers to bytes; with recip 0 all are 0 (NaN * 0 would not be). */
static inline __m256i to_bytes(const float *x, float recip)
{
    if (recip == 0)
        return _mm256_setzero_si256();
    __m256 r = _mm256_set1_ps(recip);
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), r));
    __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), r));
    __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), r));
    __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), r));
    __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

static inline int sum4(__m128i v)
{
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1)));
}

static inline int sum8(__m256i v) { return sum4(_mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1))); }

static void quant32(const float *x, int8_t *q, float *d, int32_t *sum32)
{
    float recip;
    *d = scale_of(largest(x, 32), &recip);
    __m256i v = to_bytes(x, recip);
    _mm256_storeu_si256((__m256i *)q, v);
    *sum32 = sum8(add4(_mm256_setzero_si256(), _mm256_set1_epi8(1), v));
}

static void quant256(const float *x, int8_t *q, float *d, int16_t *sum16)
{
    float recip;
    *d = scale_of(largest(x, 256), &recip);
    for (int g = 0; g < 256; g += 32) {
        __m256i v = to_bytes(x + g, recip), s = add4(_mm256_setzero_si256(), _mm256_set1_epi8(1), v);
        _mm256_storeu_si256((__m256i *)(q + g), v);
        sum16[g / 16] = (int16_t)sum4(_mm256_castsi256_si128(s));
        sum16[g / 16 + 1] = (int16_t)sum4(_mm256_extracti128_si256(s, 1));
    }
}

/* --- blocks of 32 with one scale, eight at a time --- */

typedef struct eight {
    __m256i u[8]; /* unsigned bytes of each block: q + offset */
    __m256 d;
} eight;

/* [sum of a, sum of b, ...] of eight vectors */
static inline __m256i sums_of(const __m256i s[8])
{
    __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
    __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(s[4], s[5]), _mm256_hadd_epi32(s[6], s[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

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

static inline __m256i load32(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

static inline void open_q8_0(const char *p, eight *o)
{
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
    for (int i = 0; i < 8; i++)
        o->u[i] = nibbles(p + 18 * i + 2);
    o->d = eight_halves(p, 18);
}

static inline void open_mxfp4(const char *p, eight *o) /* offset 12 */
{
    const __m256i code = _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    for (int i = 0; i < 8; i++)
        o->u[i] = _mm256_shuffle_epi8(code, nibbles(p + 17 * i + 1));
    o->d = _mm256_setr_ps(num_e8m0((uint8_t)p[0]), num_e8m0((uint8_t)p[17]), num_e8m0((uint8_t)p[34]), num_e8m0((uint8_t)p[51]),
                          num_e8m0((uint8_t)p[68]), num_e8m0((uint8_t)p[85]), num_e8m0((uint8_t)p[102]), num_e8m0((uint8_t)p[119]));
    o->d = _mm256_mul_ps(o->d, _mm256_set1_ps(0.5f));
}

/* Integer sums of eight blocks: the bytes in q times the activations x, minus offset times the sums of x. */
static inline __m256i eight_sums(const eight *o, const int8_t *x, const int32_t *sum32, int offset)
{
    __m256i s[8];
    for (int i = 0; i < 8; i++)
        s[i] = add4(_mm256_setzero_si256(), o->u[i], load32(x + 32 * i));
    return _mm256_sub_epi32(sums_of(s), _mm256_mullo_epi32(load32(sum32), _mm256_set1_epi32(offset)));
}

static inline __m256i eight_sums_q8(const eight *o, const int8_t *x, const int32_t *sum32)
{
    __m256i s[8];
    for (int i = 0; i < 8; i++)
        s[i] = signed_bytes(o->u[i], load32(x + 32 * i));
    return signed_sums(sums_of(s), load32(sum32));
}

/* The rows of a launch against one weight row; blocks behind the last full eight are copied into a zeroed eight. */
#define DOT_32(fmt, SUMS)                                                                                                     \
    static void fmt(const void *w, const cpu_act *a, const int *rows, int n, float *y)                                        \
    {                                                                                                                         \
        enum { BYTES = sizeof(quant_##fmt) };                                                                                 \
        __m256 acc[CPU_MAX_ROWS];                                                                                             \
        const char *p = w;                                                                                                    \
        for (int k = 0; k < n; k++)                                                                                           \
            acc[k] = _mm256_setzero_ps();                                                                                     \
        for (int64_t b = 0, blocks = a->n / 32; b < blocks; b += 8, p += 8 * BYTES) {                                         \
            eight o;                                                                                                          \
            char tail[8 * BYTES];                                                                                             \
            if (blocks - b < 8) {                                                                                             \
                memset(tail, 0, sizeof tail);                                                                                 \
                memcpy(tail, p, (size_t)(blocks - b) * BYTES);                                                                \
            }                                                                                                                 \
            open_##fmt(blocks - b < 8 ? tail : p, &o);                                                                        \
            for (int k = 0; k < n; k++) {                                                                                     \
                int64_t at = rows[k] * a->padded + 32 * b;                                                                    \
                __m256i s = SUMS;                                                                                             \
                __m256 d = _mm256_mul_ps(o.d, _mm256_loadu_ps(a->d + at / 32));                                               \
                acc[k] = _mm256_add_ps(acc[k], _mm256_mul_ps(d, _mm256_cvtepi32_ps(s)));                                      \
            }                                                                                                                 \
        }                                                                                                                     \
        for (int k = 0; k < n; k++)                                                                                           \
            y[k] = tree8(acc[k]);                                                                                             \
    }
DOT_32(q8_0, eight_sums_q8(&o, a->q + at, a->sum32 + at / 32))
DOT_32(q4_0, eight_sums(&o, a->q + at, a->sum32 + at / 32, 8))
DOT_32(mxfp4, eight_sums(&o, a->q + at, a->sum32 + at / 32, 12))

/* --- blocks of 256 --- */

typedef struct block256 {
    __m256i u[8];     /* unsigned bytes of each 32: q + offset */
    __m256i scale[8]; /* of each 32: lower half for its first 16, upper half for the others, as 16-bit numbers */
    __m256i low;      /* per 16: the minimum, or scale * offset */
    float d, dmin;
} block256;

/* Scales 0, 2, 4, ... in `even`, 1, 3, 5, ... in `odd`, 16 bits each, spread over the eight `scale` vectors. */
static inline void spread(block256 *o, __m128i even, __m128i odd)
{
    __m256i v = _mm256_set_m128i(odd, even);
    for (int j = 0; j < 8; j++)
        o->scale[j] = _mm256_shuffle_epi8(v, _mm256_set1_epi16((short)(0x0100 + j * 0x0202)));
}

/* Sixteen scales as bytes -> even and odd ones as 16-bit numbers. */
static inline void spread_signed(block256 *o, __m128i bytes)
{
    spread(o, _mm_srai_epi16(_mm_slli_epi16(bytes, 8), 8), _mm_srai_epi16(bytes, 8));
}

/* Two-bit numbers: element 32 * (4h + s) + l is in bits 2s of byte 32h + l. */
static inline void two_bits(const uint8_t *q, __m256i u[8])
{
    const __m256i three = _mm256_set1_epi8(3);
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
    spread_signed(o, _mm_and_si128(s, fifteen));
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
    for (int j = 0; j < 8; j++) {
        __m256i bit = _mm256_set1_epi8((char)(1 << j)), set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
        o->u[j] = _mm256_or_si256(o->u[j], _mm256_and_si256(set, _mm256_set1_epi8(4)));
    }
    spread_signed(o, _mm_loadu_si128((const __m128i *)sc));
    o->low = _mm256_slli_epi16(s, 2);
    o->d = scale_at(p + offsetof(quant_q3_k, d));
}

/* Eight 6-bit scales and minimums of Q4_K and Q5_K, 12 bytes: each serves 32 elements. */
static inline void k4_scales(block256 *o, const uint8_t packed[12])
{
    uint32_t w[3];
    memcpy(w, packed, 12);
    uint32_t sc0 = w[0] & 0x3f3f3f3f, mn0 = w[1] & 0x3f3f3f3f;
    uint32_t sc1 = (w[2] & 0x0f0f0f0f) | (w[0] >> 2 & 0x30303030), mn1 = (w[2] >> 4 & 0x0f0f0f0f) | (w[1] >> 2 & 0x30303030);
    __m128i sc = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)((uint64_t)sc1 << 32 | sc0)));
    __m128i mn = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)((uint64_t)mn1 << 32 | mn0)));
    spread(o, sc, sc);
    o->low = _mm256_set_m128i(_mm_unpackhi_epi16(mn, mn), _mm_unpacklo_epi16(mn, mn));
}

static inline void four_bits(const uint8_t *q, __m256i u[8])
{
    const __m256i fifteen = _mm256_set1_epi8(15);
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
    for (int h = 0; h < 2; h++) {
        __m256i a = load32(k->ql + 64 * h), b = load32(k->ql + 64 * h + 32), hi = load32(k->qh + 32 * h), *u = o->u + 4 * h;
        u[0] = _mm256_or_si256(_mm256_and_si256(a, fifteen), _mm256_and_si256(_mm256_slli_epi16(hi, 4), three));
        u[1] = _mm256_or_si256(_mm256_and_si256(b, fifteen), _mm256_and_si256(_mm256_slli_epi16(hi, 2), three));
        u[2] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), fifteen), _mm256_and_si256(hi, three));
        u[3] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), fifteen),
                               _mm256_and_si256(_mm256_srli_epi16(hi, 2), three));
    }
    __m128i s = _mm_loadu_si128((const __m128i *)k->scales);
    spread_signed(o, s);
    o->low = _mm256_slli_epi16(_mm256_cvtepi8_epi16(s), 5);
    o->d = scale_at(p + offsetof(quant_q6_k, d));
}

/* The 8-bit sign masks of four 7-bit sign indices: bit 7 makes the number of ones even. */
static inline __m256i sign_masks(__m256i aux)
{
    __m256i a = _mm256_and_si256(aux, _mm256_set1_epi32(0x7f)), b = _mm256_and_si256(_mm256_slli_epi32(aux, 1), _mm256_set1_epi32(0x7f00));
    __m256i c = _mm256_and_si256(_mm256_slli_epi32(aux, 2), _mm256_set1_epi32(0x7f0000));
    __m256i d = _mm256_and_si256(_mm256_slli_epi32(aux, 3), _mm256_set1_epi32(0x7f000000));
    __m256i v = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
    __m256i fold = _mm256_and_si256(_mm256_xor_si256(v, _mm256_srli_epi16(v, 4)), _mm256_set1_epi8(15));
    const __m256i odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    return _mm256_or_si256(v, _mm256_shuffle_epi8(odd, fold));
}

static inline void open_iq2_xxs(const char *p, block256 *o) /* offset 43 */
{
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u), offset = _mm256_set1_epi8(43);
    const __m256i by_byte = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const uint8_t *q = (const uint8_t *)p + 2;
    /* every second word of the 64 bytes, in order */
    __m256 a = _mm256_castsi256_ps(load32(q)), b = _mm256_castsi256_ps(load32(q + 32));
    __m256i aux = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
    uint32_t sign[8];
    _mm256_storeu_si256((__m256i *)sign, sign_masks(aux));
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
    spread(o, s16, s16);
    __m256i pairs = _mm256_set_m128i(_mm_unpackhi_epi16(s16, s16), _mm_unpacklo_epi16(s16, s16));
    o->low = _mm256_mullo_epi16(pairs, _mm256_set1_epi16(43));
    o->d = scale_at(p) * 0.125f;
}

/* The rows of a launch against one weight row. */
#define DOT_256(fmt, HAS_MIN)                                                                                                 \
    static void fmt(const void *w, const cpu_act *a, const int *rows, int n, float *y)                                        \
    {                                                                                                                         \
        const char *p = w;                                                                                                    \
        memset(y, 0, (size_t)n * sizeof *y);                                                                                  \
        for (int64_t b = 0; b < a->n; b += 256, p += sizeof(quant_##fmt)) {                                                   \
            block256 o;                                                                                                       \
            open_##fmt(p, &o);                                                                                                \
            for (int k = 0; k < n; k++) {                                                                                     \
                int64_t at = rows[k] * a->padded + b;                                                                         \
                const int8_t *x = a->q + at;                                                                                  \
                __m256i s = _mm256_setzero_si256(), low = _mm256_madd_epi16(load32(a->sum16 + at / 16), o.low);               \
                for (int j = 0; j < 8; j++)                                                                                   \
                    s = add2(s, _mm256_maddubs_epi16(o.u[j], load32(x + 32 * j)), o.scale[j]);                                \
                float dx = a->d[at / 256];                                                                                    \
                if (HAS_MIN)                                                                                                  \
                    y[k] += o.d * dx * (float)sum8(s) - o.dmin * dx * (float)sum8(low);                                       \
                else                                                                                                          \
                    y[k] += o.d * dx * (float)sum8(_mm256_sub_epi32(s, low));                                                 \
            }                                                                                                                 \
        }                                                                                                                     \
    }
DOT_256(q2_k, 1)
DOT_256(q3_k, 0)
DOT_256(q4_k, 1)
DOT_256(q5_k, 1)
DOT_256(q6_k, 0)
DOT_256(iq2_xxs, 0)

const cpu_kernels KERNELS = {
    .name = KERNELS_NAME, .lanes32 = lanes32, .lanes64 = lanes64, .dots = dots, .mix = mix, .add_scaled = add_scaled, .half = half,
    .quant32 = quant32, .quant256 = quant256, .q8_0 = q8_0, .q4_0 = q4_0, .mxfp4 = mxfp4, .q2_k = q2_k, .q3_k = q3_k,
    .q4_k = q4_k, .q5_k = q5_k, .q6_k = q6_k, .iq2_xxs = iq2_xxs,
};
