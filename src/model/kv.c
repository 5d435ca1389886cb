#include "model/kv.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "file/synth.h"

/* Walks all stores in a fixed order. With b = NULL it only counts floats; else it allocates. */
typedef struct builder {
    kv *k; /* NULL when planning */
    backend *b;
    int slots, ctx, max_rows;
    size_t floats;
    bool failed;
} builder;

static be_store make_store(builder *m, int width, int cap, int keep, int ratio, bool defines)
{
    be_store st = {.width = width, .cap = cap, .seq_stride = (size_t)width * (size_t)cap};
    size_t n = st.seq_stride * (size_t)m->slots;
    m->floats += n;
    if (!m->k)
        return st;
    st.base = m->b->op->alloc(m->b, n * sizeof(float));
    m->failed = m->failed || !st.base;
    if (defines)
        m->k->field[m->k->fields++] = (kv_field){st, keep, ratio};
    return st;
}

static be_store make_ring(builder *m, int width, int keep)
{
    return make_store(m, width, keep + m->max_rows, keep, 0, true);
}

static be_store make_array(builder *m, int width, int ratio)
{
    return make_store(m, width, m->ctx / ratio + 1, 0, ratio, true);
}

static kv_layer make_layer(builder *m, const be_dims *d, int ratio)
{
    kv_layer L = {.raw = make_ring(m, d->head_dim, d->window)};
    if (ratio) {
        int width = ratio == 4 ? 4 * d->head_dim : 2 * d->head_dim;
        L.comp_in = make_ring(m, width, ratio == 4 ? 8 : ratio);
        L.comp = make_array(m, d->head_dim, ratio);
    }
    if (ratio == 4) {
        L.index_in = make_ring(m, 4 * d->idx_dim, 8);
        L.index = make_array(m, d->idx_dim, ratio);
    }
    return L;
}

static void build(builder *m, const shape *s, const drafter_shape *ds)
{
    for (int l = 0; l < s->layers; l++) {
        kv_layer L = make_layer(m, &s->dims, s->ratio[l]);
        if (m->k)
            m->k->layer[l] = L;
    }
    if (!ds)
        return;
    be_store tap = make_ring(m, ds->targets * s->dims.d, s->dims.window);
    if (m->k)
        m->k->tap = tap;
    for (int i = 0; i < ds->stages; i++) {
        int keep = s->dims.window;
        be_store st = make_store(m, s->dims.head_dim, keep + m->max_rows, keep, 0, false);
        if (m->k)
            m->k->stage[i] = st;
    }
}

int kv_open(kv *k, backend *b, const shape *s, const drafter_shape *ds, int slots, int ctx, ds4_err *e)
{
    *k = (kv){.b = b, .s = s, .slots = slots, .ctx = ctx, .stages = ds ? ds->stages : 0};
    k->layer = calloc((size_t)s->layers, sizeof *k->layer);
    k->field = calloc((size_t)s->layers * 5 + 1, sizeof *k->field);
    k->stage = calloc((size_t)k->stages + 1, sizeof *k->stage);
    if (!k->layer || !k->field || !k->stage) {
        kv_close(k);
        return ds4_fail(e, DS4_ENOMEM, "no memory for the KV directory");
    }
    builder m = {.k = k, .b = b, .slots = slots, .ctx = ctx, .max_rows = b->max_rows};
    build(&m, s, ds);
    k->bytes = m.floats * sizeof(float);
    if (m.failed) {
        kv_close(k);
        return ds4_fail(e, DS4_ENOMEM,
                        "no memory for the KV state: %.2f GB for a context of %d tokens; use a smaller --ctx",
                        (double)(m.floats * sizeof(float)) / 1e9, ctx);
    }
    return 0;
}

size_t kv_plan_bytes(const shape *s, const drafter_shape *ds, int slots, int ctx, int max_rows)
{
    builder m = {.slots = slots, .ctx = ctx, .max_rows = max_rows};
    build(&m, s, ds);
    return m.floats * sizeof(float);
}

void kv_close(kv *k)
{
    free(k->layer);
    free(k->field);
    free(k->stage);
    memset(k, 0, sizeof *k);
}

int kv_rewind_room(const kv *k) { return k->b->max_rows; }

int kv_field_rows(const kv_field *f, int pos)
{
    if (f->keep)
        return pos < f->keep ? pos : f->keep;
    return pos / f->ratio;
}

/* Calls with each contiguous run of rows [first, first + n) of the field: host row index, store slot, count. A ring has
 * at most two. */
typedef void (*run_fn)(const kv *k, float *dev, float *host, size_t floats);

static void each_run(const kv *k, const kv_field *f, int slot, int pos, float *host, run_fn fn)
{
    const be_store *st = &f->store;
    int rows = kv_field_rows(f, pos), first = f->keep ? pos - rows : 0;
    for (int i = 0; i < rows;) {
        int at = f->keep ? (first + i) % st->cap : i;
        int n = rows - i < st->cap - at ? rows - i : st->cap - at;
        float *dev = st->base + (size_t)slot * st->seq_stride + (size_t)at * (size_t)st->width;
        fn(k, dev, host + (size_t)i * (size_t)st->width, (size_t)n * (size_t)st->width);
        i += n;
    }
}

static void run_read(const kv *k, float *dev, float *host, size_t floats)
{
    k->b->op->download(k->b, host, dev, floats * 4);
}
static void run_write(const kv *k, float *dev, float *host, size_t floats)
{
    k->b->op->upload(k->b, dev, host, floats * 4);
}

void kv_field_read(const kv *k, const kv_field *f, int slot, int pos, float *host)
{
    each_run(k, f, slot, pos, host, run_read);
}

void kv_field_write(const kv *k, const kv_field *f, int slot, int pos, const float *host)
{
    each_run(k, f, slot, pos, (float *)host, run_write);
}

static void fill_store(const kv *k, const be_store *st, int slot, int rows, uint64_t key, float *room, size_t most)
{
    float *to = st->base + (size_t)slot * st->seq_stride;
    const size_t n = (size_t)rows * (size_t)st->width;
    for (size_t at = 0, len; at < n; at += len) {
        len = n - at < most ? n - at : most;
        for (size_t i = 0; i < len; i++)
            room[i] = (float)(int)(synth_bits(key, at + i) % 7) / 2 - 1.5f;
        k->b->op->upload(k->b, to + at, room, len * sizeof *room);
    }
}

int kv_fill(const kv *k, int slot, int pos, uint64_t seed, ds4_err *e)
{
    enum { MOST = 1 << 20 };
    float *room = malloc(MOST * sizeof *room);
    if (!room)
        return ds4_fail(e, DS4_ENOMEM, "no memory to fill the KV state");
    for (int i = 0; i < k->fields; i++) {
        const kv_field *f = &k->field[i];
        fill_store(k, &f->store, slot, f->keep ? f->store.cap : pos / f->ratio, seed + (uint64_t)i, room, MOST);
    }
    for (int i = 0; i < k->stages; i++)
        fill_store(k, &k->stage[i], slot, k->stage[i].cap, seed - 1 - (uint64_t)i, room, MOST);
    free(room);
    return 0;
}

uint64_t kv_hash(const kv *k, int slot, int pos, bool *ok)
{
    uint64_t h = hash64(&pos, sizeof pos, 0);
    *ok = true;
    for (int i = 0; i < k->fields; i++) {
        const kv_field *f = &k->field[i];
        size_t bytes = (size_t)kv_field_rows(f, pos) * (size_t)f->store.width * sizeof(float);
        float *host = malloc(bytes + 1);
        if (!host) {
            *ok = false;
            return 0;
        }
        kv_field_read(k, f, slot, pos, host);
        h = hash64(host, bytes, h);
        free(host);
    }
    return h;
}
