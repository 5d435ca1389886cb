#include "convert/util_convert.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/num.h"

uint32_t rng_u32(rng *r)
{
    r->s ^= r->s << 13;
    r->s ^= r->s >> 7;
    r->s ^= r->s << 17;
    return (uint32_t)(r->s >> 24);
}

float rng_gauss(rng *r)
{
    double a = (rng_u32(r) + 1.0) / 4294967297.0, b = rng_u32(r) / 4294967296.0;
    return (float)(sqrt(-2 * log(a)) * cos(6.283185307179586 * b));
}

void tmp_make(tmpdir *d)
{
    const char *base = getenv("TMPDIR");
    snprintf(d->path, sizeof d->path, "%s/ds4-convert-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(d->path));
}

void tmp_remove(const tmpdir *d)
{
    char buf[512];
    DIR *dir = opendir(d->path);
    for (struct dirent *it; dir && (it = readdir(dir));)
        if (it->d_name[0] != '.')
            unlink(tmp_path(d, it->d_name, buf));
    if (dir)
        closedir(dir);
    rmdir(d->path);
}

const char *tmp_path(const tmpdir *d, const char *name, char buf[512])
{
    snprintf(buf, 512, "%.200s/%.250s", d->path, name);
    return buf;
}

void write_file(const tmpdir *d, const char *name, const void *p, size_t n)
{
    char buf[512];
    FILE *f = fopen(tmp_path(d, name, buf), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

uint8_t *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *p = malloc(*n + 1);
    assert_int_equal(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

void stb_begin(st_builder *b)
{
    *b = (st_builder){.first = true};
    b->head = strdup("{");
    b->head_n = 1;
}

void stb_add(st_builder *b, const char *name, const char *dtype, uint64_t rows, uint64_t cols, const void *p, size_t n)
{
    char entry[512], shape[64];
    if (rows)
        snprintf(shape, sizeof shape, "%llu,%llu", (unsigned long long)rows, (unsigned long long)cols);
    else
        snprintf(shape, sizeof shape, "%llu", (unsigned long long)cols);
    int len = snprintf(entry, sizeof entry, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                       b->first ? "" : ",", name, dtype, shape, b->n, b->n + n);
    b->head = realloc(b->head, b->head_n + (size_t)len + 2);
    memcpy(b->head + b->head_n, entry, (size_t)len);
    b->head_n += (size_t)len;
    b->data = realloc(b->data, b->n + n);
    memcpy(b->data + b->n, p, n);
    b->n += n;
    b->first = false;
}

uint8_t *stb_end(st_builder *b, size_t *n)
{
    b->head[b->head_n++] = '}';
    *n = 8 + b->head_n + b->n;
    uint8_t *out = malloc(*n);
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)((uint64_t)b->head_n >> (8 * i));
    memcpy(out + 8, b->head, b->head_n);
    if (b->n)
        memcpy(out + 8 + b->head_n, b->data, b->n);
    free(b->head);
    free(b->data);
    *b = (st_builder){0};
    return out;
}

static void add_bf16(st_builder *b, const char *name, uint64_t rows, uint64_t cols, rng *r)
{
    size_t n = (rows ? rows : 1) * cols;
    uint16_t *v = malloc(2 * n);
    for (size_t i = 0; i < n; i++)
        v[i] = num_to_bf16(rng_gauss(r) * 0.05f);
    stb_add(b, name, "BF16", rows, cols, v, 2 * n);
    free(v);
}

static void add_f32(st_builder *b, const char *name, uint64_t rows, uint64_t cols, rng *r)
{
    size_t n = (rows ? rows : 1) * cols;
    float *v = malloc(4 * n);
    for (size_t i = 0; i < n; i++)
        v[i] = num_f16(num_to_f16(rng_gauss(r)));
    stb_add(b, name, "F32", rows, cols, v, 4 * n);
    free(v);
}

static void add_ids(st_builder *b, const char *name, uint64_t rows, uint64_t cols, uint32_t limit, rng *r)
{
    int64_t *v = malloc(8 * rows * cols);
    for (size_t i = 0; i < rows * cols; i++)
        v[i] = rng_u32(r) % limit;
    stb_add(b, name, "I64", rows, cols, v, 8 * rows * cols);
    free(v);
}

/* n bytes below `range`, shifted by `low`, then bytes for a scale grid near 2^-6. */
static void add_scaled(st_builder *b, const char *name, const char *dtype, uint64_t rows, uint64_t stored,
                       uint64_t srows, uint64_t scols, rng *r)
{
    char scale[160];
    uint8_t *v = malloc(rows * stored), *s = malloc(srows * scols);
    for (size_t i = 0; i < rows * stored; i++) {
        v[i] = (uint8_t)rng_u32(r);
        if (!strcmp(dtype, "F8_E4M3") && (v[i] & 0x7f) == 0x7f)
            v[i] = 0x7e;
    }
    for (size_t i = 0; i < srows * scols; i++)
        s[i] = (uint8_t)(115 + rng_u32(r) % 6);
    stb_add(b, name, dtype, rows, stored, v, rows * stored);
    snprintf(scale, sizeof scale, "%.*s.scale", (int)(strlen(name) - 7), name);
    stb_add(b, scale, "F8_E8M0", srows, scols, s, srows * scols);
    free(v);
    free(s);
}

void stb_add_plan(st_builder *b, const plan *p, enum storage how, uint32_t n_experts, rng *r)
{
    for (size_t i = 0; i < p->n; i++)
        for (uint32_t s = 0; s < p->t[i].slices; s++) {
            const plan_tensor *t = &p->t[i];
            char name[160];
            plan_src(t, s, name, sizeof name);
            bool expert = t->cls == PC_GATEUP || t->cls == PC_DOWN;
            bool fp8 = t->cls == PC_DENSE && strstr(name, ".w") && strcmp(name, "head.weight");
            if (t->cls == PC_IDS)
                add_ids(b, name, t->rows, t->cols, n_experts, r);
            else if (how == STORE_OFFICIAL && expert)
                add_scaled(b, name, "I8", t->rows, t->cols / 2, t->rows, t->cols / 32, r);
            else if (how == STORE_OFFICIAL && fp8 && !strstr(name, "_head"))
                add_scaled(b, name, "F8_E4M3", t->rows, t->cols, (t->rows + 127) / 128, (t->cols + 127) / 128, r);
            else if (strstr(name, "hc_") || strstr(name, "ape") || strstr(name, "sink") || strstr(name, "bias"))
                add_f32(b, name, t->rows, t->cols, r);
            else
                add_bf16(b, name, t->rows, t->cols, r);
        }
}

const char tiny_config[] =
    "{\"model_type\":\"deepseek_v4\",\"vocab_size\":272,\"num_hidden_layers\":3,\"hidden_size\":256,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":1,\"head_dim\":64,\"qk_rope_head_dim\":32,\"q_lora_rank\":160,"
    "\"o_groups\":2,\"o_lora_rank\":48,\"sliding_window\":128,\"index_n_heads\":2,\"index_head_dim\":32,"
    "\"index_topk\":8,\"n_routed_experts\":2,\"num_experts_per_tok\":1,\"n_shared_experts\":1,"
    "\"moe_intermediate_size\":256,\"num_hash_layers\":1,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,"
    "\"max_position_embeddings\":4096,\"num_nextn_predict_layers\":1,\"bos_token_id\":0,\"eos_token_id\":1,"
    "\"rms_norm_eps\":1e-6,\"hc_eps\":1e-6,\"rope_theta\":10000,\"compress_rope_theta\":160000,"
    "\"routed_scaling_factor\":1.5,\"swiglu_limit\":10.0,\"norm_topk_prob\":true,\"scoring_func\":\"sqrtsoftplus\","
    "\"rope_scaling\":{\"factor\":16,\"beta_fast\":32,\"beta_slow\":1,\"original_max_position_embeddings\":65536},"
    "\"compress_ratios\":[0,4,128,0,0,0],\"dspark_block_size\":5,\"dspark_markov_rank\":32,"
    "\"dspark_noise_token_id\":271,\"dspark_target_layer_ids\":[0,1,2]}";

const char tiny_tokenizer[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<BOS>\",\"special\":true},"
    "{\"id\":1,\"content\":\"<EOS>\",\"special\":true},"
    "{\"id\":2,\"content\":\"<\xef\xbd\x9c\xe2\x96\x81pad\xe2\x96\x81\xef\xbd\x9c>\",\"special\":true},"
    "{\"id\":10,\"content\":\"<think>\",\"special\":false},{\"id\":11,\"content\":\"<mask>\",\"special\":true}],"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<BOS>\":0,\"a\":3,\"b\":4,\"c\":5,\"ab\":6,\"abc\":7},"
    "\"merges\":[\"a b\",[\"ab\",\"c\"]]}}";

void tiny_checkpoint(const tmpdir *d, enum storage how)
{
    hf_config c;
    ds4_err e = {0};
    plan trunk, drafter;
    st_builder b;
    size_t n;
    rng r = {12345};
    plan_options o = {.recipe = plan_find_recipe("f32"), .experts = -1, .dense = -1};
    assert_int_equal(hf_parse_config(&c, tiny_config, strlen(tiny_config), "tiny", &e), 0);
    assert_int_equal(plan_trunk(&trunk, &c, &o, &e), 0);
    assert_int_equal(plan_drafter(&drafter, &c, 3, &o, &e), 0);
    stb_begin(&b);
    stb_add_plan(&b, &trunk, how, c.n_routed_experts, &r);
    stb_add_plan(&b, &drafter, how, c.n_routed_experts, &r);
    uint8_t *file = stb_end(&b, &n);
    write_file(d, "config.json", tiny_config, strlen(tiny_config));
    write_file(d, "model.safetensors", file, n);
    free(file);
    plan_free(&trunk);
    plan_free(&drafter);
}

const char *golden_a(char buf[512])
{
    const char *base = getenv("DS4_TEST_DATA");
    snprintf(buf, 512, "%s/oracle_a", base ? base : "../shared/data");
    char probe[600];
    snprintf(probe, sizeof probe, "%s/model.safetensors", buf);
    if (access(probe, R_OK) == 0)
        return buf;
    puts("skipped (no golden data)");
    return NULL;
}
