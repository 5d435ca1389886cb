/* util_gguf.h: writes GGUF bytes, good ones and every kind of bad ones. */
#ifndef DS4_TESTS_FILE_UTIL_GGUF_H
#define DS4_TESTS_FILE_UTIL_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "file/gguf.h"

typedef struct bytes {
    uint8_t *p; /* exactly n bytes are allocated, so that AddressSanitizer sees one byte too many */
    size_t n;
} bytes;

void put(bytes *b, const void *data, size_t n);
void put_u32(bytes *b, uint32_t v);
void put_u64(bytes *b, uint64_t v);
void put_str(bytes *b, const char *s);
void put_zeros(bytes *b, size_t n);
void put_pad(bytes *b, size_t align);

void put_header(bytes *b, uint64_t n_tensors, uint64_t n_kv);
void put_kv_u32(bytes *b, const char *key, uint32_t v);
void put_kv_int(bytes *b, const char *key, uint32_t type, uint64_t v); /* any integer type or bool, cut to its width */
void put_kv_f32(bytes *b, const char *key, float v);
void put_kv_f64(bytes *b, const char *key, double v);
void put_kv_str(bytes *b, const char *key, const char *v);
void put_kv_arr(bytes *b, const char *key, uint32_t elem, uint64_t count); /* elements follow */
/* ne ends with 0 or has four entries */
void put_tensor(bytes *b, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset);

/* A whole file: every value type, arrays, five tensors of different types, data filled with a pattern. */
bytes good_file(void);
/* Touches everything that an opened file offers, so that sanitizers see a pointer that leads outside. */
uint64_t use_everything(const gguf *g);
/* Writes or dies. */
void save(const char *path, bytes b);
/* An exact-size copy. */
bytes copy_of(bytes b, size_t n);

#endif
