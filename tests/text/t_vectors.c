/* t_vectors.c: the reference tokenizer's vectors, byte for byte and id for id, and back to text. */
#include "util_text.h"

#include <jansson.h>

#include "text/detok.h"

static const char *argv0;

static json_t *load_vectors(void)
{
    size_t n;
    char *text = read_all(golden_dir(), "tokenizer_vectors.json", &n);
    json_error_t je;
    json_t *all = json_loadb(text, n, JSON_ALLOW_NUL, &je);
    free(text);
    if (!all)
        fail_msg("tokenizer_vectors.json: %s", je.text);
    return all;
}

/* Do the wanted ids hold an added token? Then the vector was made with added tokens matching. */
static bool wants_special(const vocab *v, const json_t *ids)
{
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (vocab_is_added(v, (int32_t)json_integer_value(json_array_get(ids, i))))
            return true;
    return false;
}

static bool same_ids(const bpe_ids *got, const json_t *ids)
{
    if (got->n != json_array_size(ids))
        return false;
    for (size_t i = 0; i < got->n; i++)
        if (got->id[i] != json_integer_value(json_array_get(ids, i)))
            return false;
    return true;
}

static void check_round_trip(const vocab *v, const bpe_ids *ids, const char *text, size_t n)
{
    detok d;
    detok_init(&d, v, true);
    size_t at = 0, k;
    const char *part;
    for (size_t i = 0; i <= ids->n; i++) {
        int rc = i < ids->n ? detok_push(&d, ids->id[i], &part, &k, NULL) : detok_flush(&d, &part, &k, NULL);
        assert_int_equal(rc, 0);
        assert_true(at + k <= n);
        assert_memory_equal(part, text + at, k);
        at += k;
    }
    assert_int_equal(at, n);
    detok_free(&d);
}

static void every_vector_of_the_reference_tokenizer(void **state)
{
    (void)state;
    if (!golden_dir())
        UNIT_SKIP("no golden data");
    vocab *v = golden_vocab(argv0);
    json_t *all = load_vectors(), *one;
    size_t i, good = 0, special = 0;
    json_array_foreach(all, i, one) {
        json_t *text = json_object_get(one, "t"), *ids = json_object_get(one, "ids");
        bool parse = wants_special(v, ids);
        bpe_ids got = {0};
        assert_int_equal(bpe_encode(v, json_string_value(text), json_string_length(text), parse, &got, NULL), 0);
        if (same_ids(&got, ids))
            good++;
        else
            printf("vector %zu differs: %.100s\n", i, json_string_value(text));
        check_round_trip(v, &got, json_string_value(text), json_string_length(text));
        special += parse;
        bpe_ids_free(&got);
    }
    printf("tokenizer vectors: %zu of %zu (%zu with protocol tokens)\n", good, i, special);
    assert_int_equal(good, i);
    assert_int_equal(i, 900);
    json_decref(all);
    vocab_free(v);
}

int main(int argc, char **argv)
{
    (void)argc;
    argv0 = argv[0];
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_vector_of_the_reference_tokenizer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
