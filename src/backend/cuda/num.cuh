/* num.cuh: small number formats, ordered keys and reductions in kernels. The formats follow base/num.c bit for bit. */
#ifndef DS4_BACKEND_CUDA_NUM_CUH
#define DS4_BACKEND_CUDA_NUM_CUH

#include <stdint.h>

#include <cuda_runtime.h>

#define DEV static __device__ __forceinline__
#define DEV_MEMBER __device__ __forceinline__

/* --- formats --- */

DEV float half_value(uint16_t h)
{
#ifdef __CUDA_ARCH__
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
#else
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3ffu;
    if (exp == 31)
        return __uint_as_float(sign | 0x7f800000u | man << 13);
    if (exp)
        return __uint_as_float(sign | (exp + 112) << 23 | man << 13);
    float sub = (float)man * 5.9604644775390625e-8f;
    return sign ? -sub : sub;
#endif
}

DEV float bf16_value(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }

DEV float e8m0_value(uint32_t s)
{
    if (s == 255)
        return __uint_as_float(0x7fc00000u);
    return s ? __uint_as_float(s << 23) : __uint_as_float(0x00400000u);
}

/* Power of two as float bits; e stays in the normal range in all uses (amax has a floor). */
DEV float pow2_value(int e) { return __uint_as_float((uint32_t)(e + 127) << 23); }

DEV int ceil_log2(float x)
{
    uint32_t u = __float_as_uint(x);
    return (int)((u >> 23) & 255u) - 127 + ((u & 0x7fffffu) != 0);
}

/* Rounds to e4m3fn (nearest even, saturating at 448) and back. */
DEV float round_e4m3(float f)
{
    uint32_t u = __float_as_uint(f), sign = u & 0x80000000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return __uint_as_float(0x7fc00000u);
    if (a >= 0x43e00000u)
        return __uint_as_float(sign | 0x43e00000u);
    if (a < 0x3c800000u) { /* below 2^-6: multiples of 2^-9 */
        float v = (float)__float2int_rn(__fmul_rn(__uint_as_float(a), 512.0f)) * 0.001953125f;
        return __uint_as_float(sign | __float_as_uint(v));
    }
    a += 0x7ffffu + ((a >> 20) & 1u);
    a &= ~0xfffffu;
    return __uint_as_float(sign | (a > 0x43e00000u ? 0x43e00000u : a));
}

/* Rounds to e2m1 (nearest, ties to the even code, saturating at 6) and back. */
DEV float round_e2m1(float f)
{
    float a = fabsf(f);
    int c = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    float v = c < 4 ? 0.5f * (float)c : c < 6 ? (float)c - 2.0f : c == 6 ? 4.0f : 6.0f;
    return copysignf(v, f);
}

/* Scale of a group of int8 numbers from the bits of the largest magnitude; *recip: its reciprocal, 0 if every number
 * is 0. Infinity and NaN give the scale NaN, so that the fault shows in the result. */
DEV float group_scale(uint32_t top, float *recip)
{
    *recip = 0;
    if (top >= 0x7f800000u)
        return __uint_as_float(0x7fc00000u);
    float d = __fdiv_rn(__uint_as_float(top), 127.0f), r = __fdiv_rn(1.0f, d);
    if (r > 3.402823466e38f)
        return 0;
    *recip = r;
    return d;
}

/* Order of floats as order of unsigned integers; NaN is last, -0 equals +0. */
DEV uint32_t order_key(float f)
{
    if (f != f)
        return 0;
    uint32_t u = __float_as_uint(__fadd_rn(f, 0.0f));
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* A value and its index as one number whose maximum is the largest value at the lowest index. */
DEV unsigned long long ranked(uint32_t key, uint32_t index)
{
    return (unsigned long long)key << 32 | (0xffffffffu - index);
}
DEV uint32_t ranked_index(unsigned long long r) { return 0xffffffffu - (uint32_t)r; }
DEV uint32_t ranked_key(unsigned long long r) { return (uint32_t)(r >> 32); }

/* --- rotation --- */

/* cos and sin of position * frequency: the angle in float32, as the model has it. */
DEV float2 angle_of(int32_t pos, float freq)
{
    double angle = (double)__fmul_rn((float)pos, freq), s, c;
    sincos(angle, &s, &c);
    return make_float2((float)c, (float)s);
}

/* angle_of in float32: the angle is reduced by quarter turns (exactly, for positions below 2^23), then two polynomials
 * give the sine and cosine to about 1e-7. */
DEV float2 turn_of(int pos, float freq)
{
    float x = __fmul_rn((float)pos, freq), k = rintf(__fmul_rn(x, 0.636619772f));
    float r = __fmaf_rn(-k, -4.37113883e-8f, __fmaf_rn(-k, 1.57079637f, x)), z = __fmul_rn(r, r);
    float s = __fmaf_rn(__fmaf_rn(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
    s = __fmaf_rn(s, __fmul_rn(z, r), r);
    float c = __fmaf_rn(__fmaf_rn(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f);
    c = __fmaf_rn(__fmul_rn(c, z), z, __fmaf_rn(-0.5f, z, 1.0f));
    int quarter = __float2int_rn(k) & 3;
    float2 cs = quarter & 1 ? make_float2(s, c) : make_float2(c, s);
    return make_float2(quarter == 1 || quarter == 2 ? -cs.x : cs.x, quarter >= 2 ? -cs.y : cs.y);
}

DEV float2 rotated(float a, float b, float cosine, float sine)
{
    return make_float2(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)),
                       __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine)));
}

/* --- reductions: every lane or thread gets the result; the order is a fixed tree --- */

#define FULL_WARP 0xffffffffu

DEV float warp_sum(float v)
{
    for (int step = 16; step; step >>= 1)
        v = __fadd_rn(v, __shfl_xor_sync(FULL_WARP, v, step));
    return v;
}

DEV double warp_sum(double v)
{
    for (int step = 16; step; step >>= 1)
        v = __dadd_rn(v, __shfl_xor_sync(FULL_WARP, v, step));
    return v;
}

DEV int warp_sum(int v)
{
    for (int step = 16; step; step >>= 1)
        v += __shfl_xor_sync(FULL_WARP, v, step);
    return v;
}

DEV float warp_max(float v) /* NaN loses */
{
    for (int step = 16; step; step >>= 1)
        v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, step));
    return v;
}

DEV uint32_t warp_max(uint32_t v)
{
    for (int step = 16; step; step >>= 1) {
        uint32_t o = __shfl_xor_sync(FULL_WARP, v, step);
        v = o > v ? o : v;
    }
    return v;
}

DEV unsigned long long warp_max(unsigned long long v)
{
    for (int step = 16; step; step >>= 1) {
        unsigned long long o = __shfl_xor_sync(FULL_WARP, v, step);
        v = o > v ? o : v;
    }
    return v;
}

/* Over a block of whole warps, at most 32 of them. `room`: 32 numbers of shared memory, free again when all return. */
DEV double block_sum(double v, double *room)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    v = warp_sum(v);
    if (lane == 0)
        room[warp] = v;
    __syncthreads();
    double sum = 0;
    for (int i = 0; i < warps; i++)
        sum = __dadd_rn(sum, room[i]);
    __syncthreads();
    return sum;
}

DEV unsigned long long block_max(unsigned long long v, unsigned long long *room)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    v = warp_max(v);
    if (lane == 0)
        room[warp] = v;
    __syncthreads();
    unsigned long long top = 0;
    for (int i = 0; i < warps; i++)
        top = room[i] > top ? room[i] : top;
    __syncthreads();
    return top;
}

/* Square of a float, exact in float64. */
DEV double square(float v) { return __dmul_rn((double)v, (double)v); }

/* 1 / sqrt(mean + eps) as float32, from the float64 sum of n squares. */
DEV double inverse_rms(double sum, int64_t n, float eps) { return 1.0 / sqrt(sum / (double)n + (double)eps); }

#endif
