/* ggufwrite.h: writing a GGUF v3 file in one pass.
 *
 *   ggufw_open -> ggufw_kv_* / ggufw_tensor (any order) -> ggufw_begin
 *              -> for each tensor, in order of declaration: ggufw_data ... (exactly its bytes in total)
 *              -> ggufw_close
 *
 * The file grows under a temporary name beside `path` and takes its place by rename when it is complete and synced; any
 * failure or ggufw_abort leaves an existing file at `path` alone and removes the temporary one.
 * Errors are sticky: after one, further calls do nothing and ggufw_begin / ggufw_data / ggufw_close report it. */
#ifndef DS4_CONVERT_GGUFWRITE_H
#define DS4_CONVERT_GGUFWRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { GGUFW_ALIGN = 32 };

typedef struct ggufw ggufw;

/* path NULL: nothing is written to disk, only sizes are counted (dry run). */
int ggufw_open(ggufw **out, const char *path, ds4_err *e);

void ggufw_kv_str(ggufw *w, const char *key, const char *value);
void ggufw_kv_u32(ggufw *w, const char *key, uint32_t value);
void ggufw_kv_i32(ggufw *w, const char *key, int32_t value);
void ggufw_kv_f32(ggufw *w, const char *key, float value);
void ggufw_kv_bool(ggufw *w, const char *key, bool value);
/* Arrays: announce the element count, then add exactly that many. */
void ggufw_kv_arr(ggufw *w, const char *key, uint32_t elem_type, uint64_t count);
void ggufw_arr_str(ggufw *w, const char *p, size_t n);
void ggufw_arr_u32(ggufw *w, uint32_t v);
void ggufw_arr_i32(ggufw *w, int32_t v);
void ggufw_arr_f32(ggufw *w, float v);

/* Declares a tensor: n_dims sizes, fastest first; ne[0] a multiple of the type's block. */
void ggufw_tensor(ggufw *w, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type);
/* Writes header, metadata and directory. */
int ggufw_begin(ggufw *w, ds4_err *e);
/* Appends to the current tensor; moves on (with padding) when it is full. Bytes must not cross a tensor border. */
int ggufw_data(ggufw *w, const void *p, size_t n, ds4_err *e);
/* Completes and renames; releases w in any case. *bytes (may be NULL): size of the file. */
int ggufw_close(ggufw *w, uint64_t *bytes, ds4_err *e);
void ggufw_abort(ggufw *w); /* NULL is fine */
size_t ggufw_n_kv(const ggufw *w);

#endif
