/* quant.c: decoding of the block formats.
 *
 * All products d * scale * q are exact in float32 (11 + 6 + 7 bits at most), so the order of the factors does not
 * matter; formats with a minimum round once, in the subtraction. Integer views, for kernels that sum int8 products:
 *
 *   Q8_0      32: d * q                               Q4_0    32: d * (n - 8)
 *   Q2_K      16: (d sc) * q  - (dmin m), q 0..3      Q3_K    16: (d sc) * q, q -4..3
 *   Q4_K      32: (d sc) * q  - (dmin m), q 0..15     Q5_K    32: the same, q 0..31
 *   Q6_K      16: (d sc) * q, q -32..31               MXFP4   32: 2^(E-128) * q, q the doubled code
 *   IQ2_XXS   32: (d (2s+1) / 8) * q, q = grid with sign
 *
 * (first number: elements that share one scale). */
#include "file/quant.h"

#include <math.h>
#include <string.h>

#include "base/num.h"

_Static_assert(sizeof(quant_q8_0) == 34, "block of Q8_0");
_Static_assert(sizeof(quant_q4_0) == 18, "block of Q4_0");
_Static_assert(sizeof(quant_q2_k) == 84, "block of Q2_K");
_Static_assert(sizeof(quant_q3_k) == 110, "block of Q3_K");
_Static_assert(sizeof(quant_q4_k) == 144, "block of Q4_K");
_Static_assert(sizeof(quant_q5_k) == 176, "block of Q5_K");
_Static_assert(sizeof(quant_q6_k) == 210, "block of Q6_K");
_Static_assert(sizeof(quant_iq2_xxs) == 66, "block of IQ2_XXS");
_Static_assert(sizeof(quant_mxfp4) == 17, "block of MXFP4");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF data is read in place: little-endian machines only");

static void f32_row(const uint8_t *src, float *y, uint64_t n) { memcpy(y, src, n * 4); }

static void f16_row(const uint8_t *src, float *y, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, 2);
        y[i] = num_f16(h);
    }
}

static void bf16_row(const uint8_t *src, float *y, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, 2);
        y[i] = num_bf16(h);
    }
}

static void q8_0_block(const quant_q8_0 *b, float *y)
{
    float d = num_f16(b->d);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)b->q[i];
}

static void q4_0_block(const quant_q4_0 *b, float *y)
{
    float d = num_f16(b->d);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((b->q[j] & 15) - 8);
        y[j + 16] = d * (float)((b->q[j] >> 4) - 8);
    }
}

/* Q2_K and Q3_K share the element order: run r = 0..15 of 16 elements lies in half r/8, shift 2 * (r/2 % 4), bytes
 * 16 * (r % 2) .. +15 of that half's 32 bytes, and uses scale r. */
static void q2_k_block(const quant_q2_k *b, float *y)
{
    float d = num_f16(b->d), dmin = num_f16(b->dmin);
    for (int r = 0; r < 16; r++) {
        const uint8_t *q = b->q + 32 * (r / 8) + 16 * (r % 2);
        int shift = 2 * (r / 2 % 4);
        float dl = d * (float)(b->scales[r] & 15), ml = dmin * (float)(b->scales[r] >> 4);
        for (int l = 0; l < 16; l++)
            y[16 * r + l] = dl * (float)(q[l] >> shift & 3) - ml;
    }
}

void quant_unpack_q3_scales(const uint8_t packed[12], int8_t sc[16])
{
    for (int j = 0; j < 16; j++) {
        int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
        int high = packed[8 + j % 4] >> (2 * (j / 4)) & 3;
        sc[j] = (int8_t)((low | high << 4) - 32);
    }
}

static void q3_k_block(const quant_q3_k *b, float *y)
{
    int8_t sc[16];
    quant_unpack_q3_scales(b->scales, sc);
    float d = num_f16(b->d);
    for (int r = 0; r < 16; r++) {
        int at = 16 * (r % 2), shift = 2 * (r / 2 % 4), hbit = r / 2;
        const uint8_t *q = b->q + 32 * (r / 8) + at, *h = b->hmask + at;
        float dl = d * (float)sc[r];
        for (int l = 0; l < 16; l++)
            y[16 * r + l] = dl * (float)((q[l] >> shift & 3) - (h[l] >> hbit & 1 ? 0 : 4));
    }
}

void quant_unpack_k4_scales(const uint8_t packed[12], uint8_t sc[8], uint8_t mn[8])
{
    for (int j = 0; j < 4; j++) {
        sc[j] = packed[j] & 63;
        mn[j] = packed[j + 4] & 63;
        sc[j + 4] = (uint8_t)((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        mn[j + 4] = (uint8_t)(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
    }
}

static void q4_k_block(const quant_q4_k *b, float *y)
{
    uint8_t sc[8], mn[8];
    quant_unpack_k4_scales(b->scales, sc, mn);
    float d = num_f16(b->d), dmin = num_f16(b->dmin);
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = b->q + 32 * (j / 2);
        float dl = d * (float)sc[j], ml = dmin * (float)mn[j];
        for (int l = 0; l < 32; l++)
            y[32 * j + l] = dl * (float)(q[l] >> 4 * (j % 2) & 15) - ml;
    }
}

static void q5_k_block(const quant_q5_k *b, float *y)
{
    uint8_t sc[8], mn[8];
    quant_unpack_k4_scales(b->scales, sc, mn);
    float d = num_f16(b->d), dmin = num_f16(b->dmin);
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = b->q + 32 * (j / 2);
        float dl = d * (float)sc[j], ml = dmin * (float)mn[j];
        for (int l = 0; l < 32; l++) {
            int v = (q[l] >> 4 * (j % 2) & 15) | (b->qh[l] >> j & 1) << 4;
            y[32 * j + l] = dl * (float)v - ml;
        }
    }
}

static void q6_k_block(const quant_q6_k *b, float *y)
{
    float d = num_f16(b->d);
    for (int hf = 0; hf < 2; hf++) {
        const uint8_t *ql = b->ql + 64 * hf, *qh = b->qh + 32 * hf;
        const int8_t *sc = b->scales + 8 * hf;
        for (int k = 0; k < 4; k++) /* k-th run of 32: nibble k/2 of the bytes from 32 * (k % 2) */
            for (int l = 0; l < 32; l++) {
                int low = ql[l + 32 * (k % 2)] >> 4 * (k / 2) & 15, high = qh[l] >> 2 * k & 3;
                y[128 * hf + 32 * k + l] = d * (float)sc[2 * k + l / 16] * (float)((low | high << 4) - 32);
            }
    }
}

static void iq2_xxs_block(const quant_iq2_xxs *b, float *y)
{
    float d = num_f16(b->d);
    for (int g = 0; g < 8; g++) {
        const uint16_t *q = b->q + 4 * g;
        uint32_t aux = q[2] | (uint32_t)q[3] << 16;
        float scale = d * (0.5f + (float)(aux >> 28)) * 0.25f;
        for (int l = 0; l < 4; l++) {
            uint64_t row = quant_iq2xxs_grid[q[l / 2] >> 8 * (l % 2) & 255];
            uint8_t neg = quant_iq2xxs_signs[aux >> 7 * l & 127];
            for (int i = 0; i < 8; i++) {
                float v = scale * (float)(row >> 8 * i & 255);
                y[32 * g + 8 * l + i] = neg >> i & 1 ? -v : v;
            }
        }
    }
}

/* E = 255 is NaN, as the microscaling standard says (ggml itself would read 2^128 there; no quantiser writes it). */
static void mxfp4_block(const quant_mxfp4 *b, float *y)
{
    float half = num_e8m0(b->e) * 0.5f;
    for (int j = 0; j < 16; j++) {
        y[j] = half * (float)quant_mxfp4_codes[b->q[j] & 15];
        y[j + 16] = half * (float)quant_mxfp4_codes[b->q[j] >> 4];
    }
}

/* One row decoder per block format. The block is copied first, so that src may lie at any address. */
#define ROW_OF(fmt, elems)                                             \
    static void fmt##_row(const uint8_t *src, float *y, uint64_t n)    \
    {                                                                  \
        for (uint64_t i = 0; i < n; i++, src += sizeof(quant_##fmt)) { \
            quant_##fmt b;                                             \
            memcpy(&b, src, sizeof b);                                 \
            fmt##_block(&b, y + i * (elems));                          \
        }                                                              \
    }
ROW_OF(q8_0, 32)
ROW_OF(q4_0, 32)
ROW_OF(q2_k, 256)
ROW_OF(q3_k, 256)
ROW_OF(q4_k, 256)
ROW_OF(q5_k, 256)
ROW_OF(q6_k, 256)
ROW_OF(iq2_xxs, 256)
ROW_OF(mxfp4, 32)

typedef struct format {
    quant_info info;
    void (*row)(const uint8_t *src, float *y, uint64_t blocks);
} format;

static const format formats[] = {
    {{Q_F32, "F32", 1, 4, true}, f32_row},
    {{Q_F16, "F16", 1, 2, true}, f16_row},
    {{Q_BF16, "BF16", 1, 2, true}, bf16_row},
    {{Q_Q8_0, "Q8_0", 32, 34, true}, q8_0_row},
    {{Q_Q4_0, "Q4_0", 32, 18, true}, q4_0_row},
    {{Q_Q2_K, "Q2_K", 256, 84, true}, q2_k_row},
    {{Q_Q3_K, "Q3_K", 256, 110, true}, q3_k_row},
    {{Q_Q4_K, "Q4_K", 256, 144, true}, q4_k_row},
    {{Q_Q5_K, "Q5_K", 256, 176, true}, q5_k_row},
    {{Q_Q6_K, "Q6_K", 256, 210, true}, q6_k_row},
    {{Q_IQ2_XXS, "IQ2_XXS", 256, 66, true}, iq2_xxs_row},
    {{Q_MXFP4, "MXFP4", 32, 17, true}, mxfp4_row},
    {{Q_I32, "I32", 1, 4, false}, NULL},
    {{Q_I64, "I64", 1, 8, false}, NULL},
};

static const format *find(uint32_t type)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].info.type == type)
            return &formats[i];
    return NULL;
}

const quant_info *quant_type_info(uint32_t type)
{
    const format *f = find(type);
    return f ? &f->info : NULL;
}

/* ids that ggml has and we do not decode, so that a refusal can say what the file holds */
static const char *const foreign_names[40] = {
    [3] = "Q4_1", [6] = "Q5_0", [7] = "Q5_1", [9] = "Q8_1", [15] = "Q8_K", [17] = "IQ2_XS", [18] = "IQ3_XXS",
    [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S", [22] = "IQ2_S", [23] = "IQ4_XS", [24] = "I8", [25] = "I16",
    [28] = "F64", [29] = "IQ1_M", [34] = "TQ1_0", [35] = "TQ2_0",
};

const char *quant_type_name(uint32_t type)
{
    const format *f = find(type);
    if (f)
        return f->info.name;
    if (type < sizeof foreign_names / sizeof *foreign_names && foreign_names[type])
        return foreign_names[type];
    return "an unknown type";
}

size_t quant_row_bytes(uint32_t type, uint64_t n)
{
    const format *f = find(type);
    size_t bytes;
    if (!f || n % f->info.block || __builtin_mul_overflow(n / f->info.block, (uint64_t)f->info.bytes, &bytes))
        return 0;
    return bytes;
}

void quant_decode(uint32_t type, const void *src, float *dst, uint64_t n)
{
    const format *f = find(type);
    if (f && f->row) {
        f->row(src, dst, n / f->info.block);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        dst[i] = NAN;
}
