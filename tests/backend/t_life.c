/* t_life.c: opening, memory, binding, sticky errors, and the choice of tokens. */
#include "backend/util_be.h"
#include "base/noise.h"

static void opening_names_what_is_wrong(void **state)
{
    (void)state;
    backend *b;
    ds4_err e;
    backend_options o = {.name = "tpu"};
    assert_int_equal(backend_open(&b, &o, &e), DS4_EARG);
    assert_non_null(strstr(e.msg, "tpu"));
    o = (backend_options){.name = "cpu", .threads = -1};
    assert_int_equal(backend_open(&b, &o, &e), DS4_EARG);
    o = (backend_options){0};
    assert_int_equal(backend_open(&b, &o, &e), 0);
    assert_string_equal(b->name, "cpu");
    assert_int_equal(b->max_rows, 64);
    b->op->close(b);
}

static void memory_is_zeroed_and_aligned_and_copies_arrive(void **state)
{
    (void)state;
    backend *b = open_variant(V_FAST, BE_ACT_Q8, NULL);
    for (size_t n = 0; n < 300; n += 37) {
        char *p = b->op->alloc(b, n), *q = b->op->alloc(b, n), back[300];
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        for (size_t i = 0; i < n; i++)
            back[i] = (char)(i * 3);
        b->op->upload(b, p, back, n);
        b->op->copy(b, q, p, n);
        memset(back, 0, sizeof back);
        b->op->download(b, back, q, n);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(back[i], (char)(i * 3));
    }
    close_clean(b);
}

static void impossible_memory_is_a_sticky_error(void **state)
{
    (void)state;
    backend *b = open_variant(V_FAST, BE_ACT_Q8, NULL);
    ds4_err e;
    float x[4] = {1, 2, 3, 4}, w[4] = {1, 1, 1, 1}, y[4] = {7, 7, 7, 7};
    assert_null(b->op->alloc(b, SIZE_MAX - 10));
    b->op->norm(b, 1, 4, x, w, y); /* does nothing after the failure */
    assert_true(y[0] == 7 && y[3] == 7);
    assert_int_equal(b->op->sync(b, &e), DS4_EBACKEND);
    assert_int_equal(b->op->sync(b, &e), DS4_EBACKEND);
    b->op->close(b);
}

static void the_chosen_sync_fails_and_stays_failed(void **state)
{
    (void)state;
    backend *b = open_variant(V_FAST, BE_ACT_Q8, NULL);
    ds4_err e;
    backend_fault_after(b, 3);
    assert_int_equal(b->op->sync(b, &e), 0);
    assert_int_equal(b->op->sync(b, &e), 0);
    assert_int_equal(b->op->sync(b, &e), DS4_EBACKEND);
    assert_int_equal(b->op->sync(b, NULL), DS4_EBACKEND);
    b->op->close(b);
}

static void binding_refuses_what_it_cannot_multiply(void **state)
{
    (void)state;
    backend *b = open_variant(V_FAST, BE_ACT_Q8, NULL);
    ds4_err e;
    be_weight ids = {.name = "table", .type = Q_I32, .ne0 = 4, .ne1 = 4, .ne2 = 1};
    be_weight odd = {.name = "odd", .type = Q_Q8_0, .ne0 = 33, .ne1 = 4, .ne2 = 1};
    be_weight none = {.name = "none", .type = Q_F32, .ne0 = 0, .ne1 = 4, .ne2 = 1};
    be_weight foreign = {.name = "foreign", .type = 17, .ne0 = 256, .ne1 = 4, .ne2 = 1};
    assert_int_equal(b->op->bind(b, &ids, &e), DS4_EMODEL);
    assert_non_null(strstr(e.msg, "table"));
    assert_int_equal(b->op->bind(b, &odd, &e), DS4_EMODEL);
    assert_int_equal(b->op->bind(b, &none, &e), DS4_EMODEL);
    assert_int_equal(b->op->bind(b, &foreign, &e), DS4_EMODEL);
    close_clean(b);
}

/* --- pick --- */

enum { VOCAB = 5003 };

typedef struct pick_fx {
    float logits[POOL_ROWS * VOCAB], temp;
    int32_t pos[POOL_ROWS];
    uint64_t seed;
} pick_fx;

static void run_pick(backend *b, void *fixture, const int *which, int n, float *out)
{
    pick_fx *f = fixture;
    float *x = dev_room(b, (size_t)n * VOCAB);
    int32_t pos[CPU_MAX_ROWS], got[CPU_MAX_ROWS], *dev = (int32_t *)dev_room(b, (size_t)n);
    for (int i = 0; i < n; i++) {
        b->op->upload(b, x + i * VOCAB, f->logits + which[i] * VOCAB, VOCAB * 4);
        pos[i] = f->pos[which[i]];
    }
    b->op->pick(b, n, x, f->temp, f->seed, ints_to_dev(b, pos, (size_t)n), dev);
    b->op->download(b, got, dev, (size_t)n * 4);
    check_guards(b, (float *)dev, (size_t)n);
    for (int i = 0; i < n; i++)
        out[i] = (float)got[i];
}

static void pick_takes_the_largest_noisy_logit(void **state)
{
    (void)state;
    rng g = {41};
    pick_fx *f = calloc(1, sizeof *f);
    static const float temps[] = {0, -1, 1, 0.3f, 5};
    fill_normal(&g, f->logits, POOL_ROWS * VOCAB, 4);
    for (int t = 0; t < 5; t++) {
        f->temp = temps[t];
        f->seed = rng_next(&g);
        for (int i = 0; i < POOL_ROWS; i++) {
            f->pos[i] = rng_below(&g, 1 << 20);
            float got, best = -INFINITY;
            int want = 0;
            for (int v = 0; v < VOCAB; v++) {
                float z = f->logits[i * VOCAB + v];
                if (f->temp > 0)
                    z = z / f->temp + noise_gumbel(f->seed, (uint32_t)f->pos[i], (uint32_t)v);
                if (z > best) {
                    best = z;
                    want = v;
                }
            }
            backend *b = open_variant(V_FAST, BE_ACT_Q8, &(be_dims){.vocab = VOCAB});
            run_pick(b, f, &i, 1, &got);
            close_clean(b);
            assert_int_equal((int)got, want);
        }
        check_rows(run_pick, f, 1, BE_ACT_Q8, &(be_dims){.vocab = VOCAB}, false);
    }
    free(f);
}

static void pick_breaks_ties_low_and_never_takes_nan(void **state)
{
    (void)state;
    pick_fx *f = calloc(1, sizeof *f);
    float got[6];
    int which[] = {0, 1, 2, 3, 4, 5};
    for (int v = 0; v < VOCAB; v++) {
        f->logits[0 * VOCAB + v] = NAN;
        f->logits[1 * VOCAB + v] = -INFINITY;
        f->logits[2 * VOCAB + v] = v == 4000 || v == 77 || v == 4999 ? 3 : v % 2 ? NAN : 1;
        f->logits[3 * VOCAB + v] = v == VOCAB - 1 ? -5 : NAN;
        f->logits[4 * VOCAB + v] = v % 3 ? -0.0f : 0.0f;
        f->logits[5 * VOCAB + v] = v == 4321 ? INFINITY : 2;
    }
    f->logits[4 * VOCAB] = -0.0f;
    for (int t = 0; t < 2; t++)
        for (enum variant v = V_PLAIN; v < N_VARIANTS; v++) {
            f->temp = (float)t;
            backend *b = open_variant(v, BE_ACT_Q8, &(be_dims){.vocab = VOCAB});
            run_pick(b, f, which, 6, got);
            close_clean(b);
            assert_int_equal((int)got[0], 0);
            assert_true((int)got[1] >= 0 && (int)got[1] < VOCAB);
            assert_int_equal((int)got[3], VOCAB - 1);
            assert_int_equal((int)got[5], 4321);
            if (t == 0) {
                assert_int_equal((int)got[1], 0);
                assert_int_equal((int)got[2], 77);
                assert_int_equal((int)got[4], 0);
            }
        }
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_names_what_is_wrong),
        cmocka_unit_test(memory_is_zeroed_and_aligned_and_copies_arrive),
        cmocka_unit_test(impossible_memory_is_a_sticky_error),
        cmocka_unit_test(the_chosen_sync_fails_and_stays_failed),
        cmocka_unit_test(binding_refuses_what_it_cannot_multiply),
        cmocka_unit_test(pick_takes_the_largest_noisy_logit),
        cmocka_unit_test(pick_breaks_ties_low_and_never_takes_nan),
    };
    return cmocka_run_group_tests_name("backend life", tests, NULL, NULL);
}
