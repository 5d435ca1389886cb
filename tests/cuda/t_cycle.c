/* t_cycle.c: the cycle on the device: its decisions equal the host's for any confidences and costs, its choices are
 * judged right, it reads back one small record, the host's way makes the same decisions, and a device that fails
 * poisons the session. */
#include <math.h>

#include "util/unit.h"

#include "backend/cuda/cuda_open.h"
#include "cuda/util_ops.h"
#include "spec/cycle.h"
#include "util/v4_rig.h"

enum { PROMPT = 45, TOKENS = 15, BLOCK = 5, VOCAB = 320, RANK = 256 };

/* --- decisions --- */

static float some(uint64_t *seed, float lo, float hi)
{
    return lo + (hi - lo) * (float)(unit_rand(seed) >> 40) / 16777216.0f;
}

static void random_case(uint64_t *seed, be_cycle *c, sched *s)
{
    memset(c, 0, sizeof *c);
    sched_init(s, BLOCK);
    sched_costs t = {.known = true, .p = some(seed, 0, 0.004f)};
    t.t[1] = some(seed, 0.001f, 0.01f);
    for (int n = 2; n <= BLOCK + 1; n++)
        t.t[n] = t.t[n - 1] + some(seed, 0, 0.002f);
    sched_set_costs(s, &t);
    sched_set_mode(s, unit_rand(seed) % 2 ? SCHED_AUTO : SCHED_FIXED, some(seed, 0, 1));
    c->in.vocab = 300;
    c->in.eos = unit_rand(seed) % 3 ? -1 : 7;
    c->in.most = 1 + (int)(unit_rand(seed) % BLOCK);
    c->in.draft[0] = 3;
    for (int i = 1; i <= BLOCK; i++)
        c->in.draft[i] = unit_rand(seed) % 40 ? (int)(unit_rand(seed) % 20) : 300;
    for (int i = 0; i < BLOCK; i++)
        c->logit[i] = unit_rand(seed) % 50 ? some(seed, -3, 6) : unit_rand(seed) % 2 ? NAN : some(seed, -300, 300);
    for (int i = 0; i <= BLOCK; i++)
        c->choice[i] = unit_rand(seed) % 4 ? c->in.draft[i + 1] : 1;
    c->in.serial = (int32_t)(unit_rand(seed) >> 40);
}

/* What the host decides: k drafts, and how many of them hold. */
static int host_plan(const be_cycle *c, const sched *s, int *gated, int *invalid)
{
    proposal p = {.n = c->in.most};
    for (int i = 0; i < p.n; i++) {
        p.draft[i] = c->in.draft[i + 1];
        p.conf[i] = plan_sigmoid(c->logit[i]);
    }
    *gated = plan_gated(sched_gate(s, 0, p.n), p.conf[0]);
    return *gated ? 0 : plan_usable(p.draft, sched_choose(s, 0, &p), c->in.eos, c->in.vocab, invalid);
}

static void check_case(backend *b, be_cycle *dev, be_record *rec, uint64_t *seed, int *hist)
{
    be_cycle c, got;
    sched s;
    int gated, invalid = 0;
    random_case(seed, &c, &s);
    sched_rule(&s, 0, c.in.most, &c.in.rule);
    const int k = host_plan(&c, &s, &gated, &invalid);
    b->op->upload(b, dev, &c, sizeof c);
    b->op->stamp(b, dev, 0);
    b->op->gate(b, dev);
    b->op->plan(b, c.in.most, dev);
    b->op->judge(b, dev, rec);
    b->op->download(b, &got, dev, sizeof got);
    int a = 0;
    while (a < k && c.choice[a] == c.in.draft[a + 1])
        a++;
    if (got.k != k || got.wanted != k + 1 || got.go == gated || got.gated != gated || got.invalid != invalid)
        fail_msg("device: k %d go %d invalid %d; host: k %d gated %d invalid %d", got.k, got.go, got.invalid, k, gated,
                 invalid);
    for (int i = 1; i <= c.in.most; i++)
        assert_int_equal(got.in.token[0][i], i <= k ? c.in.draft[i] : c.in.draft[0]);
    assert_true(rec->serial == c.in.serial && rec->k == k && rec->accepted == a && rec->gated == gated);
    assert_memory_equal(rec->choice, c.choice, (size_t)(a + 1) * sizeof *c.choice);
    assert_true(rec->ns[5] <= rec->ns[6]);
    hist[k]++;
}

static void the_device_decides_like_the_host(void **state)
{
    (void)state;
    v4_rig t;
    uint64_t seed = 9;
    int hist[BLOCK + 1] = {0};
    setenv("DS4_TEST_BACKEND", "cuda", 1);
    v4_open(&t, (rig_options){.ctx = 64});
    for (int i = 0; i < 5000; i++)
        check_case(t.r.b, t.r.m.sc.cycle, t.r.m.sc.record, &seed, hist);
    rig_sync(&t.r);
    for (int k = 0; k <= BLOCK; k++)
        assert_true(hist[k] > 20);
    v4_close(&t);
}

/* --- the chain --- */

typedef struct chain_case {
    be_weight w1, w2; /* bound */
    be_cycle c;
    float logits[BLOCK * VOCAB];
} chain_case;

static void run_chain(backend *b, const chain_case *k, bool whole, bool go, be_cycle *out, float *logits)
{
    be_cycle *dev = b->op->alloc(b, sizeof *dev), start = k->c;
    float *x = b->op->alloc(b, sizeof k->logits);
    start.go = go;
    b->op->upload(b, dev, &start, sizeof start);
    b->op->upload(b, x, k->logits, sizeof k->logits);
    b->op->when(b, &dev->go);
    if (whole)
        assert_true(b->op->chain(b, BLOCK, &k->w1, &k->w2, dev, x));
    for (int i = 0; i < BLOCK && !whole; i++) {
        b->op->markov(b, &k->w1, &k->w2, &dev->in.draft[i], x + i * VOCAB);
        b->op->pick_in(b, 1, x + i * VOCAB, dev, &dev->in.draft_pos[i], &dev->in.draft[i + 1]);
    }
    b->op->when(b, NULL);
    b->op->download(b, out, dev, sizeof *out);
    b->op->download(b, logits, x, sizeof k->logits);
}

/* The fused chain gives the bits of Markov term and choice one after the other, and nothing behind a closed gate. */
static void the_chain_equals_its_parts(void **state)
{
    (void)state;
    static const uint32_t types[] = {Q_Q8_0, Q_F16, Q_Q4_K};
    chain_case *k = calloc(1, sizeof *k);
    float *one = calloc(2, sizeof k->logits), *two = one + BLOCK * VOCAB;
    rng g = {5};
    ds4_err e = {0};
    backend *b = open_gpu(BE_ACT_Q8, &(be_dims){.d = RANK, .vocab = VOCAB});
    for (int t = 0; t < 6; t++) {
        be_weight w1 = make_weight(&g, Q_Q8_0, RANK, VOCAB, 1), w2 = make_weight(&g, types[t % 3], RANK, VOCAB, 1);
        be_cycle a, c;
        k->w1 = bound(b, &w1);
        k->w2 = bound(b, &w2);
        k->c = (be_cycle){.in = {.seed = 77, .temp = t < 3 ? 0 : 0.8f}};
        k->c.in.draft[0] = 11;
        for (int i = 0; i < BLOCK; i++)
            k->c.in.draft_pos[i] = 90 + i;
        fill_normal(&g, k->logits, BLOCK * VOCAB, 1);
        run_chain(b, k, false, true, &a, one);
        run_chain(b, k, true, true, &c, two);
        assert_memory_equal(a.in.draft, c.in.draft, sizeof a.in.draft);
        assert_memory_equal(one, two, sizeof k->logits);
        assert_true(memcmp(one, k->logits, sizeof k->logits) != 0);
        run_chain(b, k, true, false, &c, two);
        assert_memory_equal(c.in.draft, k->c.in.draft, sizeof c.in.draft);
        assert_memory_equal(two, k->logits, sizeof k->logits);
        free_weight(&w1);
        free_weight(&w2);
    }
    rig_check(b->op->sync(b, &e), &e);
    b->op->close(b);
    free(one);
    free(k);
}

/* --- whole cycles --- */

typedef struct bench {
    v4_rig t;
    session s;
    sched sched;
    ds4_stats st;
    dspark ds;
    cycle c;
} bench;

static void open_bench(bench *b, bool host_confidence)
{
    ds4_err e = {0};
    memset(b, 0, sizeof *b);
    setenv("DS4_TEST_BACKEND", "cuda", 1);
    v4_open(&b->t, (rig_options){.act = BE_ACT_Q8, .ctx = 256});
    model *m = &b->t.r.m;
    rig_check(session_open(&b->s, m, &b->t.r.k, 0, &e), &e);
    sched_init(&b->sched, m->ds.block);
    rig_check(cycle_open(&b->c, m, &b->sched, &b->st, &e), &e);
    rig_check(dspark_open(&b->ds, m, host_confidence, &b->st, &e), &e);
    b->c.proposer = &b->ds.base;
    b->c.sample = (sample_params){.top_p = 1};
}

static void close_bench(bench *b)
{
    dspark_close(&b->ds);
    cycle_close(&b->c);
    session_close(&b->s);
    v4_close(&b->t);
}

/* Tokens after the prompt; stops at the first error. */
static int generate(bench *b, int32_t *out, int n, uint64_t *state, ds4_err *e)
{
    int32_t in[PROMPT], anchor;
    v4_tokens(in, PROMPT);
    int rc = session_reset(&b->s, e), done = 0, k;
    rc = rc ? rc : session_sync(&b->s, in, PROMPT, NULL, NULL, NULL, e);
    rc = rc ? rc : cycle_choose(&b->c, &b->s, b->s.logits_row, 1, b->s.pos, &anchor, e);
    while (!rc && done < n) {
        rc = cycle_step(&b->c, &b->s, anchor, n - done, out + done, &k, e);
        done += k;
        anchor = rc ? anchor : out[done - 1];
    }
    return rc ? rc : session_hash(&b->s, state, e);
}

/* Without the first confidence's gate, at a threshold that cuts, and at one that gates. */
static void the_hosts_way_decides_the_same(void **state)
{
    (void)state;
    static const float thresholds[] = {0, 0.5f, 0.56f};
    bench b;
    ds4_err e = {0};
    ds4_stats st[2];
    int32_t token[2][TOKENS];
    uint64_t h[2], gated = 0, cut = 0;
    open_bench(&b, false);
    for (int i = 0; i < 3; i++) {
        sched_set_mode(&b.sched, SCHED_FIXED, thresholds[i]);
        for (int host = 0; host < 2; host++) {
            dspark_close(&b.ds);
            rig_check(dspark_open(&b.ds, &b.t.r.m, host, &b.st, &e), &e);
            memset(&b.st, 0, sizeof b.st);
            rig_check(generate(&b, token[host], TOKENS, &h[host], &e), &e);
            st[host] = b.st;
        }
        assert_memory_equal(token[0], token[1], sizeof token[0]);
        assert_true(h[0] == h[1]);
        assert_true(st[0].device_cycles == st[0].cycles);
        assert_true(st[0].bytes_to_host <= 256 * st[0].cycles + sizeof(int32_t) && st[0].host > 0);
        assert_true(st[0].proposed == st[1].proposed && st[0].accepted == st[1].accepted);
        assert_true(st[0].cycles == st[1].cycles && st[0].gated == st[1].gated && st[0].no_draft == st[1].no_draft);
        assert_true(st[0].plain_steps == st[1].plain_steps && st[0].verify_rows == st[1].verify_rows);
        assert_memory_equal(st[0].draft_hist, st[1].draft_hist, sizeof st[0].draft_hist);
        assert_memory_equal(st[0].accepted_hist, st[1].accepted_hist, sizeof st[0].accepted_hist);
        gated += st[0].gated;
        cut += st[0].proposed < BLOCK * (st[0].cycles - st[0].no_draft);
    }
    print_message("%llu cycles gated\n", (unsigned long long)gated);
    assert_true(cut > 0);
    uint64_t after;
    dspark_close(&b.ds);
    rig_check(dspark_open(&b.ds, &b.t.r.m, false, &b.st, &e), &e);
    rig_check(cycle_measure(&b.c, &b.s, &e), &e); /* with the device's own time of a proposal */
    assert_true(b.sched.cost[0].known && b.sched.cost[0].p > 0 && b.sched.cost[0].t[1] > 0);
    rig_check(session_hash(&b.s, &after, &e), &e);
    assert_true(after == h[1] && b.s.state == SESSION_READY);
    close_bench(&b);
}

/* The k-th call of the runtime fails, in eager, captured and replayed cycles. */
static void a_failing_device_poisons_the_session(void **state)
{
    (void)state;
    static const int calls[] = {1, 2, 3, 40, 400};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        bench b;
        ds4_err e = {0}, again = {0};
        int32_t in[PROMPT], anchor = 5, out[SHAPE_MAX_BLOCK + 1];
        int n, rc = 0;
        open_bench(&b, false);
        v4_tokens(in, PROMPT);
        sched_set_mode(&b.sched, SCHED_FIXED, 0);
        rig_check(session_sync(&b.s, in, PROMPT, NULL, NULL, NULL, &e), &e);
        for (int k = 0; k < (calls[i] < 5 ? 3 : 0); k++)
            rig_check(cycle_step(&b.c, &b.s, anchor, 6, out, &n, &e), &e);
        cuda_fault_after(b.t.r.b, calls[i]);
        for (int k = 0; k < 4 && !rc; k++)
            rc = cycle_step(&b.c, &b.s, anchor, 6, out, &n, &e);
        if (rc != DS4_EBACKEND)
            fail_msg("call %d of the runtime failed and four cycles gave %d", calls[i], rc);
        assert_true(e.msg[0] && !strchr(e.msg, '\n') && b.st.errors == 1);
        assert_has(e.msg, "failed for a test");
        assert_int_equal(b.s.state, SESSION_POISONED);
        assert_true(cycle_step(&b.c, &b.s, anchor, 6, out, &n, &again) < 0 && n == 0);
        assert_int_equal(session_reset(&b.s, &again), DS4_EBACKEND);
        close_bench(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_decides_like_the_host),
        cmocka_unit_test(the_chain_equals_its_parts),
        cmocka_unit_test(the_hosts_way_decides_the_same),
        cmocka_unit_test(a_failing_device_poisons_the_session),
    };
    return cmocka_run_group_tests_name("cuda cycle", tests, NULL, NULL);
}
