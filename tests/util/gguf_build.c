#include "util/gguf_build.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "test: out of memory\n");
        abort();
    }
    return p;
}

void gb_drop_key(gb *g, const char *key)
{
    for (size_t i = 0; i < g->n_kv; i++)
        if (!strcmp(g->kv[i].key, key)) {
            free(g->kv[i].value);
            memmove(g->kv + i, g->kv + i + 1, (g->n_kv - i - 1) * sizeof *g->kv);
            g->n_kv--;
            return;
        }
}

/* A value: its type, for arrays element type and count, then `bytes` of data. */
static void put(gb *g, const char *key, const uint32_t *head, size_t words, const uint64_t *count, const void *data,
                size_t bytes)
{
    size_t n = words * 4 + (count ? 8 : 0) + bytes, at = 0;
    gb_kv *e = NULL;
    for (size_t i = 0; i < g->n_kv && !e; i++)
        e = strcmp(g->kv[i].key, key) ? NULL : &g->kv[i];
    if (e)
        free(e->value);
    else {
        g->kv = need(realloc(g->kv, (g->n_kv + 1) * sizeof *g->kv));
        e = &g->kv[g->n_kv++];
    }
    snprintf(e->key, sizeof e->key, "%s", key);
    e->value = need(malloc(n));
    e->bytes = n;
    memcpy(e->value, head, words * 4);
    at = words * 4;
    if (count) {
        memcpy(e->value + at, count, 8);
        at += 8;
    }
    memcpy(e->value + at, data, bytes);
}

void gb_u32(gb *g, const char *key, uint32_t v) { put(g, key, (uint32_t[]){4}, 1, NULL, &v, 4); }
void gb_f32(gb *g, const char *key, float v) { put(g, key, (uint32_t[]){6}, 1, NULL, &v, 4); }
void gb_bool(gb *g, const char *key, bool v) { put(g, key, (uint32_t[]){7}, 1, NULL, &(uint8_t){v}, 1); }
void gb_str(gb *g, const char *key, const char *v)
{
    put(g, key, (uint32_t[]){8}, 1, &(uint64_t){strlen(v)}, v, strlen(v));
}

void gb_ints(gb *g, const char *key, const int32_t *v, int n)
{
    put(g, key, (uint32_t[]){9, 5}, 2, &(uint64_t){(uint64_t)n}, v, (size_t)n * 4);
}

void gb_floats(gb *g, const char *key, const float *v, int n)
{
    put(g, key, (uint32_t[]){9, 6}, 2, &(uint64_t){(uint64_t)n}, v, (size_t)n * 4);
}

gb_tensor *gb_add(gb *g, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t ne2, void *data,
                  size_t bytes)
{
    g->t = need(realloc(g->t, (g->n_t + 1) * sizeof *g->t));
    gb_tensor *t = &g->t[g->n_t++];
    *t = (gb_tensor){.type = type,
                     .n_dims = ne2   ? 3
                               : ne1 ? 2
                                     : 1,
                     .ne = {ne0, ne1, ne2, 0},
                     .data = data,
                     .bytes = bytes};
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

gb_tensor *gb_find(gb *g, const char *name)
{
    for (size_t i = 0; i < g->n_t; i++)
        if (!strcmp(g->t[i].name, name))
            return &g->t[i];
    return NULL;
}

void gb_drop(gb *g, const char *name)
{
    gb_tensor *t = gb_find(g, name);
    assert(t);
    free(t->data);
    size_t i = (size_t)(t - g->t);
    memmove(t, t + 1, (g->n_t - i - 1) * sizeof *t);
    g->n_t--;
}

typedef struct out {
    uint8_t *p;
    size_t n, cap;
} out;

static void write_raw(out *o, const void *p, size_t n)
{
    if (o->n + n > o->cap) {
        o->cap = (o->n + n) * 2;
        o->p = need(realloc(o->p, o->cap));
    }
    memcpy(o->p + o->n, p, n);
    o->n += n;
}

static void write_text(out *o, const char *s)
{
    write_raw(o, &(uint64_t){strlen(s)}, 8);
    write_raw(o, s, strlen(s));
}

static void pad(out *o)
{
    while (o->n % 32)
        write_raw(o, "", 1);
}

uint8_t *gb_bytes(const gb *g, size_t *n)
{
    out o = {0};
    uint64_t at = 0;
    write_raw(&o, "GGUF\3\0\0", 8);
    write_raw(&o, &(uint64_t){g->n_t}, 8);
    write_raw(&o, &(uint64_t){g->n_kv}, 8);
    for (size_t i = 0; i < g->n_kv; i++) {
        write_text(&o, g->kv[i].key);
        write_raw(&o, g->kv[i].value, g->kv[i].bytes);
    }
    for (size_t i = 0; i < g->n_t; i++) {
        const gb_tensor *t = &g->t[i];
        write_text(&o, t->name);
        write_raw(&o, &t->n_dims, 4);
        write_raw(&o, t->ne, t->n_dims * 8);
        write_raw(&o, &t->type, 4);
        write_raw(&o, &at, 8);
        at += (t->bytes + 31) / 32 * 32;
    }
    pad(&o);
    for (size_t i = 0; i < g->n_t; i++) {
        write_raw(&o, g->t[i].data, g->t[i].bytes);
        pad(&o);
    }
    *n = o.n;
    return o.p;
}

void gb_free(gb *g)
{
    for (size_t i = 0; i < g->n_kv; i++)
        free(g->kv[i].value);
    for (size_t i = 0; i < g->n_t; i++)
        free(g->t[i].data);
    free(g->kv);
    free(g->t);
    *g = (gb){0};
}
