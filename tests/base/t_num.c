/* Small number formats against slow definitions in double, and the simulated roundings against golden vectors. */
#include "util/unit.h"

#include <math.h>

#include "base/num.h"
#include "util/npy.h"

/* Value of a float with e exponent and m mantissa bits by its definition; no infinities, no NaN. */
static double slow_value(unsigned code, int ebits, int mbits, int bias)
{
    int man = code & ((1 << mbits) - 1), exp = (int)(code >> mbits) & ((1 << ebits) - 1);
    double v = exp ? ldexp(1.0 + man * pow(2, -mbits), exp - bias) : ldexp(man * pow(2, -mbits), 1 - bias);
    return code >> (ebits + mbits) & 1 ? -v : v;
}

/* Nearest code of 0..n_codes-1 (magnitudes, increasing), a tie to the even code, above the last one: the last one. */
static unsigned slow_nearest(double x, unsigned n_codes, int ebits, int mbits, int bias)
{
    unsigned best = 0;
    double best_d = INFINITY;
    for (unsigned c = 0; c < n_codes; c++) {
        double d = fabs(fabs(x) - slow_value(c, ebits, mbits, bias));
        if (d < best_d || (d == best_d && !(c & 1))) {
            best = c;
            best_d = d;
        }
    }
    return best;
}

static void f16_every_code_has_its_value(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 65536; c++) {
        float v = num_f16((uint16_t)c);
        if ((c & 0x7fff) == 0x7c00)
            assert_true(isinf(v) && !signbit(v) == !(c & 0x8000));
        else if ((c & 0x7fff) > 0x7c00)
            assert_true(isnan(v));
        else
            assert_true((double)v == slow_value(c, 5, 10, 15) && !signbit(v) == !(c & 0x8000));
    }
}

static void f16_every_code_survives_the_round_trip(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 65536; c++) {
        uint16_t back = num_to_f16(num_f16((uint16_t)c));
        if ((c & 0x7fff) > 0x7c00)
            assert_true((back & 0x7c00) == 0x7c00 && (back & 0x3ff));
        else
            assert_int_equal(back, c);
    }
}

/* Between neighbouring codes lo and lo+1: just below, at and just above the midpoint. */
static void f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (unsigned lo = 0; lo < 0x7c00; lo++) {
        double up = lo + 1 == 0x7c00 ? 65536.0 : slow_value(lo + 1, 5, 10, 15);
        float mid = (float)((slow_value(lo, 5, 10, 15) + up) / 2);
        unsigned even = lo & 1 ? lo + 1 : lo;
        assert_int_equal(num_to_f16(mid), even);
        assert_int_equal(num_to_f16(-mid), even | 0x8000);
        assert_int_equal(num_to_f16(nextafterf(mid, 0)), lo);
        assert_int_equal(num_to_f16(nextafterf(mid, INFINITY)), lo + 1);
    }
    assert_int_equal(num_to_f16(1e-30f), 0);
    assert_int_equal(num_to_f16(-1e-30f), 0x8000);
    assert_int_equal(num_to_f16(3e38f), 0x7c00);
    assert_int_equal(num_to_f16(-INFINITY), 0xfc00);
}

static void bf16_rounds_to_nearest_even_and_keeps_nan(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 65536; c++) {
        if ((c & 0x7fff) > 0x7f80) {
            assert_true(isnan(num_bf16(num_to_bf16(num_bf16((uint16_t)c)))));
            continue;
        }
        assert_int_equal(num_to_bf16(num_bf16((uint16_t)c)), c);
        if ((c & 0x7fff) == 0x7f80)
            continue;
        uint32_t mid = c << 16 | 0x8000u;
        assert_int_equal(num_to_bf16(num_float(mid - 1)), c);
        assert_int_equal(num_to_bf16(num_float(mid)), c & 1 ? c + 1 : c);
        assert_int_equal(num_to_bf16(num_float(mid + 1)), c + 1);
    }
    assert_true(isnan(num_bf16(num_to_bf16(num_float(0x7f800001u)))));
}

static void e8m0_is_a_power_of_two(void **state)
{
    (void)state;
    for (int c = 0; c < 255; c++)
        assert_true((double)num_e8m0((uint8_t)c) == ldexp(1.0, c - 127));
    assert_true(isnan(num_e8m0(255)));
}

static void e4m3_every_code_has_its_value(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 256; c++) {
        float v = num_e4m3((uint8_t)c);
        if ((c & 0x7f) == 0x7f) {
            assert_true(isnan(v));
            continue;
        }
        assert_true((double)v == slow_value(c, 4, 3, 7) && !signbit(v) == !(c & 0x80));
        assert_int_equal(num_to_e4m3(v), c);
    }
}

static void e4m3_rounds_to_nearest_even_and_saturates(void **state)
{
    (void)state;
    for (unsigned lo = 0; lo < 0x7e; lo++) {
        float mid = (float)((slow_value(lo, 4, 3, 7) + slow_value(lo + 1, 4, 3, 7)) / 2);
        assert_int_equal(num_to_e4m3(mid), lo & 1 ? lo + 1 : lo);
        assert_int_equal(num_to_e4m3(nextafterf(mid, 0)), lo);
        assert_int_equal(num_to_e4m3(-nextafterf(mid, 1e9f)), (lo + 1) | 0x80);
    }
    const float big[] = {448, 460, 464, 480, 1e30f, INFINITY};
    for (size_t i = 0; i < sizeof big / sizeof *big; i++) {
        assert_int_equal(num_to_e4m3(big[i]), 0x7e);
        assert_int_equal(num_to_e4m3(-big[i]), 0xfe);
    }
    assert_int_equal(num_to_e4m3(NAN) & 0x7f, 0x7f);
    uint64_t seed = 1;
    for (int i = 0; i < 20000; i++) {
        float x = num_float((uint32_t)(unit_rand(&seed) & 0x1fffffff) + 0x38000000u);
        if (x < 1e6f)
            assert_int_equal(num_to_e4m3(x), slow_nearest((double)x, 0x7f, 4, 3, 7));
    }
}

static void e2m1_ties_go_to_the_even_code(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 16; c++) {
        assert_true((double)num_e2m1((uint8_t)c) == slow_value(c, 2, 1, 1));
        assert_int_equal(num_to_e2m1(num_e2m1((uint8_t)c)), c);
    }
    for (int i = 0; i <= 4000; i++) { /* steps of 1/512 meet every tie */
        float x = (float)i / 512.0f;
        unsigned want = slow_nearest((double)x, 8, 2, 1, 1);
        assert_int_equal(num_to_e2m1(x), want);
        assert_int_equal(num_to_e2m1(-x), want | 8);
    }
    assert_int_equal(num_to_e2m1(1e30f), 7);
    assert_int_equal(num_to_e2m1(-INFINITY), 15);
}

static void ceil_log2_is_exact_at_powers_of_two(void **state)
{
    (void)state;
    for (int e = -126; e <= 127; e++) {
        float p = ldexpf(1.0f, e);
        assert_int_equal(num_ceil_log2(p), e);
        if (e < 127)
            assert_int_equal(num_ceil_log2(nextafterf(p, INFINITY)), e + 1);
        if (e > -126)
            assert_int_equal(num_ceil_log2(nextafterf(p, 0)), e);
    }
}

/* 1e-6 alone: with the floor of 1e-4 the scale is 2^-22, so the value is 4 steps of it. */
static void the_fp8_scale_has_a_floor(void **state)
{
    (void)state;
    float v[64] = {[5] = 1e-6f};
    num_sim_fp8(v, 64);
    assert_true(v[5] == 0x1p-20f);
    assert_true(v[6] == 0);
}

static void simulation_survives_extreme_blocks(void **state)
{
    (void)state;
    float v[64];
    for (int i = 0; i < 64; i++)
        v[i] = i % 2 ? 3e38f : -1e-45f;
    num_sim_fp8(v, 64);
    for (int i = 0; i < 64; i++)
        assert_true(isfinite(v[i]));
    for (int i = 0; i < 64; i++)
        v[i] = i % 2 ? 1e-45f : 0;
    num_sim_fp4(v, 64);
    for (int i = 0; i < 64; i++)
        assert_true(isfinite(v[i]));
}

static void hadamard_is_its_own_inverse(void **state)
{
    (void)state;
    float v[128], w[128];
    for (int i = 0; i < 128; i++)
        v[i] = w[i] = (float)((i * 37) % 101) - 50.0f;
    num_hadamard(w, 128);
    num_hadamard(w, 128);
    for (int i = 0; i < 128; i++)
        assert_true(fabsf(v[i] - w[i]) < 1e-4f);
}

static void hadamard(float *v, int n) { num_hadamard(v, n); }

static void hadamard_fp4(float *v, int n)
{
    num_hadamard(v, n);
    num_sim_fp4(v, n);
}

/* Applies f to each row of `in` and compares with `out` bit for bit (zero signs aside). Returns 0 when there is no
 * data. */
static int golden_rows(const char *in, const char *out, void (*f)(float *, int))
{
    npy a, b;
    if (!golden_npy(&a, in) || !golden_npy(&b, out))
        return 0;
    assert_int_equal(a.count, b.count);
    int width = (int)a.shape[1];
    for (size_t r = 0; r < a.shape[0]; r++)
        f(a.f + r * a.shape[1], width);
    for (size_t i = 0; i < a.count; i++)
        if (a.f[i] != b.f[i])
            fail_msg("%s: element %zu is %.9g, golden %.9g", out, i, (double)a.f[i], (double)b.f[i]);
    npy_free(&a);
    npy_free(&b);
    return 1;
}

static void simulated_fp8_equals_the_reference(void **state)
{
    (void)state;
    if (!golden_rows("oracle_a/unit_fp8_in.npy", "oracle_a/unit_fp8_out.npy", num_sim_fp8))
        UNIT_SKIP("no golden data");
}

static void simulated_fp4_equals_the_reference(void **state)
{
    (void)state;
    if (!golden_rows("oracle_a/unit_fp4_in.npy", "oracle_a/unit_fp4_out.npy", num_sim_fp4))
        UNIT_SKIP("no golden data");
}

static void hadamard_equals_the_reference(void **state)
{
    (void)state;
    if (!golden_rows("oracle_a/unit_fp4_in.npy", "oracle_a/unit_hadamard_out.npy", hadamard))
        UNIT_SKIP("no golden data");
}

static void hadamard_then_fp4_equals_the_reference(void **state)
{
    (void)state;
    if (!golden_rows("oracle_a/unit_fp4_in.npy", "oracle_a/unit_hadamard_fp4_out.npy", hadamard_fp4))
        UNIT_SKIP("no golden data");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_every_code_has_its_value),
        cmocka_unit_test(f16_every_code_survives_the_round_trip),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even_and_keeps_nan),
        cmocka_unit_test(e8m0_is_a_power_of_two),
        cmocka_unit_test(e4m3_every_code_has_its_value),
        cmocka_unit_test(e4m3_rounds_to_nearest_even_and_saturates),
        cmocka_unit_test(e2m1_ties_go_to_the_even_code),
        cmocka_unit_test(ceil_log2_is_exact_at_powers_of_two),
        cmocka_unit_test(the_fp8_scale_has_a_floor),
        cmocka_unit_test(simulation_survives_extreme_blocks),
        cmocka_unit_test(hadamard_is_its_own_inverse),
        cmocka_unit_test(simulated_fp8_equals_the_reference),
        cmocka_unit_test(simulated_fp4_equals_the_reference),
        cmocka_unit_test(hadamard_equals_the_reference),
        cmocka_unit_test(hadamard_then_fp4_equals_the_reference),
    };
    return cmocka_run_group_tests_name("base/num", tests, NULL, NULL);
}
