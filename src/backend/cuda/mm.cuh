/* mm.cuh: one tile of 16 outputs against up to 8 or 16 columns (rows of the forward), by one warp, on tensor cores.
 *
 * A column's numbers do not depend on the other columns: the sum runs over the chunks of the warp in order; inside a
 * chunk int8 products are exact integers. Column c of column tile ct is activation row 8 ct + c; unused columns repeat
 * the last one and are not stored.
 *
 *   chunk<T>   what a lane loads of a chunk (issued well before it is used)
 *   colset     where the lane's columns are */
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
    uint32_t d;
};
template <> struct chunk<Q_F16> {
    uint4 q[4];
};
template <> struct chunk<Q_MXFP4> {
    uint4 q[2];
    uint32_t d;
};
template <> struct chunk<Q_Q4_K> {
    uint4 q[4];
    uint2 s;
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

DEV uint32_t ldw(const uint8_t *p)
{
#if defined(__CUDA_ARCH__)
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
#else
    return load32(p);
#endif
}

template <uint32_t T> DEV void load_chunk(chunk<T> &k, const uint8_t *p, int lane)
{
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < (int)(sizeof k.q / sizeof k.q[0]); i++)
        k.q[i] = load_stream(p + 512 * i + 16 * lane);
    if constexpr (T == Q_Q8_0)
        k.d = ldw(p + 2048 + 4 * lane);
    if constexpr (T == Q_MXFP4)
        k.d = load16(p + 1024 + 2 * lane);
    if constexpr (T == Q_Q4_K)
        k.s = *reinterpret_cast<const uint2 *>(p + 2048 + 8 * lane);
#pragma unroll
    for (int up = 0; up < 2; up++) {
        int r = g + 8 * up;
        if constexpr (T == Q_Q4_K)
            k.d[up] = ldw(p + 2304 + 4 * r);
        if constexpr (T == Q_Q2_K) {
            k.s[up] = ldw(p + 1024 + 8 * r + 4 * (t / 2));
            k.m[up] = load16(p + 1152 + 8 * r + 2 * t);
            k.d[up] = ldw(p + 1280 + 4 * r);
        }
        if constexpr (T == Q_IQ2_XXS) {
            k.s[up] = ldw(p + 1536 + 4 * r);
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

/* Types with one activation scale per 32: at = chunk index. */
template <uint32_t T, int CT> DEV void mul_small(const chunk<T> &k, const mm_input &in, const colset<CT> &x, int at, int lane, float (&acc)[CT][4])
{
#pragma unroll
    for (int kb = 0; kb < 4; kb++) {
        uint32_t a[4], w = __shfl_sync(FULL_WARP, k.d, (lane & ~3) + kb);
        float d0, d1;
        open_block<T>(k, kb, a);
        if constexpr (T == Q_Q8_0) {
            d0 = half_value((uint16_t)w), d1 = half_value((uint16_t)(w >> 16));
        } else {
            d0 = __fmul_rn(e8m0_value(w & 255), 0.5f), d1 = __fmul_rn(e8m0_value(w >> 8 & 255), 0.5f);
        }
#pragma unroll
        for (int ct = 0; ct < CT; ct++) {
            int c[4] = {0, 0, 0, 0};
            uint2 b = *reinterpret_cast<const uint2 *>(in.q.q + x.at[ct] + 128 * at + 32 * kb + 8 * (lane % 4));
            mma_s8_k32(c, a, b.x, b.y);
            const float *dx = in.q.d + 4 * at + kb;
            scale_add(acc[ct], d0, d1, dx[x.d[ct][0]], dx[x.d[ct][1]], c);
        }
    }
}

/* sum over the sixteen groups of 16: minimum * activation sum; the sums enter as 64 h + l with int8 h, l. */
template <int CT> DEV void mul_mins(uint32_t a0, uint32_t a1, float d0, float d1, const mm_input &in, const colset<CT> &x, int at, int lane,
                                    float (&acc)[CT][4])
{
#pragma unroll
    for (int ct = 0; ct < CT; ct++) {
        const short2 *p = reinterpret_cast<const short2 *>(in.q.sum + x.at[ct] / 16 + 16 * at + 4 * (lane % 4));
        short2 u = p[0], v = p[1];
        int s[4] = {u.x, u.y, v.x, v.y};
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
        scale_add(acc[ct], -d0, -d1, in.q.d[x.d[ct][0] + at], in.q.d[x.d[ct][1] + at], ch);
    }
}

/* Types with one activation scale per 256. */
template <uint32_t T, int CT> DEV void mul_large(const chunk<T> &k, const mm_input &in, const colset<CT> &x, int at, int lane, float (&acc)[CT][4])
{
    int sum[CT][4] = {};
    int t = lane % 4;
#pragma unroll
    for (int kb = 0; kb < 8; kb++) {
        uint32_t a[4];
        open_block<T>(k, kb, a);
        int s0 = 1, s1 = 1;
        if constexpr (T == Q_IQ2_XXS) {
            s0 = (int)(2 * (k.s[0] >> 4 * kb & 15) + 1), s1 = (int)(2 * (k.s[1] >> 4 * kb & 15) + 1);
        } else if constexpr (T == Q_Q4_K) {
            uint32_t w0 = __shfl_sync(FULL_WARP, k.s.x, (lane & ~3) + kb / 2);
            uint32_t w1 = __shfl_sync(FULL_WARP, k.s.y, (lane & ~3) + kb / 2);
            s0 = (int)(w0 >> 16 * (kb % 2) & 255), s1 = (int)(w1 >> 16 * (kb % 2) & 255);
        }
#pragma unroll
        for (int ct = 0; ct < CT; ct++) {
            uint2 b = *reinterpret_cast<const uint2 *>(in.q.q + x.at[ct] + 256 * at + 32 * kb + 8 * t);
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
        scale_add(acc[ct], d0, d1, in.q.d[x.d[ct][0] + at], in.q.d[x.d[ct][1] + at], sum[ct]);
    if constexpr (T == Q_Q2_K) {
        uint32_t m0 = k.m[0], m1 = k.m[1];
        m0 = (m0 & 15) | (m0 & 0xf0) << 4 | (m0 & 0xf00) << 8 | (m0 & 0xf000) << 12;
        m1 = (m1 & 15) | (m1 & 0xf0) << 4 | (m1 & 0xf00) << 8 | (m1 & 0xf000) << 12;
        mul_mins<CT>(m0, m1, half_value((uint16_t)(k.d[0] >> 16)), half_value((uint16_t)(k.d[1] >> 16)), in, x, at, lane,
                     acc);
    }
    if constexpr (T == Q_Q4_K) { /* blocks 2t, 2t+1 have groups 4t..4t+3 */
        uint32_t m0 = __byte_perm(k.s.x, 0, 0x3311u), m1 = __byte_perm(k.s.y, 0, 0x3311u);
        mul_mins<CT>(m0, m1, half_value((uint16_t)(k.d[0] >> 16)), half_value((uint16_t)(k.d[1] >> 16)), in, x, at, lane,
                     acc);
    }
}

template <int CT> DEV void mul_half(const chunk<Q_F16> &k, const mm_input &in, const colset<CT> &x, int at, int lane, float (&hi)[CT][4], float (&lo)[CT][4])
{
#pragma unroll
    for (int kb = 0; kb < 4; kb++) {
        uint32_t a[4] = {k.q[kb].x, k.q[kb].y, k.q[kb].z, k.q[kb].w};
#pragma unroll
        for (int ct = 0; ct < CT; ct++) {
            uint4 b = in.h.v[x.at[ct] / 4 + 16 * at + 4 * kb + lane % 4];
            mma_f16_k16(hi[ct], a, b.x, b.y);
            mma_f16_k16(lo[ct], a, b.z, b.w);
        }
    }
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

/* Q8_0 weights against split halves: what a router of that type takes. */
template <int CT>
DEV void mul_bytes_half(const chunk<Q_Q8_0> &k, const mm_input &in, const colset<CT> &x, int at, int lane,
                        float (&acc)[CT][4])
{
#pragma unroll
    for (int kb = 0; kb < 4; kb++) {
        uint32_t w = __shfl_sync(FULL_WARP, k.d, (lane & ~3) + kb), a[2][4];
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
                uint4 b = in.h.v[x.at[ct] / 4 + 32 * at + 8 * kb + 2 * (lane % 4) + h];
                mma_f16_k16(hi, a[h], b.x, b.y);
                mma_f16_k16(lo, a[h], b.z, b.w);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[ct][i] = __fmaf_rn(i < 2 ? d0 : d1, __fmaf_rn(lo[i], 1.0f / half_low, hi[i]), acc[ct][i]);
        }
    }
}

constexpr int mm_depth(uint32_t) { return 2; }

/* A warp's share of a tile: `count` chunks from chunk `first` of the tile at p. load() may be called before
 * chain_wait(), run() after it. */
template <uint32_t T, int CT, bool HALVES = T == Q_F16> struct share { /* HALVES: float inputs, F16 and Q8_0 alone */
    static const int depth = mm_depth(T);
    chunk<T> k[depth];

    DEV_MEMBER void load(const uint8_t *p, int count, int lane)
    {
#pragma unroll
        for (int i = 0; i < depth; i++)
            if (i < count)
                load_chunk<T>(k[i], p + (int64_t)i * tile_chunk_bytes(T), lane);
    }

    DEV_MEMBER void run(const uint8_t *p, int first, int count, const mm_input &in, const colset<CT> &x, int lane, float (&acc)[CT][4])
    {
        float lo[T == Q_F16 ? CT : 1][4] = {};
        (void)lo;
#pragma unroll 1
        for (int at = 0; at < count; at += depth)
#pragma unroll
            for (int i = 0; i < depth; i++) {
                if (at + i >= count)
                    break;
                if constexpr (T == Q_F16)
                    mul_half<CT>(k[i], in, x, first + at + i, lane, acc, lo);
                else if constexpr (HALVES)
                    mul_bytes_half<CT>(k[i], in, x, first + at + i, lane, acc);
                else if constexpr (T == Q_Q8_0 || T == Q_MXFP4)
                    mul_small<T, CT>(k[i], in, x, first + at + i, lane, acc);
                else
                    mul_large<T, CT>(k[i], in, x, first + at + i, lane, acc);
                if (at + i + depth < count)
                    load_chunk<T>(k[i], p + (int64_t)(at + i + depth) * tile_chunk_bytes(T), lane);
            }
        if constexpr (T == Q_F16)
#pragma unroll
            for (int ct = 0; ct < CT; ct++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[ct][i] = __fmul_rn(__fmaf_rn(lo[ct][i], 1.0f / half_low, acc[ct][i]), 1.0f / half_in);
        else if constexpr (HALVES)
#pragma unroll
            for (int ct = 0; ct < CT; ct++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[ct][i] = __fmul_rn(acc[ct][i], 1.0f / half_in);
    }
};

/* Where accumulator i of a lane stands in its tile. */
DEV int acc_row(int lane, int i) { return lane / 4 + 8 * (i / 2); }
DEV int acc_col(int lane, int i) { return 2 * (lane % 4) + i % 2; }

#endif
