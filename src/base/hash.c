#include "base/hash.h"

#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

static inline uint64_t load64(const uint8_t *p)
{
    uint64_t w;
    memcpy(&w, p, 8);
    return w;
}

/* Both multipliers are odd and the rotation is a bijection: for a given word the step permutes h, and for a given h it
 * is injective in the word. */
static inline uint64_t step(uint64_t h, uint64_t w)
{
    h ^= w * 0x9e3779b97f4a7c15u;
    h = h << 29 | h >> 35;
    return h * 0xd6e8feb86659fd93u;
}

uint64_t hash64(const void *data, size_t n, uint64_t seed)
{
    const uint8_t *p = data;
    uint64_t h = step(seed ^ 0x5851f42d4c957f2du, n);
    size_t left = n;
    for (; left >= 8; p += 8, left -= 8)
        h = step(h, load64(p));
    if (left) {
        uint64_t w = 0;
        memcpy(&w, p, left);
        h = step(h, w);
    }
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

/* Plain CRC: a table of one byte's worth of steps, widened to eight tables on the stack when the input is long enough
 * to pay for building them (no mutable static data in this project). */
#define CRC_POLY 0x82f63b78u
enum { CRC_WIDE_FROM = 8192 };

static uint32_t crc_bits(uint32_t c)
{
    for (int k = 0; k < 8; k++)
        c = c >> 1 ^ (c & 1u ? CRC_POLY : 0u);
    return c;
}

static uint32_t crc_small(uint32_t c, const uint8_t *p, size_t n)
{
    uint32_t nib[16];
    for (uint32_t i = 0; i < 16; i++) {
        nib[i] = i;
        for (int k = 0; k < 4; k++)
            nib[i] = nib[i] >> 1 ^ (nib[i] & 1u ? CRC_POLY : 0u);
    }
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        c = c >> 4 ^ nib[c & 15u];
        c = c >> 4 ^ nib[c & 15u];
    }
    return c;
}

static uint32_t crc_wide(uint32_t c, const uint8_t *p, size_t n)
{
    uint32_t t[8][256];
    for (uint32_t i = 0; i < 256; i++)
        t[0][i] = crc_bits(i);
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++)
            t[k][i] = t[k - 1][i] >> 8 ^ t[0][t[k - 1][i] & 255u];
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w = load64(p) ^ c;
        c = 0;
        for (int k = 0; k < 8; k++)
            c ^= t[7 - k][w >> (8 * k) & 255u];
    }
    return crc_small(c, p, n);
}

#if defined(__x86_64__)
__attribute__((target("sse4.2")))
static uint32_t crc_sse42(uint32_t c, const uint8_t *p, size_t n)
{
    uint64_t w = c;
    for (; n >= 8; p += 8, n -= 8)
        w = _mm_crc32_u64(w, load64(p));
    for (; n; p++, n--)
        w = _mm_crc32_u8((uint32_t)w, *p);
    return (uint32_t)w;
}
#endif

uint32_t hash_crc32c_plain(uint32_t crc, const void *data, size_t n)
{
    const uint8_t *p = data;
    return ~(n >= CRC_WIDE_FROM ? crc_wide(~crc, p, n) : crc_small(~crc, p, n));
}

uint32_t hash_crc32c(uint32_t crc, const void *data, size_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc_sse42(~crc, data, n);
#endif
    return hash_crc32c_plain(crc, data, n);
}
