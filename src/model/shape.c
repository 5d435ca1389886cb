#include "model/shape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ARCH "deepseek4."

static bool str_is(gguf_str s, const char *t) { return s.n == strlen(t) && !memcmp(s.p, t, s.n); }

/* Refuses files that are something else, saying what they seem to be. */
static int check_arch(const gguf *g, ds4_err *e)
{
    gguf_str a;
    int rc = gguf_get_str(g, "general.architecture", true, &a, e);
    if (rc)
        return rc;
    if (str_is(a, "deepseek4-dspark") || str_is(a, "dflash"))
        return ds4_fail(e, DS4_EMODEL, "%s: this is a DSpark drafter, not a trunk: give it with --mtp", gguf_path(g));
    if (gguf_find_tensor(g, "mtp.0.e_proj.weight"))
        return ds4_fail(e, DS4_EMODEL,
                        "%s: this is an MTP sidecar (preview release); only DSpark drafters are supported",
                        gguf_path(g));
    if (!str_is(a, "deepseek4"))
        return ds4_fail(e, DS4_EMODEL, "%s: architecture is '%.*s', expected 'deepseek4' (DeepSeek-V4)", gguf_path(g),
                        (int)a.n, a.p);
    return 0;
}

typedef struct int_key {
    const char *key;
    int *out;
    uint32_t lo, hi;
} int_key;
typedef struct float_key {
    const char *key;
    float *out;
    float lo, hi;
} float_key;

static int read_ints(const gguf *g, const int_key *k, size_t n, ds4_err *e)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t v = 0;
        int rc = gguf_get_u32(g, k[i].key, true, k[i].lo, k[i].hi, &v, e);
        if (rc)
            return rc;
        *k[i].out = (int)v;
    }
    return 0;
}

static int read_floats(const gguf *g, const float_key *k, size_t n, ds4_err *e)
{
    for (size_t i = 0; i < n; i++) {
        int rc = gguf_get_f32(g, k[i].key, true, k[i].lo, k[i].hi, k[i].out, e);
        if (rc)
            return rc;
    }
    return 0;
}

#define COUNT(a) (sizeof(a) / sizeof *(a))

static int read_sizes(shape *s, const gguf *g, ds4_err *e)
{
    be_dims *d = &s->dims;
    int kv = 0, value = 0, shared = 0, gating = 4;
    const int_key ints[] = {
        {ARCH "block_count", &s->layers, 1, SHAPE_MAX_LAYERS},
        {ARCH "embedding_length", &d->d, 32, 65536},
        {ARCH "attention.head_count", &d->heads, 1, 1024},
        {ARCH "attention.head_count_kv", &kv, 1, 1},
        {ARCH "attention.key_length", &d->head_dim, 64, 4096},
        {ARCH "attention.value_length", &value, 64, 4096},
        {ARCH "rope.dimension_count", &d->rope_dim, 2, 4096},
        {ARCH "attention.q_lora_rank", &s->q_rank, 1, 65536},
        {ARCH "attention.output_lora_rank", &d->group_rank, 1, 65536},
        {ARCH "attention.output_group_count", &d->groups, 1, 1024},
        {ARCH "attention.sliding_window", &d->window, 1, 4096},
        {ARCH "attention.indexer.head_count", &d->idx_heads, 1, 1024},
        {ARCH "attention.indexer.key_length", &d->idx_dim, 32, 1024},
        {ARCH "attention.indexer.top_k", &d->idx_topk, 1, 65536},
        {ARCH "hyper_connection.count", &d->streams, 1, 8},
        {ARCH "hyper_connection.sinkhorn_iterations", &d->sinkhorn, 1, 1000},
        {ARCH "hash_layer_count", &s->hash_layers, 0, SHAPE_MAX_LAYERS},
        {ARCH "expert_count", &d->experts, 1, 4096},
        {ARCH "expert_used_count", &d->used, 1, 64},
        {ARCH "expert_shared_count", &shared, 1, 1},
        {ARCH "expert_feed_forward_length", &d->ff, 1, 65536},
    };
    int rc = read_ints(g, ints, COUNT(ints), e);
    if (rc)
        return rc;
    uint32_t gate_fn = (uint32_t)gating;
    rc = gguf_get_u32(g, ARCH "expert_gating_func", false, 4, 4, &gate_fn, e);
    if (rc)
        return rc;
    if (value != d->head_dim)
        return ds4_fail(e, DS4_EMODEL, "%s: attention.value_length is %d, expected key_length %d", gguf_path(g), value,
                        d->head_dim);
    if (d->rope_dim % 2 || d->rope_dim >= d->head_dim || d->rope_dim > d->idx_dim || (d->head_dim - d->rope_dim) % 64)
        return ds4_fail(e, DS4_EMODEL,
                        "%s: head size %d with %d rotary is not a multiple of 64 plain numbers plus an even tail",
                        gguf_path(g), d->head_dim, d->rope_dim);
    if (d->idx_dim & (d->idx_dim - 1))
        return ds4_fail(e, DS4_EMODEL, "%s: indexer.key_length %d is not a power of two", gguf_path(g), d->idx_dim);
    if (d->heads % d->groups)
        return ds4_fail(e, DS4_EMODEL, "%s: %d heads do not divide into %d output groups", gguf_path(g), d->heads,
                        d->groups);
    if (d->used > d->experts)
        return ds4_fail(e, DS4_EMODEL, "%s: expert_used_count %d exceeds expert_count %d", gguf_path(g), d->used,
                        d->experts);
    return 0;
}

static int read_numbers(shape *s, const gguf *g, ds4_err *e)
{
    be_dims *d = &s->dims;
    const float_key floats[] = {
        {ARCH "attention.layer_norm_rms_epsilon", &d->rms_eps, 0.0f, 1e-2f},
        {ARCH "hyper_connection.epsilon", &d->hc_eps, 0.0f, 1e-2f},
        {ARCH "rope.freq_base", &s->rope_base, 1.0f, 1e12f},
        {ARCH "attention.compress_rope_freq_base", &s->comp_rope_base, 1.0f, 1e12f},
        {ARCH "rope.scaling.factor", &s->yarn_factor, 1.0f, 1e6f},
        {ARCH "rope.scaling.yarn_beta_fast", &s->yarn_fast, 0.001f, 1e6f},
        {ARCH "rope.scaling.yarn_beta_slow", &s->yarn_slow, 0.001f, 1e6f},
        {ARCH "expert_weights_scale", &d->route_scale, 1e-3f, 1e3f},
    };
    int rc = read_floats(g, floats, COUNT(floats), e);
    if (!rc)
        rc = gguf_get_u32(g, ARCH "rope.scaling.original_context_length", true, 1, 1u << 30, &s->yarn_orig, e);
    if (!rc)
        rc = gguf_get_u32(g, ARCH "context_length", true, 1, 1u << 30, &s->ctx_max, e);
    bool norm = true;
    if (!rc)
        rc = gguf_get_bool(g, ARCH "expert_weights_norm", true, &norm, e);
    if (!rc && !norm)
        rc = ds4_fail(e, DS4_EMODEL, "%s: expert_weights_norm is false, expected true", gguf_path(g));
    gguf_str type = {"yarn", 4};
    if (!rc)
        rc = gguf_get_str(g, ARCH "rope.scaling.type", false, &type, e);
    if (!rc && !str_is(type, "yarn"))
        rc = ds4_fail(e, DS4_EMODEL, "%s: rope.scaling.type is '%.*s', expected 'yarn'", gguf_path(g), (int)type.n,
                      type.p);
    return rc;
}

/* The clamp is an array per layer or one number for all; the shared expert's falls back to the routed one's. */
static int read_clamps(shape *s, const gguf *g, const char *key, bool required, const float *fallback, float *out,
                       ds4_err *e)
{
    const gguf_kv *kv = gguf_find_kv(g, key);
    if (!kv && !required) {
        memcpy(out, fallback, sizeof(float) * (size_t)s->layers);
        return 0;
    }
    if (!kv)
        return ds4_fail(e, DS4_EMODEL, "%s: key %s is missing", gguf_path(g), key);
    bool number = kv->elem == GGUF_F32 || kv->elem == GGUF_F64;
    if (!number || (kv->type == GGUF_ARR && kv->count < (uint64_t)s->layers))
        return ds4_fail(e, DS4_EMODEL, "%s: %s must be a float or an array of at least %d floats, one per layer",
                        gguf_path(g), key, s->layers);
    for (int i = 0; i < s->layers; i++) {
        double v = gguf_arr_num(kv, kv->type == GGUF_ARR ? (uint64_t)i : 0);
        if (!(v > 0 && v <= 1e6))
            return ds4_fail(e, DS4_EMODEL, "%s: %s[%d] is %g, expected a positive clamp", gguf_path(g), key, i, v);
        out[i] = (float)v;
    }
    return 0;
}

static int read_ratios(shape *s, const gguf *g, ds4_err *e)
{
    const char *key = ARCH "attention.compress_ratios";
    const gguf_kv *kv = gguf_find_kv(g, key);
    if (!kv || kv->type != GGUF_ARR || kv->elem == GGUF_STR || kv->elem == GGUF_F32 || kv->elem == GGUF_F64)
        return ds4_fail(e, DS4_EMODEL, "%s: %s must be an array of integers", gguf_path(g), key);
    if (kv->count < (uint64_t)s->layers)
        return ds4_fail(e, DS4_EMODEL, "%s: %s has %llu entries, expected at least %d", gguf_path(g), key,
                        (unsigned long long)kv->count, s->layers);
    for (int i = 0; i < s->layers; i++) {
        int64_t r = gguf_arr_int(kv, (uint64_t)i);
        if (r != 0 && r != 4 && r != 128)
            return ds4_fail(e, DS4_EMODEL, "%s: %s[%d] is %lld, expected 0, 4 or 128", gguf_path(g), key, i,
                            (long long)r);
        s->ratio[i] = (int)r;
    }
    return 0;
}

/* llama.cpp files may carry the preview's MTP block as the last layer; published trunks announce one that is not there.
 */
static int find_mtp_block(shape *s, const gguf *g, ds4_err *e)
{
    uint32_t nextn = 0;
    int rc = gguf_get_u32(g, ARCH "nextn_predict_layers", false, 0, 16, &nextn, e);
    if (rc)
        return rc;
    s->mtp_layer = -1;
    for (int l = s->layers - (int)nextn; nextn && l > 0 && l < s->layers; l = s->layers) {
        char name[80];
        snprintf(name, sizeof name, "blk.%d.nextn.eh_proj.weight", l);
        if (gguf_find_tensor(g, name))
            s->mtp_layer = l;
    }
    if (s->mtp_layer >= 0)
        s->layers = s->mtp_layer;
    return 0;
}

static int read_vocab(shape *s, const gguf *g, ds4_err *e)
{
    const gguf_tensor *t = gguf_find_tensor(g, "token_embd.weight");
    uint32_t v = t && t->n_dims == 2 && t->ne[1] <= (1u << 24) ? (uint32_t)t->ne[1] : 0;
    int rc = gguf_get_u32(g, ARCH "vocab_size", v == 0, 2, 1u << 24, &v, e);
    s->dims.vocab = (int)v;
    return rc;
}

int shape_read(shape *s, const gguf *g, ds4_err *e)
{
    memset(s, 0, sizeof *s);
    int rc = check_arch(g, e);
    if (!rc)
        rc = read_sizes(s, g, e);
    if (!rc)
        rc = find_mtp_block(s, g, e);
    if (!rc)
        rc = read_numbers(s, g, e);
    if (!rc)
        rc = read_ratios(s, g, e);
    if (!rc)
        rc = read_clamps(s, g, ARCH "swiglu_clamp_exp", true, NULL, s->clamp, e);
    if (!rc)
        rc = read_clamps(s, g, ARCH "swiglu_clamp_shexp", false, s->clamp, s->sclamp, e);
    if (!rc)
        rc = read_vocab(s, g, e);
    return rc;
}

/* YaRN correction index for a number of rotations over the original context (in units of pairs). */
static float yarn_index(const shape *s, float rotations)
{
    return (float)s->dims.rope_dim * logf((float)s->yarn_orig / (rotations * 2.0f * 3.14159265358979323846f)) /
           (2.0f * logf(s->comp_rope_base));
}

void shape_rope_freqs(const shape *s, bool compressed, float *freq)
{
    int half = s->dims.rope_dim / 2;
    float base = compressed ? s->comp_rope_base : s->rope_base;
    float low = fmaxf(floorf(yarn_index(s, s->yarn_fast)), 0.0f);
    float high = fminf(ceilf(yarn_index(s, s->yarn_slow)), (float)s->dims.rope_dim - 1.0f);
    if (low == high)
        high += 0.001f;
    for (int i = 0; i < half; i++) {
        freq[i] = 1.0f / powf(base, (float)(2 * i) / (float)s->dims.rope_dim);
        if (!compressed)
            continue;
        float ramp = fminf(fmaxf(((float)i - low) / (high - low), 0.0f), 1.0f), keep = 1.0f - ramp;
        freq[i] = freq[i] / s->yarn_factor * (1.0f - keep) + freq[i] * keep;
    }
}
