/* util_text.h: vocabularies for tests: a small self-made one, and DeepSeek's from the golden data if that is there. */
#ifndef TESTS_TEXT_UTIL_TEXT_H
#define TESTS_TEXT_UTIL_TEXT_H

#include "text/bpe.h"
#include "text/vocab.h"
#include "util/npy.h" /* golden_dir */
#include "util/unit.h"

/* A growing buffer in which a test writes a GGUF file. */
typedef struct bytes {
    uint8_t *p;
    size_t n, cap;
} bytes;

void put_raw(bytes *b, const void *p, size_t n);
void put_u32(bytes *b, uint32_t v);
void put_u64(bytes *b, uint64_t v);
void put_str(bytes *b, const char *s);

/* What the small vocabulary is made of; a test may change entries before tiny_gguf. */
typedef struct tiny {
    const char *tokens[400];
    int32_t types[400];
    uint32_t n_tokens;
    const char *merges[64];
    uint32_t n_merges;
    uint32_t bos, eos;
    const char *model;
    char byte_text[256][4];  /* the byte alphabet, backing tokens[0..255] */
    char merge_text[64][16]; /* backing the merged tokens */
} tiny;

/* 256 bytes, the merges of tiny_merges[] (in order), every protocol token. Merged tokens have ids 256 + rank. */
void tiny_make(tiny *t);
int tiny_load(const tiny *t, uint32_t want, vocab **out, ds4_err *e);
vocab *tiny_vocab(void); /* the unchanged one; fails the test on error */

/* Reads DIR/name; the caller frees. Fails the test if it cannot. The text is terminated. */
char *read_all(const char *dir, const char *name, size_t *n);
/* DeepSeek-V4's vocabulary made by tools/vocab_gguf.py from the golden tokenizer, in the folder of the test binary. */
vocab *golden_vocab(const char *argv0);

#endif
