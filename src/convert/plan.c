#include "convert/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/quant.h"

#define MIX(dense, gateup, down) \
    {[PC_VEC] = Q_F32, [PC_FN] = Q_F16, [PC_SMALL] = Q_F16, [PC_EMBED] = Q_F16, [PC_DENSE] = dense, \
     [PC_GATEUP] = gateup, [PC_DOWN] = down, [PC_IDS] = Q_I32}

/* file_type: llama.cpp's numbers for general.file_type, informational. */
const plan_recipe plan_recipes[] = {
    {"f32", "everything F32", {[PC_IDS] = Q_I32}, 0},
    {"f16", "matrices F16", MIX(Q_F16, Q_F16, Q_F16), 1},
    {"q8", "matrices and experts Q8_0", MIX(Q_Q8_0, Q_Q8_0, Q_Q8_0), 7},
    {"q4", "matrices Q8_0, experts Q4_K", MIX(Q_Q8_0, Q_Q4_K, Q_Q4_K), 15},
    {"q2", "matrices Q8_0, expert gate/up IQ2_XXS, down Q2_K", MIX(Q_Q8_0, Q_IQ2_XXS, Q_Q2_K), 19},
    {"mxfp4", "matrices Q8_0, experts MXFP4", MIX(Q_Q8_0, Q_MXFP4, Q_MXFP4), 38},
    {0},
};

const plan_recipe *plan_find_recipe(const char *name)
{
    for (const plan_recipe *r = plan_recipes; r->name; r++)
        if (!strcmp(r->name, name))
            return r;
    return NULL;
}

/* Sizes that shapes are made of. */
enum size {
    S_NONE, S_ONE, S_THREE, S_HIDDEN, S_VOCAB, S_QRANK, S_HEADS, S_HEAD, S_QDIM, S_GROUP_IN, S_LOW, S_MULT, S_STREAMS,
    S_MIX, S_CWIDTH, S_RATIO, S_IHEADS, S_IDIM, S_IQ, S_IWIDTH, S_EXPERTS, S_USED, S_INNER, S_TAPS, S_RANK, S_CONF,
};

static uint64_t size_of(const hf_config *c, uint32_t ratio, enum size s)
{
    uint64_t hidden = c->hidden_size, head = c->head_dim, mult = c->hc_mult;
    switch (s) {
    case S_NONE: return 0;
    case S_ONE: return 1;
    case S_THREE: return 3;
    case S_HIDDEN: return hidden;
    case S_VOCAB: return c->vocab_size;
    case S_QRANK: return c->q_lora_rank;
    case S_HEADS: return c->num_attention_heads;
    case S_HEAD: return head;
    case S_QDIM: return c->num_attention_heads * head;
    case S_GROUP_IN: return c->num_attention_heads * head / c->o_groups;
    case S_LOW: return (uint64_t)c->o_groups * c->o_lora_rank;
    case S_MULT: return mult;
    case S_STREAMS: return mult * hidden;
    case S_MIX: return 2 * mult + mult * mult;
    case S_CWIDTH: return ratio == 4 ? 2 * head : head;
    case S_RATIO: return ratio;
    case S_IHEADS: return c->index_n_heads;
    case S_IDIM: return c->index_head_dim;
    case S_IQ: return (uint64_t)c->index_n_heads * c->index_head_dim;
    case S_IWIDTH: return 2 * (uint64_t)c->index_head_dim;
    case S_EXPERTS: return c->n_routed_experts;
    case S_USED: return c->num_experts_per_tok;
    case S_INNER: return c->moe_intermediate_size;
    case S_TAPS: return hidden * c->n_targets;
    case S_RANK: return c->dspark_markov_rank;
    case S_CONF: return hidden + c->dspark_markov_rank;
    }
    return 0;
}

enum when { ALWAYS, COMPRESSED, SPARSE, HASHED, SCORED };

typedef struct row { const char *gguf, *hf; enum size rows, cols; int cls; enum when when; } row;

static const row layer_rows[] = {
    {"hc_attn_fn.weight", "hc_attn_fn", S_MIX, S_STREAMS, PC_FN, ALWAYS},
    {"hc_attn_base.weight", "hc_attn_base", S_NONE, S_MIX, PC_VEC, ALWAYS},
    {"hc_attn_scale.weight", "hc_attn_scale", S_NONE, S_THREE, PC_VEC, ALWAYS},
    {"attn_norm.weight", "attn_norm.weight", S_NONE, S_HIDDEN, PC_VEC, ALWAYS},
    {"attn_q_a.weight", "attn.wq_a.weight", S_QRANK, S_HIDDEN, PC_DENSE, ALWAYS},
    {"attn_q_a_norm.weight", "attn.q_norm.weight", S_NONE, S_QRANK, PC_VEC, ALWAYS},
    {"attn_q_b.weight", "attn.wq_b.weight", S_QDIM, S_QRANK, PC_DENSE, ALWAYS},
    {"attn_kv.weight", "attn.wkv.weight", S_HEAD, S_HIDDEN, PC_DENSE, ALWAYS},
    {"attn_kv_a_norm.weight", "attn.kv_norm.weight", S_NONE, S_HEAD, PC_VEC, ALWAYS},
    {"attn_sinks.weight", "attn.attn_sink", S_NONE, S_HEADS, PC_VEC, ALWAYS},
    {"attn_output_a.weight", "attn.wo_a.weight", S_LOW, S_GROUP_IN, PC_DENSE, ALWAYS},
    {"attn_output_b.weight", "attn.wo_b.weight", S_HIDDEN, S_LOW, PC_DENSE, ALWAYS},
    {"attn_compressor_kv.weight", "attn.compressor.wkv.weight", S_CWIDTH, S_HIDDEN, PC_SMALL, COMPRESSED},
    {"attn_compressor_gate.weight", "attn.compressor.wgate.weight", S_CWIDTH, S_HIDDEN, PC_SMALL, COMPRESSED},
    {"attn_compressor_ape.weight", "attn.compressor.ape", S_RATIO, S_CWIDTH, PC_SMALL, COMPRESSED},
    {"attn_compressor_norm.weight", "attn.compressor.norm.weight", S_NONE, S_HEAD, PC_VEC, COMPRESSED},
    {"indexer.attn_q_b.weight", "attn.indexer.wq_b.weight", S_IQ, S_QRANK, PC_SMALL, SPARSE},
    {"indexer.proj.weight", "attn.indexer.weights_proj.weight", S_IHEADS, S_HIDDEN, PC_SMALL, SPARSE},
    {"indexer_compressor_kv.weight", "attn.indexer.compressor.wkv.weight", S_IWIDTH, S_HIDDEN, PC_SMALL, SPARSE},
    {"indexer_compressor_gate.weight", "attn.indexer.compressor.wgate.weight", S_IWIDTH, S_HIDDEN, PC_SMALL, SPARSE},
    {"indexer_compressor_ape.weight", "attn.indexer.compressor.ape", S_RATIO, S_IWIDTH, PC_SMALL, SPARSE},
    {"indexer_compressor_norm.weight", "attn.indexer.compressor.norm.weight", S_NONE, S_IDIM, PC_VEC, SPARSE},
    {"hc_ffn_fn.weight", "hc_ffn_fn", S_MIX, S_STREAMS, PC_FN, ALWAYS},
    {"hc_ffn_base.weight", "hc_ffn_base", S_NONE, S_MIX, PC_VEC, ALWAYS},
    {"hc_ffn_scale.weight", "hc_ffn_scale", S_NONE, S_THREE, PC_VEC, ALWAYS},
    {"ffn_norm.weight", "ffn_norm.weight", S_NONE, S_HIDDEN, PC_VEC, ALWAYS},
    {"ffn_gate_inp.weight", "ffn.gate.weight", S_EXPERTS, S_HIDDEN, PC_SMALL, ALWAYS},
    {"exp_probs_b.bias", "ffn.gate.bias", S_NONE, S_EXPERTS, PC_VEC, SCORED},
    {"ffn_gate_tid2eid.weight", "ffn.gate.tid2eid", S_VOCAB, S_USED, PC_IDS, HASHED},
    {"ffn_gate_exps.weight", "ffn.experts.%u.w1.weight", S_INNER, S_HIDDEN, PC_GATEUP, ALWAYS},
    {"ffn_up_exps.weight", "ffn.experts.%u.w3.weight", S_INNER, S_HIDDEN, PC_GATEUP, ALWAYS},
    {"ffn_down_exps.weight", "ffn.experts.%u.w2.weight", S_HIDDEN, S_INNER, PC_DOWN, ALWAYS},
    {"ffn_gate_shexp.weight", "ffn.shared_experts.w1.weight", S_INNER, S_HIDDEN, PC_DENSE, ALWAYS},
    {"ffn_up_shexp.weight", "ffn.shared_experts.w3.weight", S_INNER, S_HIDDEN, PC_DENSE, ALWAYS},
    {"ffn_down_shexp.weight", "ffn.shared_experts.w2.weight", S_HIDDEN, S_INNER, PC_DENSE, ALWAYS},
};

static const row trunk_rows[] = {
    {"token_embd.weight", "embed.weight", S_VOCAB, S_HIDDEN, PC_EMBED, ALWAYS},
    {"output.weight", "head.weight", S_VOCAB, S_HIDDEN, PC_DENSE, ALWAYS},
    {"output_norm.weight", "norm.weight", S_NONE, S_HIDDEN, PC_VEC, ALWAYS},
    {"output_hc_fn.weight", "hc_head_fn", S_MULT, S_STREAMS, PC_FN, ALWAYS},
    {"output_hc_base.weight", "hc_head_base", S_NONE, S_MULT, PC_VEC, ALWAYS},
    {"output_hc_scale.weight", "hc_head_scale", S_NONE, S_ONE, PC_VEC, ALWAYS},
};

/* Drafter extras: ds4 keeps the checkpoint's name, llama.cpp has its own (column `gguf`). */
static const row first_stage_rows[] = {
    {"fc.weight", "main_proj.weight", S_HIDDEN, S_TAPS, PC_DENSE, ALWAYS},
    {"enc.output_norm.weight", "main_norm.weight", S_NONE, S_HIDDEN, PC_VEC, ALWAYS},
};
static const row last_stage_rows[] = {
    {"output_norm.weight", "norm.weight", S_NONE, S_HIDDEN, PC_VEC, ALWAYS},
    {"output_hc_fn.weight", "hc_head_fn", S_MULT, S_STREAMS, PC_FN, ALWAYS},
    {"output_hc_base.weight", "hc_head_base", S_NONE, S_MULT, PC_VEC, ALWAYS},
    {"output_hc_scale.weight", "hc_head_scale", S_NONE, S_ONE, PC_VEC, ALWAYS},
    {"markov_w1.weight", "markov_head.markov_w1.weight", S_VOCAB, S_RANK, PC_DENSE, ALWAYS},
    {"markov_w2.weight", "markov_head.markov_w2.weight", S_VOCAB, S_RANK, PC_DENSE, ALWAYS},
    {"conf_proj.weight", "confidence_head.proj.weight", S_ONE, S_CONF, PC_DENSE, ALWAYS},
};
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* The type asked for, or the next one that a row of ne0 values can take. */
static int choose_type(plan_tensor *t, const plan_options *o, ds4_err *e)
{
    uint32_t type = o->recipe->type[t->cls];
    bool experts = t->cls == PC_GATEUP || t->cls == PC_DOWN;
    if (experts && o->experts >= 0)
        type = (uint32_t)o->experts;
    if (t->cls == PC_DENSE && o->dense >= 0)
        type = (uint32_t)o->dense;
    t->wanted = type;
    if (t->cls != PC_IDS && t->ne[0] % quant_type_info(type)->block) {
        t->type = t->ne[0] % 32 == 0 ? Q_Q8_0 : Q_F16;
        if (o->strict)
            return ds4_fail(e, DS4_EARG,
                            "tensor %s: rows of %llu values cannot be %s (blocks of %u); choose another type or "
                            "drop --strict", t->name, (unsigned long long)t->ne[0], quant_type_name(type),
                            quant_type_info(type)->block);
    } else {
        t->type = type;
    }
    t->nbytes = quant_row_bytes(t->type, t->ne[0]) * t->ne[1] * t->ne[2];
    return 0;
}

static void set_shape(plan_tensor *t, const hf_config *c, const row *r, const plan_options *o)
{
    t->ne[0] = t->cols;
    t->ne[1] = t->rows ? t->rows : 1;
    t->ne[2] = t->ne[3] = 1;
    t->n_dims = t->rows ? 2 : 1;
    if (t->slices > 1 || r->cls == PC_GATEUP || r->cls == PC_DOWN) {
        t->ne[2] = t->slices;
        t->n_dims = 3;
    } else if (o->llama && !strcmp(r->gguf, "attn_output_a.weight")) {
        t->ne[1] = c->o_lora_rank;
        t->ne[2] = c->o_groups;
        t->n_dims = 3;
    }
}

/* Adds one row: GGUF name = gguf_prefix + gguf, source = hf_prefix + r->hf. */
static int add(plan *p, const hf_config *c, const row *r, uint32_t ratio, const char *gguf_prefix, const char *gguf,
               const char *hf_prefix, const plan_options *o, ds4_err *e)
{
    if (p->n == p->cap) {
        size_t cap = p->cap * 2 + 64;
        plan_tensor *q = realloc(p->t, cap * sizeof *q);
        if (!q)
            return ds4_fail(e, DS4_ENOMEM, "out of memory planning %zu tensors", cap);
        p->t = q;
        p->cap = cap;
    }
    plan_tensor *t = &p->t[p->n];
    *t = (plan_tensor){.cls = r->cls, .slices = 1};
    t->rows = size_of(c, ratio, r->rows);
    t->cols = size_of(c, ratio, r->cols);
    snprintf(t->name, sizeof t->name, "%s%s", gguf_prefix, gguf);
    snprintf(t->src, sizeof t->src, "%s%s", hf_prefix, r->hf);
    if (r->cls == PC_GATEUP || r->cls == PC_DOWN)
        t->slices = c->n_routed_experts;
    set_shape(t, c, r, o);
    int rc = choose_type(t, o, e);
    if (rc)
        return rc;
    p->bytes += t->nbytes;
    p->n++;
    return 0;
}

static bool present(enum when when, uint32_t ratio, bool hashed)
{
    switch (when) {
    case COMPRESSED: return ratio != 0;
    case SPARSE: return ratio == 4;
    case HASHED: return hashed;
    case SCORED: return !hashed;
    default: return true;
    }
}

static int add_layer(plan *p, const hf_config *c, uint32_t ratio, bool hashed, const char *gguf_prefix,
                     const char *hf_prefix, const plan_options *o, ds4_err *e)
{
    for (size_t i = 0; i < COUNT(layer_rows); i++) {
        const row *r = &layer_rows[i];
        if (!present(r->when, ratio, hashed))
            continue;
        int rc = add(p, c, r, ratio, gguf_prefix, r->gguf, hf_prefix, o, e);
        if (rc)
            return rc;
    }
    return 0;
}

int plan_trunk(plan *out, const hf_config *c, const plan_options *o, ds4_err *e)
{
    plan p = {0};
    char gguf[32], hf[32];
    int rc = 0;
    for (size_t i = 0; i < COUNT(trunk_rows) && !rc; i++)
        rc = add(&p, c, &trunk_rows[i], 0, "", trunk_rows[i].gguf, "", o, e);
    for (uint32_t l = 0; l < c->num_hidden_layers && !rc; l++) {
        snprintf(gguf, sizeof gguf, "blk.%u.", l);
        snprintf(hf, sizeof hf, "layers.%u.", l);
        rc = add_layer(&p, c, c->ratios[l], l < c->num_hash_layers, gguf, hf, o, e);
    }
    if (rc)
        plan_free(&p);
    else
        *out = p;
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const plan_tensor *)a)->name, ((const plan_tensor *)b)->name);
}

/* Extras of a stage; the ds4 layout names them like the checkpoint (hc_head_* with ".weight" appended). */
static int add_extras(plan *p, const hf_config *c, const row *rows, size_t n, const char *prefix, const plan_options *o,
                      ds4_err *e)
{
    char own[64];
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        snprintf(own, sizeof own, "%s%s", rows[i].hf, strstr(rows[i].hf, ".weight") ? "" : ".weight");
        rc = add(p, c, &rows[i], 0, o->llama ? "" : prefix, o->llama ? rows[i].gguf : own, prefix, o, e);
    }
    return rc;
}

int plan_drafter(plan *out, const hf_config *c, uint32_t stages, const plan_options *o, ds4_err *e)
{
    plan p = {.stages = stages};
    char gguf[32], hf[32];
    int rc = 0;
    for (uint32_t s = 0; s < stages && !rc; s++) {
        snprintf(hf, sizeof hf, "mtp.%u.", s);
        snprintf(gguf, sizeof gguf, o->llama ? "blk.%u." : "mtp.%u.", s);
        rc = add_layer(&p, c, 0, false, gguf, hf, o, e);
        if (!rc && s == 0)
            rc = add_extras(&p, c, first_stage_rows, COUNT(first_stage_rows), hf, o, e);
        if (!rc && s == stages - 1)
            rc = add_extras(&p, c, last_stage_rows, COUNT(last_stage_rows), hf, o, e);
    }
    if (rc) {
        plan_free(&p);
        return rc;
    }
    qsort(p.t, p.n, sizeof *p.t, by_name);
    *out = p;
    return 0;
}

void plan_free(plan *p)
{
    free(p->t);
    *p = (plan){0};
}

const char *plan_src(const plan_tensor *t, uint32_t slice, char *buf, size_t n)
{
    const char *mark = strstr(t->src, "%u");
    if (mark)
        snprintf(buf, n, "%.*s%u%s", (int)(mark - t->src), t->src, slice, mark + 2);
    else
        snprintf(buf, n, "%s", t->src);
    return buf;
}
