/* sha256.h: SHA-256 of bytes in memory (FIPS 180-4), for recognising known texts and checking files. */
#ifndef DS4_BASE_SHA256_H
#define DS4_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct sha256 {
    uint32_t h[8];
    uint64_t bytes;    /* fed so far */
    uint8_t block[64]; /* the unfinished block, bytes % 64 of it used */
} sha256;

/* Incremental use: init, any number of updates, final once. */
void sha256_init(sha256 *s);
void sha256_update(sha256 *s, const void *data, size_t n);
void sha256_final(sha256 *s, uint8_t digest[32]);

/* Lower-case hexadecimal digest of n bytes, terminated. */
void sha256_hex(const void *data, size_t n, char hex[65]);

#endif
