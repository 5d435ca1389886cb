/* t_golden_prompts.c: prompts of the reference encoder, byte for byte. */
#include "util_json.h"

static protocol proto;

static int load(void **state)
{
    (void)state;
    char dir[4096];
    ds4_err e = {0};
    if (!golden_dir())
        return 0;
    snprintf(dir, sizeof dir, "%s/protocol", golden_dir());
    if (protocol_load(&proto, dir, NULL, &e))
        fail_msg("%s", e.msg);
    char notice[400];
    assert_false(protocol_notice(&proto, notice, sizeof notice));
    return 0;
}

static int unload(void **state)
{
    (void)state;
    protocol_free(&proto);
    return 0;
}

static void need_golden(void)
{
    if (!golden_dir())
        UNIT_SKIP("no golden data");
}

/* 1 if equal; else prints where they part. */
static int same(const char *what, const char *got, size_t n, const char *want, size_t want_n)
{
    size_t i = 0;
    if (n == want_n && !memcmp(got, want, n))
        return 1;
    while (i < n && i < want_n && got[i] == want[i])
        i++;
    printf("%s differs at byte %zu: got \"%.60s\", want \"%.60s\"\n", what, i, got + i, want + i);
    return 0;
}

static void official_example_conversations(void **state)
{
    (void)state;
    need_golden();
    char path[4096], name[64];
    int good = 0;
    for (int i = 1; i <= 4; i++) {
        size_t n, want_n;
        char *got;
        ds4_err e = {0};
        chat_opts o = defaults_with(&proto);
        o.thinking = i != 4; /* the fourth is a classification in chat mode */
        snprintf(path, sizeof path, "%s/golden_prompts/test_input_%d.json", golden_dir(), i);
        if (chat_render_json_file(path, &o, &got, &n, &e))
            fail_msg("%s", e.msg);
        snprintf(name, sizeof name, "golden_prompts/test_output_%d.txt", i);
        char *want = read_all(golden_dir(), name, &want_n);
        good += same(name, got, n, want, want_n);
        free(got);
        free(want);
    }
    printf("example conversations: %d of 4\n", good);
    assert_int_equal(good, 4);
}

/* Case i of fuzz.json as a document of ours: its effort prefix A is "high" of 0731 and "max" of the preview. */
static int fuzz_case(const json_t *one, size_t i, bool preview)
{
    char name[64];
    json_t *doc =
        json_pack("{s:O,s:O,s:O}", "messages", json_object_get(one, "messages"), "thinking_mode",
                  json_object_get(one, "thinking_mode"), "drop_thinking", json_object_get(one, "drop_thinking"));
    if (json_is_string(json_object_get(one, "effort_prefix"))) {
        assert_string_equal(json_string_value(json_object_get(one, "effort_prefix")), "A");
        json_object_set_new(doc, "reasoning_effort", json_string(preview ? "max" : "high"));
    }
    json_object_set_new(doc, "release", json_string(preview ? "preview" : "0731"));
    char *text = json_dumps(doc, 0);
    chat_opts o = defaults_with(&proto);
    char *got = render(text, &o);
    const json_t *want = json_object_get(one, "prompt");
    snprintf(name, sizeof name, "fuzz case %zu", i);
    int ok = same(name, got, strlen(got), json_string_value(want), json_string_length(want));
    free(got);
    free(text);
    json_decref(doc);
    return ok;
}

static void random_conversations(void **state)
{
    (void)state;
    need_golden();
    size_t n, i, good = 0;
    char *text = read_all(golden_dir(), "golden_prompts/fuzz.json", &n);
    ds4_err e = {0};
    json_t *all, *one;
    if (pyjson_parse(text, n, &all, &e))
        fail_msg("%s", e.msg);
    json_array_foreach(all, i, one)
        good += fuzz_case(one, i, false) && fuzz_case(one, i, true);
    printf("random conversations: %zu of %zu\n", good, i);
    assert_int_equal(good, i);
    assert_int_equal(i, 80);
    json_decref(all);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(official_example_conversations),
        cmocka_unit_test(random_conversations),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
