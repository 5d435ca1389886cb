/* draft.cuh: the worth of a token as a number: the largest wins, ties go to the lower token. */
#ifndef DS4_BACKEND_CUDA_DRAFT_CUH
#define DS4_BACKEND_CUDA_DRAFT_CUH

#include "backend/cuda/num.cuh"

/* The position-keyed noise of base/noise.h. */
DEV uint64_t mix_bits(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

DEV float gumbel(uint64_t seed, uint32_t pos, uint32_t token)
{
    uint64_t h = mix_bits(seed + 0x9e3779b97f4a7c15ull * ((uint64_t)pos + 1));
    h = mix_bits(h ^ 0xd1342543de82ef95ull * ((uint64_t)token + 1)) | 1;
    float v = __fmul_rn(__ull2float_rn(h), 5.42101086242752217e-20f); /* 2^-64 */
    v = v < 1.0f ? v : 1.0f - 5.9604644775390625e-8f;
    return -logf(-log1pf(-v));
}

/* 0: never chosen (NaN, minus infinity). */
DEV unsigned long long candidate(float logit, float temp, uint64_t seed, uint32_t pos, int token)
{
    float v = temp > 0 ? __fadd_rn(__fdiv_rn(logit, temp), gumbel(seed, pos, (uint32_t)token)) : logit;
    return v > -INFINITY ? ranked(order_key(v), (uint32_t)token) : 0;
}

/* The token of the best candidate; 0 if there is none. */
DEV int32_t chosen(unsigned long long best) { return best ? (int32_t)ranked_index(best) : 0; }

#endif
