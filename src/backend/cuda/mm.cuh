/* mm.cuh: one tile of 16 outputs against up to 8 or 16 columns (rows of the forward), by one warp, on tensor cores.
 *
 * A column's numbers do not depend on the other columns: the sum runs over the chunks of the warp in order; inside a
 * chunk int8 products are exact integers. Column c of column tile ct is activation row 8 ct + c; unused columns repeat
 * the last one and are not stored.
 *
 * A warp streams its chunks, and the columns' numbers that meet them, through a ring of its own in shared memory,
 * filled by asynchronous copies. Weights are asked for before the launch waits for the one before it. The columns must
 * not be loaded when they are needed: their requests would stand behind all the weights on their way.
 *
 *   mm_columns  where the columns are
 *   chunk<T>    what a lane needs of a chunk, from the ring
 *   xpart<T>    what it needs of the columns for a chunk, from the ring
 *   stream<T>   the ring and the loop over chunks */
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

/* Columns of a product: rows[0 .. n-1] of the input (NULL: 0 .. n-1), `offset` numbers in. */
typedef struct mm_columns {
    const int *rows;
    int n, offset;
} mm_columns;

DEV int column_row(const mm_columns &c, int col) { return c.rows ? c.rows[col] : col; }

template <uint32_t T> struct chunk {
};

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

/* acc += d dx c for the four accumulators; ONE: column 0 alone is wanted. */
template <bool ONE> DEV void scale_add(float (&acc)[4], float d0, float d1, float x0, float x1, const int (&c)[4])
{
    acc[0] = __fmaf_rn(__fmul_rn(d0, x0), (float)c[0], acc[0]);
    acc[2] = __fmaf_rn(__fmul_rn(d1, x0), (float)c[2], acc[2]);
    if constexpr (!ONE) {
        acc[1] = __fmaf_rn(__fmul_rn(d0, x1), (float)c[1], acc[1]);
        acc[3] = __fmaf_rn(__fmul_rn(d1, x1), (float)c[3], acc[3]);
    }
}

/* How a row's numbers for a chunk lie in a slot: int8 (small types: 128 and four scales; large: 256, then sums of 16, a
 * scale apart), or halves. Rows are an odd multiple of 32 (64) bytes apart, which spreads them over the banks. */
template <uint32_t T, bool HALVES> struct xlay {
    static const bool small = T == Q_Q8_0 || T == Q_MXFP4;
    static const bool mins = T == Q_Q2_K || T == Q_Q4_K;
    static const int blocks = small ? 4 : 8;                                 /* of 32 */
    static const int per = HALVES ? (T == Q_F16 ? 4 : 8) : blocks;           /* a lane's loads */
    static const int pieces = HALVES ? 4 * per : small ? 9 : mins ? 18 : 16; /* copies of 16 bytes */
    static const int row = HALVES ? 64 * per + 64 : small ? 160 : 288;
    static const int bytes = row + (HALVES || small ? 0 : 4); /* of a row, its scale apart included */
};

/* What a lane needs of the columns for a chunk. */
template <uint32_t T, int CT, bool ONE, bool HALVES> struct xpart {
    using L = xlay<T, HALVES>;
    uint2 b[HALVES ? 1 : CT][L::blocks];
    float d[HALVES ? 1 : CT][ONE ? 1 : 2][L::small ? 4 : 1];
    uint2 sum[L::mins ? CT : 1];
    uint4 h[HALVES ? CT : 1][HALVES ? L::per : 1];
};

/* Types with one activation scale per 32. */
template <uint32_t T, int CT, bool ONE>
DEV void mul_small(const chunk<T> &k, const xpart<T, CT, ONE, false> &x, float (&acc)[CT][4])
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
            scale_add<ONE>(acc[ct], d0, d1, x.d[ct][0][kb], x.d[ct][!ONE][kb], c);
        }
    }
}

/* sum over the sixteen groups of 16: minimum * activation sum; the sums enter as 64 h + l with int8 h, l. */
template <uint32_t T, int CT, bool ONE>
DEV void mul_mins(uint32_t a0, uint32_t a1, float d0, float d1, const xpart<T, CT, ONE, false> &x, float (&acc)[CT][4])
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
        scale_add<ONE>(acc[ct], -d0, -d1, x.d[ct][0][0], x.d[ct][!ONE][0], ch);
    }
}

/* Types with one activation scale per 256. */
template <uint32_t T, int CT, bool ONE>
DEV void mul_large(const chunk<T> &k, const xpart<T, CT, ONE, false> &x, float (&acc)[CT][4])
{
    int sum[CT][4] = {}, odd[CT][4] = {};
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
                mma_s8_k32(kb % 2 ? odd[ct] : sum[ct], a, b.x, b.y); /* two chains */
            } else {
                int c[4] = {0, 0, 0, 0};
                mma_s8_k32(c, a, b.x, b.y);
                sum[ct][0] += s0 * c[0], sum[ct][2] += s1 * c[2];
                if constexpr (!ONE)
                    sum[ct][1] += s0 * c[1], sum[ct][3] += s1 * c[3];
            }
        }
    }
    if constexpr (T == Q_Q2_K)
#pragma unroll
        for (int i = 0; i < 4 * CT; i++)
            sum[i / 4][i % 4] += odd[i / 4][i % 4];
    (void)odd;
    float d0 = half_value((uint16_t)k.d[0]), d1 = half_value((uint16_t)k.d[1]);
    if constexpr (T == Q_IQ2_XXS) {
        d0 = __fmul_rn(d0, 0.125f), d1 = __fmul_rn(d1, 0.125f);
    }
#pragma unroll
    for (int ct = 0; ct < CT; ct++)
        scale_add<ONE>(acc[ct], d0, d1, x.d[ct][0][0], x.d[ct][!ONE][0], sum[ct]);
    if constexpr (T == Q_Q2_K) {
        uint32_t m0 = k.m[0], m1 = k.m[1];
        m0 = (m0 & 15) | (m0 & 0xf0) << 4 | (m0 & 0xf00) << 8 | (m0 & 0xf000) << 12;
        m1 = (m1 & 15) | (m1 & 0xf0) << 4 | (m1 & 0xf00) << 8 | (m1 & 0xf000) << 12;
        mul_mins<T, CT, ONE>(m0, m1, half_value((uint16_t)(k.d[0] >> 16)), half_value((uint16_t)(k.d[1] >> 16)), x,
                             acc);
    }
}

/* Minimums of Q4_K: blocks 2t, 2t+1 have the groups of 16 4t..4t+3. */
template <int CT, bool ONE>
DEV void mins_q4(const chunk<Q_Q4_K> &k, int t, const xpart<Q_Q4_K, CT, ONE, false> &x, float (&acc)[CT][4])
{
    uint32_t w0 = t == 0 ? k.s[0] : t == 1 ? k.s[2] : t == 2 ? k.s[4] : k.s[6];
    uint32_t w1 = t == 0 ? k.s[1] : t == 1 ? k.s[3] : t == 2 ? k.s[5] : k.s[7];
    uint32_t m0 = __byte_perm(w0, 0, 0x3311u), m1 = __byte_perm(w1, 0, 0x3311u);
    mul_mins<Q_Q4_K, CT, ONE>(m0, m1, half_value((uint16_t)(k.d[0] >> 16)), half_value((uint16_t)(k.d[1] >> 16)), x,
                              acc);
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

template <int CT, bool ONE>
DEV void mul_half(const chunk<Q_F16> &k, const xpart<Q_F16, CT, ONE, true> &x, float (&hi)[CT][4], float (&lo)[CT][4])
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
template <int CT, bool ONE>
DEV void mul_bytes_half(const chunk<Q_Q8_0> &k, const xpart<Q_Q8_0, CT, ONE, true> &x, float (&acc)[CT][4])
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

/* Bytes of a warp's ring of a kernel with `extra` bytes of its own: two blocks of eight warps on a multiprocessor of
 * 228 KB, no block over 99 KB. */
constexpr int mm_ring(int extra = 0) { return (101248 - extra) / 8 / 16 * 16; }

/* A run of products of one warp: `segments` times `per` chunks. A source says where segment i has its weights and its
 * columns, and takes its sums:
 *
 *   const uint8_t *weights(int i)   mm_columns columns(int i)   int first(int i): the product's chunk that comes first
 *   void take(int i, float (&acc)[CT][4])
 *
 * COLS: columns that the ring has room for, the most that come if CT = 1 and not MANY; products with more read theirs
 * from global memory. HALVES: float inputs, F16 and Q8_0 alone. The loop is what the whole forward waits for:
 * everything that stays the same is made before it. It must hold no load from global or local memory: such a load comes
 * back behind all copies of the multiprocessor that are on their way, which takes microseconds. */
template <uint32_t T, int CT, int COLS, bool MANY = false, bool HALVES = T == Q_F16, int RING = mm_ring()>
struct stream {
    static const bool one = CT == 1 && COLS == 1, far = CT > 1 && !MANY; /* one column; never in the ring */
    using L = xlay<T, HALVES>;
    using X = xpart<T, CT, one, HALVES>;
    static const int wbytes = tile_chunk_bytes(T), xbytes = far ? 0 : (L::bytes * COLS + 15) / 16 * 16;
    static const int slot_bytes = wbytes + xbytes, fit = RING / slot_bytes, slots = fit < 6 ? fit : 6;
    static const int copies = (COLS * L::pieces + 31) / 32; /* of a lane, for the columns of a chunk */
    static const bool words = !HALVES && !L::small;         /* scales travel apart */

    uint8_t *ring;
    int lane;
    const uint8_t *wp;            /* next weights, the lane's first 16 bytes */
    const char *xp[copies];       /* next pieces of columns */
    const float *dp;              /* next scale */
    int to[copies], step[copies]; /* their places in a slot (negative: none), bytes from chunk to chunk */

    DEV_MEMBER void open(uint8_t *r, int l) { ring = r, lane = l; }

    /* Aims at the first chunk of a segment: weights, columns. */
    DEV_MEMBER void aim_w(const uint8_t *p) { wp = p + 16 * lane; }
    DEV_MEMBER void aim_x(const mm_input &in, const mm_columns &c, int first)
    {
        (void)in, (void)c, (void)first;
        if constexpr (!far)
            aim_pieces(in, c, first);
    }
    DEV_MEMBER void aim_pieces(const mm_input &in, const mm_columns &c, int first)
    {
        bool in_ring = !MANY || c.n <= COLS;
#pragma unroll
        for (int j = 0; j < copies; j++) {
            int i = lane + 32 * j, col = one ? 0 : i / L::pieces, k = one ? i : i % L::pieces;
            bool mine = in_ring && i < L::pieces * (one ? 1 : c.n);
            int row = mine ? column_row(c, col) : 0;
            to[j] = mine ? wbytes + col * L::row + 16 * k : -1;
            if constexpr (HALVES) {
                xp[j] = (const char *)(in.h.v + (row * in.h.ld + c.offset) / 4 + 4 * L::per * first + k);
                step[j] = 64 * L::per;
            } else {
                int from = row * in.q.ld + c.offset + 32 * L::blocks * first;
                bool extra = k >= 2 * L::blocks;
                xp[j] = !extra     ? (const char *)(in.q.q + from + 16 * k)
                        : L::small ? (const char *)(in.q.d + from / 32)
                                   : (const char *)(in.q.sum + from / 16 + 8 * (k - 2 * L::blocks));
                step[j] = !extra ? 32 * L::blocks : L::small ? 16 : 32;
            }
        }
        if constexpr (words)
            dp = in.q.d + (column_row(c, lane < c.n ? lane : 0) * in.q.ld + c.offset) / 256 + first;
    }

    DEV_MEMBER void fetch_w(uint8_t *slot)
    {
#pragma unroll
        for (int i = 0; i < (wbytes / 16 + 31) / 32; i++)
            if (32 * i + 31 < wbytes / 16 || 32 * i + lane < wbytes / 16)
                copy_async(slot + 512 * i + 16 * lane, wp + 512 * i);
        wp += wbytes;
    }

    DEV_MEMBER void fetch_x(uint8_t *slot, const mm_columns &c)
    {
        (void)slot, (void)c;
        if constexpr (!far)
            fetch_pieces(slot, c);
    }
    DEV_MEMBER void fetch_pieces(uint8_t *slot, const mm_columns &c)
    {
#pragma unroll
        for (int j = 0; j < copies; j++) {
            if (to[j] >= 0)
                copy_async(slot + to[j], xp[j]);
            xp[j] += step[j];
        }
        if constexpr (words) {
            if (lane < (one ? 1 : c.n) && (!MANY || c.n <= COLS))
                copy_word(slot + wbytes + COLS * L::row + 4 * lane, dp);
            dp++;
        }
    }

    /* The first chunks of segment 0 and what follows: weights alone (before chain_wait), columns alone (after it), or
     * both. */
    template <class S> DEV_MEMBER void begin(S &src, int segments, int per, bool w, bool x)
    {
        int s = 0, k = 0;
#pragma unroll 1
        for (int i = 0; i < slots && s < segments; i++) {
            mm_columns c = {};
            if (x)
                c = src.columns(s);
            if (k == 0 && w)
                aim_w(src.weights(s));
            if (k == 0 && x)
                aim_x(src.input(), c, src.first(s));
            if (x)
                fetch_x(ring + i * slot_bytes, c);
            if (w)
                fetch_w(ring + i * slot_bytes);
            if (w)
                copy_group();
            k = k + 1 == per ? 0 : k + 1;
            s += k == 0;
        }
        if (!w)
            copy_group();
    }

    DEV_MEMBER void take_near(X &k, const uint8_t *slot, const mm_columns &c)
    {
        int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int ct = 0; ct < CT; ct++) {
            int col = one ? 0 : 8 * ct + g < c.n ? 8 * ct + g : c.n - 1;
            const uint8_t *x = slot + wbytes + col * L::row;
            if constexpr (HALVES) {
#pragma unroll
                for (int i = 0; i < L::per; i++)
                    k.h[ct][i] =
                        reinterpret_cast<const uint4 *>(x)[T == Q_F16 ? 4 * i + t : 8 * (i / 2) + 2 * t + i % 2];
            } else {
#pragma unroll
                for (int i = 0; i < L::blocks; i++)
                    k.b[ct][i] = *reinterpret_cast<const uint2 *>(x + 32 * i + 8 * t);
                if constexpr (L::mins)
                    k.sum[ct] = *reinterpret_cast<const uint2 *>(x + 32 * L::blocks + 8 * t);
#pragma unroll
                for (int e = 0; e < (one ? 1 : 2); e++) {
                    int dc = one ? 0 : 8 * ct + 2 * t + e < c.n ? 8 * ct + 2 * t + e : c.n - 1;
                    if constexpr (L::small) {
                        float4 d = *reinterpret_cast<const float4 *>(slot + wbytes + dc * L::row + 128);
                        k.d[ct][e][0] = d.x, k.d[ct][e][1] = d.y, k.d[ct][e][2] = d.z, k.d[ct][e][3] = d.w;
                    } else {
                        k.d[ct][e][0] = *reinterpret_cast<const float *>(slot + wbytes + COLS * L::row + 4 * dc);
                    }
                }
            }
        }
    }

    /* The columns of chunk `at` from global memory. */
    DEV_MEMBER void take_far(X &k, const mm_input &in, const mm_columns &c, int at)
    {
        int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int ct = 0; ct < CT; ct++) {
            int row = column_row(c, 8 * ct + g < c.n ? 8 * ct + g : c.n - 1);
            int from = row * in.q.ld + c.offset + 32 * L::blocks * at;
            if constexpr (HALVES) {
                const uint4 *h = in.h.v + (row * in.h.ld + c.offset) / 4 + 4 * L::per * at;
#pragma unroll
                for (int i = 0; i < L::per; i++)
                    k.h[ct][i] = h[T == Q_F16 ? 4 * i + t : 8 * (i / 2) + 2 * t + i % 2];
            } else {
#pragma unroll
                for (int i = 0; i < L::blocks; i++)
                    k.b[ct][i] = *reinterpret_cast<const uint2 *>(in.q.q + from + 32 * i + 8 * t);
                if constexpr (L::mins)
                    k.sum[ct] = *reinterpret_cast<const uint2 *>(in.q.sum + from / 16 + 4 * t);
#pragma unroll
                for (int e = 0; e < (one ? 1 : 2); e++) {
                    int col = 8 * ct + 2 * t + e < c.n ? 8 * ct + 2 * t + e : c.n - 1, n = L::small ? 4 : 1;
                    const float *d =
                        in.q.d + (column_row(c, col) * in.q.ld + c.offset) / (L::small ? 32 : 256) + n * at;
#pragma unroll
                    for (int i = 0; i < (L::small ? 4 : 1); i++)
                        k.d[ct][e][i] = d[i];
                }
            }
        }
    }

    DEV_MEMBER void multiply(const chunk<T> &k, const X &x, float (&acc)[CT][4], float (&lo)[T == Q_F16 ? CT : 1][4])
    {
        (void)lo;
        if constexpr (T == Q_F16)
            mul_half<CT, one>(k, x, acc, lo);
        else if constexpr (HALVES)
            mul_bytes_half<CT, one>(k, x, acc);
        else if constexpr (T == Q_Q8_0 || T == Q_MXFP4)
            mul_small<T, CT, one>(k, x, acc);
        else
            mul_large<T, CT, one>(k, x, acc);
        if constexpr (T == Q_Q4_K)
            mins_q4<CT, one>(k, lane % 4, x, acc);
    }

    DEV_MEMBER void join(float (&acc)[CT][4], float (&lo)[T == Q_F16 ? CT : 1][4])
    {
        (void)acc, (void)lo;
        if constexpr (HALVES)
#pragma unroll
            for (int i = 0; i < 4 * CT; i++) {
                float &v = acc[i / 4][i % 4];
                if constexpr (T == Q_F16) {
                    v = __fmaf_rn(lo[i / 4][i % 4], 1.0f / half_low, v);
                    lo[i / 4][i % 4] = 0;
                }
                v = __fmul_rn(v, 1.0f / half_in);
            }
    }

    /* After begin(); `late`: the columns came in a group behind the weights. */
    template <class S> DEV_MEMBER void run(S &src, int segments, int per, bool late)
    {
        float acc[CT][4] = {}, lo[T == Q_F16 ? CT : 1][4] = {};
        if (late || segments * per < slots)
            copy_wait_group<0>();
        if (segments <= 0)
            return;
        int next_s = slots / per, next_k = slots % per, slot = 0;
#pragma unroll 1
        for (int s = 0; s < segments; s++) {
            mm_columns c = src.columns(s);
            int first = far || MANY ? src.first(s) : 0;
#pragma unroll 1
            for (int k = 0; k < per; k++) {
                uint8_t *at = ring + slot * slot_bytes;
                chunk<T> w;
                X x;
                copy_wait_group<slots - 1>();
                __syncwarp();
                load_chunk<T>(w, at, lane);
                if (!far && (!MANY || c.n <= COLS))
                    take_near(x, at, c);
                else if constexpr (far || MANY)
                    take_far(x, src.input(), c, first + k);
                multiply(w, x, acc, lo);
                __syncwarp();
                if (next_s < segments) {
                    mm_columns nc = c;
                    if (next_s != s)
                        nc = src.columns(next_s);
                    if (next_k == 0) {
                        aim_w(src.weights(next_s));
                        aim_x(src.input(), nc, src.first(next_s));
                    }
                    fetch_x(at, nc);
                    fetch_w(at);
                    if (++next_k == per)
                        next_k = 0, next_s++;
                }
                copy_group();
                slot = slot + 1 == slots ? 0 : slot + 1;
            }
            join(acc, lo);
            src.take(s, acc);
#pragma unroll
            for (int ct = 0; ct < CT; ct++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[ct][i] = 0;
        }
        __syncwarp();
    }
};

/* Where accumulator i of a lane stands in its tile. */
DEV int acc_row(int lane, int i) { return lane / 4 + 8 * (i / 2); }
DEV int acc_col(int lane, int i) { return 2 * (lane % 4) + i % 2; }

#endif
