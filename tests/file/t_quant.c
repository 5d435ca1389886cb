/* Decoding of every block format against a second decoder that works element by element from the format's description,
 * and, where the Python package `gguf` is installed, against that package. */
#include "util/unit.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/num.h"
#include "file/quant.h"

static const uint32_t all_types[] = {Q_F32, Q_F16, Q_BF16, Q_Q8_0, Q_Q4_0, Q_Q2_K, Q_Q3_K, Q_Q4_K, Q_Q5_K, Q_Q6_K,
                                     Q_IQ2_XXS, Q_MXFP4};
enum { N_TYPES = sizeof all_types / sizeof *all_types };

/* The second decoder: b points to one block, i is the element in it. */

static double half_at(const uint8_t *p)
{
    int exp = p[1] >> 2 & 31, man = p[0] | (p[1] & 3) << 8;
    double v = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
    return p[1] & 128 ? -v : v;
}

static int bits(const uint8_t *b, int byte, int shift, int count) { return b[byte] >> shift & ((1 << count) - 1); }

static double slow_q2_k(const uint8_t *b, int i)
{
    int hf = i / 128, s = i % 128 / 32, l = i % 32, scale = b[8 * hf + 2 * s + l / 16];
    return half_at(b + 80) * (scale % 16) * bits(b, 16 + 32 * hf + l, 2 * s, 2) - half_at(b + 82) * (scale / 16);
}

static double slow_q3_k(const uint8_t *b, int i)
{
    const uint8_t *packed = b + 96;
    int hf = i / 128, si = i % 128 / 32, l = i % 32, j = 8 * hf + 2 * si + l / 16;
    int low = j < 8 ? packed[j] % 16 : packed[j - 8] / 16;
    int high = packed[8 + j % 4] >> 2 * (j / 4) & 3;
    int q = bits(b, 32 + 32 * hf + l, 2 * si, 2) - 4 * !bits(b, l, 4 * hf + si, 1);
    return half_at(b + 108) * (low + 16 * high - 32) * q;
}

static void slow_k4(const uint8_t *packed, int j, int *sc, int *m)
{
    if (j < 4) {
        *sc = packed[j] % 64;
        *m = packed[j + 4] % 64;
    } else {
        *sc = packed[j + 4] % 16 + 16 * (packed[j - 4] / 64);
        *m = packed[j + 4] / 16 + 16 * (packed[j] / 64);
    }
}

static double slow_q4_k(const uint8_t *b, int i)
{
    int sc, m, j = i / 32;
    slow_k4(b + 4, j, &sc, &m);
    return half_at(b) * sc * bits(b, 16 + 32 * (j / 2) + i % 32, 4 * (j % 2), 4) - half_at(b + 2) * m;
}

static double slow_q5_k(const uint8_t *b, int i)
{
    int sc, m, j = i / 32, l = i % 32;
    slow_k4(b + 4, j, &sc, &m);
    int q = bits(b, 48 + 32 * (j / 2) + l, 4 * (j % 2), 4) + 16 * bits(b, 16 + l, j, 1);
    return half_at(b) * sc * q - half_at(b + 2) * m;
}

static double slow_q6_k(const uint8_t *b, int i)
{
    int hf = i / 128, k = i % 128 / 32, l = i % 32;
    static const int low_byte[4] = {0, 32, 0, 32}, low_shift[4] = {0, 0, 4, 4};
    int q = bits(b, 64 * hf + low_byte[k] + l, low_shift[k], 4) + 16 * bits(b, 128 + 32 * hf + l, 2 * k, 2) - 32;
    return half_at(b + 208) * (int8_t)b[192 + 8 * hf + l / 16 + 2 * k] * q;
}

static double slow_iq2_xxs(const uint8_t *b, int i)
{
    const uint8_t *g = b + 2 + 8 * (i / 32);
    int l = i % 32 / 8, at = i % 8;
    uint32_t aux = g[4] | g[5] << 8 | g[6] << 16 | (uint32_t)g[7] << 24;
    int index = aux >> 7 * l & 127, ones = 0;
    for (int k = 0; k < 7; k++)
        ones += index >> k & 1;
    int negative = at < 7 ? index >> at & 1 : ones & 1;
    double v = half_at(b) * (0.5 + (aux >> 28)) * 0.25 * (double)(quant_iq2xxs_grid[g[l]] >> 8 * at & 255);
    return negative ? -v : v;
}

static double slow_mxfp4(const uint8_t *b, int i)
{
    static const double code[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    int c = i < 16 ? b[1 + i] % 16 : b[1 + i - 16] / 16;
    double v = ldexp(code[c % 8], b[0] - 127);
    return c & 8 ? -v : v;
}

static double slow(uint32_t type, const uint8_t *b, int i)
{
    float f;
    switch (type) {
    case Q_F32: memcpy(&f, b, 4); return (double)f;
    case Q_F16: return half_at(b);
    case Q_BF16: return ldexp(128 + (b[0] & 127), ((b[1] & 127) << 1 | b[0] >> 7) - 134) * (b[1] & 128 ? -1 : 1);
    case Q_Q8_0: return half_at(b) * (int8_t)b[2 + i];
    case Q_Q4_0: return half_at(b) * ((i < 16 ? b[2 + i] % 16 : b[2 + i - 16] / 16) - 8);
    case Q_Q2_K: return slow_q2_k(b, i);
    case Q_Q3_K: return slow_q3_k(b, i);
    case Q_Q4_K: return slow_q4_k(b, i);
    case Q_Q5_K: return slow_q5_k(b, i);
    case Q_Q6_K: return slow_q6_k(b, i);
    case Q_IQ2_XXS: return slow_iq2_xxs(b, i);
    default: return slow_mxfp4(b, i);
    }
}

/* Random bytes, with the exponents kept so that no value is infinite. */

static void tame_half(uint8_t *p)
{
    if ((p[1] & 0x7c) == 0x7c)
        p[1] ^= 0x40;
}

static void random_block(uint32_t type, uint8_t *b, uint64_t *seed)
{
    const quant_info *q = quant_type_info(type);
    for (uint32_t k = 0; k < q->bytes; k++)
        b[k] = (uint8_t)(unit_rand(seed) >> 20);
    switch (type) {
    case Q_F32: b[3] &= 0xbf; break;
    case Q_BF16: b[1] = (uint8_t)((b[1] & 0xbf) | 1); break; /* normal numbers only */
    case Q_Q2_K: tame_half(b + 80); tame_half(b + 82); break;
    case Q_Q3_K: tame_half(b + 108); break;
    case Q_Q4_K: case Q_Q5_K: tame_half(b); tame_half(b + 2); break;
    case Q_Q6_K: tame_half(b + 208); break;
    case Q_MXFP4: if (b[0] > 252) b[0] = 3; break;
    default: tame_half(b); break;
    }
}

static void every_type_decodes_to_its_definition(void **state)
{
    (void)state;
    uint64_t seed = 11;
    uint8_t block[256];
    float y[256];
    for (int t = 0; t < N_TYPES; t++) {
        const quant_info *q = quant_type_info(all_types[t]);
        for (int round = 0; round < 300; round++) {
            random_block(q->type, block, &seed);
            quant_decode(q->type, block, y, q->block);
            for (uint32_t i = 0; i < q->block; i++) {
                double want = slow(q->type, block, (int)i);
                if ((double)y[i] != (double)(float)want)
                    fail_msg("%s element %u: %.9g, expected %.9g", q->name, i, (double)y[i], want);
            }
        }
    }
}

/* A formula of one scale and one bit pattern must hold at the extremes too, where random blocks rarely are. */
static void extreme_blocks_decode_exactly(void **state)
{
    (void)state;
    static const uint8_t fill[] = {0x00, 0xff, 0x0f, 0xf0, 0x55, 0xaa, 0x7b};
    for (int t = 0; t < N_TYPES; t++) {
        const quant_info *q = quant_type_info(all_types[t]);
        for (size_t k = 0; k < sizeof fill; k++) {
            uint8_t block[256];
            float y[256];
            uint64_t seed = 1;
            random_block(q->type, block, &seed); /* for tame scales */
            uint32_t from = q->block == 1 ? q->bytes : q->type == Q_MXFP4 ? 1 : 4;
            uint32_t to = q->type == Q_Q6_K || q->type == Q_Q3_K ? q->bytes - 2 : q->type == Q_Q2_K ? 80 : q->bytes;
            for (uint32_t i = from; i < to; i++)
                block[i] = fill[k];
            quant_decode(q->type, block, y, q->block);
            for (uint32_t i = 0; i < q->block; i++)
                assert_true((double)y[i] == (double)(float)slow(q->type, block, (int)i));
        }
    }
}

static void rows_of_many_blocks_at_odd_addresses(void **state)
{
    (void)state;
    enum { BLOCKS = 5 };
    uint64_t seed = 5;
    uint8_t row[256 * BLOCKS + 8];
    float y[256 * BLOCKS];
    for (int t = 0; t < N_TYPES; t++) {
        const quant_info *q = quant_type_info(all_types[t]);
        for (int shift = 0; shift < 4; shift++) {
            for (uint32_t b = 0; b < BLOCKS; b++)
                random_block(q->type, row + shift + b * q->bytes, &seed);
            quant_decode(q->type, row + shift, y, BLOCKS * q->block);
            for (uint32_t i = 0; i < BLOCKS * q->block; i++) {
                const uint8_t *b = row + shift + i / q->block * q->bytes;
                assert_true((double)y[i] == (double)(float)slow(q->type, b, (int)(i % q->block)));
            }
        }
    }
}

static void the_grid_is_the_published_one(void **state)
{
    (void)state;
    /* FNV-1a of the 2048 bytes; rows strictly increasing; three magnitudes; level sums even with known counts */
    uint64_t fnv = 0xcbf29ce484222325u;
    int counts[17] = {0};
    for (int r = 0; r < 256; r++) {
        int sum = 0;
        if (r)
            assert_true(quant_iq2xxs_grid[r] > quant_iq2xxs_grid[r - 1]);
        for (int i = 0; i < 8; i++) {
            int v = quant_iq2xxs_grid[r] >> 8 * i & 255;
            assert_true(v == 8 || v == 25 || v == 43);
            sum += v == 25 ? 1 : v == 43 ? 2 : 0;
            fnv = (fnv ^ (uint64_t)v) * 0x100000001b3u;
        }
        counts[sum]++;
    }
    assert_true(fnv == 0xbb4ee025b5ac6e8eu);
    assert_int_equal(counts[0], 1);
    assert_int_equal(counts[2], 36);
    assert_int_equal(counts[4], 103);
    assert_int_equal(counts[6], 63);
    assert_int_equal(counts[8], 53);
}

static void sign_masks_have_even_parity(void **state)
{
    (void)state;
    for (int i = 0; i < 128; i++) {
        assert_int_equal(quant_iq2xxs_signs[i] & 127, i);
        assert_int_equal(__builtin_popcount(quant_iq2xxs_signs[i]) % 2, 0);
    }
}

static void mxfp4_codes_are_doubled_e2m1(void **state)
{
    (void)state;
    for (uint8_t c = 0; c < 16; c++)
        assert_true((float)quant_mxfp4_codes[c] == 2.0f * num_e2m1(c));
    uint8_t block[17] = {255, 0x31};
    float y[32];
    quant_decode(Q_MXFP4, block, y, 32);
    assert_true(isnan(y[0]) && isnan(y[31]));
}

static void sizes_names_and_unknown_types(void **state)
{
    (void)state;
    assert_int_equal(quant_row_bytes(Q_IQ2_XXS, 4096), 1056);
    assert_int_equal(quant_row_bytes(Q_Q2_K, 256), 84);
    assert_int_equal(quant_row_bytes(Q_Q8_0, 33), 0);
    assert_int_equal(quant_row_bytes(Q_F32, UINT64_MAX / 2), 0);
    assert_int_equal(quant_row_bytes(999, 256), 0);
    assert_null(quant_type_info(17));
    assert_null(quant_type_info(4)); /* removed from the format */
    assert_string_equal(quant_type_name(17), "IQ2_XS");
    assert_string_equal(quant_type_name(Q_BF16), "BF16");
    assert_string_equal(quant_type_name(4000000000u), "an unknown type");
    assert_false(quant_type_info(Q_I64)->is_float_like);
    float y[2] = {1, 1};
    quant_decode(Q_I32, "abcdefgh", y, 2);
    assert_true(isnan(y[0]) && isnan(y[1]));
}

static void write_sample(FILE *f, uint32_t type, uint64_t *seed)
{
    enum { BLOCKS = 64 };
    const quant_info *q = quant_type_info(type);
    uint32_t n = BLOCKS * q->block, bytes = BLOCKS * q->bytes, head[3] = {type, n, bytes};
    uint8_t *row = malloc(bytes);
    float *y = malloc(4u * n);
    for (uint32_t b = 0; b < BLOCKS; b++)
        random_block(type, row + b * q->bytes, seed);
    quant_decode(type, row, y, n);
    fwrite(head, 4, 3, f);
    fwrite(row, 1, bytes, f);
    fwrite(y, 4, n, f);
    free(row);
    free(y);
}

static void values_equal_those_of_the_python_package(void **state)
{
    (void)state;
    char path[] = "/tmp/ds4-quant-XXXXXX", command[200];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "wb");
    uint64_t seed = 77;
    for (int t = 0; t < N_TYPES; t++)
        write_sample(f, all_types[t], &seed);
    fclose(f);
    snprintf(command, sizeof command, "python3 tests/file/quant_check.py %s", path);
    int rc = system(command);
    unlink(path);
    if (WIFEXITED(rc) && (WEXITSTATUS(rc) == 77 || WEXITSTATUS(rc) == 127))
        UNIT_SKIP("no gguf package");
    assert_int_equal(rc, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_decodes_to_its_definition),
        cmocka_unit_test(extreme_blocks_decode_exactly),
        cmocka_unit_test(rows_of_many_blocks_at_odd_addresses),
        cmocka_unit_test(the_grid_is_the_published_one),
        cmocka_unit_test(sign_masks_have_even_parity),
        cmocka_unit_test(mxfp4_codes_are_doubled_e2m1),
        cmocka_unit_test(sizes_names_and_unknown_types),
        cmocka_unit_test(values_equal_those_of_the_python_package),
    };
    return cmocka_run_group_tests_name("file/quant", tests, NULL, NULL);
}
