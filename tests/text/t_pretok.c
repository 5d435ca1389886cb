/* t_pretok.c: the scanner against the three regular expressions themselves, run by PCRE2. */
#include "util_text.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include "text/utf8.h"

static const char *const splitters[3] = {
    "\\p{N}{1,3}",
    "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

typedef struct ends {
    size_t at[4096], n;
} ends;

/* Pieces of text by splitter k and those after it, as end offsets plus `base`. */
static void by_regex(pcre2_code *const re[3], int k, const char *text, size_t n, size_t base, ends *out)
{
    if (!n)
        return;
    if (k == 3) {
        assert_true(out->n < 4096);
        out->at[out->n++] = base + n;
        return;
    }
    pcre2_match_data *md = pcre2_match_data_create_from_pattern(re[k], NULL);
    const size_t *ov = pcre2_get_ovector_pointer(md);
    size_t pos = 0;
    while (pcre2_match(re[k], (PCRE2_SPTR)text, n, pos, 0, md, NULL) > 0) {
        size_t a = ov[0], b = ov[1];
        by_regex(re, k + 1, text + pos, a - pos, base + pos, out);
        by_regex(re, k + 1, text + a, b - a, base + a, out);
        pos = b;
    }
    pcre2_match_data_free(md);
    by_regex(re, k + 1, text + pos, n - pos, base + pos, out);
}

static void by_scanner(const pretok *p, const char *text, size_t n, ends *out)
{
    for (size_t pos = 0; pos < n;) {
        size_t end = pretok_next(p, text, n, pos);
        assert_true(end > pos && end <= n && out->n < 4096);
        out->at[out->n++] = pos = end;
    }
}

static void compare(pcre2_code *const re[3], const pretok *p, const char *text, size_t n)
{
    ends want = {.n = 0}, got = {.n = 0};
    by_regex(re, 0, text, n, 0, &want);
    by_scanner(p, text, n, &got);
    bool same = want.n == got.n && !memcmp(want.at, got.at, got.n * sizeof got.at[0]);
    if (same)
        return;
    for (size_t i = 0; i < n; i++)
        printf("%02x ", (unsigned char)text[i]);
    for (size_t i = 0; i < want.n || i < got.n; i++)
        printf("\npiece %zu: want end %zu, got %zu", i, i < want.n ? want.at[i] : 0, i < got.n ? got.at[i] : 0);
    fail_msg("the scanner differs from the regular expressions");
}

static void compile(pcre2_code *re[3])
{
    int rc;
    size_t off;
    for (int i = 0; i < 3; i++) {
        re[i] = pcre2_compile((PCRE2_SPTR)splitters[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &rc, &off, NULL);
        assert_non_null(re[i]);
    }
}

/* Characters that meet every rule: ASCII of all kinds, separators, marks, other digits, CJK borders, symbols, control,
 * unassigned. */
static const uint32_t odd[] = {
    ' ',    ' ',      ' ',      '\n',    '\n',   '\r',   '\t',    'a',     'b',     'Z',     '1',    '2',
    '3',    '.',      '!',      '\'',    '<',    '_',    '$',     0,       1,       0x7F,    0x85,   0xA0,
    0xAD,   0xE9,     0x301,    0x660,   0x661,  0xBD,   0x2160,  0x3007,  0x3000,  0x2003,  0x2028, 0x200B,
    0x200D, 0x3040,   0x3042,   0x309F,  0x30A0, 0x30FB, 0x30FF,  0x3100,  0x4DFF,  0x4E00,  0x9FA5, 0x9FA6,
    0xAC00, 0x20AC,   0x2264,   0x2014,  0xFF5C, 0x2581, 0x1F642, 0x1F468, 0xFE0F,  0xE0100, 0x378,  0xE000,
    0xFFFF, 0x10FFFF, 0x10FFFD, 0x20000, 0x0410, 0x05D0, 0x0627,  0x0903,  0x1D7CE, 0x1E900, 0xFEFF, 0x303F,
};

static void random_text_splits_as_the_regular_expressions_say(void **state)
{
    (void)state;
    pcre2_code *re[3];
    pretok *p;
    uint64_t seed = 20260801;
    compile(re);
    assert_int_equal(pretok_new(&p, NULL), 0);
    for (int round = 0; round < 60000; round++) {
        uint8_t text[64 * 4];
        size_t n = 0, len = 1 + unit_rand(&seed) % 24, kinds = 1 + unit_rand(&seed) % 6;
        uint32_t pick[6];
        for (size_t i = 0; i < kinds; i++)
            pick[i] = odd[unit_rand(&seed) % (sizeof odd / sizeof odd[0])];
        for (size_t i = 0; i < len; i++)
            n += (size_t)utf8_put(pick[unit_rand(&seed) % kinds], text + n);
        compare(re, p, (char *)text, n);
    }
    for (int i = 0; i < 3; i++)
        pcre2_code_free(re[i]);
    pretok_free(p);
}

/* Every code point by itself and between letters, digits, spaces: the category table agrees with PCRE2 on all of
 * Unicode. */
static void every_code_point_has_the_class_that_pcre2_gives(void **state)
{
    (void)state;
    pcre2_code *re[3];
    pretok *p;
    compile(re);
    assert_int_equal(pretok_new(&p, NULL), 0);
    for (uint32_t cp = 0; cp < 0x110000; cp += cp < 0x3400 ? 1 : 37) {
        uint8_t text[16];
        size_t n = 0;
        if ((cp >= 0xD800 && cp <= 0xDFFF) || cp == 0x180E) /* U+180E: PCRE2 alone still calls it a space */
            continue;
        text[n++] = 'a';
        n += (size_t)utf8_put(cp, text + n);
        text[n++] = 'b';
        text[n++] = ' ';
        n += (size_t)utf8_put(cp, text + n);
        text[n++] = '!';
        compare(re, p, (char *)text, n);
    }
    for (int i = 0; i < 3; i++)
        pcre2_code_free(re[i]);
    pretok_free(p);
}

static void check_ends(const pretok *p, const char *text, size_t n, const size_t *want, size_t n_want)
{
    ends got = {.n = 0};
    by_scanner(p, text, n, &got);
    assert_int_equal(got.n, n_want);
    for (size_t i = 0; i < n_want; i++)
        assert_int_equal(got.at[i], want[i]);
}

static void invalid_utf8_is_cut_out_as_pieces_of_its_own(void **state)
{
    (void)state;
    pretok *p;
    assert_int_equal(pretok_new(&p, NULL), 0);
    check_ends(p, "ab\xff\xfe\x80 cd", 8, (size_t[]){2, 5, 8}, 3);
    check_ends(p, "a  \xe4\xbd", 5, (size_t[]){1, 3, 5}, 3);             /* a cut-off character at the end */
    check_ends(p, "\xed\xa0\x80x", 4, (size_t[]){3, 4}, 2);              /* a surrogate */
    check_ends(p, "\xc0\xaf\xf5\x80", 4, (size_t[]){4}, 1);              /* overlong, out of range */
    check_ends(p, "1\xff" "23", 4, (size_t[]){1, 2, 4}, 3);
    check_ends(p, "a\0b", 3, (size_t[]){1, 3}, 2); /* NUL is a control character like any other */
    pretok_free(p);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void megabytes_of_one_kind_take_linear_time(void **state)
{
    (void)state;
    static const char *const unit[] = {" ",    "a",   "1",        "\n", " \n", "!", "\xff", "\xe4", "\xe4\xb8\x80",
                                       "\x01", "\n ", "\xcc\x81", " x", "\t!"};
    const size_t n = 4u << 20;
    pretok *p;
    char *text = malloc(n);
    assert_int_equal(pretok_new(&p, NULL), 0);
    for (size_t u = 0; u < sizeof unit / sizeof unit[0]; u++) {
        size_t k = strlen(unit[u]), pieces = 0;
        for (size_t i = 0; i < n; i++)
            text[i] = unit[u][i % k];
        double t = seconds();
        for (size_t pos = 0; pos < n; pieces++)
            pos = pretok_next(p, text, n, pos);
        t = seconds() - t;
        assert_true(pieces > 0);
        if (t > 10)
            fail_msg("4 MiB of unit %zu took %.1f s", u, t);
    }
    free(text);
    pretok_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_text_splits_as_the_regular_expressions_say),
        cmocka_unit_test(every_code_point_has_the_class_that_pcre2_gives),
        cmocka_unit_test(invalid_utf8_is_cut_out_as_pieces_of_its_own),
        cmocka_unit_test(megabytes_of_one_kind_take_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
