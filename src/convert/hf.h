/* hf.h: a DeepSeek-V4 checkpoint in the official Hugging Face form: config.json, tokenizer.json, safetensors. */
#ifndef DS4_CONVERT_HF_H
#define DS4_CONVERT_HF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "convert/ggufwrite.h"
#include "convert/safetensors.h"

enum { HF_MAX_LAYERS = 1024, HF_MAX_TARGETS = 8 };

/* config.json; names follow its keys. */
typedef struct hf_config {
    uint32_t vocab_size, num_hidden_layers, hidden_size, num_attention_heads, num_key_value_heads, head_dim;
    uint32_t qk_rope_head_dim, q_lora_rank, o_groups, o_lora_rank, sliding_window;
    uint32_t index_n_heads, index_head_dim, index_topk;
    uint32_t n_routed_experts, num_experts_per_tok, n_shared_experts, moe_intermediate_size, num_hash_layers;
    uint32_t hc_mult, hc_sinkhorn_iters, max_position_embeddings;
    uint32_t num_nextn_predict_layers; /* 1 in both releases whatever they hold: copied, never used */
    uint32_t bos_token_id, eos_token_id;
    float rms_norm_eps, hc_eps, rope_theta, compress_rope_theta, routed_scaling_factor, swiglu_limit;
    bool norm_topk_prob;
    float yarn_factor, yarn_beta_fast, yarn_beta_slow;
    uint32_t yarn_original;
    uint32_t n_ratios; /* >= num_hidden_layers; the rest belongs to MTP or DSpark stages */
    uint32_t ratios[HF_MAX_LAYERS];
    bool has_dspark; /* the dspark_* keys are present */
    uint32_t dspark_block_size, dspark_markov_rank, dspark_noise_token_id, n_targets, targets[HF_MAX_TARGETS];
} hf_config;

/* Reads and range-checks a config.json. */
int hf_read_config(hf_config *out, const char *path, ds4_err *e);
int hf_parse_config(hf_config *out, const char *text, size_t len, const char *name, ds4_err *e);

/* Tokenizer: reads tokenizer.json at `path` and adds the tokenizer.ggml.* keys to `w`. Ids that the file leaves open
 * below vocab_size become unused tokens. `path` must exist. */
int hf_write_tokenizer(ggufw *w, const char *path, const hf_config *c, ds4_err *e);

/* Weights. A weight's logical shape is [rows, cols] (a vector: [n]); FP4 stores two columns per byte.
 * The companion scale of "x.weight" is "x.scale". */
enum hf_coding { HF_PLAIN, HF_FP8, HF_FP4, HF_IDS };

typedef struct hf_weight {
    const st_tensor *t, *scale; /* scale NULL if plain */
    int coding;                 /* enum hf_coding */
    uint64_t rows, cols;        /* logical; a vector or scalar has rows = 1 */
} hf_weight;

/* Finds `name` (and its scale), checks coding, logical shape and scale shape, marks both as used.
 * rows = 0: a vector of cols values. Missing or different: DS4_EMODEL naming file, tensor, expected and found. */
int hf_find_weight(hf_weight *out, st_set *s, const char *name, uint64_t rows, uint64_t cols, ds4_err *e);

/* Decodes rows [row0, row0 + n) to n * cols floats (PLAIN, FP8, FP4). Exact. NaN where the file holds NaN. */
void hf_decode_rows(const hf_weight *w, uint64_t row0, uint64_t n, float *dst);
/* FP4 rows as MXFP4 blocks, lossless (codes moved, scale bytes unchanged); cols a multiple of 32. Returns the index of
 * the first row with a NaN scale (255), or row0 + n if there is none. */
uint64_t hf_repack_mxfp4(const hf_weight *w, uint64_t row0, uint64_t n, uint8_t *dst);
/* Integer ids (I64 or I32) -> int32; 0 <= id < limit else DS4_EMODEL. */
int hf_decode_ids(const hf_weight *w, const st_set *s, int32_t *dst, uint32_t limit, ds4_err *e);

#endif
