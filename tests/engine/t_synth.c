/* t_synth: models made up to measure speed. If their bytes differ from the published files', if routing or activations
 * degenerate, or if a state put in place is not taken up, the figures are not those of the real model. */
#include "util/unit.h"

#include <math.h>
#include <stdlib.h>

#include "ds4.h"
#include "engine/engine.h"
#include "engine/synth.h"

enum { CTX = 400, AT = 300 };

static void check(int rc, const ds4_error *e)
{
    if (rc)
        fail_msg("%s", e->msg);
}

static uint64_t tensor_bytes(const char *name, int layers, bool drafter)
{
    const synth_model s = {name, layers, 0};
    gguf *g = NULL;
    uint8_t *kept = NULL;
    uint64_t sum = 0;
    ds4_error e = {0};
    check(drafter ? synth_drafter(&g, &kept, &s, &e) : synth_trunk(&g, &kept, &s, &e), &e);
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        sum += gguf_tensor_at(g, i)->nbytes;
    assert_int_equal(gguf_n_tensors(g), drafter ? 81 : layers == 43 || !layers ? 1328 : gguf_n_tensors(g));
    assert_true(gguf_file_bytes(g) > sum);
    gguf_close(g);
    free(kept);
    return sum;
}

/* The sizes of the published files. */
static void bytes_are_those_of_the_published_files(void **u)
{
    (void)u;
    assert_int_equal(tensor_bytes("flash-q2", 0, false), 86714775900);
    assert_int_equal(tensor_bytes("flash-q2", 0, true), 5989108652);
    assert_int_equal((tensor_bytes("flash-q4", 0, false) + 5000000) / 10000000, 16463);
    assert_int_equal((tensor_bytes("flash-mxfp4", 0, false) + 5000000) / 10000000, 15597);
    assert_true(tensor_bytes("flash-q2", 5, false) < 86714775900 / 5);
}

/* The figures of a Flash file: a step, one expert of every layer, and what more rows read. */
static void a_step_reads_what_the_real_model_reads(void **u)
{
    static const double ratio[] = {0, 1.00, 1.19, 1.37, 1.55, 1.72, 1.89};
    const synth_model s = {"flash-q2", 0, 0};
    ds4_engine eng = {.made = {NULL}};
    ds4_error e = {0};
    (void)u;
    check(synth_trunk(&eng.trunk, &eng.made[0], &s, &e), &e);
    check(shape_read(&eng.m.s, eng.trunk, &e), &e);
    assert_true(fabs((double)ds4_bench_token_bytes(&eng) / 9559104840 - 1) < 1e-5); /* counted by hand */
    for (int n = 1; n <= 6; n++) {
        const double distinct = 256 * (1 - pow(250.0 / 256, n)), bytes = ds4_bench_rows_bytes(&eng, n);
        assert_true(fabs(bytes / (7.733e9 + 304349184 * distinct) - 1) < 1e-4);
        assert_true(fabs(bytes / ds4_bench_rows_bytes(&eng, 1) - ratio[n]) < 0.006);
    }
    gguf_close(eng.trunk);
    free(eng.made[0]);
}

static void open_tiny(ds4_engine **eng, ds4_session **ses, float skew)
{
    ds4_error e = {0};
    ds4_engine_options o = ds4_engine_defaults();
    o.synthetic = "tiny-q2";
    o.synthetic_drafter = true;
    o.synthetic_skew = skew;
    o.backend = "cpu";
    o.ctx = CTX;
    check(ds4_engine_open(eng, &o, &e), &e);
    check(ds4_session_open(ses, *eng, &e), &e);
}

static void tokens_of(int32_t *t, int n, int vocab)
{
    for (int i = 0; i < n; i++)
        t[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)vocab);
}

static void logits_are_finite_and_the_same_again(void **u)
{
    int32_t t[CTX];
    float *logits[2];
    (void)u;
    for (int k = 0; k < 2; k++) {
        ds4_engine *eng;
        ds4_session *ses;
        ds4_info info;
        ds4_error e = {0};
        double squares = 0;
        open_tiny(&eng, &ses, 0);
        ds4_engine_info(eng, &info);
        assert_true(info.has_drafter && info.draft_block == 5 && info.draft_stages == 3);
        tokens_of(t, CTX, info.vocab);
        logits[k] = malloc((size_t)info.vocab * sizeof(float));
        check(ds4_session_sync(ses, t, 150, NULL, NULL, NULL, &e), &e);
        check(ds4_session_logits(ses, logits[k], &e), &e);
        for (int i = 0; i < info.vocab; i++) {
            assert_true(isfinite(logits[k][i]));
            squares += (double)logits[k][i] * (double)logits[k][i] / info.vocab;
        }
        assert_true(squares > 0.25 && squares < 4); /* norm in, unit gain */
        if (k)
            assert_memory_equal(logits[0], logits[1], (size_t)info.vocab * sizeof(float));
        ds4_session_close(ses);
        ds4_engine_close(eng);
    }
    free(logits[0]);
    free(logits[1]);
}

static void skew_makes_routing_uneven(void **u)
{
    double even[16], uneven[16];
    (void)u;
    for (int k = 0; k < 2; k++) {
        ds4_engine *eng;
        ds4_session *ses;
        ds4_error e = {0};
        int32_t t[CTX];
        double *d = k ? uneven : even;
        open_tiny(&eng, &ses, k ? 1.0f : 0.0f);
        tokens_of(t, CTX, 4096);
        check(ds4_bench_place(ses, t, AT, &e), &e);
        check(ds4_bench_experts(ses, t + AT, 16, d, &e), &e);
        assert_true(d[0] == 4); /* those of one token are distinct */
        for (int i = 1; i < 16; i++)
            assert_true(d[i] >= d[i - 1] && d[i] <= 16);
        assert_int_equal(ds4_session_pos(ses), AT);
        assert_int_equal(ds4_bench_experts(ses, t, 17, d, &e), DS4_EARG);
        ds4_session_close(ses);
        ds4_engine_close(eng);
    }
    assert_true(fabs(even[1] - 7) < 0.8); /* 16 (1 - (12/16)^2) */
    assert_true(uneven[5] < 0.8 * even[5]);
}

static bool stop_never(void *ctx, int32_t token, const float *logits)
{
    (void)token, (void)logits;
    ++*(int *)ctx;
    return true;
}

/* Placed state is used, drafts are made from it, and the rewinding that measuring needs is legal. */
static void a_placed_state_is_taken_up(void **u)
{
    ds4_engine *eng;
    ds4_session *ses;
    ds4_error e = {0};
    int32_t t[CTX];
    int count = 0, fed = 0;
    float *logits[2] = {malloc(4096 * sizeof(float)), malloc(4096 * sizeof(float))};
    (void)u;
    open_tiny(&eng, &ses, 0);
    tokens_of(t, CTX, 4096);
    check(ds4_bench_place(ses, t, AT, &e), &e);
    check(ds4_session_sync(ses, t, AT, NULL, NULL, &fed, &e), &e);
    assert_int_equal(fed, 1);
    check(ds4_session_logits(ses, logits[0], &e), &e);
    ds4_generate_options o = ds4_generate_defaults();
    ds4_result r;
    o.temp = 0;
    o.max_tokens = 12;
    o.drafting = DS4_DRAFT_FIXED;
    o.ignore_eos = true;
    o.on_token = stop_never;
    o.ctx = &count;
    check(ds4_generate(ses, &o, &r, &e), &e);
    assert_true(count == 12 && r.proposed > 0);
    check(ds4_session_rewind(ses, AT - 1, &e), &e);
    check(ds4_session_sync(ses, t, AT, NULL, NULL, NULL, &e), &e);
    check(ds4_session_logits(ses, logits[1], &e), &e);
    assert_memory_equal(logits[0], logits[1], 4096 * sizeof(float));
    assert_int_equal(ds4_bench_place(ses, t, CTX + 1, &e), DS4_EARG);
    check(ds4_session_reset(ses, &e), &e);
    check(ds4_session_sync(ses, t, AT, NULL, NULL, NULL, &e), &e);
    check(ds4_session_logits(ses, logits[1], &e), &e);
    assert_memory_not_equal(logits[0], logits[1], 4096 * sizeof(float));
    ds4_session_close(ses);
    ds4_engine_close(eng);
    free(logits[0]);
    free(logits[1]);
}

static ds4_result scripted(ds4_session *ses, const int32_t *t, enum ds4_drafting how, const uint8_t *script, int n,
                           int tokens)
{
    ds4_generate_options o = ds4_generate_defaults();
    ds4_result r;
    ds4_error e = {0};
    int count = 0;
    o.temp = 0;
    o.max_tokens = tokens;
    o.drafting = how;
    o.ignore_eos = true;
    o.on_token = stop_never;
    o.ctx = &count;
    o.scripted = script;
    o.scripted_count = n;
    check(ds4_bench_place(ses, t, AT, &e), &e);
    check(ds4_session_sync(ses, t, AT, NULL, NULL, NULL, &e), &e);
    check(ds4_generate(ses, &o, &r, &e), &e);
    assert_int_equal(count, tokens);
    assert_int_equal(ds4_session_pos(ses), AT + tokens - 1);
    return r;
}

/* Wrong counts would put a wrong acceptance beside a speed; a script that stays would spoil real drafting. */
static void scripted_acceptance_is_what_was_prescribed(void **u)
{
    static const uint8_t mixed[] = {2, 2, 1, 3}, none[] = {0}, all[] = {5};
    ds4_engine *eng;
    ds4_session *ses;
    ds4_error e = {0};
    int32_t t[CTX];
    (void)u;
    open_tiny(&eng, &ses, 0);
    tokens_of(t, CTX, 4096);
    ds4_result before = scripted(ses, t, DS4_DRAFT_FIXED, NULL, 0, 25);
    ds4_result r = scripted(ses, t, DS4_DRAFT_FIXED, mixed, 4, 25);
    assert_true(r.cycles == 8 && r.accepted == 16 && r.proposed > 35);
    r = scripted(ses, t, DS4_DRAFT_FIXED, all, 1, 25);
    assert_true(r.cycles == 4 && r.accepted == 20);
    r = scripted(ses, t, DS4_DRAFT_FIXED, none, 1, 25);
    assert_true(r.cycles == 24 && r.accepted == 0 && r.proposed > 100);
    r = scripted(ses, t, DS4_DRAFT_AUTO, none, 1, 60); /* the scheduler notices */
    assert_true(r.accepted == 0 && r.proposed < 60);
    r = scripted(ses, t, DS4_DRAFT_FIXED, NULL, 0, 25);
    assert_true(r.accepted == before.accepted && r.logits_hash == before.logits_hash);
    ds4_generate_options o = ds4_generate_defaults();
    o.scripted = none;
    assert_int_equal(ds4_generate(ses, &o, &r, &e), DS4_EARG);
    ds4_session_close(ses);
    ds4_engine_close(eng);
}

static void wrong_wishes_are_refused(void **u)
{
    static const struct {
        const char *name, *model, *says;
        int layers;
        float skew;
    } bad[] = {{"flash-q3", NULL, "expected flash-q2, flash-q4 or flash-mxfp4", 0, 0},
               {"flash-q2", NULL, "expected 3 to 43", 2, 0},
               {"flash-q2", NULL, "expected 3 to 43", 44, 0},
               {"flash-q2", NULL, "expected 0 to 100", 3, -1},
               {"tiny-q2", "x", "goes with no file", 0, 0}};
    (void)u;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ds4_engine *eng = NULL;
        ds4_error e = {0};
        ds4_engine_options o = ds4_engine_defaults();
        o.synthetic = bad[i].name;
        o.synthetic_layers = bad[i].layers;
        o.synthetic_skew = bad[i].skew;
        o.model = bad[i].model;
        o.backend = "cpu";
        assert_int_equal(ds4_engine_open(&eng, &o, &e), DS4_EARG);
        if (!strstr(e.msg, bad[i].says))
            fail_msg("%s", e.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_of_the_published_files),
        cmocka_unit_test(a_step_reads_what_the_real_model_reads),
        cmocka_unit_test(logits_are_finite_and_the_same_again),
        cmocka_unit_test(skew_makes_routing_uneven),
        cmocka_unit_test(a_placed_state_is_taken_up),
        cmocka_unit_test(scripted_acceptance_is_what_was_prescribed),
        cmocka_unit_test(wrong_wishes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
