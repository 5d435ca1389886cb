/* t_forward.c: the whole forward of the tiny model on the device against the CPU. */
#include <math.h>
#include <stdio.h>

#include "util/unit.h"
#include "util/v4_rig.h"

enum { TOKENS = 150, CHUNK = 5 };

typedef struct outcome {
    float *logits; /* [TOKENS][V4_VOCAB] */
    rig_drafts drafts;
} outcome;

static outcome run(const char *backend, enum be_act act, enum kv_sim sim)
{
    int32_t ids[TOKENS];
    outcome o = {.logits = calloc(TOKENS * V4_VOCAB, sizeof(float))};
    v4_rig t;
    v4_tokens(ids, TOKENS);
    setenv("DS4_TEST_BACKEND", backend, 1);
    v4_open(&t, (rig_options){.act = act, .sim = sim, .ctx = 256});
    rig_run(&t.r, 0, ids, 0, TOKENS, CHUNK, o.logits);
    rig_absorb(&t.r, 0, 0, TOKENS);
    o.drafts = rig_draft(&t.r, 0, 7, TOKENS, NULL, NULL);
    v4_close(&t);
    return o;
}

static int best(const float *row)
{
    int top = 0;
    for (int i = 1; i < V4_VOCAB; i++)
        top = row[i] > row[top] ? i : top;
    return top;
}

/* Largest difference of all logits, and how many positions choose another token. */
static double difference(const outcome *a, const outcome *b, int *other)
{
    double most = 0;
    *other = 0;
    for (int p = 0; p < TOKENS; p++) {
        const float *x = a->logits + p * V4_VOCAB, *y = b->logits + p * V4_VOCAB;
        for (int i = 0; i < V4_VOCAB; i++) {
            double d = fabs((double)x[i] - (double)y[i]);
            most = d <= most ? most : d; /* NaN counts */
        }
        *other += best(x) != best(y);
    }
    return most;
}

static void float_activations_agree_with_the_cpu(void **state)
{
    (void)state;
    int other;
    outcome gpu = run("cuda", BE_ACT_FLOAT, KV_SIM_OFF), cpu = run("cpu", BE_ACT_FLOAT, KV_SIM_OFF);
    double d = difference(&gpu, &cpu, &other);
    print_message("largest difference of a logit %.3g, %d of %d choices differ\n", d, other, TOKENS);
    assert_true(d < 1e-3);
    for (int i = 0; i < gpu.drafts.n; i++) {
        assert_int_equal(gpu.drafts.id[i + 1], cpu.drafts.id[i + 1]);
        assert_true(fabsf(gpu.drafts.conf[i] - cpu.drafts.conf[i]) < 1e-3f);
    }
    free(gpu.logits);
    free(cpu.logits);
}

/* Roundings of int8, FP8 and FP4 flip now and then, and random weights carry each flip on; a wrong operation would
 * change most choices. */
static void int8_activations_stay_near_the_cpu(void **state)
{
    (void)state;
    int other;
    outcome gpu = run("cuda", BE_ACT_Q8, KV_SIM_OFF), cpu = run("cpu", BE_ACT_Q8, KV_SIM_OFF);
    double d = difference(&gpu, &cpu, &other);
    print_message("largest difference of a logit %.3g, %d of %d choices differ\n", d, other, TOKENS);
    assert_true(d < 5 && other < TOKENS / 5);
    free(gpu.logits);
    free(cpu.logits);
}

static void simulated_roundings_stay_near_the_cpu(void **state)
{
    (void)state;
    int other;
    outcome gpu = run("cuda", BE_ACT_FLOAT, KV_SIM_FULL), cpu = run("cpu", BE_ACT_FLOAT, KV_SIM_FULL);
    double d = difference(&gpu, &cpu, &other);
    print_message("largest difference of a logit %.3g, %d of %d choices differ\n", d, other, TOKENS);
    assert_true(d < 5 && other < TOKENS / 5);
    free(gpu.logits);
    free(cpu.logits);
}

static void production_path_stays_near_the_cpu(void **state)
{
    (void)state;
    int other;
    outcome gpu = run("cuda", BE_ACT_Q8, KV_SIM_FULL), cpu = run("cpu", BE_ACT_Q8, KV_SIM_FULL);
    double d = difference(&gpu, &cpu, &other);
    print_message("largest difference of a logit %.3g, %d of %d choices differ\n", d, other, TOKENS);
    assert_true(d < 10 && other < TOKENS / 4);
    free(gpu.logits);
    free(cpu.logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_activations_agree_with_the_cpu),
        cmocka_unit_test(int8_activations_stay_near_the_cpu),
        cmocka_unit_test(simulated_roundings_stay_near_the_cpu),
        cmocka_unit_test(production_path_stays_near_the_cpu),
    };
    return cmocka_run_group_tests_name("cuda forward", tests, NULL, NULL);
}
