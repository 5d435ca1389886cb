/* t_protocol.c: official texts are recognised, changed ones reported, missing ones replaced, broken ones refused. */
#include "util_text.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/sha256.h"
#include "text/protocol.h"

/* A scratch folder DIR with DIR/protocol in it; removed at the end. */
static char dir[64], inner[128];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ds4_protocol_XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(inner, sizeof inner, "%s/protocol", dir);
    return 0;
}

static int cleanup(void **state)
{
    (void)state;
    char path[256];
    for (int i = 0; i < PROTO_COUNT; i++) {
        snprintf(path, sizeof path, "%s/%s", inner, protocol_file((enum protocol_part)i));
        unlink(path);
    }
    rmdir(inner);
    return rmdir(dir);
}

static void write_part(enum protocol_part part, const char *text, size_t n)
{
    char path[256];
    mkdir(inner, 0700);
    snprintf(path, sizeof path, "%s/%s", inner, protocol_file(part));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static protocol load(const char *given, const char *model)
{
    protocol p;
    ds4_err e = {0};
    if (protocol_load(&p, given, model, &e))
        fail_msg("%s", e.msg);
    return p;
}

static void no_folder_means_our_own_wording_and_one_notice(void **state)
{
    (void)state;
    char model[128], line[400], hex[65];
    snprintf(model, sizeof model, "%s/model.gguf", dir);
    protocol p = load(NULL, model);
    assert_null(p.dir);
    assert_true(protocol_notice(&p, line, sizeof line));
    assert_has(line, "--protocol DIR");
    assert_has(p.text[PROTO_TOOLS_PREFIX], "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"");
    assert_string_equal(p.text[PROTO_EFFORT_LOW], "");
    for (int i = 0; i < PROTO_COUNT; i++)
        assert_int_equal(p.origin[i], PROTO_OWN);
    sha256_hex(p.text[PROTO_EFFORT_HIGH], p.n[PROTO_EFFORT_HIGH], hex);
    assert_string_not_equal(hex, "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7");
    /* the layout around the texts relies on these ends */
    assert_string_equal(p.text[PROTO_TOOLS_PREFIX] + p.n[PROTO_TOOLS_PREFIX] - 2, "\n\n");
    assert_memory_equal(p.text[PROTO_TOOLS_SUFFIX], "\n\n", 2);
    assert_string_equal(p.text[PROTO_EFFORT_MAX] + p.n[PROTO_EFFORT_MAX] - 2, "\n\n");
    protocol_free(&p);
}

static void a_changed_text_is_used_and_reported(void **state)
{
    (void)state;
    char model[128], line[400];
    snprintf(model, sizeof model, "%s/model.gguf", dir);
    write_part(PROTO_TOOLS_PREFIX, "## My tools\n\n", 13);
    protocol p = load(NULL, model); /* found beside the model */
    assert_string_equal(p.dir, inner);
    assert_int_equal(p.origin[PROTO_TOOLS_PREFIX], PROTO_DIFFERS);
    assert_int_equal(p.origin[PROTO_TOOLS_SUFFIX], PROTO_OWN);
    assert_string_equal(p.text[PROTO_TOOLS_PREFIX], "## My tools\n\n");
    assert_true(protocol_notice(&p, line, sizeof line));
    assert_has(line, "not DeepSeek's official text: tools_prefix.txt;");
    assert_has(line, "missing, our own wording is used: tools_suffix.txt");
    protocol_free(&p);
}

static void an_official_text_is_recognised_by_its_hash(void **state)
{
    (void)state;
    write_part(PROTO_EFFORT_LOW, "", 0);
    protocol p = load(inner, NULL);
    assert_int_equal(p.origin[PROTO_EFFORT_LOW], PROTO_OFFICIAL);
    protocol_free(&p);
    write_part(PROTO_EFFORT_LOW, "x", 1);
    p = load(inner, NULL);
    assert_int_equal(p.origin[PROTO_EFFORT_LOW], PROTO_DIFFERS);
    protocol_free(&p);
}

static void the_golden_folder_has_nothing_to_report(void **state)
{
    (void)state;
    char path[4096], line[400];
    if (!golden_dir())
        UNIT_SKIP("no golden data");
    snprintf(path, sizeof path, "%s/protocol", golden_dir());
    protocol p = load(path, NULL);
    for (int i = 0; i < PROTO_COUNT; i++)
        assert_int_equal(p.origin[i], PROTO_OFFICIAL);
    assert_false(protocol_notice(&p, line, sizeof line));
    protocol_free(&p);
}

static void broken_files_and_folders_are_refused(void **state)
{
    (void)state;
    protocol p;
    ds4_err e = {0};
    assert_int_equal(protocol_load(&p, "/nowhere/at/all", NULL, &e), DS4_EIO);
    assert_has(e.msg, "not a folder");
    write_part(PROTO_RESPONSE, "a\xff", 2);
    assert_int_equal(protocol_load(&p, inner, NULL, &e), DS4_EFORMAT);
    assert_has(e.msg, "response_format_heading.txt");
    assert_has(e.msg, "byte 1");
    char *big = calloc(1, 70000);
    memset(big, 'a', 70000);
    write_part(PROTO_RESPONSE, big, 70000);
    assert_int_equal(protocol_load(&p, inner, NULL, &e), DS4_EFORMAT);
    assert_has(e.msg, "64 KiB");
    write_part(PROTO_RESPONSE, "a\0b", 3);
    assert_int_equal(protocol_load(&p, inner, NULL, &e), DS4_EFORMAT);
    free(big);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, cleanup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(no_folder_means_our_own_wording_and_one_notice), T(a_changed_text_is_used_and_reported),
        T(an_official_text_is_recognised_by_its_hash), cmocka_unit_test(the_golden_folder_has_nothing_to_report),
        T(broken_files_and_folders_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
