/* MXFP4: per 32 values a power-of-two scale 2^(e-127) and e2m1 codes. The smallest scale that clips nothing represents
 * every block that lies on such a grid exactly (a coarser grid is part of the finer one below its maximum); otherwise
 * one step finer (which clips) and one coarser are tried for a smaller weighted error. */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "convert/enc.h"
#include "file/quant.h"

static double try_scale(const float *x, const float *imp, int e, uint8_t code[32])
{
    double err = 0;
    for (int i = 0; i < 32; i++) {
        float scaled = ldexpf(x[i], 127 - e);
        code[i] = num_to_e2m1(scaled);
        double r = (double)x[i] - ldexp((double)num_e2m1(code[i]), e - 127);
        err += (imp ? (double)imp[i] + 1e-30 : 1.0) * r * r;
    }
    return err;
}

static int clamp_exp(int e) { return e < 0 ? 0 : e > 254 ? 254 : e; }

/* Smallest e with amax <= 6 * 2^(e-127). */
static int fitting_exp(float amax)
{
    int e;
    float m = frexpf(amax, &e); /* amax = m * 2^e, m in [0.5, 1); 6 = 0.75 * 2^3 */
    return clamp_exp(e - 3 + (m > 0.75f) + 127);
}

void enc_mxfp4(const float *x, const float *imp, uint8_t *dst, size_t n)
{
    for (size_t b = 0; b < n / 32; b++, x += 32, imp = imp ? imp + 32 : NULL, dst += sizeof(quant_mxfp4)) {
        quant_mxfp4 blk = {0};
        uint8_t code[32], best[32] = {0};
        float amax = 0;
        for (int i = 0; i < 32; i++)
            amax = fmaxf(amax, fabsf(x[i]));
        int e0 = amax > 0 ? fitting_exp(amax) : 0;
        double low = try_scale(x, imp, e0, best);
        blk.e = (uint8_t)e0;
        for (int step = -1; step <= 1 && low > 0 && amax > 0; step += 2) {
            double err = try_scale(x, imp, clamp_exp(e0 + step), code);
            if (err < low) {
                low = err;
                blk.e = (uint8_t)clamp_exp(e0 + step);
                memcpy(best, code, sizeof best);
            }
        }
        for (int i = 0; i < 16; i++)
            blk.q[i] = (uint8_t)(best[i] | best[i + 16] << 4);
        memcpy(dst, &blk, sizeof blk);
    }
}
