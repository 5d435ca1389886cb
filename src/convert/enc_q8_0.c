/* Q8_0: per 32 values an f16 scale d = amax/127 and q = round(x/d). */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "convert/enc.h"
#include "file/quant.h"

void enc_q8_0(const float *x, uint8_t *dst, size_t n)
{
    for (size_t b = 0; b < n / 32; b++, x += 32, dst += sizeof(quant_q8_0)) {
        quant_q8_0 blk;
        float amax = 0;
        for (int i = 0; i < 32; i++)
            amax = fmaxf(amax, fabsf(x[i]));
        blk.d = num_to_f16(amax / 127);
        /* a subnormal d may have been rounded down so far that amax no longer fits 127 steps */
        while (blk.d && blk.d < 0x7bff && amax > 127.5f * num_f16(blk.d))
            blk.d++;
        float d = num_f16(blk.d);
        for (int i = 0; i < 32; i++) {
            float q = d > 0 ? nearbyintf(x[i] / d) : 0;
            blk.q[i] = (int8_t)fminf(fmaxf(q, -127), 127);
        }
        memcpy(dst, &blk, sizeof blk);
    }
}
