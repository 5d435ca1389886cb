#include "util/tiny_v4.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int32_t ratios[V4_LAYERS + V4_STAGES] = {0, 4, 128, 4, 128, 4, 0, 0, 0};

static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

static uint32_t element(uint32_t seed, uint64_t i) { return mix((uint32_t)i * 0x9e3779b1u + seed); }

static uint32_t seed_of(const char *name)
{
    uint32_t h = 0x811c9dc5u;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 0x01000193u;
    return h;
}

/* A bell-shaped integer in [-127, 127]; every 32nd element is forced to +-127 so that Q8_0 is exact. */
static int quad(uint32_t seed, uint64_t i)
{
    uint32_t g = element(seed ^ 0x5bd1e995u, i / 32), h = element(seed, i);
    if ((g & 31) == (i & 31))
        return g & 32 ? 127 : -127;
    int q = (int)((h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24)) - 510;
    q = (q - (q & 3)) / 4;
    return q < -127 ? -127 : q;
}

/* F16 bits of q * 2^-k, |q| <= 127: exact while normal. */
static uint16_t half(int q, int k)
{
    if (!q)
        return 0;
    int e;
    double m = frexp(fabs((double)q), &e); /* m in [0.5, 1) */
    return (uint16_t)((q < 0 ? 0x8000 : 0) | (uint16_t)(e - 1 - k + 15) << 10 | (uint16_t)((m * 2 - 1) * 1024));
}

static void put_q8(uint8_t *p, uint32_t seed, uint64_t n, int k)
{
    for (uint64_t b = 0; b < n / 32; b++, p += 34) {
        uint16_t d = half(1, k);
        memcpy(p, &d, 2);
        for (uint64_t j = 0; j < 32; j++)
            p[2 + j] = (uint8_t)(int8_t)quad(seed, b * 32 + j);
    }
}

static void put_mxfp4(uint8_t *p, uint32_t seed, uint64_t n, int k)
{
    for (uint64_t b = 0; b < n / 32; b++, p += 17) {
        p[0] = (uint8_t)(127 - k);
        for (uint64_t j = 0; j < 16; j++)
            p[1 + j] = (uint8_t)(element(seed, b * 32 + j) >> 28 | element(seed, b * 32 + j + 16) >> 28 << 4);
    }
}

/* Numbers of one tensor by type: quad * 2^-k, or e2m1 codes with one scale for MXFP4. */
static void *values(uint32_t type, uint32_t seed, uint64_t n, int k, size_t *bytes)
{
    *bytes = type == GB_Q8_0 ? n / 32 * 34 : type == GB_MXFP4 ? n / 32 * 17 : type == GB_F32 ? n * 4 : n * 2;
    uint8_t *p = malloc(*bytes);
    if (!p)
        abort();
    if (type == GB_Q8_0)
        put_q8(p, seed, n, k);
    else if (type == GB_MXFP4)
        put_mxfp4(p, seed, n, k);
    for (uint64_t i = 0; i < n && (type == GB_F32 || type == GB_F16 || type == GB_BF16); i++) {
        float v = ldexpf((float)quad(seed, i), -k);
        uint32_t bits;
        memcpy(&bits, &v, 4);
        uint16_t h = type == GB_F16 ? half(quad(seed, i), k) : (uint16_t)(bits >> 16);
        memcpy(p + i * (type == GB_F32 ? 4 : 2), type == GB_F32 ? (void *)&v : (void *)&h, type == GB_F32 ? 4 : 2);
    }
    return p;
}

/* Where a block's tensors go: names as in the file, and the canonical name that seeds the hash. */
typedef struct where {
    gb *g;
    const char *file, *canon; /* prefixes */
} where;

static void matrix(const where *w, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t ne2, int k)
{
    char file[96], canon[96];
    size_t bytes;
    snprintf(file, sizeof file, "%s%s", w->file, name);
    snprintf(canon, sizeof canon, "%s%s", w->canon, name);
    void *p = values(type, seed_of(canon), ne0 * ne1 * (ne2 ? ne2 : 1), k, &bytes);
    gb_add(w->g, file, type, ne0, ne1, ne2, p, bytes);
}

/* base + h/unit with h in [-16, 15]. */
static void vector(const where *w, const char *name, uint64_t n, float base, float unit)
{
    char file[96], canon[96];
    snprintf(file, sizeof file, "%s%s", w->file, name);
    snprintf(canon, sizeof canon, "%s%s", w->canon, name);
    float *v = malloc(n * sizeof *v);
    if (!v)
        abort();
    for (uint64_t i = 0; i < n; i++)
        v[i] = base + ((float)(element(seed_of(canon), i) >> 27) - 16) / unit;
    gb_add(w->g, file, GB_F32, n, 0, 0, v, n * sizeof *v);
}

static void hyper(const where *w, const char *name, uint64_t outs, uint64_t scales)
{
    char part[64];
    snprintf(part, sizeof part, "%s_fn.weight", name);
    matrix(w, part, GB_F16, 4 * V4_D, outs, 0, 10);
    snprintf(part, sizeof part, "%s_scale.weight", name);
    vector(w, part, scales, 0.75f, 64);
    snprintf(part, sizeof part, "%s_base.weight", name);
    vector(w, part, outs, 0, 16);
}

static void compressor(const where *w, int ratio)
{
    const uint64_t width = ratio == 4 ? 1024 : 512;
    matrix(w, "attn_compressor_kv.weight", GB_F16, V4_D, width, 0, 9);
    matrix(w, "attn_compressor_gate.weight", GB_F16, V4_D, width, 0, 9);
    matrix(w, "attn_compressor_ape.weight", GB_F16, width, (uint64_t)ratio, 0, 6);
    vector(w, "attn_compressor_norm.weight", 512, 1.4f, 64);
    if (ratio != 4)
        return;
    matrix(w, "indexer.attn_q_b.weight", GB_F16, V4_Q_RANK, V4_IDX_HEADS * 128, 0, 8);
    matrix(w, "indexer.proj.weight", GB_BF16, V4_D, V4_IDX_HEADS, 0, 9);
    matrix(w, "indexer_compressor_kv.weight", GB_F16, V4_D, 256, 0, 9);
    matrix(w, "indexer_compressor_gate.weight", GB_F16, V4_D, 256, 0, 9);
    matrix(w, "indexer_compressor_ape.weight", GB_F32, 256, 4, 0, 6);
    vector(w, "indexer_compressor_norm.weight", 128, 1, 64);
}

static void experts(const where *w, bool hashed)
{
    matrix(w, "ffn_gate_inp.weight", GB_F32, V4_D, V4_EXPERTS, 0, 8);
    if (hashed) {
        char file[96];
        int32_t *t = malloc(V4_VOCAB * V4_USED * sizeof *t);
        if (!t)
            abort();
        snprintf(file, sizeof file, "%sffn_gate_tid2eid.weight", w->file);
        for (int i = 0; i < V4_VOCAB; i++)
            for (int j = 0; j < V4_USED; j++)
                t[i * V4_USED + j] = (int32_t)((element(seed_of(file), (uint64_t)i) + (uint32_t)j) % V4_EXPERTS);
        gb_add(w->g, file, GB_I32, V4_USED, V4_VOCAB, 0, t, V4_VOCAB * V4_USED * sizeof *t);
    } else
        vector(w, "exp_probs_b.bias", V4_EXPERTS, 0, 128);
    matrix(w, "ffn_gate_exps.weight", GB_MXFP4, V4_D, V4_FF, V4_EXPERTS, 5);
    matrix(w, "ffn_up_exps.weight", GB_MXFP4, V4_D, V4_FF, V4_EXPERTS, 5);
    matrix(w, "ffn_down_exps.weight", GB_MXFP4, V4_FF, V4_D, V4_EXPERTS, 6);
    matrix(w, "ffn_gate_shexp.weight", GB_Q8_0, V4_D, V4_FF, 0, 9);
    matrix(w, "ffn_up_shexp.weight", GB_Q8_0, V4_D, V4_FF, 0, 9);
    matrix(w, "ffn_down_shexp.weight", GB_Q8_0, V4_FF, V4_D, 0, 10);
}

static void block(gb *g, const char *file, const char *canon, int ratio, bool hashed)
{
    const where w = {g, file, canon};
    hyper(&w, "hc_attn", 24, 3);
    hyper(&w, "hc_ffn", 24, 3);
    vector(&w, "attn_norm.weight", V4_D, 1, 64);
    vector(&w, "ffn_norm.weight", V4_D, 1, 64);
    matrix(&w, "attn_q_a.weight", GB_Q8_0, V4_D, V4_Q_RANK, 0, 9);
    vector(&w, "attn_q_a_norm.weight", V4_Q_RANK, 1, 64);
    matrix(&w, "attn_q_b.weight", GB_Q8_0, V4_Q_RANK, V4_HEADS * 512, 0, 8);
    matrix(&w, "attn_kv.weight", GB_Q8_0, V4_D, 512, 0, 9);
    vector(&w, "attn_kv_a_norm.weight", 512, 1.4f, 64);
    vector(&w, "attn_sinks.weight", V4_HEADS, 1, 16);
    matrix(&w, "attn_output_a.weight", GB_Q8_0, 512 * V4_HEADS / V4_GROUPS, V4_GROUPS * V4_RANK, 0, 10);
    matrix(&w, "attn_output_b.weight", GB_Q8_0, V4_GROUPS * V4_RANK, V4_D, 0, 9);
    if (ratio)
        compressor(&w, ratio);
    experts(&w, hashed);
}

static void trunk_sizes(gb *g)
{
    static const struct {
        const char *key;
        uint32_t v;
    } sizes[] = {{"block_count", V4_LAYERS},
                 {"context_length", 4096},
                 {"embedding_length", V4_D},
                 {"vocab_size", V4_VOCAB},
                 {"attention.head_count", V4_HEADS},
                 {"attention.head_count_kv", 1},
                 {"attention.key_length", 512},
                 {"attention.value_length", 512},
                 {"attention.q_lora_rank", V4_Q_RANK},
                 {"attention.output_lora_rank", V4_RANK},
                 {"attention.output_group_count", V4_GROUPS},
                 {"attention.sliding_window", 128},
                 {"attention.indexer.head_count", V4_IDX_HEADS},
                 {"attention.indexer.key_length", 128},
                 {"attention.indexer.top_k", V4_TOPK},
                 {"rope.dimension_count", 64},
                 {"rope.scaling.original_context_length", 65536},
                 {"hyper_connection.count", 4},
                 {"hyper_connection.sinkhorn_iterations", 20},
                 {"hash_layer_count", V4_HASHED},
                 {"expert_count", V4_EXPERTS},
                 {"expert_used_count", V4_USED},
                 {"expert_shared_count", 1},
                 {"expert_feed_forward_length", V4_FF},
                 {"expert_gating_func", 4},
                 {"nextn_predict_layers", 1}};
    char key[96];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "deepseek4.%s", sizes[i].key);
        gb_u32(g, key, sizes[i].v);
    }
}

gb v4_trunk(void)
{
    gb g = {0};
    const float clamp[V4_LAYERS] = {10, 10, 10, 10, 10, 10};
    gb_str(&g, "general.architecture", "deepseek4");
    trunk_sizes(&g);
    gb_f32(&g, "deepseek4.attention.layer_norm_rms_epsilon", 1e-6f);
    gb_f32(&g, "deepseek4.hyper_connection.epsilon", 1e-6f);
    gb_f32(&g, "deepseek4.rope.freq_base", 10000);
    gb_f32(&g, "deepseek4.attention.compress_rope_freq_base", 160000);
    gb_f32(&g, "deepseek4.rope.scaling.factor", 16);
    gb_f32(&g, "deepseek4.rope.scaling.yarn_beta_fast", 32);
    gb_f32(&g, "deepseek4.rope.scaling.yarn_beta_slow", 1);
    gb_f32(&g, "deepseek4.expert_weights_scale", 1.5f);
    gb_str(&g, "deepseek4.rope.scaling.type", "yarn");
    gb_bool(&g, "deepseek4.expert_weights_norm", true);
    gb_ints(&g, "deepseek4.attention.compress_ratios", ratios, V4_LAYERS + V4_STAGES);
    gb_floats(&g, "deepseek4.swiglu_clamp_exp", clamp, V4_LAYERS);
    const where top = {&g, "", ""};
    matrix(&top, "token_embd.weight", GB_F16, V4_D, V4_VOCAB, 0, 5);
    matrix(&top, "output.weight", GB_Q8_0, V4_D, V4_VOCAB, 0, 8);
    vector(&top, "output_norm.weight", V4_D, 1, 64);
    hyper(&top, "output_hc", 4, 1);
    for (int l = 0; l < V4_LAYERS; l++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "blk.%d.", l);
        block(&g, prefix, prefix, ratios[l], l < V4_HASHED);
    }
    return g;
}

static void drafter_keys(gb *g, bool llama)
{
    const int32_t taps[3] = {3, 4, 5}, next[3] = {4, 5, 6};
    gb_str(g, "general.architecture", llama ? "dflash" : "deepseek4-dspark");
    gb_u32(g, llama ? "dflash.block_size" : "dspark.block_size", V4_BLOCK);
    gb_u32(g, llama ? "tokenizer.ggml.mask_token_id" : "dspark.noise_token_id", V4_NOISE);
    gb_ints(g, llama ? "dflash.target_layers" : "dspark.target_layer_ids", llama ? next : taps, 3);
    gb_u32(g, llama ? "dflash.block_count" : "dspark.stage_count", V4_STAGES);
    if (!llama)
        gb_u32(g, "dspark.markov_rank", V4_MARKOV);
}

/* A tensor beside the stages, under its own name in either layout. */
static void beside(gb *g, bool llama, const char *sidecar, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1,
                   int k)
{
    size_t bytes;
    void *p = values(type, seed_of(sidecar), ne0 * ne1, k, &bytes);
    gb_add(g, llama ? name : sidecar, type, ne0, ne1, 0, p, bytes);
}

static void norm_beside(gb *g, bool llama, const char *sidecar, const char *name)
{
    const where w = {g, "", ""};
    vector(&w, sidecar, V4_D, 1, 64);
    snprintf(g->t[g->n_t - 1].name, sizeof g->t->name, "%s", llama ? name : sidecar);
}

gb v4_drafter(bool llama)
{
    gb g = {0};
    drafter_keys(&g, llama);
    for (int i = 0; i < V4_STAGES; i++) {
        char file[32], canon[32];
        snprintf(canon, sizeof canon, "mtp.%d.", i);
        snprintf(file, sizeof file, llama ? "blk.%d." : "mtp.%d.", i);
        block(&g, file, canon, 0, false);
    }
    beside(&g, llama, "mtp.0.main_proj.weight", "fc.weight", GB_Q8_0, 3 * V4_D, V4_D, 10);
    norm_beside(&g, llama, "mtp.0.main_norm.weight", "enc.output_norm.weight");
    norm_beside(&g, llama, "mtp.2.norm.weight", "output_norm.weight");
    beside(&g, llama, "mtp.2.markov_head.markov_w1.weight", "markov_w1.weight", GB_F16, V4_MARKOV, V4_VOCAB, 5);
    beside(&g, llama, "mtp.2.markov_head.markov_w2.weight", "markov_w2.weight", GB_Q8_0, V4_MARKOV, V4_VOCAB, 7);
    beside(&g, llama, "mtp.2.confidence_head.proj.weight", "conf_proj.weight", GB_F32, V4_D + V4_MARKOV, 1, 9);
    const where head = {&g, llama ? "output_hc" : "mtp.2.hc_head", "mtp.2.hc_head"};
    hyper(&head, "", 4, 1);
    return g;
}

void v4_tokens(int32_t *out, int n)
{
    for (int i = 0; i < n; i++) {
        uint32_t h = mix((uint32_t)i * 2654435761u + 12345u);
        bool repeat = i >= 24 && i / 24 % 3 == 2; /* a third of the text repeats what stood 24 tokens before */
        out[i] = repeat ? out[i - 24] : (int32_t)(h % (V4_VOCAB - 1));
    }
}
