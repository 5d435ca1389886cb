/* t_narrow.c: row invariance of every operation on the device: the bits of a row are the same alone and among 2..16
 * rows, in any order. (The whole forward: tests/model/t_narrow.c with DS4_TEST_BACKEND=cuda.) */
#include "cuda/util_ops.h"
#include "util/unit.h"

static void compare(const op_case *c, const int *which, int n, const float *got, const float *alone)
{
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < c->width; i++)
            if (memcmp(got + (size_t)r * c->width + i, alone + (size_t)which[r] * c->width + i, sizeof *got))
                fail_msg("%s, %d rows: row %d (number %d of the pool) differs at %zu: %.9g, alone %.9g", c->name, n, r,
                         which[r], i, (double)got[(size_t)r * c->width + i],
                         (double)alone[(size_t)which[r] * c->width + i]);
}

static void check_case(const op_case *c)
{
    float *alone = malloc((size_t)c->rows * c->width * sizeof *alone), *got = malloc(64 * c->width * sizeof *got);
    rng g = {5};
    backend *b = open_gpu(c->act, &c->dims);
    for (int i = 0; i < c->rows; i++)
        c->run(b, c, &i, 1, alone + (size_t)i * c->width);
    for (int n = 2; n <= 64; n += n < 16 ? 1 : n == 16 ? 17 : 31) { /* .. 16, 33, 64 */
        int which[64], start = rng_below(&g, c->rows);
        if (n > c->rows && c->distinct)
            break;
        for (int i = 0; i < n; i++)
            which[i] = (start + i) % c->rows;
        for (int round = 0; round < 2; round++) {
            c->run(b, c, which, n, got);
            compare(c, which, n, got, alone);
            for (int i = n - 1; i > 0; i--) {
                int o = rng_below(&g, i + 1), t = which[i];
                which[i] = which[o];
                which[o] = t;
            }
        }
        if (getenv("DS4_TEST_EMU") && n >= 3 && n < 15) /* slow there: 2, 3, 9, 15, 16 */
            n = n == 3 ? 8 : 14;
        if (getenv("DS4_TEST_EMU") && n >= 33)
            break;
    }
    close_clean(b);
    free(alone);
    free(got);
}

static void every_operation_is_row_invariant(void **state)
{
    (void)state;
    int n;
    op_case *c = op_cases(&n);
    for (int i = 0; i < n; i++) {
        print_message("  %s\n", c[i].name);
        check_case(&c[i]);
    }
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_operation_is_row_invariant)};
    return cmocka_run_group_tests_name("cuda row invariance", tests, NULL, NULL);
}
