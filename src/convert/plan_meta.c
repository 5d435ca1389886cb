/* Metadata keys of the deepseek4, deepseek4-dspark and dflash architectures. */
#include <stdio.h>

#include "convert/plan.h"
#include "file/gguf.h"

typedef struct meta { ggufw *w; const char *arch; } meta;

static const char *full(const meta *m, const char *key, char buf[96])
{
    snprintf(buf, 96, "%s.%s", m->arch, key);
    return buf;
}

static void u32(const meta *m, const char *key, uint32_t v)
{
    char buf[96];
    ggufw_kv_u32(m->w, full(m, key, buf), v);
}

static void f32(const meta *m, const char *key, float v)
{
    char buf[96];
    ggufw_kv_f32(m->w, full(m, key, buf), v);
}

static void general(ggufw *w, const char *arch, const char *name, const plan_options *o)
{
    ggufw_kv_str(w, "general.architecture", arch);
    ggufw_kv_str(w, "general.name", name);
    ggufw_kv_u32(w, "general.alignment", GGUFW_ALIGN);
    ggufw_kv_u32(w, "general.quantization_version", 2);
    ggufw_kv_u32(w, "general.file_type", o->recipe->file_type);
}

static void attention(const meta *m, const hf_config *c)
{
    u32(m, "attention.head_count", c->num_attention_heads);
    u32(m, "attention.head_count_kv", c->num_key_value_heads);
    u32(m, "attention.key_length", c->head_dim);
    u32(m, "attention.value_length", c->head_dim);
    f32(m, "attention.layer_norm_rms_epsilon", c->rms_norm_eps);
    u32(m, "attention.q_lora_rank", c->q_lora_rank);
    u32(m, "attention.output_lora_rank", c->o_lora_rank);
    u32(m, "attention.output_group_count", c->o_groups);
    u32(m, "attention.sliding_window", c->sliding_window);
    f32(m, "attention.compress_rope_freq_base", c->compress_rope_theta);
    u32(m, "attention.indexer.head_count", c->index_n_heads);
    u32(m, "attention.indexer.key_length", c->index_head_dim);
    u32(m, "attention.indexer.top_k", c->index_topk);
}

static void rope(const meta *m, const hf_config *c)
{
    char buf[96];
    u32(m, "rope.dimension_count", c->qk_rope_head_dim);
    f32(m, "rope.freq_base", c->rope_theta);
    ggufw_kv_str(m->w, full(m, "rope.scaling.type", buf), "yarn");
    f32(m, "rope.scaling.factor", c->yarn_factor);
    u32(m, "rope.scaling.original_context_length", c->yarn_original);
    f32(m, "rope.scaling.yarn_beta_fast", c->yarn_beta_fast);
    f32(m, "rope.scaling.yarn_beta_slow", c->yarn_beta_slow);
}

static void experts(const meta *m, const hf_config *c, uint32_t layers)
{
    char buf[96];
    static const char *const clamps[] = {"swiglu_clamp_exp", "swiglu_clamp_shexp"};
    u32(m, "hyper_connection.count", c->hc_mult);
    u32(m, "hyper_connection.sinkhorn_iterations", c->hc_sinkhorn_iters);
    f32(m, "hyper_connection.epsilon", c->hc_eps);
    u32(m, "expert_count", c->n_routed_experts);
    u32(m, "expert_used_count", c->num_experts_per_tok);
    u32(m, "expert_shared_count", c->n_shared_experts);
    u32(m, "expert_feed_forward_length", c->moe_intermediate_size);
    f32(m, "expert_weights_scale", c->routed_scaling_factor);
    ggufw_kv_bool(m->w, full(m, "expert_weights_norm", buf), c->norm_topk_prob);
    u32(m, "expert_gating_func", 4); /* sqrt-softplus */
    for (int k = 0; k < 2; k++) {
        ggufw_kv_arr(m->w, full(m, clamps[k], buf), GGUF_F32, layers);
        for (uint32_t i = 0; i < layers; i++)
            ggufw_arr_f32(m->w, c->swiglu_limit);
    }
}

static void shape(const meta *m, const hf_config *c, uint32_t layers)
{
    u32(m, "block_count", layers);
    u32(m, "context_length", c->max_position_embeddings);
    u32(m, "embedding_length", c->hidden_size);
    u32(m, "vocab_size", c->vocab_size);
    attention(m, c);
    rope(m, c);
    experts(m, c, layers);
}

void plan_meta_trunk(ggufw *w, const hf_config *c, const plan_options *o, const char *name)
{
    meta m = {w, "deepseek4"};
    general(w, m.arch, name, o);
    shape(&m, c, c->num_hidden_layers);
    ggufw_kv_arr(w, "deepseek4.attention.compress_ratios", GGUF_I32, c->n_ratios);
    for (uint32_t i = 0; i < c->n_ratios; i++)
        ggufw_arr_i32(w, (int32_t)c->ratios[i]);
    u32(&m, "hash_layer_count", c->num_hash_layers);
    u32(&m, "nextn_predict_layers", c->num_nextn_predict_layers);
}

static void targets(ggufw *w, const char *key, const hf_config *c, uint32_t plus)
{
    ggufw_kv_arr(w, key, GGUF_U32, c->n_targets);
    for (uint32_t i = 0; i < c->n_targets; i++)
        ggufw_arr_u32(w, c->targets[i] + plus);
}

/* llama.cpp: the drafter is a model of its own; target layers are named by the layer that reads them (+1). */
static void drafter_llama(ggufw *w, const hf_config *c, uint32_t stages, const plan_options *o, const char *name)
{
    meta m = {w, "dflash"};
    general(w, m.arch, name, o);
    shape(&m, c, stages);
    ggufw_kv_arr(w, "dflash.attention.compress_ratios", GGUF_I32, stages);
    for (uint32_t i = 0; i < stages; i++)
        ggufw_arr_i32(w, 0);
    u32(&m, "hash_layer_count", 0);
    u32(&m, "block_size", c->dspark_block_size);
    targets(w, "dflash.target_layers", c, 1);
    ggufw_kv_bool(w, "dflash.sample_from_anchor", true);
    ggufw_kv_u32(w, "tokenizer.ggml.mask_token_id", c->dspark_noise_token_id);
}

void plan_meta_drafter(ggufw *w, const hf_config *c, uint32_t stages, const plan_options *o, const char *name)
{
    if (o->llama) {
        drafter_llama(w, c, stages, o, name);
        return;
    }
    ggufw_kv_str(w, "general.architecture", "deepseek4-dspark");
    ggufw_kv_str(w, "general.name", name);
    ggufw_kv_u32(w, "general.alignment", GGUFW_ALIGN);
    ggufw_kv_u32(w, "dspark.block_size", c->dspark_block_size);
    ggufw_kv_u32(w, "dspark.markov_rank", c->dspark_markov_rank);
    ggufw_kv_u32(w, "dspark.noise_token_id", c->dspark_noise_token_id);
    targets(w, "dspark.target_layer_ids", c, 0);
    ggufw_kv_u32(w, "dspark.stage_count", stages);
    ggufw_kv_u32(w, "dspark.n_layers", stages);
}
