/* t_agree.c: the small model's forward on the device against the CPU, without the roundings that can flip: every logit
 * of 20 texts. A wrong operation, layout or order shows here at once. */
#include <math.h>

#include "cuda/util_mini.h"

enum { TEXTS = 20, POSITIONS = 200 };

/* Text i: even ones are prose, odd ones a few chat prompts in a row. */
static void make_text(const ds4_engine *eng, int i, const int32_t *prose, size_t n, int32_t *out)
{
    int at = 0;
    if (i % 2 == 0) {
        size_t from = (size_t)(i / 2) * (n - POSITIONS) / (TEXTS / 2);
        memcpy(out, prose + from, POSITIONS * sizeof *out);
        out[0] = prose[0];
        return;
    }
    while (at < POSITIONS) {
        int32_t ids[200];
        int k = mini_prompt(eng, i * 5 + at, ids);
        k = k < POSITIONS - at ? k : POSITIONS - at;
        memcpy(out + at, ids, (size_t)k * sizeof *out);
        at += k;
    }
}

static int best(const float *row, size_t n)
{
    size_t top = 0;
    for (size_t i = 1; i < n; i++)
        top = row[i] > row[top] ? i : top;
    return (int)top;
}

typedef struct found {
    double most;
    int text, pos, other; /* where; how many positions choose another token */
} found;

static void compare(found *f, int text, int positions, size_t vocab, const float *a, const float *b)
{
    for (int p = 0; p < positions; p++, a += vocab, b += vocab) {
        for (size_t i = 0; i < vocab; i++) {
            double d = fabs((double)a[i] - (double)b[i]);
            if (!(d <= f->most)) /* NaN counts */
                *f = (found){isnan(d) ? INFINITY : d, text, p, f->other};
        }
        f->other += best(a, vocab) != best(b, vocab);
    }
}

static void every_logit_agrees_with_the_cpu(void **state)
{
    (void)state;
    mini_need_gpu();
    const int texts = mini_reduced() ? 2 : TEXTS, positions = mini_reduced() ? 24 : POSITIONS;
    ds4_engine *eng = mini_engine("cpu", DS4_ACT_FLOAT, DS4_KV_OFF, 64, false); /* for its tokenizer */
    size_t n;
    int32_t *prose = mini_prose(eng, &n);
    rig gpu, cpu;
    const rig_options o = {.act = BE_ACT_FLOAT, .sim = KV_SIM_OFF, .ctx = 256};
    mini_rig(&gpu, "cuda", o);
    mini_rig(&cpu, "cpu", o);
    const size_t V = rig_vocab(&gpu);
    float *a = malloc(POSITIONS * V * sizeof *a), *b = malloc(POSITIONS * V * sizeof *b);
    assert_true(a && b);
    found f = {0};
    for (int i = 0; i < texts; i++) {
        int32_t ids[POSITIONS];
        make_text(eng, i, prose, n, ids);
        rig_run(&gpu, 0, ids, 0, positions, BE_NARROW, a);
        rig_run(&cpu, 0, ids, 0, positions, BE_NARROW, b);
        compare(&f, i, positions, V, a, b);
    }
    print_message("%d texts of %d positions: largest difference of a logit %.3g (text %d, position %d), %d choices "
                  "differ\n",
                  texts, positions, f.most, f.text, f.pos, f.other);
    assert_true(f.most < 1e-3);
    free(a);
    free(b);
    free(prose);
    rig_close(&gpu);
    rig_close(&cpu);
    ds4_engine_close(eng);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_logit_agrees_with_the_cpu)};
    return cmocka_run_group_tests_name("cuda agreement", tests, NULL, NULL);
}
