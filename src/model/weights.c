#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "file/gguf_ahead.h"
#include "file/quant.h"

/* What a pass over a file is for. */
typedef struct pass {
    uint64_t *plan;            /* not NULL: nothing is bound, only the bytes of device memory are counted */
    uint64_t unused;           /* for plan */
    const gguf_tensor **order; /* not NULL: gets the tensors in the order of binding */
    size_t ordered;
    gguf_ahead *ahead; /* reads ahead in that order, or NULL */
} pass;

/* One pass over a file: which tensors were used, and where messages and progress go. */
typedef struct binder {
    const gguf *g;
    backend *b;
    const shape *s;
    bool *used;  /* [n_tensors] */
    char *names; /* room for every name with its zero byte; filled up to name_at */
    size_t name_at;
    weights_progress cb;
    void *ctx;
    uint64_t done, total;
    pass *p;
} binder;

/* *names: the buffer that be_weight.name points into; the caller of the bind keeps it as long as the weights. */
static int binder_open(binder *k, char **names, const gguf *g, backend *b, const shape *s, weights_progress cb,
                       void *ctx, ds4_err *e)
{
    size_t room = 1;
    *k = (binder){.g = g, .b = b, .s = s, .cb = cb, .ctx = ctx};
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        k->total += gguf_tensor_at(g, i)->nbytes;
        room += gguf_tensor_at(g, i)->name.n + 1;
    }
    k->used = calloc(gguf_n_tensors(g) + 1, sizeof *k->used);
    k->names = *names = malloc(room);
    if (!k->used || !k->names)
        return ds4_fail(e, DS4_ENOMEM, "%s: no memory for the tensor list", gguf_path(g));
    return 0;
}

/* Names in the file are not terminated; messages of backends need them so. */
static const char *keep_name(binder *k, const gguf_tensor *t)
{
    char *s = k->names + k->name_at;
    memcpy(s, t->name.p, t->name.n);
    s[t->name.n] = 0;
    k->name_at += t->name.n + 1;
    return s;
}

static void describe(const gguf_tensor *t, char *s, size_t room)
{
    size_t n = (size_t)snprintf(s, room, "%s [", quant_type_name(t->type));
    for (uint32_t i = 0; i < t->n_dims && n < room; i++)
        n += (size_t)snprintf(s + n, room - n, "%s%llu", i ? ", " : "", (unsigned long long)t->ne[i]);
    if (n < room)
        snprintf(s + n, room - n, "]");
}

/* Finds a tensor, checks that it holds exactly n elements with ne0 inputs per row, and marks it used. */
static const gguf_tensor *take(binder *k, const char *name, int64_t ne0, int64_t n, const char *want, ds4_err *e)
{
    const gguf_tensor *t = gguf_find_tensor(k->g, name);
    if (!t) {
        ds4_fail(e, DS4_EMODEL, "%s: tensor %s is missing, expected %s", gguf_path(k->g), name, want);
        return NULL;
    }
    uint64_t have = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    if (have != (uint64_t)n || (t->n_dims > 1 && t->ne[0] != (uint64_t)ne0)) {
        char found[160];
        describe(t, found, sizeof found);
        ds4_fail(e, DS4_EMODEL, "%s: tensor %s is %s, expected %s", gguf_path(k->g), name, found, want);
        return NULL;
    }
    for (size_t i = 0; i < gguf_n_tensors(k->g); i++)
        if (gguf_tensor_at(k->g, i) == t)
            k->used[i] = true;
    if (k->p->order)
        k->p->order[k->p->ordered++] = t;
    gguf_ahead_passed(k->p->ahead, k->done);
    k->done += t->nbytes;
    if (k->cb)
        k->cb(k->ctx, k->done, k->total);
    return t;
}

static int wrong_type(binder *k, const char *name, const gguf_tensor *t, const char *want, ds4_err *e)
{
    return ds4_fail(e, DS4_EMODEL, "%s: tensor %s is of type %s, expected %s", gguf_path(k->g), name,
                    quant_type_name(t->type), want);
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

/* A matrix of an outline (gguf_open_outline), whose numbers are made up. Outputs are then of about the size of the
 * inputs, and everything stays finite: streams are mixed gently, table rows are of size 1. */
static int make_matrix(binder *k, be_weight *w, ds4_err *e)
{
    if (!k->b->op->synth)
        return ds4_fail(e, DS4_EBACKEND, "%s: backend %s cannot make up weights", gguf_path(k->g), k->b->name);
    float scale = 1;
    if (ends_with(w->name, "token_embd.weight") || ends_with(w->name, "markov_w1.weight"))
        scale = sqrtf((float)w->ne0);
    else if (ends_with(w->name, "_fn.weight") || ends_with(w->name, "proj.weight"))
        scale = 0.5f; /* hyper-connections; main_proj, confidence, index weights */
    return k->b->op->synth(k->b, w, hash64(w->name, strlen(w->name), 0), scale, e);
}

/* Where the backend makes a copy, the file's pages are not kept. */
static int bind_matrix(binder *k, const gguf_tensor *t, be_weight *w, ds4_err *e)
{
    int rc = k->b->op->bind(k->b, w, e);
    if (k->b->op->weight_bytes)
        gguf_give_back(k->g, t, k->b->unified);
    return rc;
}

static int take_matrix(binder *k, const char *name, int64_t ne0, int64_t ne1, int64_t ne2, be_weight *out, ds4_err *e)
{
    char want[96];
    snprintf(want, sizeof want, ne2 > 1 ? "a matrix [%lld, %lld, %lld]" : "a matrix [%lld, %lld]", (long long)ne0,
             (long long)ne1, (long long)ne2);
    const gguf_tensor *t = take(k, name, ne0, ne0 * ne1 * ne2, want, e);
    if (!t)
        return e ? e->code : DS4_EMODEL;
    const quant_info *q = quant_type_info(t->type);
    if (!q || !q->is_float_like)
        return wrong_type(k, name, t, "a float or quantised type", e);
    *out = (be_weight){.name = keep_name(k, t),
                       .type = t->type,
                       .ne0 = ne0,
                       .ne1 = ne1,
                       .ne2 = ne2,
                       .host = t->data,
                       .row_bytes = quant_row_bytes(t->type, (uint64_t)ne0)};
    if (k->p->plan)
        *k->p->plan += k->b->op->weight_bytes ? k->b->op->weight_bytes(k->b, out) : 0;
    else
        return t->data ? bind_matrix(k, t, out, e) : make_matrix(k, out, e);
    return 0;
}

static int take_vector(binder *k, const char *name, int64_t ne0, int64_t ne1, const float **out, ds4_err *e)
{
    char want[64];
    int64_t n = ne0 * ne1;
    snprintf(want, sizeof want, ne1 > 1 ? "numbers [%lld, %lld]" : "%lld numbers", (long long)ne0, (long long)ne1);
    const gguf_tensor *t = take(k, name, ne0, n, want, e);
    if (!t)
        return e ? e->code : DS4_EMODEL;
    if (!t->data || (t->type != Q_F32 && t->type != Q_F16 && t->type != Q_BF16))
        return wrong_type(k, name, t, "F32, F16 or BF16", e);
    if (k->p->plan) {
        *k->p->plan += (uint64_t)n * sizeof(float);
        return 0;
    }
    float *host = malloc((size_t)n * sizeof *host);
    float *dev = host ? k->b->op->alloc(k->b, (size_t)n * sizeof *dev) : NULL;
    if (!dev) {
        free(host);
        return ds4_fail(e, DS4_ENOMEM, "%s: no memory for tensor %s", gguf_path(k->g), name);
    }
    quant_decode(t->type, t->data, host, (uint64_t)n);
    k->b->op->upload(k->b, dev, host, (size_t)n * sizeof *dev);
    free(host);
    *out = dev;
    return 0;
}

/* The token-to-expert table: [vocab][used] expert ids, every one checked. */
static int take_table(binder *k, const char *name, int64_t used, int64_t vocab, const int32_t **out, ds4_err *e)
{
    char want[96];
    snprintf(want, sizeof want, "I32 [%lld, %lld]", (long long)used, (long long)vocab);
    const gguf_tensor *t = take(k, name, used, used * vocab, want, e);
    if (!t)
        return e ? e->code : DS4_EMODEL;
    if (!t->data || t->type != Q_I32)
        return wrong_type(k, name, t, "I32", e);
    if (k->p->plan) {
        *k->p->plan += t->nbytes;
        return 0;
    }
    int32_t *dev = k->b->op->alloc(k->b, t->nbytes);
    if (!dev)
        return ds4_fail(e, DS4_ENOMEM, "%s: no memory for tensor %s", gguf_path(k->g), name);
    const uint8_t *p = t->data;
    for (int64_t i = 0; i < used * vocab; i++) {
        int32_t id;
        memcpy(&id, p + 4 * i, 4);
        if (id < 0 || id >= k->s->dims.experts)
            return ds4_fail(e, DS4_EMODEL, "%s: tensor %s sends token %lld to expert %d, expected 0..%d",
                            gguf_path(k->g), name, (long long)(i / used), id, k->s->dims.experts - 1);
    }
    k->b->op->upload(k->b, dev, p, t->nbytes);
    *out = dev;
    return 0;
}

/* Whether a block of this ratio has a tensor of this class. `hash` < 0: a drafter stage (always scored). */
enum when { ALWAYS, COMP, INDEX, SCORED, HASHED };
static bool applies(enum when w, int ratio, bool hash)
{
    switch (w) {
    case ALWAYS:
        return true;
    case COMP:
        return ratio != 0;
    case INDEX:
        return ratio == 4;
    case SCORED:
        return !hash;
    case HASHED:
        return hash;
    }
    return false;
}

static int bind_block(binder *k, layer_weights *L, const char *prefix, int ratio, bool hash, ds4_err *e)
{
    const be_dims *d = &k->s->dims;
    const int64_t D = d->d, S = d->streams, QR = k->s->q_rank, H = d->heads, K = d->head_dim, G = d->groups,
                  R = d->group_rank;
    const int64_t CW = ratio == 4 ? 2 * K : K, IH = d->idx_heads, I = d->idx_dim, E = d->experts, F = d->ff,
                  U = d->used;
    const int64_t VOCAB = d->vocab;
    char name[160];
    int rc = 0;
#define NAMED(n) (snprintf(name, sizeof name, "%s%s", prefix, n), name)
#define M(member, n, n0, n1, n2, when)                                                                                 \
    if (!rc && applies(when, ratio, hash))                                                                             \
        rc = take_matrix(k, NAMED(n), n0, n1, n2, &L->member, e);
#define V(member, n, n0, n1, when)                                                                                     \
    if (!rc && applies(when, ratio, hash))                                                                             \
        rc = take_vector(k, NAMED(n), n0, n1, &L->member, e);
#define T(member, n, n0, n1, when)                                                                                     \
    if (!rc && applies(when, ratio, hash))                                                                             \
        rc = take_table(k, NAMED(n), n0, n1, &L->member, e);
#include "model/weights.def"
#undef M
#undef V
#undef T
#undef NAMED
    return rc;
}

/* A pass that finds the order of binding: begun here (false: no memory), and used and ended by read_ahead. */
static bool order_pass(pass *p, const gguf *g)
{
    *p = (pass){.plan = &p->unused, .order = calloc(gguf_n_tensors(g) + 1, sizeof *p->order)};
    return p->order;
}

static gguf_ahead *read_ahead(pass *p, const gguf *g, int rc)
{
    gguf_ahead *a = rc ? NULL : gguf_ahead_start(g, p->order, p->ordered);
    free(p->order);
    return a;
}

static bool starts_with(gguf_str s, const char *p) { return s.n >= strlen(p) && !memcmp(s.p, p, strlen(p)); }

/* Every tensor of the file must have been used, except those under `ignored` (an MTP block that is left unread). */
static int nothing_left(binder *k, const char *ignored, ds4_err *e)
{
    size_t extra = 0;
    const gguf_tensor *first = NULL;
    for (size_t i = 0; i < gguf_n_tensors(k->g); i++) {
        const gguf_tensor *t = gguf_tensor_at(k->g, i);
        if (k->used[i] || (ignored && starts_with(t->name, ignored)))
            continue;
        first = first ? first : t;
        extra++;
    }
    if (!extra)
        return 0;
    char found[160];
    describe(first, found, sizeof found);
    return ds4_fail(e, DS4_EMODEL,
                    "%s: %zu tensor%s not part of this model, first %.*s, %s: wrong or newer kind of file?",
                    gguf_path(k->g), extra, extra == 1 ? " is" : "s are", (int)first->name.n, first->name.p, found);
}

static int upload_freqs(binder *k, bool compressed, const float **out, ds4_err *e)
{
    float freq[2048];
    size_t bytes = sizeof(float) * (size_t)k->s->dims.rope_dim / 2;
    if (k->p->plan) {
        *k->p->plan += bytes;
        return 0;
    }
    shape_rope_freqs(k->s, compressed, freq);
    float *dev = k->b->op->alloc(k->b, bytes);
    if (!dev)
        return ds4_fail(e, DS4_ENOMEM, "no memory for the rotary table");
    k->b->op->upload(k->b, dev, freq, bytes);
    *out = dev;
    return 0;
}

static int bind_trunk_top(binder *k, trunk_weights *w, ds4_err *e)
{
    const be_dims *d = &k->s->dims;
    int rc = take_matrix(k, "token_embd.weight", d->d, d->vocab, 1, &w->embed, e);
    if (!rc)
        rc = take_matrix(k, "output.weight", d->d, d->vocab, 1, &w->output, e);
    if (!rc)
        rc = take_vector(k, "output_norm.weight", d->d, 1, &w->norm, e);
    if (!rc)
        rc = take_matrix(k, "output_hc_fn.weight", (int64_t)d->streams * d->d, d->streams, 1, &w->hc_head.fn, e);
    if (!rc)
        rc = take_vector(k, "output_hc_base.weight", d->streams, 1, &w->hc_head.base, e);
    if (!rc)
        rc = take_vector(k, "output_hc_scale.weight", 1, 1, &w->hc_head.scale, e);
    if (!rc)
        rc = upload_freqs(k, false, &w->freq_plain, e);
    if (!rc)
        rc = upload_freqs(k, true, &w->freq_comp, e);
    return rc;
}

/* A pass that counts leaves *w empty. */
static int trunk_pass(trunk_weights *w, const shape *s, const gguf *g, backend *b, pass *p, weights_progress cb,
                      void *ctx, ds4_err *e)
{
    binder k;
    memset(w, 0, sizeof *w);
    int rc = binder_open(&k, &w->names, g, b, s, cb, ctx, e);
    k.p = p;
    if (!rc && !(w->layer = calloc((size_t)s->layers, sizeof *w->layer)))
        rc = ds4_fail(e, DS4_ENOMEM, "%s: no memory for %d layers", gguf_path(g), s->layers);
    if (!rc)
        rc = bind_trunk_top(&k, w, e);
    for (int l = 0; l < s->layers && !rc; l++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "blk.%d.", l);
        rc = bind_block(&k, &w->layer[l], prefix, s->ratio[l], l < s->hash_layers, e);
    }
    char ignored[32];
    snprintf(ignored, sizeof ignored, "blk.%d.", s->mtp_layer);
    if (!rc)
        rc = nothing_left(&k, s->mtp_layer >= 0 ? ignored : NULL, e);
    free(k.used);
    if (rc || p->plan)
        weights_free_trunk(w);
    return rc;
}

int weights_bind_trunk(trunk_weights *w, const shape *s, const gguf *g, backend *b, weights_progress cb, void *ctx,
                       ds4_err *e)
{
    pass first, second = {0};
    trunk_weights none;
    if (b->op->weight_bytes && order_pass(&first, g))
        second.ahead = read_ahead(&first, g, trunk_pass(&none, s, g, b, &first, NULL, NULL, NULL));
    int rc = trunk_pass(w, s, g, b, &second, cb, ctx, e);
    gguf_ahead_stop(second.ahead);
    return rc;
}

int weights_plan_trunk(uint64_t *bytes, const shape *s, const gguf *g, backend *b, ds4_err *e)
{
    trunk_weights none;
    return trunk_pass(&none, s, g, b, &(pass){.plan = bytes}, NULL, NULL, e);
}

/* Tensors that stand beside the stages. The sidecar puts them under the first and the last stage, llama.cpp at the top.
 */
static int bind_drafter_top(binder *k, drafter_weights *w, const drafter_shape *ds, ds4_err *e)
{
    const be_dims *d = &k->s->dims;
    const int64_t D = d->d, S = d->streams, V = d->vocab;
    char last[32] = "", name[96];
    if (!ds->llama_names)
        snprintf(last, sizeof last, "mtp.%d.", ds->stages - 1);
#define AT(sidecar, llama) (snprintf(name, sizeof name, "%s%s", last, ds->llama_names ? llama : sidecar), name)
    int rc = take_matrix(k, ds->llama_names ? "fc.weight" : "mtp.0.main_proj.weight", D * ds->targets, D, 1,
                         &w->main_proj, e);
    if (!rc)
        rc = take_vector(k, ds->llama_names ? "enc.output_norm.weight" : "mtp.0.main_norm.weight", D, 1, &w->main_norm,
                         e);
    if (!rc)
        rc = take_vector(k, AT("norm.weight", "output_norm.weight"), D, 1, &w->norm, e);
    if (!rc)
        rc = take_matrix(k, AT("hc_head_fn.weight", "output_hc_fn.weight"), S * D, S, 1, &w->hc_head.fn, e);
    if (!rc)
        rc = take_vector(k, AT("hc_head_base.weight", "output_hc_base.weight"), S, 1, &w->hc_head.base, e);
    if (!rc)
        rc = take_vector(k, AT("hc_head_scale.weight", "output_hc_scale.weight"), 1, 1, &w->hc_head.scale, e);
    if (!rc)
        rc = take_matrix(k, AT("markov_head.markov_w1.weight", "markov_w1.weight"), ds->rank, V, 1, &w->markov_w1, e);
    if (!rc)
        rc = take_matrix(k, AT("markov_head.markov_w2.weight", "markov_w2.weight"), ds->rank, V, 1, &w->markov_w2, e);
    if (!rc)
        rc = take_matrix(k, AT("confidence_head.proj.weight", "conf_proj.weight"), D + ds->rank, 1, 1, &w->confidence,
                         e);
#undef AT
    return rc;
}

static int drafter_pass(drafter_weights *w, const shape *s, const drafter_shape *ds, const gguf *g, backend *b,
                        pass *p, weights_progress cb, void *ctx, ds4_err *e)
{
    binder k;
    memset(w, 0, sizeof *w);
    int rc = binder_open(&k, &w->names, g, b, s, cb, ctx, e);
    k.p = p;
    if (!rc && !(w->stage = calloc((size_t)ds->stages, sizeof *w->stage)))
        rc = ds4_fail(e, DS4_ENOMEM, "%s: no memory for %d stages", gguf_path(g), ds->stages);
    if (!rc)
        rc = bind_drafter_top(&k, w, ds, e);
    for (int l = 0; l < ds->stages && !rc; l++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, ds->llama_names ? "blk.%d." : "mtp.%d.", l);
        rc = bind_block(&k, &w->stage[l], prefix, 0, false, e);
    }
    if (!rc)
        rc = nothing_left(&k, NULL, e);
    free(k.used);
    if (rc || p->plan)
        weights_free_drafter(w);
    return rc;
}

int weights_bind_drafter(drafter_weights *w, const shape *s, const drafter_shape *ds, const gguf *g, backend *b,
                         weights_progress cb, void *ctx, ds4_err *e)
{
    pass first, second = {0};
    drafter_weights none;
    if (b->op->weight_bytes && order_pass(&first, g))
        second.ahead = read_ahead(&first, g, drafter_pass(&none, s, ds, g, b, &first, NULL, NULL, NULL));
    int rc = drafter_pass(w, s, ds, g, b, &second, cb, ctx, e);
    gguf_ahead_stop(second.ahead);
    return rc;
}

int weights_plan_drafter(uint64_t *bytes, const shape *s, const drafter_shape *ds, const gguf *g, backend *b,
                         ds4_err *e)
{
    drafter_weights none;
    return drafter_pass(&none, s, ds, g, b, &(pass){.plan = bytes}, NULL, NULL, e);
}

void weights_free_trunk(trunk_weights *w)
{
    free(w->layer);
    free(w->names);
    w->layer = NULL;
    w->names = NULL;
}

void weights_free_drafter(drafter_weights *w)
{
    free(w->stage);
    free(w->names);
    w->stage = NULL;
    w->names = NULL;
}

uint64_t weights_identity(const gguf *g)
{
    uint64_t h = hash64("ds4 model", 9, 0);
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const gguf_kv *kv = gguf_kv_at(g, i);
        h = hash64(kv->key.p, kv->key.n, h);
        h = hash64(kv->data, kv->bytes < 4096 ? kv->bytes : 4096, h);
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        size_t head = t->nbytes < 64 ? (size_t)t->nbytes : 64;
        h = hash64(t->name.p, t->name.n, h);
        h = hash64(&t->type, sizeof t->type, h);
        h = hash64(t->ne, sizeof t->ne, h);
        if (!t->data)
            continue;
        h = hash64(t->data, head, h);
        h = hash64((const char *)t->data + t->nbytes / 2, t->nbytes / 2 < 64 ? (size_t)t->nbytes / 2 : 64, h);
    }
    return h;
}
