/* t_mini: the shipped small model end to end through the public header: drafting is exact, accepts what it should, and
 * the production precision stays near the reference. DS4_TEST_SLOW=1 runs the full numbers (100 prompts, 4,096 tokens).
 * DS4_TEST_BACKEND names another backend than the CPU; a GPU runs the full numbers. */
#include "util/unit.h"

#include <math.h>

#include "ds4.h"
#include "text/bpe.h"
#include "text/chat.h"

#define MODEL "mini/ds4-mini.gguf"
#define DRAFTER "mini/ds4-mini-dspark.gguf"

static const char *backend_name(void)
{
    const char *name = getenv("DS4_TEST_BACKEND");
    return name && *name ? name : "cpu";
}

static bool slow(void) { return getenv("DS4_TEST_SLOW") || strcmp(backend_name(), "cpu"); }

static void check(int rc, const ds4_error *e)
{
    if (rc)
        fail_msg("%s", e->msg);
}

static ds4_engine *open_engine(enum ds4_act act, bool draft)
{
    ds4_engine *eng;
    ds4_error e = {0};
    ds4_engine_options o = ds4_engine_defaults();
    o.model = MODEL;
    o.drafter = draft ? DRAFTER : NULL;
    o.dspark = draft;
    o.backend = backend_name();
    o.ctx = 4096 + 64;
    o.act = act;
    int rc = ds4_engine_open(&eng, &o, &e);
    if (rc && !strncmp(e.msg, "CUDA: no ", 9))
        UNIT_SKIP("no GPU");
    check(rc, &e);
    return eng;
}

/* A user's message as prompt tokens, without thinking. */
static bpe_ids chat_prompt(const ds4_engine *eng, const char *text)
{
    ds4_error e = {0};
    protocol proto = {0};
    chat_msg m = {.role = CHAT_USER, .content = {text, strlen(text)}};
    chat_text t = {0};
    bpe_ids ids = {0};
    check(protocol_load(&proto, NULL, MODEL, &e), &e);
    check(chat_render(&m, 1, &(chat_opts){.drop_thinking = true, .proto = &proto}, &t, &e), &e);
    check(chat_encode(ds4_engine_vocab(eng), &t, &ids, &e), &e);
    chat_text_free(&t);
    protocol_free(&proto);
    return ids;
}

typedef struct text {
    int32_t id[1024];
    int n;
} text;

static bool collect(void *ctx, int32_t token, const float *logits)
{
    text *t = ctx;
    (void)logits;
    t->id[t->n++] = token;
    return true;
}

static ds4_result answer(const ds4_engine *eng, ds4_session *s, const char *prompt, ds4_generate_options o, text *out)
{
    ds4_error e = {0};
    ds4_result r;
    bpe_ids ids = chat_prompt(eng, prompt);
    out->n = 0;
    o.on_token = collect;
    o.ctx = out;
    check(ds4_session_reset(s, &e), &e);
    check(ds4_session_sync(s, ids.id, (int)ids.n, NULL, NULL, NULL, &e), &e);
    check(ds4_generate(s, &o, &r, &e), &e);
    bpe_ids_free(&ids);
    return r;
}

static const char *const subjects[] = {
    "a list",  "Redis",        "the moon", "a C function that adds two numbers",
    "rain",    "a compiler",   "bread",    "a Python function that reverses a string",
    "the sea", "a hash table",
};
static const char *const asks[] = {
    "Explain %s in one sentence.",
    "Tell me about %s.",
    "Write about %s.",
    "What is %s?",
    "Why is %s useful?",
    "Describe %s.",
    "Give an example of %s.",
    "How does %s work?",
    "Write a short story about %s.",
    "List three facts about %s.",
};

/* Same seed, temperature 1: the text with drafting is the text without. */
static void same_seed_same_text(void **u)
{
    (void)u;
    ds4_engine *eng = open_engine(DS4_ACT_Q8, true);
    ds4_session *s;
    ds4_error e = {0};
    const int prompts = slow() ? 100 : 12;
    uint64_t proposed = 0, accepted = 0;
    check(ds4_session_open(&s, eng, &e), &e);
    for (int i = 0; i < prompts; i++) {
        char p[200];
        text plain, spec;
        ds4_generate_options o = ds4_generate_defaults();
        snprintf(p, sizeof p, asks[i % 10], subjects[(i / 10 + i) % 10]);
        o.max_tokens = 64;
        o.seed = (uint64_t)i + 1;
        o.top_p = i % 2 ? 0.95f : 1.0f;
        o.drafting = DS4_DRAFT_OFF;
        ds4_result a = answer(eng, s, p, o, &plain);
        o.drafting = DS4_DRAFT_FIXED;
        o.confidence = 0.5f;
        ds4_result b = answer(eng, s, p, o, &spec);
        if (plain.n != spec.n || memcmp(plain.id, spec.id, (size_t)plain.n * sizeof *plain.id))
            fail_msg("prompt '%s', seed %d: the text with drafting differs", p, i + 1);
        assert_int_equal(a.finish, b.finish);
        assert_true(a.logits_hash == b.logits_hash);
        proposed += b.proposed;
        accepted += b.accepted;
    }
    print_message("T = 1: %d prompts identical; %llu of %llu drafts accepted\n", prompts, (unsigned long long)accepted,
                  (unsigned long long)proposed);
    assert_true(proposed > 0 && accepted > 0 && accepted <= proposed);
    ds4_session_close(s);
    ds4_engine_close(eng);
}

/* Mean acceptance length (accepted + 1) over a set of prompts, greedy, all drafts verified down to the threshold. */
static double acceptance(const ds4_engine *eng, ds4_session *s, const char *const *prompts, int n)
{
    uint64_t cycles = 0, accepted = 0;
    for (int i = 0; i < n; i++) {
        text t;
        ds4_generate_options o = ds4_generate_defaults();
        o.temp = 0;
        o.max_tokens = 128;
        o.drafting = DS4_DRAFT_FIXED;
        o.confidence = 0.3f;
        ds4_result r = answer(eng, s, prompts[i], o, &t);
        cycles += r.cycles;
        accepted += r.accepted;
    }
    return cycles ? 1.0 + (double)accepted / (double)cycles : 0;
}

static void drafts_are_accepted(void **u)
{
    (void)u;
    static const char *const code[] = {
        "Write a Python function that reverses a string.",
        "Complete this C function: int add(int a, int b) {",
        "Write a C function that returns the larger of two integers.",
        "Write a Python function that sums a list.",
    };
    static const char *const prose[] = {
        "Explain Redis in one sentence.",
        "Write a short story about the sea.",
        "Tell me about the moon.",
        "Explain a hash table in one sentence.",
    };
    ds4_engine *eng = open_engine(DS4_ACT_Q8, true);
    ds4_session *s;
    ds4_error e = {0};
    check(ds4_session_open(&s, eng, &e), &e);
    double c = acceptance(eng, s, code, 4), p = acceptance(eng, s, prose, 4);
    print_message("acceptance length: code %.2f, prose %.2f\n", c, p);
    assert_true(c >= 2.5);
    assert_true(p >= 1.8);
    ds4_session_close(s);
    ds4_engine_close(eng);
}

typedef struct nll {
    const int32_t *id;
    int n;
    double sum;
    int vocab;
} nll;

static bool add_nll(void *ctx, int pos, const float *logits)
{
    nll *a = ctx;
    if (pos + 1 >= a->n)
        return true;
    double m = -INFINITY, sum = 0;
    for (int i = 0; i < a->vocab; i++)
        m = fmax(m, logits[i]);
    for (int i = 0; i < a->vocab; i++)
        sum += exp(logits[i] - m);
    a->sum += m + log(sum) - logits[a->id[pos + 1]];
    return true;
}

static double text_nll(enum ds4_act act, int tokens)
{
    ds4_engine *eng = open_engine(act, false);
    ds4_session *s;
    ds4_error e = {0};
    ds4_info info;
    static char buf[1 << 16];
    FILE *f = fopen("tests/data/prose.txt", "rb");
    assert_non_null(f);
    size_t len = fread(buf, 1, sizeof buf, f), n;
    int32_t *ids;
    fclose(f);
    check(ds4_tokenize(eng, buf, len, false, &ids, &n, &e), &e);
    assert_true((int)n >= tokens);
    ids[0] = 0;
    ds4_engine_info(eng, &info);
    nll a = {ids, tokens, 0, info.vocab};
    check(ds4_session_open(&s, eng, &e), &e);
    check(ds4_session_score(s, ids, tokens, add_nll, &a, &e), &e);
    ds4_session_close(s);
    ds4_engine_close(eng);
    free(ids);
    return a.sum / (tokens - 1);
}

/* int8 activations cost at most half a per cent of negative log-likelihood. */
static void q8_near_float(void **u)
{
    (void)u;
    const int tokens = slow() ? 4096 : 512;
    double q8 = text_nll(DS4_ACT_Q8, tokens), fl = text_nll(DS4_ACT_FLOAT, tokens);
    print_message("negative log-likelihood of %d tokens: q8 %.5f, float %.5f, %+.3f %%\n", tokens, q8, fl,
                  100 * (q8 / fl - 1));
    assert_true(fl > 0.1 && fl < 9);
    assert_true(fabs(q8 / fl - 1) < 0.005);
}

typedef struct stopper {
    text t;
    int at;
} stopper;

static bool stop_at(void *ctx, int32_t token, const float *logits)
{
    stopper *s = ctx;
    (void)logits;
    if (s->t.n == s->at)
        return false;
    s->t.id[s->t.n++] = token;
    return true;
}

/* The caller stops inside an accepted block: the state is that of plain decoding stopped there. */
static void caller_stops_inside_a_block(void **u)
{
    (void)u;
    ds4_engine *eng = open_engine(DS4_ACT_Q8, true);
    ds4_session *s;
    ds4_error e = {0};
    check(ds4_session_open(&s, eng, &e), &e);
    for (int at = 0; at < 14; at++) {
        uint64_t h[2], logits[2];
        int pos[2];
        stopper st[2];
        for (int k = 0; k < 2; k++) {
            ds4_result r;
            ds4_generate_options o = ds4_generate_defaults();
            bpe_ids ids = chat_prompt(eng, "Write a Python function that reverses a string.");
            st[k] = (stopper){.at = at};
            o.temp = 0;
            o.drafting = k ? DS4_DRAFT_FIXED : DS4_DRAFT_OFF;
            o.on_token = stop_at;
            o.ctx = &st[k];
            check(ds4_session_reset(s, &e), &e);
            check(ds4_session_sync(s, ids.id, (int)ids.n, NULL, NULL, NULL, &e), &e);
            check(ds4_generate(s, &o, &r, &e), &e);
            assert_int_equal(r.finish, DS4_FINISH_CALLER);
            check(ds4_session_hash(s, &h[k], &e), &e);
            logits[k] = r.logits_hash;
            pos[k] = ds4_session_pos(s);
            bpe_ids_free(&ids);
        }
        assert_int_equal(pos[0], pos[1]);
        assert_true(h[0] == h[1]);
        assert_true(logits[0] && logits[0] == logits[1]);
    }
    ds4_session_close(s);
    ds4_engine_close(eng);
}

/* Writing in pieces, two sessions by turns, gives the text of one run: a token's noise belongs to its position, whether
 * it is the first of a call, a draft, or neither. */
static void pieces_make_the_same_text(void **u)
{
    (void)u;
    enum { N = 60 };
    ds4_engine *eng;
    ds4_session *s[2];
    ds4_error e = {0};
    text whole;
    ds4_engine_options eo = {.model = MODEL, .drafter = DRAFTER, .dspark = true, .backend = backend_name(),
                             .ctx = 512, .sessions = 2};
    ds4_generate_options o = ds4_generate_defaults();
    ds4_engine_close(open_engine(DS4_ACT_Q8, false)); /* skips without a GPU */
    check(ds4_engine_open(&eng, &eo, &e), &e);
    check(ds4_session_open(&s[0], eng, &e), &e);
    check(ds4_session_open(&s[1], eng, &e), &e);
    bpe_ids ids = chat_prompt(eng, "Write a short story about the sea.");
    o.seed = 5;
    o.ignore_eos = true;
    o.max_tokens = N;
    o.drafting = DS4_DRAFT_OFF;
    ds4_result one = answer(eng, s[0], "Write a short story about the sea.", o, &whole), r = {0};
    for (int how = DS4_DRAFT_OFF; how <= DS4_DRAFT_FIXED; how++) {
        text t[2] = {{.n = 0}, {.n = 0}};
        o.drafting = (enum ds4_drafting)how;
        o.on_token = collect;
        for (int turn = 0; t[0].n < N || t[1].n < N; turn++) {
            text *mine = &t[turn % 2];
            int32_t all[512];
            if (mine->n == N)
                continue;
            memcpy(all, ids.id, ids.n * sizeof *all);
            memcpy(all + ids.n, mine->id, (size_t)mine->n * sizeof *all);
            o.ctx = mine;
            o.max_tokens = 1 + turn % 7 < N - mine->n ? 1 + turn % 7 : N - mine->n;
            check(ds4_session_sync(s[turn % 2], all, (int)ids.n + mine->n, NULL, NULL, NULL, &e), &e);
            check(ds4_generate(s[turn % 2], &o, &r, &e), &e);
        }
        for (int k = 0; k < 2; k++)
            assert_memory_equal(t[k].id, whole.id, N * sizeof *whole.id);
        assert_true(r.logits_hash == one.logits_hash);
    }
    bpe_ids_free(&ids);
    ds4_session_close(s[0]);
    ds4_session_close(s[1]);
    ds4_engine_close(eng);
}

/* A temperature near zero is greedy; logits divided by it must not become infinite and all alike. */
static void tiny_temperature_is_greedy(void **u)
{
    (void)u;
    static const float temps[] = {0, 1e-45f, 1e-38f, 1e-20f, 1e-6f, 1e-5f};
    ds4_engine *eng = open_engine(DS4_ACT_Q8, false);
    ds4_session *s;
    ds4_error e = {0};
    text t[2];
    check(ds4_session_open(&s, eng, &e), &e);
    for (int i = 0; i < 6; i++) {
        ds4_generate_options o = ds4_generate_defaults();
        o.temp = temps[i];
        o.top_p = 1;
        o.max_tokens = 24;
        answer(eng, s, "Explain Redis in one sentence.", o, &t[i > 0]);
        if (i && (t[0].n != t[1].n || memcmp(t[0].id, t[1].id, (size_t)t[0].n * sizeof *t[0].id)))
            fail_msg("temperature %g is not greedy", (double)temps[i]);
    }
    ds4_session_close(s);
    ds4_engine_close(eng);
}

/* The last logits are reported for every length of answer and every way of drafting; the first automatic run measures
 * the machine, which must not show. */
static void last_logits_are_always_known(void **u)
{
    (void)u;
    static const enum ds4_drafting how[] = {DS4_DRAFT_OFF, DS4_DRAFT_AUTO, DS4_DRAFT_FIXED};
    for (int n = 1; n <= 3; n++) {
        ds4_engine *eng = open_engine(DS4_ACT_Q8, true);
        ds4_session *s;
        ds4_error e = {0};
        uint64_t h[3];
        check(ds4_session_open(&s, eng, &e), &e);
        for (int k = 0; k < 3; k++) {
            text t;
            ds4_generate_options o = ds4_generate_defaults();
            o.temp = 0;
            o.max_tokens = n;
            o.drafting = how[k];
            h[k] = answer(eng, s, "Write a Python function that reverses a string.", o, &t).logits_hash;
            assert_int_equal(t.n, n);
        }
        assert_true(h[0] && h[0] == h[1] && h[0] == h[2]);
        ds4_session_close(s);
        ds4_engine_close(eng);
    }
}

/* Asking for drafting without a usable drafter is an error, never silent plain decoding. */
static void missing_drafter_is_an_error(void **u)
{
    (void)u;
    ds4_engine *eng;
    ds4_error e = {0};
    ds4_engine_options o = ds4_engine_defaults();
    o.model = MODEL;
    o.dspark = true;
    assert_int_equal(ds4_engine_open(&eng, &o, &e), DS4_EARG);
    assert_has(e.msg, "--mtp");
    o.drafter = "no/such/file.gguf";
    assert_true(ds4_engine_open(&eng, &o, &e) < 0);
    assert_has(e.msg, "no/such/file.gguf");
    o.drafter = MODEL;
    assert_int_equal(ds4_engine_open(&eng, &o, &e), DS4_EMODEL);
    o.model = DRAFTER;
    assert_int_equal(ds4_engine_open(&eng, &o, &e), DS4_EMODEL);
    assert_has(e.msg, "drafter");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_seed_same_text),
        cmocka_unit_test(drafts_are_accepted),
        cmocka_unit_test(q8_near_float),
        cmocka_unit_test(caller_stops_inside_a_block),
        cmocka_unit_test(pieces_make_the_same_text),
        cmocka_unit_test(tiny_temperature_is_greedy),
        cmocka_unit_test(last_logits_are_always_known),
        cmocka_unit_test(missing_drafter_is_an_error),
    };
    return cmocka_run_group_tests_name("mini", tests, NULL, NULL);
}
