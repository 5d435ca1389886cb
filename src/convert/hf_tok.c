#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/hf.h"
#include "base/fsio.h"
#include "file/gguf.h"

enum { TOK_NORMAL = 1, TOK_CONTROL = 3, TOK_USER = 4, TOK_UNUSED = 5 };

typedef struct tok_table {
    const char *path;
    uint32_t n;          /* vocab_size */
    const char **text;   /* borrowed from the JSON tree, NULL = open id */
    int32_t *type;
    uint32_t pad;        /* id of the padding token */
} tok_table;

static int put_token(tok_table *t, int64_t id, const char *text, int type, ds4_err *e)
{
    if (id < 0 || id >= t->n)
        return ds4_fail(e, DS4_EMODEL, "%s: token \"%s\" has id %lld, vocab_size is %u", t->path, text, (long long)id,
                        t->n);
    if (t->text[id] && strcmp(t->text[id], text))
        return ds4_fail(e, DS4_EMODEL, "%s: id %lld is both \"%s\" and \"%s\"", t->path, (long long)id, t->text[id],
                        text);
    t->text[id] = text;
    t->type[id] = type;
    return 0;
}

static int read_vocab(tok_table *t, const json_t *vocab, ds4_err *e)
{
    const char *text;
    json_t *id;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return ds4_fail(e, DS4_EMODEL, "%s: model.vocab: expected an object of token texts", t->path);
    json_object_foreach((json_t *)vocab, text, id) {
        int rc = json_is_integer(id) ? put_token(t, json_integer_value(id), text, TOK_NORMAL, e)
                                     : ds4_fail(e, DS4_EMODEL, "%s: token \"%s\" has no integer id", t->path, text);
        if (rc)
            return rc;
    }
    return 0;
}

static int read_added(tok_table *t, const json_t *added, ds4_err *e)
{
    size_t i;
    json_t *a;
    json_array_foreach((json_t *)added, i, a) {
        const char *text = json_string_value(json_object_get(a, "content"));
        const json_t *id = json_object_get(a, "id");
        if (!text || !*text || !json_is_integer(id))
            return ds4_fail(e, DS4_EMODEL, "%s: added_tokens[%zu]: expected content and id", t->path, i);
        int64_t n = json_integer_value(id);
        bool special = json_is_true(json_object_get(a, "special")) || n <= 2;
        int rc = put_token(t, n, text, special ? TOK_CONTROL : TOK_USER, e);
        if (rc)
            return rc;
        if (!strcmp(text, "<\xef\xbd\x9c\xe2\x96\x81pad\xe2\x96\x81\xef\xbd\x9c>"))
            t->pad = (uint32_t)n;
    }
    return 0;
}

/* One merge, "left right" or ["left", "right"] -> the first form in buf. Both parts and their join must be tokens. */
static int read_merge(const tok_table *t, const json_t *m, const json_t *vocab, size_t no, char *buf, size_t cap,
                      ds4_err *e)
{
    const char *s = json_string_value(m);
    const char *l = json_string_value(json_array_get(m, 0)), *r = json_string_value(json_array_get(m, 1));
    bool pair = l && r && json_array_size(m) == 2;
    int n = s ? snprintf(buf, cap, "%s", s) : pair ? snprintf(buf, cap, "%s %s", l, r) : -1;
    char *space = n > 0 && (size_t)n < cap ? strchr(buf, ' ') : NULL;
    if (!space || space == buf || !space[1] || strchr(space + 1, ' '))
        return ds4_fail(e, DS4_EMODEL, "%s: merges[%zu]: expected two token texts", t->path, no);
    *space = 0;
    bool known = json_object_get(vocab, buf) && json_object_get(vocab, space + 1);
    memmove(space, space + 1, strlen(space + 1) + 1);
    known = known && json_object_get(vocab, buf);
    if (!known)
        return ds4_fail(e, DS4_EMODEL, "%s: merges[%zu]: a part or the result is not in the vocabulary", t->path, no);
    snprintf(buf, cap, s ? "%s" : "%s %s", s ? s : l, r);
    return 0;
}

static int write_merges(ggufw *w, const tok_table *t, const json_t *merges, const json_t *vocab, ds4_err *e)
{
    size_t i;
    json_t *m;
    char buf[4096];
    ggufw_kv_arr(w, "tokenizer.ggml.merges", GGUF_STR, json_array_size(merges));
    json_array_foreach((json_t *)merges, i, m) {
        int rc = read_merge(t, m, vocab, i, buf, sizeof buf, e);
        if (rc)
            return rc;
        ggufw_arr_str(w, buf, strlen(buf));
    }
    return 0;
}

static void write_tokens(ggufw *w, const tok_table *t)
{
    char open[48];
    ggufw_kv_arr(w, "tokenizer.ggml.tokens", GGUF_STR, t->n);
    for (uint32_t i = 0; i < t->n; i++) {
        snprintf(open, sizeof open, "<\xef\xbd\x9cunused\xe2\x96\x81%u\xef\xbd\x9c>", i);
        const char *s = t->text[i] ? t->text[i] : open;
        ggufw_arr_str(w, s, strlen(s));
    }
    ggufw_kv_arr(w, "tokenizer.ggml.token_type", GGUF_I32, t->n);
    for (uint32_t i = 0; i < t->n; i++)
        ggufw_arr_i32(w, t->text[i] ? t->type[i] : TOK_UNUSED);
}

static int write_all(ggufw *w, tok_table *t, const json_t *root, const hf_config *c, ds4_err *e)
{
    const json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    const char *type = json_string_value(json_object_get(model, "type"));
    int rc;
    if (!type || strcmp(type, "BPE") || !json_is_array(merges))
        return ds4_fail(e, DS4_EMODEL, "%s: expected a byte-level BPE model (type BPE with merges), found type %s",
                        t->path, type ? type : "missing");
    if ((rc = read_vocab(t, vocab, e)) || (rc = read_added(t, json_object_get(root, "added_tokens"), e)))
        return rc;
    ggufw_kv_str(w, "tokenizer.ggml.model", "gpt2");
    ggufw_kv_str(w, "tokenizer.ggml.pre", "joyai-llm");
    write_tokens(w, t);
    if ((rc = write_merges(w, t, merges, vocab, e)))
        return rc;
    ggufw_kv_u32(w, "tokenizer.ggml.bos_token_id", c->bos_token_id);
    ggufw_kv_u32(w, "tokenizer.ggml.eos_token_id", c->eos_token_id);
    ggufw_kv_u32(w, "tokenizer.ggml.padding_token_id", t->pad);
    ggufw_kv_bool(w, "tokenizer.ggml.add_bos_token", false);
    ggufw_kv_bool(w, "tokenizer.ggml.add_eos_token", false);
    return 0;
}

int hf_write_tokenizer(ggufw *w, const char *path, const hf_config *c, ds4_err *e)
{
    char *text;
    size_t len;
    json_error_t je;
    int rc = fsio_read(path, 256 << 20, &text, &len, e);
    if (rc)
        return rc;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    tok_table t = {.path = path, .n = c->vocab_size, .pad = c->eos_token_id};
    t.text = calloc(t.n, sizeof *t.text);
    t.type = calloc(t.n, sizeof *t.type);
    if (!json_is_object(root))
        rc = ds4_fail(e, DS4_EFORMAT, "%s:%d: not a JSON object: %s", path, root ? 1 : je.line,
                      root ? "other type" : je.text);
    else if (!t.text || !t.type)
        rc = ds4_fail(e, DS4_ENOMEM, "out of memory for %u tokens", t.n);
    else
        rc = write_all(w, &t, root, c, e);
    free(t.text);
    free(t.type);
    json_decref(root);
    free(text);
    return rc;
}
