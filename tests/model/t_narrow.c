/* Row invariance of the whole forward: a position's logits and the state do not depend on how many rows were computed
 * together. */
#include <stdio.h>

#include "util/v4_rig.h"

static rig_options options(enum be_act act, int threads)
{
    return (rig_options){.act = act, .sim = KV_SIM_FULL, .threads = threads, .ctx = 1024};
}

typedef struct outcome {
    float *logits; /* [n][vocab] */
    uint64_t hash;
} outcome;

static outcome run(v4_rig *t, const int32_t *ids, int n, int chunk)
{
    outcome o = {calloc((size_t)n * V4_VOCAB, sizeof(float)), 0};
    bool ok;
    assert_non_null(o.logits);
    rig_run(&t->r, 0, ids, 0, n, chunk, o.logits);
    o.hash = kv_hash(&t->r.k, 0, n, &ok);
    assert_true(ok);
    return o;
}

static void expect_same(const outcome *a, const outcome *b, int n, int from, int to, const char *what)
{
    for (int p = from; p < to && p < n; p++)
        if (memcmp(a->logits + (size_t)p * V4_VOCAB, b->logits + (size_t)p * V4_VOCAB, V4_VOCAB * sizeof(float)))
            fail_msg("%s: logits of position %d differ from one row at a time", what, p);
    if (a->hash != b->hash)
        fail_msg("%s: the state differs from one row at a time", what);
}

/* Narrow chunk sizes from 2 on against one row at a time. Sequence state of an earlier run is overwritten: nothing may
 * leak from it. */
static void check_chunks(enum be_act act, int n, int step)
{
    int32_t ids[700];
    v4_rig t;
    v4_tokens(ids, n);
    v4_open(&t, options(act, 1));
    outcome one = run(&t, ids, n, 1);
    for (int chunk = 2; chunk <= BE_NARROW; chunk += step) {
        char what[64];
        snprintf(what, sizeof what, "chunks of %d", chunk);
        outcome o = run(&t, ids, n, chunk);
        expect_same(&one, &o, n, 0, n, what);
        free(o.logits);
    }
    free(one.logits);
    v4_close(&t);
}

static void chunks_1_to_16_int8_300(void **s)
{
    (void)s;
    check_chunks(BE_ACT_Q8, 300, 1);
}
static void chunks_1_to_16_float_300(void **s)
{
    (void)s;
    check_chunks(BE_ACT_FLOAT, 300, 1);
}
static void chunks_1_to_16_int8_700(void **s)
{
    (void)s;
    check_chunks(BE_ACT_Q8, 700, 1);
}
static void chunks_2_to_14_float_700(void **s)
{
    (void)s;
    check_chunks(BE_ACT_FLOAT, 700, 3);
}

/* Wide chunks on the CPU: the same bits too (only the last 16 rows of a chunk have logits). */
static void check_wide(enum be_act act)
{
    enum { N = 320 };
    int32_t ids[N];
    v4_rig t;
    v4_tokens(ids, N);
    v4_open(&t, options(act, 1));
    outcome one = run(&t, ids, N, 1);
    for (int chunk = 17; chunk <= 64; chunk += chunk == 17 ? 15 : 32) { /* 17, 32, 64 */
        char what[64];
        snprintf(what, sizeof what, "chunks of %d", chunk);
        outcome o = run(&t, ids, N, chunk);
        for (int at = 0; at < N; at += chunk) {
            int n = N - at < chunk ? N - at : chunk;
            expect_same(&one, &o, N, n > BE_NARROW ? at + n - BE_NARROW : at, at + n, what);
        }
        free(o.logits);
    }
    free(one.logits);
    v4_close(&t);
}

static void wide_chunks_int8(void **s)
{
    (void)s;
    check_wide(BE_ACT_Q8);
}
static void wide_chunks_float(void **s)
{
    (void)s;
    check_wide(BE_ACT_FLOAT);
}

/* The number of threads changes nothing. */
static void threads_change_nothing(void **s)
{
    (void)s;
    enum { N = 140 };
    int32_t ids[N];
    outcome o[3];
    v4_tokens(ids, N);
    for (int i = 0; i < 3; i++) {
        v4_rig t;
        v4_open(&t, options(BE_ACT_Q8, i == 2 ? 5 : i + 1));
        o[i] = run(&t, ids, N, 7);
        v4_close(&t);
    }
    expect_same(&o[0], &o[1], N, 0, N, "two threads");
    expect_same(&o[0], &o[2], N, 0, N, "five threads");
    for (int i = 0; i < 3; i++)
        free(o[i].logits);
}

/* Two sequences in one forward: each as if it were alone. */
static void sequences_do_not_mix(void **s)
{
    (void)s;
    enum { N = 90 };
    int32_t ids[2 * N];
    float *alone = calloc(2 * N * V4_VOCAB, sizeof *alone), *both = calloc(2 * V4_VOCAB, sizeof *both);
    bool ok;
    v4_rig t;
    v4_tokens(ids, 2 * N);
    rig_options o = options(BE_ACT_Q8, 1);
    o.slots = 3;
    v4_open(&t, o);
    rig_run(&t.r, 0, ids, 0, N, 16, alone);
    uint64_t want[2] = {kv_hash(&t.r.k, 0, N, &ok), 0};
    rig_run(&t.r, 0, ids + N, 0, N, 16, alone + N * V4_VOCAB);
    want[1] = kv_hash(&t.r.k, 0, N, &ok);
    for (int p = 0; p < N; p++) {
        int32_t pair[2] = {ids[p], ids[N + p]}, pos[2] = {p, p}, seq[2] = {1, 2};
        be_rows r = model_rows(&t.r.m, 0, 2, pair, pos, 1);
        t.r.b->op->upload(t.r.b, (int32_t *)r.seq, seq, sizeof seq);
        forward_trunk(&t.r.m, &t.r.k, &r, 0);
        t.r.b->op->download(t.r.b, both, t.r.m.sc.logits, 2 * V4_VOCAB * sizeof(float));
        rig_sync(&t.r);
        for (int i = 0; i < 2; i++)
            if (memcmp(both + i * V4_VOCAB, alone + (i * N + p) * V4_VOCAB, V4_VOCAB * sizeof(float)))
                fail_msg("position %d of sequence %d", p, i);
    }
    assert_true(kv_hash(&t.r.k, 1, N, &ok) == want[0] && kv_hash(&t.r.k, 2, N, &ok) == want[1]);
    free(alone);
    free(both);
    v4_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_1_to_16_int8_300), cmocka_unit_test(chunks_1_to_16_float_300),
        cmocka_unit_test(chunks_1_to_16_int8_700), cmocka_unit_test(chunks_2_to_14_float_700),
        cmocka_unit_test(wide_chunks_int8),        cmocka_unit_test(wide_chunks_float),
        cmocka_unit_test(threads_change_nothing),  cmocka_unit_test(sequences_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
