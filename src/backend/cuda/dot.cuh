/* dot.cuh: one weight row against N activation rows, by one warp. Lane l takes units l, l+32, ... (of 32 elements; of 8
 * for float types); the lanes are added in a fixed tree. N only says how many rows share a decoded unit.
 *
 * Kernels exist in two forms: for int8 activations, where float32 meets only weights of float types, and `exact` for
 * float32 activations against every type, which is a reference and needs no speed. */
#ifndef DS4_BACKEND_CUDA_DOT_CUH
#define DS4_BACKEND_CUDA_DOT_CUH

#include "backend/cuda/act.cuh"

template <int N> struct rowset {
    int r[N];
}; /* activation rows; one may stand twice */

DEV int dot16(const uint32_t *q, int4 x)
{
    int s = __dp4a((int)q[0], x.x, 0);
    s = __dp4a((int)q[1], x.y, s);
    s = __dp4a((int)q[2], x.z, s);
    return __dp4a((int)q[3], x.w, s);
}

/* acc += d dx (s0 sum0 + s1 sum1) - dm dx (m0 asum0 + m1 asum1); the integer sums are exact. */
template <uint32_t T> DEV float add_unit(const unit &k, const aview &a, int r, int u, float acc)
{
    const int4 *x = reinterpret_cast<const int4 *>(a.q + (int64_t)r * a.padded + 32 * u);
    int low = dot16(k.q, x[0]), high = dot16(k.q + 4, x[1]);
    constexpr bool small = T == Q_Q8_0 || T == Q_Q4_0 || T == Q_MXFP4;
    constexpr bool has_min = T == Q_Q2_K || T == Q_Q4_K || T == Q_Q5_K;
    if (small) {
        float dx = a.d[(int64_t)r * (a.padded / 32) + u];
        return __fmaf_rn(__fmul_rn(k.d, dx), (float)(low + high), acc);
    }
    float dx = a.d[(int64_t)r * (a.padded / 256) + u / 8];
    acc = __fmaf_rn(__fmul_rn(k.d, dx), (float)(k.s[0] * low + k.s[1] * high), acc);
    if (has_min) {
        const short2 sum = *reinterpret_cast<const short2 *>(a.sum16 + (int64_t)r * (a.padded / 16) + 2 * u);
        acc = __fmaf_rn(-__fmul_rn(k.dm, dx), (float)(k.m[0] * sum.x + k.m[1] * sum.y), acc);
    }
    return acc;
}

template <uint32_t T, int N>
DEV void dot_int8(const wview &w, const wrow &row, const aview &a, const rowset<N> &rows, int lane, float (&acc)[N])
{
    const int units = w.ne0 / 32;
#pragma unroll(N == 1 ? 4 : 2)
    for (int u = lane; u < units; u += 32) {
        unit k;
        if (row.r >= 0)
            tile_unit(T, row.p, row.r, u, k);
        else
            open_unit<T>(row.p, w.ne0, u, w.grid, k);
#pragma unroll
        for (int i = 0; i < N; i++)
            acc[i] = add_unit<T>(k, a, rows.r[i], u, acc[i]);
    }
}

/* Eight weights of a float type from element `at`. */
DEV void float_weights(const wview &w, const wrow &tile, int at, float *v)
{
    const uint8_t *row = tile.p;
    if (tile.r >= 0) {
        for (int i = 0; i < 8; i++)
            v[i] = float_at(w, tile, at + i);
        return;
    }
    if (w.type == Q_F32) {
        const float4 *p = reinterpret_cast<const float4 *>(row + 4 * at);
        float4 a = p[0], b = p[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
    uint4 p = *reinterpret_cast<const uint4 *>(row + 2 * at);
    uint32_t h[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool half = w.type == Q_F16;
        v[2 * i] = half ? half_value((uint16_t)h[i]) : bf16_value((uint16_t)h[i]);
        v[2 * i + 1] = half ? half_value((uint16_t)(h[i] >> 16)) : bf16_value((uint16_t)(h[i] >> 16));
    }
}

DEV float add_eight(const float *v, const float *x, float acc)
{
    const float4 *p = reinterpret_cast<const float4 *>(x);
    float4 a = p[0], b = p[1];
    acc = __fmaf_rn(v[0], a.x, acc);
    acc = __fmaf_rn(v[1], a.y, acc);
    acc = __fmaf_rn(v[2], a.z, acc);
    acc = __fmaf_rn(v[3], a.w, acc);
    acc = __fmaf_rn(v[4], b.x, acc);
    acc = __fmaf_rn(v[5], b.y, acc);
    acc = __fmaf_rn(v[6], b.z, acc);
    return __fmaf_rn(v[7], b.w, acc);
}

template <int N>
DEV void dot_float(const wview &w, const wrow &row, const aview &a, const rowset<N> &rows, int lane, float (&acc)[N])
{
    const float *x[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = act_row(a, rows.r[i]);
#pragma unroll(N == 1 ? 4 : 2)
    for (int at = 8 * lane; at < w.ne0; at += 256) {
        float v[8];
        float_weights(w, row, at, v);
#pragma unroll
        for (int i = 0; i < N; i++)
            acc[i] = add_eight(v, x[i] + at, acc[i]);
    }
}

/* Quantised weights against float32. */
template <int N>
DEV void dot_decoded(const wview &w, const wrow &row, const aview &a, const rowset<N> &rows, int lane, float (&acc)[N])
{
#pragma unroll 1
    for (int u = lane; u < w.ne0 / 32; u += 32) {
        float v[32];
        unit_values(w, row, u, v);
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int e = 0; e < 32; e += 8)
                acc[i] = add_eight(v + e, act_row(a, rows.r[i]) + 32 * u + e, acc[i]);
    }
}

/* acc[i] = weight row . activation row rows.r[i] in the form that `a` was made for; every lane gets the sums. Weights
 * in tiles are read slowly here: tensor cores (mm.cuh) are their path. */
template <int N, bool EXACT>
DEV void dot_rows(const wview &w, const wrow &row, const aview &a, const rowset<N> &rows, int lane, float (&acc)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        acc[i] = 0;
    if (unit_is_float(w.type))
        dot_float<N>(w, row, a, rows, lane, acc);
    else if (EXACT)
        dot_decoded<N>(w, row, a, rows, lane, acc);
    else
        switch (w.type) {
        case Q_Q8_0:
            dot_int8<Q_Q8_0, N>(w, row, a, rows, lane, acc);
            break;
        case Q_Q4_0:
            dot_int8<Q_Q4_0, N>(w, row, a, rows, lane, acc);
            break;
        case Q_MXFP4:
            dot_int8<Q_MXFP4, N>(w, row, a, rows, lane, acc);
            break;
        case Q_Q2_K:
            dot_int8<Q_Q2_K, N>(w, row, a, rows, lane, acc);
            break;
        case Q_Q3_K:
            dot_int8<Q_Q3_K, N>(w, row, a, rows, lane, acc);
            break;
        case Q_Q4_K:
            dot_int8<Q_Q4_K, N>(w, row, a, rows, lane, acc);
            break;
        case Q_Q5_K:
            dot_int8<Q_Q5_K, N>(w, row, a, rows, lane, acc);
            break;
        case Q_Q6_K:
            dot_int8<Q_Q6_K, N>(w, row, a, rows, lane, acc);
            break;
        default:
            dot_int8<Q_IQ2_XXS, N>(w, row, a, rows, lane, acc);
            break;
        }
#pragma unroll
    for (int i = 0; i < N; i++)
        acc[i] = warp_sum(acc[i]);
}

/* Blocks per multiprocessor that the registers of an instance should allow. */
constexpr int blocks_for(int n) { return n == 1 ? 4 : n == 2 ? 3 : 2; }

/* The number that lane i is to write. */
template <int N> DEV float lane_value(const float (&acc)[N], int lane)
{
    float v = acc[0];
#pragma unroll
    for (int i = 1; i < N; i++)
        v = lane == i ? acc[i] : v;
    return v;
}

/* Partial sum in float64 of weight row . x for the threads `thread` of `threads`: each takes its units in ascending
 * order. x: float32 at any address. */
DEV double dot_double(const wview &w, const wrow &row, const float *x, int thread, int threads)
{
    double sum = 0;
    if (unit_is_float(w.type)) {
        for (int at = 8 * thread; at < w.ne0; at += 8 * threads) {
            float v[8];
            float_weights(w, row, at, v);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (at + i < w.ne0)
                    sum = __fma_rn((double)v[i], (double)x[at + i], sum);
        }
        return sum;
    }
    for (int u = thread; u < w.ne0 / 32; u += threads) {
        float v[32];
        unit_values(w, row, u, v);
#pragma unroll
        for (int i = 0; i < 32; i++)
            sum = __fma_rn((double)v[i], (double)x[32 * u + i], sum);
    }
    return sum;
}

#endif
