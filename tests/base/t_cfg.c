/* Settings from the environment. */
#include "util/unit.h"

#include "base/cfg.h"

static int clear(void **state)
{
    (void)state;
    size_t n;
    const cfg_setting *t = cfg_settings(&n);
    for (size_t i = 0; i < n; i++)
        unsetenv(t[i].name);
    return 0;
}

static void unset_and_empty_variables_give_defaults(void **state)
{
    (void)state;
    cfg c;
    ds4_err e = {0};
    setenv("DS4_THREADS", "", 1);
    setenv("DS4_DSPARK_STATS", "", 1);
    assert_int_equal(cfg_load(&c, &e), 0);
    assert_int_equal(c.threads, 0);
    assert_false(c.dspark_stats);
    assert_false(c.dspark_no_gpu_confidence);
}

static void values_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool value;
    } words[] = {
        {"1", true},   {"0", false},  {"true", true}, {"FALSE", false},
        {"yes", true}, {"no", false}, {"On", true},   {"off", false},
    };
    cfg c;
    ds4_err e = {0};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        setenv("DS4_DSPARK_STATS", words[i].text, 1);
        assert_int_equal(cfg_load(&c, &e), 0);
        assert_int_equal(c.dspark_stats, words[i].value);
    }
    setenv("DS4_THREADS", "17", 1);
    assert_int_equal(cfg_load(&c, &e), 0);
    assert_int_equal(c.threads, 17);
}

static void malformed_values_are_named(void **state)
{
    (void)state;
    static const char *const bad[] = {"x", "-1", "1025", "3 ", "0x10", "99999999999999999999", "1.5"};
    cfg c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ds4_err e = {0};
        setenv("DS4_THREADS", bad[i], 1);
        assert_int_equal(cfg_load(&c, &e), DS4_EARG);
        assert_has(e.msg, "DS4_THREADS");
        assert_has(e.msg, bad[i]);
        assert_has(e.msg, "0 to 1024");
        assert_int_equal(c.threads, 0);
    }
    ds4_err e = {0};
    setenv("DS4_THREADS", "1", 1);
    setenv("DS4_DSPARK_STATS", "maybe", 1);
    assert_int_equal(cfg_load(&c, &e), DS4_EARG);
    assert_has(e.msg, "DS4_DSPARK_STATS is 'maybe', expected 0 or 1");
    assert_int_equal(c.threads, 0);
}

static bool is_reported(const char *want)
{
    char name[64];
    for (size_t at = 0; cfg_unknown(&at, name, sizeof name);)
        if (!strcmp(name, want))
            return true;
    return false;
}

static void a_mistyped_variable_is_reported(void **state)
{
    (void)state;
    setenv("DS4_DSPARK_STAT", "1", 1);
    setenv("DS4_THREADS", "1", 1);
    setenv("DS4_TEST_DATA_X", "1", 1);
    setenv("DS4_BIN", "1", 1);
    setenv("DS4_DSPARK_MODEL", "1", 1);
    setenv("DS4_DSPARK_SUPPORT", "1", 1);
    setenv("DS4_DSPARK_FIXTURE_TOKENS", "1", 1);
    setenv("DS4X", "1", 1);
    assert_true(is_reported("DS4_DSPARK_STAT"));
    assert_false(is_reported("DS4_THREADS"));
    assert_false(is_reported("DS4_TEST_DATA_X"));
    assert_false(is_reported("DS4_BIN"));
    assert_false(is_reported("DS4_DSPARK_MODEL"));
    assert_false(is_reported("DS4_DSPARK_SUPPORT"));
    assert_false(is_reported("DS4_DSPARK_FIXTURE_TOKENS"));
    assert_false(is_reported("DS4X"));
    unsetenv("DS4_DSPARK_STAT");
    char name[5];
    setenv("DS4_LONG_NAME_THAT_DOES_NOT_FIT", "1", 1);
    size_t at = 0;
    assert_true(cfg_unknown(&at, name, sizeof name));
    assert_string_equal(name, "DS4_");
    unsetenv("DS4_LONG_NAME_THAT_DOES_NOT_FIT");
}

static void every_setting_has_a_help_text(void **state)
{
    (void)state;
    size_t n;
    const cfg_setting *t = cfg_settings(&n);
    assert_true(n >= 3 && n <= 12);
    for (size_t i = 0; i < n; i++) {
        assert_true(!strncmp(t[i].name, "DS4_", 4));
        assert_true(strlen(t[i].help) > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(unset_and_empty_variables_give_defaults, clear),
        cmocka_unit_test_setup(values_are_read, clear),
        cmocka_unit_test_setup(malformed_values_are_named, clear),
        cmocka_unit_test_setup(a_mistyped_variable_is_reported, clear),
        cmocka_unit_test(every_setting_has_a_help_text),
    };
    return cmocka_run_group_tests_name("base/cfg", tests, NULL, NULL);
}
