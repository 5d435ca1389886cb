/* Damaged files: thousands of seeded mutations of a good file. Each must be read or refused with one line. */
#include "util/unit.h"

#include "util_gguf.h"

/* 1 if read, 0 if refused. `b` is freed. */
static int try_open(bytes b, uint64_t seed)
{
    gguf *g = NULL;
    ds4_err e = {0};
    int rc = gguf_open_mem(&g, b.p, b.n, "m.gguf", &e);
    if (!rc) {
        (void)use_everything(g);
        gguf_close(g);
    } else if (rc != DS4_EFORMAT || e.code != rc || strncmp(e.msg, "m.gguf: ", 8) || strlen(e.msg) < 20) {
        fail_msg("mutation %llu: code %d, message '%s'", (unsigned long long)seed, rc, e.msg);
    }
    free(b.p);
    return !rc;
}

static const uint64_t interesting[] = {
    0, 1, 2, 3, 7, 8, 9, 12, 13, 31, 32, 33, 64, 255, 256, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff,
    1ull << 32, 1ull << 60, 1ull << 61, 1ull << 62, 1ull << 63, UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 7,
    UINT64_MAX - 31, UINT64_MAX - 63,
};

static void mutate(bytes *b, uint64_t *seed)
{
    size_t at = unit_rand(seed) % b->n, width = 1u << unit_rand(seed) % 4;
    uint64_t v = interesting[unit_rand(seed) % (sizeof interesting / sizeof *interesting)];
    if (at + width > b->n)
        at = b->n - width;
    switch (unit_rand(seed) % 4) {
    case 0: b->p[at] ^= (uint8_t)(1u << unit_rand(seed) % 8); break;
    case 1: b->p[at] = (uint8_t)unit_rand(seed); break;
    case 2: memcpy(b->p + at, &v, width); break;
    default: memmove(b->p + at, b->p + unit_rand(seed) % (b->n - width + 1), width); break;
    }
}

static void random_damage_is_survived(void **state)
{
    (void)state;
    bytes good = good_file();
    size_t directory = good.n - 593;
    int read = 0, total = 60000;
    for (int i = 0; i < total; i++) {
        uint64_t seed = (uint64_t)i;
        bytes b = copy_of(good, good.n);
        size_t whole = b.n;
        b.n = directory; /* damage to weights is invisible to the reader */
        for (uint64_t k = 0, n = 1 + unit_rand(&seed) % 4; k < n; k++)
            mutate(&b, &seed);
        b.n = whole;
        if (unit_rand(&seed) % 8 == 0) {
            bytes cut = copy_of(b, unit_rand(&seed) % whole);
            free(b.p);
            b = cut;
        }
        read += try_open(b, (uint64_t)i);
    }
    free(good.p);
    assert_true(read > total / 50 && read < total * 49 / 50); /* both outcomes are exercised */
}

static void every_number_at_every_place_is_survived(void **state)
{
    (void)state;
    bytes good = good_file();
    for (size_t at = 0; at + 8 <= good.n - 593; at++)
        for (size_t k = 0; k < sizeof interesting / sizeof *interesting; k++) {
            bytes b = copy_of(good, good.n);
            memcpy(b.p + at, &interesting[k], k % 3 ? 8 : 4);
            try_open(b, at * 1000 + k);
        }
    free(good.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_damage_is_survived),
        cmocka_unit_test(every_number_at_every_place_is_survived),
    };
    return cmocka_run_group_tests_name("file/mutate", tests, NULL, NULL);
}
