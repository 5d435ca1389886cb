/* dot.c: one weight row against the activation rows of a launch.
 *
 * Orders of summation (the same in every variant of the kernels):
 *   float32   element i goes to lane i mod 32; lanes are added in a fixed tree
 *   float64   element i goes to lane i mod 16; the same
 *   int8/32   the integer sum of a block is exact; block b goes to float lane b mod 8, as (dw*dx) * sum; the same tree
 *   int8/256  block sums are exact integers; blocks are added one after the other */
#include "backend/cpu/cpu.h"
#include "file/quant.h"

#include <string.h>

/* activation rows of one pass of a float32 product: bounds the lanes */
enum { FLOAT_ROWS = 8 };

const int cpu_iota[CPU_MAX_ROWS] = {
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
    48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63,
};

float cpu_tree(const float *lane, int n)
{
    float s[CPU_LANES];
    memcpy(s, lane, (size_t)n * sizeof *s);
    for (int half = n / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            s[i] += s[i + half];
    return s[0];
}

double cpu_tree64(const double *lane)
{
    double s[CPU_LANES64];
    memcpy(s, lane, sizeof s);
    for (int half = CPU_LANES64 / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            s[i] += s[i + half];
    return s[0];
}

double cpu_square(const cpu *c, const float *x, int64_t n)
{
    double lane[1][CPU_LANES64] = {{0}};
    c->k->lanes64(x, &x, 1, n, lane);
    return cpu_tree64(lane[0]);
}

/* n elements from `at` on of a weight row as float32: the row itself if it is float32, else decoded into buf. */
static const float *stretch(const cpu *c, uint32_t type, const char *w, int64_t at, int n, float *buf)
{
    if (type == Q_F32 && ((uintptr_t)w & 3) == 0)
        return (const float *)w + at;
    if (type == Q_F16)
        c->k->half(w + 2 * at, buf, n);
    else
        quant_decode(type, w + quant_row_bytes(type, (uint64_t)at), buf, (uint64_t)n);
    return buf;
}

static int next_stretch(int64_t n, int64_t at) { return n - at < CPU_STRETCH ? (int)(n - at) : CPU_STRETCH; }

/* Stretch by stretch over all weight rows, so that the activations of the stretch stay in the nearest cache. */
static void dot_float(const cpu *c, const be_weight *w, const char *p, int count, const cpu_act *a, const int *rows,
                      int n, float *y, size_t ldy)
{
    _Alignas(64) float lane[CPU_TILE][FLOAT_ROWS][CPU_LANES], buf[CPU_STRETCH];
    const float *x[FLOAT_ROWS];
    for (int o = 0; o < count; o++)
        memset(lane[o], 0, (size_t)n * sizeof *lane[o]);
    for (int64_t at = 0; at < a->n; at += CPU_STRETCH) {
        int len = next_stretch(a->n, at);
        for (int k = 0; k < n; k++)
            x[k] = cpu_act_row(a, rows[k]) + at;
        for (int o = 0; o < count; o++)
            c->k->lanes32(stretch(c, w->type, p + (size_t)o * w->row_bytes, at, len, buf), x, n, len, lane[o]);
    }
    for (int o = 0; o < count; o++)
        c->k->tree32(lane[o], n, y + o, ldy);
}

void cpu_dot_double(const cpu *c, uint32_t type, const void *w, const cpu_act *a, const int *rows, int n, double *y)
{
    _Alignas(64) double lane[CPU_MAX_ROWS][CPU_LANES64];
    _Alignas(64) float buf[CPU_STRETCH];
    const float *x[CPU_MAX_ROWS];
    memset(lane, 0, (size_t)n * sizeof *lane);
    for (int64_t at = 0; at < a->n; at += CPU_STRETCH) {
        int len = next_stretch(a->n, at);
        for (int k = 0; k < n; k++)
            x[k] = cpu_act_row(a, rows[k]) + at;
        c->k->lanes64(stretch(c, type, w, at, len, buf), x, n, len, lane);
    }
    for (int k = 0; k < n; k++)
        y[k] = cpu_tree64(lane[k]);
}

static cpu_dot_fn dot_for(const cpu_kernels *k, uint32_t type)
{
    switch (type) {
    case Q_Q8_0: return k->q8_0;
    case Q_Q4_0: return k->q4_0;
    case Q_MXFP4: return k->mxfp4;
    case Q_Q2_K: return k->q2_k;
    case Q_Q3_K: return k->q3_k;
    case Q_Q4_K: return k->q4_k;
    case Q_Q5_K: return k->q5_k;
    case Q_Q6_K: return k->q6_k;
    case Q_IQ2_XXS: return k->iq2_xxs;
    default: return NULL;
    }
}

void cpu_dots(const cpu *c, const be_weight *w, int64_t slice, int64_t o, int count, const cpu_act *a,
              const int *rows, int n, float *y, size_t ldy)
{
    const char *p = cpu_row(w, slice, o);
    if (a->group && count == CPU_TILE && c->k->tile[w->type].run && n >= c->k->tile[w->type].from) {
        c->k->tile[w->type].run(p, w->row_bytes, a, rows, n, y, ldy);
        return;
    }
    if (!a->group) {
        for (int k = 0; k < n; k += FLOAT_ROWS)
            dot_float(c, w, p, count, a, rows + k, n - k < FLOAT_ROWS ? n - k : FLOAT_ROWS, y + (size_t)k * ldy, ldy);
        return;
    }
    for (int i = 0; i < count; i++, p += w->row_bytes) {
        float v[CPU_MAX_ROWS];
        dot_for(c->k, w->type)(p, a, rows, n, v);
        for (int k = 0; k < n; k++)
            y[(size_t)k * ldy + (size_t)i] = v[k];
    }
}
