/* gguf.h: reading GGUF v3 files. No model knowledge lives here.
 *
 *   file(s) --mmap--> [header][metadata entries][tensor infos][pad][tensor data ...]
 *                        |            |               |
 *                     checked     gguf_kv[]      gguf_tensor[] (pointers into the map)
 *
 * A file may be one part of a split set (name-00001-of-0000N.gguf); opening any part opens all of them and presents
 * one directory. Everything returned points into read-only maps that live until gguf_close.
 * Every count, length, offset and product taken from the file is checked against the file size before use;
 * a bad file yields DS4_EFORMAT and one line naming the file, the place and the fault. */
#ifndef DS4_FILE_GGUF_H
#define DS4_FILE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* GGUF metadata value types (fact of the format). */
enum gguf_vtype {
    GGUF_U8 = 0, GGUF_I8 = 1, GGUF_U16 = 2, GGUF_I16 = 3, GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6,
    GGUF_BOOL = 7, GGUF_STR = 8, GGUF_ARR = 9, GGUF_U64 = 10, GGUF_I64 = 11, GGUF_F64 = 12,
};

typedef struct gguf_str { const char *p; size_t n; } gguf_str; /* not terminated; points into the map */

typedef struct gguf_kv {
    gguf_str key;
    uint32_t type;       /* enum gguf_vtype */
    uint32_t elem;       /* element type if type == GGUF_ARR, else == type */
    uint64_t count;      /* elements if GGUF_ARR, else 1 */
    const uint8_t *data; /* first value, unaligned, little endian */
    size_t bytes;        /* bytes occupied by all values */
} gguf_kv;

typedef struct gguf_tensor {
    gguf_str name;
    uint32_t n_dims;   /* 1..4 */
    uint64_t ne[4];    /* fastest first; unused dimensions are 1; none is 0 */
    uint32_t type;     /* GGUF tensor type id, known to quant.h or the open fails naming the tensor */
    uint64_t nbytes;   /* exact bytes of the data */
    const void *data;  /* inside the map, aligned to general.alignment; NULL only in an outline */
    int part;          /* which split part holds it */
} gguf_tensor;

typedef struct gguf gguf;

/* Opens `path` (and its sibling parts if it is split). On success *out owns the maps. */
int gguf_open(gguf **out, const char *path, ds4_err *e);
/* The same over bytes in memory (for fuzzing and tests); `buf` must outlive the object. `name` is used in messages. */
int gguf_open_mem(gguf **out, const void *buf, size_t len, const char *name, ds4_err *e);
/* The same for a made-up file of which only a beginning exists: header, directory and the data of some tensors. Those
 * whose data would lie behind the end have data NULL; gguf_file_bytes is the size that the whole would have. */
int gguf_open_outline(gguf **out, const void *buf, size_t len, const char *name, ds4_err *e);
void gguf_close(gguf *g); /* NULL is fine */

const char *gguf_path(const gguf *g);
uint64_t gguf_file_bytes(const gguf *g); /* all parts together */
size_t gguf_n_kv(const gguf *g);
const gguf_kv *gguf_kv_at(const gguf *g, size_t i);
size_t gguf_n_tensors(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i);

/* NULL if absent. Hash lookup, constant time. */
const gguf_kv *gguf_find_kv(const gguf *g, const char *key);
const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name);

/* Typed getters. Any integer type is accepted where the value fits; f64 is accepted for f32. `required` false and key
 * absent: returns 0 and leaves *out as it was. Wrong type or out of [lo, hi]: DS4_EFORMAT naming key, found and
 * expected. */
int gguf_get_u32(const gguf *g, const char *key, bool required, uint32_t lo, uint32_t hi, uint32_t *out, ds4_err *e);
int gguf_get_f32(const gguf *g, const char *key, bool required, float lo, float hi, float *out, ds4_err *e);
int gguf_get_bool(const gguf *g, const char *key, bool required, bool *out, ds4_err *e);
int gguf_get_str(const gguf *g, const char *key, bool required, gguf_str *out, ds4_err *e);

/* Array element access. kv must be a GGUF_ARR of any integer / float type; i < count. */
int64_t gguf_arr_int(const gguf_kv *kv, uint64_t i); /* integer or bool elements */
double gguf_arr_num(const gguf_kv *kv, uint64_t i);  /* any numeric element */

/* Walks a string array: `*cursor` starts at 0; returns false at the end. All lengths were checked at open. */
bool gguf_next_str(const gguf_kv *kv, size_t *cursor, gguf_str *out);

#endif
