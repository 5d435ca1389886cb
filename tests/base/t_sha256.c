/* t_sha256.c: the standard's examples, and feeding in parts. */
#include "util/unit.h"

#include "base/sha256.h"

static void digests_of_the_standard(void **state)
{
    (void)state;
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    char hex[65], *million = malloc(1000000);
    sha256_hex("", 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha256_hex("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_hex(two, strlen(two), hex);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    memset(million, 'a', 1000000);
    sha256_hex(million, 1000000, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

static void parts_of_any_length_give_the_same_digest(void **state)
{
    (void)state;
    uint8_t data[300], whole[32], parts[32];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    for (size_t n = 0; n <= sizeof data; n++)
        for (size_t step = 1; step < 140; step += 23) {
            sha256 a, b;
            sha256_init(&a);
            sha256_init(&b);
            sha256_update(&a, data, n);
            for (size_t at = 0; at < n; at += step)
                sha256_update(&b, data + at, at + step < n ? step : n - at);
            sha256_final(&a, whole);
            sha256_final(&b, parts);
            assert_memory_equal(whole, parts, 32);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_of_the_standard),
        cmocka_unit_test(parts_of_any_length_give_the_same_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
