#include "base/noise.h"

#include <math.h>

/* A 64-bit finaliser (multiply, xor-shift), applied twice with the key mixed in between. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

float noise_uniform(uint64_t seed, uint32_t pos, uint32_t token)
{
    uint64_t h = mix(seed + 0x9e3779b97f4a7c15u * ((uint64_t)pos + 1));
    h = mix(h ^ (0xd1342543de82ef95u * ((uint64_t)token + 1))) | 1;
    float v = (float)h * 0x1p-64f;
    return v < 1.0f ? v : 1.0f - 0x1p-24f;
}

float noise_gumbel(uint64_t seed, uint32_t pos, uint32_t token)
{
    return -logf(-log1pf(-noise_uniform(seed, pos, token)));
}
