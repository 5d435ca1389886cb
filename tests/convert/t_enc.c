/* Encoders: error bounds, recovery of what is already on a grid, hard inputs. */
#include "convert/util_convert.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "convert/enc.h"
#include "file/quant.h"

enum { N = 256 * 64 };

static const struct { uint32_t type; double bound; } cases[] = { /* relative RMS error on gaussian data */
    {Q_F32, 0}, {Q_F16, 3e-4}, {Q_BF16, 2.5e-3}, {Q_Q8_0, 6e-3}, {Q_Q4_K, 0.073}, {Q_Q2_K, 0.265}, {Q_IQ2_XXS, 0.332},
    {Q_MXFP4, 0.115},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static float x[N], y[N], z[N];
static uint8_t a[N * 4], b[N * 4];

static double weighted_error(const float *p, const float *q, const float *w, size_t n)
{
    double err = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)p[i] - q[i], wi = w ? w[i % 256] : 1;
        err += wi * d * d;
        all += wi * (double)p[i] * p[i];
    }
    return sqrt(err / all);
}

static void gaussian(float scale)
{
    rng r = {99};
    for (int i = 0; i < N; i++)
        x[i] = rng_gauss(&r) * scale;
}

static void error_on_gaussian_data_within_bounds(void **state)
{
    (void)state;
    gaussian(0.02f);
    for (int c = 0; c < N_CASES; c++) {
        enc_row(cases[c].type, x, NULL, a, N);
        quant_decode(cases[c].type, a, y, N);
        double err = weighted_error(x, y, NULL, N);
        if (err > cases[c].bound)
            fail_msg("%s: relative error %g above %g", quant_type_name(cases[c].type), err, cases[c].bound);
    }
}

/* Runs of 32 values with sizes spread over a factor of e^4, and heavy tails: no block may go wrong as a whole. */
static void no_single_block_is_lost_on_uneven_data(void **state)
{
    rng r = {4711};
    float size = 1;
    (void)state;
    for (int c = 0; c < N_CASES; c++)
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < N; i++) {
                if (i % 32 == 0)
                    size = expf(rng_gauss(&r)) * 0.01f;
                x[i] = rng_gauss(&r) * (k & 1 ? size : 0.01f) / (k & 2 ? fabsf(rng_gauss(&r)) + 0.05f : 1);
            }
            enc_row(cases[c].type, x, NULL, a, N);
            quant_decode(cases[c].type, a, y, N);
            for (int i = 0; i < N; i += 256) {
                double err = weighted_error(x + i, y + i, NULL, 256);
                if (err > (cases[c].bound > 0.1 ? 0.75 : 0.3))
                    fail_msg("%s, data %d, block %d: relative error %g", quant_type_name(cases[c].type), k, i / 256,
                             err);
            }
            enc_row(cases[c].type, y, NULL, b, N); /* and again: what is on a grid stays near it */
            quant_decode(cases[c].type, b, z, N);
            for (int i = 0; i < N; i += 256) {
                double err = weighted_error(y + i, z + i, NULL, 256);
                if (err > 0.15)
                    fail_msg("%s, data %d, block %d: encoding again changes it by %g", quant_type_name(cases[c].type),
                             k, i / 256, err);
            }
        }
}

static void encoding_decoded_blocks_changes_nothing(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        gaussian(k == 0 ? 0.02f : k == 1 ? 3.0f : 0.0007f);
        for (int c = 0; c < N_CASES; c++) {
            enc_row(cases[c].type, x, NULL, a, N);
            quant_decode(cases[c].type, a, y, N);
            enc_row(cases[c].type, y, NULL, b, N);
            quant_decode(cases[c].type, b, z, N);
            for (int i = 0; i < N; i++)
                if (y[i] != z[i])
                    fail_msg("%s, scale %d: value %d: %g became %g", quant_type_name(cases[c].type), k, i, (double)y[i],
                             (double)z[i]);
        }
    }
}

/* Random bytes as blocks (finite scales): IQ2_XXS and MXFP4 must come back exactly. */
static void random_grid_blocks_recovered(void **state)
{
    rng r = {5};
    (void)state;
    for (int blk = 0; blk < 200; blk++) {
        quant_iq2_xxs q;
        quant_mxfp4 m;
        q.d = num_to_f16(ldexpf(1.0f + (float)(rng_u32(&r) % 1024) / 1024.0f, (int)(rng_u32(&r) % 10) - 12));
        for (int i = 0; i < 32; i++)
            q.q[i] = (uint16_t)rng_u32(&r);
        quant_decode(Q_IQ2_XXS, &q, x, 256);
        enc_row(Q_IQ2_XXS, x, NULL, a, 256);
        quant_decode(Q_IQ2_XXS, a, y, 256);
        assert_memory_equal(x, y, 256 * sizeof *x);
        m.e = (uint8_t)(rng_u32(&r) % 250);
        for (int i = 0; i < 16; i++)
            m.q[i] = (uint8_t)rng_u32(&r);
        quant_decode(Q_MXFP4, &m, x, 32);
        enc_row(Q_MXFP4, x, NULL, a, 32);
        quant_decode(Q_MXFP4, a, y, 32);
        for (int i = 0; i < 32; i++)
            assert_true(x[i] == y[i]);
    }
}

/* Q2_K and Q4_K blocks of random codes: not every block shows its steps, nearly all must. */
static void random_affine_blocks_mostly_recovered(void **state)
{
    rng r = {6};
    int exact2 = 0, exact4 = 0;
    (void)state;
    for (int blk = 0; blk < 100; blk++) {
        quant_q2_k k2;
        quant_q4_k k4;
        for (size_t i = 0; i < sizeof k2; i++)
            ((uint8_t *)&k2)[i] = (uint8_t)rng_u32(&r);
        for (size_t i = 0; i < sizeof k4; i++)
            ((uint8_t *)&k4)[i] = (uint8_t)rng_u32(&r);
        k2.d = k4.d = num_to_f16(0.001f + (float)(rng_u32(&r) % 1000) * 1e-5f);
        k2.dmin = k4.dmin = num_to_f16(0.001f + (float)(rng_u32(&r) % 1000) * 1e-5f);
        quant_decode(Q_Q2_K, &k2, x, 256);
        enc_row(Q_Q2_K, x, NULL, a, 256);
        quant_decode(Q_Q2_K, a, y, 256);
        exact2 += weighted_error(x, y, NULL, 256) < 1e-6;
        quant_decode(Q_Q4_K, &k4, x, 256);
        enc_row(Q_Q4_K, x, NULL, a, 256);
        quant_decode(Q_Q4_K, a, y, 256);
        exact4 += weighted_error(x, y, NULL, 256) < 1e-6;
    }
    if (exact2 < 90 || exact4 < 90)
        fail_msg("recovered %d of 100 Q2_K and %d of 100 Q4_K blocks", exact2, exact4);
}

static void zero_blocks_stay_zero(void **state)
{
    (void)state;
    memset(x, 0, sizeof x);
    for (int c = 0; c < N_CASES; c++) {
        memset(a, 0xff, sizeof a);
        enc_row(cases[c].type, x, NULL, a, 512);
        quant_decode(cases[c].type, a, y, 512);
        for (int i = 0; i < 512; i++)
            assert_true(y[i] == 0);
    }
}

/* One large value among denormals, all denormal, single signs, constants: finite output, no error above
 * the block's maximum (IQ2_XXS: twice that, since parity may force a wrong sign). */
static void hard_blocks_stay_finite_and_bounded(void **state)
{
    (void)state;
    for (int k = 0; k < 8; k++) {
        float amax = 0;
        for (int i = 0; i < 256; i++) {
            float s = i % 3 == 1 ? -1 : 1;
            const float v[8] = {1e-42f * (float)i * s, FLT_MIN * s, 1e-20f * s, i ? 1e-40f : 5,
                                7.25f, -0.125f, 3e4f * s, i == 17 ? -1e-7f : 0};
            x[i] = v[k];
            amax = fmaxf(amax, fabsf(x[i]));
        }
        for (int c = 0; c < N_CASES; c++) {
            if (enc_find_overflow(cases[c].type, x, 256) < 256)
                continue;
            enc_row(cases[c].type, x, NULL, a, 256);
            quant_decode(cases[c].type, a, y, 256);
            for (int i = 0; i < 256; i++)
                if (!(fabsf(y[i] - x[i]) <= amax * (cases[c].type == Q_IQ2_XXS ? 2 : 1.01f)))
                    fail_msg("%s, case %d, value %d: %g became %g", quant_type_name(cases[c].type), k, i, (double)x[i],
                             (double)y[i]);
        }
    }
}

static void importance_lowers_the_weighted_error(void **state)
{
    static const uint32_t types[] = {Q_IQ2_XXS, Q_Q2_K, Q_Q4_K, Q_MXFP4};
    float w[256], all[N];
    rng r = {8};
    (void)state;
    gaussian(1);
    for (int i = 0; i < 256; i++)
        w[i] = expf(3 * rng_gauss(&r));
    for (int i = 0; i < N; i++)
        all[i] = w[i % 256];
    for (int t = 0; t < 4; t++) {
        enc_row(types[t], x, NULL, a, N);
        enc_row(types[t], x, all, b, N);
        quant_decode(types[t], a, y, N);
        quant_decode(types[t], b, z, N);
        double plain = weighted_error(x, y, w, N), with = weighted_error(x, z, w, N);
        if (!(with < plain * 0.99))
            fail_msg("%s: %g with importance, %g without", quant_type_name(types[t]), with, plain);
    }
}

/* Smallest squared error of 8 values over all grid rows and all legal signs. */
static double best_row_error(const float *v, double db)
{
    double best = INFINITY;
    for (int g = 0; g < 256; g++)
        for (int sign = 0; sign < 128; sign++) {
            double err = 0;
            for (int i = 0; i < 8; i++) {
                double m = db * (double)(quant_iq2xxs_grid[g] >> (8 * i) & 255);
                double d = v[i] - (quant_iq2xxs_signs[sign] >> i & 1 ? -m : m);
                err += d * d;
            }
            best = err < best ? err : best;
        }
    return best;
}

/* For the scales the encoder chose, no grid row with any legal signs may be better than its own; odd blocks are
 * uniform, where the price of a forced sign decides more often. */
static void iq2_xxs_rows_are_optimal(void **state)
{
    (void)state;
    rng r = {31};
    for (int blk = 0; blk < 8; blk++) {
        quant_iq2_xxs q;
        for (int i = 0; i < 256; i++) {
            x[i] = rng_gauss(&r) * 0.5f;
            if (blk & 1)
                x[i] = (x[i] < 0 ? -1 : 1) * (float)(rng_u32(&r) % 1000) / 1000;
        }
        enc_row(Q_IQ2_XXS, x, NULL, &q, 256);
        quant_decode(Q_IQ2_XXS, &q, y, 256);
        for (int row = 0; row < 32; row++) {
            int s = q.q[row / 4 * 4 + 3] >> 12;
            double own = 0, best = best_row_error(x + 8 * row, (double)num_f16(q.d) * (2 * s + 1) * 0.125);
            for (int i = 8 * row; i < 8 * row + 8; i++)
                own += (double)(x[i] - y[i]) * (x[i] - y[i]);
            if (own > best * 1.0001 + 1e-9)
                fail_msg("block %d, row %d: error %g, best %g", blk, row, own, best);
        }
    }
}

static void bad_values_are_found(void **state)
{
    (void)state;
    float v[4] = {1, -2, 0, 3};
    assert_int_equal(enc_find_nonfinite(v, 4), 4);
    v[2] = NAN;
    assert_int_equal(enc_find_nonfinite(v, 4), 2);
    v[1] = -INFINITY;
    assert_int_equal(enc_find_nonfinite(v, 4), 1);
    float w[3] = {65504, 65519, -65520};
    assert_int_equal(enc_find_overflow(Q_F16, w, 3), 2);
    assert_int_equal(enc_find_overflow(Q_F16, w, 2), 2);
    assert_int_equal(enc_find_overflow(Q_F32, w, 3), 3);
    assert_true(isinf(num_f16(num_to_f16(65520))) && !isinf(num_f16(num_to_f16(65519))));
}

static void type_names_in_any_case(void **state)
{
    uint32_t t = 0;
    (void)state;
    assert_true(enc_type_by_name("iq2_xxs", &t) && t == Q_IQ2_XXS);
    assert_true(enc_type_by_name("Q8_0", &t) && t == Q_Q8_0);
    assert_false(enc_type_by_name("q8", &t));
    assert_false(enc_type_by_name("Q6_K", &t));
    assert_false(enc_type_by_name("", &t));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_on_gaussian_data_within_bounds),
        cmocka_unit_test(no_single_block_is_lost_on_uneven_data),
        cmocka_unit_test(encoding_decoded_blocks_changes_nothing),
        cmocka_unit_test(random_grid_blocks_recovered),
        cmocka_unit_test(random_affine_blocks_mostly_recovered),
        cmocka_unit_test(zero_blocks_stay_zero),
        cmocka_unit_test(hard_blocks_stay_finite_and_bounded),
        cmocka_unit_test(importance_lowers_the_weighted_error),
        cmocka_unit_test(iq2_xxs_rows_are_optimal),
        cmocka_unit_test(bad_values_are_found),
        cmocka_unit_test(type_names_in_any_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
