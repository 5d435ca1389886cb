/* The session: transactions, prefix sync, rewind limits, and what a failing device leaves behind. */
#include <stdio.h>

#include "backend/cpu/cpu.h"
#include "util_session.h"

/* Everything that a straight decode gives, for comparison. */
typedef struct straight {
    int32_t ids[600];
    float logits[400][V4_VOCAB];
    uint64_t hash[401];
} straight;

static int setup(void **state)
{
    static straight st;
    static timeline l;
    timeline_open(&l, 512);
    memcpy(st.ids, l.ids, sizeof st.ids);
    for (int n = 1; n <= 400; n++) {
        timeline_sync(&l, n);
        timeline_logits(&l, st.logits[n - 1]);
        st.hash[n] = timeline_hash(&l);
    }
    timeline_close(&l);
    *state = &st;
    return 0;
}

static void expect_at(const straight *st, timeline *l, int n)
{
    float got[V4_VOCAB];
    timeline_logits(l, got);
    if (memcmp(got, st->logits[n - 1], sizeof got))
        fail_msg("logits after %d tokens", n);
    if (timeline_hash(l) != st->hash[n])
        fail_msg("state after %d tokens", n);
}

static void transactions(void **state)
{
    const straight *st = *state;
    timeline l;
    ds4_err e = {0};
    timeline_open(&l, 512);
    assert_int_equal(l.s.state, SESSION_EMPTY);
    rig_check(session_begin(&l.s, l.ids, 5, 0, &e), &e);
    assert_int_equal(l.s.state, SESSION_OPEN);
    REFUSES(session_begin(&l.s, l.ids, 1, 0, e), DS4_ESTATE, "already open");
    REFUSES(session_rewind(&l.s, 0, e), DS4_ESTATE, "rewind");
    REFUSES(session_sync(&l.s, l.ids, 3, NULL, NULL, NULL, e), DS4_ESTATE, "");
    rig_check(session_wait(&l.s, &e), &e);
    session_commit(&l.s, 0, -1);
    assert_int_equal(l.s.state, SESSION_EMPTY);
    assert_int_equal(l.s.pos, 0);
    rig_check(session_begin(&l.s, l.ids, 7, 0, &e), &e);
    rig_check(session_wait(&l.s, &e), &e);
    session_commit(&l.s, 3, 2);
    assert_int_equal(l.s.state, SESSION_READY);
    assert_int_equal(l.s.pos, 3);
    assert_int_equal(l.s.high, 7);
    expect_at(st, &l, 3);
    rig_check(session_begin(&l.s, l.ids + 3, 1, 0, &e), &e);
    rig_check(session_wait(&l.s, &e), &e);
    session_commit(&l.s, 0, -1);
    assert_int_equal(l.s.logits_row, -1); /* the forward overwrote the scratch row */
    timeline_close(&l);
}

static void impossible_forwards_are_refused(void **state)
{
    (void)state;
    timeline l;
    int32_t bad[2] = {1, -1};
    timeline_open(&l, 20);
    REFUSES(session_begin(&l.s, l.ids, 0, 0, e), DS4_EARG, "0 rows");
    REFUSES(session_begin(&l.s, l.ids, 65, 65, e), DS4_EARG, "65 rows");
    REFUSES(session_begin(&l.s, l.ids, 21, 21, e), DS4_EARG, "context is full");
    REFUSES(session_begin(&l.s, bad, 2, 0, e), DS4_EARG, "token id -1 at position 1");
    bad[1] = V4_VOCAB;
    REFUSES(session_begin(&l.s, bad, 2, 0, e), DS4_EARG, "token id 320");
    assert_int_equal(l.s.state, SESSION_EMPTY);
    timeline_sync(&l, 20);
    REFUSES(session_begin(&l.s, l.ids, 1, 0, e), DS4_EARG, "20 of 20 tokens used");
    REFUSES(session_sync(&l.s, l.ids, 21, NULL, NULL, NULL, e), DS4_EARG, "21 tokens");
    REFUSES(session_sync(&l.s, l.ids, 0, NULL, NULL, NULL, e), DS4_EARG, "empty");
    assert_int_equal(l.s.pos, 20);
    timeline_close(&l);
}

/* However the timeline came about, it is the straight one; and no more is fed than needed. */
static void sync_keeps_the_common_prefix(void **state)
{
    const straight *st = *state;
    timeline l;
    timeline_open(&l, 512);
    assert_int_equal(timeline_sync(&l, 100), 100);
    expect_at(st, &l, 100);
    assert_int_equal(timeline_sync(&l, 100), 0);
    assert_int_equal(timeline_sync(&l, 101), 1);
    assert_int_equal(timeline_sync(&l, 230), 129);
    expect_at(st, &l, 230);
    assert_int_equal(timeline_sync(&l, 229), 1); /* fed again for its logits */
    expect_at(st, &l, 229);
    assert_int_equal(timeline_sync(&l, 180), 1); /* within the room to rewind */
    expect_at(st, &l, 180);
    assert_int_equal(timeline_sync(&l, 300), 120);
    expect_at(st, &l, 300);
    assert_int_equal(timeline_sync(&l, 200), 200); /* too far back: from the start */
    expect_at(st, &l, 200);
    timeline_close(&l);
}

static void sync_replaces_a_changed_tail(void **state)
{
    const straight *st = *state;
    timeline l;
    ds4_err e = {0};
    int fed;
    timeline_open(&l, 512);
    for (int keep = 150; keep >= 120; keep -= 3) { /* every kind of border near 128 */
        int32_t other[160];
        memcpy(other, l.ids, sizeof other);
        for (int i = keep; i < 160; i++)
            other[i] = (other[i] + 1) % V4_VOCAB;
        rig_check(session_sync(&l.s, other, 160, NULL, NULL, &fed, &e), &e);
        assert_int_equal(timeline_sync(&l, 160), 160 - keep);
        expect_at(st, &l, 160);
    }
    timeline_close(&l);
}

static void rewind_limits(void **state)
{
    const straight *st = *state;
    timeline l;
    ds4_err e = {0};
    timeline_open(&l, 512);
    timeline_sync(&l, 300);
    const int room = kv_rewind_room(&l.t.r.k);
    assert_true(session_can_rewind(&l.s, 300 - room) && !session_can_rewind(&l.s, 300 - room - 1) &&
                session_can_rewind(&l.s, 0));
    REFUSES(session_rewind(&l.s, 300 - room - 1, e), DS4_ESTATE, "overwritten");
    REFUSES(session_rewind(&l.s, 301, e), DS4_ESTATE, "rewind");
    REFUSES(session_rewind(&l.s, -1, e), DS4_ESTATE, "rewind");
    rig_check(session_rewind(&l.s, 300 - room, &e), &e);
    assert_int_equal(l.s.logits_row, -1);
    assert_true(timeline_hash(&l) == st->hash[300 - room]);
    assert_false(session_can_rewind(&l.s, 300 - room - 1)); /* the rows above are still written */
    timeline_sync(&l, 310);
    expect_at(st, &l, 310);
    rig_check(session_rewind(&l.s, 310, &e), &e);
    assert_true(l.s.logits_row >= 0);
    rig_check(session_rewind(&l.s, 0, &e), &e);
    assert_int_equal(l.s.state, SESSION_EMPTY);
    assert_int_equal(l.s.high, 0);
    timeline_sync(&l, 12);
    expect_at(st, &l, 12);
    timeline_close(&l);
}

/* Rejected rows were written too: they limit the way back as committed ones do. */
static void rejected_rows_limit_the_rewind(void **state)
{
    const straight *st = *state;
    timeline l;
    ds4_err e = {0};
    timeline_open(&l, 512);
    const int room = kv_rewind_room(&l.t.r.k);
    timeline_sync(&l, 200);
    rig_check(session_begin(&l.s, l.ids + 200, room, room, &e), &e);
    rig_check(session_wait(&l.s, &e), &e);
    session_commit(&l.s, 1, -1);
    rig_check(session_begin(&l.s, l.ids + 201, 1, 0, &e), &e);
    rig_check(session_wait(&l.s, &e), &e);
    session_commit(&l.s, 1, 0);
    expect_at(st, &l, 202);
    assert_int_equal(l.s.high, 200 + room);
    REFUSES(session_rewind(&l.s, 199, e), DS4_ESTATE, "overwritten");
    rig_check(session_rewind(&l.s, 200, &e), &e);
    assert_true(timeline_hash(&l) == st->hash[200]);
    timeline_sync(&l, 210);
    expect_at(st, &l, 210);
    timeline_close(&l);
}

typedef struct progress {
    int calls, last, total, stop_at;
} progress;

static bool count(void *ctx, int done, int total)
{
    progress *p = ctx;
    p->calls++;
    assert_true(done > p->last && done <= total);
    p->last = done;
    p->total = total;
    return done < p->stop_at;
}

static void a_cancelled_feed_keeps_what_was_fed(void **state)
{
    const straight *st = *state;
    timeline l;
    progress p = {.stop_at = 100};
    timeline_open(&l, 512);
    REFUSES(session_sync(&l.s, l.ids, 300, count, &p, NULL, e), DS4_ECANCEL, "128 of 300");
    assert_int_equal(l.s.pos, 128);
    assert_int_equal(l.s.state, SESSION_READY);
    assert_int_equal(timeline_sync(&l, 300), 172);
    expect_at(st, &l, 300);
    timeline_close(&l);
}

/* Chunk borders are absolute: a prompt fed in two parts is cut at the same places. */
static void progress_reports_absolute_chunks(void **state)
{
    (void)state;
    timeline l;
    ds4_err e = {0};
    progress p = {.stop_at = 1000};
    timeline_open(&l, 512);
    timeline_sync(&l, 10);
    rig_check(session_sync(&l.s, l.ids, 200, count, &p, NULL, &e), &e);
    assert_int_equal(p.calls, 4); /* to 64, 128, 192, 200 */
    assert_int_equal(p.last, 190);
    assert_int_equal(p.total, 190);
    timeline_close(&l);
}

/* The k-th synchronisation fails, for every k: READY and right, or POISONED and refusing everything; never a wrong
 * answer. */
static void a_failing_device_poisons(void **state)
{
    (void)state;
    for (int k = 1; k <= 8; k++) {
        timeline l;
        ds4_err e = {0};
        timeline_open(&l, 512);
        timeline_sync(&l, 20);
        backend_fault_after(l.t.r.b, k);
        int rc = session_sync(&l.s, l.ids, 300, NULL, NULL, NULL, &e);
        assert_true(session_assert(&l.s));
        if (rc == 0) {
            assert_true(k > 5); /* five chunks */
            timeline_close(&l);
            continue;
        }
        assert_int_equal(rc, DS4_EBACKEND);
        assert_int_equal(l.s.state, SESSION_POISONED);
        assert_int_equal(l.s.open, 0);
        REFUSES(session_begin(&l.s, l.ids, 1, 0, e), DS4_ESTATE, "poisoned");
        REFUSES(session_sync(&l.s, l.ids, 1, NULL, NULL, NULL, e), DS4_ESTATE, "poisoned");
        REFUSES(session_rewind(&l.s, 0, e), DS4_ESTATE, "poisoned");
        REFUSES(session_save(&l.s, "/tmp/never", e), DS4_ESTATE, "poisoned");
        REFUSES(session_load(&l.s, "/tmp/never", e), DS4_ESTATE, "poisoned");
        REFUSES(session_reset(&l.s, e), DS4_EBACKEND, ""); /* the backend stays dead */
        assert_int_equal(l.s.state, SESSION_POISONED);
        timeline_close(&l);
    }
}

static void reset_forgets_everything(void **state)
{
    const straight *st = *state;
    timeline l;
    ds4_err e = {0};
    timeline_open(&l, 512);
    timeline_sync(&l, 333);
    rig_check(session_reset(&l.s, &e), &e);
    assert_int_equal(l.s.state, SESSION_EMPTY);
    for (int n = 1; n <= 130; n += 43) {
        timeline_sync(&l, n);
        expect_at(st, &l, n);
    }
    timeline_close(&l);
}

/* Random begins and commits through the session's own interface. */
static void random_transactions(void **state)
{
    const straight *st = *state;
    timeline l;
    ds4_err e = {0};
    uint32_t seed = 7;
    timeline_open(&l, 512);
    while (l.s.pos < 380) {
        seed = seed * 1664525u + 1013904223u;
        int n = 1 + (int)(seed >> 8) % BE_NARROW, a = (int)(seed >> 20) % (n + 1);
        int32_t ids[BE_NARROW];
        for (int i = 0; i < n; i++)
            ids[i] = i < a ? st->ids[l.s.pos + i] : (st->ids[l.s.pos + i] + 1) % V4_VOCAB;
        rig_check(session_begin(&l.s, ids, n, 0, &e), &e);
        rig_check(session_wait(&l.s, &e), &e);
        session_commit(&l.s, a, a - 1);
        if (a)
            expect_at(st, &l, l.s.pos);
    }
    timeline_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transactions),
        cmocka_unit_test(impossible_forwards_are_refused),
        cmocka_unit_test(sync_keeps_the_common_prefix),
        cmocka_unit_test(sync_replaces_a_changed_tail),
        cmocka_unit_test(rewind_limits),
        cmocka_unit_test(a_cancelled_feed_keeps_what_was_fed),
        cmocka_unit_test(progress_reports_absolute_chunks),
        cmocka_unit_test(a_failing_device_poisons),
        cmocka_unit_test(rejected_rows_limit_the_rewind),
        cmocka_unit_test(reset_forgets_everything),
        cmocka_unit_test(random_transactions),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
