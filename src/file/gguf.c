/* gguf.c: the opened file: index of names, typed getters, arrays. */
#include "file/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "file/gguf_part.h"

/* Name index */

int gguf_index_init(gguf_index *ix, size_t n, ds4_err *e)
{
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    ix->slot = calloc(slots, sizeof *ix->slot);
    if (!ix->slot)
        return ds4_fail(e, DS4_ENOMEM, "no memory for an index of %zu names", n);
    ix->mask = slots - 1;
    ix->seed = (uintptr_t)ix->slot; /* varies from run to run, so that no file can aim at collisions */
    return 0;
}

void gguf_index_free(gguf_index *ix)
{
    free(ix->slot);
    ix->slot = NULL;
}

/* The slot that holds the name, or the empty one where it belongs. */
static const gguf_str **probe(const gguf_index *ix, const char *name, size_t n)
{
    size_t i = hash64(name, n, ix->seed) & ix->mask;
    while (ix->slot[i] && (ix->slot[i]->n != n || memcmp(ix->slot[i]->p, name, n)))
        i = (i + 1) & ix->mask;
    return &ix->slot[i];
}

const gguf_str *gguf_index_add(gguf_index *ix, const gguf_str *record)
{
    const gguf_str **s = probe(ix, record->p, record->n);
    if (*s)
        return *s;
    *s = record;
    return NULL;
}

const gguf_str *gguf_index_find(const gguf_index *ix, const char *name, size_t n) { return *probe(ix, name, n); }

/* Opening */

/* Moves the tensors of all parts into one directory and indexes it. */
static int merge(gguf *g, ds4_err *e)
{
    size_t n = 0, at = 0;
    for (size_t i = 0; i < g->n_parts; i++)
        n += g->part[i].n_tensors;
    g->tensor = calloc(n ? n : 1, sizeof *g->tensor);
    if (!g->tensor)
        return ds4_fail(e, DS4_ENOMEM, "%s: no memory for %zu tensors", g->part[0].label, n);
    int rc = gguf_index_init(&g->tensor_index, n, e);
    for (size_t i = 0; !rc && i < g->n_parts; i++) {
        gguf_part *p = &g->part[i];
        for (size_t k = 0; !rc && k < p->n_tensors; k++, at++) {
            g->tensor[at] = p->tensor[k];
            if (gguf_index_add(&g->tensor_index, &g->tensor[at].name))
                rc = ds4_fail(e, DS4_EFORMAT, "%s: tensor '%s' occurs twice (its name stands again at byte %zu)",
                              p->label, gguf_show(p->tensor[k].name).s,
                              (size_t)((const uint8_t *)p->tensor[k].name.p - p->base));
        }
        free(p->tensor);
        p->tensor = NULL;
    }
    g->n_tensors = n;
    return rc;
}

static gguf *new_gguf(ds4_err *e)
{
    gguf *g = calloc(1, sizeof *g);
    if (g && !(g->part = calloc(1, sizeof *g->part))) {
        free(g);
        g = NULL;
    }
    if (g)
        g->n_parts = 1;
    else
        ds4_fail(e, DS4_ENOMEM, "no memory to open a model file");
    return g;
}

static int finish(gguf *g, gguf **out, int rc, ds4_err *e)
{
    if (!rc)
        rc = merge(g, e);
    if (rc) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

int gguf_open(gguf **out, const char *path, ds4_err *e)
{
    gguf *g = new_gguf(e);
    if (!g)
        return DS4_ENOMEM;
    return finish(g, out, gguf_load_parts(g, path, e), e);
}

static int open_bytes(gguf **out, const void *buf, size_t len, const char *name, bool outline, ds4_err *e)
{
    gguf *g = new_gguf(e);
    if (!g)
        return DS4_ENOMEM;
    gguf_part *part = &g->part[0];
    part->base = buf;
    part->len = len;
    part->outline = outline;
    int rc = gguf_part_name(part, name, e);
    if (!rc)
        rc = gguf_part_parse(part, 0, e);
    return finish(g, out, rc, e);
}

int gguf_open_mem(gguf **out, const void *buf, size_t len, const char *name, ds4_err *e)
{
    return open_bytes(out, buf, len, name, false, e);
}

int gguf_open_outline(gguf **out, const void *buf, size_t len, const char *name, ds4_err *e)
{
    return open_bytes(out, buf, len, name, true, e);
}

void gguf_close(gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_parts; i++) {
        gguf_part_unmap(&g->part[i]);
        gguf_part_free(&g->part[i]);
    }
    gguf_index_free(&g->tensor_index);
    free(g->tensor);
    free(g->part);
    free(g);
}

/* Directory */

const char *gguf_path(const gguf *g) { return g->part[0].path; }

uint64_t gguf_file_bytes(const gguf *g)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < g->n_parts; i++)
        sum += g->part[i].whole ? g->part[i].whole : g->part[i].len;
    return sum;
}

size_t gguf_n_kv(const gguf *g) { return g->part[0].n_kv; }
const gguf_kv *gguf_kv_at(const gguf *g, size_t i) { return &g->part[0].kv[i]; }
size_t gguf_n_tensors(const gguf *g) { return g->n_tensors; }
const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i) { return &g->tensor[i]; }

_Static_assert(offsetof(gguf_kv, key) == 0 && offsetof(gguf_tensor, name) == 0,
               "the index holds records by their name");

const gguf_kv *gguf_find_kv(const gguf *g, const char *key)
{
    return (const gguf_kv *)gguf_index_find(&g->part[0].kv_index, key, strlen(key));
}

const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name)
{
    return (const gguf_tensor *)gguf_index_find(&g->tensor_index, name, strlen(name));
}

/* Values */

static int64_t int_at(uint32_t type, const uint8_t *p)
{
    union { int8_t i8; int16_t i16; int32_t i32; int64_t i64; uint16_t u16; uint32_t u32; uint64_t u64; } v;
    static const uint8_t size[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    memcpy(&v, p, size[type]);
    switch (type) {
    case GGUF_U8: case GGUF_BOOL: return *p;
    case GGUF_I8: return v.i8;
    case GGUF_U16: return v.u16;
    case GGUF_I16: return v.i16;
    case GGUF_U32: return v.u32;
    case GGUF_I32: return v.i32;
    case GGUF_U64: return v.u64 > INT64_MAX ? INT64_MAX : (int64_t)v.u64;
    case GGUF_I64: return v.i64;
    default: return 0;
    }
}

static double num_at(uint32_t type, const uint8_t *p)
{
    float f;
    double d;
    switch (type) {
    case GGUF_F32: memcpy(&f, p, 4); return (double)f;
    case GGUF_F64: memcpy(&d, p, 8); return d;
    case GGUF_U64: { uint64_t u; memcpy(&u, p, 8); return (double)u; }
    default: return (double)int_at(type, p);
    }
}

static bool is_int(uint32_t type)
{
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

bool gguf_kv_int(const gguf_kv *kv, int64_t *out)
{
    if (!is_int(kv->type))
        return false;
    *out = int_at(kv->type, kv->data);
    return true;
}

/* The entry, or NULL with *rc set: 0 if it is absent and not required. */
static const gguf_kv *lookup(const gguf *g, const char *key, bool required, const char *expected, int *rc, ds4_err *e)
{
    const gguf_kv *kv = gguf_find_kv(g, key);
    *rc = 0;
    if (!kv && required)
        *rc = ds4_fail(e, DS4_EFORMAT, "%s: key '%s' is missing, expected %s", g->part[0].label, key, expected);
    return kv;
}

static int wrong_type(const gguf *g, const gguf_kv *kv, const char *expected, ds4_err *e)
{
    return ds4_fail(e, DS4_EFORMAT, "%s: key '%s' has type %s, expected %s", g->part[0].label, gguf_show(kv->key).s,
                    gguf_type_text(kv).s, expected);
}

int gguf_get_u32(const gguf *g, const char *key, bool required, uint32_t lo, uint32_t hi, uint32_t *out, ds4_err *e)
{
    int rc;
    const gguf_kv *kv = lookup(g, key, required, "an integer", &rc, e);
    if (!kv)
        return rc;
    int64_t v;
    if (!gguf_kv_int(kv, &v))
        return wrong_type(g, kv, "an integer", e);
    if (v < (int64_t)lo || v > (int64_t)hi)
        return ds4_fail(e, DS4_EFORMAT, "%s: key '%s' is %" PRId64 ", expected %u to %u", g->part[0].label, key, v, lo,
                        hi);
    *out = (uint32_t)v;
    return 0;
}

int gguf_get_f32(const gguf *g, const char *key, bool required, float lo, float hi, float *out, ds4_err *e)
{
    int rc;
    const gguf_kv *kv = lookup(g, key, required, "a float", &rc, e);
    if (!kv)
        return rc;
    if (kv->type != GGUF_F32 && kv->type != GGUF_F64)
        return wrong_type(g, kv, "a float", e);
    double v = num_at(kv->type, kv->data);
    if (!(v >= (double)lo && v <= (double)hi))
        return ds4_fail(e, DS4_EFORMAT, "%s: key '%s' is %g, expected %g to %g", g->part[0].label, key, v, (double)lo,
                        (double)hi);
    *out = (float)v;
    return 0;
}

int gguf_get_bool(const gguf *g, const char *key, bool required, bool *out, ds4_err *e)
{
    int rc;
    const gguf_kv *kv = lookup(g, key, required, "a bool", &rc, e);
    if (!kv)
        return rc;
    if (kv->type != GGUF_BOOL)
        return wrong_type(g, kv, "a bool", e);
    *out = *kv->data != 0;
    return 0;
}

int gguf_get_str(const gguf *g, const char *key, bool required, gguf_str *out, ds4_err *e)
{
    int rc;
    const gguf_kv *kv = lookup(g, key, required, "a string", &rc, e);
    if (!kv)
        return rc;
    if (kv->type != GGUF_STR)
        return wrong_type(g, kv, "a string", e);
    *out = (gguf_str){(const char *)kv->data + 8, kv->bytes - 8};
    return 0;
}

static size_t elem_bytes(const gguf_kv *kv) { return kv->count ? kv->bytes / kv->count : 0; }

int64_t gguf_arr_int(const gguf_kv *kv, uint64_t i) { return int_at(kv->elem, kv->data + i * elem_bytes(kv)); }

double gguf_arr_num(const gguf_kv *kv, uint64_t i) { return num_at(kv->elem, kv->data + i * elem_bytes(kv)); }

bool gguf_next_str(const gguf_kv *kv, size_t *cursor, gguf_str *out)
{
    if (kv->elem != GGUF_STR || *cursor >= kv->bytes)
        return false;
    uint64_t n;
    memcpy(&n, kv->data + *cursor, 8);
    *out = (gguf_str){(const char *)kv->data + *cursor + 8, n};
    *cursor += 8 + n;
    return true;
}
