/* mm.cuh: one tile of 16 outputs against up to 8 or 16 columns (rows of the forward), by one warp, on tensor cores.
 *
 * A column's numbers do not depend on the other columns: the sum runs over the chunks of the warp in order; inside a
 * chunk int8 products are exact integers. Column c of column tile ct is activation row 8 ct + c; unused columns repeat
 * the last one and are not stored.
 *
 * A warp streams its chunks through a ring of its own in shared memory, filled by asynchronous copies that begin before
 * the launch waits for the one before it.
 *
 *   colset     where the lane's columns are
 *   xpart<T>   what a lane needs of the columns for a chunk, loaded one chunk ahead
 *   chunk<T>   what a lane needs of a chunk, from the ring
 *   stream<T>  the ring and the loop over chunks */
#ifndef DS4_BACKEND_CUDA_MM_CUH
#define DS4_BACKEND_CUDA_MM_CUH

#include "backend/cuda/mma.cuh"
#include "backend/cuda/tile.cuh"

/* Activations split into halves: x / 16 = hi + lo / 2048, for weights of half floats. [row][ld / 4], each the hi and lo
 * of four numbers. */
typedef struct hrows {
    uint4 *v;
    int ld;
} hrows;

static const float half_in = 0.0625f, half_low = 2048.0f;

/* Four numbers as (hi, hi, lo, lo) words. */
DEV uint32_t half_bits(float f)
{
#if defined(__CUDA_ARCH__)
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
#else
    uint32_t u = __float_as_uint(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a >= 0x47800000u)
        return sign | (a > 0x7f800000u ? 0x7e00u : 0x7c00u);
    if (a < 0x38800000u) /* below 2^-14: multiples of 2^-24 */
        return sign | (uint32_t)__float2int_rn(__fmul_rn(__uint_as_float(a), 16777216.0f));
    a += 0xfffu + (a >> 13 & 1u);
    return sign | (a - 0x38000000u) >> 13;
#endif
}

DEV uint4 split_halves(const float (&x)[4])
{
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float v = __fmul_rn(x[i], half_in);
        hi[i] = half_bits(v);
        lo[i] = half_bits(__fmul_rn(__fsub_rn(v, half_value((uint16_t)hi[i])), half_low));
    }
    return make_uint4(hi[0] | hi[1] << 16, hi[2] | hi[3] << 16, lo[0] | lo[1] << 16, lo[2] | lo[3] << 16);
}

/* int8 rows: q[row][ld], d[row][ld / group], sum[row][ld / 16] (group 256 only). */
typedef struct qrows {
    int8_t *q;
    float *d;
    int16_t *sum;
    int ld, group;
} qrows;

/* Activations of a product: int8 rows, or split halves for F16 weights. */
typedef struct mm_input {
    qrows q;
    hrows h;
} mm_input;

/* A lane's columns: places of the product's first number in column g, and of the first scale in columns 2t, 2t+1. */
template <int CT> struct colset {
    int at[CT], d[CT][2];
};

template <uint32_t T> struct chunk {};

template <> struct chunk<Q_Q8_0> {
    uint4 q[4];
    alignas(16) uint32_t d[4]; /* by block: rows g, g + 8 */
};
template <> struct chunk<Q_F16> {
    uint4 q[4];
};
template <> struct chunk<Q_MXFP4> {
    uint4 q[2];
    alignas(8) uint32_t d[2]; /* two blocks each */
};
template <> struct chunk<Q_Q4_K> {
    uint4 q[4];
    alignas(16) uint32_t s[8]; /* two blocks each: row g, row g + 8 */
    uint32_t d[2];
};
template <> struct chunk<Q_Q2_K> {
    uint4 q[2];
    uint32_t s[2], m[2], d[2];
};
template <> struct chunk<Q_IQ2_XXS> {
    uint4 q[3];
    uint32_t s[2], d[2];
};

template <uint32_t T> DEV void load_chunk(chunk<T> &k, const uint8_t *p, int lane)
{
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < (int)(sizeof k.q / sizeof k.q[0]); i++)
        k.q[i] = *reinterpret_cast<const uint4 *>(p + 512 * i + 16 * lane);
    if constexpr (T == Q_Q8_0)
        *reinterpret_cast<uint4 *>(k.d) = *reinterpret_cast<const uint4 *>(p + 2048 + 16 * g);
    if constexpr (T == Q_MXFP4)
        *reinterpret_cast<uint2 *>(k.d) = *reinterpret_cast<const uint2 *>(p + 1024 + 8 * g);
    if constexpr (T == Q_Q4_K) {
        *reinterpret_cast<uint4 *>(k.s) = *reinterpret_cast<const uint4 *>(p + 2048 + 32 * g);
        *reinterpret_cast<uint4 *>(k.s + 4) = *reinterpret_cast<const uint4 *>(p + 2048 + 32 * g + 16);
    }
#pragma unroll
    for (int up = 0; up < 2; up++) {
        int r = g + 8 * up;
        if constexpr (T == Q_Q4_K)
            k.d[up] = load32(p + 2304 + 4 * r);
        if constexpr (T == Q_Q2_K) {
            k.s[up] = load32(p + 1024 + 8 * r + 4 * (t / 2));
            k.m[up] = load16(p + 1152 + 8 * r + 2 * t);
            k.d[up] = load32(p + 1280 + 4 * r);
        }
        if constexpr (T == Q_IQ2_XXS) {
            k.s[up] = load32(p + 1536 + 4 * r);
            k.d[up] = load16(p + 1600 + 2 * r);
        }
    }
}

DEV uint32_t word_of(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* Magnitude and sign of four MXFP4 codes (nibbles of the low 16 bits), doubled. */
DEV uint32_t mxfp4_four(uint32_t sel)
{
    uint32_t mag = __byte_perm(0x03020100u, 0x0c080604u, sel & 0x7777u);
    uint32_t one = __byte_perm(0x00000100u, 0, (sel >> 3 & 0x1111u)) & 0x01010101u;
    return (mag ^ one * 255u) + one; /* no byte carries: bind writes no negative zero */
}

/* A fragment of block kb. */
template <uint32_t T> DEV void open_block(const chunk<T> &k, int kb, uint32_t (&a)[4])
{
    if constexpr (T == Q_Q8_0) {
        a[0] = k.q[kb].x, a[1] = k.q[kb].y, a[2] = k.q[kb].z, a[3] = k.q[kb].w;
    } else if constexpr (T == Q_MXFP4) {
        uint32_t w0 = word_of(k.q[kb / 2], 2 * (kb % 2)), w1 = word_of(k.q[kb / 2], 2 * (kb % 2) + 1);
        a[0] = mxfp4_four(w0), a[2] = mxfp4_four(w0 >> 16), a[1] = mxfp4_four(w1), a[3] = mxfp4_four(w1 >> 16);
    } else if constexpr (T == Q_Q4_K) {
        uint32_t w0 = word_of(k.q[kb / 2], 2 * (kb % 2)), w1 = word_of(k.q[kb / 2], 2 * (kb % 2) + 1);
        a[0] = w0 & 0x0f0f0f0fu, a[2] = w0 >> 4 & 0x0f0f0f0fu, a[1] = w1 & 0x0f0f0f0fu, a[3] = w1 >> 4 & 0x0f0f0f0fu;
    } else if constexpr (T == Q_Q2_K) { /* times the scale: at most 45 */
        uint32_t w = word_of(k.q[kb / 4], kb % 4);
        uint32_t t0 = (k.s[0] >> 4 * kb & 15) * 0x03020100u, t1 = (k.s[1] >> 4 * kb & 15) * 0x03020100u;
        a[0] = __byte_perm(t0, 0, w & 0x3333u), a[2] = __byte_perm(t0, 0, w >> 2 & 0x3333u);
        a[1] = __byte_perm(t1, 0, w >> 16 & 0x3333u), a[3] = __byte_perm(t1, 0, w >> 18 & 0x3333u);
    } else if constexpr (T == Q_IQ2_XXS) {
        uint32_t s[3];
#pragma unroll
        for (int i = 0; i < 3; i++) {
            int at = 3 * kb + i;
            uint32_t w = word_of(k.q[at / 8], at % 8 / 2);
            s[i] = at % 2 ? w >> 16 : w;
        }
        uint32_t last = (s[0] & 0x8888u) >> 3 | (s[1] & 0x8888u) >> 2 | (s[2] & 0x8888u) >> 1;
        a[0] = __byte_perm(0x002b1908u, 0x00d5e7f8u, s[0] & 0x7777u);
        a[1] = __byte_perm(0x002b1908u, 0x00d5e7f8u, s[1] & 0x7777u);
        a[2] = __byte_perm(0x002b1908u, 0x00d5e7f8u, s[2] & 0x7777u);
        a[3] = __byte_perm(0x002b1908u, 0x00d5e7f8u, last);
    }
}

/* acc += d dx c for the four accumulators. */
DEV void scale_add(float (&acc)[4], float d0, float d1, float x0, float x1, const int (&c)[4])
{
    acc[0] = __fmaf_rn(__fmul_rn(d0, x0), (float)c[0], acc[0]);
    acc[1] = __fmaf_rn(__fmul_rn(d0, x1), (float)c[1], acc[1]);
    acc[2] = __fmaf_rn(__fmul_rn(d1, x0), (float)c[2], acc[2]);
    acc[3] = __fmaf_rn(__fmul_rn(d1, x1), (float)c[3], acc[3]);
}

/* Columns' share of a chunk. Small types: 4 blocks, a scale each; large: 8 blocks, one scale, sums for minimums. */
template <uint32_t T, int CT, bool HALVES> struct xpart {
    static const bool small = T == Q_Q8_0 || T == Q_MXFP4;
    static const bool mins = T == Q_Q2_K || T == Q_Q4_K;
    uint2 b[HALVES ? 1 : CT][small ? 4 : 8];
    float d[HALVES ? 1 : CT][2][small ? 4 : 1];
    uint2 sum[mins ? CT : 1];
    uint4 h[HALVES ? CT : 1][T == Q_F16 ? 4 : 8];
};

template <uint32_t T, int CT, bool HALVES>
DEV void load_x(xpart<T, CT, HALVES> &k, const mm_input &in, const colset<CT> &x, int at, int lane)
{
    using X = xpart<T, CT, HALVES>;
    int t = lane % 4;
#pragma unroll
    for (int ct = 0; ct < CT; ct++) {
        if constexpr (HALVES) {
#pragma unroll
            for (int i = 0; i < (T == Q_F16 ? 4 : 8); i++)
                k.h[ct][i] = in.h.v[x.at[ct] / 4 + (T == Q_F16 ? 16 * at + 4 * i + t : 32 * at + 8 * (i / 2) + 2 * t + i % 2)];
        } else {
            const int8_t *q = in.q.q + x.at[ct] + (X::small ? 128 : 256) * at + 8 * t;
#pragma unroll
            for (int i = 0; i < (X::small ? 4 : 8); i++)
                k.b[ct][i] = *reinterpret_cast<const uint2 *>(q + 32 * i);
#pragma unroll
            for (int c = 0; c < 2; c++)
                if constexpr (X::small) {
                    float4 v = *reinterpret_cast<const float4 *>(in.q.d + x.d[ct][c] + 4 * at);
                    k.d[ct][c][0] = v.x, k.d[ct][c][1] = v.y, k.d[ct][c][2] = v.z, k.d[ct][c][3] = v.w;
                } else {
                    k.d[ct][c][0] = in.q.d[x.d[ct][c] + at];
                }
            if constexpr (X::mins)
                k.sum[ct] = *reinterpret_cast<const uint2 *>(in.q.sum + x.at[ct] / 16 + 16 * at + 4 * t);
        }
    }
}

/* Types with one activation scale per 32. */
template <uint32_t T, int CT>
DEV void mul_small(const chunk<T> &k, const xpart<T, CT, false> &x, float (&acc)[CT][4])
{
#pragma unroll
    for (int kb = 0; kb < 4; kb++) {
        uint32_t a[4];
        float d0, d1;
        open_block<T>(k, kb, a);
        if constexpr (T == Q_Q8_0) {
            d0 = half_value((uint16_t)k.d[kb]), d1 = half_value((uint16_t)(k.d[kb] >> 16));
        } else {
            uint32_t w = k.d[kb / 2] >> 16 * (kb % 2);
            d0 = __fmul_rn(e8m0_value(w & 255), 0.5f), d1 = __fmul_rn(e8m0_value(w >> 8 & 255), 0.5f);
        }
#pragma unroll
        for (int ct = 0; ct < CT; ct++) {
            int c[4] = {0, 0, 0, 0};
            mma_s8_k32(c, a, x.b[ct][kb].x, x.b[ct][kb].y);
            scale_add(acc[ct], d0, d1, x.d[ct][0][kb], x.d[ct][1][kb], c);
        }
    }
}

/* sum over the sixteen groups of 16: minimum * activation sum; the sums enter as 64 h + l with int8 h, l. */
template <uint32_t T, int CT>
DEV void mul_mins(uint32_t a0, uint32_t a1, float d0, float d1, const xpart<T, CT, false> &x, float (&acc)[CT][4])
{
#pragma unroll
    for (int ct = 0; ct < CT; ct++) {
        uint2 w = x.sum[ct];
        int s[4] = {(int16_t)w.x, (int)w.x >> 16, (int16_t)w.y, (int)w.y >> 16};
        uint32_t h = 0, l = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int top = (s[i] + 32) >> 6;
            h |= (uint32_t)(top & 255) << 8 * i;
            l |= (uint32_t)((s[i] - 64 * top) & 255) << 8 * i;
        }
        int ch[4] = {0, 0, 0, 0}, cl[4] = {0, 0, 0, 0};
        mma_s8_k16(ch, a0, a1, h);
        mma_s8_k16(cl, a0, a1, l);
#pragma unroll
        for (int i = 0; i < 4; i++)
            ch[i] = 64 * ch[i] + cl[i];
        scale_add(acc[ct], -d0, -d1, x.d[ct][0][0], x.d[ct][1][0], ch);
    }
}

/* Types with one activation scale per 256. */
template <uint32_t T, int CT>
DEV void mul_large(const chunk<T> &k, const xpart<T, CT, false> &x, float (&acc)[CT][4])
{
    int sum[CT][4] = {};
#pragma unroll
    for (int kb = 0; kb < 8; kb++) {
        uint32_t a[4];
        open_block<T>(k, kb, a);
        int s0 = 1, s1 = 1;
        if constexpr (T == Q_IQ2_XXS) {
            s0 = (int)(2 * (k.s[0] >> 4 * kb & 15) + 1), s1 = (int)(2 * (k.s[1] >> 4 * kb & 15) + 1);
        } else if constexpr (T == Q_Q4_K) {
            s0 = (int)(k.s[kb / 2 * 2] >> 16 * (kb % 2) & 255), s1 = (int)(k.s[kb / 2 * 2 + 1] >> 16 * (kb % 2) & 255);
        }
#pragma unroll
        for (int ct = 0; ct < CT; ct++) {
            uint2 b = x.b[ct][kb];
            if constexpr (T == Q_Q2_K) {
                mma_s8_k32(sum[ct], a, b.x, b.y);
            } else {
                int c[4] = {0, 0, 0, 0};
                mma_s8_k32(c, a, b.x, b.y);
                sum[ct][0] += s0 * c[0], sum[ct][1] += s0 * c[1];
                sum[ct][2] += s1 * c[2], sum[ct][3] += s1 * c[3];
            }
        }
    }
    float d0 = half_value((uint16_t)k.d[0]), d1 = half_value((uint16_t)k.d[1]);
    if constexpr (T == Q_IQ2_XXS) {
        d0 = __fmul_rn(d0, 0.125f), d1 = __fmul_rn(d1, 0.125f);
    }
#pragma unroll
    for (int ct = 0; ct < CT; ct++)
        scale_add(acc[ct], d0, d1, x.d[ct][0][0], x.d[ct][1][0], sum[ct]);
    if constexpr (T == Q_Q2_K) {
        uint32_t m0 = k.m[0], m1 = k.m[1];
        m0 = (m0 & 15) | (m0 & 0xf0) << 4 | (m0 & 0xf00) << 8 | (m0 & 0xf000) << 12;
        m1 = (m1 & 15) | (m1 & 0xf0) << 4 | (m1 & 0xf00) << 8 | (m1 & 0xf000) << 12;
        mul_mins<T, CT>(m0, m1, half_value((uint16_t)(k.d[0] >> 16)), half_value((uint16_t)(k.d[1] >> 16)), x, acc);
    }
}

/* Minimums of Q4_K: blocks 2t, 2t+1 have the groups of 16 4t..4t+3. */
template <int CT> DEV void mins_q4(const chunk<Q_Q4_K> &k, int t, const xpart<Q_Q4_K, CT, false> &x, float (&acc)[CT][4])
{
    uint32_t w0 = t == 0 ? k.s[0] : t == 1 ? k.s[2] : t == 2 ? k.s[4] : k.s[6];
    uint32_t w1 = t == 0 ? k.s[1] : t == 1 ? k.s[3] : t == 2 ? k.s[5] : k.s[7];
    uint32_t m0 = __byte_perm(w0, 0, 0x3311u), m1 = __byte_perm(w1, 0, 0x3311u);
    mul_mins<Q_Q4_K, CT>(m0, m1, half_value((uint16_t)(k.d[0] >> 16)), half_value((uint16_t)(k.d[1] >> 16)), x, acc);
}

/* Four int8 as two words of halves; exact. */
DEV void bytes_to_halves(uint32_t q, uint32_t *lo, uint32_t *hi)
{
#if defined(__CUDA_ARCH__)
    uint32_t u = q ^ 0x80808080u; /* 1024 + 128 + q as halves, then minus 1152 */
    uint32_t a = __byte_perm(u, 0x64646464u, 0x4140u), b = __byte_perm(u, 0x64646464u, 0x4342u);
    asm("sub.f16x2 %0, %1, %2;" : "=r"(*lo) : "r"(a), "r"(0x64806480u));
    asm("sub.f16x2 %0, %1, %2;" : "=r"(*hi) : "r"(b), "r"(0x64806480u));
#else
    uint32_t h[4];
    for (int i = 0; i < 4; i++)
        h[i] = half_bits((float)(int8_t)(q >> 8 * i));
    *lo = h[0] | h[1] << 16;
    *hi = h[2] | h[3] << 16;
#endif
}

template <int CT>
DEV void mul_half(const chunk<Q_F16> &k, const xpart<Q_F16, CT, true> &x, float (&hi)[CT][4], float (&lo)[CT][4])
{
#pragma unroll
    for (int kb = 0; kb < 4; kb++) {
        uint32_t a[4] = {k.q[kb].x, k.q[kb].y, k.q[kb].z, k.q[kb].w};
#pragma unroll
        for (int ct = 0; ct < CT; ct++) {
            mma_f16_k16(hi[ct], a, x.h[ct][kb].x, x.h[ct][kb].y);
            mma_f16_k16(lo[ct], a, x.h[ct][kb].z, x.h[ct][kb].w);
        }
    }
}

/* Q8_0 weights against split halves: what a router of that type takes. */
template <int CT> DEV void mul_bytes_half(const chunk<Q_Q8_0> &k, const xpart<Q_Q8_0, CT, true> &x, float (&acc)[CT][4])
{
#pragma unroll
    for (int kb = 0; kb < 4; kb++) {
        uint32_t w = k.d[kb], a[2][4];
        float d0 = half_value((uint16_t)w), d1 = half_value((uint16_t)(w >> 16));
        bytes_to_halves(k.q[kb].x, &a[0][0], &a[0][2]);
        bytes_to_halves(k.q[kb].y, &a[0][1], &a[0][3]);
        bytes_to_halves(k.q[kb].z, &a[1][0], &a[1][2]);
        bytes_to_halves(k.q[kb].w, &a[1][1], &a[1][3]);
#pragma unroll
        for (int ct = 0; ct < CT; ct++) {
            float hi[4] = {0, 0, 0, 0}, lo[4] = {0, 0, 0, 0};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint4 b = x.h[ct][2 * kb + h];
                mma_f16_k16(hi, a[h], b.x, b.y);
                mma_f16_k16(lo, a[h], b.z, b.w);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[ct][i] = __fmaf_rn(i < 2 ? d0 : d1, __fmaf_rn(lo[i], 1.0f / half_low, hi[i]), acc[ct][i]);
        }
    }
}

enum { MM_RING = 8704 /* bytes of a warp's ring */ };

/* A warp's share of a tile: `count` chunks from chunk `first` on; p: the first of them. load() may be called before
 * chain_wait(), run() after it. HALVES: float inputs, F16 and Q8_0 alone. One stream of a warp at a time. */
template <uint32_t T, int CT, bool HALVES = T == Q_F16> struct stream {
    static const int bytes = tile_chunk_bytes(T), slots = MM_RING / bytes;

    static DEV_MEMBER void fetch(uint8_t *slot, const uint8_t *p, int lane)
    {
#pragma unroll
        for (int i = 0; i < (bytes / 16 + 31) / 32; i++)
            if (32 * i + 31 < bytes / 16 || 32 * i + lane < bytes / 16)
                copy_stream(slot + 512 * i + 16 * lane, p + 512 * i + 16 * lane);
    }

    static DEV_MEMBER void load(uint8_t *ring, const uint8_t *p, int count, int lane)
    {
#pragma unroll
        for (int i = 0; i < slots; i++) {
            if (i < count)
                fetch(ring + i * bytes, p + (int64_t)i * bytes, lane);
            copy_group();
        }
    }

    static DEV_MEMBER void multiply(const chunk<T> &k, const xpart<T, CT, HALVES> &x, int lane, float (&acc)[CT][4],
                                    float (&lo)[T == Q_F16 ? CT : 1][4])
    {
        (void)lo, (void)lane;
        if constexpr (T == Q_F16)
            mul_half<CT>(k, x, acc, lo);
        else if constexpr (HALVES)
            mul_bytes_half<CT>(k, x, acc);
        else if constexpr (T == Q_Q8_0 || T == Q_MXFP4)
            mul_small<T, CT>(k, x, acc);
        else
            mul_large<T, CT>(k, x, acc);
        if constexpr (T == Q_Q4_K)
            mins_q4<CT>(k, lane % 4, x, acc);
    }

    static DEV_MEMBER void run(uint8_t *ring, const uint8_t *p, int first, int count, const mm_input &in,
                               const colset<CT> &c, int lane, float (&acc)[CT][4])
    {
        float lo[T == Q_F16 ? CT : 1][4] = {};
        xpart<T, CT, HALVES> x;
        if (count > 0)
            load_x(x, in, c, first, lane);
#pragma unroll 1
        for (int i = 0, slot = 0; i < count; i++, slot = slot + 1 == slots ? 0 : slot + 1) {
            chunk<T> k;
            xpart<T, CT, HALVES> now = x;
            copy_wait_group<slots - 1>();
            __syncwarp();
            load_chunk<T>(k, ring + slot * bytes, lane);
            if (i + 1 < count)
                load_x(x, in, c, first + i + 1, lane);
            __syncwarp();
            if (i + slots < count)
                fetch(ring + slot * bytes, p + (int64_t)(i + slots) * bytes, lane);
            copy_group();
            multiply(k, now, lane, acc, lo);
        }
        __syncwarp();
#pragma unroll
        for (int ct = 0; ct < (HALVES ? CT : 0); ct++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[ct][i] = T == Q_F16 ? __fmul_rn(__fmaf_rn(lo[T == Q_F16 ? ct : 0][i], 1.0f / half_low, acc[ct][i]),
                                                    1.0f / half_in)
                                        : __fmul_rn(acc[ct][i], 1.0f / half_in);
    }
};

/* Where accumulator i of a lane stands in its tile. */
DEV int acc_row(int lane, int i) { return lane / 4 + 8 * (i / 2); }
DEV int acc_col(int lane, int i) { return 2 * (lane % 4) + i % 2; }

#endif
