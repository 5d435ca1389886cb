#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/hf.h"
#include "base/fsio.h"

/* fallback -1: required */
typedef struct int_key { const char *key; size_t at; uint32_t lo, hi; int64_t fallback; } int_key;
typedef struct num_key { const char *key; size_t at; double lo, hi, fallback; } num_key;           /* NaN: required */

#define AT(f) offsetof(hf_config, f)
static const int_key int_keys[] = {
    {"vocab_size", AT(vocab_size), 4, 1 << 24, -1},
    {"num_hidden_layers", AT(num_hidden_layers), 1, HF_MAX_LAYERS, -1},
    {"hidden_size", AT(hidden_size), 32, 1 << 17, -1},
    {"num_attention_heads", AT(num_attention_heads), 1, 4096, -1},
    {"num_key_value_heads", AT(num_key_value_heads), 1, 1, 1},
    {"head_dim", AT(head_dim), 32, 4096, -1},
    {"qk_rope_head_dim", AT(qk_rope_head_dim), 2, 4096, -1},
    {"q_lora_rank", AT(q_lora_rank), 1, 1 << 17, -1},
    {"o_groups", AT(o_groups), 1, 4096, -1},
    {"o_lora_rank", AT(o_lora_rank), 1, 1 << 17, -1},
    {"sliding_window", AT(sliding_window), 1, 1 << 20, -1},
    {"index_n_heads", AT(index_n_heads), 1, 4096, -1},
    {"index_head_dim", AT(index_head_dim), 32, 4096, -1},
    {"index_topk", AT(index_topk), 1, 1 << 20, -1},
    {"n_routed_experts", AT(n_routed_experts), 1, 65536, -1},
    {"num_experts_per_tok", AT(num_experts_per_tok), 1, 256, -1},
    {"n_shared_experts", AT(n_shared_experts), 1, 1, 1},
    {"moe_intermediate_size", AT(moe_intermediate_size), 1, 1 << 20, -1},
    {"num_hash_layers", AT(num_hash_layers), 0, HF_MAX_LAYERS, -1},
    {"hc_mult", AT(hc_mult), 1, 64, -1},
    {"hc_sinkhorn_iters", AT(hc_sinkhorn_iters), 1, 1000, -1},
    {"max_position_embeddings", AT(max_position_embeddings), 1, 1u << 31, -1},
    {"num_nextn_predict_layers", AT(num_nextn_predict_layers), 0, 64, 0},
    {"bos_token_id", AT(bos_token_id), 0, 1 << 24, 0},
    {"eos_token_id", AT(eos_token_id), 0, 1 << 24, 1},
};
static const num_key num_keys[] = {
    {"rms_norm_eps", AT(rms_norm_eps), 0, 1, NAN},
    {"hc_eps", AT(hc_eps), 0, 1, NAN},
    {"rope_theta", AT(rope_theta), 1, 1e12, NAN},
    {"compress_rope_theta", AT(compress_rope_theta), 1, 1e12, NAN},
    {"routed_scaling_factor", AT(routed_scaling_factor), 1e-6, 1e6, NAN},
    {"swiglu_limit", AT(swiglu_limit), 0, 1e6, NAN},
};
static const num_key yarn_keys[] = {
    {"factor", AT(yarn_factor), 1, 1e6, NAN},
    {"beta_fast", AT(yarn_beta_fast), 0, 1e6, 32},
    {"beta_slow", AT(yarn_beta_slow), 0, 1e6, 1},
};
static const int_key yarn_ints[] = {
    {"original_max_position_embeddings", AT(yarn_original), 1, 1u << 31, -1},
};
static const int_key dspark_keys[] = {
    {"dspark_block_size", AT(dspark_block_size), 1, 16, -1},
    {"dspark_markov_rank", AT(dspark_markov_rank), 1, 1 << 16, -1},
    {"dspark_noise_token_id", AT(dspark_noise_token_id), 0, 1 << 24, -1},
};
#define COUNT(a) (sizeof(a) / sizeof *(a))

static int read_ints(hf_config *c, const json_t *root, const int_key *k, size_t n, const char *name, ds4_err *e)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(root, k[i].key);
        int64_t x = json_is_integer(v) ? json_integer_value(v) : k[i].fallback;
        if ((!v || json_is_null(v)) && k[i].fallback < 0)
            return ds4_fail(e, DS4_EMODEL, "%s: key %s is missing; is this a DeepSeek-V4 config.json?", name, k[i].key);
        if ((v && !json_is_null(v) && !json_is_integer(v)) || x < k[i].lo || x > k[i].hi)
            return ds4_fail(e, DS4_EMODEL, "%s: %s: expected an integer in %u..%u, found %lld", name, k[i].key, k[i].lo,
                            k[i].hi, (long long)x);
        *(uint32_t *)((char *)c + k[i].at) = (uint32_t)x;
    }
    return 0;
}

static int read_nums(hf_config *c, const json_t *root, const num_key *k, size_t n, const char *name, ds4_err *e)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(root, k[i].key);
        double x = json_is_number(v) ? json_number_value(v) : k[i].fallback;
        if (!v && isnan(k[i].fallback))
            return ds4_fail(e, DS4_EMODEL, "%s: key %s is missing; is this a DeepSeek-V4 config.json?", name, k[i].key);
        if ((v && !json_is_number(v)) || !(x >= k[i].lo && x <= k[i].hi))
            return ds4_fail(e, DS4_EMODEL, "%s: %s: expected a number in %g..%g, found %g", name, k[i].key, k[i].lo,
                            k[i].hi, x);
        *(float *)((char *)c + k[i].at) = (float)x;
    }
    return 0;
}

static int read_list(const json_t *root, const char *key, uint32_t *dst, uint32_t *n, uint32_t lo, uint32_t hi,
                     const char *name, ds4_err *e)
{
    const json_t *a = json_object_get(root, key);
    if (!json_is_array(a) || json_array_size(a) < lo || json_array_size(a) > hi)
        return ds4_fail(e, DS4_EMODEL, "%s: %s: expected a list of %u..%u integers, found %s of %zu", name, key, lo, hi,
                        json_is_array(a) ? "a list" : "no list", json_array_size(a));
    *n = (uint32_t)json_array_size(a);
    for (uint32_t i = 0; i < *n; i++) {
        const json_t *v = json_array_get(a, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 65536)
            return ds4_fail(e, DS4_EMODEL, "%s: %s: entry %u is not an integer in 0..65536", name, key, i);
        dst[i] = (uint32_t)json_integer_value(v);
    }
    return 0;
}

static int expect_text(const json_t *root, const char *key, const char *want, const char *name, ds4_err *e)
{
    const json_t *v = json_object_get(root, key);
    const char *s = json_string_value(v);
    if (v && (!s || strcmp(s, want)))
        return ds4_fail(e, DS4_EMODEL, "%s: %s: expected \"%s\", found \"%s\"", name, key, want, s ? s : "no string");
    return 0;
}

/* Facts that the formulas below and the engine rely on. */
static int check_relations(const hf_config *c, const char *name, ds4_err *e)
{
    for (uint32_t i = 0; i < c->n_ratios; i++)
        if (c->ratios[i] != 0 && (i >= c->num_hidden_layers || (c->ratios[i] != 4 && c->ratios[i] != 128)))
            return ds4_fail(e, DS4_EMODEL, "%s: compress_ratios[%u]: expected %s, found %u", name, i,
                            i < c->num_hidden_layers ? "0, 4 or 128" : "0 for a draft stage", c->ratios[i]);
    if (c->qk_rope_head_dim >= c->head_dim || c->qk_rope_head_dim % 2)
        return ds4_fail(e, DS4_EMODEL, "%s: qk_rope_head_dim %u must be even and below head_dim %u", name,
                        c->qk_rope_head_dim, c->head_dim);
    if (c->num_attention_heads % c->o_groups)
        return ds4_fail(e, DS4_EMODEL, "%s: o_groups %u does not divide num_attention_heads %u", name, c->o_groups,
                        c->num_attention_heads);
    if (c->num_experts_per_tok > c->n_routed_experts)
        return ds4_fail(e, DS4_EMODEL, "%s: num_experts_per_tok %u exceeds n_routed_experts %u", name,
                        c->num_experts_per_tok, c->n_routed_experts);
    for (uint32_t i = 0; i < c->n_targets; i++)
        if (c->targets[i] >= c->num_hidden_layers || (i && c->targets[i] <= c->targets[i - 1]))
            return ds4_fail(e, DS4_EMODEL, "%s: dspark_target_layer_ids must rise and stay below num_hidden_layers",
                            name);
    if (c->has_dspark && c->dspark_noise_token_id >= c->vocab_size)
        return ds4_fail(e, DS4_EMODEL, "%s: dspark_noise_token_id %u is not below vocab_size %u", name,
                        c->dspark_noise_token_id, c->vocab_size);
    return 0;
}

static int read_dspark(hf_config *c, const json_t *root, const char *name, ds4_err *e)
{
    c->has_dspark = json_object_get(root, "dspark_block_size") != NULL;
    if (!c->has_dspark)
        return 0;
    int rc = read_ints(c, root, dspark_keys, COUNT(dspark_keys), name, e);
    return rc ? rc : read_list(root, "dspark_target_layer_ids", c->targets, &c->n_targets, 1, HF_MAX_TARGETS, name, e);
}

static int read_all(hf_config *c, const json_t *root, const char *name, ds4_err *e)
{
    int rc;
    const json_t *yarn = json_object_get(root, "rope_scaling"), *norm = json_object_get(root, "norm_topk_prob");
    if ((rc = expect_text(root, "model_type", "deepseek_v4", name, e)) ||
        (rc = expect_text(root, "scoring_func", "sqrtsoftplus", name, e)) ||
        (rc = expect_text(root, "topk_method", "noaux_tc", name, e)) ||
        (rc = read_ints(c, root, int_keys, COUNT(int_keys), name, e)) ||
        (rc = read_nums(c, root, num_keys, COUNT(num_keys), name, e)))
        return rc;
    if (!json_is_object(yarn))
        return ds4_fail(e, DS4_EMODEL, "%s: rope_scaling: expected an object with factor and "
                        "original_max_position_embeddings", name);
    if ((rc = read_nums(c, yarn, yarn_keys, COUNT(yarn_keys), name, e)) ||
        (rc = read_ints(c, yarn, yarn_ints, COUNT(yarn_ints), name, e)) ||
        (rc = read_list(root, "compress_ratios", c->ratios, &c->n_ratios, c->num_hidden_layers, HF_MAX_LAYERS,
                        name, e)) ||
        (rc = read_dspark(c, root, name, e)))
        return rc;
    c->norm_topk_prob = !norm || json_is_true(norm);
    return check_relations(c, name, e);
}

int hf_parse_config(hf_config *out, const char *text, size_t len, const char *name, ds4_err *e)
{
    json_error_t je;
    hf_config c = {0};
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    int rc = json_is_object(root) ? read_all(&c, root, name, e)
                                  : ds4_fail(e, DS4_EFORMAT, "%s:%d: not a JSON object: %s", name, root ? 1 : je.line,
                                             root ? "other type" : je.text);
    json_decref(root);
    if (!rc)
        *out = c;
    return rc;
}

int hf_read_config(hf_config *out, const char *path, ds4_err *e)
{
    char *text;
    size_t len;
    int rc = fsio_read(path, 16 << 20, &text, &len, e);
    if (rc)
        return rc;
    rc = hf_parse_config(out, text, len, path, e);
    free(text);
    return rc;
}
