#include "text/utf8.h"

/* Length announced by a lead byte and the legal range of the second byte; 0 = not a lead byte. */
static int lead(uint8_t c, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0xC2 || c > 0xF4)
        return 0;
    if (c < 0xE0)
        return 2;
    if (c < 0xF0) {
        if (c == 0xE0)
            *lo = 0xA0;
        if (c == 0xED)
            *hi = 0x9F;
        return 3;
    }
    if (c == 0xF0)
        *lo = 0x90;
    if (c == 0xF4)
        *hi = 0x8F;
    return 4;
}

int utf8_step(const uint8_t *p, size_t n, uint32_t *cp)
{
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    uint8_t lo, hi;
    int len = lead(p[0], &lo, &hi);
    if (!len)
        return -1;
    uint32_t v = p[0] & (0x7F >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n)
            return 0;
        if (p[i] < lo || p[i] > hi)
            return -i;
        lo = 0x80;
        hi = 0xBF;
        v = v << 6 | (p[i] & 0x3F);
    }
    *cp = v;
    return len;
}

int utf8_put(uint32_t cp, uint8_t out[4])
{
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    int len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--, cp >>= 6)
        out[i] = (uint8_t)(0x80 | (cp & 0x3F));
    out[0] = (uint8_t)((0xF00 >> len) | cp);
    return len;
}

size_t utf8_check(const void *text, size_t n)
{
    const uint8_t *p = text;
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        int k = utf8_step(p + i, n - i, &cp);
        if (k <= 0)
            return i;
        i += (size_t)k;
    }
    return n;
}
