/* t_spec_gpu.c: drafting changes nothing on the device: tokens and state with the real drafter and with an oracle equal
 * plain decoding. Short, so that it also runs on the emulation; the whole set is tests/spec/t_spec.c with
 * DS4_TEST_BACKEND=cuda. */
#include "util/unit.h"

#include "spec/cycle.h"
#include "util/v4_rig.h"

enum { PROMPT = 45, TOKENS = 24 };

typedef struct bench {
    v4_rig t;
    session s;
    sched sched;
    ds4_stats st;
    dspark ds;
    cycle c;
} bench;

typedef struct trace {
    int32_t token[TOKENS + SHAPE_MAX_BLOCK];
    int n;
    uint64_t state;
} trace;

static void open_bench(bench *b)
{
    ds4_err e = {0};
    memset(b, 0, sizeof *b);
    setenv("DS4_TEST_BACKEND", "cuda", 1);
    v4_open(&b->t, (rig_options){.act = BE_ACT_Q8, .ctx = 256});
    model *m = &b->t.r.m;
    rig_check(session_open(&b->s, m, &b->t.r.k, 0, &e), &e);
    sched_init(&b->sched, m->ds.block);
    rig_check(cycle_open(&b->c, m, &b->sched, &b->st, &e), &e);
    rig_check(dspark_open(&b->ds, m, false, &b->st, &e), &e);
}

static void close_bench(bench *b)
{
    dspark_close(&b->ds);
    cycle_close(&b->c);
    session_close(&b->s);
    v4_close(&b->t);
}

static trace generate(bench *b, proposer *p, sample_params sp)
{
    ds4_err e = {0};
    int32_t in[PROMPT], anchor;
    trace out = {.n = 1};
    v4_tokens(in, PROMPT);
    rig_check(session_reset(&b->s, &e), &e);
    rig_check(session_sync(&b->s, in, PROMPT, NULL, NULL, NULL, &e), &e);
    b->c.proposer = p;
    b->c.sample = sp;
    b->c.eos = -1;
    rig_check(cycle_choose(&b->c, &b->s, b->s.logits_row, 1, b->s.pos, &anchor, &e), &e);
    out.token[0] = anchor;
    while (out.n < TOKENS) {
        int k;
        rig_check(cycle_step(&b->c, &b->s, anchor, TOKENS - out.n, out.token + out.n, &k, &e), &e);
        out.n += k;
        anchor = out.token[out.n - 1];
    }
    rig_check(session_hash(&b->s, &out.state, &e), &e);
    return out;
}

static void same(const trace *a, const trace *b, const char *what)
{
    if (a->n != b->n || memcmp(a->token, b->token, (size_t)a->n * sizeof *a->token))
        fail_msg("%s: the tokens differ from plain decoding", what);
    if (a->state != b->state)
        fail_msg("%s: the state differs from plain decoding", what);
}

static void drafting_equals_plain_decoding(void **state)
{
    (void)state;
    static const sample_params params[] = {{.top_p = 1}, {.temp = 1, .top_p = 1, .seed = 7}};
    bench b;
    ds4_err e = {0};
    open_bench(&b);
    for (int i = 0; i < 2; i++) {
        trace plain = generate(&b, NULL, params[i]), spec;
        double_proposer d;
        sched_set_mode(&b.sched, SCHED_FIXED, 0);
        spec = generate(&b, &b.ds.base, params[i]);
        same(&plain, &spec, "the drafter");
        rig_check(double_open(&d, "oracle", plain.token, plain.n, PROMPT, &b.st, &e), &e);
        spec = generate(&b, &d.base, params[i]);
        same(&plain, &spec, "an oracle");
    }
    assert_true(b.st.proposed > 0 && b.st.accepted > 0 && b.st.accepted < b.st.proposed);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(drafting_equals_plain_decoding)};
    return cmocka_run_group_tests_name("cuda speculation", tests, NULL, NULL);
}
