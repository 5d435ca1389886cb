/* err, log, arena, clock: the small objects. */
#include "util/unit.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"

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

static void keep(void *user, enum log_level level, const char *line)
{
    snprintf(user, 2000, "%d:%s", level, line);
}

static void a_logger_filters_by_level_and_writes_single_lines(void **state)
{
    (void)state;
    char got[2000] = "";
    logger l = {LOG_LEVEL_WARN, keep, got};
    log_write(&l, LOG_LEVEL_INFO, "quiet");
    assert_string_equal(got, "");
    log_write(&l, LOG_LEVEL_ERROR, "a\nb %d", 3);
    assert_string_equal(got, "0:a b 3");
    log_write(&l, LOG_LEVEL_WARN, "%01500d", 1);
    assert_int_equal(strlen(got), 1002);
    log_write(NULL, LOG_LEVEL_ERROR, "nobody listens");
    assert_false(log_wants(&(logger){LOG_LEVEL_DEBUG, NULL, NULL}, LOG_LEVEL_ERROR));
}

static void repeated_messages_are_held_back_and_counted(void **state)
{
    (void)state;
    log_rate r = {.every = 5};
    unsigned held = 99;
    assert_true(log_allow(&r, 100, &held));
    assert_int_equal(held, 0);
    for (int i = 0; i < 7; i++)
        assert_false(log_allow(&r, 101 + 0.5 * i, &held));
    assert_true(log_allow(&r, 105, &held));
    assert_int_equal(held, 7);
}

typedef struct pieces {
    float *a;
    char *b;
    double *c;
} pieces;

static void cut(arena *a, pieces *p)
{
    p->a = arena_take(a, 17, sizeof(float));
    p->b = arena_take(a, 1, 1);
    p->c = arena_take(a, 100, sizeof(double));
}

static void both_passes_of_an_arena_agree(void **state)
{
    (void)state;
    arena a = {0};
    pieces p;
    ds4_err e = {0};
    cut(&a, &p);
    assert_int_equal(a.size, 128 + 64 + 832);
    assert_int_equal(arena_alloc(&a, "test", &e), 0);
    assert_false(arena_complete(&a));
    cut(&a, &p);
    assert_true(arena_complete(&a));
    assert_true((uintptr_t)p.a % 64 == 0 && (uintptr_t)p.b % 64 == 0 && (uintptr_t)p.c % 64 == 0);
    for (int i = 0; i < 100; i++)
        assert_true(p.c[i] == 0);
    p.c[99] = 1; /* inside, or AddressSanitizer objects */
    assert_null(arena_take(&a, 1, 1));
    assert_false(arena_complete(&a));
    arena_free(&a);
}

static void an_arena_refuses_sizes_that_overflow(void **state)
{
    (void)state;
    ds4_err e = {0};
    arena a = {0};
    arena_take(&a, SIZE_MAX / 2, 4);
    assert_int_equal(arena_alloc(&a, "scratch", &e), DS4_EARG);
    assert_has(e.msg, "scratch: the size asked for exceeds");
    arena_take(&a, SIZE_MAX - 100, 1);
    arena_take(&a, SIZE_MAX - 100, 1);
    assert_int_equal(arena_alloc(&a, "scratch", &e), DS4_EARG);
    arena_take(&a, SIZE_MAX - 63, 1);
    assert_int_equal(arena_alloc(&a, "scratch", &e), DS4_EARG);
    assert_int_equal(arena_alloc(&a, "nothing", &e), 0);
    assert_true(arena_complete(&a));
    arena_free(&a);
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
        cmocka_unit_test(a_logger_filters_by_level_and_writes_single_lines),
        cmocka_unit_test(repeated_messages_are_held_back_and_counted),
        cmocka_unit_test(both_passes_of_an_arena_agree),
        cmocka_unit_test(an_arena_refuses_sizes_that_overflow),
        cmocka_unit_test(the_clock_does_not_go_back),
    };
    return cmocka_run_group_tests_name("base/base", tests, NULL, NULL);
}
