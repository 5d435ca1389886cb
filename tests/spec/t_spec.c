/* t_spec: drafting changes nothing but speed. Tokens, committed state and final logits equal plain decoding bit for
 * bit, whatever is drafted. */
#include "util/unit.h"

#include "base/hash.h"
#include "spec/cycle.h"
#include "util/rig.h"
#include "util/tiny_v4.h"

/* A model with a session and a cycle. */
typedef struct bench {
    rig r;
    uint8_t *ft, *fd;
    session s;
    sched sched;
    ds4_stats st;
    dspark ds;
    cycle c;
} bench;

static void open_bench(bench *b, enum be_act act, int ctx)
{
    ds4_err e = {0};
    gguf *t, *d;
    size_t nt, nd;
    gb gt = v4_trunk(), gd = v4_drafter(false);
    b->ft = gb_bytes(&gt, &nt);
    b->fd = gb_bytes(&gd, &nd);
    gb_free(&gt);
    gb_free(&gd);
    rig_check(gguf_open_mem(&t, b->ft, nt, "tiny", &e), &e);
    rig_check(gguf_open_mem(&d, b->fd, nd, "tiny drafter", &e), &e);
    rig_open(&b->r, t, d, (rig_options){.act = act, .ctx = ctx});
    memset(&b->st, 0, sizeof b->st);
    rig_check(session_open(&b->s, &b->r.m, &b->r.k, 0, &e), &e);
    sched_init(&b->sched, b->r.m.ds.block);
    rig_check(cycle_open(&b->c, &b->r.m, &b->sched, &b->st, &e), &e);
    rig_check(dspark_open(&b->ds, &b->r.m, false, &b->st, &e), &e);
}

static void close_bench(bench *b)
{
    dspark_close(&b->ds);
    cycle_close(&b->c);
    session_close(&b->s);
    rig_close(&b->r);
    free(b->ft);
    free(b->fd);
}

typedef struct trace {
    int32_t token[1024];
    int n, pos;
    uint64_t state, logits;
} trace;

static void prompt(int32_t *p, int n)
{
    uint64_t seed = 42;
    for (int i = 0; i < n; i++)
        p[i] = (int32_t)(unit_rand(&seed) % (V4_VOCAB - 12));
}

/* Generates n tokens after a prompt of plen with the given proposer (NULL: plain), stopping before eos. */
static void generate(bench *b, int plen, int n, proposer *p, sample_params sp, int eos, trace *out)
{
    ds4_err e = {0};
    int32_t in[512], anchor;
    prompt(in, plen);
    rig_check(session_reset(&b->s, &e), &e);
    rig_check(session_sync(&b->s, in, plen, NULL, NULL, NULL, &e), &e);
    b->c.proposer = p;
    b->c.sample = sp;
    b->c.eos = eos;
    rig_check(cycle_choose(&b->c, &b->s, b->s.logits_row, 1, b->s.pos, &anchor, &e), &e);
    out->n = 0;
    out->token[out->n++] = anchor;
    while (out->n < n && anchor != eos && b->s.pos < b->s.ctx) {
        int32_t t[SHAPE_MAX_BLOCK + 1];
        int k;
        rig_check(cycle_step(&b->c, &b->s, anchor, n - out->n, t, &k, &e), &e);
        assert_true(k >= 1 && k <= n - out->n);
        memcpy(out->token + out->n, t, (size_t)k * sizeof *t);
        out->n += k;
        anchor = t[k - 1];
    }
    float *row = malloc(V4_VOCAB * sizeof *row);
    assert_true(b->s.logits_row >= 0);
    b->r.b->op->download(b->r.b, row, b->r.m.sc.logits + (size_t)b->s.logits_row * V4_VOCAB, V4_VOCAB * sizeof *row);
    out->logits = hash64(row, V4_VOCAB * sizeof *row, 0);
    free(row);
    out->pos = b->s.pos;
    rig_check(session_hash(&b->s, &out->state, &e), &e);
}

static void same(const trace *a, const trace *b, const char *what)
{
    if (a->n != b->n || memcmp(a->token, b->token, (size_t)a->n * sizeof *a->token))
        fail_msg("%s: the tokens differ from plain decoding (%d against %d)", what, b->n, a->n);
    if (a->pos != b->pos || a->state != b->state)
        fail_msg("%s: the committed state differs from plain decoding at position %d / %d", what, b->pos, a->pos);
    if (a->logits != b->logits)
        fail_msg("%s: the final logits differ from plain decoding", what);
}

static const sample_params greedy = {.top_p = 1};
static const sample_params warm = {.temp = 1, .top_p = 1, .seed = 7};
static const sample_params filtered = {.temp = 0.8f, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f, .seed = 11};

static void run_doubles(enum be_act act, sample_params sp)
{
    static const char *const kinds[] = {"oracle", "wrong", "random", "short"};
    bench b;
    trace *plain = calloc(2, sizeof *plain), *spec = plain + 1;
    open_bench(&b, act, 1200);
    for (int plen = 3; plen <= 131; plen += 128) {
        generate(&b, plen, 170, NULL, sp, -1, plain);
        for (int k = 0; k < 4; k++) {
            double_proposer d;
            ds4_err e = {0};
            rig_check(double_open(&d, kinds[k], plain->token, plain->n, plen, &b.st, &e), &e);
            sched_set_mode(&b.sched, SCHED_FIXED, 0);
            generate(&b, plen, 170, &d.base, sp, -1, spec);
            same(plain, spec, kinds[k]);
        }
    }
    assert_true(b.st.accepted <= b.st.proposed && b.st.full > 30 && b.st.partial > 30 && b.st.miss_first > 30);
    close_bench(&b);
    free(plain);
}

static void doubles_greedy_q8(void **u)
{
    (void)u;
    run_doubles(BE_ACT_Q8, greedy);
}
static void doubles_warm_q8(void **u)
{
    (void)u;
    run_doubles(BE_ACT_Q8, warm);
}
static void doubles_filtered_float(void **u)
{
    (void)u;
    run_doubles(BE_ACT_FLOAT, filtered);
}

/* Every counter against the others, and against the tokens that came out of the cycles. */
static void counters_add_up(const ds4_stats *st, uint64_t tokens)
{
    uint64_t cycles = 0, drafts = 0, cycles_too = 0, accepted = 0;
    for (int i = 0; i < STATS_HIST; i++) {
        cycles += st->draft_hist[i];
        drafts += (uint64_t)i * st->draft_hist[i];
        cycles_too += st->accepted_hist[i];
        accepted += (uint64_t)i * st->accepted_hist[i];
    }
    assert_int_equal(cycles, st->cycles);
    assert_int_equal(cycles_too, st->cycles);
    assert_int_equal(st->first_tokens, st->cycles);
    assert_int_equal(drafts, st->proposed);
    assert_int_equal(accepted, st->accepted);
    assert_int_equal(st->cycles + st->accepted, tokens);
    assert_int_equal(st->full + st->partial + st->plain_steps, st->cycles);
    assert_int_equal(st->verify_rows, st->proposed + st->full + st->partial);
    assert_int_equal(st->no_draft + st->no_room + st->scheduler_skips + st->tail_skips, st->plain_steps);
    assert_true(st->miss_first <= st->partial && st->gated <= st->no_draft);
}

/* The real drafter, every threshold: gates, cuts and full blocks. */
static void dspark_equals_plain(void **u)
{
    (void)u;
    bench b;
    trace *plain = calloc(2, sizeof *plain), *spec = plain + 1;
    const sample_params *sps[] = {&greedy, &warm, &filtered};
    open_bench(&b, BE_ACT_Q8, 1200);
    for (int i = 0; i < 3; i++) {
        generate(&b, 140, 90, NULL, *sps[i], -1, plain);
        for (float thr = 0; thr <= 1.0f; thr += 0.25f) {
            sched_set_mode(&b.sched, SCHED_FIXED, thr);
            generate(&b, 140, 90, &b.ds.base, *sps[i], -1, spec);
            same(plain, spec, "dspark");
        }
    }
    assert_true(b.st.proposed > 0 && b.st.accepted <= b.st.proposed);
    counters_add_up(&b.st, 15 * 89); /* the first token of a generation comes from the prompt's logits */
    close_bench(&b);
    free(plain);
}

/* The diagnostic confidence on the host makes the same decisions: identical counters. */
static void host_confidence_same_decisions(void **u)
{
    (void)u;
    bench b;
    ds4_err e = {0};
    trace *a = calloc(2, sizeof *a), *h = a + 1;
    open_bench(&b, BE_ACT_Q8, 1200);
    sched_set_mode(&b.sched, SCHED_FIXED, 0.5f);
    generate(&b, 40, 150, &b.ds.base, greedy, -1, a);
    ds4_stats device = b.st;
    memset(&b.st, 0, sizeof b.st);
    dspark_close(&b.ds);
    rig_check(dspark_open(&b.ds, &b.r.m, true, &b.st, &e), &e);
    generate(&b, 40, 150, &b.ds.base, greedy, -1, h);
    same(a, h, "host confidence");
    assert_true(device.proposed > 0);
    assert_int_equal(device.proposed, b.st.proposed);
    assert_int_equal(device.accepted, b.st.accepted);
    assert_int_equal(device.gated, b.st.gated);
    assert_memory_equal(device.draft_hist, b.st.draft_hist, sizeof device.draft_hist);
    close_bench(&b);
    free(a);
}

/* EOS at every depth of a draft: the same tokens, and EOS never enters the state. */
static void eos_at_each_depth(void **u)
{
    (void)u;
    bench b;
    ds4_err e = {0};
    trace *plain = calloc(2, sizeof *plain), *spec = plain + 1;
    open_bench(&b, BE_ACT_Q8, 1200);
    generate(&b, 20, 40, NULL, warm, -1, plain);
    int32_t all[64];
    memcpy(all, plain->token, sizeof all / 2);
    for (int depth = 1; depth < 14; depth++) {
        generate(&b, 20, 40, NULL, warm, all[depth], plain);
        double_proposer d;
        rig_check(double_open(&d, "oracle", all, 32, 20, &b.st, &e), &e);
        sched_set_mode(&b.sched, SCHED_FIXED, 0);
        generate(&b, 20, 40, &d.base, warm, all[depth], spec);
        same(plain, spec, "eos");
        assert_int_equal(spec->pos, 20 + spec->n - 1);
    }
    close_bench(&b);
    free(plain);
}

/* Limits: every remaining room of the context, every token limit. */
static void context_end_and_limits(void **u)
{
    (void)u;
    for (int ctx = 140; ctx < 149; ctx++) {
        bench b;
        ds4_err e = {0};
        trace *plain = calloc(2, sizeof *plain), *spec = plain + 1;
        open_bench(&b, BE_ACT_Q8, ctx);
        for (int n = 1; n <= 20; n += ctx == 140 ? 1 : 19) {
            generate(&b, 136, n, NULL, greedy, -1, plain);
            double_proposer d;
            rig_check(double_open(&d, "oracle", plain->token, plain->n, 136, &b.st, &e), &e);
            sched_set_mode(&b.sched, SCHED_FIXED, 0);
            generate(&b, 136, n, &d.base, greedy, -1, spec);
            same(plain, spec, "limit");
        }
        close_bench(&b);
        free(plain);
    }
}

/* A rewind in the middle of a generation, then the same again: same tokens, same state. */
static void rewind_reproduces(void **u)
{
    (void)u;
    bench b;
    ds4_err e = {0};
    trace *t = calloc(1, sizeof *t);
    open_bench(&b, BE_ACT_Q8, 1200);
    sched_set_mode(&b.sched, SCHED_FIXED, 0);
    generate(&b, 130, 200, &b.ds.base, warm, -1, t);
    for (int back = 1; back < 30; back += 7) {
        int32_t anchor, out[SHAPE_MAX_BLOCK + 1];
        int at = b.s.pos - back, done = 0, k;
        rig_check(session_rewind(&b.s, at, &e), &e);
        anchor = t->token[at - 130];
        while (done < back) {
            rig_check(cycle_step(&b.c, &b.s, anchor, back - done, out, &k, &e), &e);
            assert_memory_equal(out, t->token + (at - 130) + 1 + done, (size_t)k * sizeof *out);
            done += k;
            anchor = out[k - 1];
        }
        uint64_t h;
        rig_check(session_hash(&b.s, &h, &e), &e);
        assert_true(h == t->state);
    }
    close_bench(&b);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_greedy_q8),
        cmocka_unit_test(doubles_warm_q8),
        cmocka_unit_test(doubles_filtered_float),
        cmocka_unit_test(dspark_equals_plain),
        cmocka_unit_test(host_confidence_same_decisions),
        cmocka_unit_test(eos_at_each_depth),
        cmocka_unit_test(context_end_and_limits),
        cmocka_unit_test(rewind_reproduces),
    };
    return cmocka_run_group_tests_name("spec", tests, NULL, NULL);
}
