/* imatrix.h: importance matrices in llama.cpp's legacy binary form (.dat).
 *
 *   i32 entries; per entry: i32 name length, name, i32 calls, i32 values, f32[values]
 *   then optionally: i32 chunks, i32 dataset name length, dataset name
 *
 * A value is a sum of squared activations of one input column; only ratios within a vector matter. */
#ifndef DS4_CONVERT_IMATRIX_H
#define DS4_CONVERT_IMATRIX_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct imatrix imatrix;

int imatrix_open(imatrix **out, const char *path, ds4_err *e);
int imatrix_parse(imatrix **out, const void *buf, size_t len, const char *name, ds4_err *e); /* copies what it keeps */
void imatrix_close(imatrix *m); /* NULL is fine */

/* Importance of `cols` columns for tensor `name` (a GGUF name), expert `expert` of `n_experts` (0 of 1 for a plain
 * matrix). Looked for as NAME.expert.E, NAME.expert_E (also with ".weight" before or dropped), then as NAME with
 * n_experts * cols values. *out = NULL if there is no entry. A length that fits neither: DS4_EMODEL. */
int imatrix_find(const imatrix *m, const char *name, uint32_t expert, uint32_t n_experts, uint64_t cols,
                 const float **out, ds4_err *e);

size_t imatrix_count(const imatrix *m);
uint32_t imatrix_chunks(const imatrix *m);      /* 0 if not recorded */
const char *imatrix_dataset(const imatrix *m);  /* "" if not recorded */

#endif
