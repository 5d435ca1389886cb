/* gguf_part.h: inside of the GGUF reader (not for other rooms).
 *
 *   gguf.c        the object: index of names, getters, arrays
 *   gguf_split.c  maps the file and, if it is one of a split set, its siblings
 *   gguf_ahead.c  pages of tensors that are copied elsewhere
 *   gguf_parse.c  one part: header, metadata, tensor directory
 */
#ifndef DS4_FILE_GGUF_PART_H
#define DS4_FILE_GGUF_PART_H

#include "file/gguf.h"

/* More entries than any real file has; keeps the directory of a hostile file small. */
enum { GGUF_MAX_ENTRIES = 1 << 20, GGUF_MAX_NAME = 65535 };

/* Hash index over records whose first member is a gguf_str. Open addressing, at most half full. */
typedef struct gguf_index {
    const gguf_str **slot;
    size_t mask;
    uint64_t seed;
} gguf_index;

typedef struct gguf_part {
    char *path;          /* owned */
    char label[200];     /* tail of path, printable, for messages */
    const uint8_t *base; /* the file */
    size_t len;
    bool mapped;         /* base is our mmap */
    int fd;              /* of it */
    bool outline;        /* data may lie behind the end */
    uint64_t whole;      /* outline: bytes of the whole file, else 0 */
    gguf_kv *kv;         /* owned */
    size_t n_kv;
    gguf_index kv_index;
    gguf_tensor *tensor; /* owned; moved into the gguf when all parts are known */
    size_t n_tensors;
    size_t data_at;      /* where tensor data begins */
} gguf_part;

struct gguf {
    gguf_part *part; /* owned; part[0] holds the metadata */
    size_t n_parts;
    gguf_tensor *tensor; /* owned; all parts */
    size_t n_tensors;
    gguf_index tensor_index;
};

/* Room for n records. DS4_ENOMEM on failure. */
int gguf_index_init(gguf_index *ix, size_t n, ds4_err *e);
void gguf_index_free(gguf_index *ix);
/* Adds a record; if the name is there already, adds nothing and returns the earlier record, else NULL. */
const gguf_str *gguf_index_add(gguf_index *ix, const gguf_str *record);
const gguf_str *gguf_index_find(const gguf_index *ix, const char *name, size_t n);

/* Parses the directory of part->base[0..len). Fills kv, kv_index, tensor, data_at. `id` becomes gguf_tensor.part.
 * On failure the part still has to be released with gguf_part_free. */
int gguf_part_parse(gguf_part *part, int id, ds4_err *e);
void gguf_part_free(gguf_part *part);
/* Maps `path` read only. On failure nothing is held but part->path. */
int gguf_part_map(gguf_part *part, const char *path, ds4_err *e);
void gguf_part_unmap(gguf_part *part); /* if it is mapped */
/* Sets path and label; DS4_ENOMEM on failure. */
int gguf_part_name(gguf_part *part, const char *path, ds4_err *e);

/* Fills g->part from the file and its siblings. On failure the caller runs gguf_close. */
int gguf_load_parts(gguf *g, const char *path, ds4_err *e);

/* A metadata entry's type in words: "u32", "array of string". */
typedef struct gguf_text { char s[96]; } gguf_text;
gguf_text gguf_type_text(const gguf_kv *kv);
/* A name from a file made safe to print: control bytes become '?', long names are cut. */
gguf_text gguf_show(gguf_str s);

/* Integer value of a scalar entry of any integer type; false if the type is another. */
bool gguf_kv_int(const gguf_kv *kv, int64_t *out);

#endif
