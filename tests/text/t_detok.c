/* t_detok.c: streamed text is always whole UTF-8 and never loses or repeats anything, wherever tokens are cut. */
#include "util_text.h"

#include "text/detok.h"
#include "text/utf8.h"

static vocab *v;

static int load(void **state)
{
    (void)state;
    v = tiny_vocab();
    return 0;
}

static int unload(void **state)
{
    (void)state;
    vocab_free(v);
    return 0;
}

typedef struct text {
    char p[2000];
    size_t n;
} text;

static void add(text *t, const char *p, size_t n)
{
    assert_int_equal(utf8_check(p, n), n); /* every part by itself */
    assert_true(t->n + n < sizeof t->p);
    memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = 0;
}

/* Feeds s in parts that end where bit i of `cuts` is set behind byte i. */
static text stream(const char *s, size_t n, uint64_t cuts)
{
    detok d;
    text out = {.n = 0};
    const char *p;
    size_t k, from = 0;
    detok_init(&d, v, true);
    for (size_t i = 0; i < n; i++) {
        if (i + 1 < n && !(cuts >> (i % 64) & 1))
            continue;
        assert_int_equal(detok_bytes(&d, s + from, i + 1 - from, &p, &k, NULL), 0);
        add(&out, p, k);
        assert_true(d.n_held <= 3);
        from = i + 1;
    }
    assert_int_equal(detok_flush(&d, &p, &k, NULL), 0);
    add(&out, p, k);
    detok_free(&d);
    return out;
}

#define FFFD "\xEF\xBF\xBD"

static void split_at_every_byte(void **state)
{
    (void)state;
    static const char *const in[][2] = {
        {"na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x99\x82!", NULL},
        {"\xf4\x8f\xbf\xbf\xc2\x80", NULL},
        {"a\x80z", "a" FFFD "z"},
        {"\xf0\x9f\x99", FFFD},
        {"\xf0\x9f\x99z", FFFD "z"},
        {"\xf0\x9f\xf0\x9f\x99\x82", FFFD "\xf0\x9f\x99\x82"},
        {"\xe0\x80\x80", FFFD FFFD FFFD},
        {"\xed\xa0\x80", FFFD FFFD FFFD},
        {"\xf5\xff\xc0\xaf", FFFD FFFD FFFD FFFD},
        {"\xe4\xbd\xe4\xbd\xa0", FFFD "\xe4\xbd\xa0"},
        {"\xc3\xc3\xa9\xc3", FFFD "\xc3\xa9" FFFD},
    };
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++) {
        size_t n = strlen(in[i][0]);
        const char *want = in[i][1] ? in[i][1] : in[i][0];
        uint64_t all = n > 12 ? 4096 : 1ull << n;
        for (uint64_t cuts = 0; cuts < all; cuts++) {
            text got = stream(in[i][0], n, cuts * (n > 12 ? 0x9E3779B97F4A7C15u : 1));
            assert_string_equal(got.p, want);
        }
    }
}

static void random_bytes_do_not_depend_on_the_cuts(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (int round = 0; round < 20000; round++) {
        char s[40];
        static const char lead[] = "\xf0\x9f\x99\x82\xe4\xbd\xa0\xc3\xa9z\xff\xed\xa0\x80";
        size_t n = 1 + unit_rand(&seed) % sizeof s;
        for (size_t i = 0; i < n; i++)
            s[i] = lead[unit_rand(&seed) % (sizeof lead - 1)];
        text whole = stream(s, n, 0), cut = stream(s, n, unit_rand(&seed));
        assert_int_equal(whole.n, cut.n);
        assert_memory_equal(whole.p, cut.p, whole.n);
    }
}

static text run(bool show, const int32_t *id, size_t n)
{
    detok d;
    text out = {.n = 0};
    const char *p;
    size_t k;
    detok_init(&d, v, show);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(detok_push(&d, id[i], &p, &k, NULL), 0);
        add(&out, p, k);
    }
    assert_int_equal(detok_flush(&d, &p, &k, NULL), 0);
    add(&out, p, k);
    detok_free(&d);
    return out;
}

static void added_tokens_are_shown_or_left_out(void **state)
{
    (void)state;
    const int32_t think = vocab_special(v, SP_THINK), id[] = {'h', 0xf0, 0x9f, think, 0x99, 'i', vocab_eos(v)};
    assert_string_equal(run(true, id, 7).p, "h" FFFD "<think>" FFFD "i<｜end▁of▁sentence｜>");
    assert_string_equal(run(false, id, 7).p, "h" FFFD FFFD "i"); /* the halves around a hidden token do not join */
}

static void tokens_that_hold_parts_of_a_character(void **state)
{
    (void)state;
    const int32_t id[] = {256 + 12, 0x82, 256 + 10}; /* three bytes of an emoji, its fourth, e acute */
    assert_string_equal(run(true, id, 3).p, "\xf0\x9f\x99\x82\xc3\xa9");
}

static void foreign_ids_are_refused(void **state)
{
    (void)state;
    detok d;
    const char *p;
    size_t k;
    ds4_err e = {0};
    detok_init(&d, v, true);
    assert_int_equal(detok_push(&d, -1, &p, &k, &e), DS4_EARG);
    assert_int_equal(detok_push(&d, (int32_t)vocab_size(v), &p, &k, &e), DS4_EARG);
    assert_has(e.msg, "outside the vocabulary");
    detok_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_at_every_byte),
        cmocka_unit_test(random_bytes_do_not_depend_on_the_cuts),
        cmocka_unit_test(added_tokens_are_shown_or_left_out),
        cmocka_unit_test(tokens_that_hold_parts_of_a_character),
        cmocka_unit_test(foreign_ids_are_refused),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
