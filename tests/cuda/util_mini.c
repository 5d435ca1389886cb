#include "cuda/util_mini.h"

#include <unistd.h>

#include "text/bpe.h"
#include "text/chat.h"

static void check(int rc, const ds4_error *e)
{
    if (rc)
        fail_msg("%s", e->msg);
}

int mini_threads(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 32 ? 32 : (int)n;
}

void mini_need_gpu(void)
{
    backend *b;
    ds4_error e = {0};
    int rc = backend_open(&b, &(backend_options){.name = "cuda"}, &e);
    if (rc && !strncmp(e.msg, "CUDA: no ", 9)) {
        print_message("skipped (no GPU)\n");
        skip();
    }
    check(rc, &e);
    b->op->close(b);
}

void mini_rig(rig *r, const char *backend, rig_options o)
{
    ds4_error e = {0};
    gguf *g = NULL;
    o.threads = mini_threads();
    setenv("DS4_TEST_BACKEND", backend, 1);
    check(gguf_open(&g, MINI_MODEL, &e), &e);
    rig_open(r, g, NULL, o);
}

ds4_engine *mini_engine(const char *backend, enum ds4_act act, enum ds4_kv_sim sim, int ctx, bool draft)
{
    ds4_engine *eng;
    ds4_error e = {0};
    ds4_engine_options o = ds4_engine_defaults();
    o.model = MINI_MODEL;
    o.drafter = draft ? MINI_DRAFTER : NULL;
    o.dspark = draft;
    o.backend = backend;
    o.ctx = ctx;
    o.act = act;
    o.kv_sim = sim;
    check(ds4_engine_open(&eng, &o, &e), &e);
    return eng;
}

int mini_prompt(const ds4_engine *eng, int i, int32_t *out)
{
    static const char *const subjects[] = {
        "Redis", "a list", "the moon", "a C function that adds two numbers",
        "rain",  "bread",  "the sea",  "a Python function that reverses a string",
        "gold",  "a tree",
    };
    static const char *const asks[] = {
        "Explain %s in one sentence.", "Tell me about %s.", "Write about %s.", "What is %s?",
        "Why is %s useful?", "Describe %s.", "Give an example of %s.", "How does %s work?",
        "Write a short story about %s.", "List three facts about %s.",
    };
    char text[200];
    ds4_error e = {0};
    protocol proto = {0};
    chat_text t = {0};
    bpe_ids ids = {0};
    snprintf(text, sizeof text, asks[i % 10], subjects[(i / 10 + i) % 10]);
    chat_msg m = {.role = CHAT_USER, .content = {text, strlen(text)}};
    check(protocol_load(&proto, NULL, MINI_MODEL, &e), &e);
    check(chat_render(&m, 1, &(chat_opts){.drop_thinking = true, .proto = &proto}, &t, &e), &e);
    check(chat_encode(ds4_engine_vocab(eng), &t, &ids, &e), &e);
    assert_true(ids.n > 0 && ids.n <= 200);
    memcpy(out, ids.id, ids.n * sizeof *out);
    int n = (int)ids.n;
    bpe_ids_free(&ids);
    chat_text_free(&t);
    protocol_free(&proto);
    return n;
}

int32_t *mini_prose(const ds4_engine *eng, size_t *n)
{
    static char buf[1 << 16];
    ds4_error e = {0};
    ds4_info info;
    int32_t *ids;
    FILE *f = fopen("tests/data/prose.txt", "rb");
    assert_non_null(f);
    size_t len = fread(buf, 1, sizeof buf, f);
    fclose(f);
    check(ds4_tokenize(eng, buf, len, false, &ids, n, &e), &e);
    ds4_engine_info(eng, &info);
    ids[0] = info.bos;
    return ids;
}
