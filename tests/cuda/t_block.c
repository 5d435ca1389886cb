/* t_block.c: the fused block against the operations it stands for, on the small model, and against itself at other row
 * counts. */
#include <math.h>
#include <stdio.h>

#include "util/rig.h"

enum { TOKENS = 150 };

static void open_mini(rig *r, rig_options o)
{
    ds4_err e = {0};
    gguf *trunk = NULL, *drafter = NULL;
    const char *root = getenv("DS4_TEST_ROOT");
    char path[512];
    snprintf(path, sizeof path, "%s/mini/ds4-mini.gguf", root ? root : ".");
    rig_check(gguf_open(&trunk, path, &e), &e);
    snprintf(path, sizeof path, "%s/mini/ds4-mini-dspark.gguf", root ? root : ".");
    rig_check(gguf_open(&drafter, path, &e), &e);
    rig_open(r, trunk, drafter, o);
}

static void some_tokens(int32_t *ids, int n)
{
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)((uint32_t)(i + 3) * 2654435761u % 4093u);
}

typedef struct outcome {
    float *logits;
    rig_drafts drafts;
    uint64_t hash;
} outcome;

static outcome run(const char *backend, bool composed, enum kv_sim sim, int tokens, int chunk)
{
    rig r;
    int32_t ids[TOKENS];
    outcome o = {0};
    bool ok;
    some_tokens(ids, tokens);
    const char *was = getenv("DS4_TEST_BACKEND");
    char *keep = was ? strdup(was) : NULL;
    if (backend)
        setenv("DS4_TEST_BACKEND", backend, 1);
    open_mini(&r, (rig_options){.act = BE_ACT_Q8, .sim = sim, .ctx = 512, .composed = composed, .threads = 2});
    o.logits = calloc((size_t)tokens * rig_vocab(&r), sizeof(float));
    rig_run(&r, 0, ids, 0, tokens, chunk, o.logits);
    rig_absorb(&r, 0, 0, tokens);
    o.drafts = rig_draft(&r, 0, 7, tokens, NULL, NULL);
    o.hash = kv_hash(&r.k, 0, tokens, &ok);
    rig_close(&r);
    if (backend && keep)
        setenv("DS4_TEST_BACKEND", keep, 1);
    free(keep);
    return o;
}

static double difference(const outcome *a, const outcome *b, int tokens, double *rms)
{
    double most = 0, sum = 0;
    size_t n = (size_t)tokens * 4096;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a->logits[i] - (double)b->logits[i]);
        most = d <= most ? most : d;
        sum += d * d;
    }
    *rms = sqrt(sum / (double)n);
    return most;
}

static void the_fused_block_is_the_composed_one(void **state)
{
    (void)state;
    double rms, near;
    outcome fused = run(NULL, false, KV_SIM_OFF, 40, 4), composed = run(NULL, true, KV_SIM_OFF, 40, 4);
    outcome cpu = run("cpu", true, KV_SIM_OFF, 40, 4);
    double most = difference(&fused, &composed, 40, &rms);
    print_message("fused and composed: largest difference of a logit %.3g, rms %.3g\n", most, rms);
    near = difference(&fused, &cpu, 40, &rms);
    print_message("fused and CPU: largest difference of a logit %.3g, rms %.3g\n", near, rms);
    near = difference(&composed, &cpu, 40, &rms);
    print_message("composed and CPU: largest difference of a logit %.3g, rms %.3g\n", near, rms);
    for (int i = 0; i < fused.drafts.n; i++)
        print_message("draft %d: %d %.4f, composed %d %.4f\n", i, fused.drafts.id[i + 1], (double)fused.drafts.conf[i],
                      composed.drafts.id[i + 1], (double)composed.drafts.conf[i]);
    assert_true(most < 3.0 && rms < 0.3);
    free(fused.logits);
    free(composed.logits);
    free(cpu.logits);
}

static void rows_do_not_depend_on_their_number(void **state)
{
    (void)state;
    static const int chunks[] = {6, 16};
    outcome one = run(NULL, false, KV_SIM_FULL, 48, 1);
    for (int i = 0; i < 2; i++) {
        outcome many = run(NULL, false, KV_SIM_FULL, 48, chunks[i]);
        assert_memory_equal(one.logits, many.logits, 48u * 4096u * sizeof(float));
        assert_true(one.hash == many.hash);
        free(many.logits);
    }
    free(one.logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fused_block_is_the_composed_one),
        cmocka_unit_test(rows_do_not_depend_on_their_number),
    };
    return cmocka_run_group_tests_name("cuda fused block", tests, NULL, NULL);
}
