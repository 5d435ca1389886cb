/* t_memory.c: too little device memory must be refused before anything is loaded, in one line that says what would fit;
 * and what is planned must cover what is then taken, or loading dies half way. */
#include "cuda/util_mini.h"
#include "file/quant.h"
#include "model/memory.h"
#include "util/unit.h"

typedef struct told {
    char line[300];
    int notes, loads;
} told;

static void note(void *ctx, const char *line)
{
    told *t = ctx;
    snprintf(t->line, sizeof t->line, "%s", line);
    t->notes++;
}

static bool progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)what, (void)done, (void)total;
    ((told *)ctx)->loads++;
    return true;
}

static int open_mini(ds4_engine **eng, int ctx, int sessions, told *t, ds4_error *e)
{
    ds4_engine_options o = ds4_engine_defaults();
    *t = (told){0};
    o.model = MINI_MODEL;
    o.drafter = MINI_DRAFTER;
    o.dspark = true;
    o.backend = "cuda";
    o.ctx = ctx;
    o.sessions = sessions;
    o.progress = progress;
    o.note = note;
    o.progress_ctx = t;
    return ds4_engine_open(eng, &o, e);
}

static void check_refusal(int ctx, int sessions, const char *advice)
{
    ds4_engine *eng;
    ds4_error e = {0};
    told t;
    assert_int_equal(open_mini(&eng, ctx, sessions, &t, &e), DS4_ENOMEM);
    print_message("%s\n%s\n", t.line, e.msg);
    assert_has(t.line, "memory: weights ");
    assert_has(e.msg, "device memory: ");
    assert_has(e.msg, " are free: ");
    assert_has(e.msg, advice);
    assert_null(strchr(e.msg, '\n'));
    assert_int_equal(t.notes, 1);
    assert_int_equal(t.loads, 0);
}

/* The largest contexts of many sessions: more than any device has. */
static void too_large_a_context_is_refused_before_loading(void **state)
{
    (void)state;
    mini_need_gpu();
    ds4_engine *eng;
    ds4_error e = {0};
    ds4_info info;
    told t;
    assert_int_equal(open_mini(&eng, 512, 1, &t, &e), 0);
    ds4_engine_info(eng, &info);
    ds4_engine_close(eng);
    assert_int_equal(t.notes, 1);
    assert_true(t.loads > 0);
    check_refusal((int)info.ctx_max, 256, "use --ctx ");
    check_refusal((int)info.ctx_max, 256, " or less, or fewer sessions");
}

static void too_small_a_device_is_refused_before_loading(void **state)
{
    (void)state;
    if (!mini_reduced())
        UNIT_SKIP("only the emulation has a device that is too small");
    setenv("DS4_TEST_EMU_MEMORY", "200", 1);
    check_refusal(512, 1, "no context fits, use a smaller model");
    unsetenv("DS4_TEST_EMU_MEMORY");
}

static uint64_t free_now(backend *b)
{
    size_t have = 0, total, own;
    ds4_err e = {0};
    rig_check(b->op->memory(b, 1, &have, &total, &own, &e), &e);
    return have;
}

/* Weights to the rounding of allocations, state and scratch from above after forwards of both widths. */
static void the_plan_covers_what_is_taken(void **state)
{
    enum { CTX = 300, N = 40 };
    (void)state;
    mini_need_gpu();
    int32_t ids[N];
    rig r = {0};
    memory_plan p;
    ds4_err e = {0};
    setenv("DS4_TEST_BACKEND", "cuda", 1);
    rig_backend(&r, &(rig_options){.act = BE_ACT_Q8});
    rig_check(gguf_open(&r.trunk, MINI_MODEL, &e), &e);
    rig_check(shape_read(&r.m.s, r.trunk, &e), &e);
    rig_check(memory_plan_make(&p, r.b, &r.m.s, NULL, r.trunk, NULL, 1, CTX, &e), &e);
    const uint64_t before = free_now(r.b);
    rig_check(model_open(&r.m, r.b, r.trunk, NULL, &(model_options){0}, &e), &e);
    const uint64_t bound = free_now(r.b);
    rig_check(kv_open(&r.k, r.b, &r.m.s, NULL, 1, CTX, &e), &e);
    for (int i = 0; i < N; i++)
        ids[i] = 5 + i;
    rig_run(&r, 0, ids, 0, N, mini_reduced() ? N : 6, NULL);
    rig_run(&r, 0, ids, 0, 3, 3, NULL);
    const uint64_t all = before - free_now(r.b), planned = p.weights + p.state + p.scratch;
    print_message("weights %.1f MB of %.1f MB taken while loading; together %.1f MB of %.1f MB planned\n",
                  (double)p.weights / 1e6, (double)(before - bound) / 1e6, (double)all / 1e6, (double)planned / 1e6);
    assert_true(p.weights <= before - bound + (16 << 20)); /* the first block may have had room */
    assert_true(all <= planned + (32 << 20));              /* blocks of small allocations are 8 MB */
    assert_true(p.state == r.k.bytes);
    rig_close(&r);
}

/* Tiles of IQ2_XXS take 1.55 times the file's bytes. A card with little memory must not lose a model to them; small
 * matrices and large cards take the faster form. */
static void large_two_bit_matrices_keep_their_size_where_memory_is_short(void **state)
{
    (void)state;
    ds4_err e = {0};
    backend *b = NULL;
    backend_options o = {"cuda", 1, BE_ACT_Q8};
    size_t free_bytes, total, own;
    mini_need_gpu();
    assert_int_equal(backend_open(&b, &o, &e), 0);
    assert_int_equal(b->op->memory(b, 0, &free_bytes, &total, &own, &e), 0);
    be_weight w = {.name = "experts", .type = Q_IQ2_XXS, .ne0 = 4096, .ne1 = 2048, .ne2 = 256};
    const double file = 66.0 / 256 * 4096 * 2048;
    const double large = (double)b->op->weight_bytes(b, &w) / (file * 256);
    w.ne2 = 1;
    const double small = (double)b->op->weight_bytes(b, &w) / file;
    const bool is_short = total < (size_t)125 << 30;
    assert_true(large > 0.99 && small > 1.5 && small < 1.6);
    assert_true(is_short ? large < 1.05 : large > 1.5);
    b->op->close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_large_a_context_is_refused_before_loading),
        cmocka_unit_test(too_small_a_device_is_refused_before_loading),
        cmocka_unit_test(the_plan_covers_what_is_taken),
        cmocka_unit_test(large_two_bit_matrices_keep_their_size_where_memory_is_short),
    };
    return cmocka_run_group_tests_name("plan of device memory", tests, NULL, NULL);
}
