/* t_opts.c: the option table drives parser, help and advice; a user's mistake is named with what was expected. */
#include "util/unit.h"

#include "app/cli_opts.h"

typedef struct options {
    bool flag;
    int mode, number, choice;
    const char *word, *text;
    float real;
    cli_u64 big;
} options;

#define AT(f) .at = offsetof(options, f)
static const cli_opt table[] = {
    {.kind = CLI_GROUP, .help = "Group:"},
    {"--flag", "-f", NULL, CLI_FLAG, AT(flag), .help = "a flag"},
    {"--three", NULL, NULL, CLI_SET, AT(mode), .lo = 3, .help = "mode 3"},
    {"--four", NULL, NULL, CLI_SET, AT(mode), .lo = 4, .help = "mode 4"},
    {"--word", NULL, NULL, CLI_WORD, AT(word), .choices = "cpu", .help = "same as --text cpu"},
    {"--text", "-t", "TEXT", CLI_TEXT, AT(text), .help = "a text\nin two lines"},
    {"--number", "-n", "N", CLI_INT, AT(number), .lo = -5, .hi = 100, .help = "a number"},
    {"--real", NULL, "F", CLI_REAL, AT(real), .lo = 0, .hi = 2, .help = "a real number"},
    {"--choice", NULL, "C", CLI_CHOICE, AT(choice), .choices = "one|two|three", .help = "a choice"},
    {"--big", NULL, "N", CLI_U64, AT(big), .help = "64 bits"},
    {"--hidden-switch", NULL, NULL, CLI_FLAG, AT(flag)},
};
enum { N = sizeof table / sizeof *table };

static int parse(options *o, ds4_err *e, int n, ...)
{
    char *argv[16] = {"program"};
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++)
        argv[i + 1] = va_arg(ap, char *);
    va_end(ap);
    *o = (options){0};
    *e = (ds4_err){0};
    return cli_parse(table, N, n + 1, argv, o, e);
}

static void every_kind_fills_its_field(void **state)
{
    options o;
    ds4_err e;
    (void)state;
    assert_int_equal(
        parse(&o, &e, 9, "-f", "--three", "--four", "--word", "-t", "a b", "--number=-5", "--choice", "two"), 0);
    assert_true(o.flag);
    assert_int_equal(o.mode, 4); /* the last one counts */
    assert_string_equal(o.word, "cpu");
    assert_string_equal(o.text, "a b");
    assert_int_equal(o.number, -5);
    assert_int_equal(o.choice, 1);
    assert_int_equal(parse(&o, &e, 4, "--real", "1.5", "--big", "18446744073709551615"), 0);
    assert_true(o.real == 1.5f);
    assert_true(o.big.given && o.big.value == UINT64_MAX);
    assert_int_equal(parse(&o, &e, 2, "--text", "--flag"), 0); /* a value may look like an option */
    assert_string_equal(o.text, "--flag");
    assert_int_equal(parse(&o, &e, 1, "--text="), 0);
    assert_string_equal(o.text, "");
}

static void a_value_out_of_range_or_malformed_is_refused(void **state)
{
    static char *const bad[][3] = {
        {"--number", "101", "a whole number from -5 to 100"},
        {"--number", "7x", "a whole number"},
        {"--number", "", "a whole"},
        {"--number", "99999999999999999999", "a whole number"},
        {"--real", "2.1", "a number from 0 to 2"},
        {"--real", "nan", "a number"},
        {"--real", "inf", "a number"},
        {"--real", "-0.1", "a number"},
        {"--big", "-1", "a whole number"},
        {"--big", "18446744073709551616", "a whole number"},
        {"--big", " 1", "a whole"},
        {"--choice", "tw", "one of one|two|three"},
        {"--choice", "", "one of"},
        {"--choice", "one|two", "one of"},
    };
    options o;
    ds4_err e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&o, &e, 2, bad[i][0], bad[i][1]), DS4_EARG);
        assert_has(e.msg, bad[i][0]);
        assert_has(e.msg, bad[i][2]);
    }
}

static void a_mistyped_option_is_named_with_the_nearest(void **state)
{
    options o;
    ds4_err e;
    (void)state;
    assert_int_equal(parse(&o, &e, 1, "--nunber"), DS4_EARG);
    assert_string_equal(e.msg, "unknown option --nunber; did you mean --number?");
    assert_int_equal(parse(&o, &e, 1, "--chioce=one"), DS4_EARG);
    assert_string_equal(e.msg, "unknown option --chioce; did you mean --choice?");
    assert_int_equal(parse(&o, &e, 1, "--zzzzzz"), DS4_EARG);
    assert_string_equal(e.msg, "unknown option --zzzzzz");
    assert_int_equal(parse(&o, &e, 1, "--hidden-swich"), DS4_EARG); /* what is not shown is not advised */
    assert_string_equal(e.msg, "unknown option --hidden-swich");
    assert_int_equal(parse(&o, &e, 1, "stray"), DS4_EARG);
    assert_has(e.msg, "unexpected argument 'stray'");
    char monster[3000];
    memset(monster, '-', sizeof monster);
    monster[sizeof monster - 1] = 0;
    assert_int_equal(parse(&o, &e, 1, monster), DS4_EARG);
    assert_null(cli_nearest(table, N, monster));
}

static void a_missing_value_is_noticed(void **state)
{
    options o;
    ds4_err e;
    (void)state;
    assert_int_equal(parse(&o, &e, 2, "-f", "-n"), DS4_EARG);
    assert_string_equal(e.msg, "-n needs a value: --number N");
    assert_int_equal(parse(&o, &e, 1, "--flag=1"), DS4_EARG);
    assert_has(e.msg, "--flag takes no value");
    assert_int_equal(parse(&o, &e, 1, ""), DS4_EARG);
}

static void the_help_text_has_every_shown_option_once(void **state)
{
    char *text = NULL;
    size_t size;
    (void)state;
    FILE *f = open_memstream(&text, &size);
    cli_help(f, table, N);
    fclose(f);
    for (int i = 0; i < N; i++) {
        char row[64];
        if (table[i].kind == CLI_GROUP || !table[i].help)
            continue;
        snprintf(row, sizeof row, "\n  %s", table[i].name);
        char *at = strstr(text, row);
        assert_non_null(at);
        assert_null(strstr(at + 1, row));
    }
    assert_null(strstr(text, "hidden"));
    assert_has(text, "Group:\n");
    assert_has(text, "  --text, -t TEXT             a text\n                              in two lines\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_fills_its_field),
        cmocka_unit_test(a_value_out_of_range_or_malformed_is_refused),
        cmocka_unit_test(a_mistyped_option_is_named_with_the_nearest),
        cmocka_unit_test(a_missing_value_is_noticed),
        cmocka_unit_test(the_help_text_has_every_shown_option_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
