/* t_measure: what ds4-bench asks the engine. Measuring must not be noticed by whoever generates afterwards. */
#include "util/unit.h"

#include <math.h>

#include "ds4.h"

#define MODEL "mini/ds4-mini.gguf"
#define DRAFTER "mini/ds4-mini-dspark.gguf"
enum { PROMPT = 200, ROOM = 24 };

typedef struct fixture {
    ds4_engine *eng;
    ds4_session *ses;
    int32_t tokens[PROMPT + ROOM];
} fixture;

static void check(int rc, const ds4_error *e)
{
    if (rc)
        fail_msg("%s", e->msg);
}

static void begin(fixture *f, bool drafter)
{
    ds4_error e = {0};
    ds4_engine_options o = ds4_engine_defaults();
    o.model = MODEL;
    o.drafter = drafter ? DRAFTER : NULL;
    o.backend = "cpu";
    o.ctx = PROMPT + ROOM;
    check(ds4_engine_open(&f->eng, &o, &e), &e);
    check(ds4_session_open(&f->ses, f->eng, &e), &e);
    for (int i = 0; i < PROMPT + ROOM; i++)
        f->tokens[i] = 300 + i * 7 % 500;
}

static void end(fixture *f)
{
    ds4_session_close(f->ses);
    ds4_engine_close(f->eng);
}

typedef struct text {
    int32_t id[ROOM];
    int n;
} text;

static bool collect(void *ctx, int32_t token, const float *logits)
{
    text *t = ctx;
    (void)logits;
    t->id[t->n++] = token;
    return true;
}

static ds4_result generate_at(fixture *f, text *t, float temp)
{
    ds4_error e = {0};
    ds4_result r;
    ds4_generate_options o = ds4_generate_defaults();
    o.max_tokens = 16;
    o.temp = temp;
    o.seed = 7;
    o.ignore_eos = true;
    o.drafting = DS4_DRAFT_FIXED;
    o.on_token = collect;
    o.ctx = t;
    check(ds4_session_sync(f->ses, f->tokens, PROMPT, NULL, NULL, NULL, &e), &e);
    check(ds4_generate(f->ses, &o, &r, &e), &e);
    return r;
}

static ds4_result generate(fixture *f, text *t) { return generate_at(f, t, 1); }

static void measuring_is_not_noticed(void **u)
{
    fixture f;
    ds4_error e = {0};
    text plain = {.n = 0}, after = {.n = 0};
    uint64_t before_hash, hash;
    double seconds, issued;
    ds4_proposal_times p;
    ds4_cycle_times c;
    double distinct[16];
    char line[2000];
    (void)u;
    begin(&f, true);
    check(ds4_session_sync(f.ses, f.tokens, PROMPT, NULL, NULL, NULL, &e), &e);
    check(ds4_session_hash(f.ses, &before_hash, &e), &e);
    for (int n = 1; n <= 16; n++) {
        check(ds4_bench_rows(f.ses, f.tokens + PROMPT, n, &seconds, &issued, &e), &e);
        assert_true(seconds > 0 && issued > 0 && issued <= seconds);
    }
    check(ds4_bench_proposal(f.ses, f.tokens[PROMPT], &p, &e), &e);
    check(ds4_bench_cycles(f.ses, f.tokens[PROMPT], 8, &c, &e), &e);
    assert_true(c.drafts == 5 && c.bytes_to_host >= 6 * 4 && c.host > 0 && c.host <= c.total);
    assert_true(c.propose > 0 && c.verify > 0 && c.propose + c.verify <= c.total);
    check(ds4_bench_experts(f.ses, f.tokens + PROMPT, 16, distinct, &e), &e);
    assert_true(p.total > 0 && p.chain > 0 && p.logits > 0 && p.markov > 0);
    check(ds4_session_hash(f.ses, &hash, &e), &e);
    assert_true(hash == before_hash);
    assert_int_equal(ds4_session_pos(f.ses), PROMPT);
    assert_int_equal(ds4_stats_line(f.eng, line, sizeof line), 0);
    ds4_result r = generate(&f, &after);
    check(ds4_session_reset(f.ses, &e), &e);
    ds4_result fresh = generate(&f, &plain);
    assert_memory_equal(plain.id, after.id, sizeof plain.id);
    assert_true(r.accepted == fresh.accepted && r.proposed == fresh.proposed && r.logits_hash == fresh.logits_hash);
    end(&f);
}

static double field(const char *line, const char *name)
{
    const char *p = strstr(line, name);
    assert_non_null(p);
    return strtod(p + strlen(name), NULL);
}

/* What --cycle says and what the statistics of drafting say are the same things. Machines are busy: one of a few tries
 * must agree. */
static void cycles_agree_with_the_statistics(void **u)
{
    bool agree = false;
    double propose = 0, verify = 0;
    ds4_cycle_times c;
    (void)u;
    for (int i = 0; i < 6 && !agree; i++) {
        fixture f;
        ds4_error e = {0};
        text t = {.n = 0};
        char line[2000];
        begin(&f, true);
        generate_at(&f, &t, 0);
        assert_true(ds4_stats_line(f.eng, line, sizeof line) > 0);
        const double cycles = field(line, " cycles=") - field(line, " tail_skips=");
        propose = field(line, " propose=") / cycles / 1e3;
        verify = (field(line, " verify=") + field(line, " target=")) / cycles / 1e3;
        check(ds4_session_sync(f.ses, f.tokens, PROMPT, NULL, NULL, NULL, &e), &e);
        check(ds4_bench_cycles(f.ses, f.tokens[PROMPT], 8, &c, &e), &e);
        agree = fabs(c.propose / propose - 1) < 0.25 && fabs(c.verify / verify - 1) < 0.4;
        end(&f);
    }
    if (!agree)
        fail_msg("propose %g and %g, verify %g and %g ms", c.propose * 1e3, propose * 1e3, c.verify * 1e3,
                 verify * 1e3);
}

static void impossible_measurements_are_refused(void **u)
{
    fixture f;
    ds4_error e = {0};
    double seconds;
    ds4_proposal_times p;
    ds4_cycle_times c;
    (void)u;
    begin(&f, true);
    assert_int_equal(ds4_bench_proposal(f.ses, 5, &p, &e), DS4_ESTATE);
    assert_int_equal(ds4_bench_cycles(f.ses, 5, 8, &c, &e), DS4_ESTATE);
    assert_int_equal(ds4_bench_rows(f.ses, f.tokens, 0, &seconds, NULL, &e), DS4_EARG);
    assert_int_equal(ds4_bench_rows(f.ses, f.tokens, 17, &seconds, NULL, &e), DS4_EARG);
    check(ds4_session_sync(f.ses, f.tokens, PROMPT + ROOM - 2, NULL, NULL, NULL, &e), &e);
    assert_int_equal(ds4_bench_rows(f.ses, f.tokens, 3, &seconds, NULL, &e), DS4_EARG);
    assert_int_equal(ds4_bench_proposal(f.ses, 5, &p, &e), DS4_EARG);
    assert_int_equal(ds4_bench_cycles(f.ses, 5, 8, &c, &e), DS4_EARG);
    check(ds4_bench_rows(f.ses, f.tokens, 2, &seconds, NULL, &e), &e);
    end(&f);
    begin(&f, false);
    check(ds4_session_sync(f.ses, f.tokens, 3, NULL, NULL, NULL, &e), &e);
    assert_int_equal(ds4_bench_proposal(f.ses, 5, &p, &e), DS4_ESTATE);
    end(&f);
}

/* A step reads less than the file: most experts, most rows of the embedding. */
static void bytes_per_token_are_counted_once(void **u)
{
    fixture f;
    ds4_error e = {0};
    ds4_info info;
    (void)u;
    begin(&f, false);
    ds4_engine_info(f.eng, &info);
    uint64_t bytes = ds4_bench_token_bytes(f.eng);
    assert_true(fabs(ds4_bench_rows_bytes(f.eng, 1) / (double)bytes - 1) < 1e-6);
    for (int n = 2; n <= 16; n++) {
        const double more = ds4_bench_rows_bytes(f.eng, n) - ds4_bench_rows_bytes(f.eng, n - 1);
        assert_true(more > 0 && ds4_bench_rows_bytes(f.eng, n) < (double)info.model_bytes);
    }
    assert_true(bytes > info.model_bytes / 4 && bytes < info.model_bytes);
    check(ds4_session_sync(f.ses, f.tokens, 100, NULL, NULL, NULL, &e), &e);
    uint64_t few = ds4_bench_kv_bytes(f.ses);
    check(ds4_session_sync(f.ses, f.tokens, PROMPT, NULL, NULL, NULL, &e), &e);
    assert_true(few > 0 && ds4_bench_kv_bytes(f.ses) > few && ds4_bench_kv_bytes(f.ses) <= info.kv_bytes);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measuring_is_not_noticed),
        cmocka_unit_test(cycles_agree_with_the_statistics),
        cmocka_unit_test(impossible_measurements_are_refused),
        cmocka_unit_test(bytes_per_token_are_counted_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
