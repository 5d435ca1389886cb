/* err, clock: the small objects. */
#include "util/unit.h"

#include "base/clock.h"
#include "base/err.h"

static void an_error_is_always_one_printable_line(void **state)
{
    (void)state;
    ds4_err e = {0};
    assert_int_equal(ds4_fail(&e, DS4_EIO, "a\nb\rc\x1b[31m%s", "\t!"), DS4_EIO);
    assert_string_equal(e.msg, "a b c [31m !");
    assert_int_equal(ds4_fail(NULL, DS4_EARG, "x"), DS4_EARG);
}

static void a_long_error_is_cut_between_characters(void **state)
{
    (void)state;
    for (size_t pad = 0; pad < 4; pad++) {
        char text[801] = "";
        memset(text, 'x', pad);
        while (strlen(text) < 790)
            strcat(text, "\xe2\x82\xac"); /* three bytes */
        ds4_err e = {0};
        ds4_fail(&e, DS4_EIO, "%s", text);
        size_t n = strlen(e.msg);
        assert_true(n >= sizeof e.msg - 4 && n < sizeof e.msg);
        assert_int_equal((n - pad) % 3, 0);
    }
}

static void wrapping_keeps_code_and_cause(void **state)
{
    (void)state;
    ds4_err e = {0};
    char head[600];
    memset(head, 'h', sizeof head);
    head[sizeof head - 1] = 0;
    ds4_fail(&e, DS4_EMODEL, "cause");
    assert_int_equal(ds4_wrap(&e, "file %d", 7), DS4_EMODEL);
    assert_string_equal(e.msg, "file 7: cause");
    assert_int_equal(ds4_wrap(&e, "%s", head), DS4_EMODEL);
    assert_has(e.msg, ": file 7: cause");
    ds4_fail(&e, DS4_EIO, "again: %s", e.msg); /* the old text as an argument */
    assert_has(e.msg, "again: hhh");
}

static void the_clock_does_not_go_back(void **state)
{
    (void)state;
    double last = clock_now();
    for (int i = 0; i < 10000; i++) {
        double now = clock_now();
        assert_true(now >= last);
        last = now;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_is_always_one_printable_line),
        cmocka_unit_test(a_long_error_is_cut_between_characters),
        cmocka_unit_test(wrapping_keeps_code_and_cause),
        cmocka_unit_test(the_clock_does_not_go_back),
    };
    return cmocka_run_group_tests_name("base/base", tests, NULL, NULL);
}
