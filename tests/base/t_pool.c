/* The thread pool: every task once, results visible, no lost wake-up. Run under ThreadSanitizer by `make sanitize`. */
#include "util/unit.h"

#include <time.h>

#include "base/clock.h"
#include "base/pool.h"

enum { MOST = 300 };

typedef struct count {
    int hit[MOST]; /* plain ints: a race or a missing barrier shows under ThreadSanitizer */
    int add;
} count;

static void bump(void *ctx, int t)
{
    count *c = ctx;
    c->hit[t] += c->add;
}

static pool *make(int n)
{
    pool *p = NULL;
    ds4_err e = {0};
    assert_int_equal(pool_create(&p, n, &e), 0);
    assert_int_equal(pool_threads(p), n);
    return p;
}

static void every_task_runs_exactly_once(void **state)
{
    (void)state;
    for (int n = 1; n <= 7; n++) {
        pool *p = make(n);
        for (int tasks = 0; tasks <= 40; tasks++) {
            count c = {.add = 1};
            pool_run(p, bump, &c, tasks);
            for (int i = 0; i < MOST; i++)
                assert_int_equal(c.hit[i], i < tasks);
        }
        pool_free(p);
    }
}

static void results_of_one_run_are_seen_by_the_next(void **state)
{
    (void)state;
    pool *p = make(3);
    count c = {.add = 1};
    for (int r = 0; r < 30000; r++)
        pool_run(p, bump, &c, 2 + r % 5);
    assert_int_equal(c.hit[0], 30000);
    assert_int_equal(c.hit[1], 30000);
    int total = 0;
    for (int i = 0; i < MOST; i++)
        total += c.hit[i];
    assert_int_equal(total, 30000 * 4);
    pool_free(p);
}

/* Pauses around the spin time hit the moments where a worker or the caller goes to sleep. */
static void no_wake_up_is_lost_around_the_moment_of_sleep(void **state)
{
    (void)state;
    for (int n = 2; n <= 5; n += 3) {
        pool *p = make(n);
        count c = {.add = 1};
        uint64_t seed = 7;
        for (int r = 0; r < 4000; r++) {
            double until = clock_now() + 1e-7 * (double)(unit_rand(&seed) % 600);
            while (clock_now() < until) {
            }
            pool_run(p, bump, &c, n);
        }
        for (int i = 0; i < n; i++)
            assert_int_equal(c.hit[i], 4000);
        pool_free(p);
    }
}

static void slow(void *ctx, int t)
{
    struct timespec ts = {0, 3000000};
    if (t > 0)
        nanosleep(&ts, NULL);
    bump(ctx, t);
}

static void the_caller_waits_for_slow_tasks(void **state)
{
    (void)state;
    pool *p = make(4);
    count c = {.add = 1};
    for (int r = 0; r < 10; r++) {
        pool_run(p, slow, &c, 4);
        for (int i = 0; i < 4; i++)
            assert_int_equal(c.hit[i], r + 1);
    }
    pool_free(p);
}

static void in_order(void *ctx, int t)
{
    int *next = ctx;
    assert_int_equal(*next, t);
    ++*next;
}

static void one_thread_and_null_run_inline_in_order(void **state)
{
    (void)state;
    pool *p = make(1);
    int next = 0;
    pool_run(p, in_order, &next, 100);
    assert_int_equal(next, 100);
    next = 0;
    pool_run(NULL, in_order, &next, 100);
    assert_int_equal(next, 100);
    assert_int_equal(pool_threads(NULL), 1);
    pool_free(p);
    pool_free(NULL);
}

static void impossible_thread_counts_are_refused(void **state)
{
    (void)state;
    pool *p = NULL;
    ds4_err e = {0};
    assert_int_equal(pool_create(&p, 0, &e), DS4_EARG);
    assert_int_equal(pool_create(&p, POOL_MAX_THREADS + 1, &e), DS4_EARG);
    assert_has(e.msg, "1025 threads");
    assert_true(pool_cpus() >= 1);
}

static void pools_can_be_made_and_freed_without_a_run(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++)
        pool_free(make(1 + i % 6));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_exactly_once),
        cmocka_unit_test(results_of_one_run_are_seen_by_the_next),
        cmocka_unit_test(no_wake_up_is_lost_around_the_moment_of_sleep),
        cmocka_unit_test(the_caller_waits_for_slow_tasks),
        cmocka_unit_test(one_thread_and_null_run_inline_in_order),
        cmocka_unit_test(impossible_thread_counts_are_refused),
        cmocka_unit_test(pools_can_be_made_and_freed_without_a_run),
    };
    return cmocka_run_group_tests_name("base/pool", tests, NULL, NULL);
}
