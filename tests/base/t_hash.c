/* Checksums: known values, fast path against plain, and the properties that state comparison relies on. */
#include "util/unit.h"

#include "base/hash.h"

static uint32_t slow_crc(const uint8_t *p, size_t n)
{
    uint32_t c = 0xffffffffu;
    for (size_t i = 0; i < n; i++)
        for (int b = 0; b < 8; b++) {
            uint32_t bit = (p[i] >> b ^ c) & 1u;
            c = c >> 1 ^ (bit ? 0x82f63b78u : 0u);
        }
    return ~c;
}

static void crc32c_known_values(void **state)
{
    (void)state;
    uint8_t zeros[32] = {0}, ones[32], up[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++)
        up[i] = (uint8_t)i;
    assert_int_equal(hash_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(hash_crc32c(0, zeros, 32), 0x8a9136aau); /* RFC 3720, appendix B.4 */
    assert_int_equal(hash_crc32c(0, ones, 32), 0x62a8ab43u);
    assert_int_equal(hash_crc32c(0, up, 32), 0x46dd794eu);
    assert_int_equal(hash_crc32c(0, "", 0), 0);
}

static void crc32c_paths_agree_for_every_length_and_offset(void **state)
{
    (void)state;
    static const size_t big[] = {8191, 8192, 8193, 20000};
    uint8_t *buf = malloc(20016);
    uint64_t seed = 3;
    for (int i = 0; i < 20016; i++)
        buf[i] = (uint8_t)unit_rand(&seed);
    for (size_t n = 0; n < 70; n++)
        for (size_t at = 0; at < 9; at++) {
            assert_int_equal(hash_crc32c(0, buf + at, n), slow_crc(buf + at, n));
            assert_int_equal(hash_crc32c_plain(0, buf + at, n), slow_crc(buf + at, n));
        }
    for (int k = 0; k < 4; k++) {
        assert_int_equal(hash_crc32c(0, buf + 3, big[k]), slow_crc(buf + 3, big[k]));
        assert_int_equal(hash_crc32c_plain(0, buf + 3, big[k]), slow_crc(buf + 3, big[k]));
    }
    free(buf);
}

static void crc32c_of_pieces_equals_the_whole(void **state)
{
    (void)state;
    const char text[] = "one reduction order per operation";
    for (size_t cut = 0; cut < sizeof text; cut++) {
        uint32_t c = hash_crc32c(0, text, cut);
        assert_int_equal(hash_crc32c(c, text + cut, sizeof text - cut), hash_crc32c(0, text, sizeof text));
    }
}

static void hash64_does_not_depend_on_alignment(void **state)
{
    (void)state;
    char buf[128];
    for (size_t at = 0; at < 16; at++) {
        for (int i = 0; i < 77; i++)
            buf[at + (size_t)i] = (char)(i * 11);
        char first[77];
        memcpy(first, buf + at, 77);
        assert_true(hash64(buf + at, 77, 5) == hash64(first, 77, 5));
    }
}

static void hash64_is_the_same_on_every_machine(void **state)
{
    (void)state;
    /* stored state hashes and test expectations depend on these values: never change them */
    assert_true(hash64("", 0, 0) == 0x873163352feef0e5u);
    assert_true(hash64("abc", 3, 0) == 0xfb956c521389f3eau);
    assert_true(hash64("0123456789abcdef0", 17, 42) == 0x3965fd23020f685au);
}

static void hash64_sees_every_single_bit(void **state)
{
    (void)state;
    uint8_t buf[61];
    uint64_t seed = 9;
    for (size_t i = 0; i < sizeof buf; i++)
        buf[i] = (uint8_t)unit_rand(&seed);
    uint64_t h = hash64(buf, sizeof buf, 1);
    for (size_t bit = 0; bit < 8 * sizeof buf; bit++) {
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        uint64_t other = hash64(buf, sizeof buf, 1);
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int changed = __builtin_popcountll(h ^ other);
        assert_true(changed >= 10 && changed <= 54);
    }
    assert_true(hash64(buf, sizeof buf, 2) != h);
}

static void hash64_tells_zeros_of_different_length_apart(void **state)
{
    (void)state;
    uint8_t zeros[64] = {0};
    for (size_t a = 0; a < 64; a++)
        for (size_t b = 0; b < a; b++)
            assert_true(hash64(zeros, a, 0) != hash64(zeros, b, 0));
    assert_true(hash64("c", 1, hash64("ab", 2, 0)) != hash64("bc", 2, hash64("a", 1, 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_known_values),
        cmocka_unit_test(crc32c_paths_agree_for_every_length_and_offset),
        cmocka_unit_test(crc32c_of_pieces_equals_the_whole),
        cmocka_unit_test(hash64_does_not_depend_on_alignment),
        cmocka_unit_test(hash64_is_the_same_on_every_machine),
        cmocka_unit_test(hash64_sees_every_single_bit),
        cmocka_unit_test(hash64_tells_zeros_of_different_length_apart),
    };
    return cmocka_run_group_tests_name("base/hash", tests, NULL, NULL);
}
