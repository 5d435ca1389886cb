#include "base/num.h"

#include <math.h>

float num_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3ffu;
    if (exp == 31)
        return num_float(sign | 0x7f800000u | (man << 13));
    if (exp)
        return num_float(sign | ((exp + 112) << 23) | (man << 13));
    float sub = (float)man * 0x1p-24f;
    return sign ? -sub : sub;
}

uint16_t num_to_f16(float f)
{
    uint32_t u = num_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x47800000u) /* 65536 and above */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: subnormal; the addition rounds to nearest even */
        float r = num_float(a) + 0.5f;
        return (uint16_t)(sign | (num_bits(r) - 0x3f000000u));
    }
    uint32_t odd = (a >> 13) & 1u;
    a += 0x0fffu + odd;
    return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}

uint16_t num_to_bf16(float f)
{
    uint32_t u = num_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float num_e8m0(uint8_t s)
{
    if (s == 255)
        return num_float(0x7fc00000u);
    return s ? num_float((uint32_t)s << 23) : num_float(0x00400000u);
}

float num_e4m3(uint8_t c)
{
    int exp = (c >> 3) & 15, man = c & 7;
    if ((c & 0x7f) == 0x7f)
        return num_float(0x7fc00000u);
    float v = exp ? num_float((uint32_t)(exp + 120) << 23 | (uint32_t)man << 20) : (float)man * 0x1p-9f;
    return c & 0x80 ? -v : v;
}

uint8_t num_to_e4m3(float f)
{
    uint32_t u = num_bits(f), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint8_t)(sign | 0x7f);
    if (a >= 0x43e00000u) /* 448 and above saturate */
        return (uint8_t)(sign | 0x7e);
    if (a < 0x3c800000u) /* below 2^-6: multiples of 2^-9, ties to even */
        return (uint8_t)(sign | (uint32_t)lrintf(num_float(a) * 512.0f));
    a += 0x7ffffu + ((a >> 20) & 1u);
    uint32_t code = (a - 0x3c000000u) >> 20;
    return (uint8_t)(sign | (code > 0x7e ? 0x7e : code));
}

static const float e2m1_values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

float num_e2m1(uint8_t c) { return c & 8 ? -e2m1_values[c & 7] : e2m1_values[c & 7]; }

uint8_t num_to_e2m1(float f)
{
    float a = fabsf(f);
    uint8_t c = 0;
    /* midpoints between neighbours; a tie goes to the even code */
    c += a > 0.25f;
    c += a >= 0.75f;
    c += a > 1.25f;
    c += a >= 1.75f;
    c += a > 2.5f;
    c += a >= 3.5f;
    c += a > 5.0f;
    return signbit(f) ? c | 8 : c;
}

int num_ceil_log2(float x)
{
    uint32_t u = num_bits(x);
    int exp = (int)((u >> 23) & 255u) - 127;
    return exp + ((u & 0x7fffffu) != 0);
}

static float pow2(int e)
{
    if (e < -126)
        return ldexpf(1.0f, e);
    return num_float((uint32_t)(e + 127) << 23);
}

static float block_amax(const float *v, int n, float floor_value)
{
    float m = floor_value;
    for (int i = 0; i < n; i++)
        if (fabsf(v[i]) > m)
            m = fabsf(v[i]);
    return m;
}

void num_sim_fp8(float *v, int n)
{
    for (int b = 0; b < n; b += 64) {
        float s = pow2(num_ceil_log2(block_amax(v + b, 64, 1e-4f) * (1.0f / 448.0f)));
        for (int i = b; i < b + 64; i++)
            v[i] = num_e4m3(num_to_e4m3(v[i] / s)) * s;
    }
}

void num_sim_fp4(float *v, int n)
{
    for (int b = 0; b < n; b += 32) {
        float s = pow2(num_ceil_log2(block_amax(v + b, 32, 6.0f * 0x1p-126f) * (1.0f / 6.0f)));
        for (int i = b; i < b + 32; i++)
            v[i] = num_e2m1(num_to_e2m1(v[i] / s)) * s;
    }
}

void num_hadamard(float *v, int n)
{
    for (int h = 1; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int j = i; j < i + h; j++) {
                float a = v[j], b = v[j + h];
                v[j] = a + b;
                v[j + h] = a - b;
            }
    float s = 1.0f / sqrtf((float)n);
    for (int i = 0; i < n; i++)
        v[i] *= s;
}
