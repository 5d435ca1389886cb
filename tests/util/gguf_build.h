/* gguf_build.h: GGUF files made in memory for tests; entries and tensors may be changed before the bytes are written.
 * libc only. */
#ifndef TESTS_UTIL_GGUF_BUILD_H
#define TESTS_UTIL_GGUF_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GB_F32 = 0, GB_F16 = 1, GB_Q8_0 = 8, GB_I32 = 26, GB_I64 = 27, GB_BF16 = 30, GB_MXFP4 = 39 };

typedef struct gb_kv {
    char key[96];
    uint8_t *value; /* type and value as in the file */
    size_t bytes;
} gb_kv;

typedef struct gb_tensor {
    char name[80];
    uint32_t type, n_dims;
    uint64_t ne[4];
    uint8_t *data;
    size_t bytes;
} gb_tensor;

typedef struct gb {
    gb_kv *kv;
    gb_tensor *t;
    size_t n_kv, n_t;
} gb;

/* Adding a key that exists replaces it. */
void gb_u32(gb *g, const char *key, uint32_t v);
void gb_f32(gb *g, const char *key, float v);
void gb_bool(gb *g, const char *key, bool v);
void gb_str(gb *g, const char *key, const char *v);
void gb_ints(gb *g, const char *key, const int32_t *v, int n);
void gb_floats(gb *g, const char *key, const float *v, int n);
void gb_drop_key(gb *g, const char *key);

/* Appends a tensor; the data (bytes long) is owned by g from now on. ne1 or ne2 of 0 end the dimensions. */
gb_tensor *gb_add(gb *g, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t ne2, void *data,
                  size_t bytes);
gb_tensor *gb_find(gb *g, const char *name); /* NULL if absent */
void gb_drop(gb *g, const char *name);

/* The file's bytes; the caller frees. */
uint8_t *gb_bytes(const gb *g, size_t *n);
void gb_free(gb *g);

#endif
