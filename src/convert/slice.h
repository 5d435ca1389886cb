/* slice.h: one source matrix (a plain tensor, or one expert) decoded, checked, encoded and written in chunks. */
#ifndef DS4_CONVERT_SLICE_H
#define DS4_CONVERT_SLICE_H

#include "base/err.h"
#include "convert/enc.h"
#include "convert/ggufwrite.h"
#include "convert/hf.h"

typedef struct slice_work slice_work; /* threads and buffers, reused from slice to slice */

int slice_open(slice_work **out, int threads, ds4_err *e);
void slice_close(slice_work *k); /* NULL is fine */

/* Appends all rows of `src` as `type` to the current tensor of `w`. imp: importance of the columns, NULL = the sum of
 * squares of each column over the slice (only for types that use importance). FP4 to MXFP4 moves codes and loses
 * nothing. NaN, infinity or a value beyond the type's range: DS4_EMODEL naming file, tensor, row, column and value. */
int slice_write(slice_work *k, const st_set *st, const hf_weight *src, uint32_t type, const float *imp, ggufw *w,
                ds4_err *e);

/* Loss over the slices since the last reset. */
void slice_reset_loss(slice_work *k);
enc_loss slice_loss(const slice_work *k);

#endif
