#include "util/tiny.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "file/gguf.h"
#include "file/quant.h"

typedef struct buf { uint8_t *p; size_t n, cap; } buf;

static void put(buf *b, const void *p, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2;
        b->p = realloc(b->p, b->cap);
        if (!b->p)
            abort();
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put32(buf *b, uint32_t v) { put(b, &v, 4); }
static void put64(buf *b, uint64_t v) { put(b, &v, 8); }
static void put_str(buf *b, const char *s)
{
    put64(b, strlen(s));
    put(b, s, strlen(s));
}

typedef struct maker {
    buf kv, info, data;
    uint32_t n_kv, n_tensors;
    int quantised;
} maker;

static void kv_u32(maker *m, const char *k, uint32_t v)
{
    put_str(&m->kv, k);
    put32(&m->kv, GGUF_U32);
    put32(&m->kv, v);
    m->n_kv++;
}

static void kv_f32(maker *m, const char *k, float v)
{
    put_str(&m->kv, k);
    put32(&m->kv, GGUF_F32);
    put(&m->kv, &v, 4);
    m->n_kv++;
}

static void kv_str(maker *m, const char *k, const char *v)
{
    put_str(&m->kv, k);
    put32(&m->kv, GGUF_STR);
    put_str(&m->kv, v);
    m->n_kv++;
}

static void kv_array(maker *m, const char *k, uint32_t type, const void *v, uint64_t n)
{
    put_str(&m->kv, k);
    put32(&m->kv, GGUF_ARR);
    put32(&m->kv, type);
    put64(&m->kv, n);
    put(&m->kv, v, n * 4);
    m->n_kv++;
}

static uint32_t hash(uint32_t seed, uint32_t i)
{
    uint32_t x = i * 0x9e3779b1u + seed;
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ x >> 16;
}

static uint32_t name_seed(const char *s)
{
    uint32_t h = 0x811c9dc5u;
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x01000193u;
    return h;
}

/* Roughly gaussian, standard deviation about 0.58. */
static float noise(uint32_t h)
{
    int sum = (int)(h & 255) + (int)(h >> 8 & 255) + (int)(h >> 16 & 255) + (int)(h >> 24) - 510;
    return (float)sum / 256.0f;
}

static void tensor(maker *m, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    uint64_t ne[3] = {ne0, ne1, ne2};
    uint32_t dims = ne2 > 1 ? 3 : ne1 > 1 ? 2 : 1;
    while (m->data.n % 32)
        put(&m->data, "", 1);
    put_str(&m->info, name);
    put32(&m->info, dims);
    put(&m->info, ne, dims * 8);
    put32(&m->info, type);
    put64(&m->info, m->data.n);
    m->n_tensors++;
}

/* A vector base + spread * noise. */
static void vec(maker *m, const char *name, uint64_t ne0, uint64_t ne1, float base, float spread)
{
    uint32_t seed = name_seed(name);
    tensor(m, name, Q_F32, ne0, ne1, 1);
    for (uint32_t i = 0; i < ne0 * ne1; i++) {
        float v = base + spread * noise(hash(seed, i));
        put(&m->data, &v, 4);
    }
}

static void mat_f32(maker *m, const char *name, uint64_t n0, uint64_t n1, uint64_t n2, float scale)
{
    uint32_t seed = name_seed(name);
    tensor(m, name, Q_F32, n0, n1, n2);
    for (uint32_t i = 0; i < n0 * n1 * n2; i++) {
        float v = scale * noise(hash(seed, i));
        put(&m->data, &v, 4);
    }
}

static void mat_q8(maker *m, const char *name, uint64_t n0, uint64_t n1, float scale)
{
    uint32_t seed = name_seed(name);
    tensor(m, name, Q_Q8_0, n0, n1, 1);
    for (uint32_t b = 0; b < n0 * n1 / 32; b++) {
        quant_q8_0 q = {.d = num_to_f16(scale / 64.0f)};
        for (uint32_t i = 0; i < 32; i++)
            q.q[i] = (int8_t)fminf(fmaxf(64.0f * noise(hash(seed, b * 32 + i)), -127.0f), 127.0f);
        put(&m->data, &q, sizeof q);
    }
}

static void mat_fp4(maker *m, const char *name, uint64_t n0, uint64_t n1, uint64_t n2, float scale)
{
    uint32_t seed = name_seed(name);
    tensor(m, name, Q_MXFP4, n0, n1, n2);
    for (uint32_t b = 0; b < n0 * n1 * n2 / 32; b++) {
        quant_mxfp4 q = {.e = (uint8_t)(127 + num_ceil_log2(scale / 4.0f))};
        for (uint32_t i = 0; i < 16; i++)
            q.q[i] = (uint8_t)hash(seed, b * 16 + i);
        put(&m->data, &q, sizeof q);
    }
}

static void mat(maker *m, const char *name, uint64_t n0, uint64_t n1, uint64_t n2, float gain)
{
    float scale = gain * 1.7f / sqrtf((float)n0);
    if (m->quantised && n2 > 1)
        mat_fp4(m, name, n0, n1, n2, scale);
    else if (m->quantised)
        mat_q8(m, name, n0, n1, scale);
    else
        mat_f32(m, name, n0, n1, n2, scale);
}

static const char *at(char *s, size_t room, const char *prefix, const char *name)
{
    snprintf(s, room, "%s%s", prefix, name);
    return s;
}

static void hc(maker *m, const char *prefix, const char *which, int out)
{
    char s[128], t[64];
    snprintf(t, sizeof t, "%s_fn.weight", which);
    mat_f32(m, at(s, sizeof s, prefix, t), 4 * TINY_D, (uint64_t)out, 1, 1.7f / sqrtf(4 * TINY_D));
    snprintf(t, sizeof t, "%s_scale.weight", which);
    vec(m, at(s, sizeof s, prefix, t), out == 4 ? 1 : 3, 1, 1.0f, 0.2f);
    snprintf(t, sizeof t, "%s_base.weight", which);
    vec(m, at(s, sizeof s, prefix, t), (uint64_t)out, 1, 0.0f, 0.5f);
}

static void compressor(maker *m, const char *prefix, const char *which, int width, int ratio, int dim)
{
    char s[128], t[64];
    static const char *const part[] = {"kv", "gate"};
    for (int i = 0; i < 2; i++) {
        snprintf(t, sizeof t, "%s_%s.weight", which, part[i]);
        mat(m, at(s, sizeof s, prefix, t), TINY_D, (uint64_t)width, 1, 1.0f);
    }
    snprintf(t, sizeof t, "%s_ape.weight", which);
    vec(m, at(s, sizeof s, prefix, t), (uint64_t)width, (uint64_t)ratio, 0.0f, 1.0f);
    snprintf(t, sizeof t, "%s_norm.weight", which);
    vec(m, at(s, sizeof s, prefix, t), (uint64_t)dim, 1, 1.0f, 0.2f);
}

static void attention(maker *m, const char *p, int ratio)
{
    char s[128];
    const size_t n = sizeof s;
    hc(m, p, "hc_attn", 24);
    vec(m, at(s, n, p, "attn_norm.weight"), TINY_D, 1, 1.0f, 0.2f);
    mat(m, at(s, n, p, "attn_q_a.weight"), TINY_D, TINY_QR, 1, 1.0f);
    vec(m, at(s, n, p, "attn_q_a_norm.weight"), TINY_QR, 1, 1.0f, 0.2f);
    mat(m, at(s, n, p, "attn_q_b.weight"), TINY_QR, TINY_HEADS * TINY_HEAD, 1, 1.0f);
    mat(m, at(s, n, p, "attn_kv.weight"), TINY_D, TINY_HEAD, 1, 1.0f);
    vec(m, at(s, n, p, "attn_kv_a_norm.weight"), TINY_HEAD, 1, 1.0f, 0.2f);
    vec(m, at(s, n, p, "attn_sinks.weight"), TINY_HEADS, 1, 0.0f, 1.0f);
    mat(m, at(s, n, p, "attn_output_a.weight"), TINY_HEADS * TINY_HEAD / TINY_GROUPS, TINY_GROUPS * TINY_RANK, 1, 1.0f);
    mat(m, at(s, n, p, "attn_output_b.weight"), TINY_GROUPS * TINY_RANK, TINY_D, 1, 1.0f);
    if (ratio)
        compressor(m, p, "attn_compressor", ratio == 4 ? 2 * TINY_HEAD : TINY_HEAD, ratio, TINY_HEAD);
    if (ratio != 4)
        return;
    mat(m, at(s, n, p, "indexer.attn_q_b.weight"), TINY_QR, TINY_IH * TINY_I, 1, 1.0f);
    mat(m, at(s, n, p, "indexer.proj.weight"), TINY_D, TINY_IH, 1, 1.0f);
    compressor(m, p, "indexer_compressor", 2 * TINY_I, ratio, TINY_I);
}

static void experts(maker *m, const char *p, int hashed)
{
    char s[128];
    const size_t n = sizeof s;
    hc(m, p, "hc_ffn", 24);
    vec(m, at(s, n, p, "ffn_norm.weight"), TINY_D, 1, 1.0f, 0.2f);
    mat(m, at(s, n, p, "ffn_gate_inp.weight"), TINY_D, TINY_E, 1, 1.0f);
    if (hashed) {
        tensor(m, at(s, n, p, "ffn_gate_tid2eid.weight"), Q_I32, TINY_USED, TINY_VOCAB, 1);
        for (uint32_t t = 0; t < TINY_VOCAB; t++)
            for (uint32_t j = 0; j < TINY_USED; j++)
                put32(&m->data, (hash(77, t) + j) % TINY_E);
    } else
        vec(m, at(s, n, p, "exp_probs_b.bias"), TINY_E, 1, 0.0f, 0.1f);
    mat(m, at(s, n, p, "ffn_gate_exps.weight"), TINY_D, TINY_FF, TINY_E, 2.0f);
    mat(m, at(s, n, p, "ffn_up_exps.weight"), TINY_D, TINY_FF, TINY_E, 2.0f);
    mat(m, at(s, n, p, "ffn_down_exps.weight"), TINY_FF, TINY_D, TINY_E, 1.0f);
    mat(m, at(s, n, p, "ffn_gate_shexp.weight"), TINY_D, TINY_FF, 1, 2.0f);
    mat(m, at(s, n, p, "ffn_up_shexp.weight"), TINY_D, TINY_FF, 1, 2.0f);
    mat(m, at(s, n, p, "ffn_down_shexp.weight"), TINY_FF, TINY_D, 1, 1.0f);
}

static tiny_file finish(maker *m)
{
    buf out = {0};
    put(&out, "GGUF", 4);
    put32(&out, 3);
    put64(&out, m->n_tensors);
    put64(&out, m->n_kv);
    put(&out, m->kv.p, m->kv.n);
    put(&out, m->info.p, m->info.n);
    while (out.n % 32)
        put(&out, "", 1);
    put(&out, m->data.p, m->data.n);
    free(m->kv.p);
    free(m->info.p);
    free(m->data.p);
    return (tiny_file){out.p, out.n};
}

static void trunk_sizes(maker *m)
{
#define A "deepseek4."
    static const struct { const char *k; uint32_t v; } n[] = {
        {A "block_count", TINY_LAYERS}, {A "context_length", 1 << 20}, {A "embedding_length", TINY_D}, {A "vocab_size", TINY_VOCAB},
        {A "attention.head_count", TINY_HEADS}, {A "attention.head_count_kv", 1}, {A "attention.key_length", TINY_HEAD},
        {A "attention.value_length", TINY_HEAD}, {A "attention.q_lora_rank", TINY_QR}, {A "attention.output_lora_rank", TINY_RANK},
        {A "attention.output_group_count", TINY_GROUPS}, {A "attention.sliding_window", 128}, {A "attention.indexer.head_count", TINY_IH},
        {A "attention.indexer.key_length", TINY_I}, {A "attention.indexer.top_k", TINY_TOPK}, {A "rope.dimension_count", 64},
        {A "rope.scaling.original_context_length", 65536}, {A "hyper_connection.count", 4},
        {A "hyper_connection.sinkhorn_iterations", 20}, {A "hash_layer_count", TINY_HASH}, {A "expert_count", TINY_E},
        {A "expert_used_count", TINY_USED}, {A "expert_shared_count", 1}, {A "expert_feed_forward_length", TINY_FF},
    };
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        kv_u32(m, n[i].k, n[i].v);
}

static void trunk_numbers(maker *m)
{
    static const struct { const char *k; float v; } n[] = {
        {A "attention.layer_norm_rms_epsilon", 1e-6f}, {A "hyper_connection.epsilon", 1e-6f}, {A "rope.freq_base", 10000},
        {A "attention.compress_rope_freq_base", 160000}, {A "rope.scaling.factor", 16}, {A "rope.scaling.yarn_beta_fast", 32},
        {A "rope.scaling.yarn_beta_slow", 1}, {A "expert_weights_scale", 1.5f},
    };
    const int32_t ratio[TINY_LAYERS] = {0, 4, 128, 4, 128};
    const float clamp[TINY_LAYERS] = {10, 10, 10, 10, 10};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        kv_f32(m, n[i].k, n[i].v);
    kv_str(m, A "rope.scaling.type", "yarn");
    kv_array(m, A "attention.compress_ratios", GGUF_I32, ratio, TINY_LAYERS);
    kv_array(m, A "swiglu_clamp_exp", GGUF_F32, clamp, TINY_LAYERS);
    put_str(&m->kv, A "expert_weights_norm");
    put32(&m->kv, GGUF_BOOL);
    put(&m->kv, "\1", 1);
    m->n_kv++;
#undef A
}

tiny_file tiny_trunk(int quantised)
{
    maker m = {.quantised = quantised};
    static const int ratio[TINY_LAYERS] = {0, 4, 128, 4, 128};
    kv_str(&m, "general.architecture", "deepseek4");
    trunk_sizes(&m);
    trunk_numbers(&m);
    mat(&m, "token_embd.weight", TINY_D, TINY_VOCAB, 1, 16.0f);
    mat(&m, "output.weight", TINY_D, TINY_VOCAB, 1, 3.0f);
    vec(&m, "output_norm.weight", TINY_D, 1, 1.0f, 0.2f);
    hc(&m, "", "output_hc", 4);
    for (int l = 0; l < TINY_LAYERS; l++) {
        char p[32];
        snprintf(p, sizeof p, "blk.%d.", l);
        attention(&m, p, ratio[l]);
        experts(&m, p, l < TINY_HASH);
    }
    return finish(&m);
}

tiny_file tiny_drafter(int quantised)
{
    maker m = {.quantised = quantised};
    const uint32_t targets[3] = {2, 3, 4};
    kv_str(&m, "general.architecture", "deepseek4-dspark");
    kv_u32(&m, "dspark.block_size", TINY_BLOCK);
    kv_u32(&m, "dspark.markov_rank", TINY_MARKOV);
    kv_u32(&m, "dspark.noise_token_id", TINY_NOISE);
    kv_array(&m, "dspark.target_layer_ids", GGUF_U32, targets, 3);
    mat(&m, "mtp.0.main_proj.weight", 3 * TINY_D, TINY_D, 1, 1.0f);
    vec(&m, "mtp.0.main_norm.weight", TINY_D, 1, 1.0f, 0.2f);
    for (int l = 0; l < 3; l++) {
        char p[32];
        snprintf(p, sizeof p, "mtp.%d.", l);
        attention(&m, p, 0);
        experts(&m, p, 0);
    }
    vec(&m, "mtp.2.norm.weight", TINY_D, 1, 1.0f, 0.2f);
    hc(&m, "mtp.2.", "hc_head", 4);
    mat(&m, "mtp.2.markov_head.markov_w1.weight", TINY_MARKOV, TINY_VOCAB, 1, 2.0f);
    mat(&m, "mtp.2.markov_head.markov_w2.weight", TINY_MARKOV, TINY_VOCAB, 1, 2.0f);
    mat(&m, "mtp.2.confidence_head.proj.weight", TINY_D + TINY_MARKOV, 1, 1, 1.0f);
    return finish(&m);
}
