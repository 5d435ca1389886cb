/* hash.h: non-cryptographic checksums. Both give the same value on every machine and for every alignment. */
#ifndef DS4_BASE_HASH_H
#define DS4_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* A 64-bit hash of n bytes for state comparison and hash tables. Several buffers are hashed as one by passing the
 * result of one call as the seed of the next; the length takes part, so ("ab","c") and ("a","bc") differ. For a fixed
 * seed, two buffers of equal length that differ in one 8-byte word never collide. Not safe against somebody who wants
 * collisions. */
uint64_t hash64(const void *data, size_t n, uint64_t seed);

/* CRC-32C (Castagnoli, reflected, as in iSCSI) of n bytes. Start with crc = 0; pass a result on to continue over the
 * next piece: crc of a whole equals the chained crc of its pieces. */
uint32_t hash_crc32c(uint32_t crc, const void *data, size_t n);
/* The same without special instructions (the definition; tests compare the two). */
uint32_t hash_crc32c_plain(uint32_t crc, const void *data, size_t n);

#endif
