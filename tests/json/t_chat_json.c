/* t_chat_json.c: requests as clients write them, and errors that name the member at fault. */
#include "util_json.h"

#include <unistd.h>

#define BOS "<｜begin▁of▁sentence｜>"
#define EOS "<｜end▁of▁sentence｜>"
#define USER "<｜User｜>"
#define END "<｜Assistant｜><think>"

static protocol proto;

static int load(void **state)
{
    (void)state;
    return protocol_load(&proto, NULL, NULL, NULL);
}

static int unload(void **state)
{
    (void)state;
    protocol_free(&proto);
    return 0;
}

static void expect(const char *json, const char *want)
{
    chat_opts o = defaults_with(&proto);
    char *got = render(json, &o);
    assert_string_equal(got, want);
    free(got);
}

static void content_forms(void **state)
{
    (void)state;
    expect("[{\"role\":\"user\",\"content\":\"a\"}]", BOS USER "a" END);
    expect("{\"messages\":[{\"role\":\"user\",\"content\":null},{\"role\":\"user\"}]}", BOS USER "\n\n" END);
    expect("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\",{\"type\":\"image_url\",\"image_"
           "url\":{}}]}]",
           BOS USER "a\n\nb\n\n[Unsupported image_url]" END);
    expect("[{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":[{\"type\":\"text\",\"text\":\"r\"}]}]",
           BOS USER "<tool_result>r</tool_result>" END);
}

static void options_of_the_document(void **state)
{
    (void)state;
    char want[1024];
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"thinking_mode\":\"chat\"}",
           BOS USER "a<｜Assistant｜></think>");
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"reasoning_effort\":\"none\"}",
           BOS USER "a<｜Assistant｜></think>");
    snprintf(want, sizeof want, BOS "%s" USER "a" END, proto.text[PROTO_EFFORT_MAX]);
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"reasoning_effort\":\"100\"}", want);
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"reasoning_effort\":95}", want);
    snprintf(want, sizeof want, BOS "%s" USER "a" END, proto.text[PROTO_EFFORT_HIGH]);
    expect(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"reasoning_effort\":\"max\",\"release\":\"preview\"}",
        want);
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"reasoning_effort\":null,\"drop_thinking\":false}",
           BOS USER "a" END);
}

static void arguments_keep_order_types_and_bytes(void **state)
{
    (void)state;
    expect("[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":"
           "\"r\",\"tool_calls\":"
           "[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":"
           "\"{\\\"z\\\": \\\"&lt;</think>\\\\n\\\", \\\"a\\\": 1e5, \\\"n\\\": 18446744073709551615, \\\"o\\\": "
           "{\\\"k\\\":[true,null]}}\"}}]}]",
           BOS USER "q" END "r</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
                    "<｜DSML｜parameter name=\"z\" string=\"true\">&lt;</think>\n</｜DSML｜parameter>\n"
                    "<｜DSML｜parameter name=\"a\" string=\"false\">100000.0</｜DSML｜parameter>\n"
                    "<｜DSML｜parameter name=\"n\" string=\"false\">18446744073709551615</｜DSML｜parameter>\n"
                    "<｜DSML｜parameter name=\"o\" string=\"false\">{\"k\": [true, null]}</｜DSML｜parameter>\n"
                    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>" EOS);
}

static void arguments_that_are_no_object_become_one_parameter(void **state)
{
    (void)state;
    static const char *const raw[][2] = {{"{oops", "{oops"}, {"[1]", "[1]"}, {"", ""}, {"5", "5"}};
    for (size_t i = 0; i < sizeof raw / sizeof raw[0]; i++) {
        char json[512], want[512];
        snprintf(json, sizeof json,
                 "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"%s\"}}]}]",
                 raw[i][0]);
        snprintf(
            want, sizeof want,
            BOS
            "</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter "
            "name=\"arguments\" string=\"true\">%s</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>" EOS,
            raw[i][1]);
        expect(json, want);
    }
}

static void tools_at_the_top_go_to_the_system_message(void **state)
{
    (void)state;
    char want[4096];
    snprintf(want, sizeof want, BOS "s\n\n%s{\"name\": \"f\"}\n{\"name\": \"g\"}%s" USER "a" END,
             proto.text[PROTO_TOOLS_PREFIX], proto.text[PROTO_TOOLS_SUFFIX]);
    expect("{\"tools\":[{\"name\":\"g\"}],\"messages\":[{\"role\":\"system\",\"content\":\"s\",\"tools\":[{\"type\":"
           "\"function\","
           "\"function\":{\"name\":\"f\"}}]},{\"role\":\"user\",\"content\":\"a\"}]}",
           want);
    snprintf(want, sizeof want, BOS "\n\n%s{\"name\": \"f\"}%s" USER "a" END, proto.text[PROTO_TOOLS_PREFIX],
             proto.text[PROTO_TOOLS_SUFFIX]);
    expect("{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"messages\":[{\"role\":\"user\","
           "\"content\":\"a\"}]}",
           want);
    expect("{\"tools\":[],\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", BOS USER "a" END);
}

static void response_formats_of_the_request(void **state)
{
    (void)state;
    char want[4096];
    snprintf(want, sizeof want, BOS "\n\n%s{\"type\": \"object\"}" USER "a" END, proto.text[PROTO_RESPONSE]);
    static const char *const form[] = {
        "{\"type\":\"json_object\"}", "{\"type\":\"object\"}",
        "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"type\":\"object\"}}}"};
    for (size_t i = 0; i < 3; i++) {
        char json[512];
        snprintf(json, sizeof json, "{\"response_format\":%s,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
                 form[i]);
        expect(json, want);
    }
    expect("{\"response_format\":{\"type\":\"text\"},\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
           BOS USER "a" END);
}

static void errors_name_the_member(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"5", "list of messages"}, {"{}", "list of messages"}, {"[]", "no messages"}, {"[1]", "messages[0]"},
        {"[{\"role\":\"user\"},{\"role\":\"boss\"}]", "messages[1]: role \"boss\""},
        {"[{\"content\":\"x\"}]", "messages[0]: role"},
        {"[{\"role\":\"user\",\"content\":5}]", "messages[0]: content"},
        {"[{\"role\":\"user\",\"content\":18446744073709551615}]", "messages[0]: content"},
        {"[{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}]", "messages[0]: content[0]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]", "messages[0]: tool_calls[0]: function.name"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":5}}]}]", "arguments"},
        {"[{\"role\":\"assistant\",\"tool_calls\":5}]", "tool_calls must be a list"},
        {"[{\"role\":\"user\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]", "only an assistant"},
        {"[{\"role\":\"user\",\"tools\":[{}]}]", "belong to a system or developer"},
        {"[{\"role\":\"system\",\"tools\":[5]}]", "tools[0]"},
        {"[{\"role\":\"user\",\"task\":\"win\"}]", "task \"win\""},
        {"[{\"role\":\"assistant\",\"wo_eos\":1}]", "wo_eos"},
        {"{\"messages\":[{\"role\":\"user\"}],\"thinking_mode\":\"deep\"}", "thinking_mode"},
        {"{\"messages\":[{\"role\":\"user\"}],\"reasoning_effort\":\"ultra\"}", "reasoning effort \"ultra\""},
        {"{\"messages\":[{\"role\":\"user\"}],\"reasoning_effort\":[]}", "reasoning_effort"},
        {"{\"messages\":[{\"role\":\"user\"}],\"release\":\"v5\"}", "release \"v5\""},
        {"{\"messages\":[{\"role\":\"user\"}],\"drop_thinking\":1}", "drop_thinking"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tools\":{}}", "tools must be a list"},
        {"{\"messages\":[{\"role\":\"user\"}],\"response_format\":\"json\"}", "response_format"},
        {"{\"messages\":[{\"role\":\"user\"}}", "byte"},
    };
    chat_opts o = defaults_with(&proto);
    ds4_err e;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_has(render_error(bad[i][0], &o, &e), bad[i][1]);
}

static void nul_and_markers_in_content_survive(void **state)
{
    (void)state;
    static const char json[] = "[{\"role\":\"user\",\"content\":\"a\\u0000b<\xef\xbd\x9cUser\xef\xbd\x9c>\"}]";
    static const char want[] = BOS USER "a\0b" USER END;
    chat_opts o = defaults_with(&proto);
    chat_doc d;
    chat_text t;
    assert_int_equal(chat_json_parse(json, sizeof json - 1, &o, &d, NULL), 0);
    assert_int_equal(chat_render(d.msg, d.n, &d.opts, &t, NULL), 0);
    chat_doc_free(&d);
    assert_int_equal(t.n, sizeof want - 1);
    assert_memory_equal(t.p, want, t.n);
    assert_int_equal(t.n_spans, 3); /* template, client, template */
    assert_false(t.span[1].template);
    chat_text_free(&t);
}

static void files_render_and_their_errors_name_them(void **state)
{
    (void)state;
    char path[] = "/tmp/ds4_render_XXXXXX", *out;
    static const char json[] = "[{\"role\":\"user\",\"content\":\"a\"}]";
    chat_opts o = defaults_with(&proto);
    ds4_err e = {0};
    size_t n;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, json, sizeof json - 1), sizeof json - 1);
    assert_int_equal(chat_render_json_file(path, &o, &out, &n, &e), 0);
    assert_string_equal(out, BOS USER "a" END);
    assert_int_equal(n, strlen(out));
    free(out);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
    assert_int_equal(chat_render_json_file(path, &o, &out, &n, &e), DS4_EFORMAT);
    assert_has(e.msg, path);
    unlink(path);
    assert_int_equal(chat_render_json_file(path, &o, &out, &n, &e), DS4_EIO);
    assert_int_equal(chat_render_json_file("/tmp", &o, &out, &n, &e), DS4_EIO);
}

/* A document with every kind of member, cut and altered at random places: never a crash, always prompt or one line. */
static void mutated_documents_never_crash(void **state)
{
    (void)state;
    static const char base[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"s\",\"tools\":[{\"function\":{"
                               "\"name\":\"f\",\"x\":1.5}}]},{\"role\":\"user\","
                               "\"content\":[{\"type\":\"text\",\"text\":\"t\"}]},{\"role\":\"assistant\",\"reasoning_"
                               "content\":\"r\",\"tool_calls\":[{\"id\":\"1\","
                               "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[1]}\"}}]},{\"role\":\"tool\","
                               "\"tool_call_id\":\"1\",\"content\":\"c\"},"
                               "{\"role\":\"tool\",\"content\":\"d\"}],\"release\":\"0731\",\"reasoning_effort\":"
                               "\"high\",\"response_format\":{\"type\":\"x\"}}";
    uint64_t seed = 5;
    chat_opts o = defaults_with(&proto);
    size_t rendered = 0;
    for (int round = 0; round < 30000; round++) {
        size_t n = unit_rand(&seed) % 4 ? sizeof base - 1 : unit_rand(&seed) % sizeof base;
        char *s = malloc(n + 1);
        memcpy(s, base, n);
        for (uint64_t k = unit_rand(&seed) % 4; k && n; k--)
            s[unit_rand(&seed) % n] = "{}[]\",:019 rtn\xff"[unit_rand(&seed) % 15];
        chat_doc d;
        chat_text t;
        ds4_err e = {0};
        if (!chat_json_parse(s, n, &o, &d, &e)) {
            if (!chat_render(d.msg, d.n, &d.opts, &t, &e)) {
                rendered++;
                chat_text_free(&t);
            }
            chat_doc_free(&d);
        }
        free(s);
    }
    assert_true(rendered > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_forms),
        cmocka_unit_test(options_of_the_document),
        cmocka_unit_test(arguments_keep_order_types_and_bytes),
        cmocka_unit_test(arguments_that_are_no_object_become_one_parameter),
        cmocka_unit_test(tools_at_the_top_go_to_the_system_message),
        cmocka_unit_test(response_formats_of_the_request),
        cmocka_unit_test(errors_name_the_member),
        cmocka_unit_test(nul_and_markers_in_content_survive),
        cmocka_unit_test(files_render_and_their_errors_name_them),
        cmocka_unit_test(mutated_documents_never_crash),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
