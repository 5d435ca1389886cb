/* safetensors.h: reading Hugging Face checkpoints (safetensors files) through read-only maps.
 *
 *   file: [u64 header bytes][JSON header][tensor data ...]
 *
 * A checkpoint is one directory: an index file (model.safetensors.index.json) that names its shards, or
 * model.safetensors, or a complete set model-00001-of-0000N.safetensors. A leading "model." of tensor names is removed.
 * Every offset is checked: the data ranges must tile the data section without hole or overlap and agree with dtype
 * and shape. A name that occurs twice (also after removal of "model.") is refused. */
#ifndef DS4_CONVERT_SAFETENSORS_H
#define DS4_CONVERT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum st_dtype { ST_F32, ST_F16, ST_BF16, ST_F8_E4M3, ST_F8_E8M0, ST_I8, ST_U8, ST_I32, ST_I64, ST_N_DTYPES };

typedef struct st_tensor {
    const char *name; /* owned by the set, "model." removed */
    int dtype;        /* enum st_dtype */
    uint32_t n_dims;  /* 0 (a scalar) .. 4 */
    uint64_t shape[4]; /* slowest first, as in the file; unused dimensions are 1; none is 0 */
    const uint8_t *data; /* inside the map, not aligned, little endian */
    uint64_t nbytes;
    uint32_t file;    /* which file of the set */
    bool used;        /* for the caller's accounting of unused tensors; false after opening */
} st_tensor;

typedef struct st_set st_set;

/* Opens the checkpoint in directory `dir`. On success *out owns the maps; release with st_close. */
int st_open_dir(st_set **out, const char *dir, ds4_err *e);
/* One file's bytes in memory (tests, fuzzing); `buf` must outlive the set. `name` is used in messages. */
int st_open_mem(st_set **out, const void *buf, size_t len, const char *name, ds4_err *e);
void st_close(st_set *s); /* NULL is fine */

size_t st_count(const st_set *s);
st_tensor *st_at(st_set *s, size_t i);                 /* in byte order of the names */
st_tensor *st_find(st_set *s, const char *name);       /* NULL if absent */
const char *st_file(const st_set *s, const st_tensor *t); /* path of the file that holds t */
const char *st_dtype_name(int dtype);
uint32_t st_dtype_bytes(int dtype);
/* "[8, 256]" into buf; returns buf. */
const char *st_shape_str(const st_tensor *t, char *buf, size_t n);

#endif
