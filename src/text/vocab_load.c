/* vocab_load.c: from tokenizer.ggml.* keys to a checked vocab. */
#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"
#include "text/vocab_int.h"

#define MAX_TOKENS (1u << 24)
#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define KEY_MERGES "tokenizer.ggml.merges"

/* GPT-2's printable alphabet: printable Latin-1 bytes stand for themselves, the other 68 are U+0100 upward in byte
 * order. */
static void make_unmap(int16_t unmap[0x144])
{
    int next = 0x100;
    for (int i = 0; i < 0x144; i++)
        unmap[i] = -1;
    for (int b = 0; b < 256; b++) {
        int visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        unmap[visible ? b : next++] = (int16_t)b;
    }
}

/* Raw bytes of mapped text into out (room for s.n bytes). Returns their number, or -1 if s has a character outside the
 * alphabet. */
static ptrdiff_t unmap_text(const int16_t unmap[0x144], gguf_str s, char *out)
{
    size_t n = 0, i = 0;
    while (i < s.n) {
        uint32_t cp;
        int k = utf8_step((const uint8_t *)s.p + i, s.n - i, &cp);
        if (k <= 0 || cp >= 0x144 || unmap[cp] < 0)
            return -1;
        out[n++] = (char)unmap[cp];
        i += (size_t)k;
    }
    return (ptrdiff_t)n;
}

static int table_init(id_table *t, uint32_t entries)
{
    uint32_t size = 16;
    while (size < 2 * entries)
        size *= 2;
    t->slot = malloc((size_t)size * sizeof *t->slot);
    if (!t->slot)
        return -1;
    memset(t->slot, 0xFF, (size_t)size * sizeof *t->slot);
    t->mask = size - 1;
    return 0;
}

static void table_add(const vocab *v, id_table *t, int32_t id)
{
    uint32_t i = vocab_hash_bytes(v->blob + v->start[id], v->start[id + 1] - v->start[id]) & t->mask;
    while (t->slot[i] >= 0)
        i = (i + 1) & t->mask;
    t->slot[i] = id;
}

static int no_memory(const gguf *g, ds4_err *e)
{
    return ds4_fail(e, DS4_ENOMEM, "%s: out of memory for the vocabulary", gguf_path(g));
}

/* Finds an array key of a given element type; for integers pass GGUF_I32, any integer type is then accepted. */
static int find_array(const gguf *g, const char *key, bool strings, const gguf_kv **out, ds4_err *e)
{
    const gguf_kv *kv = gguf_find_kv(g, key);
    if (!kv)
        return ds4_fail(e, DS4_EFORMAT, "%s: no key %s: the file carries no vocabulary", gguf_path(g), key);
    bool is_int = kv->elem != GGUF_STR && kv->elem != GGUF_ARR && kv->elem != GGUF_F32 && kv->elem != GGUF_F64;
    if (kv->type != GGUF_ARR || (strings ? kv->elem != GGUF_STR : !is_int))
        return ds4_fail(e, DS4_EFORMAT, "%s: %s must be an array of %s, found value type %u, element type %u",
                        gguf_path(g), key, strings ? "strings" : "integers", kv->type, kv->elem);
    *out = kv;
    return 0;
}

static int check_counts(const gguf *g, uint32_t want, const gguf_kv *tokens, const gguf_kv *types, ds4_err *e)
{
    if (tokens->count == 0 || tokens->count > MAX_TOKENS)
        return ds4_fail(e, DS4_EFORMAT, "%s: %s has %llu entries, expected 1 to %u", gguf_path(g), KEY_TOKENS,
                        (unsigned long long)tokens->count, MAX_TOKENS);
    if (want && tokens->count != want)
        return ds4_fail(e, DS4_EMODEL, "%s: %s has %llu entries, but the model has %u vocabulary rows", gguf_path(g),
                        KEY_TOKENS, (unsigned long long)tokens->count, want);
    if (types->count != tokens->count)
        return ds4_fail(e, DS4_EFORMAT, "%s: %s has %llu entries, but %s has %llu", gguf_path(g), KEY_TYPES,
                        (unsigned long long)types->count, KEY_TOKENS, (unsigned long long)tokens->count);
    return 0;
}

static int read_types(vocab *v, const gguf *g, const gguf_kv *types, ds4_err *e)
{
    for (uint32_t i = 0; i < v->n; i++) {
        int64_t t = gguf_arr_int(types, i);
        if (t != VOCAB_NORMAL && t != VOCAB_CONTROL && t != VOCAB_USER && t != VOCAB_UNUSED)
            return ds4_fail(e, DS4_EFORMAT,
                            "%s: %s[%u] is %lld, expected 1 (normal), 3 (control), 4 (user-defined) or 5 (unused)",
                            gguf_path(g), KEY_TYPES, i, (long long)t);
        v->type[i] = (uint8_t)t;
    }
    return 0;
}

static int read_tokens(vocab *v, const gguf *g, const gguf_kv *tokens, const int16_t *unmap, ds4_err *e)
{
    size_t cursor = 0, used = 0;
    gguf_str s;
    for (uint32_t i = 0; i < v->n; i++) {
        if (!gguf_next_str(tokens, &cursor, &s))
            return ds4_fail(e, DS4_EFORMAT, "%s: %s ends after %u of %u entries", gguf_path(g), KEY_TOKENS, i, v->n);
        if (s.n == 0 && v->type[i] != VOCAB_UNUSED)
            return ds4_fail(e, DS4_EFORMAT, "%s: %s[%u] is empty", gguf_path(g), KEY_TOKENS, i);
        v->start[i] = used;
        if (v->type[i] == VOCAB_NORMAL) {
            ptrdiff_t k = unmap_text(unmap, s, v->blob + used);
            if (k < 0)
                return ds4_fail(e, DS4_EFORMAT,
                                "%s: %s[%u] = \"%.*s\" has a character outside the byte alphabet (token type wrong?)",
                                gguf_path(g), KEY_TOKENS, i, (int)(s.n < 60 ? s.n : 60), s.p);
            used += (size_t)k;
        } else {
            memcpy(v->blob + used, s.p, s.n);
            used += s.n;
        }
    }
    v->start[v->n] = used;
    return 0;
}

static int index_tokens(vocab *v, const gguf *g, ds4_err *e)
{
    if (table_init(&v->plain, v->n) || table_init(&v->added, v->n))
        return no_memory(g, e);
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->type[i] == VOCAB_UNUSED)
            continue;
        id_table *t = v->type[i] == VOCAB_NORMAL ? &v->plain : &v->added;
        size_t n = v->start[i + 1] - v->start[i];
        const char *p = v->blob + v->start[i];
        int32_t twin = vocab_table_find(v, t, p, n);
        if (twin >= 0)
            return ds4_fail(e, DS4_EFORMAT, "%s: %s[%u] repeats entry %d", gguf_path(g), KEY_TOKENS, i, twin);
        table_add(v, t, (int32_t)i);
    }
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        v->byte_id[b] = vocab_table_find(v, &v->plain, &c, 1);
        if (v->byte_id[b] < 0)
            return ds4_fail(e, DS4_EFORMAT, "%s: %s has no token for the single byte 0x%02x", gguf_path(g), KEY_TOKENS,
                            b);
    }
    return 0;
}

/* The child of `node` for byte b, made if missing; -1 when out of memory. */
static int32_t tree_child(vocab *v, int32_t node, uint8_t b)
{
    int32_t *head = node ? &v->tree[node].child : &v->first[b];
    for (int32_t i = *head; i >= 0; i = v->tree[i].sibling)
        if (v->tree[i].byte == b)
            return i;
    if (v->n_tree == v->cap_tree) {
        uint32_t cap = v->cap_tree * 2;
        tree_node *t = realloc(v->tree, cap * sizeof *t);
        if (!t)
            return -1;
        v->tree = t;
        v->cap_tree = cap;
        head = node ? &t[node].child : &v->first[b];
    }
    v->tree[v->n_tree] = (tree_node){.child = -1, .sibling = *head, .id = -1, .byte = b};
    *head = (int32_t)v->n_tree;
    return (int32_t)v->n_tree++;
}

static int grow_tree(vocab *v, const gguf *g, ds4_err *e)
{
    v->cap_tree = 1024;
    v->n_tree = 1; /* node 0 stands for "no node": its children are v->first */
    v->tree = calloc(v->cap_tree, sizeof *v->tree);
    if (!v->tree)
        return no_memory(g, e);
    for (int b = 0; b < 256; b++)
        v->first[b] = -1;
    size_t total = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        if (!vocab_is_added(v, (int32_t)i))
            continue;
        total += v->start[i + 1] - v->start[i];
        if (total > (1u << 22))
            return ds4_fail(e, DS4_EFORMAT, "%s: the added tokens of %s are over 4 MiB of text", gguf_path(g),
                            KEY_TOKENS);
        int32_t node = 0;
        for (size_t k = v->start[i]; k < v->start[i + 1]; k++)
            if ((node = tree_child(v, node, (uint8_t)v->blob[k])) < 0)
                return no_memory(g, e);
        v->tree[node].id = (int32_t)i;
    }
    return 0;
}

static int bad_merge(const gguf *g, uint64_t i, gguf_str s, const char *why, ds4_err *e)
{
    return ds4_fail(e, DS4_EFORMAT, "%s: %s[%llu] = \"%.*s\": %s", gguf_path(g), KEY_MERGES, (unsigned long long)i,
                    (int)(s.n < 60 ? s.n : 60), s.p, why);
}

/* One "left right" line in the mapped alphabet. `buf` has room for s.n bytes. */
static int add_merge(vocab *v, const gguf *g, uint64_t rank, gguf_str s, const int16_t *unmap, char *buf, ds4_err *e)
{
    const char *space = memchr(s.p, ' ', s.n);
    size_t rest = space ? (size_t)(s.p + s.n - space - 1) : 0;
    if (!space || memchr(space + 1, ' ', rest))
        return bad_merge(g, rank, s, "expected two tokens with one space between them", e);
    ptrdiff_t a = unmap_text(unmap, (gguf_str){s.p, (size_t)(space - s.p)}, buf);
    ptrdiff_t b = a < 0 ? -1 : unmap_text(unmap, (gguf_str){space + 1, rest}, buf + a);
    if (a <= 0 || b <= 0)
        return bad_merge(g, rank, s, "a side is empty or outside the byte alphabet", e);
    int32_t left = vocab_find_plain(v, buf, (size_t)a), right = vocab_find_plain(v, buf + a, (size_t)b);
    int32_t merged = vocab_find_plain(v, buf, (size_t)(a + b));
    if (left < 0 || right < 0 || merged < 0)
        return bad_merge(g, rank, s, "a side or the result is no token", e);
    uint32_t i = vocab_hash_pair(left, right) & v->merge_mask;
    for (; v->merges[i].left >= 0; i = (i + 1) & v->merge_mask)
        if (v->merges[i].left == left && v->merges[i].right == right)
            return bad_merge(g, rank, s, "the pair occurs twice", e);
    v->merges[i] = (merge_slot){left, right, (int32_t)rank, merged};
    return 0;
}

static int read_merges(vocab *v, const gguf *g, const gguf_kv *kv, const int16_t *unmap, ds4_err *e)
{
    if (kv->count > MAX_TOKENS)
        return ds4_fail(e, DS4_EFORMAT, "%s: %s has %llu entries, expected at most %u", gguf_path(g), KEY_MERGES,
                        (unsigned long long)kv->count, MAX_TOKENS);
    uint32_t size = 16;
    while (size < 2 * kv->count)
        size *= 2;
    v->merge_mask = size - 1;
    v->merges = malloc((size_t)size * sizeof *v->merges);
    char *buf = malloc(kv->bytes + 1);
    int rc = v->merges && buf ? 0 : no_memory(g, e);
    if (!rc)
        memset(v->merges, 0xFF, (size_t)size * sizeof *v->merges);
    size_t cursor = 0;
    gguf_str s;
    for (uint64_t i = 0; !rc && i < kv->count; i++)
        rc = gguf_next_str(kv, &cursor, &s) ? add_merge(v, g, i, s, unmap, buf, e)
                                            : ds4_fail(e, DS4_EFORMAT, "%s: %s ends early", gguf_path(g), KEY_MERGES);
    free(buf);
    return rc;
}

static int check_id(const vocab *v, const gguf *g, const char *key, enum vocab_special which, ds4_err *e)
{
    uint32_t id = (uint32_t)v->special[which];
    int rc = gguf_get_u32(g, key, false, 0, v->n - 1, &id, e);
    if (rc)
        return rc;
    if (id != (uint32_t)v->special[which])
        return ds4_fail(e, DS4_EFORMAT, "%s: %s is %u, but \"%s\" is token %d", gguf_path(g), key, id,
                        vocab_special_text(which), v->special[which]);
    return 0;
}

static int find_specials(vocab *v, const gguf *g, ds4_err *e)
{
    for (int i = 0; i < SP_COUNT; i++) {
        const char *text = vocab_special_text((enum vocab_special)i);
        v->special[i] = vocab_find_added(v, text, strlen(text));
        if (v->special[i] >= 0 || i >= SP_REQUIRED)
            continue;
        if (vocab_find_plain(v, text, strlen(text)) >= 0)
            return ds4_fail(e, DS4_EFORMAT, "%s: \"%s\" is an ordinary token; %s must mark it control or user-defined",
                            gguf_path(g), text, KEY_TYPES);
        return ds4_fail(e, DS4_EMODEL, "%s: %s lacks \"%s\": not the vocabulary of a DeepSeek-V4 model", gguf_path(g),
                        KEY_TOKENS, text);
    }
    int rc = check_id(v, g, "tokenizer.ggml.bos_token_id", SP_BOS, e);
    return rc ? rc : check_id(v, g, "tokenizer.ggml.eos_token_id", SP_EOS, e);
}

static int check_model(const gguf *g, ds4_err *e)
{
    gguf_str s;
    int rc = gguf_get_str(g, "tokenizer.ggml.model", true, &s, e);
    if (!rc && (s.n != 4 || memcmp(s.p, "gpt2", 4)))
        return ds4_fail(e, DS4_EMODEL, "%s: tokenizer.ggml.model is \"%.*s\", expected \"gpt2\" (byte-level BPE)",
                        gguf_path(g), (int)(s.n < 60 ? s.n : 60), s.p);
    return rc;
}

static int fill(vocab *v, const gguf *g, const gguf_kv *tokens, const gguf_kv *types, const gguf_kv *merges, ds4_err *e)
{
    int16_t unmap[0x144];
    make_unmap(unmap);
    v->n = (uint32_t)tokens->count;
    v->blob = malloc(tokens->bytes + 1);
    v->start = malloc(((size_t)v->n + 1) * sizeof *v->start);
    v->type = malloc(v->n);
    if (!v->blob || !v->start || !v->type)
        return no_memory(g, e);
    int rc = read_types(v, g, types, e);
    rc = rc ? rc : read_tokens(v, g, tokens, unmap, e);
    rc = rc ? rc : index_tokens(v, g, e);
    rc = rc ? rc : grow_tree(v, g, e);
    rc = rc ? rc : read_merges(v, g, merges, unmap, e);
    rc = rc ? rc : find_specials(v, g, e);
    return rc ? rc : pretok_new(&v->pre, e);
}

int vocab_load(vocab **out, const gguf *g, uint32_t want, ds4_err *e)
{
    const gguf_kv *tokens, *types, *merges;
    int rc = check_model(g, e);
    rc = rc ? rc : find_array(g, KEY_TOKENS, true, &tokens, e);
    rc = rc ? rc : find_array(g, KEY_TYPES, false, &types, e);
    rc = rc ? rc : find_array(g, KEY_MERGES, true, &merges, e);
    rc = rc ? rc : check_counts(g, want, tokens, types, e);
    if (rc)
        return rc;
    vocab *v = calloc(1, sizeof *v);
    if (!v)
        return no_memory(g, e);
    rc = fill(v, g, tokens, types, merges, e);
    if (rc) {
        vocab_free(v);
        return rc;
    }
    *out = v;
    return 0;
}
