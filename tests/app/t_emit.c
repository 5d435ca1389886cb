/* t_emit.c: an answer on standard output: thoughts apart, whole characters, no control of the terminal by a model. */
#include "text/util_text.h"

#include <math.h>
#include <unistd.h>

#include "app/ds4_emit.h"
#include "app/ds4_logprobs.h"
#include "base/fsio.h"

typedef struct page {
    char *text;
    size_t n;
    FILE *f;
} page;

static vocab *v;
static emit m;
static page out;

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

/* A stream that is no terminal; `terminal` makes emit believe otherwise. */
static void begin(bool terminal, bool thinking, bool raw)
{
    out = (page){0};
    out.f = tmpfile();
    assert_non_null(out.f);
    if (terminal) { /* emit_open asks the stream; a thought begins with a colour afterwards */
        emit_open(&m, v, out.f, false, raw);
        m.terminal = true;
        if (thinking)
            assert_int_equal(emit_token(&m, vocab_special(v, SP_THINK), NULL), 0);
    } else {
        emit_open(&m, v, out.f, thinking, raw);
    }
}

static void put(const char *text)
{
    for (; *text; text++)
        assert_int_equal(emit_token(&m, vocab_byte(v, (uint8_t)*text), NULL), 0);
}

static void special(enum vocab_special which) { assert_int_equal(emit_token(&m, vocab_special(v, which), NULL), 0); }

static void expect(const char *text, const char *reasoning, const char *content)
{
    char got[500] = "";
    assert_int_equal(emit_end(&m, NULL), 0);
    rewind(out.f);
    got[fread(got, 1, sizeof got - 1, out.f)] = 0;
    assert_string_equal(got, text);
    assert_string_equal(m.reasoning.p ? m.reasoning.p : "", reasoning);
    assert_string_equal(m.content.p ? m.content.p : "", content);
    fclose(out.f);
    emit_close(&m);
}

static void thoughts_stand_between_plain_markers(void **state)
{
    (void)state;
    begin(false, true, false);
    put("why\n");
    special(SP_THINK_END);
    put("because");
    expect("<think>why\n</think>because\n", "why\n", "because");
}

static void thoughts_are_dimmed_on_a_terminal(void **state)
{
    (void)state;
    begin(true, true, false);
    put("why");
    special(SP_THINK_END);
    put("because\n");
    expect("\033[2mwhy\033[0m\nbecause\n", "why", "because\n");
}

static void an_unfinished_thought_leaves_no_colour(void **state)
{
    (void)state;
    begin(true, true, false);
    put("wh\xC3");
    expect("\033[2mwh\xEF\xBF\xBD\033[0m\n", "wh\xEF\xBF\xBD", "");
}

static void a_cut_character_belongs_to_its_thought(void **state)
{
    (void)state;
    begin(false, true, false);
    put("\xC3");
    special(SP_THINK_END);
    put("\xC3\xA9");
    expect("<think>\xEF\xBF\xBD</think>\xC3\xA9\n", "\xEF\xBF\xBD", "\xC3\xA9");
}

static void a_model_cannot_drive_the_terminal(void **state)
{
    (void)state;
    begin(true, false, false);
    put("a\033[31m\tb\x07\n");
    expect("a\xEF\xBF\xBD[31m\tb\xEF\xBF\xBD\n", "", "a\033[31m\tb\x07\n");
    begin(false, false, false);
    put("a\033b"); /* a file gets what the model wrote */
    expect("a\033b\n", "", "a\033b");
}

static void raw_text_keeps_think_tags(void **state)
{
    (void)state;
    begin(false, false, true);
    special(SP_THINK);
    put("x");
    special(SP_THINK_END);
    expect("<think>x</think>\n", "", "<think>x</think>");
}

static void an_empty_answer_prints_nothing(void **state)
{
    (void)state;
    begin(false, false, false);
    expect("", "", "");
}

static void logprobs_are_sorted_and_sum_to_one(void **state)
{
    char path[] = "/tmp/ds4-logprobs-XXXXXX", *text;
    size_t n, count = vocab_size(v);
    logprobs l;
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    float *x = calloc(count, sizeof *x);
    assert_non_null(x);
    x[7] = 5;
    x[3] = x[9] = 4; /* a tie: the lower id first */
    assert_int_equal(logprobs_open(&l, path, v, 3, NULL), 0);
    assert_int_equal(logprobs_add(&l, 11, 9, x, NULL), 0);
    assert_int_equal(logprobs_commit(&l, NULL), 0);
    logprobs_close(&l);
    assert_int_equal(fsio_read(path, 1 << 20, &text, &n, NULL), 0);
    double sum = exp(5) + 2 * exp(4) + (double)(count - 3);
    char want[80];
    snprintf(want, sizeof want, "\"logprob\": %.9f", 4 - log(sum));
    assert_has(text, "{\"pos\": 11, \"id\": 9, ");
    want[strlen(want) - 3] = 0; /* the last digits may be rounded otherwise */
    assert_has(text, want);
    char *a = strstr(text, "\"top\""), *b = strstr(a, "\"id\": 7,"), *c = strstr(a, "\"id\": 3,"),
         *d = strstr(a, "\"id\": 9,");
    assert_true(a && b && c && d && b < c && c < d);
    free(text);
    free(x);
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thoughts_stand_between_plain_markers),
        cmocka_unit_test(thoughts_are_dimmed_on_a_terminal),
        cmocka_unit_test(an_unfinished_thought_leaves_no_colour),
        cmocka_unit_test(a_cut_character_belongs_to_its_thought),
        cmocka_unit_test(a_model_cannot_drive_the_terminal),
        cmocka_unit_test(raw_text_keeps_think_tags),
        cmocka_unit_test(an_empty_answer_prints_nothing),
        cmocka_unit_test(logprobs_are_sorted_and_sum_to_one),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
