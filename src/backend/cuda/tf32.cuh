/* tf32.cuh: products of float32 numbers on tensor cores. A number is split into two tf32 numbers, hi rounded and lo the
 * rest; of the four products all but lo * lo are kept, which leaves about 2^-22 of each term. */
#ifndef DS4_BACKEND_CUDA_TF32_CUH
#define DS4_BACKEND_CUDA_TF32_CUH

#include "backend/cuda/mma.cuh"

/* The bits of a number that tf32 does not have, and the two parts of one that has some. */
enum : uint32_t { TF32_REST = 0x1fffu };
DEV uint32_t tf32_hi(float v) { return (__float_as_uint(v) + 0x1000u) & ~TF32_REST; }
DEV uint32_t tf32_lo(float v, uint32_t hi) { return __float_as_uint(__fsub_rn(v, __uint_as_float(hi))); }

typedef struct operand { /* 16 x 8 of a product's left side */
    uint32_t hi[4], lo[4];
} operand;

DEV void split(operand &a, const float (&v)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a.hi[i] = tf32_hi(v[i]);
        a.lo[i] = tf32_lo(v[i], a.hi[i]);
    }
}

/* main += a.hi * b, small += a.lo * b for b = (x, y) without lo parts. */
DEV void multiply(float (&main)[4], float (&small)[4], const operand &a, float x, float y)
{
    mma_tf32_k8(small, a.lo, __float_as_uint(x), __float_as_uint(y));
    mma_tf32_k8(main, a.hi, __float_as_uint(x), __float_as_uint(y));
}

/* The same for any b; small also gets a.hi * b.lo. */
DEV void multiply_split(float (&main)[4], float (&small)[4], const operand &a, float x, float y)
{
    uint32_t hx = tf32_hi(x), hy = tf32_hi(y);
    mma_tf32_k8(small, a.lo, hx, hy);
    mma_tf32_k8(small, a.hi, tf32_lo(x, hx), tf32_lo(y, hy));
    mma_tf32_k8(main, a.hi, hx, hy);
}

#endif
