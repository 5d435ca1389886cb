/* t_vocab.c: a file with a wrong vocabulary is refused with a line that names the fault. */
#include "util_text.h"

static void refuse(const tiny *t, uint32_t want, const char *word)
{
    vocab *v = NULL;
    ds4_err e = {0};
    assert_true(tiny_load(t, want, &v, &e) < 0);
    assert_null(v);
    assert_has(e.msg, word);
}

static void a_good_vocabulary_loads(void **state)
{
    (void)state;
    tiny t;
    tiny_make(&t);
    vocab *v = tiny_vocab();
    assert_int_equal(vocab_size(v), t.n_tokens);
    assert_int_equal(vocab_bos(v), t.bos);
    assert_int_equal(vocab_eos(v), t.eos);
    size_t n;
    assert_memory_equal(vocab_bytes(v, ' ', &n), " ", 1); /* the byte alphabet is undone */
    assert_int_equal(n, 1);
    assert_int_equal(vocab_find_plain(v, "hello", 5), 256 + 7);
    assert_int_equal(vocab_find_plain(v, "<think>", 7), -1);
    assert_int_equal(vocab_find_added(v, "<think>", 7), vocab_special(v, SP_THINK));
    assert_int_equal(vocab_find_added(v, "hello", 5), -1);
    vocab_free(v);
}

static void token_count_must_be_that_of_the_model(void **state)
{
    (void)state;
    tiny t;
    tiny_make(&t);
    refuse(&t, t.n_tokens + 1, "vocabulary rows");
}

static void broken_entries_are_named(void **state)
{
    (void)state;
    tiny t;
    tiny_make(&t);
    t.tokens[260] = "two words"; /* a space is not in the byte alphabet */
    refuse(&t, 0, "tokens[260]");
    tiny_make(&t);
    t.tokens[260] = "\xff";
    refuse(&t, 0, "tokens[260]");
    tiny_make(&t);
    t.tokens[261] = t.tokens[260];
    refuse(&t, 0, "repeats entry 260");
    tiny_make(&t);
    t.tokens[260] = "";
    refuse(&t, 0, "is empty");
    tiny_make(&t);
    t.types[5] = 9;
    refuse(&t, 0, "token_type[5]");
    tiny_make(&t);
    t.types['a'] = VOCAB_CONTROL;
    refuse(&t, 0, "0x61");
    tiny_make(&t);
    t.model = "llama";
    refuse(&t, 0, "tokenizer.ggml.model");
}

static void broken_merges_are_named(void **state)
{
    (void)state;
    static const char *const bad[] = {"ab", "a b c", " b", "a ", "q q", "a zz", "a b", "\xff b", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tiny t;
        tiny_make(&t);
        t.merges[3] = bad[i];
        refuse(&t, 0, "merges[3]");
    }
}

static void protocol_tokens_must_exist_and_agree_with_the_ids(void **state)
{
    (void)state;
    tiny t;
    tiny_make(&t);
    t.eos++;
    refuse(&t, 0, "eos_token_id");
    tiny_make(&t);
    t.bos = 100000;
    refuse(&t, 0, "bos_token_id");
    tiny_make(&t);
    t.tokens[t.bos + SP_USER] = "<user>";
    refuse(&t, 0, "User");
    tiny_make(&t);
    t.tokens[t.bos + SP_REMINDER] = "<other>"; /* not needed by every conversation */
    vocab *v;
    assert_int_equal(tiny_load(&t, 0, &v, NULL), 0);
    assert_int_equal(vocab_special(v, SP_REMINDER), -1);
    vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_vocabulary_loads),
        cmocka_unit_test(token_count_must_be_that_of_the_model),
        cmocka_unit_test(broken_entries_are_named),
        cmocka_unit_test(broken_merges_are_named),
        cmocka_unit_test(protocol_tokens_must_exist_and_agree_with_the_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
