/* dot_x86.h: the inner loops for x86 vector units, written once and compiled per unit. The including file defines
 *
 *   W        floats per vector: 8 or 16
 *   add4     acc + products of unsigned and signed bytes, four of them per 32-bit lane
 *   add2     acc + products of signed 16-bit numbers, two per 32-bit lane
 *   signed_bytes, signed_sums   the same for signed bytes of weights
 *
 * sets the compilation target, and fills its table with ROW_KERNELS. Integer sums are exact, so their order is free;
 * the share of the offset in the bytes (dot_x86_open.h), offset * (sum of the activations), is subtracted from the
 * sum. */
#include <math.h>
#include <string.h>

#include "backend/cpu/dot_x86_open.h"
#include "base/num.h"
#include "file/quant.h"

/* --- float32 and float64 lanes --- */

#define INLINE static inline __attribute__((always_inline))

enum { V = CPU_LANES / W };

typedef float vec __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef float half_vec __attribute__((vector_size(W * 2), aligned(4), may_alias));
typedef double vec64 __attribute__((vector_size(W * 4), aligned(8), may_alias));

static inline vec at(const float *p) { return *(const vec *)p; }
static inline vec64 wide(const float *p) { return __builtin_convertvector(*(const half_vec *)p, vec64); }

/* R rows at once share the loads of w. V vectors hold the lanes of a row. */
INLINE void rows32(const int R, const float *w, const float *const *x, int64_t n, float (*lane)[CPU_LANES])
{
    vec a[4][V];
    int64_t i = 0;
    UNROLL
    for (int r = 0; r < R; r++)
        UNROLL
        for (int v = 0; v < V; v++)
            a[r][v] = at(lane[r] + v * W);
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        UNROLL
        for (int v = 0; v < V; v++) {
            vec k = at(w + i + v * W);
            UNROLL
            for (int r = 0; r < R; r++)
                a[r][v] += k * at(x[r] + i + v * W);
        }
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int v = 0; v < V; v++)
            *(vec *)(lane[r] + v * W) = a[r][v];
        for (int64_t t = i; t < n; t++)
            lane[r][t % CPU_LANES] += w[t] * x[r][t];
    }
}

static void lanes32(const float *w, const float *const *x, int rows, int64_t n, float (*lane)[CPU_LANES])
{
    int r = 0;
    for (; r + 4 <= rows; r += 4)
        rows32(4, w, x + r, n, lane + r);
    for (; r < rows; r++)
        rows32(1, w, x + r, n, lane + r);
}

INLINE void rows64(const int R, const float *w, const float *const *x, int64_t n, double (*lane)[CPU_LANES64])
{
    vec64 a[4][V];
    int64_t i = 0;
    UNROLL
    for (int r = 0; r < R; r++)
        UNROLL
        for (int v = 0; v < V; v++)
            a[r][v] = *(vec64 *)(lane[r] + v * W / 2);
    for (; i + CPU_LANES64 <= n; i += CPU_LANES64)
        UNROLL
        for (int v = 0; v < V; v++) {
            vec64 k = wide(w + i + v * W / 2);
            UNROLL
            for (int r = 0; r < R; r++)
                a[r][v] += k * wide(x[r] + i + v * W / 2);
        }
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int v = 0; v < V; v++)
            *(vec64 *)(lane[r] + v * W / 2) = a[r][v];
        for (int64_t t = i; t < n; t++)
            lane[r][t % CPU_LANES64] += (double)w[t] * (double)x[r][t];
    }
}

static void lanes64(const float *w, const float *const *x, int rows, int64_t n, double (*lane)[CPU_LANES64])
{
    int r = 0;
    for (; r + 4 <= rows; r += 4)
        rows64(4, w, x + r, n, lane + r);
    for (; r < rows; r++)
        rows64(1, w, x + r, n, lane + r);
}

/* cpu_tree of 8 lanes */
static inline float tree8(__m256 v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* cpu_tree of 32 lanes */
static inline float tree_of(const float *lane)
{
    __m256 a = _mm256_add_ps(_mm256_loadu_ps(lane), _mm256_loadu_ps(lane + 16));
    __m256 b = _mm256_add_ps(_mm256_loadu_ps(lane + 8), _mm256_loadu_ps(lane + 24));
    return tree8(_mm256_add_ps(a, b));
}

static void tree32(float (*lane)[CPU_LANES], int rows, float *y, size_t ldy)
{
    for (int r = 0; r < rows; r++)
        y[(size_t)r * ldy] = tree_of(lane[r]);
}

static void dots(const float *q, const float *const *row, int n, int dim, float *z)
{
    for (int t = 0; t < n; t++) {
        _Alignas(64) float lane[1][CPU_LANES] = {{0}};
        rows32(1, q, row + t, dim, lane);
        z[t] = tree_of(lane[0]);
    }
}

static void mix(const float *p, const float *const *row, int n, int dim, float *o)
{
    int k = 0;
    for (; k + CPU_LANES <= dim; k += CPU_LANES) {
        vec a[V] = {{0}};
        for (int t = 0; t < n; t++)
            UNROLL
            for (int v = 0; v < V; v++)
                a[v] += p[t] * at(row[t] + k + v * W);
        UNROLL
        for (int v = 0; v < V; v++)
            *(vec *)(o + k + v * W) = a[v];
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

static inline int sum8(__m256i v)
{
    return sum4(_mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}

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

/* [sum of a, sum of b, ...] of eight vectors */
static inline __m256i sums_of(const __m256i s[8])
{
    __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
    __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(s[4], s[5]), _mm256_hadd_epi32(s[6], s[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

/* Integer sums of eight blocks: the bytes of the weights times the activations x, minus offset times the sums of x. */
static inline __m256i eight_sums(const eight *o, const int8_t *x, const int32_t *sum32, int offset)
{
    __m256i s[8];
    UNROLL
    for (int i = 0; i < 8; i++)
        s[i] = add4(_mm256_setzero_si256(), o->u[i], load32(x + 32 * i));
    return _mm256_sub_epi32(sums_of(s), _mm256_mullo_epi32(load32(sum32), _mm256_set1_epi32(offset)));
}

static inline __m256i eight_signed_sums(const eight *o, const int8_t *x, const int32_t *sum32)
{
    __m256i s[8];
    UNROLL
    for (int i = 0; i < 8; i++)
        s[i] = signed_bytes(o->u[i], load32(x + 32 * i));
    return signed_sums(sums_of(s), load32(sum32));
}

enum { SIGNED = 0 }; /* in place of an offset: the bytes are signed */

/* The rows of a launch against one weight row of blocks of `bytes` bytes. What follows the last full eight is copied
 * into a zeroed eight. */
INLINE void dot_32(void (*open)(const char *, eight *), int64_t bytes, int offset, const char *p, const cpu_act *a,
                   const int *rows, int n, float *y)
{
    __m256 acc[CPU_MAX_ROWS];
    char tail[8 * 64];
    for (int k = 0; k < n; k++)
        acc[k] = _mm256_setzero_ps();
    for (int64_t b = 0, blocks = a->n / 32; b < blocks; b += 8, p += 8 * bytes) {
        eight o;
        if (blocks - b < 8) {
            memset(tail, 0, sizeof tail);
            memcpy(tail, p, (size_t)((blocks - b) * bytes));
            p = tail;
        }
        open(p, &o);
        for (int k = 0; k < n; k++) {
            int64_t at = rows[k] * a->padded + 32 * b;
            const int32_t *sum32 = a->sum32 + at / 32;
            __m256i s = offset ? eight_sums(&o, a->q + at, sum32, offset) : eight_signed_sums(&o, a->q + at, sum32);
            __m256 d = _mm256_mul_ps(o.d, _mm256_loadu_ps(a->d + at / 32));
            acc[k] = _mm256_add_ps(acc[k], _mm256_mul_ps(d, _mm256_cvtepi32_ps(s)));
        }
    }
    for (int k = 0; k < n; k++)
        y[k] = tree8(acc[k]);
}

#define DOT_32(fmt, offset)                                                                \
    static void fmt(const void *w, const cpu_act *a, const int *rows, int n, float *y)     \
    {                                                                                      \
        dot_32(open_##fmt, sizeof(quant_##fmt), offset, w, a, rows, n, y);                 \
    }
DOT_32(q8_0, SIGNED)
DOT_32(q4_0, 8)
DOT_32(mxfp4, 12)

/* --- blocks of 256 --- */

/* Vector j: the scale of group 2j eight times, then that of group 2j + 1. */
static inline void spread(__m256i even_then_odd, __m256i scale[8])
{
    UNROLL
    for (int j = 0; j < 8; j++)
        scale[j] = _mm256_shuffle_epi8(even_then_odd, _mm256_set1_epi16((short)(0x0100 + j * 0x0202)));
}

INLINE void dot_256(void (*open)(const char *, block256 *), size_t bytes, bool has_min, const char *p, const cpu_act *a,
                    const int *rows, int n, float *y)
{
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t b = 0; b < a->n; b += 256, p += bytes) {
        block256 o;
        __m256i scale[8];
        open(p, &o);
        spread(o.scale, scale);
        for (int k = 0; k < n; k++) {
            int64_t at = rows[k] * a->padded + b;
            const int8_t *x = a->q + at;
            __m256i s = _mm256_setzero_si256(), low = _mm256_madd_epi16(load32(a->sum16 + at / 16), o.low);
            UNROLL
            for (int j = 0; j < 8; j++)
                s = add2(s, _mm256_maddubs_epi16(o.u[j], load32(x + 32 * j)), scale[j]);
            float dx = a->d[at / 256];
            if (has_min)
                y[k] += o.d * dx * (float)sum8(s) - o.dmin * dx * (float)sum8(low);
            else
                y[k] += o.d * dx * (float)sum8(_mm256_sub_epi32(s, low));
        }
    }
}

#define DOT_256(fmt, has_min)                                                              \
    static void fmt(const void *w, const cpu_act *a, const int *rows, int n, float *y)     \
    {                                                                                      \
        dot_256(open_##fmt, sizeof(quant_##fmt), has_min, w, a, rows, n, y);               \
    }
DOT_256(q2_k, true)
DOT_256(q3_k, false)
DOT_256(q4_k, true)
DOT_256(q5_k, true)
DOT_256(q6_k, false)
DOT_256(iq2_xxs, false)

#define ROW_KERNELS                                                                                       \
    .lanes32 = lanes32, .lanes64 = lanes64, .tree32 = tree32, .dots = dots, .mix = mix,                   \
    .add_scaled = add_scaled,                                                                             \
    .half = half, .quant32 = quant32, .quant256 = quant256, .q8_0 = q8_0, .q4_0 = q4_0, .mxfp4 = mxfp4,   \
    .q2_k = q2_k, .q3_k = q3_k, .q4_k = q4_k, .q5_k = q5_k, .q6_k = q6_k, .iq2_xxs = iq2_xxs
