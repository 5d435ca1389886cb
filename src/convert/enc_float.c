/* F16 and BF16: round to nearest even. Overflow is refused before (enc_find_overflow), loss is reported after. */
#include <string.h>

#include "base/num.h"
#include "convert/enc.h"

void enc_f16(const float *x, uint8_t *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = num_to_f16(x[i]);
        memcpy(dst + 2 * i, &h, 2);
    }
}

void enc_bf16(const float *x, uint8_t *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = num_to_bf16(x[i]);
        memcpy(dst + 2 * i, &h, 2);
    }
}
