/* dot_plain.c: the inner loops in plain C. They define the bits; the vector variants must match them. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/num.h"
#include "file/quant.h"

static void lanes32(const float *w, const float *const *x, int rows, int64_t n, float (*lane)[CPU_LANES])
{
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            lane[r][i % CPU_LANES] += w[i] * x[r][i];
}

static void lanes64(const float *w, const float *const *x, int rows, int64_t n, double (*lane)[CPU_LANES64])
{
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            lane[r][i % CPU_LANES64] += (double)w[i] * (double)x[r][i];
}

static void tree32(float (*lane)[CPU_LANES], int rows, float *y, size_t ldy)
{
    for (int r = 0; r < rows; r++)
        y[(size_t)r * ldy] = cpu_tree(lane[r], CPU_LANES);
}

static void dots(const float *q, const float *const *row, int n, int dim, float *z)
{
    for (int t = 0; t < n; t++) {
        float lane[1][CPU_LANES] = {{0}};
        lanes32(q, row + t, 1, dim, lane);
        z[t] = cpu_tree(lane[0], CPU_LANES);
    }
}

static void mix(const float *p, const float *const *row, int n, int dim, float *o)
{
    for (int k = 0; k < dim; k++) {
        float sum = 0;
        for (int t = 0; t < n; t++)
            sum += p[t] * row[t][k];
        o[k] = sum;
    }
}

static void half(const void *src, float *dst, int n) { quant_decode(Q_F16, src, dst, (uint64_t)n); }

static void add_scaled(float *y, const float *x, float s, int n)
{
    for (int i = 0; i < n; i++)
        y[i] += s * x[i];
}

/* --- activations --- */

/* The scale of a group, and its reciprocal (0 when every q is 0). A group that holds infinity or NaN gets the scale
 * NaN, so that the fault shows in the result; one so small that 1/d overflows counts as zero. */
static float scale_of(const float *x, int n, float *recip)
{
    uint32_t top = 0;
    for (int i = 0; i < n; i++) {
        uint32_t a = num_bits(x[i]) & 0x7fffffffu;
        if (a > top)
            top = a;
    }
    *recip = 0;
    if (top >= 0x7f800000u)
        return NAN;
    float d = num_float(top) / 127.0f, r = 1.0f / d;
    if (isinf(r))
        return 0;
    *recip = r;
    return d;
}

static int quantise(const float *x, int8_t *q, float recip, int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++) {
        q[i] = recip == 0 ? 0 : (int8_t)lrintf(x[i] * recip);
        sum += q[i];
    }
    return sum;
}

static void quant32(const float *x, int8_t *q, float *d, int32_t *sum32)
{
    float recip;
    *d = scale_of(x, 32, &recip);
    *sum32 = quantise(x, q, recip, 32);
}

static void quant256(const float *x, int8_t *q, float *d, int16_t *sum16)
{
    float recip;
    *d = scale_of(x, 256, &recip);
    for (int g = 0; g < 16; g++)
        sum16[g] = (int16_t)quantise(x + 16 * g, q + 16 * g, recip, 16);
}

/* --- blocks of 32 with one scale: a block becomes 32 integers and a scale --- */

static float open_q8_0(const void *w, int64_t b, int8_t *q)
{
    quant_q8_0 k;
    memcpy(&k, (const char *)w + b * (int64_t)sizeof k, sizeof k);
    memcpy(q, k.q, 32);
    return num_f16(k.d);
}

static float open_q4_0(const void *w, int64_t b, int8_t *q)
{
    quant_q4_0 k;
    memcpy(&k, (const char *)w + b * (int64_t)sizeof k, sizeof k);
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)((k.q[i] & 15) - 8);
        q[i + 16] = (int8_t)((k.q[i] >> 4) - 8);
    }
    return num_f16(k.d);
}

static float open_mxfp4(const void *w, int64_t b, int8_t *q)
{
    quant_mxfp4 k;
    memcpy(&k, (const char *)w + b * (int64_t)sizeof k, sizeof k);
    for (int i = 0; i < 16; i++) {
        q[i] = quant_mxfp4_codes[k.q[i] & 15];
        q[i + 16] = quant_mxfp4_codes[k.q[i] >> 4];
    }
    return num_e8m0(k.e) * 0.5f;
}

#define INLINE static inline __attribute__((always_inline))

static inline int dot_int(const int8_t *a, const int8_t *b, int n)
{
    int s = 0;
    for (int i = 0; i < n; i++)
        s += a[i] * b[i];
    return s;
}

INLINE void dot_32(float (*open)(const void *, int64_t, int8_t *), const void *w, const cpu_act *a, const int *rows,
                   int n, float *y)
{
    float lane[CPU_MAX_ROWS][8];
    int8_t q[32];
    memset(lane, 0, (size_t)n * sizeof *lane);
    for (int64_t b = 0; b < a->n / 32; b++) {
        float dw = open(w, b, q);
        for (int k = 0; k < n; k++) {
            int64_t at = rows[k] * a->padded + 32 * b;
            lane[k][b % 8] += dw * a->d[at / 32] * (float)dot_int(q, a->q + at, 32);
        }
    }
    for (int k = 0; k < n; k++)
        y[k] = cpu_tree(lane[k], 8);
}

/* --- blocks of 256: integers, a scale for each 16 of them, and for some a minimum for each 16 --- */

typedef struct block256 {
    int8_t q[256];
    int16_t scale[16], min[16];
    float d, dmin;
} block256;

static void open_q2_k(const void *w, block256 *o)
{
    quant_q2_k k;
    memcpy(&k, w, sizeof k);
    for (int i = 0; i < 256; i++)
        o->q[i] = k.q[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    for (int g = 0; g < 16; g++) {
        o->scale[g] = k.scales[g] & 15;
        o->min[g] = k.scales[g] >> 4;
    }
    o->d = num_f16(k.d);
    o->dmin = num_f16(k.dmin);
}

static void open_q3_k(const void *w, block256 *o)
{
    quant_q3_k k;
    int8_t sc[16];
    memcpy(&k, w, sizeof k);
    quant_unpack_q3_scales(k.scales, sc);
    for (int i = 0; i < 256; i++) {
        int low = k.q[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3, high = k.hmask[i % 32] >> (i / 32) & 1;
        o->q[i] = (int8_t)(low + 4 * high - 4);
    }
    for (int g = 0; g < 16; g++)
        o->scale[g] = sc[g];
    o->d = num_f16(k.d);
}

static void k4_scales(const uint8_t packed[12], block256 *o)
{
    uint8_t sc[8], mn[8];
    quant_unpack_k4_scales(packed, sc, mn);
    for (int g = 0; g < 16; g++) {
        o->scale[g] = sc[g / 2];
        o->min[g] = mn[g / 2];
    }
}

static void open_q4_k(const void *w, block256 *o)
{
    quant_q4_k k;
    memcpy(&k, w, sizeof k);
    for (int i = 0; i < 256; i++)
        o->q[i] = k.q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
    k4_scales(k.scales, o);
    o->d = num_f16(k.d);
    o->dmin = num_f16(k.dmin);
}

static void open_q5_k(const void *w, block256 *o)
{
    quant_q5_k k;
    memcpy(&k, w, sizeof k);
    for (int i = 0; i < 256; i++)
        o->q[i] = (int8_t)((k.q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15) | (k.qh[i % 32] >> (i / 32) & 1) << 4);
    k4_scales(k.scales, o);
    o->d = num_f16(k.d);
    o->dmin = num_f16(k.dmin);
}

static void open_q6_k(const void *w, block256 *o)
{
    quant_q6_k k;
    memcpy(&k, w, sizeof k);
    for (int i = 0; i < 256; i++) {
        int h = i / 128, run = i / 32 % 4, l = i % 32;
        int low = k.ql[64 * h + 32 * (run % 2) + l] >> (run / 2 * 4) & 15, high = k.qh[32 * h + l] >> (2 * run) & 3;
        o->q[i] = (int8_t)((low | high << 4) - 32);
    }
    for (int g = 0; g < 16; g++)
        o->scale[g] = k.scales[g];
    o->d = num_f16(k.d);
}

static void open_iq2_xxs(const void *w, block256 *o)
{
    quant_iq2_xxs k;
    memcpy(&k, w, sizeof k);
    for (int s = 0; s < 8; s++) {
        uint32_t aux = k.q[4 * s + 2] | (uint32_t)k.q[4 * s + 3] << 16;
        for (int l = 0; l < 4; l++) {
            uint64_t row = quant_iq2xxs_grid[k.q[4 * s + l / 2] >> (8 * (l % 2)) & 255];
            int neg = quant_iq2xxs_signs[aux >> (7 * l) & 127];
            for (int i = 0; i < 8; i++) {
                int v = (int)(row >> (8 * i) & 255);
                o->q[32 * s + 8 * l + i] = (int8_t)(neg >> i & 1 ? -v : v);
            }
        }
        o->scale[2 * s] = o->scale[2 * s + 1] = (int16_t)(2 * (aux >> 28) + 1);
    }
    o->d = num_f16(k.d) * 0.125f;
}

INLINE void dot_256(void (*open)(const void *, block256 *), size_t bytes, bool has_min, const void *w,
                    const cpu_act *a, const int *rows, int n, float *y)
{
    block256 k256;
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t b = 0; b < a->n / 256; b++) {
        open((const char *)w + (size_t)b * bytes, &k256);
        for (int k = 0; k < n; k++) {
            int64_t at = rows[k] * a->padded + 256 * b;
            int sum = 0, low = 0;
            for (int g = 0; g < 16; g++) {
                sum += k256.scale[g] * dot_int(k256.q + 16 * g, a->q + at + 16 * g, 16);
                low += has_min ? k256.min[g] * a->sum16[at / 16 + g] : 0;
            }
            float dx = a->d[at / 256], v = k256.d * dx * (float)sum;
            y[k] += has_min ? v - k256.dmin * dx * (float)low : v;
        }
    }
}

#define DOT_32(fmt)                                                                                 \
    static void fmt(const void *w, const cpu_act *a, const int *rows, int n, float *y)              \
    {                                                                                               \
        dot_32(open_##fmt, w, a, rows, n, y);                                                       \
    }
#define DOT_256(fmt, has_min)                                                                       \
    static void fmt(const void *w, const cpu_act *a, const int *rows, int n, float *y)              \
    {                                                                                               \
        dot_256(open_##fmt, sizeof(quant_##fmt), has_min, w, a, rows, n, y);                        \
    }
DOT_32(q8_0)
DOT_32(q4_0)
DOT_32(mxfp4)
DOT_256(q2_k, true)
DOT_256(q3_k, false)
DOT_256(q4_k, true)
DOT_256(q5_k, true)
DOT_256(q6_k, false)
DOT_256(iq2_xxs, false)

const cpu_kernels cpu_plain = {
    .name = "plain C", .lanes32 = lanes32, .lanes64 = lanes64, .tree32 = tree32, .dots = dots, .mix = mix,
    .add_scaled = add_scaled, .half = half, .quant32 = quant32, .quant256 = quant256, .q8_0 = q8_0, .q4_0 = q4_0,
    .mxfp4 = mxfp4, .q2_k = q2_k, .q3_k = q3_k, .q4_k = q4_k, .q5_k = q5_k, .q6_k = q6_k, .iq2_xxs = iq2_xxs,
};
