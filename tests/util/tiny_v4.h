/* tiny_v4.h: a tiny DeepSeek-V4 model with a DSpark drafter whose weights come from an integer hash of the tensor's
 * name. It needs no file, holds every layer kind (ratios 0, 4, 128; hash and scored routers), the real head geometry
 * (512 with 64 rotary, index width 128, window 128, 4 streams), a mix of tensor types, and is fast. All values are
 * exact in their types. */
#ifndef TESTS_UTIL_TINY_V4_H
#define TESTS_UTIL_TINY_V4_H

#include "util/gguf_build.h"

enum {
    V4_VOCAB = 320,
    V4_D = 256,
    V4_LAYERS = 6,
    V4_HEADS = 2,
    V4_Q_RANK = 64,
    V4_GROUPS = 2,
    V4_RANK = 32,
    V4_EXPERTS = 8,
    V4_USED = 2,
    V4_FF = 64,
    V4_IDX_HEADS = 16,
    V4_TOPK = 16,
    V4_HASHED = 2,
    V4_STAGES = 3,
    V4_BLOCK = 5,
    V4_MARKOV = 32,
    V4_NOISE = 319,
};

/* Metadata and tensors of the trunk / of the drafter (llama: llama.cpp's names for the same weights). The caller frees
 * with gb_free. */
gb v4_trunk(void);
gb v4_drafter(bool llama);
/* A text of n tokens, the same everywhere. */
void v4_tokens(int32_t *out, int n);

#endif
