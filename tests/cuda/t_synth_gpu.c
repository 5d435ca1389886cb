/* t_synth_gpu.c: made-up weights must be the same numbers on the device and on the CPU, also where a matrix is made in
 * several pieces; else nothing about a synthetic model on the device is known. */
#include "cuda/util_ops.h"
#include "util/unit.h"

enum { ROWS = 8 };

/* Rows of the table, exactly decoded. */
static void embed_rows(backend *b, uint32_t type, int64_t ne0, int64_t ne1, const int32_t *token, float *out)
{
    ds4_err e = {0};
    int32_t zero[ROWS] = {0};
    be_weight w = {.name = "made", .type = type, .ne0 = ne0, .ne1 = ne1, .ne2 = 1};
    if (b->op->synth(b, &w, 99, 1.5f, &e))
        fail_msg("%s", e.msg);
    be_rows r = {.n = ROWS, .token = ints_to_dev(b, token, ROWS)};
    r.pos = r.seq = ints_to_dev(b, zero, ROWS);
    float *streams = dev_room(b, (size_t)(ROWS * ne0));
    b->op->embed(b, &r, &w, streams);
    b->op->download(b, out, streams, (size_t)(ROWS * ne0) * sizeof *out);
    check_guards(b, streams, (size_t)(ROWS * ne0));
}

static void compare(uint32_t type, int64_t ne0, int64_t ne1)
{
    const size_t n = (size_t)(ROWS * ne0);
    be_dims dims = {.d = (int)ne0, .streams = 1, .vocab = (int)ne1};
    int32_t token[ROWS];
    for (int i = 0; i < ROWS; i++)
        token[i] = (int32_t)((ne1 - 1) * i / (ROWS - 1));
    backend *gpu = open_gpu(BE_ACT_FLOAT, &dims), *cpu = open_cpu(BE_ACT_FLOAT, &dims);
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
    embed_rows(gpu, type, ne0, ne1, token, a);
    embed_rows(cpu, type, ne0, ne1, token, b);
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i])
            fail_msg("type %s, row %d, number %zu is %g, on the CPU %g", quant_type_name(type), token[i / (size_t)ne0],
                     i % (size_t)ne0, (double)a[i], (double)b[i]);
    free(a);
    free(b);
    close_clean(gpu);
    close_clean(cpu);
}

static void numbers_are_those_of_the_cpu(void **state)
{
    static const uint32_t types[] = {Q_F32, Q_F16, Q_BF16, Q_Q8_0, Q_Q4_0, Q_Q2_K, Q_Q4_K, Q_IQ2_XXS, Q_MXFP4};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        compare(types[i], 512, 48);
        compare(types[i], 256, 37); /* no multiple of 16 */
    }
}

static void pieces_join(void **state)
{
    (void)state;
    compare(Q_Q8_0, 4096, 16000);
    compare(Q_Q4_K, 4096, 30000);
}

static void what_cannot_be_made_is_refused(void **state)
{
    (void)state;
    be_dims dims = {.d = 256};
    ds4_err e = {0};
    backend *gpu = open_gpu(BE_ACT_FLOAT, &dims);
    be_weight w = {.name = "made", .type = Q_Q6_K, .ne0 = 256, .ne1 = 16, .ne2 = 1};
    assert_int_equal(gpu->op->synth(gpu, &w, 1, 1, &e), DS4_EMODEL);
    assert_has(e.msg, "made");
    close_clean(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_the_cpu),
        cmocka_unit_test(pieces_join),
        cmocka_unit_test(what_cannot_be_made_is_refused),
    };
    return cmocka_run_group_tests_name("cuda synth", tests, NULL, NULL);
}
