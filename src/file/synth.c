#include "file/synth.h"

#include <math.h>

#include "base/num.h"

/* Exponent and chance such that numbers whose root mean square is `unit` at exponent 0 get `rms`. */
static bool split(double rms, double unit, int bias, int most, synth_recipe *r)
{
    double ratio = rms / unit;
    int k = (int)floor(log2(ratio)); /* 2^k <= ratio < 2^(k+1) */
    double part = (ratio * ratio / ldexp(1, 2 * k) - 1) / 3;
    if (k + bias < 1 || k + bias >= most)
        return false;
    r->scale = (uint32_t)(k + bias);
    r->chance = (uint32_t)(part * 4294967295.0);
    return true;
}

/* d for numbers of root mean square `unit` at d = 1; dmin as a multiple of d. */
static bool halves(double rms, double unit, double second, synth_recipe *r)
{
    r->scale = num_to_f16((float)(rms / unit));
    r->second = num_to_f16((float)(rms / unit * second));
    return r->scale > 0 && r->scale < 0x7c00 && r->second < 0x7c00;
}

bool synth_plan(synth_recipe *r, uint32_t type, double rms)
{
    const double fraction = sqrt(7.0 / 3.0); /* of numbers spread evenly over [1, 2) */
    const quant_info *q = quant_type_info(type);
    *r = (synth_recipe){.type = type, .bytes = q ? q->bytes : 0, .block = q ? q->block : 0};
    if (!q || !(rms > 0))
        return false;
    switch (type) {
    case Q_F32:
    case Q_BF16:
        return split(rms, fraction, 127, 254, r);
    case Q_F16:
        return split(rms, fraction, 15, 30, r);
    case Q_MXFP4:
        return split(rms, sqrt(34.25) / 2, 127, 254, r);
    case Q_Q8_0:
        return halves(rms, 73.902, 0, r);
    case Q_Q4_0:
        return halves(rms, 4.637, 0, r);
    case Q_Q2_K:
        return halves(rms, 13.110, 1.5, r);
    case Q_Q4_K:
        return halves(rms, 168.336, 7.5, r);
    case Q_IQ2_XXS:
        return halves(rms, 53.362, 0, r);
    default:
        return false;
    }
}
