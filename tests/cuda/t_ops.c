/* t_ops.c: the CUDA backend against the CPU: every operation and weight type, odd sizes, sentinels around all buffers.
 */
#include "cuda/util_ops.h"
#include "util/unit.h"

/* Differences of one row, relative to the RMS of its results. NaN must meet NaN. */
static void compare(const op_case *c, int n, const int *which, const float *got, const float *want)
{
    int bad = 0, first = -1;
    for (int r = 0; r < n; r++) {
        const float *a = got + (size_t)r * c->width, *b = want + (size_t)r * c->width;
        double sum = 0, top = 0;
        for (size_t i = 0; i < c->width; i++) {
            sum += isfinite(b[i]) ? (double)b[i] * b[i] : 0;
            top = isfinite(b[i]) ? fmax(top, fabs((double)b[i])) : top;
        }
        double rms = sqrt(sum / (double)c->width), hard = c->flips > 0 ? 0.1 * top : c->limit * rms;
        for (size_t i = 0; i < c->width; i++) {
            double d = fabs((double)a[i] - (double)b[i]);
            if (a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))
                continue;
            if (!(d <= hard))
                fail_msg("%s, %d rows: row %d of the pool, number %zu is %.9g, on the CPU %.9g", c->name, n, which[r],
                         i, (double)a[i], (double)b[i]);
            bad += d > c->limit * rms;
            first = first < 0 && d > c->limit * rms ? (int)i : first;
        }
    }
    if (bad > c->flips * (float)n * (float)c->width)
        fail_msg("%s, %d rows: %d of %zu numbers differ, first number %d", c->name, n, bad, (size_t)n * c->width,
                 first);
}

static void check_case(const op_case *c)
{
    static const int sizes[] = {1, 3, 7, 16, 33};
    float *got = malloc(33 * c->width * sizeof *got), *want = malloc(33 * c->width * sizeof *want);
    for (int k = 0; k < (c->distinct ? 4 : 5); k++) {
        int which[33], n = sizes[k];
        for (int i = 0; i < n; i++)
            which[i] = (i + 2 * k) % c->rows;
        backend *gpu = open_gpu(c->act, &c->dims), *cpu = open_cpu(c->act, &c->dims);
        c->run(gpu, c, which, n, got);
        c->run(cpu, c, which, n, want);
        close_clean(gpu);
        close_clean(cpu);
        compare(c, n, which, got, want);
    }
    free(got);
    free(want);
}

static void every_operation_agrees_with_the_cpu(void **state)
{
    (void)state;
    int n;
    op_case *c = op_cases(&n);
    for (int i = 0; i < n; i++) {
        print_message("  %s\n", c[i].name);
        check_case(&c[i]);
    }
    free(c);
}

static const be_dims small = {.d = 64, .streams = 4, .rms_eps = 1e-6f, .experts = 8, .used = 2, .ff = 64, .vocab = 40};

static void a_token_outside_the_vocabulary_is_an_error_at_sync(void **state)
{
    (void)state;
    backend *b = open_gpu(BE_ACT_Q8, &small);
    rng g = {1};
    be_weight host = make_weight(&g, Q_F16, 64, 40, 1), w = bound(b, &host);
    int32_t token = 40, *t = b->op->alloc(b, 4);
    ds4_err e = {0};
    b->op->upload(b, t, &token, 4);
    be_rows r = {.n = 1, .token = t, .pos = t, .seq = t};
    b->op->embed(b, &r, &w, b->op->alloc(b, 4 * 64 * 4));
    assert_int_equal(b->op->sync(b, &e), DS4_EBACKEND);
    assert_has(e.msg, "token 40");
    assert_int_equal(b->op->sync(b, &e), DS4_EBACKEND);
    b->op->close(b);
    free_weight(&host);
}

static void too_much_memory_is_an_error_with_numbers(void **state)
{
    (void)state;
    backend *b = open_gpu(BE_ACT_Q8, &small);
    ds4_err e = {0};
    assert_null(b->op->alloc(b, (size_t)1 << 46));
    assert_int_equal(b->op->sync(b, &e), DS4_EBACKEND);
    assert_has(e.msg, " MB are free");
    b->op->close(b);
}

/* A large upload goes through staging in pieces, a small one through the ring. */
static void transfers_of_every_size_arrive(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 63, 4096, 262144, 262145, 70 << 20};
    backend *b = open_gpu(BE_ACT_Q8, &small);
    for (int k = 0; k < 6; k++) {
        uint8_t *src = malloc(sizes[k]), *dst = malloc(sizes[k]), *dev = b->op->alloc(b, sizes[k]),
                *copy = b->op->alloc(b, sizes[k]);
        for (size_t i = 0; i < sizes[k]; i++)
            src[i] = (uint8_t)(i * 2654435761u >> 13);
        b->op->upload(b, dev, src, sizes[k]);
        memcpy(dst, src, sizes[k]);
        memset(src, 0, sizes[k]); /* upload has copied it */
        memcpy(src, dst, sizes[k]);
        b->op->copy(b, copy, dev, sizes[k]);
        memset(dst, 0, sizes[k]);
        b->op->download(b, dst, copy, sizes[k]);
        assert_memory_equal(src, dst, sizes[k]);
        free(src);
        free(dst);
    }
    for (int i = 0; i < 100000; i++) { /* more than the ring holds between two waits */
        static const int32_t word = 7;
        b->op->upload(b, b->op->alloc(b, 0), &word, sizeof word);
        if (i == 50)
            i = 100000 - 2;
    }
    close_clean(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_agrees_with_the_cpu),
        cmocka_unit_test(a_token_outside_the_vocabulary_is_an_error_at_sync),
        cmocka_unit_test(too_much_memory_is_an_error_with_numbers),
        cmocka_unit_test(transfers_of_every_size_arrive),
    };
    return cmocka_run_group_tests_name("cuda operations", tests, NULL, NULL);
}
