/* util_mini.h: the shipped small model on a named backend, texts for it, and what the emulation must leave out. */
#ifndef DS4_TESTS_CUDA_UTIL_MINI_H
#define DS4_TESTS_CUDA_UTIL_MINI_H

#include "ds4.h"
#include "util/rig.h"

#define MINI_MODEL "mini/ds4-mini.gguf"
#define MINI_DRAFTER "mini/ds4-mini-dspark.gguf"

/* True on the emulation, which is a few thousand times slower than a GPU: tests take the smaller numbers. */
static inline bool mini_reduced(void) { return getenv("DS4_TEST_EMU") != NULL; }

/* Processors of this machine, for the CPU side of a comparison. */
int mini_threads(void);
/* Skips the running test if this build or machine has no GPU. */
void mini_need_gpu(void);

/* The trunk alone, driven through forward.c. */
void mini_rig(rig *r, const char *backend, rig_options o);
/* The same through the public header; draft: with the drafter. */
ds4_engine *mini_engine(const char *backend, enum ds4_act act, enum ds4_kv_sim sim, int ctx, bool draft);

/* A user's message as prompt tokens, without thinking. Number i of 100 different ones; returns their count (at most
 * 200 are written). */
int mini_prompt(const ds4_engine *e, int i, int32_t *out);
/* Tokens of tests/data/prose.txt, the first replaced by the model's begin-of-text. The caller frees. */
int32_t *mini_prose(const ds4_engine *e, size_t *n);

#endif
