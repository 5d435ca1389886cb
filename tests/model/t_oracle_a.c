/* The trunk against golden logits of the official mathematics (oracle_a), in all three rounding modes and both file
 * variants. */
#include <math.h>
#include <stdio.h>

#include "util_golden.h"
#include "util_oracle.h"

static const struct {
    const char *name;
    enum kv_sim sim;
} modes[] = {{"full", KV_SIM_FULL}, {"kvfp8", KV_SIM_FP8}, {"exact", KV_SIM_OFF}};
static const char *const sequences[] = {"len5", "len127", "len128", "len129", "len300", "len700"};

/* What golden.json says about one sequence in one mode, and our logits of all positions. */
typedef struct compared {
    int n, stored, vocab;
    int32_t *at; /* stored positions */
    int32_t *argmax;
    double *margin, *noise;
    npy want;
    float *got;
} compared;

static char *key(const char *what, const char *mode)
{
    static char buf[64];
    snprintf(buf, sizeof buf, "%s_%s", what, mode);
    return buf;
}

static compared run(rig *r, json_t *golden, json_t *tokens, const char *seq, const char *mode)
{
    compared x = {.vocab = (int)rig_vocab(r)};
    json_t *o = json_object_get(json_object_get(golden, "sequences"), seq);
    int32_t *ids = golden_ints(tokens, seq, &x.n);
    x.at = golden_ints(o, "logit_positions", &x.stored);
    x.argmax = golden_ints(o, key("argmax", mode), NULL);
    x.margin = golden_nums(o, key("margin", mode), NULL);
    x.noise = golden_nums(o, key("noise", mode), NULL);
    x.want = golden_array("oracle_a/logits_%s_%s.npy", seq, mode);
    x.got = calloc((size_t)x.n * (size_t)x.vocab, sizeof *x.got);
    assert_true(x.got && x.want.count == (size_t)x.stored * (size_t)x.vocab);
    rig_run(r, 0, ids, 0, x.n, BE_NARROW, x.got);
    free(ids);
    return x;
}

static void compared_free(compared *x)
{
    free(x->at);
    free(x->argmax);
    free(x->margin);
    free(x->noise);
    free(x->got);
    npy_free(&x->want);
}

static double diff_at(const compared *x, int i)
{
    size_t V = (size_t)x->vocab;
    return max_diff(x->got + (size_t)x->at[i] * V, x->want.f + (size_t)i * V, V);
}

static int argmax(const float *v, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = v[i] > v[best] ? i : best;
    return best;
}

/* Share of the positions with a clear winner at which ours is the same. */
static double agreement(const compared *x, double min_margin)
{
    int clear = 0, same = 0;
    for (int p = 0; p < x->n; p++) {
        if (!(x->margin[p] > min_margin))
            continue;
        clear++;
        same += argmax(x->got + (size_t)p * (size_t)x->vocab, x->vocab) == x->argmax[p];
    }
    return clear ? (double)same / clear : 1;
}

/* Float32 implementations agree to 1e-4 without the roundings. */
static void gate_exact(const compared *x, const char *what)
{
    double worst = 0;
    for (int i = 0; i < x->stored; i++)
        worst = fmax(worst, diff_at(x, i));
    double same = agreement(x, 1e-3);
    print_message("  %-22s %3d positions: largest difference %.2g, argmax agreement %.4f\n", what, x->stored, worst,
                  same);
    if (worst > 5e-4)
        fail_msg("%s: logits differ by %g, limit 5e-4", what, worst);
    if (same < 1)
        fail_msg("%s: an argmax with margin above 1e-3 differs", what);
}

/* With the roundings a value that rounds the other way may change everything after it: gates over percentiles. */
static void gate_rounded(const compared *x, const char *what)
{
    double *d = malloc((size_t)x->stored * sizeof *d), worst = 0;
    int over = 0;
    for (int i = 0; i < x->stored; i++) {
        d[i] = diff_at(x, i);
        worst = fmax(worst, d[i]);
        over += d[i] > fmax(0.1, 10 * x->noise[x->at[i]]);
    }
    double mid = median(d, x->stored), same = agreement(x, 0.1);
    free(d);
    print_message(
        "  %-22s %3d positions: median difference %.2g, largest %.2g, %d over the limit, argmax agreement %.4f\n", what,
        x->stored, mid, worst, over, same);
    if (mid > 0.1 || over > 0.05 * x->stored)
        fail_msg("%s: median difference %g (limit 0.1), %d of %d positions over their limit", what, mid, over,
                 x->stored);
    if (same < 0.95)
        fail_msg("%s: argmax agreement %g, at least 0.95 expected", what, same);
    if (x->n == 5 && worst > 5e-3)
        fail_msg("%s: logits differ by %g, limit 5e-3", what, worst);
}

static void check_variant(oracle *c, const char *variant, int mode)
{
    if (!c->dir)
        skip();
    json_t *golden = golden_json(c->dir, "golden.json"), *tokens = golden_json(c->dir, "sequences.json");
    rig r;
    oracle_open(&r, c->files, variant, modes[mode].sim, 1024);
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s %s %s", variant, modes[mode].name, sequences[i]);
        compared x = run(&r, golden, tokens, sequences[i], modes[mode].name);
        (modes[mode].sim == KV_SIM_OFF ? gate_exact : gate_rounded)(&x, what);
        compared_free(&x);
    }
    rig_close(&r);
    json_decref(golden);
    json_decref(tokens);
}

static void exact_logits_f32(void **s) { check_variant(*s, "f32", 2); }
static void exact_logits_q8(void **s) { check_variant(*s, "q8", 2); }
static void kvfp8_logits_f32(void **s) { check_variant(*s, "f32", 1); }
static void kvfp8_logits_q8(void **s) { check_variant(*s, "q8", 1); }
static void full_logits_f32(void **s) { check_variant(*s, "f32", 0); }
static void full_logits_q8(void **s) { check_variant(*s, "q8", 0); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_logits_f32), cmocka_unit_test(exact_logits_q8), cmocka_unit_test(kvfp8_logits_f32),
        cmocka_unit_test(kvfp8_logits_q8),  cmocka_unit_test(full_logits_f32), cmocka_unit_test(full_logits_q8),
    };
    return cmocka_run_group_tests(tests, oracle_setup, oracle_teardown);
}
