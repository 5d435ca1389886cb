/* Whole conversions: golden set A must survive exactly, and self-made checkpoints exercise every coding and error. */
#include "convert/util_convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "convert/convert.h"
#include "file/gguf.h"
#include "file/quant.h"

static conv_options options(const char *dir, const char *out, const char *recipe)
{
    conv_options o = {.hf_dir = dir, .out = out, .threads = 2};
    o.plan = (plan_options){.recipe = plan_find_recipe(recipe), .experts = -1, .dense = -1};
    return o;
}

static int convert(const conv_options *o, ds4_err *e)
{
    conv *c;
    int rc = conv_open(&c, o, e);
    if (rc)
        return rc;
    rc = conv_run(c, NULL, e);
    conv_close(c);
    return rc;
}

static gguf *convert_and_open(const conv_options *o)
{
    ds4_err e = {0};
    gguf *g = NULL;
    if (convert(o, &e) || gguf_open(&g, o->out, &e))
        fail_msg("%s", e.msg);
    return g;
}

static void refuse(const conv_options *o, const char *say, const char *also)
{
    ds4_err e = {0};
    int rc = convert(o, &e);
    if (rc >= 0 || !strstr(e.msg, say) || !strstr(e.msg, also))
        fail_msg("rc %d, message \"%s\" should contain \"%s\" and \"%s\"", rc, e.msg, say, also);
}

static float *decoded(const gguf *g, const char *name, uint64_t *n)
{
    const gguf_tensor *t = gguf_find_tensor(g, name);
    if (!t)
        fail_msg("tensor %s is missing", name);
    *n = t->ne[0] * t->ne[1] * t->ne[2];
    float *x = malloc(*n * sizeof *x);
    quant_decode(t->type, t->data, x, *n);
    return x;
}

static float plain_value(const st_tensor *t, size_t i)
{
    float f;
    if (t->dtype == ST_F32) {
        memcpy(&f, t->data + 4 * i, 4);
        return f;
    }
    assert_int_equal(t->dtype, ST_BF16);
    return num_bf16((uint16_t)(t->data[2 * i] | t->data[2 * i + 1] << 8));
}

/* Every value of `name` equals that of the stacked plain sources. */
static void same_values(const gguf *g, const char *name, st_set *s, const char *src, unsigned slices)
{
    uint64_t n;
    float *x = decoded(g, name, &n);
    for (unsigned k = 0; k < slices; k++) {
        char buf[160];
        snprintf(buf, sizeof buf, src, k);
        const st_tensor *t = st_find(s, buf);
        if (!t)
            fail_msg("source %s is missing", buf);
        for (size_t i = 0; i < n / slices; i++)
            if (x[k * (n / slices) + i] != plain_value(t, i))
                fail_msg("%s, value %zu of slice %u: %g, source %g", name, i, k, (double)x[k * (n / slices) + i],
                         (double)plain_value(t, i));
    }
    free(x);
}

/* All tensors of a file against the plan's sources, exactly; the plan's names are checked against the set's by the
 * converter. */
static void all_values_equal(const gguf *g, const conv_options *o, st_set *s)
{
    conv *c;
    ds4_err e = {0};
    assert_int_equal(conv_open(&c, o, &e), 0);
    const plan *p = conv_plan(c);
    assert_int_equal(gguf_n_tensors(g), p->n);
    for (size_t i = 0; i < p->n; i++) {
        const plan_tensor *t = &p->t[i];
        if (t->cls != PC_IDS) {
            same_values(g, t->name, s, t->src, t->slices);
            continue;
        }
        const gguf_tensor *ids = gguf_find_tensor(g, t->name);
        const st_tensor *src = st_find(s, t->src);
        assert_int_equal(ids->type, Q_I32);
        for (size_t k = 0; k < ids->nbytes / 4; k++) {
            int64_t want;
            memcpy(&want, src->data + 8 * k, 8);
            assert_int_equal(((const int32_t *)ids->data)[k], want);
        }
    }
    conv_close(c);
}

static void golden_set_survives_every_lossless_recipe(void **state)
{
    static const struct { const char *recipe; bool drafter; int64_t experts; size_t tensors; } runs[] = {
        {"f32", false, -1, 240}, {"q8", false, Q_MXFP4, 240}, {"mxfp4", false, -1, 240},
        {"f32", true, -1, 81},   {"q8", true, Q_MXFP4, 81},
    };
    char dir[512], path[512];
    tmpdir d;
    st_set *s;
    ds4_err e = {0};
    (void)state;
    if (!golden_a(dir))
        skip();
    tmp_make(&d);
    assert_int_equal(st_open_dir(&s, dir, &e), 0);
    for (int i = 0; i < 5; i++) {
        conv_options o = options(dir, tmp_path(&d, "a.gguf", path), runs[i].recipe);
        o.drafter = runs[i].drafter;
        o.plan.experts = runs[i].experts;
        gguf *g = convert_and_open(&o);
        assert_int_equal(gguf_n_tensors(g), runs[i].tensors);
        all_values_equal(g, &o, s);
        const char *expert = o.drafter ? "mtp.2.ffn_down_exps.weight" : "blk.7.ffn_down_exps.weight";
        assert_int_equal(gguf_find_tensor(g, expert)->type, strcmp(runs[i].recipe, "f32") ? Q_MXFP4 : Q_F32);
        gguf_close(g);
    }
    st_close(s);
    tmp_remove(&d);
}

static void q2_of_the_golden_set_falls_back_where_it_must(void **state)
{
    char dir[512], path[512];
    tmpdir d;
    (void)state;
    if (!golden_a(dir))
        skip();
    tmp_make(&d);
    conv_options o = options(dir, tmp_path(&d, "a.gguf", path), "q2");
    gguf *g = convert_and_open(&o);
    assert_int_equal(gguf_find_tensor(g, "blk.0.ffn_gate_exps.weight")->type, Q_IQ2_XXS);
    assert_int_equal(gguf_find_tensor(g, "blk.0.ffn_down_exps.weight")->type, Q_Q8_0);
    gguf_close(g);
    o.plan.strict = true;
    refuse(&o, "ffn_down_exps", "Q2_K");
    tmp_remove(&d);
}

/* Tensor count and bytes of the published q2, q4 and MXFP4 files follow from shapes and types alone. */
static void plan_of_the_real_model_has_the_published_size(void **state)
{
    static const struct { const char *recipe; uint64_t bytes; } want[] = {
        {"q2", 86714775900u}, {"q4", 164628167004u}, {"mxfp4", 155971123548u},
    };
    hf_config c = {.vocab_size = 129280, .num_hidden_layers = 43, .hidden_size = 4096, .num_attention_heads = 64,
                   .num_key_value_heads = 1, .head_dim = 512, .qk_rope_head_dim = 64, .q_lora_rank = 1024,
                   .o_groups = 8, .o_lora_rank = 1024, .sliding_window = 128, .index_n_heads = 64,
                   .index_head_dim = 128, .index_topk = 512, .n_routed_experts = 256, .num_experts_per_tok = 6,
                   .n_shared_experts = 1, .moe_intermediate_size = 2048, .num_hash_layers = 3, .hc_mult = 4,
                   .n_ratios = 46, .has_dspark = true, .dspark_markov_rank = 256, .n_targets = 3};
    (void)state;
    for (uint32_t l = 2; l < 43; l++)
        c.ratios[l] = l % 2 ? 128 : 4;
    for (int i = 0; i < 3; i++) {
        plan p;
        ds4_err e = {0};
        plan_options o = {.recipe = plan_find_recipe(want[i].recipe), .experts = -1, .dense = -1, .strict = true};
        assert_int_equal(plan_trunk(&p, &c, &o, &e), 0);
        assert_int_equal(p.n, 1328);
        if (p.bytes != want[i].bytes)
            fail_msg("%s: %llu bytes", want[i].recipe, (unsigned long long)p.bytes);
        plan_free(&p);
        assert_int_equal(plan_drafter(&p, &c, 3, &o, &e), 0);
        assert_int_equal(p.n, 81);
        /* the published support file plus its router in F16 instead of Q8_0 */
        if (i == 0)
            assert_true(p.bytes == 5989108652u + 3 * (2097152u - 1114112u));
        plan_free(&p);
    }
}

/* The documented decoding of FP8 and FP4, written again from the format's definition. */
static double official_value(st_set *s, const char *name, uint64_t row, uint64_t col, uint64_t cols)
{
    static const double e2m1[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    char scale[160];
    const st_tensor *t = st_find(s, name), *sc;
    snprintf(scale, sizeof scale, "%.*s.scale", (int)strlen(name) - 7, name);
    sc = st_find(s, scale);
    if (!sc)
        return plain_value(t, row * cols + col);
    if (t->dtype == ST_F8_E4M3) {
        uint8_t b = t->data[row * cols + col];
        double m = b & 7, v = b >> 3 & 15 ? ldexp(1 + m / 8, (b >> 3 & 15) - 7) : ldexp(m, -9);
        return (b & 128 ? -v : v) * ldexp(1, sc->data[row / 128 * ((cols + 127) / 128) + col / 128] - 127);
    }
    uint8_t b = t->data[row * (cols / 2) + col / 2], code = col % 2 ? b >> 4 : b & 15;
    return (code & 8 ? -1 : 1) * e2m1[code & 7] * ldexp(1, sc->data[row * (cols / 32) + col / 32] - 127);
}

static void official_codings_decode_exactly(void **state)
{
    static const char *const names[][2] = {
        {"blk.0.attn_q_b.weight", "layers.0.attn.wq_b.weight"}, /* 256 x 160: partial scale blocks */
        {"blk.1.indexer.attn_q_b.weight", "layers.1.attn.indexer.wq_b.weight"},
        {"blk.2.attn_output_a.weight", "layers.2.attn.wo_a.weight"},
        {"blk.2.ffn_down_exps.weight", "layers.2.ffn.experts.0.w2.weight"},
        {"blk.2.ffn_up_exps.weight", "layers.2.ffn.experts.0.w3.weight"},
    };
    char path[512];
    tmpdir d;
    st_set *s;
    ds4_err e = {0};
    (void)state;
    tmp_make(&d);
    tiny_checkpoint(&d, STORE_OFFICIAL);
    conv_options o = options(d.path, tmp_path(&d, "f.gguf", path), "f32");
    gguf *g = convert_and_open(&o);
    assert_int_equal(st_open_dir(&s, d.path, &e), 0);
    for (int i = 0; i < 5; i++) {
        uint64_t n, cols = gguf_find_tensor(g, names[i][0])->ne[0], rows = gguf_find_tensor(g, names[i][0])->ne[1];
        float *x = decoded(g, names[i][0], &n);
        for (uint64_t k = 0; k < rows * cols; k++)
            if (x[k] != official_value(s, names[i][1], k / cols, k % cols, cols))
                fail_msg("%s: value %llu: %g, expected %g", names[i][0], (unsigned long long)k, (double)x[k],
                         official_value(s, names[i][1], k / cols, k % cols, cols));
        free(x);
    }
    gguf *m;
    o = options(d.path, tmp_path(&d, "m.gguf", path), "mxfp4");
    m = convert_and_open(&o);
    for (int i = 3; i < 5; i++) {
        uint64_t n;
        float *a = decoded(g, names[i][0], &n), *b = decoded(m, names[i][0], &n);
        for (uint64_t k = 0; k < n; k++)
            assert_true(a[k] == b[k]);
        free(a);
        free(b);
    }
    gguf_close(m);
    gguf_close(g);
    st_close(s);
    tmp_remove(&d);
}

/* The new file replaces what has its name; a checkpoint that is read must not be lost. */
static void inputs_are_never_replaced(void **state)
{
    static const char *const inputs[] = {"model.safetensors", "./model.safetensors"};
    char path[512];
    tmpdir d;
    (void)state;
    tmp_make(&d);
    tiny_checkpoint(&d, STORE_OFFICIAL);
    for (int i = 0; i < 2; i++) {
        conv_options o = options(d.path, tmp_path(&d, inputs[i], path), "f32");
        size_t before, after;
        uint8_t *a = read_file(path, &before);
        refuse(&o, "model.safetensors", "is an input");
        uint8_t *b = read_file(path, &after);
        assert_int_equal(before, after);
        assert_memory_equal(a, b, before);
        free(a);
        free(b);
    }
    tmp_remove(&d);
}

static void threads_do_not_change_the_file(void **state)
{
    char p1[512], p2[512];
    tmpdir d;
    size_t n1, n2;
    ds4_err e = {0};
    (void)state;
    tmp_make(&d);
    tiny_checkpoint(&d, STORE_OFFICIAL);
    for (int k = 0; k < 2; k++) {
        conv_options o = options(d.path, tmp_path(&d, "1.gguf", p1), k ? "q4" : "q2");
        o.threads = 1;
        assert_int_equal(convert(&o, &e), 0);
        o.out = tmp_path(&d, "2.gguf", p2);
        o.threads = 5;
        assert_int_equal(convert(&o, &e), 0);
        uint8_t *a = read_file(p1, &n1), *b = read_file(p2, &n2);
        assert_int_equal(n1, n2);
        assert_memory_equal(a, b, n1);
        free(a);
        free(b);
    }
    tmp_remove(&d);
}

static void drafter_file_has_its_nine_keys_and_sorted_names(void **state)
{
    char path[512];
    tmpdir d;
    uint32_t v = 0;
    ds4_err e = {0};
    (void)state;
    tmp_make(&d);
    tiny_checkpoint(&d, STORE_BF16);
    conv_options o = options(d.path, tmp_path(&d, "d.gguf", path), "q2");
    o.drafter = true;
    gguf *g = convert_and_open(&o);
    assert_int_equal(gguf_n_kv(g), 9);
    assert_int_equal(gguf_n_tensors(g), 81);
    for (size_t i = 1; i < 81; i++) {
        gguf_str a = gguf_tensor_at(g, i - 1)->name, b = gguf_tensor_at(g, i)->name;
        int cmp = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
        assert_true(cmp < 0 || (cmp == 0 && a.n < b.n));
    }
    assert_int_equal(gguf_get_u32(g, "dspark.noise_token_id", true, 0, 999, &v, &e), 0);
    assert_int_equal(v, 271);
    assert_int_equal(gguf_arr_int(gguf_find_kv(g, "dspark.target_layer_ids"), 2), 2);
    assert_int_equal(gguf_find_tensor(g, "mtp.2.hc_head_scale.weight")->type, Q_F32);
    assert_int_equal(gguf_find_tensor(g, "mtp.1.ffn_down_exps.weight")->type, Q_Q2_K);
    assert_int_equal(gguf_find_tensor(g, "mtp.0.main_proj.weight")->ne[0], 768);
    assert_int_equal(gguf_find_tensor(g, "mtp.2.confidence_head.proj.weight")->ne[0], 288);
    gguf_close(g);
    tmp_remove(&d);
}

static void llama_layout_has_its_own_names_and_shapes(void **state)
{
    char path[512];
    tmpdir d;
    (void)state;
    tmp_make(&d);
    tiny_checkpoint(&d, STORE_BF16);
    conv_options o = options(d.path, tmp_path(&d, "l.gguf", path), "q8");
    o.plan.llama = true;
    gguf *g = convert_and_open(&o);
    const gguf_tensor *t = gguf_find_tensor(g, "blk.1.attn_output_a.weight");
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->ne[1], 48);
    assert_int_equal(t->ne[2], 2);
    gguf_close(g);
    o.drafter = true;
    g = convert_and_open(&o);
    assert_int_equal(gguf_n_tensors(g), 81);
    assert_non_null(gguf_find_tensor(g, "fc.weight"));
    assert_non_null(gguf_find_tensor(g, "markov_w2.weight"));
    assert_non_null(gguf_find_tensor(g, "blk.2.attn_sinks.weight"));
    assert_int_equal(gguf_arr_int(gguf_find_kv(g, "dflash.target_layers"), 0), 1);
    gguf_close(g);
    tmp_remove(&d);
}

static void trunk_metadata_and_tokenizer_are_complete(void **state)
{
    static const char *const want[] = {
        "block_count", "context_length", "embedding_length", "vocab_size", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "attention.layer_norm_rms_epsilon", "attention.q_lora_rank", "attention.output_lora_rank",
        "attention.output_group_count", "attention.sliding_window", "attention.compress_ratios",
        "attention.compress_rope_freq_base", "attention.indexer.head_count", "attention.indexer.key_length",
        "attention.indexer.top_k", "rope.dimension_count", "rope.freq_base", "rope.scaling.type",
        "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow", "hyper_connection.count", "hyper_connection.sinkhorn_iterations",
        "hyper_connection.epsilon", "hash_layer_count", "expert_count", "expert_used_count", "expert_shared_count",
        "expert_feed_forward_length", "expert_weights_scale", "expert_weights_norm", "expert_gating_func",
        "swiglu_clamp_exp", "swiglu_clamp_shexp", "nextn_predict_layers",
    };
    char path[512], key[96];
    tmpdir d;
    size_t at = 0;
    gguf_str s;
    uint32_t pad = 0;
    ds4_err e = {0};
    (void)state;
    tmp_make(&d);
    tiny_checkpoint(&d, STORE_BF16);
    write_file(&d, "tokenizer.json", tiny_tokenizer, strlen(tiny_tokenizer));
    conv_options o = options(d.path, tmp_path(&d, "t.gguf", path), "q8");
    gguf *g = convert_and_open(&o);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        snprintf(key, sizeof key, "deepseek4.%s", want[i]);
        if (!gguf_find_kv(g, key))
            fail_msg("key %s is missing", key);
    }
    assert_int_equal(gguf_find_kv(g, "deepseek4.attention.compress_ratios")->count, 6);
    const gguf_kv *types = gguf_find_kv(g, "tokenizer.ggml.token_type");
    assert_int_equal(types->count, 272);
    assert_int_equal(gguf_arr_int(types, 0), 3);
    assert_int_equal(gguf_arr_int(types, 3), 1);
    assert_int_equal(gguf_arr_int(types, 10), 4);
    assert_int_equal(gguf_arr_int(types, 11), 3);
    assert_int_equal(gguf_arr_int(types, 200), 5);
    assert_int_equal(gguf_find_kv(g, "tokenizer.ggml.tokens")->count, 272);
    const gguf_kv *merges = gguf_find_kv(g, "tokenizer.ggml.merges");
    assert_int_equal(merges->count, 2);
    assert_true(gguf_next_str(merges, &at, &s) && s.n == 3 && !memcmp(s.p, "a b", 3));
    assert_true(gguf_next_str(merges, &at, &s) && s.n == 4 && !memcmp(s.p, "ab c", 4));
    assert_int_equal(gguf_get_u32(g, "tokenizer.ggml.padding_token_id", true, 0, 300, &pad, &e), 0);
    assert_int_equal(pad, 2);
    gguf_close(g);
    tmp_remove(&d);
}

static void bad_tokenizers_are_refused(void **state)
{
    static const struct { const char *text, *say; } cases[] = {
        {"[", "JSON"},
        {"{}", "BPE"},
        {"{\"model\":{\"type\":\"Unigram\",\"merges\":[]}}", "Unigram"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "vocab"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":272},\"merges\":[]}}", "272"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "-1"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", "both"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":2},\"merges\":[\"ab\"]}}", "merges[0]"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":2},\"merges\":[\"a b\"]}}", "vocabulary"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[[\"a\"]]}}", "merges[0]"},
    };
    char path[512];
    tmpdir d;
    (void)state;
    tmp_make(&d);
    tiny_checkpoint(&d, STORE_BF16);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(&d, "tokenizer.json", cases[i].text, strlen(cases[i].text));
        conv_options o = options(d.path, tmp_path(&d, "t.gguf", path), "f16");
        refuse(&o, cases[i].say, "tokenizer.json");
    }
    tmp_remove(&d);
}

/* Rewrites the tiny checkpoint with one name replaced by another of the same length. */
static void rename_tensor(const tmpdir *d, const char *from, const char *to)
{
    char path[512];
    size_t n, len = strlen(from);
    uint8_t *p = read_file(tmp_path(d, "model.safetensors", path), &n);
    assert_int_equal(len, strlen(to));
    for (size_t i = 0; i + len < n; i++)
        if (!memcmp(p + i, from, len)) {
            memcpy(p + i, to, len);
            break;
        }
    write_file(d, "model.safetensors", p, n);
    free(p);
}

static void missing_and_unused_tensors_are_named(void **state)
{
    char path[512];
    tmpdir d;
    (void)state;
    tmp_make(&d);
    tiny_checkpoint(&d, STORE_BF16);
    conv_options o = options(d.path, tmp_path(&d, "t.gguf", path), "f16");
    rename_tensor(&d, "\"layers.1.attn.wkv.weight\"", "\"layers.9.attn.wkv.weight\"");
    refuse(&o, "layers.1.attn.wkv.weight is missing", "model.safetensors");
    tiny_checkpoint(&d, STORE_BF16);
    rename_tensor(&d, "\"mtp.1.attn.wkv.weight\"", "\"xyz.1.attn.wkv.weight\"");
    refuse(&o, "xyz.1.attn.wkv.weight", "no place");
    o.drafter = true;
    refuse(&o, "mtp.1.attn.wkv.weight is missing", "model.safetensors");
    tiny_checkpoint(&d, STORE_OFFICIAL);
    rename_tensor(&d, "\"layers.1.attn.wkv.scale\"", "\"layers.1.attn.wkv.scalf\"");
    o.drafter = false;
    refuse(&o, "layers.1.attn.wkv.weight", "without a scale");
    tmp_remove(&d);
}

/* Overwrites one element of the first data bytes of a tensor. */
static void poke(const tmpdir *d, const char *name, size_t at, const void *v, size_t n)
{
    char path[512];
    size_t len;
    st_set *s;
    ds4_err e = {0};
    uint8_t *p = read_file(tmp_path(d, "model.safetensors", path), &len);
    assert_int_equal(st_open_mem(&s, p, len, "x", &e), 0);
    memcpy((uint8_t *)st_find(s, name)->data + at, v, n);
    st_close(s);
    write_file(d, "model.safetensors", p, len);
    free(p);
}

static void unstorable_values_are_named_and_nothing_is_written(void **state)
{
    char path[512];
    tmpdir d;
    uint16_t nan = 0x7fc0, inf = 0x7f80, big = 0x4780; /* bf16; 65536 */
    int64_t id = 2;
    uint8_t scale = 255;
    (void)state;
    tmp_make(&d);
    tiny_checkpoint(&d, STORE_BF16);
    conv_options o = options(d.path, tmp_path(&d, "t.gguf", path), "q2");
    poke(&d, "layers.2.ffn.experts.1.w1.weight", 2 * (256 * 5 + 7), &nan, 2);
    refuse(&o, "layers.2.ffn.experts.1.w1.weight", "row 5, column 7");
    tiny_checkpoint(&d, STORE_BF16);
    poke(&d, "head.weight", 2 * 256, &inf, 2);
    refuse(&o, "head.weight", "inf");
    tiny_checkpoint(&d, STORE_BF16);
    poke(&d, "embed.weight", 2, &big, 2);
    refuse(&o, "embed.weight", "65536");
    tiny_checkpoint(&d, STORE_BF16);
    poke(&d, "layers.0.ffn.gate.tid2eid", 16, &id, 8);
    refuse(&o, "tid2eid", "id 2");
    tiny_checkpoint(&d, STORE_OFFICIAL);
    poke(&d, "layers.1.ffn.experts.1.w2.scale", 8, &scale, 1);
    refuse(&o, "layers.1.ffn.experts.1.w2.weight", "nan");
    o.plan.recipe = plan_find_recipe("mxfp4");
    refuse(&o, "layers.1.ffn.experts.1.w2.weight", "NaN");
    FILE *f = fopen(path, "rb");
    assert_null(f);
    tmp_remove(&d);
}

static void bad_configs_are_refused(void **state)
{
    static const struct { const char *from, *to, *say; } cases[] = {
        {"\"vocab_size\":272", "\"vocab_sizf\":272", "vocab_size"},
        {"\"hidden_size\":256", "\"hidden_size\":-56", "hidden_size"},
        {"\"hidden_size\":256", "\"hidden_size\":2.5", "hidden_size"},
        {"[0,4,128,0,0,0]", "[0,4,128,4,0,0]", "compress_ratios"},
        {"[0,4,128,0,0,0]", "[0,5,128,0,0,0]", "compress_ratios"},
        {"[0,4,128,0,0,0]", "[0,4]          ", "compress_ratios"},
        {"deepseek_v4\"", "deepseek_vX\"", "deepseek_vX"},
        {"sqrtsoftplus", "softmaxsigmo", "scoring_func"},
        {"\"rope_scaling\":{", "\"rope_scalinG\":{", "rope_scaling"},
        {"[0,1,2]", "[0,2,1]", "dspark_target_layer_ids"},
        {"[0,1,2]", "[0,1,3]", "dspark_target_layer_ids"},
        {"token_id\":271", "token_id\":272", "noise"},
        {"\"o_groups\":2", "\"o_groups\":3", "o_groups"},
    };
    char text[2048];
    hf_config c;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds4_err e = {0};
        snprintf(text, sizeof text, "%s", tiny_config);
        char *p = strstr(text, cases[i].from);
        assert_non_null(p);
        memcpy(p, cases[i].to, strlen(cases[i].to));
        int rc = hf_parse_config(&c, text, strlen(text), "config.json", &e);
        if (rc >= 0 || !strstr(e.msg, cases[i].say))
            fail_msg("%s: rc %d, message \"%s\"", cases[i].to, rc, e.msg);
    }
    for (size_t n = 0; n < strlen(tiny_config); n++) {
        ds4_err e = {0};
        assert_true(hf_parse_config(&c, tiny_config, n, "config.json", &e) < 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_set_survives_every_lossless_recipe),
        cmocka_unit_test(q2_of_the_golden_set_falls_back_where_it_must),
        cmocka_unit_test(plan_of_the_real_model_has_the_published_size),
        cmocka_unit_test(official_codings_decode_exactly),
        cmocka_unit_test(inputs_are_never_replaced),
        cmocka_unit_test(threads_do_not_change_the_file),
        cmocka_unit_test(drafter_file_has_its_nine_keys_and_sorted_names),
        cmocka_unit_test(llama_layout_has_its_own_names_and_shapes),
        cmocka_unit_test(trunk_metadata_and_tokenizer_are_complete),
        cmocka_unit_test(bad_tokenizers_are_refused),
        cmocka_unit_test(missing_and_unused_tensors_are_named),
        cmocka_unit_test(unstorable_values_are_named_and_nothing_is_written),
        cmocka_unit_test(bad_configs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
