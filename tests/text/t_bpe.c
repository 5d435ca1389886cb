/* t_bpe.c: merging, added tokens, hostile text; on a small vocabulary that needs no data. */
#include "util_text.h"

#include <time.h>

static vocab *v;

static int load(void **state)
{
    (void)state;
    v = tiny_vocab();
    return 0;
}

static int unload(void **state)
{
    (void)state;
    vocab_free(v);
    return 0;
}

static bpe_ids encode(const char *text, size_t n, bool special)
{
    bpe_ids out = {0};
    assert_int_equal(bpe_encode(v, text, n, special, &out, NULL), 0);
    return out;
}

static void expect(const char *text, size_t n, bool special, const int32_t *want, size_t n_want)
{
    bpe_ids got = encode(text, n, special);
    assert_int_equal(got.n, n_want);
    assert_memory_equal(got.id, want, n_want * sizeof *want);
    bpe_ids_free(&got);
}

/* The definition, quadratic: join the leftmost pair of lowest rank until none merges. */
static void naive_piece(const uint8_t *p, size_t n, bpe_ids *out)
{
    int32_t id[512];
    for (size_t i = 0; i < n; i++)
        id[i] = vocab_byte(v, p[i]);
    for (;;) {
        int32_t best = INT32_MAX, merged = -1, m;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            int32_t rank = vocab_merge(v, id[i], id[i + 1], &m);
            if (rank >= 0 && rank < best) {
                best = rank;
                merged = m;
                at = i;
            }
        }
        if (merged < 0)
            break;
        id[at] = merged;
        memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof id[0]);
        n--;
    }
    for (size_t i = 0; i < n; i++)
        bpe_ids_push(out, id[i], NULL);
}

static void heap_merging_equals_the_definition(void **state)
{
    (void)state;
    static const char letters[] = "aabbcchello wrth\n";
    uint64_t seed = 7;
    for (int round = 0; round < 20000; round++) {
        char text[200];
        size_t n = 1 + unit_rand(&seed) % (round % 10 ? 12 : 199);
        for (size_t i = 0; i < n; i++)
            text[i] = letters[unit_rand(&seed) % (round % 3 ? sizeof letters - 1 : 4)];
        bpe_ids want = {0}, got = encode(text, n, false);
        for (size_t pos = 0; pos < n;) {
            size_t end = pretok_next(vocab_pretok(v), text, n, pos);
            naive_piece((uint8_t *)text + pos, end - pos, &want);
            pos = end;
        }
        assert_int_equal(got.n, want.n);
        assert_memory_equal(got.id, want.id, got.n * sizeof *got.id);
        bpe_ids_free(&want);
        bpe_ids_free(&got);
    }
}

/* ids of the small vocabulary: byte b is b; merge r gives 256 + r. */
static void small_vocabulary_has_known_tokens(void **state)
{
    (void)state;
    expect("hello", 5, false, (int32_t[]){256 + 7}, 1);
    expect("abc", 3, false, (int32_t[]){256 + 2}, 1);
    expect(" ab", 3, false, (int32_t[]){256 + 1}, 1);
    expect("aaa", 3, false, (int32_t[]){256 + 8, 'a'}, 2); /* leftmost pair first */
    expect("aaaa", 4, false, (int32_t[]){256 + 9}, 1);
    expect("\xc3\xa9", 2, false, (int32_t[]){256 + 10}, 1);
    expect("", 0, false, NULL, 0);
}

static int32_t sp(enum vocab_special which) { return vocab_special(v, which); }

static void added_tokens_match_only_when_asked(void **state)
{
    (void)state;
    static const char text[] = "<｜User｜>ab<think></think>";
    expect(text, strlen(text), true, (int32_t[]){sp(SP_USER), 256, sp(SP_THINK), sp(SP_THINK_END)}, 4);
    bpe_ids plain = encode(text, strlen(text), false);
    for (size_t i = 0; i < plain.n; i++)
        assert_false(vocab_is_added(v, plain.id[i]));
    bpe_ids_free(&plain);
}

static void longest_added_token_wins_and_cut_ones_do_not_match(void **state)
{
    (void)state;
    tiny t;
    vocab *w;
    tiny_make(&t);
    t.tokens[t.n_tokens] = "<think>x";
    t.types[t.n_tokens++] = VOCAB_USER;
    assert_int_equal(tiny_load(&t, 0, &w, NULL), 0);
    bpe_ids out = {0};
    assert_int_equal(bpe_encode(w, "<think>x<think>y<thin", 21, true, &out, NULL), 0);
    assert_int_equal(out.n, 3 + 4);
    assert_int_equal(out.id[0], t.n_tokens - 1);
    assert_int_equal(out.id[1], vocab_special(w, SP_THINK));
    assert_int_equal(out.id[2], 'y');
    bpe_ids_free(&out);
    vocab_free(w);
}

static void a_marker_across_a_span_border_is_no_marker(void **state)
{
    (void)state;
    static const char text[] = "<think></think>";
    bpe_ids out = {0};
    /* "<thi" by the template, "nk>" by the client, then a whole "</think>" by the template */
    const bpe_span span[] = {{4, true}, {7, false}, {15, true}};
    assert_int_equal(bpe_encode_spans(v, text, span, 3, &out, NULL), 0);
    assert_int_equal(out.id[out.n - 1], sp(SP_THINK_END));
    for (size_t i = 0; i + 1 < out.n; i++)
        assert_false(vocab_is_added(v, out.id[i]));
    bpe_ids_free(&out);
    /* ordinary text merges across the border as if there were none */
    const bpe_span two[] = {{1, true}, {2, false}};
    assert_int_equal(bpe_encode_spans(v, "ab", two, 2, &out, NULL), 0);
    assert_int_equal(out.n, 1);
    assert_int_equal(out.id[0], 256);
    bpe_ids_free(&out);
}

static void every_byte_string_comes_back(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (int round = 0; round < 3000; round++) {
        char text[300], back[300];
        size_t n = unit_rand(&seed) % sizeof text, at = 0;
        for (size_t i = 0; i < n; i++)
            text[i] = round % 2 ? (char)unit_rand(&seed) : "ab \xc3\xa9\xf0\x9f\x99\0"[unit_rand(&seed) % 9];
        bpe_ids got = encode(text, n, false);
        for (size_t i = 0; i < got.n; i++) {
            size_t k;
            const char *p = vocab_bytes(v, got.id[i], &k);
            assert_true(at + k <= n);
            memcpy(back + at, p, k);
            at += k;
        }
        assert_int_equal(at, n);
        assert_memory_equal(back, text, n);
        bpe_ids_free(&got);
    }
}

static void a_megabyte_in_one_piece_does_not_hang(void **state)
{
    (void)state;
    static const char *const unit[] = {"a", " ", "ab", "\xff", "!", "\n", "<", "<think", "\xc3\xa9", ""};
    const size_t n = 1u << 20;
    char *text = malloc(n);
    for (size_t u = 0; u < sizeof unit / sizeof unit[0]; u++) {
        size_t k = strlen(unit[u]) + !*unit[u]; /* the last one is NUL bytes */
        struct timespec a, b;
        for (size_t i = 0; i < n; i++)
            text[i] = unit[u][i % k];
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        bpe_ids got = encode(text, n, true);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        assert_true(got.n > 0);
        bpe_ids_free(&got);
        if (b.tv_sec - a.tv_sec > 20)
            fail_msg("1 MiB of unit %zu took %ld s", u, (long)(b.tv_sec - a.tv_sec));
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_vocabulary_has_known_tokens),
        cmocka_unit_test(heap_merging_equals_the_definition),
        cmocka_unit_test(added_tokens_match_only_when_asked),
        cmocka_unit_test(longest_added_token_wins_and_cut_ones_do_not_match),
        cmocka_unit_test(a_marker_across_a_span_border_is_no_marker),
        cmocka_unit_test(every_byte_string_comes_back),
        cmocka_unit_test(a_megabyte_in_one_piece_does_not_hang),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
