/* Q4_K and Q2_K: packing of what enc_affine_fit found. */
#include <string.h>

#include "convert/enc.h"
#include "file/quant.h"

void enc_q4_k_block(const float x[256], const float w[256], uint8_t dst[144])
{
    enc_affine a = {.groups = 8, .len = 32, .qmax = 15, .smax = 63};
    quant_q4_k blk;
    enc_affine_fit(&a, x, w);
    blk.d = a.d;
    blk.dmin = a.dmin;
    for (int j = 0; j < 4; j++) {
        blk.scales[j] = (uint8_t)(a.sc[j] | (a.sc[j + 4] >> 4) << 6);
        blk.scales[j + 4] = (uint8_t)(a.mn[j] | (a.mn[j + 4] >> 4) << 6);
        blk.scales[j + 8] = (uint8_t)((a.sc[j + 4] & 15) | (a.mn[j + 4] & 15) << 4);
    }
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 32; i++)
            blk.q[32 * p + i] = (uint8_t)(a.q[64 * p + i] | a.q[64 * p + 32 + i] << 4);
    memcpy(dst, &blk, sizeof blk);
}

void enc_q2_k_block(const float x[256], const float w[256], uint8_t dst[84])
{
    enc_affine a = {.groups = 16, .len = 16, .qmax = 3, .smax = 15};
    quant_q2_k blk = {0};
    enc_affine_fit(&a, x, w);
    blk.d = a.d;
    blk.dmin = a.dmin;
    for (int j = 0; j < 16; j++)
        blk.scales[j] = (uint8_t)(a.sc[j] | a.mn[j] << 4);
    for (int i = 0; i < 256; i++) { /* halves of 128; four rows of 32 share a byte row, two bits each */
        int half = i / 128, row = i % 128 / 32, byte = i % 32;
        blk.q[32 * half + byte] |= (uint8_t)(a.q[i] << (2 * row));
    }
    memcpy(dst, &blk, sizeof blk);
}
