#include "util_text.h"

#include "text/utf8.h"

static const char *const tiny_merges[] = {
    "a b",   "Ġ ab", "ab c", "Ġ Ġ",  "l o", "h e", "he l", "hel lo", "a a",
    "aa aa", "Ã ©",  "ð Ł",  "ðŁ Ļ", "Ġ w", "o r", "Ċ Ċ",  "t h",
};

void put_raw(bytes *b, const void *p, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2;
        b->p = realloc(b->p, b->cap);
        assert_non_null(b->p);
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void put_u32(bytes *b, uint32_t v) { put_raw(b, &v, 4); }
void put_u64(bytes *b, uint64_t v) { put_raw(b, &v, 8); }

void put_str(bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    put_raw(b, s, strlen(s));
}

/* "left right" without its space. */
static void join(const char *merge, char out[16])
{
    for (; *merge; merge++)
        if (*merge != ' ')
            *out++ = *merge;
    *out = 0;
}

void tiny_make(tiny *t)
{
    memset(t, 0, sizeof *t);
    uint32_t next = 0x100;
    for (int b = 0; b < 256; b++) {
        int visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        t->byte_text[b][utf8_put(visible ? (uint32_t)b : next++, (uint8_t *)t->byte_text[b])] = 0;
        t->tokens[t->n_tokens] = t->byte_text[b];
        t->types[t->n_tokens++] = VOCAB_NORMAL;
    }
    for (size_t i = 0; i < sizeof tiny_merges / sizeof tiny_merges[0]; i++) {
        t->merges[t->n_merges++] = tiny_merges[i];
        join(tiny_merges[i], t->merge_text[i]);
        t->tokens[t->n_tokens] = t->merge_text[i];
        t->types[t->n_tokens++] = VOCAB_NORMAL;
    }
    t->bos = t->n_tokens;
    t->eos = t->n_tokens + 1;
    for (int i = 0; i < SP_COUNT; i++) {
        t->tokens[t->n_tokens] = vocab_special_text((enum vocab_special)i);
        t->types[t->n_tokens++] = i < SP_USER ? VOCAB_CONTROL : VOCAB_USER;
    }
    t->model = "gpt2";
}

static void key(bytes *b, const char *name, uint32_t type)
{
    put_str(b, name);
    put_u32(b, type);
}

static void str_array(bytes *b, const char *name, const char *const *s, uint32_t n)
{
    key(b, name, GGUF_ARR);
    put_u32(b, GGUF_STR);
    put_u64(b, n);
    for (uint32_t i = 0; i < n; i++)
        put_str(b, s[i]);
}

int tiny_load(const tiny *t, uint32_t want, vocab **out, ds4_err *e)
{
    bytes b = {0};
    put_raw(&b, "GGUF", 4);
    put_u32(&b, 3);
    put_u64(&b, 0);
    put_u64(&b, 7);
    key(&b, "general.architecture", GGUF_STR);
    put_str(&b, "deepseek4");
    key(&b, "tokenizer.ggml.model", GGUF_STR);
    put_str(&b, t->model);
    str_array(&b, "tokenizer.ggml.tokens", t->tokens, t->n_tokens);
    key(&b, "tokenizer.ggml.token_type", GGUF_ARR);
    put_u32(&b, GGUF_I32);
    put_u64(&b, t->n_tokens);
    put_raw(&b, t->types, t->n_tokens * sizeof t->types[0]);
    str_array(&b, "tokenizer.ggml.merges", t->merges, t->n_merges);
    key(&b, "tokenizer.ggml.bos_token_id", GGUF_U32);
    put_u32(&b, t->bos);
    key(&b, "tokenizer.ggml.eos_token_id", GGUF_U32);
    put_u32(&b, t->eos);
    while (b.n % 32)
        put_raw(&b, "", 1);
    gguf *g = NULL;
    int rc = gguf_open_mem(&g, b.p, b.n, "tiny.gguf", e);
    if (rc)
        fail_msg("the test's own GGUF does not open: %s", e ? e->msg : "");
    rc = vocab_load(out, g, want, e);
    gguf_close(g);
    free(b.p);
    return rc;
}

vocab *tiny_vocab(void)
{
    tiny t;
    vocab *v = NULL;
    ds4_err e = {0};
    tiny_make(&t);
    if (tiny_load(&t, 0, &v, &e))
        fail_msg("%s", e.msg);
    return v;
}

char *read_all(const char *dir, const char *name, size_t *n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    char *buf = NULL;
    size_t cap = 0;
    *n = 0;
    do {
        cap += 1 << 20;
        buf = realloc(buf, cap + 1);
        assert_non_null(buf);
        *n += fread(buf + *n, 1, cap - *n, f);
    } while (*n == cap);
    fclose(f);
    buf[*n] = 0;
    return buf;
}

vocab *golden_vocab(const char *argv0)
{
    char file[4096], cmd[16384];
    const char *slash = strrchr(argv0, '/');
    snprintf(file, sizeof file, "%.*s/deepseek_v4_vocab.gguf", slash ? (int)(slash - argv0) : 1, slash ? argv0 : ".");
    snprintf(cmd, sizeof cmd, "python3 tools/vocab_gguf.py '%s/deepseek_v3_tokenizer.json' '%s'", golden_dir(), file);
    if (system(cmd))
        fail_msg("failed: %s", cmd);
    gguf *g = NULL;
    vocab *v = NULL;
    ds4_err e = {0};
    if (gguf_open(&g, file, &e) || vocab_load(&v, g, 129280, &e))
        fail_msg("%s", e.msg);
    gguf_close(g);
    return v;
}
