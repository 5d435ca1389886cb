/* util_convert.h: what the tests of the converter share: temporary folders, random numbers, self-made checkpoints. */
#ifndef TESTS_CONVERT_UTIL_CONVERT_H
#define TESTS_CONVERT_UTIL_CONVERT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "convert/plan.h"
#include "convert/safetensors.h"

/* Random numbers, the same on every machine. */
typedef struct rng { uint64_t s; } rng;
uint32_t rng_u32(rng *r);
float rng_gauss(rng *r);

/* A fresh folder under $TMPDIR or /tmp; tmp_remove deletes it with the files in it. */
typedef struct tmpdir { char path[256]; } tmpdir;
void tmp_make(tmpdir *d);
void tmp_remove(const tmpdir *d);
const char *tmp_path(const tmpdir *d, const char *name, char buf[512]);
void write_file(const tmpdir *d, const char *name, const void *p, size_t n);
uint8_t *read_file(const char *path, size_t *n); /* the caller frees; fails the test if it cannot */

/* A safetensors file being put together. */
typedef struct st_builder { char *head; size_t head_n; uint8_t *data; size_t n; bool first; } st_builder;
void stb_begin(st_builder *b);
/* dtype by name ("BF16"); rows = 0: a vector. */
void stb_add(st_builder *b, const char *name, const char *dtype, uint64_t rows, uint64_t cols, const void *p, size_t n);
/* The whole file; the caller frees; the builder is emptied. */
uint8_t *stb_end(st_builder *b, size_t *n);

/* How random weights of a checkpoint are stored. */
enum storage { STORE_BF16, STORE_OFFICIAL /* dense FP8 with 128x128 scales, experts FP4 */ };

/* Adds all sources of a plan with random content. */
void stb_add_plan(st_builder *b, const plan *p, enum storage how, uint32_t n_experts, rng *r);

extern const char tiny_config[]; /* config.json of a three-layer model with a three-stage drafter */
extern const char tiny_tokenizer[]; /* its tokenizer.json */
/* Writes config.json and model.safetensors of the tiny model into d. */
void tiny_checkpoint(const tmpdir *d, enum storage how);

/* Directory of golden data set A, NULL (after a "skipped" line) if it is not there. */
const char *golden_a(char buf[512]);

#endif
