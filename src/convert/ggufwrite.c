#include "convert/ggufwrite.h"

#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "file/gguf.h"
#include "file/quant.h"

typedef struct grow { uint8_t *p; size_t n, cap; } grow;

struct ggufw {
    bool to_disk;
    fsio_writer f;
    grow kv, dir;        /* serialised entries */
    uint64_t n_kv, arr_left; /* arr_left: elements the open array still lacks */
    uint64_t *sizes;     /* bytes of each tensor */
    size_t n_tensors, cap_tensors;
    uint64_t data_at;    /* offset of the next declared tensor in the data section */
    size_t cur;          /* tensor being written */
    uint64_t cur_left;
    uint64_t written;    /* bytes of the file so far */
    bool begun;
    ds4_err err;
};

static void put(ggufw *w, grow *g, const void *p, size_t n)
{
    if (w->err.code || n == 0)
        return;
    if (g->n + n > g->cap) {
        size_t cap = (g->n + n) * 2 + 256;
        uint8_t *q = realloc(g->p, cap);
        if (!q) {
            ds4_fail(&w->err, DS4_ENOMEM, "out of memory for GGUF metadata");
            return;
        }
        g->p = q;
        g->cap = cap;
    }
    memcpy(g->p + g->n, p, n);
    g->n += n;
}

static void put_u32(ggufw *w, grow *g, uint32_t v)
{
    uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    put(w, g, b, 4);
}

static void put_u64(ggufw *w, grow *g, uint64_t v)
{
    put_u32(w, g, (uint32_t)v);
    put_u32(w, g, (uint32_t)(v >> 32));
}

static void put_str(ggufw *w, grow *g, const char *p, size_t n)
{
    put_u64(w, g, n);
    put(w, g, p, n);
}

static void put_f32(ggufw *w, grow *g, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    put_u32(w, g, u);
}

static void start_kv(ggufw *w, const char *key, uint32_t type)
{
    if (w->arr_left)
        ds4_fail(&w->err, DS4_ESTATE, "GGUF key %s begins before the array before it is complete", key);
    put_str(w, &w->kv, key, strlen(key));
    put_u32(w, &w->kv, type);
    w->n_kv++;
}

int ggufw_open(ggufw **out, const char *path, ds4_err *e)
{
    ggufw *w = calloc(1, sizeof *w);
    if (!w)
        return ds4_fail(e, DS4_ENOMEM, "out of memory opening %s", path ? path : "a dry run");
    w->to_disk = path != NULL;
    int rc = path ? fsio_begin(&w->f, path, e) : 0;
    if (rc) {
        free(w);
        return rc;
    }
    *out = w;
    return 0;
}

static void release(ggufw *w)
{
    free(w->kv.p);
    free(w->dir.p);
    free(w->sizes);
    free(w);
}

void ggufw_abort(ggufw *w)
{
    if (!w)
        return;
    if (w->to_disk)
        fsio_abort(&w->f);
    release(w);
}

size_t ggufw_n_kv(const ggufw *w) { return w->n_kv; }

void ggufw_kv_str(ggufw *w, const char *key, const char *value)
{
    start_kv(w, key, GGUF_STR);
    put_str(w, &w->kv, value, strlen(value));
}

void ggufw_kv_u32(ggufw *w, const char *key, uint32_t value)
{
    start_kv(w, key, GGUF_U32);
    put_u32(w, &w->kv, value);
}

void ggufw_kv_i32(ggufw *w, const char *key, int32_t value)
{
    start_kv(w, key, GGUF_I32);
    put_u32(w, &w->kv, (uint32_t)value);
}

void ggufw_kv_f32(ggufw *w, const char *key, float value)
{
    start_kv(w, key, GGUF_F32);
    put_f32(w, &w->kv, value);
}

void ggufw_kv_bool(ggufw *w, const char *key, bool value)
{
    uint8_t b = value;
    start_kv(w, key, GGUF_BOOL);
    put(w, &w->kv, &b, 1);
}

void ggufw_kv_arr(ggufw *w, const char *key, uint32_t elem_type, uint64_t count)
{
    start_kv(w, key, GGUF_ARR);
    put_u32(w, &w->kv, elem_type);
    put_u64(w, &w->kv, count);
    w->arr_left = count;
}

static bool take_elem(ggufw *w)
{
    if (!w->arr_left) {
        ds4_fail(&w->err, DS4_ESTATE, "more elements than a GGUF array was announced with");
        return false;
    }
    w->arr_left--;
    return true;
}

void ggufw_arr_str(ggufw *w, const char *p, size_t n)
{
    if (take_elem(w))
        put_str(w, &w->kv, p, n);
}

void ggufw_arr_u32(ggufw *w, uint32_t v)
{
    if (take_elem(w))
        put_u32(w, &w->kv, v);
}

void ggufw_arr_i32(ggufw *w, int32_t v) { ggufw_arr_u32(w, (uint32_t)v); }

void ggufw_arr_f32(ggufw *w, float v)
{
    if (take_elem(w))
        put_f32(w, &w->kv, v);
}

static uint64_t aligned(uint64_t n) { return (n + GGUFW_ALIGN - 1) / GGUFW_ALIGN * GGUFW_ALIGN; }

void ggufw_tensor(ggufw *w, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type)
{
    const quant_info *q = quant_type_info(type);
    uint64_t rows = 1, bytes;
    for (uint32_t i = 1; i < n_dims; i++)
        rows *= ne[i];
    if (!q || n_dims < 1 || n_dims > 4 || ne[0] % q->block) {
        ds4_fail(&w->err, DS4_EARG, "tensor %s cannot be written as %s", name, quant_type_name(type));
        return;
    }
    if (w->n_tensors == w->cap_tensors) {
        size_t cap = w->cap_tensors * 2 + 64;
        uint64_t *p = realloc(w->sizes, cap * sizeof *p);
        if (!p) {
            ds4_fail(&w->err, DS4_ENOMEM, "out of memory for the GGUF directory");
            return;
        }
        w->sizes = p;
        w->cap_tensors = cap;
    }
    bytes = rows * quant_row_bytes(type, ne[0]);
    put_str(w, &w->dir, name, strlen(name));
    put_u32(w, &w->dir, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        put_u64(w, &w->dir, ne[i]);
    put_u32(w, &w->dir, type);
    put_u64(w, &w->dir, w->data_at);
    w->sizes[w->n_tensors++] = bytes;
    w->data_at = aligned(w->data_at + bytes);
}

static void emit(ggufw *w, const void *p, size_t n)
{
    if (w->err.code)
        return;
    if (w->to_disk && n && fsio_put(&w->f, p, n, &w->err))
        return;
    w->written += n;
}

static void emit_padding(ggufw *w)
{
    static const uint8_t zeros[GGUFW_ALIGN];
    emit(w, zeros, (size_t)(aligned(w->written) - w->written));
}

static int report(const ggufw *w, ds4_err *e)
{
    return w->err.code ? ds4_fail(e, w->err.code, "%s", w->err.msg) : 0;
}

/* Steps over finished (and empty) tensors. */
static void next_tensor(ggufw *w)
{
    emit_padding(w);
    w->cur++;
    w->cur_left = w->cur < w->n_tensors ? w->sizes[w->cur] : 0;
}

int ggufw_begin(ggufw *w, ds4_err *e)
{
    grow head = {0};
    if (w->arr_left)
        ds4_fail(&w->err, DS4_ESTATE, "the last GGUF array is incomplete");
    put(w, &head, "GGUF", 4);
    put_u32(w, &head, 3);
    put_u64(w, &head, w->n_tensors);
    put_u64(w, &head, w->n_kv);
    emit(w, head.p, head.n);
    emit(w, w->kv.p, w->kv.n);
    emit(w, w->dir.p, w->dir.n);
    emit_padding(w);
    free(head.p);
    w->begun = true;
    w->cur = 0;
    w->cur_left = w->n_tensors ? w->sizes[0] : 0;
    return report(w, e);
}

int ggufw_data(ggufw *w, const void *p, size_t n, ds4_err *e)
{
    if (!w->begun || w->cur >= w->n_tensors || n > w->cur_left)
        ds4_fail(&w->err, DS4_ESTATE, "GGUF tensor number %zu gets more bytes than declared", w->cur);
    emit(w, p, n);
    if (!w->err.code && (w->cur_left -= n) == 0)
        next_tensor(w);
    return report(w, e);
}

int ggufw_close(ggufw *w, uint64_t *bytes, ds4_err *e)
{
    if (!w->err.code && (!w->begun || w->cur != w->n_tensors))
        ds4_fail(&w->err, DS4_ESTATE, "GGUF file closed after %zu of %zu tensors", w->cur, w->n_tensors);
    if (w->err.code) {
        int rc = report(w, e);
        ggufw_abort(w);
        return rc;
    }
    int rc = w->to_disk ? fsio_commit(&w->f, e) : 0;
    if (!rc && bytes)
        *bytes = w->written;
    release(w);
    return rc;
}
