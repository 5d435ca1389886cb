/* t_graph.c: a replayed step does what its operations would have done: same logits and state as issuing everything,
 * across the borders of context buckets and while other steps come and go. A step that cannot be captured is an error
 * of one line. */
#include "util/unit.h"

#include "session/session.h"
#include "util/v4_rig.h"

enum { PROMPT = 50, STEPS = 60, CTX = 256 };

typedef struct track {
    float logits[STEPS * V4_VOCAB];
    uint64_t state;
    int begun, issued; /* steps */
} track;

static backend_ops real, tapped;
static int begun, issued;

static bool counted_begin(backend *b, uint64_t key)
{
    bool issue = real.step_begin(b, key);
    begun++;
    issued += issue;
    return issue;
}

static bool always(backend *b, uint64_t key)
{
    (void)b, (void)key;
    begun++;
    issued++;
    return true;
}

static void nothing(backend *b) { (void)b; }

static void tap_steps(backend *b, bool replayed)
{
    real = tapped = *b->op;
    tapped.step_begin = replayed ? counted_begin : always;
    tapped.step_end = replayed ? real.step_end : nothing;
    b->op = &tapped;
    begun = issued = 0;
}

/* Steps of one to three rows with absorption and proposals between them; wide forwards make scratch grow on the way. */
static void run(bool replayed, track *out)
{
    ds4_err e = {0};
    int32_t ids[CTX];
    v4_rig t;
    session s;
    v4_tokens(ids, CTX);
    setenv("DS4_TEST_BACKEND", "cuda", 1);
    v4_open(&t, (rig_options){.act = BE_ACT_Q8, .ctx = CTX});
    tap_steps(t.r.b, replayed);
    rig_check(session_open(&s, &t.r.m, &t.r.k, 0, &e), &e);
    rig_check(session_sync(&s, ids, PROMPT, NULL, NULL, NULL, &e), &e);
    for (int i = 0; i < STEPS; i++) {
        int n = i % 4 == 3 ? 3 : 1;
        rig_check(session_begin(&s, ids + s.pos, n, n - 1, &e), &e);
        t.r.b->op->download(t.r.b, out->logits + i * V4_VOCAB, t.r.m.sc.logits, V4_VOCAB * sizeof(float));
        rig_check(session_wait(&s, &e), &e);
        session_commit(&s, n, 0);
        if (i % 5 == 4)
            rig_absorb(&t.r, 0, s.pos - 2, s.pos);
    }
    assert_true(s.pos > 2 * (4 * V4_TOPK + 2));
    rig_check(session_hash(&s, &out->state, &e), &e);
    out->begun = begun;
    out->issued = issued;
    session_close(&s);
    v4_close(&t);
}

static void replay_equals_issuing(void **state)
{
    (void)state;
    track *issued_all = calloc(2, sizeof *issued_all), *replayed = issued_all + 1;
    run(false, issued_all);
    run(true, replayed);
    print_message("%d of %d steps were replayed\n", replayed->begun - replayed->issued, replayed->begun);
    assert_memory_equal(issued_all->logits, replayed->logits, sizeof replayed->logits);
    assert_true(issued_all->state == replayed->state);
    assert_int_equal(issued_all->begun, replayed->begun);
    assert_int_equal(issued_all->issued, issued_all->begun);
    assert_true(replayed->issued < replayed->begun / 2);
    free(issued_all);
}

/* The bound of a bucket covers its positions, does not change whether rows are selected, and stays in the context. */
static void buckets_cover_their_positions(void **state)
{
    (void)state;
    v4_rig t;
    setenv("DS4_TEST_BACKEND", "cuda", 1);
    v4_open(&t, (rig_options){.ctx = CTX});
    const int topk = t.r.m.s.dims.idx_topk;
    int tops = 0, last = -1;
    for (int pos = 0; pos < CTX; pos++) {
        be_rows r = {.n = 1, .max_pos = pos}, bound = forward_bound(&t.r.m, &t.r.k, &r);
        assert_true(bound.max_pos >= pos && bound.max_pos < CTX && bound.max_pos >= last);
        assert_int_equal((bound.max_pos + 1) / 4 > topk, (pos + 1) / 4 > topk);
        tops += bound.max_pos != last;
        last = bound.max_pos;
        r.n = BE_NARROW + 1;
        assert_int_equal(forward_bound(&t.r.m, &t.r.k, &r).max_pos, pos);
    }
    assert_true(tops <= 4);
    v4_close(&t);
}

/* A table of steps is bounded: many keys, each used often enough to be captured. */
static void many_steps_do_not_pile_up(void **state)
{
    (void)state;
    v4_rig t;
    float got[8], zero[8] = {0};
    setenv("DS4_TEST_BACKEND", "cuda", 1);
    v4_open(&t, (rig_options){.ctx = CTX});
    backend *b = t.r.b;
    float *x = b->op->alloc(b, 8 * sizeof *x), *y = b->op->alloc(b, 8 * sizeof *y);
    for (uint64_t key = 0; key < 300; key++)
        for (int turn = 0; turn < 3; turn++) {
            float now[8] = {(float)key, (float)turn};
            b->op->upload(b, x, now, sizeof now);
            b->op->upload(b, y, zero, sizeof zero);
            bool issue = b->op->step_begin(b, key);
            assert_int_equal(issue, turn < 2);
            if (issue)
                b->op->copy(b, y, x, sizeof now);
            b->op->step_end(b);
            b->op->download(b, got, y, sizeof got);
            assert_memory_equal(got, now, sizeof now);
        }
    rig_sync(&t.r);
    v4_close(&t);
}

static void uploads_inside_a_step_are_refused(void **state)
{
    (void)state;
    v4_rig t;
    ds4_err e = {0};
    float v = 1;
    setenv("DS4_TEST_BACKEND", "cuda", 1);
    v4_open(&t, (rig_options){.ctx = CTX});
    backend *b = t.r.b;
    float *x = b->op->alloc(b, sizeof *x);
    for (int turn = 0; turn < 2; turn++) {
        assert_true(b->op->step_begin(b, 7));
        b->op->upload(b, x, &v, sizeof v);
        b->op->step_end(b);
        assert_int_equal(b->op->sync(b, &e), turn ? DS4_EBACKEND : 0);
    }
    assert_has(e.msg, "an upload inside a step");
    assert_true(b->op->step_begin(b, 7)); /* dead: nothing happens any more */
    b->op->step_end(b);
    assert_int_equal(b->op->sync(b, &e), DS4_EBACKEND);
    v4_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replay_equals_issuing),
        cmocka_unit_test(buckets_cover_their_positions),
        cmocka_unit_test(many_steps_do_not_pile_up),
        cmocka_unit_test(uploads_inside_a_step_are_refused),
    };
    return cmocka_run_group_tests_name("cuda graphs", tests, NULL, NULL);
}
