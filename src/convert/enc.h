/* enc.h: float32 rows -> blocks of the GGUF tensor types (the inverse of file/quant.h).
 *
 * Every encoder works on one row of n finite values, n a multiple of the type's block; rows are independent, so threads
 * may share a tensor without changing a bit. `imp` is the importance of each column (non-negative; any common factor
 * cancels), NULL = all equal; types without a search ignore it. Results depend on nothing else: the same bytes on
 * every machine. */
#ifndef DS4_CONVERT_ENC_H
#define DS4_CONVERT_ENC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct enc_loss {
    uint64_t n, inexact;   /* values, and those not represented exactly */
    double err2, sum2;     /* sums of squared errors and of squared values */
    float max_err;         /* largest absolute error */
} enc_loss;

/* Types we can write: F32 F16 BF16 Q8_0 Q4_K Q2_K IQ2_XXS MXFP4. */
bool enc_supported(uint32_t type);
/* True if the encoder of `type` makes use of `imp`. */
bool enc_wants_importance(uint32_t type);
/* Type by name, any case ("q8_0", "MXFP4"); false if unknown or not writable. */
bool enc_type_by_name(const char *name, uint32_t *type);

/* Index of the first NaN or infinity, n if all are finite. */
size_t enc_find_nonfinite(const float *x, size_t n);
/* Index of the first value that the type cannot hold (F16: magnitude rounds to infinity; block types: scale would),
 * else n. */
size_t enc_find_overflow(uint32_t type, const float *x, size_t n);

/* Encodes one row. Preconditions as above; never fails. */
void enc_row(uint32_t type, const float *x, const float *imp, void *dst, size_t n);
/* Decodes the row again and adds what was lost to *loss; `tmp` has room for n floats. */
void enc_add_loss(uint32_t type, const float *x, const void *enc, float *tmp, size_t n, enc_loss *loss);

/* The encoders themselves, one file each. `w` of the block functions: weights of the block's columns, all > 0. */
void enc_q8_0(const float *x, uint8_t *dst, size_t n);
void enc_f16(const float *x, uint8_t *dst, size_t n);
void enc_bf16(const float *x, uint8_t *dst, size_t n);
void enc_mxfp4(const float *x, const float *imp, uint8_t *dst, size_t n);
void enc_q4_k_block(const float x[256], const float w[256], uint8_t dst[144]);
void enc_q2_k_block(const float x[256], const float w[256], uint8_t dst[84]);
void enc_iq2_xxs_block(const float x[256], const float w[256], uint8_t dst[66]);

/* Shared by Q4_K and Q2_K: values x = d*sc[g]*q - dmin*mn[g] with per-group integers sc, mn in 0..smax, q 0..qmax. */
typedef struct enc_affine {
    int groups, len;  /* groups * len = 256 */
    int qmax, smax;
    uint16_t d, dmin; /* f16 */
    uint8_t sc[16], mn[16];
    uint8_t q[256];
} enc_affine;
/* Fills d, dmin, sc, mn, q for the shape given in a->groups/len/qmax/smax with a small weighted squared error; a block
 * that already lies on such a grid is recovered (same values) whenever its groups show their spacing. */
void enc_affine_fit(enc_affine *a, const float x[256], const float w[256]);

#endif
