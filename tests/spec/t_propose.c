/* t_propose: the proposer that decoding uses makes the drafts and confidences of the step-by-step reference in
 * util/rig.h, which is the one that golden data checks. A fault here changes no text, only how much is accepted. */
#include "util/unit.h"

#include <math.h>

#include "sample/sample.h"
#include "session/session.h"
#include "spec/confidence.h"
#include "spec/proposer.h"
#include "util/v4_rig.h"

enum { CTX = 700 };
static const sample_params greedy = {.top_p = 1};

/* A session with the real proposer, and a second model for the reference. */
typedef struct bench {
    v4_rig t, ref;
    session s;
    ds4_stats st;
    dspark ds;
    int32_t ids[CTX];
    int ref_at; /* tokens that the reference has seen */
} bench;

static void open_bench(bench *b, bool host)
{
    ds4_err e = {0};
    rig_options o = {.act = BE_ACT_FLOAT, .sim = KV_SIM_OFF, .ctx = CTX};
    *b = (bench){0};
    v4_tokens(b->ids, CTX);
    v4_open(&b->t, o);
    v4_open(&b->ref, o);
    rig_check(session_open(&b->s, &b->t.r.m, &b->t.r.k, 0, &e), &e);
    rig_check(dspark_open(&b->ds, &b->t.r.m, host, &b->st, &e), &e);
}

static void close_bench(bench *b)
{
    dspark_close(&b->ds);
    session_close(&b->s);
    v4_close(&b->ref);
    v4_close(&b->t);
}

/* The reference after len tokens; it absorbs every row at once. logits: [block][vocab] with the Markov term. */
static rig_drafts reference(bench *b, int len, float *logits)
{
    if (len < b->ref_at)
        b->ref_at = 0; /* again from the start */
    rig_run(&b->ref.r, 0, b->ids, b->ref_at, len, BE_NARROW, NULL);
    rig_absorb(&b->ref.r, 0, b->ref_at, len);
    b->ref_at = len;
    return rig_draft(&b->ref.r, 0, b->ids[len], len, NULL, logits);
}

static proposal propose(bench *b, int len, int max, float gate, const sample_params *sp)
{
    ds4_err e = {0};
    proposal p;
    rig_check(session_sync(&b->s, b->ids, len, NULL, NULL, NULL, &e), &e);
    rig_check(b->ds.base.propose(&b->ds.base, &b->s, b->ids[len], max, gate, sp, &p, &e), &e);
    return p;
}

static void same(const proposal *p, const rig_drafts *d, int n, int len)
{
    assert_int_equal(p->n, n);
    for (int i = 0; i < n; i++) {
        float want = plan_sigmoid(d->conf[i]);
        if (p->draft[i] != d->id[i + 1])
            fail_msg("after %d tokens: draft %d is %d, the reference has %d", len, i, p->draft[i], d->id[i + 1]);
        if (fabsf(p->conf[i] - want) > 1e-6f)
            fail_msg("after %d tokens: confidence %d is %g, the reference has %g", len, i, (double)p->conf[i],
                     (double)want);
    }
}

/* Every way in which the drafter's rings get behind and catch up: from nothing, by one row, by a few, by more than the
 * window, after a rewind, and after a new start. */
static void run_lengths(bool host)
{
    static const int lens[] = {1, 2, 3, 8, 127, 128, 129, 130, 135, 300, 301, 296, 297, 640, 40, 41};
    bench b;
    open_bench(&b, host);
    const int block = b.t.r.m.ds.block;
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        rig_drafts d = reference(&b, lens[i], NULL);
        for (int max = block; max >= 1; max -= block - 1) { /* the whole block, and one draft */
            proposal p = propose(&b, lens[i], max, 0, &greedy);
            same(&p, &d, max, lens[i]);
        }
    }
    close_bench(&b);
}

static void proposals_are_those_of_the_reference(void **u)
{
    (void)u;
    run_lengths(false);
}

static void host_confidences_are_those_of_the_reference(void **u)
{
    (void)u;
    run_lengths(true);
}

/* Just below the first confidence the gate lets everything pass, just above it nothing. */
static void the_gate_is_the_first_confidence(void **u)
{
    (void)u;
    bench b;
    open_bench(&b, false);
    for (int len = 100; len < 104; len++) {
        rig_drafts d = reference(&b, len, NULL);
        float first = plan_sigmoid(d.conf[0]);
        proposal p = propose(&b, len, 5, first - 1e-4f, &greedy);
        assert_false(p.gated);
        same(&p, &d, b.t.r.m.ds.block, len);
        p = propose(&b, len, 5, first + 1e-4f, &greedy);
        assert_true(p.gated);
        assert_int_equal(p.n, 0);
    }
    close_bench(&b);
}

/* Above temperature 0 a draft uses the noise that the trunk's choice at its position will use: it keeps acceptance. */
static void drafts_use_the_noise_of_their_position(void **u)
{
    (void)u;
    bench b;
    int changed = 0;
    open_bench(&b, false);
    const size_t V = rig_vocab(&b.t.r);
    float *logits = malloc((size_t)b.t.r.m.ds.block * V * sizeof *logits);
    sample_cand *room = malloc(V * sizeof *room);
    for (int len = 50; len < 70; len++) {
        const sample_params sp = {.temp = 1, .top_p = 1, .seed = 3};
        rig_drafts d = reference(&b, len, logits);
        proposal p = propose(&b, len, 5, 0, &sp);
        assert_int_equal(p.draft[0], sample_choose(&sp, logits, (int)V, (uint32_t)len + 1, room));
        changed += p.draft[0] != d.id[1];
    }
    assert_true(changed > 0);
    free(room);
    free(logits);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proposals_are_those_of_the_reference),
        cmocka_unit_test(host_confidences_are_those_of_the_reference),
        cmocka_unit_test(the_gate_is_the_first_confidence),
        cmocka_unit_test(drafts_use_the_noise_of_their_position),
    };
    return cmocka_run_group_tests_name("spec/propose", tests, NULL, NULL);
}
