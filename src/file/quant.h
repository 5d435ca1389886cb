/* quant.h: tensor types of GGUF files, their block layouts, and exact decoding to float32.
 *
 * Layouts and decoding rules are facts of the ggml/GGUF formats. Decoding is the definition of a weight's value for
 * every backend: kernels may decode differently but must yield the same numbers. */
#ifndef DS4_FILE_QUANT_H
#define DS4_FILE_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum quant_type {
    Q_F32 = 0, Q_F16 = 1, Q_Q4_0 = 2, Q_Q8_0 = 8, Q_Q2_K = 10, Q_Q3_K = 11, Q_Q4_K = 12, Q_Q5_K = 13, Q_Q6_K = 14,
    Q_IQ2_XXS = 16, Q_I32 = 26, Q_I64 = 27, Q_BF16 = 30, Q_MXFP4 = 39,
};

typedef struct quant_info {
    uint32_t type;
    const char *name;   /* "IQ2_XXS" */
    uint32_t block;     /* elements per block */
    uint32_t bytes;     /* bytes per block */
    bool is_float_like; /* decodable to float32 by quant_decode (false for I32/I64) */
} quant_info;

const quant_info *quant_type_info(uint32_t type); /* NULL if unknown to us */
/* Never NULL; also names ids of ggml that we do not decode, "an unknown type" for the rest (print the id beside it). */
const char *quant_type_name(uint32_t type);
/* 0 if the type is unknown, n is not a multiple of its block, or the product overflows. */
size_t quant_row_bytes(uint32_t type, uint64_t n);

/* Block structs; all fields unaligned-safe, sizes checked by static asserts in quant.c. */
typedef struct { uint16_t d; int8_t q[32]; } quant_q8_0;
typedef struct { uint16_t d; uint8_t q[16]; } quant_q4_0;
typedef struct { uint8_t scales[16]; uint8_t q[64]; uint16_t d, dmin; } quant_q2_k;
typedef struct { uint8_t hmask[32]; uint8_t q[64]; uint8_t scales[12]; uint16_t d; } quant_q3_k;
typedef struct { uint16_t d, dmin; uint8_t scales[12]; uint8_t q[128]; } quant_q4_k;
typedef struct { uint16_t d, dmin; uint8_t scales[12]; uint8_t qh[32]; uint8_t q[128]; } quant_q5_k;
typedef struct { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; uint16_t d; } quant_q6_k;
typedef struct { uint16_t d; uint16_t q[32]; } quant_iq2_xxs;
typedef struct { uint8_t e; uint8_t q[16]; } quant_mxfp4;

/* Decodes n elements (a multiple of the type's block) from src to dst. src need not be aligned.
 * A type that is not decodable (is_float_like false, or unknown) fills dst with NaN. MXFP4 with exponent 255 is NaN. */
void quant_decode(uint32_t type, const void *src, float *dst, uint64_t n);

/* Integer view of one 32-element sub-block or 256-element block, for int8 dot products:
 * value[i] = scale * q[i] (+ min where the format has one). See quant.c for which type yields what. */
extern const uint64_t quant_iq2xxs_grid[256]; /* ggml constant, MIT; 8 bytes of {8,25,43} per row, little endian */
extern const uint8_t quant_iq2xxs_signs[128]; /* sign mask: index with bit 7 set so that the popcount is even */
extern const int8_t quant_mxfp4_codes[16];    /* doubled values: 0 1 2 3 4 6 8 12 and negatives */

/* Q4_K / Q5_K: unpacks the 12 packed bytes into eight 6-bit scales and minimums. */
void quant_unpack_k4_scales(const uint8_t packed[12], uint8_t sc[8], uint8_t mn[8]);
/* Q3_K: unpacks the 12 packed bytes into sixteen scales, already minus 32. */
void quant_unpack_q3_scales(const uint8_t packed[12], int8_t sc[16]);

#endif
