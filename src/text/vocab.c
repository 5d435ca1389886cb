#include "text/vocab_int.h"

#include <stdlib.h>
#include <string.h>

static const char *const special_text[SP_COUNT] = {
    [SP_BOS] = "<｜begin▁of▁sentence｜>",
    [SP_EOS] = "<｜end▁of▁sentence｜>",
    [SP_USER] = "<｜User｜>",
    [SP_ASSISTANT] = "<｜Assistant｜>",
    [SP_THINK] = "<think>",
    [SP_THINK_END] = "</think>",
    [SP_DSML] = "｜DSML｜",
    [SP_REMINDER] = "<｜latest_reminder｜>",
    [SP_ACTION] = "<｜action｜>",
    [SP_QUERY] = "<｜query｜>",
    [SP_AUTHORITY] = "<｜authority｜>",
    [SP_DOMAIN] = "<｜domain｜>",
    [SP_TITLE] = "<｜title｜>",
    [SP_READ_URL] = "<｜read_url｜>",
    [SP_EXTRACTED_URL] = "<｜extracted_url｜>",
};

uint32_t vocab_hash_bytes(const char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u ^ n;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)p[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ (h >> 32));
}

uint32_t vocab_hash_pair(int32_t a, int32_t b)
{
    uint64_t h = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32);
}

int32_t vocab_table_find(const vocab *v, const id_table *t, const char *p, size_t n)
{
    for (uint32_t i = vocab_hash_bytes(p, n) & t->mask;; i = (i + 1) & t->mask) {
        int32_t id = t->slot[i];
        if (id < 0)
            return -1;
        size_t len = v->start[id + 1] - v->start[id];
        if (len == n && !memcmp(v->blob + v->start[id], p, n))
            return id;
    }
}

void vocab_free(vocab *v)
{
    if (!v)
        return;
    free(v->blob);
    free(v->start);
    free(v->type);
    free(v->plain.slot);
    free(v->added.slot);
    free(v->merges);
    free(v->tree);
    pretok_free(v->pre);
    free(v);
}

uint32_t vocab_size(const vocab *v) { return v->n; }
int32_t vocab_bos(const vocab *v) { return v->special[SP_BOS]; }
int32_t vocab_eos(const vocab *v) { return v->special[SP_EOS]; }
const pretok *vocab_pretok(const vocab *v) { return v->pre; }
int32_t vocab_byte(const vocab *v, uint8_t b) { return v->byte_id[b]; }
int32_t vocab_special(const vocab *v, enum vocab_special which) { return v->special[which]; }
const char *vocab_special_text(enum vocab_special which) { return special_text[which]; }

const char *vocab_bytes(const vocab *v, int32_t id, size_t *n)
{
    *n = v->start[id + 1] - v->start[id];
    return v->blob + v->start[id];
}

enum vocab_type vocab_type_of(const vocab *v, int32_t id) { return (enum vocab_type)v->type[id]; }

bool vocab_is_added(const vocab *v, int32_t id) { return v->type[id] == VOCAB_CONTROL || v->type[id] == VOCAB_USER; }

int32_t vocab_find_added(const vocab *v, const char *text, size_t n) { return vocab_table_find(v, &v->added, text, n); }
int32_t vocab_find_plain(const vocab *v, const char *text, size_t n) { return vocab_table_find(v, &v->plain, text, n); }

size_t vocab_match_added(const vocab *v, const char *text, size_t n, int32_t *id)
{
    size_t best = 0;
    int32_t node = n ? v->first[(uint8_t)text[0]] : -1;
    for (size_t i = 1; node >= 0; i++) {
        if (v->tree[node].id >= 0) {
            best = i;
            *id = v->tree[node].id;
        }
        if (i == n)
            break;
        node = v->tree[node].child;
        while (node >= 0 && v->tree[node].byte != (uint8_t)text[i])
            node = v->tree[node].sibling;
    }
    return best;
}

int32_t vocab_merge(const vocab *v, int32_t left, int32_t right, int32_t *merged)
{
    for (uint32_t i = vocab_hash_pair(left, right) & v->merge_mask;; i = (i + 1) & v->merge_mask) {
        const merge_slot *m = &v->merges[i];
        if (m->left < 0)
            return -1;
        if (m->left == left && m->right == right) {
            *merged = m->merged;
            return m->rank;
        }
    }
}
