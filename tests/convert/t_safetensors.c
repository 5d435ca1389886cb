/* The safetensors reader: what it accepts, and that no damaged file is accepted or crashes it. */
#include "convert/util_convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t zeros[64];

/* A file of one header text and n data bytes. */
static uint8_t *with_header(const char *head, size_t data, size_t *n)
{
    size_t h = strlen(head);
    *n = 8 + h + data;
    uint8_t *p = calloc(1, *n);
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)((uint64_t)h >> (8 * i));
    memcpy(p + 8, head, h);
    return p;
}

static int open_header(const char *head, size_t data, ds4_err *e)
{
    size_t n;
    st_set *s = NULL;
    uint8_t *p = with_header(head, data, &n);
    int rc = st_open_mem(&s, p, n, "test.safetensors", e);
    st_close(rc ? NULL : s);
    free(p);
    return rc;
}

static void refuse(const char *head, size_t data, const char *say)
{
    ds4_err e = {0};
    int rc = open_header(head, data, &e);
    if (rc >= 0 || !strstr(e.msg, say) || !strstr(e.msg, "test.safetensors"))
        fail_msg("%s: rc %d, message \"%s\" should contain \"%s\"", head, rc, e.msg, say);
}

static void good_file_is_read(void **state)
{
    st_builder b;
    size_t n;
    ds4_err e = {0};
    st_set *s;
    (void)state;
    stb_begin(&b);
    stb_add(&b, "model.x.weight", "BF16", 2, 4, zeros, 16);
    stb_add(&b, "a", "I64", 0, 3, zeros, 24);
    stb_add(&b, "s", "F8_E8M0", 1, 1, zeros, 1);
    uint8_t *p = stb_end(&b, &n);
    assert_int_equal(st_open_mem(&s, p, n, "good", &e), 0);
    assert_int_equal(st_count(s), 3);
    const st_tensor *t = st_find(s, "x.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 4);
    assert_int_equal(t->nbytes, 16);
    assert_null(st_find(s, "model.x.weight"));
    assert_int_equal(st_find(s, "a")->dtype, ST_I64);
    st_close(s);
    free(p);
}

#define T(name, dtype, shape, b, e) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" b "," e "]}"

static void damaged_headers_are_refused_by_name(void **state)
{
    (void)state;
    ds4_err e = {0};
    assert_int_equal(open_header("{" T("x", "F32", "[2]", "0", "8") "}", 8, &e), 0);
    refuse("{" T("x", "F32", "[2]", "0", "8") "}", 4, "truncated");
    refuse("{" T("x", "F32", "[2]", "0", "8") "}", 12, "cover");
    refuse("{" T("x", "F32", "[3]", "0", "8") "}", 8, "dtype and shape");
    refuse("{" T("x", "F32", "[2]", "8", "0") "}", 8, "data_offsets");
    refuse("{" T("x", "F32", "[2]", "-8", "0") "}", 8, "data_offsets");
    refuse("{" T("x", "F32", "[-2]", "0", "8") "}", 8, "shape");
    refuse("{" T("x", "F32", "[0]", "0", "0") "}", 0, "shape");
    refuse("{" T("x", "F32", "[1,1,1,1,2]", "0", "8") "}", 8, "shape");
    refuse("{" T("x", "F32", "[4294967296,4294967296]", "0", "8") "}", 8, "shape");
    refuse("{" T("x", "F32", "[4611686018427387904]", "0", "0") "}", 8, "dtype and shape");
    refuse("{" T("x", "F64", "[1]", "0", "8") "}", 8, "F64");
    refuse("{" T("x", "F32", "[1]", "4", "8") "}", 8, "hole");
    refuse("{" T("x", "F32", "[1]", "0", "4") "," T("y", "F32", "[1]", "0", "4") "}", 4, "overlap");
    refuse("{" T("x", "F32", "[1]", "0", "4") "," T("x", "F32", "[1]", "4", "8") "}", 8, "duplicate");
    refuse("{" T("x", "F32", "[1]", "0", "4") "," T("model.x", "F32", "[1]", "4", "8") "}", 8, "twice");
    refuse("{\"x\":1}", 0, "dtype");
    refuse("[1]", 0, "object");
    refuse("{\"x\":", 0, "object");
}

static void lengths_of_the_header_are_checked(void **state)
{
    ds4_err e = {0};
    st_set *s;
    uint8_t p[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    (void)state;
    assert_true(st_open_mem(&s, p, 16, "f", &e) < 0);
    assert_true(st_open_mem(&s, p, 7, "f", &e) < 0);
    assert_true(st_open_mem(&s, p, 0, "f", &e) < 0);
    memset(p, 0, sizeof p);
    assert_true(st_open_mem(&s, p, 16, "f", &e) < 0);
}

/* Random damage: either an error with a message, or a set whose every byte is readable. */
static void mutations_never_crash(void **state)
{
    st_builder b;
    size_t n;
    rng r = {77};
    (void)state;
    stb_begin(&b);
    stb_add(&b, "layers.0.attn.wq_a.weight", "F8_E4M3", 4, 8, zeros, 32);
    stb_add(&b, "layers.0.attn.wq_a.scale", "F8_E8M0", 1, 1, zeros, 1);
    stb_add(&b, "norm.weight", "BF16", 0, 8, zeros, 16);
    uint8_t *good = stb_end(&b, &n), *bad = malloc(n);
    unsigned sum = 0;
    for (int round = 0; round < 20000; round++) {
        ds4_err e = {0};
        st_set *s;
        size_t len = round % 4 ? n : rng_u32(&r) % (n + 1);
        uint8_t *exact = malloc(len ? len : 1); /* so that a sanitizer sees one byte too far */
        memcpy(bad, good, n);
        for (uint32_t k = rng_u32(&r) % 4; k > 0; k--)
            bad[rng_u32(&r) % n] = rng_u32(&r) % 3 ? (uint8_t)(32 + rng_u32(&r) % 95) : (uint8_t)rng_u32(&r);
        memcpy(exact, bad, len);
        if (st_open_mem(&s, exact, len, "mutant", &e)) {
            assert_true(strlen(e.msg) > 0);
        } else {
            for (size_t i = 0; i < st_count(s); i++)
                for (size_t k = 0; k < st_at(s, i)->nbytes; k++)
                    sum += st_at(s, i)->data[k];
            st_close(s);
        }
        free(exact);
    }
    assert_true(sum < UINT32_MAX);
    free(good);
    free(bad);
}

static void put_shard(const tmpdir *d, const char *file, const char *tensor)
{
    st_builder b;
    size_t n;
    stb_begin(&b);
    stb_add(&b, tensor, "F32", 0, 2, zeros, 8);
    uint8_t *p = stb_end(&b, &n);
    write_file(d, file, p, n);
    free(p);
}

static void refuse_dir(const tmpdir *d, const char *say)
{
    ds4_err e = {0};
    st_set *s;
    int rc = st_open_dir(&s, d->path, &e);
    if (rc >= 0 || !strstr(e.msg, say))
        fail_msg("rc %d, message \"%s\" should contain \"%s\"", rc, e.msg, say);
}

static void shards_are_found_and_checked(void **state)
{
    static const char index[] = "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}";
    static const char swapped[] = "{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}";
    static const char outside[] = "{\"weight_map\":{\"a\":\"../one.safetensors\"}}";
    tmpdir d;
    st_set *s;
    ds4_err e = {0};
    (void)state;
    tmp_make(&d);
    refuse_dir(&d, "model.safetensors");
    put_shard(&d, "model-00001-of-00002.safetensors", "a");
    refuse_dir(&d, "00002-of-00002");
    put_shard(&d, "model-00002-of-00002.safetensors", "a");
    refuse_dir(&d, "twice");
    put_shard(&d, "model-00002-of-00002.safetensors", "b");
    assert_int_equal(st_open_dir(&s, d.path, &e), 0);
    assert_int_equal(st_count(s), 2);
    st_close(s);
    put_shard(&d, "one.safetensors", "a");
    put_shard(&d, "two.safetensors", "b");
    write_file(&d, "model.safetensors.index.json", index, strlen(index));
    assert_int_equal(st_open_dir(&s, d.path, &e), 0);
    assert_int_equal(st_count(s), 2);
    assert_non_null(strstr(st_file(s, st_find(s, "b")), "two.safetensors"));
    st_close(s);
    write_file(&d, "model.safetensors.index.json", swapped, strlen(swapped));
    refuse_dir(&d, "should be in");
    write_file(&d, "model.safetensors.index.json", outside, strlen(outside));
    refuse_dir(&d, "same directory");
    write_file(&d, "model.safetensors.index.json", "{}", 2);
    refuse_dir(&d, "weight_map");
    tmp_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_file_is_read),
        cmocka_unit_test(damaged_headers_are_refused_by_name),
        cmocka_unit_test(lengths_of_the_header_are_checked),
        cmocka_unit_test(mutations_never_crash),
        cmocka_unit_test(shards_are_found_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
