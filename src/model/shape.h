/* shape.h: every hyper-parameter of a DeepSeek-V4 trunk and of its DSpark drafter, read from GGUF metadata after range
 * checks. Nothing is assumed: sizes, epsilons and schedules come from the file (Flash, Pro, Vision-Exp and small models
 * load alike). */
#ifndef DS4_MODEL_SHAPE_H
#define DS4_MODEL_SHAPE_H

#include "backend/backend.h"
#include "file/gguf.h"

enum { SHAPE_MAX_LAYERS = 128, SHAPE_MAX_STAGES = 8, SHAPE_MAX_TARGETS = 8, SHAPE_MAX_BLOCK = 15 };

typedef struct shape {
    be_dims dims;
    int layers;
    int ratio[SHAPE_MAX_LAYERS];    /* 0 window only, 4 compressed sparse, 128 heavily compressed */
    float clamp[SHAPE_MAX_LAYERS];  /* SwiGLU clamp of routed experts */
    float sclamp[SHAPE_MAX_LAYERS]; /* of the shared expert */
    int hash_layers;                /* first layers route by token id */
    int q_rank;
    uint32_t ctx_max;
    float rope_base, comp_rope_base;
    float yarn_factor, yarn_fast, yarn_slow;
    uint32_t yarn_orig;
    int mtp_layer; /* index of an MTP block inside the file that is left unread, or -1 */
} shape;

typedef struct drafter_shape {
    int stages;
    int block;     /* rows of a block: anchor + block - 1 noise tokens = number of drafts */
    int rank;      /* Markov rank */
    int32_t noise; /* noise (mask) token */
    int targets;
    int target[SHAPE_MAX_TARGETS]; /* trunk layers whose outputs are tapped, zero-based, ascending */
    bool llama_names;              /* the file uses llama.cpp's names (architecture dflash) */
} drafter_shape;

/* Reads a trunk. DS4_EMODEL names the key with found and expected; other architectures, MTP sidecars and drafters are
 * refused by name. */
int shape_read(shape *s, const gguf *g, ds4_err *e);
/* Reads a DSpark support file and checks it against the trunk. */
int shape_read_drafter(drafter_shape *s, const shape *trunk, const gguf *g, ds4_err *e);

/* Rotary frequencies, dims.rope_dim/2 numbers. compressed: base comp_rope_base with YaRN blending; else rope_base
 * plain. Computed in float32 as the reference does (power, reciprocal, blend). */
void shape_rope_freqs(const shape *s, bool compressed, float *freq);

#endif
