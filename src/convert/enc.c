#include "convert/enc.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "file/quant.h"

typedef void (*block_fn)(const float *x, const float *w, uint8_t *dst);

static const struct { uint32_t type; bool importance; } writable[] = {
    {Q_F32, false}, {Q_F16, false}, {Q_BF16, false}, {Q_Q8_0, false},
    {Q_Q4_K, true}, {Q_Q2_K, true}, {Q_IQ2_XXS, true}, {Q_MXFP4, true},
};
enum { N_WRITABLE = sizeof writable / sizeof *writable };

bool enc_supported(uint32_t type)
{
    for (int i = 0; i < N_WRITABLE; i++)
        if (writable[i].type == type)
            return true;
    return false;
}

bool enc_wants_importance(uint32_t type)
{
    for (int i = 0; i < N_WRITABLE; i++)
        if (writable[i].type == type)
            return writable[i].importance;
    return false;
}

static bool same_text(const char *a, const char *b)
{
    while (*a && tolower((unsigned char)*a) == tolower((unsigned char)*b))
        a++, b++;
    return !*a && !*b;
}

bool enc_type_by_name(const char *name, uint32_t *type)
{
    for (int i = 0; i < N_WRITABLE; i++)
        if (same_text(name, quant_type_name(writable[i].type))) {
            *type = writable[i].type;
            return true;
        }
    return false;
}

size_t enc_find_nonfinite(const float *x, size_t n)
{
    size_t i = 0;
    while (i < n && (num_bits(x[i]) & 0x7f800000u) != 0x7f800000u)
        i++;
    return i;
}

/* Largest magnitude whose block scale still fits f16 (65504 rounds up at 65520), per type. */
static float largest(uint32_t type)
{
    switch (type) {
    case Q_F16: return 65519.996f;
    case Q_Q8_0: return 65504.0f * 127;
    case Q_Q4_K: return 65504.0f * 63;  /* the minimum alone: dmin * 63 */
    case Q_Q2_K: return 65504.0f * 15;
    case Q_IQ2_XXS: return 65504.0f * 15.5f * 0.25f * 8;
    case Q_BF16: return 3.3895314e38f;
    default: return INFINITY;
    }
}

size_t enc_find_overflow(uint32_t type, const float *x, size_t n)
{
    float limit = largest(type);
    size_t i = 0;
    while (i < n && fabsf(x[i]) <= limit)
        i++;
    return i;
}

/* Weights of one block: importance floored at a small share of the block's mean so that no column is free. */
static void block_weights(const float *imp, float *w, int n)
{
    double sum = 0;
    for (int i = 0; imp && i < n; i++)
        sum += imp[i];
    float mean = (float)(sum / n), inv = mean > 1e-35f && mean < 1e35f ? 1 / mean : 0;
    for (int i = 0; i < n; i++)
        w[i] = inv > 0 ? fmaxf(imp[i] * inv, 1e-4f) : 1;
}

static void by_blocks(block_fn fn, size_t bytes, const float *x, const float *imp, uint8_t *dst, size_t n)
{
    float w[256];
    for (size_t b = 0; b < n / 256; b++) {
        block_weights(imp ? imp + b * 256 : NULL, w, 256);
        fn(x + b * 256, w, dst + b * bytes);
    }
}

void enc_row(uint32_t type, const float *x, const float *imp, void *dst, size_t n)
{
    switch (type) {
    case Q_F32: memcpy(dst, x, n * sizeof *x); break;
    case Q_F16: enc_f16(x, dst, n); break;
    case Q_BF16: enc_bf16(x, dst, n); break;
    case Q_Q8_0: enc_q8_0(x, dst, n); break;
    case Q_MXFP4: enc_mxfp4(x, imp, dst, n); break;
    case Q_Q4_K: by_blocks(enc_q4_k_block, 144, x, imp, dst, n); break;
    case Q_Q2_K: by_blocks(enc_q2_k_block, 84, x, imp, dst, n); break;
    case Q_IQ2_XXS: by_blocks(enc_iq2_xxs_block, 66, x, imp, dst, n); break;
    default: break;
    }
}

void enc_add_loss(uint32_t type, const float *x, const void *enc, float *tmp, size_t n, enc_loss *loss)
{
    quant_decode(type, enc, tmp, n);
    loss->n += n;
    for (size_t i = 0; i < n; i++) {
        float err = fabsf(tmp[i] - x[i]);
        loss->sum2 += (double)x[i] * x[i];
        loss->err2 += (double)err * err;
        loss->inexact += err != 0;
        loss->max_err = fmaxf(loss->max_err, err);
    }
}
