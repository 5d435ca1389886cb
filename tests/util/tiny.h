/* tiny.h: a small DeepSeek-V4-shaped trunk and drafter with weights from an integer hash, made in memory: every layer kind (ratios 0, 4,
 * 128; hash and scored routers; sinks; drafter of 3 stages), no file needed. Deterministic on every machine. */
#ifndef TESTS_UTIL_TINY_H
#define TESTS_UTIL_TINY_H

#include <stddef.h>
#include <stdint.h>

enum { TINY_VOCAB = 512, TINY_LAYERS = 5, TINY_D = 256, TINY_HEADS = 4, TINY_HEAD = 128, TINY_QR = 64, TINY_GROUPS = 2, TINY_RANK = 64,
       TINY_IH = 16, TINY_I = 128, TINY_TOPK = 16, TINY_E = 8, TINY_USED = 2, TINY_FF = 64, TINY_HASH = 1, TINY_BLOCK = 5,
       TINY_MARKOV = 32, TINY_NOISE = 510 };

typedef struct tiny_file { uint8_t *p; size_t n; } tiny_file; /* malloc'ed GGUF bytes */

/* quantised: matrices Q8_0 and experts MXFP4; else everything F32. The values of both differ. */
tiny_file tiny_trunk(int quantised);
tiny_file tiny_drafter(int quantised);

#endif
