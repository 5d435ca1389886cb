#include "engine/synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "file/quant.h"
#include "file/synth.h"
#include "text/vocab.h"

enum { STAGES = 3, BLOCK = 5, WINDOW = 128, STREAMS = 4, INDEX_DIM = 128, HEAD_DIM = 512, ALIGN = 32, MOST_NAME = 96 };

typedef struct preset {
    const char *name;
    int layers, d, heads, q_rank, groups, rank, experts, used, ff, idx_heads, topk, hashed, vocab, markov, noise;
    uint32_t gate, down; /* types of the routed experts: gate and up, down */
} preset;

#define FLASH 43, 4096, 64, 1024, 8, 1024, 256, 6, 2048, 64, 512, 3, 129280, 256, 128799
static const preset presets[] = {
    {"flash-q2", FLASH, Q_IQ2_XXS, Q_Q2_K},
    {"flash-q4", FLASH, Q_Q4_K, Q_Q4_K},
    {"flash-mxfp4", FLASH, Q_MXFP4, Q_MXFP4},
    {"tiny-q2", 8, 256, 4, 128, 2, 128, 16, 4, 256, 8, 64, 2, 4096, 64, 4095, Q_IQ2_XXS, Q_Q2_K},
};

/* Compression of a trunk layer: the first two see only their window, then 4 and 128 take turns. */
static int ratio_of(int layer) { return layer < 2 ? 0 : layer % 2 ? 128 : 4; }

/* --- bytes that grow --- */

typedef struct bytes {
    uint8_t *p;
    size_t n, cap;
    bool failed;
} bytes;

static void put(bytes *o, const void *p, size_t n)
{
    if (o->n + n > o->cap) {
        size_t cap = 2 * (o->n + n);
        uint8_t *q = o->failed ? NULL : realloc(o->p, cap);
        if (!q) {
            o->failed = true;
            return;
        }
        o->p = q;
        o->cap = cap;
    }
    memcpy(o->p + o->n, p, n);
    o->n += n;
}

static void put_u32(bytes *o, uint32_t v) { put(o, &v, sizeof v); }
static void put_u64(bytes *o, uint64_t v) { put(o, &v, sizeof v); }

static void put_text(bytes *o, const char *s, size_t n)
{
    put_u64(o, n);
    put(o, s, n);
}

static void pad(bytes *o)
{
    while (o->n % ALIGN && !o->failed)
        put(o, "", 1);
}

/* --- a file in the making --- */

typedef struct maker {
    const preset *p;
    int layers;
    float skew;
    bool drafter;
    bytes meta;      /* entries */
    bytes directory; /* of tensors; offsets of matrices count from the end of the vectors and are put right later */
    bytes data;      /* vectors and tables */
    uint64_t n_meta, n_tensors, matrices; /* bytes of matrices so far */
    bytes fixups;    /* size_t each: where a matrix's offset stands in the directory */
} maker;

static void key(maker *m, const char *name, uint32_t type)
{
    char full[MOST_NAME];
    /* names with a dot at the start belong to the architecture */
    snprintf(full, sizeof full, "%s%s", *name == '.' ? "deepseek4" : "", name);
    put_text(&m->meta, full, strlen(full));
    put_u32(&m->meta, type);
    m->n_meta++;
}

static void key_u32(maker *m, const char *name, uint32_t v)
{
    key(m, name, GGUF_U32);
    put_u32(&m->meta, v);
}

static void key_f32(maker *m, const char *name, float v)
{
    key(m, name, GGUF_F32);
    put(&m->meta, &v, sizeof v);
}

static void key_text(maker *m, const char *name, const char *v)
{
    key(m, name, GGUF_STR);
    put_text(&m->meta, v, strlen(v));
}

static void key_array(maker *m, const char *name, uint32_t type, uint64_t n)
{
    key(m, name, GGUF_ARR);
    put_u32(&m->meta, type);
    put_u64(&m->meta, n);
}

static void entry(maker *m, const char *name, uint32_t type, int64_t n0, int64_t n1, int64_t n2)
{
    const int64_t ne[3] = {n0, n1, n2};
    uint32_t dims = n2 > 1 ? 3 : n1 > 1 ? 2 : 1;
    put_text(&m->directory, name, strlen(name));
    put_u32(&m->directory, dims);
    for (uint32_t i = 0; i < dims; i++)
        put_u64(&m->directory, (uint64_t)ne[i]);
    put_u32(&m->directory, type);
    m->n_tensors++;
}

static void matrix(maker *m, const char *name, uint32_t type, int64_t n0, int64_t n1, int64_t n2)
{
    const size_t at = (entry(m, name, type, n0, n1, n2), m->directory.n);
    put(&m->fixups, &at, sizeof at);
    put_u64(&m->directory, m->matrices);
    uint64_t size = quant_row_bytes(type, (uint64_t)n0) * (uint64_t)(n1 * n2);
    m->matrices += (size + ALIGN - 1) / ALIGN * ALIGN;
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

/* About normal: mean 0, variance 1. */
static float bell(uint64_t bits)
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)(bits >> 16 * i & 0xffff) / 65536;
    return (float)((sum - 2) * sqrt(3));
}

/* Norms and scales are 1, bases, sinks and position biases 0, router biases as skew says. */
static void vector(maker *m, const char *name, int64_t n0, int64_t n1)
{
    const bool ape = ends_with(name, "_ape.weight"), bias = ends_with(name, "exp_probs_b.bias");
    const bool one = ends_with(name, "norm.weight") || ends_with(name, "_scale.weight");
    const uint64_t seed = hash64(name, strlen(name), 0);
    entry(m, name, ape ? Q_F16 : Q_F32, n0, n1, 1);
    put_u64(&m->directory, m->data.n);
    for (int64_t i = 0; i < n0 * n1; i++) {
        float v = bias ? m->skew * bell(synth_bits(seed, (uint64_t)i)) : one ? 1.0f : 0.0f;
        put(&m->data, &v, ape ? 2 : 4); /* the zero of F16 is that of F32 */
    }
    pad(&m->data);
}

/* Distinct experts for every token. */
static void table(maker *m, const char *name, int64_t used, int64_t vocab)
{
    const uint64_t seed = hash64(name, strlen(name), 0);
    const uint32_t experts = (uint32_t)m->p->experts;
    entry(m, name, Q_I32, used, vocab, 1);
    put_u64(&m->directory, m->data.n);
    for (int64_t t = 0; t < vocab; t++) {
        int32_t id[64];
        for (int i = 0; i < used; i++) {
            id[i] = (int32_t)(synth_bits(seed, (uint64_t)(t * used + i)) % experts);
            for (int k = 0; k < i; k++)
                if (id[k] == id[i]) { /* the next one, compared with all again */
                    id[i] = (int32_t)((uint32_t)(id[i] + 1) % experts);
                    k = -1;
                }
        }
        put(&m->data, id, (size_t)used * sizeof *id);
    }
    pad(&m->data);
}

static uint32_t matrix_type(const maker *m, const char *name)
{
    if (ends_with(name, "_exps.weight"))
        return ends_with(name, "ffn_down_exps.weight") ? m->p->down : m->p->gate;
    if (strstr(name, "hc_") || strstr(name, "compressor") || strstr(name, "indexer"))
        return Q_F16;
    if (!strcmp(name, "token_embd.weight"))
        return Q_F16;
    if (ends_with(name, "ffn_gate_inp.weight"))
        return m->drafter ? Q_Q8_0 : Q_F16;
    return Q_Q8_0;
}

static void typed(maker *m, const char *name, int64_t n0, int64_t n1, int64_t n2)
{
    matrix(m, name, matrix_type(m, name), n0, n1, n2);
}

/* The tensors of one block, from the same list that the loader goes by. */
static void block(maker *m, const char *prefix, int ratio, bool hash)
{
    const preset *p = m->p;
    const int64_t D = p->d, S = STREAMS, QR = p->q_rank, H = p->heads, K = HEAD_DIM, G = p->groups, R = p->rank;
    const int64_t CW = ratio == 4 ? 2 * K : K, IH = p->idx_heads, I = INDEX_DIM, E = p->experts, F = p->ff, U = p->used;
    const int64_t VOCAB = p->vocab;
    const bool ALWAYS = true, COMP = ratio != 0, INDEX = ratio == 4, SCORED = !hash, HASHED = hash;
    char name[MOST_NAME];
#define NAMED(n) (snprintf(name, sizeof name, "%s%s", prefix, n), name)
#define M(member, n, n0, n1, n2, when)                                                                                 \
    if (when)                                                                                                          \
        typed(m, NAMED(n), n0, n1, n2);
#define V(member, n, n0, n1, when)                                                                                     \
    if (when)                                                                                                          \
        vector(m, NAMED(n), n0, n1);
#define T(member, n, n0, n1, when)                                                                                     \
    if (when)                                                                                                          \
        table(m, NAMED(n), n0, n1);
#include "model/weights.def"
#undef M
#undef V
#undef T
#undef NAMED
}

/* --- metadata --- */

static void sizes(maker *m)
{
    const preset *p = m->p;
    const struct {
        const char *key;
        int v;
    } list[] = {{".block_count", m->layers},
                {".context_length", 1 << 20},
                {".embedding_length", p->d},
                {".vocab_size", p->vocab},
                {".attention.head_count", p->heads},
                {".attention.head_count_kv", 1},
                {".attention.key_length", HEAD_DIM},
                {".attention.value_length", HEAD_DIM},
                {".attention.q_lora_rank", p->q_rank},
                {".attention.output_lora_rank", p->rank},
                {".attention.output_group_count", p->groups},
                {".attention.sliding_window", WINDOW},
                {".attention.indexer.head_count", p->idx_heads},
                {".attention.indexer.key_length", INDEX_DIM},
                {".attention.indexer.top_k", p->topk},
                {".rope.dimension_count", 64},
                {".rope.scaling.original_context_length", 65536},
                {".hyper_connection.count", STREAMS},
                {".hyper_connection.sinkhorn_iterations", 20},
                {".hash_layer_count", p->hashed < m->layers ? p->hashed : m->layers},
                {".expert_count", p->experts},
                {".expert_used_count", p->used},
                {".expert_shared_count", 1},
                {".expert_feed_forward_length", p->ff},
                {".expert_gating_func", 4}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        key_u32(m, list[i].key, (uint32_t)list[i].v);
}

static void numbers(maker *m)
{
    key_f32(m, ".attention.layer_norm_rms_epsilon", 1e-6f);
    key_f32(m, ".hyper_connection.epsilon", 1e-6f);
    key_f32(m, ".rope.freq_base", 10000);
    key_f32(m, ".attention.compress_rope_freq_base", 160000);
    key_f32(m, ".rope.scaling.factor", 16);
    key_f32(m, ".rope.scaling.yarn_beta_fast", 32);
    key_f32(m, ".rope.scaling.yarn_beta_slow", 1);
    key_f32(m, ".expert_weights_scale", 1.5f);
    key_text(m, ".rope.scaling.type", "yarn");
    key(m, ".expert_weights_norm", GGUF_BOOL);
    put(&m->meta, &(uint8_t){1}, 1);
    key_array(m, ".attention.compress_ratios", GGUF_I32, (uint64_t)m->layers);
    for (int l = 0; l < m->layers; l++)
        put_u32(&m->meta, (uint32_t)ratio_of(l));
    key_array(m, ".swiglu_clamp_exp", GGUF_F32, (uint64_t)m->layers);
    for (int l = 0; l < m->layers; l++)
        put(&m->meta, &(float){10}, 4);
}

/* Special tokens, then the bytes in GPT-2's printable alphabet, then nothing. */
static void vocabulary(maker *m)
{
    const uint64_t n = (uint64_t)m->p->vocab;
    uint32_t hidden = 0x100;
    key_text(m, "tokenizer.ggml.model", "gpt2");
    key_array(m, "tokenizer.ggml.tokens", GGUF_STR, n);
    for (int i = 0; i < SP_COUNT; i++) {
        const char *text = vocab_special_text((enum vocab_special)i);
        put_text(&m->meta, text, strlen(text));
    }
    for (uint32_t b = 0; b < 256; b++) {
        const bool visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        const uint32_t c = visible ? b : hidden++;
        const char two[2] = {(char)(0xc0 | c >> 6), (char)(0x80 | (c & 63))}, one = (char)c;
        put_text(&m->meta, c < 128 ? &one : two, c < 128 ? 1 : 2);
    }
    for (uint64_t i = SP_COUNT + 256; i < n; i++)
        put_text(&m->meta, "", 0);
    key_array(m, "tokenizer.ggml.token_type", GGUF_I32, n);
    for (uint64_t i = 0; i < n; i++)
        put_u32(&m->meta, i < SP_COUNT ? VOCAB_CONTROL : i < SP_COUNT + 256 ? VOCAB_NORMAL : VOCAB_UNUSED);
    key_array(m, "tokenizer.ggml.merges", GGUF_STR, 0);
}

/* --- the two files --- */

static void trunk(maker *m)
{
    const preset *p = m->p;
    char prefix[32];
    key_text(m, "general.architecture", "deepseek4");
    sizes(m);
    numbers(m);
    vocabulary(m);
    typed(m, "token_embd.weight", p->d, p->vocab, 1);
    typed(m, "output.weight", p->d, p->vocab, 1);
    vector(m, "output_norm.weight", p->d, 1);
    typed(m, "output_hc_fn.weight", STREAMS * p->d, STREAMS, 1);
    vector(m, "output_hc_base.weight", STREAMS, 1);
    vector(m, "output_hc_scale.weight", 1, 1);
    for (int l = 0; l < m->layers; l++) {
        snprintf(prefix, sizeof prefix, "blk.%d.", l);
        block(m, prefix, ratio_of(l), l < p->hashed);
    }
}

static void drafter(maker *m)
{
    const preset *p = m->p;
    char prefix[32], name[MOST_NAME];
    key_text(m, "general.architecture", "deepseek4-dspark");
    key_u32(m, "dspark.block_size", BLOCK);
    key_u32(m, "dspark.markov_rank", (uint32_t)p->markov);
    key_u32(m, "dspark.noise_token_id", (uint32_t)p->noise);
    key_array(m, "dspark.target_layer_ids", GGUF_I32, STAGES);
    for (int i = 0; i < STAGES; i++)
        put_u32(&m->meta, (uint32_t)(m->layers - STAGES + i));
    for (int i = 0; i < STAGES; i++) {
        snprintf(prefix, sizeof prefix, "mtp.%d.", i);
        block(m, prefix, 0, false);
    }
    typed(m, "mtp.0.main_proj.weight", STAGES * p->d, p->d, 1);
    vector(m, "mtp.0.main_norm.weight", p->d, 1);
    snprintf(prefix, sizeof prefix, "mtp.%d.", STAGES - 1);
#define LAST(n) (snprintf(name, sizeof name, "%s%s", prefix, n), name)
    vector(m, LAST("norm.weight"), p->d, 1);
    typed(m, LAST("hc_head_fn.weight"), STREAMS * p->d, STREAMS, 1);
    vector(m, LAST("hc_head_base.weight"), STREAMS, 1);
    vector(m, LAST("hc_head_scale.weight"), 1, 1);
    typed(m, LAST("markov_head.markov_w1.weight"), p->markov, p->vocab, 1);
    typed(m, LAST("markov_head.markov_w2.weight"), p->markov, p->vocab, 1);
    typed(m, LAST("confidence_head.proj.weight"), p->d + p->markov, 1, 1);
#undef LAST
}

/* Joins the parts and opens what they make. */
static int finish(maker *m, gguf **out, uint8_t **kept, ds4_err *e)
{
    bytes o = {0};
    char name[64];
    for (size_t i = 0; i < m->fixups.n && !m->directory.failed && !m->fixups.failed; i += sizeof(size_t)) {
        size_t at;
        uint64_t v;
        memcpy(&at, m->fixups.p + i, sizeof at);
        memcpy(&v, m->directory.p + at, sizeof v);
        v += m->data.n;
        memcpy(m->directory.p + at, &v, sizeof v);
    }
    put(&o, "GGUF\3\0\0", 8);
    put_u64(&o, m->n_tensors);
    put_u64(&o, m->n_meta);
    put(&o, m->meta.p, m->meta.n);
    put(&o, m->directory.p, m->directory.n);
    pad(&o);
    put(&o, m->data.p, m->data.n);
    const bool failed = m->meta.failed || m->directory.failed || m->data.failed || m->fixups.failed || o.failed;
    free(m->meta.p);
    free(m->directory.p);
    free(m->data.p);
    free(m->fixups.p);
    if (failed) {
        free(o.p);
        return ds4_fail(e, DS4_ENOMEM, "no memory to describe the synthetic model %s", m->p->name);
    }
    *kept = o.p;
    snprintf(name, sizeof name, "synthetic %s%s", m->p->name, m->drafter ? " drafter" : "");
    return gguf_open_outline(out, o.p, o.n, name, e);
}

static int begin(maker *m, const synth_model *s, bool is_drafter, ds4_err *e)
{
    *m = (maker){.drafter = is_drafter, .skew = s->skew};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (!strcmp(presets[i].name, s->name))
            m->p = &presets[i];
    if (!m->p)
        return ds4_fail(e, DS4_EARG, "synthetic model '%s', expected flash-q2, flash-q4 or flash-mxfp4", s->name);
    m->layers = s->layers ? s->layers : m->p->layers;
    if (m->layers < STAGES || m->layers > m->p->layers)
        return ds4_fail(e, DS4_EARG, "%d layers of %s, expected %d to %d", m->layers, s->name, STAGES, m->p->layers);
    if (!(s->skew >= 0 && s->skew <= 100))
        return ds4_fail(e, DS4_EARG, "skew %g, expected 0 to 100", (double)s->skew);
    return 0;
}

int synth_trunk(gguf **out, uint8_t **kept, const synth_model *s, ds4_err *e)
{
    maker m;
    int rc = begin(&m, s, false, e);
    if (rc)
        return rc;
    trunk(&m);
    return finish(&m, out, kept, e);
}

int synth_drafter(gguf **out, uint8_t **kept, const synth_model *s, ds4_err *e)
{
    maker m;
    int rc = begin(&m, s, true, e);
    if (rc)
        return rc;
    drafter(&m);
    return finish(&m, out, kept, e);
}
