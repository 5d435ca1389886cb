/* The DSpark drafter against golden data (oracle_a): drafts, logits, confidence, context rows and stage outputs. */
#include <math.h>
#include <stdio.h>

#include "util_golden.h"
#include "util_oracle.h"

enum { BLOCK = 5, MAX_CASES = 64 };

/* Differences collected over the cases of one mode. */
typedef struct tally {
    int drafts, same, clear, clear_same; /* `clear`: golden margin above 0.1 */
    double conf, logits;                 /* largest */
    double base[MAX_CASES * BLOCK];      /* per row */
    int rows, over;                      /* rows over max(0.1, 10 * noise) */
} tally;

static int32_t *sequence(const oracle *c, int *n)
{
    json_t *j = golden_json(c->dir, "sequences.json");
    int32_t *ids = golden_ints(j, "len700", n);
    json_decref(j);
    return ids;
}

static int length_of(const json_t *o) { return (int)json_integer_value(json_object_get(o, "context_length")); }

static void advance(rig *r, const int32_t *ids, int *at, int to)
{
    if (to <= *at)
        return;
    rig_run(r, 0, ids, *at, to, BE_NARROW, NULL);
    rig_absorb(r, 0, *at, to);
    *at = to;
}

static void count_drafts(tally *t, const rig_drafts *d, const json_t *o)
{
    int n;
    int32_t *want = golden_ints(o, "drafts", &n);
    double *conf = golden_nums(o, "confidence_logits", NULL);
    double *margin = json_object_get(o, "margins") ? golden_nums(o, "margins", NULL) : NULL;
    assert_int_equal(n, d->n);
    bool chain = true; /* after a draft that differs, the Markov term of the rest differs too */
    for (int i = 0; i < n && chain; i++) {
        bool same = want[i] == d->id[i + 1], clear = margin && margin[i] > 0.1;
        t->drafts++;
        t->same += same;
        t->clear += clear;
        t->clear_same += clear && same;
        t->conf = fmax(t->conf, fabs(conf[i] - (double)d->conf[i]));
        chain = same;
    }
    free(want);
    free(conf);
    free(margin);
}

static void count_rows(tally *t, const float *got, const float *want, size_t vocab, const json_t *o)
{
    double *noise = golden_nums(o, "noise_base_logits", NULL);
    for (int i = 0; i < BLOCK; i++) {
        double d = max_diff(got + (size_t)i * vocab, want + (size_t)i * vocab, vocab);
        t->base[t->rows++] = d;
        t->over += d > fmax(0.1, 10 * noise[i]);
    }
    free(noise);
}

/* The row of a store for one position. */
static void store_row(rig *r, const be_store *s, int pos, float *out)
{
    r->b->op->download(r->b, out, s->base + (size_t)(pos % s->cap) * (size_t)s->width,
                       (size_t)s->width * sizeof(float));
}

/* All cases of dspark.json or dspark_exact.json in ascending context length: the trunk runs on, the drafter drafts
 * beside it. */
static void run_cases(const oracle *c, rig *r, const json_t *j, const npy *base, const npy *corrected, tally *t)
{
    int n, at = 0;
    int32_t *ids = sequence(c, &n);
    const size_t V = rig_vocab(r);
    float *got = malloc(2 * BLOCK * V * sizeof *got);
    assert_non_null(got);
    const json_t *cases = json_object_get(j, "cases");
    for (int len = 1; len <= n; len++) {
        for (size_t i = 0; i < json_array_size(cases); i++) {
            const json_t *o = json_array_get(cases, i);
            if (length_of(o) != len)
                continue;
            advance(r, ids, &at, len);
            rig_drafts d =
                rig_draft(r, 0, (int32_t)json_integer_value(json_object_get(o, "anchor")), len, got, got + BLOCK * V);
            count_drafts(t, &d, o);
            if (base)
                count_rows(t, got, base->f + i * BLOCK * V, V, o);
            if (corrected)
                t->logits = fmax(t->logits, max_diff(got + BLOCK * V, corrected->f + i * BLOCK * V, BLOCK * V));
        }
    }
    free(got);
    free(ids);
}

/* 24 decode steps, one drafting call each. */
static void run_steps(const oracle *c, rig *r, const json_t *j, tally *t)
{
    int n, at = 0;
    int32_t *ids = sequence(c, &n);
    const json_t *steps = json_object_get(j, "stepwise");
    assert_int_equal(json_array_size(steps), 24);
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *o = json_array_get(steps, i);
        advance(r, ids, &at, length_of(o));
        rig_drafts d = rig_draft(r, 0, (int32_t)json_integer_value(json_object_get(o, "anchor")), at, NULL, NULL);
        count_drafts(t, &d, o);
    }
    free(ids);
}

static void report(const char *what, const tally *t)
{
    print_message("  %s: %d of %d drafts equal, confidence logits within %.2g", what, t->same, t->drafts, t->conf);
    if (t->logits > 0)
        print_message(", corrected logits within %.2g", t->logits);
    print_message("\n");
}

static void check_exact(oracle *c, const char *variant)
{
    if (!c->dir)
        skip();
    json_t *j = golden_json(c->dir, "dspark_exact.json");
    npy want = golden_array("oracle_a/dspark_logits_exact.npy");
    tally cases = {0}, steps = {0};
    rig r;
    oracle_open(&r, c->files, variant, KV_SIM_OFF, 1024);
    run_cases(c, &r, j, NULL, &want, &cases);
    run_steps(c, &r, j, &steps);
    report("cases", &cases);
    report("steps", &steps);
    assert_int_equal(cases.same, cases.drafts);
    assert_int_equal(steps.same, steps.drafts);
    assert_int_equal(cases.drafts, 22 * BLOCK);
    assert_int_equal(steps.drafts, 24 * BLOCK);
    if (fmax(cases.conf, steps.conf) > 5e-4 || cases.logits > 5e-4)
        fail_msg("limit 5e-4");
    rig_close(&r);
    npy_free(&want);
    json_decref(j);
}

static void exact_drafts_f32(void **s) { check_exact(*s, "f32"); }
static void exact_drafts_q8(void **s) { check_exact(*s, "q8"); }

static void full_drafts(void **s)
{
    oracle *c = *s;
    if (!c->dir)
        skip();
    json_t *j = golden_json(c->dir, "dspark.json");
    npy base = golden_array("oracle_a/dspark_base_logits.npy");
    tally t = {0}, steps = {0};
    rig r;
    oracle_open(&r, c->files, "q8", KV_SIM_FULL, 1024);
    run_cases(c, &r, j, &base, NULL, &t);
    run_steps(c, &r, j, &steps);
    report("cases", &t);
    report("steps", &steps);
    double mid = median(t.base, t.rows);
    print_message("  base logits: %d rows, median difference %.2g, largest %.2g, %d over the limit; %d of %d clear "
                  "drafts equal\n",
                  t.rows, mid, t.base[t.rows - 1], t.over, t.clear_same, t.clear);
    if (mid > 0.1 || t.over > 0.05 * t.rows || t.clear_same < 0.95 * t.clear || steps.same < 0.9 * steps.drafts)
        fail_msg("the drafter is further from the golden data than roundings explain");
    rig_close(&r);
    npy_free(&base);
    json_decref(j);
}

/* Golden features in, context rows out: the path from taps to rings alone, with exact inputs. */
static void context_rows(void **s)
{
    oracle *c = *s;
    if (!c->dir)
        skip();
    rig r;
    oracle_open(&r, c->files, "f32", KV_SIM_FULL, 1024);
    npy taps = golden_array("oracle_a/dspark_L130_main_hidden_all.npy"),
        want = golden_array("oracle_a/dspark_L130_context_rows.npy");
    const be_store *tap = &r.k.tap;
    const size_t K = (size_t)r.m.s.dims.head_dim;
    float row[1024];
    for (int p = 0; p < 130; p++)
        r.b->op->upload(r.b, tap->base + (size_t)(p % tap->cap) * (size_t)tap->width,
                        taps.f + (size_t)p * (size_t)tap->width, (size_t)tap->width * sizeof(float));
    rig_absorb(&r, 0, 0, 130);
    int flips = 0;
    for (int st = 0; st < r.m.ds.stages; st++)
        for (int p = 2; p < 130; p++) {
            store_row(&r, &r.k.stage[st], p, row);
            const float *w = want.f + ((size_t)st * 128 + (size_t)p - 2) * K;
            for (size_t i = 0; i < K; i++)
                flips += fabs((double)row[i] - (double)w[i]) > 2e-5;
        }
    print_message("  %d of %zu numbers rounded the other way\n", flips, want.count);
    assert_true(flips <= (int)(want.count / 5000));
    rig_close(&r);
    npy_free(&taps);
    npy_free(&want);
}

static double rms(const npy *a)
{
    double sum = 0;
    for (size_t i = 0; i < a->count; i++)
        sum += (double)a->f[i] * (double)a->f[i];
    return sqrt(sum / (double)a->count);
}

/* Largest difference of 99 % of the numbers (the rest may have been rounded the other way), in units of the golden RMS.
 */
static double most(const float *a, const npy *want)
{
    const float *b = want->f;
    const size_t n = want->count;
    double *d = malloc(n * sizeof *d);
    assert_non_null(d);
    for (size_t i = 0; i < n; i++)
        d[i] = fabs((double)a[i] - (double)b[i]);
    median(d, (int)n);
    double x = d[n - 1 - n / 100] / rms(want);
    free(d);
    return x;
}

/* Attention output and streams after every stage. Stages before `st` are run by shortening the chain. */
static void check_stages(rig *r, int len, int32_t anchor, double limit)
{
    const be_dims *d = &r->m.s.dims;
    const int stages = r->m.ds.stages;
    float *got = malloc(BLOCK * 8 * (size_t)d->d * sizeof *got);
    for (int st = 0; st < stages; st++) {
        npy attn = golden_array("oracle_a/dspark_L%d_next_stage%d_attn_out.npy", len, st);
        npy streams = golden_array("oracle_a/dspark_L%d_next_stage%d_streams.npy", len, st);
        int32_t ids[BLOCK] = {anchor, r->m.ds.noise, r->m.ds.noise, r->m.ds.noise, r->m.ds.noise};
        be_rows rows = rig_rows(r, 1, BLOCK, ids, len, 0);
        r->m.ds.stages = st + 1;
        forward_draft(&r->m, &r->k, &rows);
        r->m.ds.stages = stages;
        r->b->op->download(r->b, got, r->m.sc.streams, streams.count * sizeof *got);
        double s = most(got, &streams);
        const be_weight *w = &r->m.dw.stage[st].out_b;
        be_linear out = {w, r->m.sc.low, r->m.sc.out, (int)w->ne0, (int)w->ne1, 1};
        r->b->op->linear(r->b, BLOCK, &out, 1);
        r->b->op->download(r->b, got, r->m.sc.out, attn.count * sizeof *got);
        double a = most(got, &attn);
        print_message("  L%d stage %d: attention output within %.2g, streams within %.2g of their RMS\n", len, st, a,
                      s);
        if (a > limit || s > limit)
            fail_msg("limit %g", limit);
        npy_free(&attn);
        npy_free(&streams);
    }
    free(got);
}

static void stage_outputs(void **s)
{
    oracle *c = *s;
    if (!c->dir)
        skip();
    int n, at = 0;
    int32_t *ids = sequence(c, &n);
    rig r;
    oracle_open_composed(&r, c->files, "f32", KV_SIM_FULL, 1024);
    advance(&r, ids, &at, 5);
    check_stages(&r, 5, ids[5], 1e-4);
    advance(&r, ids, &at, 300);
    check_stages(&r, 300, ids[300], 0.05);
    rig_close(&r);
    free(ids);
}

/* Features of the newest position, main_x and the hidden rows. */
static void features_and_hidden(void **s)
{
    oracle *c = *s;
    if (!c->dir)
        skip();
    int n, at = 0;
    int32_t *ids = sequence(c, &n);
    json_t *j = golden_json(c->dir, "dspark.json");
    const json_t *cases = json_object_get(j, "cases");
    npy taps = golden_array("oracle_a/dspark_main_hidden.npy"), mx = golden_array("oracle_a/dspark_main_x.npy");
    npy hid = golden_array("oracle_a/dspark_hidden.npy");
    const size_t T = taps.shape[1], D = mx.shape[1];
    double dt[MAX_CASES], dx[MAX_CASES], dh[MAX_CASES];
    float row[8192];
    int count = 0;
    rig r;
    oracle_open(&r, c->files, "f32", KV_SIM_FULL, 1024);
    for (int len = 1; len <= n; len++)
        for (size_t i = 0; i < json_array_size(cases); i++) {
            const json_t *o = json_array_get(cases, i);
            if (length_of(o) != len)
                continue;
            advance(&r, ids, &at, len);
            store_row(&r, &r.k.tap, len - 1, row);
            dt[count] = max_diff(row, taps.f + i * T, T);
            rig_absorb(&r, 0, len - 1, len); /* writing a row twice is harmless */
            r.b->op->download(r.b, row, r.m.sc.main_x, D * sizeof(float));
            dx[count] = max_diff(row, mx.f + i * D, D);
            rig_draft(&r, 0, (int32_t)json_integer_value(json_object_get(o, "anchor")), len, NULL, NULL);
            r.b->op->download(r.b, row, r.m.sc.hidden, BLOCK * D * sizeof(float));
            dh[count++] = max_diff(row, hid.f + i * BLOCK * D, BLOCK * D);
        }
    double a = median(dt, count) / rms(&taps), b = median(dx, count) / rms(&mx), h = median(dh, count) / rms(&hid);
    print_message("  %d cases, median difference over RMS: features %.2g, main_x %.2g, hidden rows %.2g\n", count, a, b,
                  h);
    assert_true(a < 0.02 && b < 0.02 && h < 0.05);
    rig_close(&r);
    npy_free(&taps);
    npy_free(&mx);
    npy_free(&hid);
    json_decref(j);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_drafts_f32), cmocka_unit_test(exact_drafts_q8),     cmocka_unit_test(full_drafts),
        cmocka_unit_test(context_rows),     cmocka_unit_test(features_and_hidden), cmocka_unit_test(stage_outputs),
    };
    return cmocka_run_group_tests(tests, oracle_setup, oracle_teardown);
}
