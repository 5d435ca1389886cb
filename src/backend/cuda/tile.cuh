/* tile.cuh: weights as tensor-core fragments. The types of the published files lie in tiles of 16 outputs, a tile in
 * chunks of its inputs, and a chunk so that a lane's 16-byte loads are whole fragments (mma.cuh) and neighbouring lanes
 * read neighbouring bytes. Other types and odd shapes stay rows of units (unit.cuh).
 *
 * Lane 4g+t holds rows g and g+8; of each block of 32 inputs the eight at 8t (of half floats: of each 16 the four at
 * 4t). "Four words" are x = row g, first half of these; y = row g+8, first half; z, w the second halves.
 *
 *   type     inputs  chunk
 *   Q8_0     128     4 blocks x [lane] four words of int8 | [lane] halves d of rows g, g+8 in block t
 *   F16      64      4 x [lane] four words of two halves, 16 inputs each
 *   MXFP4    128     2 x [lane] (block 2h: word row g, word row g+8, block 2h+1: the same), nibbles k first half in the
 *                    low 16 bits, second half in the high | [lane] exponent bytes of rows g, g+8 in block t
 *   Q4_K     256     4 x [lane] (block 2h: row g, row g+8, block 2h+1: the same), low nibbles first half, high nibbles
 *                    second | [lane] rows g, g+8: (scale, min) bytes of blocks 2t, 2t+1 | [16] halves (d, dmin)
 *   Q2_K     256     2 x [lane] four blocks' words: bits 0-15 row g, 16-31 row g+8; pairs at 4i first half, at 4i+2
 * second | [16][2] scale nibbles of the eight blocks, by half of the block | [16][4] min nibbles 4t..4t+3 | [16] halves
 * (d, dmin) IQ2_XXS  256     3 x [lane] 12 words for 8 blocks: two blocks are six 16-bit selectors of 3-bit codes
 * (level 0..2 for 8, 25, 43; 4 = negative), the fourth selector of a block in the spare bits of its three | [16]
 * nibbles of the eight blocks' scales | [16] half d
 *
 * IQ2_XXS takes 1.55 times the bytes of the file so that decoding needs no table; values are the same. */
#ifndef DS4_BACKEND_CUDA_TILE_CUH
#define DS4_BACKEND_CUDA_TILE_CUH

#include "backend/cuda/unit.cuh"

enum { TILE_ROWS = 16 };

/* Inputs of a chunk; 0: the type has no tiles. */
BOTH constexpr int tile_inputs(uint32_t type)
{
    return type == Q_Q8_0 || type == Q_MXFP4                       ? 128
           : type == Q_F16                                         ? 64
           : type == Q_Q4_K || type == Q_Q2_K || type == Q_IQ2_XXS ? 256
                                                                   : 0;
}

BOTH constexpr int tile_chunk_bytes(uint32_t type)
{
    return type == Q_Q8_0      ? 2048 + 128
           : type == Q_F16     ? 2048
           : type == Q_MXFP4   ? 1024 + 64
           : type == Q_Q4_K    ? 2048 + 256 + 64
           : type == Q_Q2_K    ? 1024 + 128 + 128 + 64
           : type == Q_IQ2_XXS ? 1536 + 64 + 32
                               : 0;
}

/* Whether a matrix of this type and shape lies in tiles. */
BOTH bool tile_fits(uint32_t type, int64_t ne0, int64_t ne1)
{
    int k = tile_inputs(type);
    return k && ne0 % k == 0 && ne1 % TILE_ROWS == 0;
}

BOTH int64_t tile_bytes(uint32_t type, int64_t ne0) { return ne0 / tile_inputs(type) * tile_chunk_bytes(type); }

DEV uint32_t tile_word(const uint8_t *p) { return *reinterpret_cast<const uint32_t *>(p); }

/* --- reading single rows: what lookups, float32 activations and tests need --- */

/* Eight numbers k = 8t..8t+7 of block kb of tile row r as two words of bytes. */
DEV void tile_eight(uint32_t type, const uint8_t *chunk, int r, int kb, int t, uint32_t *lo, uint32_t *hi)
{
    int g = r % 8, up = r / 8, lane = 4 * g + t;
    if (type == Q_Q8_0) {
        const uint8_t *p = chunk + 512 * kb + 16 * lane + 4 * up;
        *lo = tile_word(p);
        *hi = tile_word(p + 8);
    } else if (type == Q_MXFP4 || type == Q_Q4_K) {
        uint32_t w = tile_word(chunk + 512 * (kb / 2) + 16 * lane + 8 * (kb % 2) + 4 * up);
        if (type == Q_Q4_K) {
            *lo = w & 0x0f0f0f0fu;
            *hi = w >> 4 & 0x0f0f0f0fu;
            return;
        }
        uint32_t c[2];
        for (int h = 0; h < 2; h++) {
            uint32_t n = w >> 16 * h;
            c[h] = (n & 15) | (n >> 4 & 15) << 8 | (n >> 8 & 15) << 16 | (n >> 12 & 15) << 24;
        }
        *lo = mxfp4_bytes(c[0]);
        *hi = mxfp4_bytes(c[1]);
    } else if (type == Q_Q2_K) {
        uint32_t w = tile_word(chunk + 512 * (kb / 4) + 16 * lane + 4 * (kb % 4)) >> 16 * up;
        *lo = *hi = 0;
        for (int i = 0; i < 4; i++) {
            *lo |= (w >> 4 * i & 3) << 8 * i;
            *hi |= (w >> (4 * i + 2) & 3) << 8 * i;
        }
    } else { /* IQ2_XXS */
        uint32_t s[3], sel[2];
        for (int i = 0; i < 3; i++) {
            int at = 3 * kb + i; /* 16-bit word of the lane's 24 */
            s[i] = tile_word(chunk + 512 * (at / 8) + 16 * lane + 4 * (at % 8 / 2)) >> 16 * (at % 2) & 0xffffu;
        }
        uint32_t fourth = (s[0] & 0x8888u) >> 3 | (s[1] & 0x8888u) >> 2 | (s[2] & 0x8888u) >> 1;
        sel[0] = (up ? s[1] : s[0]) & 0x7777u;
        sel[1] = (up ? fourth : s[2]) & 0x7777u;
        *lo = __byte_perm(0x002b1908u, 0x00d5e7f8u, sel[0]);
        *hi = __byte_perm(0x002b1908u, 0x00d5e7f8u, sel[1]);
    }
}

/* Unit u (32 inputs) of row r of a tile whose chunks begin at p. */
DEV void tile_unit(uint32_t type, const uint8_t *p, int r, int u, unit &k)
{
    int per = tile_inputs(type) / 32, kb = u % per, g = r % 8, up = r / 8;
    const uint8_t *c = p + (int64_t)(u / per) * tile_chunk_bytes(type);
    for (int t = 0; t < 4; t++)
        tile_eight(type, c, r, kb, t, &k.q[2 * t], &k.q[2 * t + 1]);
    if (type == Q_Q8_0) {
        set_scales(k, half_value(load16(c + 2048 + 4 * (4 * g + kb) + 2 * up)), 0, 1, 1, 0, 0);
    } else if (type == Q_MXFP4) {
        set_scales(k, __fmul_rn(e8m0_value(c[1024 + 2 * (4 * g + kb) + up]), 0.5f), 0, 1, 1, 0, 0);
    } else if (type == Q_Q4_K) {
        const uint8_t *s = c + 2048 + 8 * (4 * g + kb / 2) + 4 * up + 2 * (kb % 2);
        uint32_t d = tile_word(c + 2304 + 4 * r);
        set_scales(k, half_value((uint16_t)d), half_value((uint16_t)(d >> 16)), s[0], s[0], s[1], s[1]);
    } else if (type == Q_Q2_K) {
        int s[2], m[2];
        for (int h = 0; h < 2; h++) {
            int j = 2 * kb + h;
            s[h] = (int)(tile_word(c + 1024 + 4 * (2 * r + h)) >> 4 * kb & 15);
            m[h] = load16(c + 1152 + 8 * r + 2 * (j / 4)) >> 4 * (j % 4) & 15;
        }
        uint32_t d = tile_word(c + 1280 + 4 * r);
        set_scales(k, half_value((uint16_t)d), half_value((uint16_t)(d >> 16)), s[0], s[1], m[0], m[1]);
    } else {
        int s = (int)(2 * (tile_word(c + 1536 + 4 * r) >> 4 * kb & 15) + 1);
        set_scales(k, __fmul_rn(half_value(load16(c + 1600 + 2 * r)), 0.125f), 0, s, s, 0, 0);
    }
}

/* Input k of row r of an F16 tile. */
DEV uint16_t tile_half(const uint8_t *p, int r, int k)
{
    int lane = 4 * (r % 8) + k % 16 / 4, word = r / 8 + 2 * (k % 4 / 2);
    return load16(p + (int64_t)(k / 64) * 2048 + 512 * (k % 64 / 16) + 16 * lane + 4 * word + 2 * (k % 2));
}

#endif
