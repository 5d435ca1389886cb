/* Numerics without the large golden data: the tiny hash-defined model against logits and drafts of a build that passed
 * the oracle tests. `t_golden --write` stores them anew (only after the oracle tests passed). */
#include <math.h>
#include <stdio.h>

#include "backend/cpu/cpu.h"
#include "util/v4_rig.h"

#define FILE_NAME "tests/model/golden_v4.bin"

enum { LENGTH = 300, N_AT = 24, N_DRAFTS = 6 };
static const int at[N_AT] = {0,   1,   2,   3,   4,   7,   63,  66,  67,  68,  71,  99,
                             126, 127, 128, 129, 130, 131, 199, 255, 256, 259, 298, 299};
static const int contexts[N_DRAFTS] = {1, 2, 5, 130, 256, 300};

/* The file, little endian: logits in mode off, in mode full, confidence logits and drafts in mode off. */
typedef struct golden {
    float off[N_AT][V4_VOCAB], full[N_AT][V4_VOCAB], conf[N_DRAFTS][V4_BLOCK];
    int32_t draft[N_DRAFTS][V4_BLOCK];
} golden;

static void run(enum be_act act, enum kv_sim sim, float (*logits)[V4_VOCAB], golden *drafts)
{
    v4_rig t;
    int32_t ids[LENGTH + 1];
    float *all = malloc(LENGTH * V4_VOCAB * sizeof *all);
    assert_non_null(all);
    v4_tokens(ids, LENGTH + 1);
    v4_open(&t, (rig_options){.act = act, .sim = sim, .threads = 2, .ctx = 512});
    int done = 0;
    for (int i = 0; i < N_DRAFTS; i++) {
        rig_run(&t.r, 0, ids, done, contexts[i], BE_NARROW, all + (size_t)done * V4_VOCAB);
        rig_absorb(&t.r, 0, done, contexts[i]);
        done = contexts[i];
        rig_drafts d = rig_draft(&t.r, 0, ids[done], done, NULL, NULL);
        if (!drafts)
            continue;
        memcpy(drafts->draft[i], d.id + 1, sizeof drafts->draft[i]);
        memcpy(drafts->conf[i], d.conf, sizeof drafts->conf[i]);
    }
    for (int i = 0; i < N_AT; i++)
        memcpy(logits[i], all + (size_t)at[i] * V4_VOCAB, sizeof logits[i]);
    free(all);
    v4_close(&t);
}

static void load(golden *g)
{
    FILE *f = fopen(FILE_NAME, "rb");
    if (!f || fread(g, sizeof *g, 1, f) != 1)
        fail_msg("cannot read " FILE_NAME);
    fclose(f);
}

static double diff_row(const float *a, const float *b)
{
    double worst = 0;
    for (int i = 0; i < V4_VOCAB; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        worst = d <= worst ? worst : isnan(d) ? INFINITY : d;
    }
    return worst;
}

static void float_logits_and_drafts(void **s)
{
    (void)s;
    static golden want, got;
    double worst = 0, conf = 0;
    load(&want);
    run(BE_ACT_FLOAT, KV_SIM_OFF, got.off, &got);
    for (int i = 0; i < N_AT; i++)
        worst = fmax(worst, diff_row(got.off[i], want.off[i]));
    for (int i = 0; i < N_DRAFTS; i++)
        for (int j = 0; j < V4_BLOCK; j++)
            conf = fmax(conf, fabs((double)got.conf[i][j] - (double)want.conf[i][j]));
    print_message("  logits within %.2g, confidence logits within %.2g\n", worst, conf);
    assert_true(worst <= 2e-4 && conf <= 2e-4);
    assert_memory_equal(got.draft, want.draft, sizeof want.draft);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Values near a rounding border may round the other way on another machine: the median must hold, and the first
 * positions. */
static void full_logits(void **s)
{
    (void)s;
    static golden want, got;
    double d[N_AT], first = 0;
    load(&want);
    run(BE_ACT_FLOAT, KV_SIM_FULL, got.full, NULL);
    for (int i = 0; i < N_AT; i++)
        d[i] = diff_row(got.full[i], want.full[i]);
    for (int i = 0; i < 3; i++)
        first = fmax(first, d[i]);
    qsort(d, N_AT, sizeof *d, by_value);
    print_message("  median difference %.2g, largest %.2g; positions 0 to 2 within %.2g\n", d[N_AT / 2], d[N_AT - 1],
                  first);
    assert_true(d[N_AT / 2] <= 0.1 && first <= 5e-3);
}

/* int8 activations: the error is noise of a known size, not a fault. (No stored bits: exp and friends come from the C
 * library.) */
static void int8_activations_stay_close(void **s)
{
    (void)s;
    static golden want, got;
    double ratio[N_AT];
    load(&want);
    run(BE_ACT_Q8, KV_SIM_OFF, got.off, NULL);
    for (int i = 0; i < N_AT; i++) {
        double sum = 0, all = 0;
        for (int v = 0; v < V4_VOCAB; v++) {
            double d = (double)got.off[i][v] - (double)want.off[i][v];
            sum += d * d;
            all += (double)want.off[i][v] * (double)want.off[i][v];
        }
        ratio[i] = sqrt(sum / all);
    }
    qsort(ratio, N_AT, sizeof *ratio, by_value);
    print_message("  RMS of the difference over RMS of the logits: %.4f to %.4f, median %.4f\n", ratio[0],
                  ratio[N_AT - 1], ratio[N_AT / 2]);
    assert_true(ratio[0] > 1e-4 && ratio[0] < 0.03 && ratio[N_AT / 2] < 0.05);
}

/* The whole forward with plain C kernels and with the vector units: the same bits. */
static void plain_and_vector_kernels_agree(void **s)
{
    (void)s;
    for (int act = 0; act < 2; act++) {
        int32_t ids[150];
        uint64_t hash[2];
        float *logits[2];
        v4_tokens(ids, 150);
        for (int plain = 0; plain < 2; plain++) {
            v4_rig t;
            bool ok;
            v4_open(&t, (rig_options){.act = act ? BE_ACT_FLOAT : BE_ACT_Q8, .ctx = 256});
            if (plain)
                cpu_force_plain(t.r.b);
            logits[plain] = calloc(150 * V4_VOCAB, sizeof(float));
            rig_run(&t.r, 0, ids, 0, 150, BE_NARROW, logits[plain]);
            hash[plain] = kv_hash(&t.r.k, 0, 150, &ok);
            assert_true(ok);
            v4_close(&t);
        }
        assert_memory_equal(logits[0], logits[1], 150 * V4_VOCAB * sizeof(float));
        assert_true(hash[0] == hash[1]);
        free(logits[0]);
        free(logits[1]);
    }
}

/* llama.cpp's names for the same drafter: the same drafts. */
static void drafter_layouts_agree(void **s)
{
    (void)s;
    int32_t ids[40];
    rig_drafts d[2];
    v4_tokens(ids, 40);
    for (int llama = 0; llama < 2; llama++) {
        rig r;
        uint8_t *a, *b;
        gb trunk = v4_trunk(), drafter = v4_drafter(llama);
        gguf *t = v4_open_file(&trunk, &a, "trunk"), *f = v4_open_file(&drafter, &b, "drafter");
        rig_open(&r, t, f, (rig_options){.act = BE_ACT_Q8, .ctx = 64});
        rig_run(&r, 0, ids, 0, 40, 40, NULL);
        rig_absorb(&r, 0, 0, 40);
        memset(&d[llama], 0, sizeof d[llama]);
        d[llama] = rig_draft(&r, 0, 3, 40, NULL, NULL);
        rig_close(&r);
        free(a);
        free(b);
    }
    assert_memory_equal(d[0].id, d[1].id, (V4_BLOCK + 1) * sizeof(int32_t));
    assert_memory_equal(d[0].conf, d[1].conf, V4_BLOCK * sizeof(float));
}

static int write_golden(void)
{
    static golden g;
    run(BE_ACT_FLOAT, KV_SIM_OFF, g.off, &g);
    run(BE_ACT_FLOAT, KV_SIM_FULL, g.full, NULL);
    FILE *f = fopen(FILE_NAME, "wb");
    int bad = !f || fwrite(&g, sizeof g, 1, f) != 1;
    return (f && fclose(f)) || bad;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--write"))
        return write_golden();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_logits_and_drafts),     cmocka_unit_test(full_logits),
        cmocka_unit_test(int8_activations_stay_close), cmocka_unit_test(plain_and_vector_kernels_agree),
        cmocka_unit_test(drafter_layouts_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
