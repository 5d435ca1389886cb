/* t_pyjson.c: printing as Python's json.dumps prints, and clear refusals of bad JSON. */
#include "util_json.h"

#include <math.h>

/* Parses and prints; fails the test on an error. The caller frees. */
static char *reprint_n(const char *text, size_t n)
{
    json_t *v;
    ds4_err e = {0};
    pyjson_buf b = {0};
    if (pyjson_parse(text, n, &v, &e) || pyjson_dump(&b, v, &e))
        fail_msg("%.60s: %s", text, e.msg);
    json_decref(v);
    return b.p;
}

static void expect(const char *text, const char *want)
{
    char *got = reprint_n(text, strlen(text));
    assert_string_equal(got, want);
    free(got);
}

static void separators_order_and_escapes(void **state)
{
    (void)state;
    expect(" {\"b\":1,\"a\":[1,2,{}],\"c\":{\"z\":null,\"y\":true,\"x\":false}} ",
           "{\"b\": 1, \"a\": [1, 2, {}], \"c\": {\"z\": null, \"y\": true, \"x\": false}}");
    expect("[]", "[]");
    expect("\"\\u0001\\b\\f\\n\\r\\t\\u001f\\u007f\\\"\\\\\\/\"", "\"\\u0001\\b\\f\\n\\r\\t\\u001f\x7f\\\"\\\\/\"");
    expect("\"\\u4f60\\ud83d\\ude42 \xc3\xa9\"", "\"\xe4\xbd\xa0\xf0\x9f\x99\x82 \xc3\xa9\"");
    expect("\"a\\u0000b\"", "\"a\\u0000b\"");
}

static void of_a_repeated_key_the_last_value_counts_at_the_first_place(void **state)
{
    (void)state;
    expect("{\"a\": 1, \"b\": 2, \"a\": 3}", "{\"a\": 3, \"b\": 2}");
}

static void integers_of_any_size_stay_what_they_are(void **state)
{
    (void)state;
    expect("[0, -0, 9223372036854775807, -9223372036854775808]", "[0, 0, 9223372036854775807, -9223372036854775808]");
    expect("{\"maximum\": 18446744073709551615, \"s\": \"18446744073709551615\"}",
           "{\"maximum\": 18446744073709551615, \"s\": \"18446744073709551615\"}");
    expect("[9223372036854775808,-9223372036854775809]", "[9223372036854775808, -9223372036854775809]");
    expect("123456789012345678901234567890123456789012345678901234567890",
           "123456789012345678901234567890123456789012345678901234567890");
    expect("1234567890123456789012345.0", "1.2345678901234568e+24");
    json_t *v;
    assert_int_equal(pyjson_parse("18446744073709551615", 20, &v, NULL), 0);
    assert_false(pyjson_is_text(v)); /* no number may pass as a string */
    json_decref(v);
}

static void floats_are_printed_as_python_prints_them(void **state)
{
    (void)state;
    static const char *const row[][2] = {
        {"1.0", "1.0"},
        {"-0.0", "-0.0"},
        {"0.1", "0.1"},
        {"1e5", "100000.0"},
        {"1E15", "1000000000000000.0"},
        {"9999999999999998.0", "9999999999999998.0"},
        {"1e16", "1e+16"},
        {"1.5e16", "1.5e+16"},
        {"1e22", "1e+22"},
        {"1e23", "1e+23"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"1.234e-7", "1.234e-07"},
        {"123456.789", "123456.789"},
        {"5e-324", "5e-324"},
        {"2.2250738585072014e-308", "2.2250738585072014e-308"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"5.684341886080802e-14", "5.684341886080802e-14"}, /* 2^-44: the nearest 16 digits do not read back */
        {"9007199254740993.0", "9007199254740992.0"},
        {"100.0", "100.0"},
        {"1e-400", "0.0"},
        {"4.35", "4.35"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        expect(row[i][0], row[i][1]);
}

/* Digits between the first and the last that is not zero. */
static int significant(const char *s)
{
    int n = 0, last = 0;
    for (; *s && *s != 'e'; s++) {
        if (*s < '0' || *s > '9' || (!n && *s == '0'))
            continue;
        n++;
        if (*s != '0')
            last = n;
    }
    return last;
}

static void every_float_reads_back_and_is_shortest(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 50000; round++) {
        uint64_t bits = unit_rand(&seed);
        double x;
        char s[32], shorter[40];
        if (round % 4 == 0) /* powers of two have uneven neighbours */
            bits &= 0x7FF0000000000000u;
        memcpy(&x, &bits, 8);
        if (!isfinite(x))
            continue;
        pyjson_float(x, s);
        assert_true(strlen(s) < 26);
        assert_true(strtod(s, NULL) == x);
        int digits = significant(s);
        assert_true(digits <= 17);
        if (digits > 1) { /* nothing shorter reads back */
            snprintf(shorter, sizeof shorter, "%.*e", digits - 2, x);
            assert_true(strtod(shorter, NULL) != x);
        }
    }
}

static void refuse(const char *text, size_t n, const char *word)
{
    json_t *v;
    ds4_err e = {0};
    assert_int_equal(pyjson_parse(text, n, &v, &e), DS4_EFORMAT);
    assert_has(e.msg, word);
}

static void bad_json_is_refused_with_its_place(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", "byte 0"},
        {"{\"a\": }", "byte 7"},
        {"[1, 2", "byte 5"},
        {"[1] x", "byte 5"},
        {"{\"a\" 1}", "byte 6"},
        {"[NaN]", "byte"},
        {"[Infinity]", "byte"},
        {"[01]", "byte"},
        {"[1.]", "byte"},
        {"['a']", "byte"},
        {"\"\\ud800\"", "byte"},
        {"\"a\x01\"", "byte"},
        {"\"\xff\"", "byte"},
        {"\"\xed\xa0\x80\"", "byte"},
        {"[1e999]", "byte"},
        {"{1: 2}", "byte"},
        {"{\"a\": 1,}", "byte"},
        {"{99999999999999999999 : 1}", "key must be a string"},
        {"\"open", "byte"},
        {"{\"\\u0000\": 1}", "byte"},
        {"\"\xf2\xbf\xbf\xbe"
         "1\"",
         "U+BFFFE"},
        {"\"\\uDABF\\udffe1\"", "U+BFFFE"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse(bad[i][0], strlen(bad[i][0]), bad[i][1]);
    /* offsets stay those of the original behind wrapped integers */
    refuse("[99999999999999999999, 99999999999999999999, x]", 47, "byte 46");
}

static void depth_and_size_are_limited(void **state)
{
    (void)state;
    char deep[2 * PYJSON_MAX_DEPTH + 4];
    memset(deep, '[', PYJSON_MAX_DEPTH);
    memset(deep + PYJSON_MAX_DEPTH, ']', PYJSON_MAX_DEPTH);
    deep[2 * PYJSON_MAX_DEPTH] = 0;
    expect(deep, deep);
    memset(deep, '[', PYJSON_MAX_DEPTH + 1);
    refuse(deep, 2 * PYJSON_MAX_DEPTH, "byte 256: nested deeper");
    refuse("", (size_t)PYJSON_MAX_BYTES + 1, "the limit is");
}

static void random_bytes_never_crash(void **state)
{
    (void)state;
    static const char part[] = "{}[]:,\"\\u0eE+-.19 truefalsn\xc3\xa9\xff\n";
    uint64_t seed = 99;
    for (int round = 0; round < 100000; round++) {
        size_t n = unit_rand(&seed) % 40;
        char *s = malloc(n ? n : 1); /* exact size, so that a sanitizer sees every overrun */
        for (size_t i = 0; i < n; i++)
            s[i] = unit_rand(&seed) % 3 ? part[unit_rand(&seed) % (sizeof part - 1)] : '9';
        json_t *v;
        ds4_err e = {0};
        pyjson_buf b = {0};
        if (!pyjson_parse(s, n, &v, &e)) {
            assert_int_equal(pyjson_dump(&b, v, &e), 0);
            json_decref(v);
        }
        free(b.p);
        free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(separators_order_and_escapes),
        cmocka_unit_test(of_a_repeated_key_the_last_value_counts_at_the_first_place),
        cmocka_unit_test(integers_of_any_size_stay_what_they_are),
        cmocka_unit_test(floats_are_printed_as_python_prints_them),
        cmocka_unit_test(every_float_reads_back_and_is_shortest),
        cmocka_unit_test(bad_json_is_refused_with_its_place),
        cmocka_unit_test(depth_and_size_are_limited),
        cmocka_unit_test(random_bytes_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
