/* convert.h: a Hugging Face DeepSeek-V4 checkpoint -> one GGUF file (trunk, or DSpark drafter).
 *
 *   conv_open   config.json, safetensors headers, plan; every planned tensor is found and its shape checked, every
 *               tensor of the checkpoint that belongs to this output must be planned. Nothing is written.
 *   conv_run    tensor by tensor, slice by slice (one expert), in chunks: decode -> check -> encode -> write. Memory
 *               is a few chunks whatever the model; the output does not depend on the number of threads. */
#ifndef DS4_CONVERT_CONVERT_H
#define DS4_CONVERT_CONVERT_H

#include "base/err.h"
#include "convert/enc.h"
#include "convert/plan.h"

/* Called after each tensor is written: its number (from 0) and what its type lost. */
typedef void (*conv_progress)(void *ctx, const plan *p, size_t no, const enc_loss *loss, const char *remark);

typedef struct conv_options {
    const char *hf_dir;
    const char *out;      /* not needed for conv_open */
    const char *imatrix;  /* legacy .dat, or NULL */
    const char *name;     /* general.name, or NULL for a default */
    bool drafter;         /* DSpark support file instead of the trunk */
    int threads;          /* >= 1 */
    plan_options plan;
    conv_progress progress; /* may be NULL */
    void *ctx;
} conv_options;

typedef struct conv conv;

/* Copies nothing of `o` but the struct: its strings must outlive the object. */
int conv_open(conv **out, const conv_options *o, ds4_err *e);
void conv_close(conv *c); /* NULL is fine */
const plan *conv_plan(const conv *c);
const hf_config *conv_config(const conv *c);
bool conv_has_tokenizer(const conv *c); /* tokenizer.json is there (else the trunk gets no tokenizer keys) */
size_t conv_n_other(const conv *c);     /* tensors of the checkpoint that belong to the other output */
/* Writes the file; *bytes (may be NULL) = its size. An existing file is replaced only on success. */
int conv_run(conv *c, uint64_t *bytes, ds4_err *e);

#endif
