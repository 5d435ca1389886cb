/* The GGUF writer and the importance-matrix reader. */
#include "convert/util_convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "convert/ggufwrite.h"
#include "convert/imatrix.h"
#include "file/gguf.h"
#include "file/quant.h"

static int n_files(const tmpdir *d)
{
    char cmd[400];
    int n = -1;
    snprintf(cmd, sizeof cmd, "ls '%s' | wc -l", d->path);
    FILE *p = popen(cmd, "r");
    assert_int_equal(fscanf(p, "%d", &n), 1);
    pclose(p);
    return n;
}

static void written_file_reads_back(void **state)
{
    tmpdir d;
    char path[512];
    ggufw *w;
    gguf *g;
    gguf_str s;
    ds4_err e = {0};
    uint64_t ne1[] = {3}, ne2[] = {32, 2}, bytes = 0;
    float v[3] = {1, -2, 3}, f = 0;
    uint8_t q[68];
    uint32_t u = 0;
    bool flag = false;
    (void)state;
    tmp_make(&d);
    memset(q, 7, sizeof q);
    assert_int_equal(ggufw_open(&w, tmp_path(&d, "x.gguf", path), &e), 0);
    ggufw_kv_str(w, "general.architecture", "deepseek4");
    ggufw_kv_u32(w, "u", 4000000000u);
    ggufw_kv_f32(w, "f", 1e-20f);
    ggufw_kv_bool(w, "b", true);
    ggufw_kv_arr(w, "words", GGUF_STR, 2);
    ggufw_arr_str(w, "a", 1);
    ggufw_arr_str(w, "", 0);
    ggufw_kv_arr(w, "ints", GGUF_I32, 1);
    ggufw_arr_i32(w, -5);
    ggufw_tensor(w, "vec", 1, ne1, Q_F32);
    ggufw_tensor(w, "mat.weight", 2, ne2, Q_Q8_0);
    assert_int_equal(ggufw_begin(w, &e), 0);
    assert_int_equal(ggufw_data(w, v, 4, &e), 0);
    assert_int_equal(ggufw_data(w, v + 1, 8, &e), 0);
    assert_int_equal(ggufw_data(w, q, 68, &e), 0);
    assert_int_equal(ggufw_close(w, &bytes, &e), 0);
    assert_int_equal(n_files(&d), 1);
    if (gguf_open(&g, path, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(gguf_file_bytes(g), bytes);
    assert_int_equal(gguf_n_kv(g), 6);
    assert_int_equal(gguf_n_tensors(g), 2);
    assert_int_equal(gguf_get_u32(g, "u", true, 0, UINT32_MAX, &u, &e), 0);
    assert_int_equal(u, 4000000000u);
    assert_int_equal(gguf_get_f32(g, "f", true, 0, 1, &f, &e), 0);
    assert_true(f == 1e-20f);
    assert_int_equal(gguf_get_bool(g, "b", true, &flag, &e), 0);
    assert_true(flag);
    assert_int_equal(gguf_get_str(g, "general.architecture", true, &s, &e), 0);
    assert_int_equal(gguf_arr_int(gguf_find_kv(g, "ints"), 0), -5);
    assert_memory_equal(gguf_find_tensor(g, "vec")->data, v, 12);
    assert_memory_equal(gguf_find_tensor(g, "mat.weight")->data, q, 68);
    gguf_close(g);
    tmp_remove(&d);
}

static ggufw *half_written(const char *path)
{
    ggufw *w;
    ds4_err e = {0};
    uint64_t ne[] = {8};
    float v[4] = {0};
    assert_int_equal(ggufw_open(&w, path, &e), 0);
    ggufw_kv_u32(w, "k", 1);
    ggufw_tensor(w, "t", 1, ne, Q_F32);
    assert_int_equal(ggufw_begin(w, &e), 0);
    assert_int_equal(ggufw_data(w, v, 16, &e), 0);
    return w;
}

static void failure_leaves_the_old_file_alone(void **state)
{
    tmpdir d;
    char path[512];
    ds4_err e = {0};
    float v[8] = {0};
    size_t n;
    (void)state;
    tmp_make(&d);
    write_file(&d, "x.gguf", "precious", 8);
    tmp_path(&d, "x.gguf", path);
    ggufw_abort(half_written(path));
    assert_true(ggufw_close(half_written(path), NULL, &e) < 0);
    ggufw *w = half_written(path);
    assert_true(ggufw_data(w, v, 32, &e) < 0); /* too many bytes */
    assert_true(ggufw_close(w, NULL, &e) < 0);
    assert_int_equal(n_files(&d), 1);
    uint8_t *p = read_file(path, &n);
    assert_int_equal(n, 8);
    assert_memory_equal(p, "precious", 8);
    free(p);
    tmp_remove(&d);
}

static void misuse_is_reported(void **state)
{
    ggufw *w;
    ds4_err e = {0};
    uint64_t ne[] = {33};
    (void)state;
    assert_int_equal(ggufw_open(&w, NULL, &e), 0);
    ggufw_kv_arr(w, "a", GGUF_U32, 2);
    ggufw_arr_u32(w, 1);
    assert_true(ggufw_begin(w, &e) < 0);
    ggufw_abort(w);
    assert_int_equal(ggufw_open(&w, NULL, &e), 0);
    ggufw_tensor(w, "odd", 1, ne, Q_Q8_0);
    assert_true(ggufw_begin(w, &e) < 0);
    assert_non_null(strstr(e.msg, "odd"));
    ggufw_abort(w);
    assert_true(ggufw_open(&w, "/nonexistent-folder/x.gguf", &e) < 0);
}

typedef struct dat { uint8_t p[4096]; size_t n; } dat;

static void dat_i32(dat *d, int32_t v)
{
    memcpy(d->p + d->n, &v, 4);
    d->n += 4;
}

static void dat_entry(dat *d, const char *name, int n, float first)
{
    dat_i32(d, (int32_t)strlen(name));
    memcpy(d->p + d->n, name, strlen(name));
    d->n += strlen(name);
    dat_i32(d, 10);
    dat_i32(d, n);
    for (int i = 0; i < n; i++) {
        float v = first + (float)i;
        memcpy(d->p + d->n, &v, 4);
        d->n += 4;
    }
}

static void dat_make(dat *d)
{
    d->n = 0;
    dat_i32(d, 3);
    dat_entry(d, "blk.0.ffn_gate_exps.weight", 8, 0);
    dat_entry(d, "blk.0.ffn_up_exps.weight.expert.1", 4, 100);
    dat_entry(d, "blk.0.attn_kv.weight", 4, 50);
    dat_i32(d, 17);
    dat_i32(d, 4);
    memcpy(d->p + d->n, "data", 4);
    d->n += 4;
}

static void importance_is_found_by_expert_and_slice(void **state)
{
    dat d;
    imatrix *m;
    ds4_err e = {0};
    const float *v;
    (void)state;
    dat_make(&d);
    assert_int_equal(imatrix_parse(&m, d.p, d.n, "m.dat", &e), 0);
    assert_int_equal(imatrix_count(m), 3);
    assert_int_equal(imatrix_chunks(m), 17);
    assert_string_equal(imatrix_dataset(m), "data");
    assert_int_equal(imatrix_find(m, "blk.0.ffn_gate_exps.weight", 1, 2, 4, &v, &e), 0);
    assert_true(v && v[0] == 4 && v[3] == 7);
    assert_int_equal(imatrix_find(m, "blk.0.ffn_up_exps.weight", 1, 2, 4, &v, &e), 0);
    assert_true(v && v[0] == 100);
    assert_int_equal(imatrix_find(m, "blk.0.ffn_up_exps.weight", 0, 2, 4, &v, &e), 0);
    assert_null(v);
    assert_int_equal(imatrix_find(m, "blk.0.attn_kv.weight", 0, 1, 4, &v, &e), 0);
    assert_true(v && v[0] == 50);
    assert_true(imatrix_find(m, "blk.0.attn_kv.weight", 0, 1, 5, &v, &e) < 0);
    assert_non_null(strstr(e.msg, "blk.0.attn_kv.weight"));
    imatrix_close(m);
}

static void damaged_importance_is_refused(void **state)
{
    dat d;
    imatrix *m;
    rng r = {3};
    (void)state;
    dat_make(&d);
    size_t whole = d.n;
    for (size_t n = 0; n < whole - 12; n++) { /* the trailing part is optional */
        ds4_err e = {0};
        uint8_t *p = malloc(n ? n : 1);
        memcpy(p, d.p, n);
        assert_true(imatrix_parse(&m, p, n, "m.dat", &e) < 0);
        assert_non_null(strstr(e.msg, "m.dat"));
        free(p);
    }
    for (int i = 0; i < 20000; i++) {
        ds4_err e = {0};
        dat_make(&d);
        uint8_t *p = malloc(d.n);
        d.p[rng_u32(&r) % d.n] = (uint8_t)rng_u32(&r);
        memcpy(p, d.p, d.n);
        if (imatrix_parse(&m, p, d.n, "m.dat", &e) == 0)
            imatrix_close(m);
        free(p);
    }
    d.n = 0;
    dat_i32(&d, 1);
    dat_entry(&d, "x", 2, -1); /* a negative sum of squares */
    ds4_err e = {0};
    assert_true(imatrix_parse(&m, d.p, d.n, "m.dat", &e) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_file_reads_back),
        cmocka_unit_test(failure_leaves_the_old_file_alone),
        cmocka_unit_test(misuse_is_reported),
        cmocka_unit_test(importance_is_found_by_expert_and_slice),
        cmocka_unit_test(damaged_importance_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
