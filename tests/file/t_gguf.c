/* The GGUF reader: what a good file gives, and one test per way in which a file can be bad. */
#include "util/unit.h"

#include <math.h>

#include "file/gguf.h"
#include "file/quant.h"
#include "util_gguf.h"

/* Opens `b`, expects failure with a single line that names the file and contains `part1` and `part2`; frees b. */
static void refuse(bytes b, const char *part1, const char *part2)
{
    gguf *g = (gguf *)&g;
    ds4_err e = {0};
    int rc = gguf_open_mem(&g, b.p, b.n, "bad.gguf", &e);
    if (rc != DS4_EFORMAT)
        fail_msg("returned %d '%s', expected a refusal with '%s'", rc, e.msg, part1);
    assert_true(g == (gguf *)&g);
    assert_int_equal(e.code, rc);
    assert_true(!strncmp(e.msg, "bad.gguf: ", 10));
    assert_has(e.msg, part1);
    assert_has(e.msg, part2);
    assert_null(strchr(e.msg, '\n'));
    free(b.p);
}

static gguf *accept(bytes b)
{
    gguf *g = NULL;
    ds4_err e = {0};
    if (gguf_open_mem(&g, b.p, b.n, "good.gguf", &e))
        fail_msg("refused: %s", e.msg);
    return g;
}

/* One metadata entry, no tensor: the start of many bad files. */
static bytes one_kv(void)
{
    bytes b = {0};
    put_header(&b, 0, 1);
    return b;
}

static bytes one_tensor(void)
{
    bytes b = {0};
    put_header(&b, 1, 0);
    return b;
}

/* Enough room after the directory that only the fault under test is one. */
static bytes filled(bytes b)
{
    put_zeros(&b, 4096);
    return b;
}

static void a_good_file_is_read_as_written(void **state)
{
    (void)state;
    bytes b = good_file();
    gguf *g = accept(b);
    assert_string_equal(gguf_path(g), "good.gguf");
    assert_int_equal(gguf_file_bytes(g), b.n);
    assert_int_equal(gguf_n_kv(g), 18);
    assert_int_equal(gguf_n_tensors(g), 5);
    const gguf_tensor *t = gguf_find_tensor(g, "exps");
    assert_non_null(t);
    assert_ptr_equal(t, gguf_tensor_at(g, 2));
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->ne[0], 256);
    assert_int_equal(t->ne[2], 2);
    assert_int_equal(t->ne[3], 1);
    assert_int_equal(t->nbytes, 264);
    assert_int_equal(((const uint8_t *)t->data)[0], (uint8_t)(192 * 7));
    assert_int_equal(((const uint8_t *)t->data - b.p) % 64, 0);
    t = gguf_find_tensor(g, "fp4");
    assert_int_equal((const uint8_t *)t->data + t->nbytes - b.p, b.n);
    assert_null(gguf_find_tensor(g, "fp"));
    assert_null(gguf_find_kv(g, "v.u"));
    gguf_close(g);
    gguf_close(NULL);
    free(b.p);
}

static void no_padding_is_assumed_where_none_is_needed(void **state)
{
    (void)state;
    bytes b = one_tensor();
    put_tensor(&b, "eight...", 1, (uint64_t[]){4}, Q_F32, 0);
    assert_int_equal(b.n, 64);
    put_zeros(&b, 16);
    gguf *g = accept(b);
    assert_ptr_equal(gguf_tensor_at(g, 0)->data, b.p + 64);
    gguf_close(g);
    free(b.p);
}

static void a_vocabulary_without_tensors_is_fine(void **state)
{
    (void)state;
    bytes b = one_kv();
    put_kv_str(&b, "general.architecture", "deepseek4");
    gguf *g = accept(b);
    assert_int_equal(gguf_n_tensors(g), 0);
    assert_null(gguf_find_tensor(g, "embd"));
    gguf_close(g);
    free(b.p);
}

static void getters_convert_and_check_ranges(void **state)
{
    (void)state;
    bytes b = good_file();
    gguf *g = accept(b);
    ds4_err e = {0};
    uint32_t u = 1;
    float f = 0;
    bool flag = false;
    gguf_str s;
    assert_int_equal(gguf_get_u32(g, "v.u8", true, 0, 255, &u, &e), 0);
    assert_int_equal(u, 200);
    assert_int_equal(gguf_get_u32(g, "v.u32", true, 0, UINT32_MAX, &u, &e), 0);
    assert_true(u == 4000000000u);
    assert_int_equal(gguf_get_u32(g, "none", false, 0, 9, &u, &e), 0);
    assert_true(u == 4000000000u);
    static const char *const too_big_or_small[] = {"v.i8", "v.i16", "v.i32", "v.i64", "v.u64"};
    for (int i = 0; i < 5; i++)
        assert_int_equal(gguf_get_u32(g, too_big_or_small[i], true, 0, UINT32_MAX, &u, &e), DS4_EFORMAT);
    assert_int_equal(gguf_get_u32(g, "v.i8", false, 3, 9, &u, &e), DS4_EFORMAT);
    assert_string_equal(e.msg, "good.gguf: key 'v.i8' is -100, expected 3 to 9");
    assert_int_equal(gguf_get_u32(g, "none", true, 0, 9, &u, &e), DS4_EFORMAT);
    assert_string_equal(e.msg, "good.gguf: key 'none' is missing, expected an integer");
    assert_int_equal(gguf_get_u32(g, "v.f32", true, 0, 9, &u, &e), DS4_EFORMAT);
    assert_has(e.msg, "key 'v.f32' has type f32, expected an integer");
    assert_int_equal(gguf_get_u32(g, "a.i32", true, 0, 9, &u, &e), DS4_EFORMAT);
    assert_has(e.msg, "array of i32");
    assert_int_equal(gguf_get_u32(g, "v.bool", true, 0, 9, &u, &e), DS4_EFORMAT);
    assert_int_equal(gguf_get_f32(g, "v.f32", true, 0, 2, &f, &e), 0);
    assert_true(f == 1.5f);
    assert_int_equal(gguf_get_f32(g, "v.f64", true, 0, 2, &f, &e), 0);
    assert_true(f == 1e-20f);
    assert_int_equal(gguf_get_f32(g, "v.f32", true, 2, 3, &f, &e), DS4_EFORMAT);
    assert_has(e.msg, "is 1.5, expected 2 to 3");
    assert_int_equal(gguf_get_f32(g, "v.u8", true, 0, 300, &f, &e), DS4_EFORMAT);
    assert_int_equal(gguf_get_bool(g, "v.bool", true, &flag, &e), 0);
    assert_true(flag);
    assert_int_equal(gguf_get_bool(g, "v.u8", true, &flag, &e), DS4_EFORMAT);
    assert_int_equal(gguf_get_str(g, "v.str", true, &s, &e), 0);
    assert_true(s.n == 5 && !memcmp(s.p, "hello", 5));
    assert_int_equal(gguf_get_str(g, "v.empty", true, &s, &e), 0);
    assert_int_equal(s.n, 0);
    assert_int_equal(gguf_get_str(g, "a.str", true, &s, &e), DS4_EFORMAT);
    gguf_close(g);
    free(b.p);
}

static void a_nan_is_in_no_range(void **state)
{
    (void)state;
    bytes b = one_kv();
    put_kv_f32(&b, "eps", NAN);
    gguf *g = accept(b);
    float f = 1;
    ds4_err e = {0};
    assert_int_equal(gguf_get_f32(g, "eps", true, -INFINITY, INFINITY, &f, &e), DS4_EFORMAT);
    assert_true(f == 1);
    gguf_close(g);
    free(b.p);
}

static void arrays_are_walked_in_order(void **state)
{
    (void)state;
    bytes b = good_file();
    gguf *g = accept(b);
    const gguf_kv *kv = gguf_find_kv(g, "a.i32");
    assert_int_equal(kv->count, 3);
    assert_int_equal(gguf_arr_int(kv, 0), 7);
    assert_int_equal(gguf_arr_int(kv, 1), -8);
    assert_true(gguf_arr_num(kv, 2) == 9.0);
    kv = gguf_find_kv(g, "a.str");
    size_t at = 0;
    gguf_str s;
    assert_true(gguf_next_str(kv, &at, &s) && s.n == 1 && s.p[0] == 'x');
    assert_true(gguf_next_str(kv, &at, &s) && s.n == 0);
    assert_true(gguf_next_str(kv, &at, &s) && s.n == 3 && !memcmp(s.p, "zzz", 3));
    assert_false(gguf_next_str(kv, &at, &s));
    at = 0;
    assert_false(gguf_next_str(gguf_find_kv(g, "a.i32"), &at, &s));
    assert_int_equal(gguf_find_kv(g, "a.none")->count, 0);
    assert_true(gguf_arr_int(gguf_find_kv(g, "v.u64"), 0) == INT64_MAX);
    assert_true(gguf_arr_num(gguf_find_kv(g, "v.u64"), 0) == 0x1p64);
    assert_int_equal(gguf_arr_int(gguf_find_kv(g, "v.i16"), 0), -30000);
    gguf_close(g);
    free(b.p);
}

/* Header */

static void what_is_not_gguf_is_named(void **state)
{
    (void)state;
    bytes b = {0};
    refuse(b, "0 bytes are too few", "24");
    put(&b, "GGUF", 4);
    refuse(b, "4 bytes are too few", "24");
    b = (bytes){0};
    put(&b, "PK\x03\x04 a zip file, not a model at all", 34);
    refuse(b, "not a GGUF file: it starts with bytes 50 4b 03 04", "47 47 55 46");
    b = (bytes){0};
    put(&b, "version https://git-lfs.github.com/spec/v1\noid sha256:00\n", 57);
    refuse(b, "Git LFS pointer", "git lfs pull");
}

static void other_versions_and_byte_orders_are_named(void **state)
{
    (void)state;
    static const uint32_t versions[] = {0, 1, 2, 4, 0x00010003};
    for (int i = 0; i < 5; i++) {
        bytes b = filled(one_kv());
        char want[40];
        memcpy(b.p + 4, &versions[i], 4);
        snprintf(want, sizeof want, "GGUF version %u at byte 4", versions[i]);
        refuse(b, want, "only version 3");
    }
    bytes b = filled(one_kv());
    memcpy(b.p + 4, "\0\0\0\3", 4);
    refuse(b, "big-endian", "byte 4");
    b = filled(one_kv());
    memcpy(b.p, "FUGG", 4);
    refuse(b, "big-endian", "FUGG");
}

static void huge_counts_are_refused_before_anything_is_allocated(void **state)
{
    (void)state;
    bytes b = {0};
    put_header(&b, 1ull << 60, 0);
    refuse(filled(b), "tensor count at byte 8 is 1152921504606846976", "at most 124");
    b = (bytes){0};
    put_header(&b, 0, 1ull << 60);
    refuse(filled(b), "metadata count at byte 16 is 1152921504606846976", "at most 292");
    b = (bytes){0};
    put_header(&b, UINT64_MAX, UINT64_MAX);
    refuse(filled(b), "tensor count", "18446744073709551615");
    b = (bytes){0};
    put_header(&b, 0, 293);
    refuse(filled(b), "metadata count at byte 16 is 293", "at most 292");
}

/* Metadata */

static void strings_past_the_end_are_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {5000, 1ull << 32, 1ull << 60, UINT64_MAX, UINT64_MAX - 7};
    for (int i = 0; i < 5; i++) {
        bytes b = one_kv();
        put_u64(&b, lengths[i]);
        refuse(filled(b), "a key at byte 24 is said to be", "bytes follow");
        b = one_kv();
        put_str(&b, "k");
        put_u32(&b, GGUF_STR);
        put_u64(&b, lengths[i]);
        refuse(filled(b), "key 'k': a string at byte 37", "truncated or damaged");
        b = one_tensor();
        put_u64(&b, lengths[i]);
        refuse(filled(b), "a tensor name at byte 24 is said to be", "bytes follow");
    }
}

static void names_have_a_sensible_length(void **state)
{
    (void)state;
    bytes b = one_kv();
    put_kv_u32(&b, "", 1);
    refuse(filled(b), "a key at byte 24 has 0 bytes", "expected 1 to 65535");
    b = one_kv();
    put_u64(&b, 65536);
    put_zeros(&b, 65536);
    refuse(filled(b), "a key at byte 24 has 65536 bytes", "expected 1 to 65535");
    b = one_tensor();
    put_tensor(&b, "", 1, (uint64_t[]){1}, Q_F32, 0);
    refuse(filled(b), "a tensor name at byte 24 has 0 bytes", "expected 1");
}

static void unknown_value_types_are_refused(void **state)
{
    (void)state;
    bytes b = one_kv();
    put_kv_int(&b, "k", 13, 0);
    refuse(filled(b), "key 'k': value type 13 at byte 33 is unknown", "0 to 12");
    b = one_kv();
    put_kv_int(&b, "k", UINT32_MAX, 0);
    refuse(filled(b), "value type 4294967295", "byte 33");
    b = one_kv();
    put_kv_arr(&b, "k", 13, 1);
    refuse(filled(b), "key 'k': element type 13 at byte 37 is unknown", "0 to 12");
}

static void nested_arrays_are_refused(void **state)
{
    (void)state;
    bytes b = one_kv();
    put_kv_arr(&b, "k", GGUF_ARR, 1);
    put_u32(&b, GGUF_U8);
    put_u64(&b, 1);
    refuse(filled(b), "key 'k': an array of arrays at byte 37", "");
}

static void arrays_past_the_end_are_refused(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1100, 1ull << 60, 1ull << 61, 1ull << 62, 1ull << 63, UINT64_MAX};
    for (int i = 0; i < 6; i++) {
        bytes b = one_kv();
        put_kv_arr(&b, "k", GGUF_U32, counts[i]);
        refuse(filled(b), "key 'k': ", "values of type u32 at byte 49 do not fit into the 4096 bytes");
        b = one_kv();
        put_kv_arr(&b, "k", GGUF_STR, counts[i]);
        refuse(filled(b), "key 'k': ", "values of type string at byte 49 do not fit");
    }
    bytes b = one_kv();
    put_kv_arr(&b, "k", GGUF_STR, 2);
    put_str(&b, "one");
    put_u64(&b, 1);
    refuse(b, "key 'k': a string at byte 60", "0 bytes follow");
}

static void a_key_may_occur_once(void **state)
{
    (void)state;
    bytes b = {0};
    put_header(&b, 0, 3);
    put_kv_u32(&b, "k", 1);
    put_kv_u32(&b, "other", 1);
    put_kv_u32(&b, "k", 1);
    refuse(filled(b), "key 'k': occurs a second time at byte 62", "");
}

static void a_bool_is_0_or_1(void **state)
{
    (void)state;
    bytes b = one_kv();
    put_kv_int(&b, "k", GGUF_BOOL, 2);
    refuse(filled(b), "key 'k': a bool at byte 37 is 2", "expected 0 or 1");
    b = one_kv();
    put_kv_arr(&b, "k", GGUF_BOOL, 3);
    put(&b, "\0\1\377", 3);
    refuse(filled(b), "key 'k': a bool at byte 51 is 255", "expected 0 or 1");
}

static void alignment_is_a_power_of_two_of_type_u32(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 1, 4, 7, 33, 96, 1u << 21, UINT32_MAX};
    for (int i = 0; i < 8; i++) {
        bytes b = one_kv();
        put_kv_u32(&b, "general.alignment", bad[i]);
        refuse(filled(b), "key 'general.alignment': is ", "at byte 53, expected a power of two");
    }
    bytes b = one_kv();
    put_kv_str(&b, "general.alignment", "32");
    refuse(filled(b), "key 'general.alignment': has type string", "expected u32");
    b = one_kv();
    put_kv_int(&b, "general.alignment", GGUF_U64, 32);
    refuse(filled(b), "key 'general.alignment': has type u64", "expected u32");
    b = one_kv();
    put_kv_arr(&b, "general.alignment", GGUF_U32, 1);
    put_u32(&b, 32);
    refuse(filled(b), "key 'general.alignment': has type array of u32", "expected u32");
}

/* Tensors */

static bytes with_tensor(uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset)
{
    bytes b = one_tensor();
    put_tensor(&b, "w", n_dims, ne, type, offset);
    return filled(b);
}

static void dimensions_are_1_to_4_and_none_is_zero(void **state)
{
    (void)state;
    refuse(with_tensor(0, NULL, Q_F32, 0), "tensor 'w': 0 dimensions at byte 33", "expected 1 to 4");
    refuse(with_tensor(5, (uint64_t[]){1, 1, 1, 1}, Q_F32, 0), "tensor 'w': 5 dimensions at byte 33",
           "expected 1 to 4");
    bytes b = one_tensor();
    put_str(&b, "w");
    put_u32(&b, UINT32_MAX);
    refuse(filled(b), "tensor 'w': 4294967295 dimensions at byte 33", "expected 1 to 4");
    refuse(with_tensor(1, (uint64_t[]){0}, Q_F32, 0), "tensor 'w': dimension 0 at byte 37 is zero", "");
    refuse(with_tensor(2, (uint64_t[]){32, 0}, Q_Q8_0, 0), "tensor 'w': dimension 1 at byte 45 is zero", "");
}

static void element_counts_that_overflow_are_refused(void **state)
{
    (void)state;
    refuse(with_tensor(2, (uint64_t[]){1ull << 32, 1ull << 32}, Q_F32, 0), "tensor 'w': dimension 1", "exceeds 2^63");
    refuse(with_tensor(4, (uint64_t[]){1 << 16, 1 << 16, 1 << 16, 1 << 16}, Q_F32, 0), "dimension 3", "exceeds 2^63");
    refuse(with_tensor(3, (uint64_t[]){1ull << 63, 2, 1}, Q_F32, 0), "dimension 0", "exceeds 2^63");
    refuse(with_tensor(1, (uint64_t[]){1ull << 62}, Q_F32, 0), "4611686018427387904 elements of type F32",
           "2^63 bytes");
    refuse(with_tensor(1, (uint64_t[]){1ull << 61}, Q_F32, 0), "2305843009213693952 elements of type F32",
           "2^63 bytes");
    refuse(with_tensor(1, (uint64_t[]){1ull << 61}, Q_I64, 0), "2305843009213693952 elements of type I64",
           "2^63 bytes");
}

static void unknown_tensor_types_are_named(void **state)
{
    (void)state;
    refuse(with_tensor(1, (uint64_t[]){256}, 17, 0), "tensor 'w': tensor type 17 (IQ2_XS) at byte 45", "not supported");
    refuse(with_tensor(1, (uint64_t[]){256}, 137, 0), "tensor type 137 (an unknown type)", "not supported");
    refuse(with_tensor(1, (uint64_t[]){256}, UINT32_MAX, 0), "tensor type 4294967295", "not supported");
}

static void rows_are_whole_blocks(void **state)
{
    (void)state;
    refuse(with_tensor(1, (uint64_t[]){33}, Q_Q8_0, 0), "tensor 'w': its first dimension is 33", "multiple of 32");
    refuse(with_tensor(2, (uint64_t[]){128, 2}, Q_Q2_K, 0), "first dimension is 128",
           "multiple of 256, the block of type Q2_K");
}

static void offsets_are_aligned_and_inside(void **state)
{
    (void)state;
    refuse(with_tensor(1, (uint64_t[]){4}, Q_F32, 16), "tensor 'w': data offset 16 at byte 49", "alignment 32");
    /* directory ends at byte 57, data begins at 64, the file has 57 + 4096 */
    refuse(with_tensor(1, (uint64_t[]){4}, Q_F32, 4096),
           "file is truncated: tensor 'w' ends at byte 4176, file has 4153", "download it again");
    refuse(with_tensor(1, (uint64_t[]){1 << 20}, Q_F32, 0), "ends at byte 4194368, file has 4153", "truncated");
    refuse(with_tensor(1, (uint64_t[]){4}, Q_F32, 1ull << 60), "tensor 'w' ends at byte 1152921504606847056",
           "truncated");
    refuse(with_tensor(1, (uint64_t[]){4}, Q_F32, UINT64_MAX - 31), "tensor 'w' ends at byte 18446744073709551615", "");
    refuse(with_tensor(1, (uint64_t[]){1ull << 60}, Q_F32, UINT64_MAX - 31), "tensor 'w' ends at byte", "truncated");
}

static void truncation_names_the_furthest_tensor(void **state)
{
    (void)state;
    bytes b = good_file();
    size_t n = b.n;
    char want[80];
    snprintf(want, sizeof want, "tensor 'fp4' ends at byte %zu, file has %zu", n, n - 500);
    bytes cut = copy_of(b, n - 500);
    free(b.p);
    refuse(cut, want, "file is truncated");
}

static void a_tensor_name_may_occur_once(void **state)
{
    (void)state;
    bytes b = {0};
    put_header(&b, 2, 0);
    put_tensor(&b, "w", 1, (uint64_t[]){4}, Q_F32, 0);
    put_tensor(&b, "w", 1, (uint64_t[]){4}, Q_F32, 32);
    refuse(filled(b), "tensor 'w' occurs twice", "byte 65");
}

static void tensors_may_not_overlap(void **state)
{
    (void)state;
    bytes b = {0};
    put_header(&b, 3, 0);
    put_tensor(&b, "late", 1, (uint64_t[]){4}, Q_F32, 96);
    put_tensor(&b, "long", 1, (uint64_t[]){9}, Q_F32, 0);
    put_tensor(&b, "inside", 1, (uint64_t[]){1}, Q_F32, 32);
    refuse(filled(b), "tensors 'long' and 'inside' overlap at byte", "damaged");
}

static void names_that_cannot_be_printed_do_no_harm(void **state)
{
    (void)state;
    bytes b = one_kv();
    put_u64(&b, 300);
    for (int i = 0; i < 300; i++)
        put(&b, i % 2 ? "\x1b" : "\n", 1);
    put_u32(&b, 99);
    refuse(filled(b), "key '????????", "value type 99 at byte 332");
}

static void every_truncation_is_refused_cleanly(void **state)
{
    (void)state;
    bytes b = good_file();
    for (size_t n = 0; n < b.n; n++)
        refuse(copy_of(b, n), "", "");
    free(b.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file_is_read_as_written),
        cmocka_unit_test(no_padding_is_assumed_where_none_is_needed),
        cmocka_unit_test(a_vocabulary_without_tensors_is_fine),
        cmocka_unit_test(getters_convert_and_check_ranges),
        cmocka_unit_test(a_nan_is_in_no_range),
        cmocka_unit_test(arrays_are_walked_in_order),
        cmocka_unit_test(what_is_not_gguf_is_named),
        cmocka_unit_test(other_versions_and_byte_orders_are_named),
        cmocka_unit_test(huge_counts_are_refused_before_anything_is_allocated),
        cmocka_unit_test(strings_past_the_end_are_refused),
        cmocka_unit_test(names_have_a_sensible_length),
        cmocka_unit_test(unknown_value_types_are_refused),
        cmocka_unit_test(nested_arrays_are_refused),
        cmocka_unit_test(arrays_past_the_end_are_refused),
        cmocka_unit_test(a_key_may_occur_once),
        cmocka_unit_test(a_bool_is_0_or_1),
        cmocka_unit_test(alignment_is_a_power_of_two_of_type_u32),
        cmocka_unit_test(dimensions_are_1_to_4_and_none_is_zero),
        cmocka_unit_test(element_counts_that_overflow_are_refused),
        cmocka_unit_test(unknown_tensor_types_are_named),
        cmocka_unit_test(rows_are_whole_blocks),
        cmocka_unit_test(offsets_are_aligned_and_inside),
        cmocka_unit_test(truncation_names_the_furthest_tensor),
        cmocka_unit_test(a_tensor_name_may_occur_once),
        cmocka_unit_test(tensors_may_not_overlap),
        cmocka_unit_test(names_that_cannot_be_printed_do_no_harm),
        cmocka_unit_test(every_truncation_is_refused_cleanly),
    };
    return cmocka_run_group_tests_name("file/gguf", tests, NULL, NULL);
}
