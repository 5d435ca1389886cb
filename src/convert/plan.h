/* plan.h: which tensors a converted file holds: GGUF name, shape and type, and the checkpoint tensor each comes from.
 *
 * Names and shapes are facts of the deepseek4 GGUF layouts. Trunk: token_embd, output*, blk.N.*; drafter (DSpark):
 * mtp.S.* in the ds4 layout (directory sorted by name), blk.S.* plus fc, enc.output_norm, ... in the llama layout. */
#ifndef DS4_CONVERT_PLAN_H
#define DS4_CONVERT_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "convert/ggufwrite.h"
#include "convert/hf.h"

/* What a tensor is, for the choice of its type. */
enum plan_class {
    PC_VEC,    /* norms, scales, bases, sinks, biases: always F32 */
    PC_FN,     /* hyper-connection functions */
    PC_SMALL,  /* compressor, indexer, router */
    PC_EMBED,  /* token embedding */
    PC_DENSE,  /* attention, shared expert, head, drafter projections */
    PC_GATEUP, /* routed experts, w1 and w3 */
    PC_DOWN,   /* routed experts, w2 */
    PC_IDS,    /* token-to-expert table: always I32 */
    PC_N,
};

typedef struct plan_recipe { const char *name, *text; uint32_t type[PC_N]; uint32_t file_type; } plan_recipe;

typedef struct plan_tensor {
    char name[96];      /* GGUF */
    char src[96];       /* checkpoint; for experts with %u in place of the expert's number */
    uint32_t n_dims;
    uint64_t ne[4];     /* GGUF order, fastest first */
    uint64_t rows, cols; /* of one source tensor as stored: [rows, cols], rows = 0 for a vector [cols] */
    uint32_t slices;    /* experts stacked in it, else 1 */
    int cls;            /* enum plan_class */
    uint32_t type;      /* GGUF type */
    uint32_t wanted;    /* type the recipe asked for; differs from `type` where that is impossible */
    uint64_t nbytes;
} plan_tensor;

typedef struct plan {
    plan_tensor *t;
    size_t n, cap;
    uint64_t bytes;     /* sum of nbytes */
    uint32_t stages;    /* drafter only */
} plan;

typedef struct plan_options {
    const plan_recipe *recipe;
    int64_t experts, dense; /* type overrides, -1 = none */
    bool llama;  /* llama.cpp's layout */
    bool strict; /* a type that a shape cannot take is an error instead of a fallback */
} plan_options;

/* All recipes, ended by a NULL name. */
extern const plan_recipe plan_recipes[];
const plan_recipe *plan_find_recipe(const char *name); /* NULL if unknown */

int plan_trunk(plan *out, const hf_config *c, const plan_options *o, ds4_err *e);
/* stages = highest mtp.N in the checkpoint + 1. */
int plan_drafter(plan *out, const hf_config *c, uint32_t stages, const plan_options *o, ds4_err *e);
void plan_free(plan *p);

/* Source name of one slice into buf; returns buf. */
const char *plan_src(const plan_tensor *t, uint32_t slice, char *buf, size_t n);

/* Metadata. `name` is general.name. The trunk's tokenizer keys are written by hf_write_tokenizer. */
void plan_meta_trunk(ggufw *w, const hf_config *c, const plan_options *o, const char *name);
void plan_meta_drafter(ggufw *w, const hf_config *c, uint32_t stages, const plan_options *o, const char *name);

#endif
