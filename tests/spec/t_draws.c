/* t_draws: position-keyed noise draws from the model's distribution: the first two tokens over 100,000 seeds pass
 * chi-square. */
#include "util/unit.h"

#include <math.h>

#include "sample/sample.h"
#include "util/rig.h"
#include "util/tiny_v4.h"

enum { DRAWS = 100000, PROMPT = 9, V = V4_VOCAB };

/* Probabilities of the plain sampler at temperature t. */
static void softmax(const float *logits, double t, double *p)
{
    double m = -INFINITY, sum = 0;
    for (int i = 0; i < V; i++)
        m = fmax(m, logits[i]);
    for (int i = 0; i < V; i++)
        sum += p[i] = exp((logits[i] - m) / t);
    for (int i = 0; i < V; i++)
        p[i] /= sum;
}

/* Wilson-Hilferty: the chi-square value as a normal deviate. */
static double deviate(double chi, double df) { return (cbrt(chi / df) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df)); }

static void two_tokens_chi_square(void **u)
{
    (void)u;
    rig r;
    size_t bytes;
    gb trunk = v4_trunk();
    uint8_t *f = gb_bytes(&trunk, &bytes);
    gguf *g;
    ds4_err e = {0};
    int32_t in[PROMPT + 1] = {0, 5, 9, 200, 31, 77, 8, 301, 12};
    const sample_params sp0 = {.temp = 1.3f, .top_p = 1};
    float *first = malloc(V * sizeof *first), *second = malloc((size_t)V * V * sizeof *second);
    double *pa = malloc(V * sizeof *pa), *pb = malloc((size_t)V * V * sizeof *pb);
    int *seen = calloc((size_t)V * V, sizeof *seen);
    sample_cand *room = malloc(V * sizeof *room);
    rig_check(gguf_open_mem(&g, f, bytes, "tiny", &e), &e);
    rig_open(&r, g, NULL, (rig_options){.ctx = 64});
    rig_run(&r, 0, in, 0, PROMPT - 1, PROMPT - 1, NULL);
    rig_run(&r, 0, in, PROMPT - 1, PROMPT, 1, first);
    softmax(first, (double)sp0.temp, pa);
    for (int a = 0; a < V; a++) {
        in[PROMPT] = a;
        rig_run(&r, 0, in, PROMPT, PROMPT + 1, 1, second + (size_t)a * V);
        softmax(second + (size_t)a * V, (double)sp0.temp, pb + (size_t)a * V);
    }
    for (int i = 0; i < DRAWS; i++) {
        sample_params sp = sp0;
        sp.seed = (uint64_t)i;
        int32_t a = sample_choose(&sp, first, V, PROMPT, room),
                b = sample_choose(&sp, second + (size_t)a * V, V, PROMPT + 1, room);
        seen[a * V + b]++;
    }
    double chi = 0, rest_want = 0, rest_seen = 0;
    int cells = 0;
    for (int i = 0; i < V * V; i++) {
        double want = DRAWS * pa[i / V] * pb[i];
        if (want < 5) {
            rest_want += want;
            rest_seen += seen[i];
            continue;
        }
        chi += (seen[i] - want) * (seen[i] - want) / want;
        cells++;
    }
    if (rest_want > 5) {
        chi += (rest_seen - rest_want) * (rest_seen - rest_want) / rest_want;
        cells++;
    }
    print_message("chi-square %.1f over %d cells, deviate %+.2f\n", chi, cells, deviate(chi, cells - 1));
    assert_true(cells > 20);
    assert_true(deviate(chi, cells - 1) < 4);
    rig_close(&r);
    gb_free(&trunk), free(f), free(first), free(second), free(pa), free(pb), free(seen), free(room);
}

/* Filters keep exactly the set they promise, and the backend's choice is the sampler's. */
static void filters_and_ties(void **u)
{
    (void)u;
    sample_cand room[8];
    const float l[8] = {1, 3, NAN, 3, 2, -1, INFINITY * 0.0f, 0};
    sample_params p = {.temp = 0, .top_p = 1};
    assert_int_equal(sample_choose(&p, l, 8, 0, room), 1); /* tie: lowest id; NaN never */
    const float none[8] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    assert_int_equal(sample_choose(&p, none, 8, 0, room), 0);
    p.temp = 1;
    assert_int_equal(sample_choose(&p, none, 8, 0, room), 0);
    const sample_params sets[] = {
        {.temp = 1, .top_k = 2, .top_p = 1},
        {.temp = 1, .top_p = 0.70f},
        {.temp = 1, .top_p = 1, .min_p = 0.9f},
        {.temp = 1, .top_k = 3, .top_p = 0.85f, .min_p = 0.5f},
    };
    for (int s = 0; s < 4; s++)
        for (uint64_t seed = 0; seed < 2000; seed++) {
            sample_params q = sets[s];
            q.seed = seed;
            int32_t t = sample_choose(&q, l, 8, 3, room);
            if (t != 1 && t != 3)
                fail_msg("filter set %d let token %d through", s, t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_tokens_chi_square), cmocka_unit_test(filters_and_ties)};
    return cmocka_run_group_tests_name("draws", tests, NULL, NULL);
}
