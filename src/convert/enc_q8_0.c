/* Q8_0: per 32 values an f16 scale d = amax/127 and q = round(x/d). */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "convert/enc.h"
#include "file/quant.h"

/* Codes for a given scale; returns the squared error. */
static double codes(const float *x, uint16_t d16, int8_t q[32])
{
    float d = num_f16(d16);
    double err = 0;
    for (int i = 0; i < 32; i++) {
        float r = d > 0 ? nearbyintf(x[i] / d) : 0;
        q[i] = (int8_t)fminf(fmaxf(r, -127), 127);
        double miss = x[i] - (double)d * q[i];
        err += miss * miss;
    }
    return err;
}

void enc_q8_0(const float *x, uint8_t *dst, size_t n)
{
    for (size_t b = 0; b < n / 32; b++, x += 32, dst += sizeof(quant_q8_0)) {
        quant_q8_0 blk, other;
        float amax = 0;
        for (int i = 0; i < 32; i++)
            amax = fmaxf(amax, fabsf(x[i]));
        blk.d = num_to_f16(amax / 127);
        /* a subnormal scale is coarse: rounded down, amax may no longer fit 127 steps */
        while (blk.d && amax > 127.5f * num_f16(blk.d) && blk.d < 0x400)
            blk.d++;
        double err = codes(x, blk.d, blk.q);
        /* and a block that already lies on such a grid may need a neighbour */
        for (int d = blk.d - 2; err > 0 && blk.d < 0x400 && d <= blk.d + 2; d++) {
            other.d = (uint16_t)(d < 0 ? 0 : d);
            if (codes(x, other.d, other.q) == 0) {
                blk = other;
                break;
            }
        }
        memcpy(dst, &blk, sizeof blk);
    }
}
