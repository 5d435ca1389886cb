/* t_synth: made-up blocks. They must decode to finite numbers of mean zero and of the size asked for, or activations of
 * a synthetic model run away and its speed is not that of a real one. */
#include "util/unit.h"

#include <math.h>
#include <stdlib.h>

#include "file/synth.h"

static const uint32_t types[] = {Q_F32, Q_F16, Q_BF16, Q_Q8_0, Q_Q4_0, Q_Q2_K, Q_Q4_K, Q_IQ2_XXS, Q_MXFP4};
enum { N = 1 << 18, TYPES = sizeof types / sizeof *types };

static void numbers_have_the_size_asked_for(void **u)
{
    uint8_t *raw = malloc(N * 4);
    float *v = malloc(N * sizeof *v);
    (void)u;
    assert_true(raw && v);
    for (int t = 0; t < TYPES; t++)
        for (int k = 0; k < 3; k++) {
            const double want = k == 0 ? 1 : k == 1 ? 1.0 / 64 : 1.0 / 90.5;
            double sum = 0, squares = 0;
            synth_recipe r;
            assert_true(synth_plan(&r, types[t], want));
            for (uint64_t i = 0; i < N / r.block; i++)
                synth_block(&r, 7, i, raw + i * r.bytes);
            quant_decode(types[t], raw, v, N);
            for (int i = 0; i < N; i++) {
                assert_true(isfinite(v[i]));
                sum += (double)v[i];
                squares += (double)v[i] * (double)v[i];
            }
            const double rms = sqrt(squares / N), mean = sum / N;
            if (!(fabs(rms / want - 1) < 0.03 && fabs(mean) < 0.12 * want))
                fail_msg("%s: root mean square %g, mean %g, wanted %g", quant_type_name(types[t]), rms, mean, want);
        }
    free(raw);
    free(v);
}

static void blocks_depend_on_seed_and_index_alone(void **u)
{
    uint8_t a[256], b[256];
    (void)u;
    for (int t = 0; t < TYPES; t++) {
        synth_recipe r;
        assert_true(synth_plan(&r, types[t], 0.5));
        synth_block(&r, 3, 11, a);
        synth_block(&r, 3, 11, b);
        assert_memory_equal(a, b, r.bytes);
        for (int k = 0; k < 2; k++) { /* one number may come out the same, not several in a row */
            bool differs = false;
            for (uint64_t i = 11; i < 14 && !differs; i++) {
                synth_block(&r, 3, i, a);
                synth_block(&r, k ? 4 : 3, k ? i : i + 1, b);
                differs = memcmp(a, b, r.bytes) != 0;
            }
            assert_true(differs);
        }
    }
}

static void what_cannot_be_made_is_refused(void **u)
{
    synth_recipe r;
    (void)u;
    assert_false(synth_plan(&r, Q_Q6_K, 1));
    assert_false(synth_plan(&r, Q_I32, 1));
    assert_false(synth_plan(&r, 12345, 1));
    assert_false(synth_plan(&r, Q_Q8_0, 0));
    assert_false(synth_plan(&r, Q_F16, 1e-9));
    assert_false(synth_plan(&r, Q_Q4_K, 1e9));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_have_the_size_asked_for),
        cmocka_unit_test(blocks_depend_on_seed_and_index_alone),
        cmocka_unit_test(what_cannot_be_made_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
