/* dot_tile.h: sixteen weight rows at once, for several activation rows, with 512-bit dot-product instructions.
 *
 * A stretch of the sixteen rows is decoded and transposed: lane r of a vector holds four bytes of weight row r, so
 * that one instruction multiplies them with four broadcast activations and no sum runs across lanes. Transposing
 * costs about as much as two activation rows with the kernels of dot_x86.h, which therefore serve launches of fewer
 * rows. The integers, and the order in which floats are added, are the same as there. */
#include "backend/cpu/dot_x86_open.h"

enum { TILE = CPU_TILE };

/* 32 bytes of each of sixteen rows, `step` bytes apart -> eight vectors; lane r of vector g holds bytes 4g..4g+3 of
 * row r. */
static inline void transpose(const char *p, size_t step, __m512i out[8])
{
    __m512i a[8], b[8];
    UNROLL
    for (size_t i = 0; i < 8; i++)
        a[i] = _mm512_inserti64x4(_mm512_castsi256_si512(load32(p + i * step)), load32(p + (i + 8) * step), 1);
    UNROLL
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 8; i += 4) { /* a[i + q]: columns q (lanes 0, 2), q + 4 (lanes 1, 3) of rows i.., i + 8.. */
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    UNROLL
    for (int q = 0; q < 4; q++) {
        out[q] = _mm512_permutex2var_epi64(a[q], even, a[q + 4]);
        out[q + 4] = _mm512_permutex2var_epi64(a[q], odd, a[q + 4]);
    }
}

static inline __m512i broadcast4(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* start + sum over 4 * steps bytes of u (transposed) times x */
static inline __m512i tile_sum(__m512i start, const __m512i *u, const int8_t *x, int steps)
{
    UNROLL
    for (int g = 0; g < steps; g++)
        start = _mm512_dpbusd_epi32(start, u[g], broadcast4(x + 4 * g));
    return start;
}

/* --- blocks of 32 with one scale --- */

/* One block of sixteen rows. */
typedef struct tile32 {
    __m512i u[8];
    __m512 d;
} tile32;

static inline __m512 tile_halves(const char *p, size_t step)
{
    uint16_t h[TILE];
    UNROLL
    for (size_t r = 0; r < TILE; r++)
        h[r] = half_at(p + r * step);
    return _mm512_cvtph_ps(load32(h));
}

static inline void tile_q8_0(const char *p, size_t step, tile32 *o) /* offset 128 */
{
    transpose(p + 2, step, o->u);
    UNROLL
    for (int g = 0; g < 8; g++)
        o->u[g] = _mm512_xor_si512(o->u[g], _mm512_set1_epi8(-128));
    o->d = tile_halves(p, step);
}

static inline void tile_q4_0(const char *p, size_t step, tile32 *o) /* offset 8 */
{
    __m256i u[TILE];
    UNROLL
    for (size_t r = 0; r < TILE; r++)
        u[r] = nibbles(p + r * step + 2);
    transpose((const char *)u, 32, o->u);
    o->d = tile_halves(p, step);
}

static inline void tile_mxfp4(const char *p, size_t step, tile32 *o) /* offset 12 */
{
    __m256i u[TILE];
    int32_t e[TILE];
    UNROLL
    for (size_t r = 0; r < TILE; r++) {
        u[r] = mxfp4_codes(nibbles(p + r * step + 1));
        e[r] = (uint8_t)p[r * step];
    }
    transpose((const char *)u, 32, o->u);
    float d[TILE];
    _mm256_storeu_ps(d, half_e8m0(load32(e)));
    _mm256_storeu_ps(d + 8, half_e8m0(load32(e + 8)));
    o->d = _mm512_loadu_ps(d);
}

/* The tree of cpu_tree over eight vectors. */
static inline __m512 tile_tree(__m512 lane[8])
{
    for (int half = 4; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = _mm512_add_ps(lane[i], lane[i + half]);
    return lane[0];
}

INLINE void dot_tile32(void (*open)(const char *, size_t, tile32 *), size_t bytes, int offset, const char *p,
                       size_t step, const cpu_act *a, const int *rows, int n, float *y, size_t ldy)
{
    __m512 lane[CPU_MAX_ROWS][8];
    memset(lane, 0, (size_t)n * sizeof *lane);
    for (int64_t b = 0; b < a->n / 32; b++, p += bytes) {
        tile32 o;
        open(p, step, &o);
        for (int k = 0; k < n; k++) {
            int64_t at = rows[k] * a->padded + 32 * b;
            __m512i s = tile_sum(_mm512_set1_epi32(-offset * a->sum32[at / 32]), o.u, a->q + at, 8);
            __m512 d = _mm512_mul_ps(o.d, _mm512_set1_ps(a->d[at / 32]));
            lane[k][b % 8] = _mm512_add_ps(lane[k][b % 8], _mm512_mul_ps(d, _mm512_cvtepi32_ps(s)));
        }
    }
    for (int k = 0; k < n; k++)
        _mm512_storeu_ps(y + (size_t)k * ldy, tile_tree(lane[k]));
}

#define TILE_32(fmt, offset)                                                                                        \
    static void tile_of_##fmt(const void *w, size_t step, const cpu_act *a, const int *rows, int n, float *y,       \
                              size_t ld)                                                                            \
    {                                                                                                               \
        dot_tile32(tile_##fmt, sizeof(quant_##fmt), offset, w, step, a, rows, n, y, ld);                            \
    }
TILE_32(q8_0, 128)
TILE_32(q4_0, 8)
TILE_32(mxfp4, 12)

/* --- blocks of 256 --- */

typedef struct tile256 {
    __m512i u[8][8];          /* of each 32 elements */
    __m512i first[8], next[8]; /* scales of the first and the second 16 of each 32 elements */
    __m512i low[8];           /* pairs of 16-bit numbers: per 16 elements, the minimum or scale * offset */
    __m512 d, dmin;
} tile256;

/* Sixteen opened blocks, waiting to be transposed. */
typedef struct opened {
    __m256i u[TILE][8], scale[TILE], low[TILE];
    float d[TILE], dmin[TILE];
} opened;

static inline void keep(opened *t, int r, const block256 *o)
{
    UNROLL
    for (int j = 0; j < 8; j++)
        t->u[r][j] = o->u[j];
    __m128i even = _mm256_castsi256_si128(o->scale), odd = _mm256_extracti128_si256(o->scale, 1);
    t->scale[r] = _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
    t->low[r] = o->low;
    t->d[r] = o->d;
    t->dmin[r] = o->dmin;
}

static inline void turn(const opened *t, tile256 *o)
{
    UNROLL
    for (int j = 0; j < 8; j++)
        transpose((const char *)&t->u[0][j], sizeof t->u[0], o->u[j]);
    transpose((const char *)t->low, 32, o->low);
    transpose((const char *)t->scale, 32, o->next);
    UNROLL
    for (int j = 0; j < 8; j++) {
        o->first[j] = _mm512_srai_epi32(_mm512_slli_epi32(o->next[j], 16), 16);
        o->next[j] = _mm512_srai_epi32(o->next[j], 16);
    }
    o->d = _mm512_loadu_ps(t->d);
    o->dmin = _mm512_loadu_ps(t->dmin);
}

/* Sum of scale * u * x; per32: both halves of each 32 elements share a scale. */
static inline __m512i scaled_sum(const tile256 *o, const int8_t *x, bool per32)
{
    __m512i sum = _mm512_setzero_si512(), none = _mm512_setzero_si512();
    UNROLL
    for (int j = 0; j < 8; j++, x += 32) {
        __m512i a = tile_sum(none, o->u[j], x, 4), b = tile_sum(none, o->u[j] + 4, x + 16, 4);
        if (per32)
            a = _mm512_mullo_epi32(_mm512_add_epi32(a, b), o->first[j]);
        else
            a = _mm512_add_epi32(_mm512_mullo_epi32(a, o->first[j]), _mm512_mullo_epi32(b, o->next[j]));
        sum = _mm512_add_epi32(sum, a);
    }
    return sum;
}

static inline __m512i low_sum(const tile256 *o, const int16_t *sum16)
{
    __m512i s = _mm512_setzero_si512();
    UNROLL
    for (int g = 0; g < 8; g++)
        s = _mm512_dpwssd_epi32(s, o->low[g], broadcast4(sum16 + 2 * g));
    return s;
}

/* One block of each of the sixteen rows, opened and transposed. */
INLINE void tile_open(void (*open)(const char *, block256 *), bool has_min, const char *p, size_t step, tile256 *o)
{
    opened t;
    UNROLL
    for (int r = 0; r < TILE; r++) {
        block256 one;
        open(p + (size_t)r * step, &one);
        if (!has_min)
            one.dmin = 0;
        keep(&t, r, &one);
    }
    turn(&t, o);
}

INLINE void dot_tile256(void (*open)(const char *, block256 *), size_t bytes, bool has_min, bool per32, const char *p,
                        size_t step, const cpu_act *a, const int *rows, int n, float *y, size_t ldy)
{
    __m512 acc[CPU_MAX_ROWS];
    memset(acc, 0, (size_t)n * sizeof *acc);
    for (int64_t b = 0; b < a->n; b += 256, p += bytes) {
        tile256 o;
        tile_open(open, has_min, p, step, &o);
        for (int k = 0; k < n; k++) {
            int64_t at = rows[k] * a->padded + b;
            __m512i s = scaled_sum(&o, a->q + at, per32), low = low_sum(&o, a->sum16 + at / 16);
            __m512 dx = _mm512_set1_ps(a->d[at / 256]), d = _mm512_mul_ps(o.d, dx), v;
            if (has_min)
                v = _mm512_sub_ps(_mm512_mul_ps(d, _mm512_cvtepi32_ps(s)),
                                  _mm512_mul_ps(_mm512_mul_ps(o.dmin, dx), _mm512_cvtepi32_ps(low)));
            else
                v = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_sub_epi32(s, low)));
            acc[k] = _mm512_add_ps(acc[k], v);
        }
    }
    for (int k = 0; k < n; k++)
        _mm512_storeu_ps(y + (size_t)k * ldy, acc[k]);
}

#define TILE_256(fmt, has_min, per32)                                                                               \
    static void tile_of_##fmt(const void *w, size_t step, const cpu_act *a, const int *rows, int n, float *y,       \
                              size_t ld)                                                                            \
    {                                                                                                               \
        dot_tile256(open_##fmt, sizeof(quant_##fmt), has_min, per32, w, step, a, rows, n, y, ld);                   \
    }
TILE_256(q2_k, true, false)
TILE_256(q3_k, false, false)
TILE_256(q4_k, true, true)
TILE_256(q5_k, true, true)
TILE_256(q6_k, false, false)
TILE_256(iq2_xxs, false, true)
