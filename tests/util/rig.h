/* rig.h: a model on a backend with KV state, driven directly through forward.c. Header only, since it needs the model
 * room's libraries. */
#ifndef TESTS_UTIL_RIG_H
#define TESTS_UTIL_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"

typedef struct rig {
    backend *b;
    gguf *trunk, *drafter; /* owned */
    model m;
    kv k;
    backend_ops *composed; /* owned */
} rig;

typedef struct rig_options {
    enum be_act act;
    enum kv_sim sim;
    int threads; /* 0 = one */
    int slots;   /* 0 = one */
    int ctx;
    bool composed; /* blocks of single operations, nothing captured: what lies between them can be looked at */
} rig_options;

static inline void rig_check(int rc, const ds4_err *e)
{
    if (rc)
        fail_msg("%s", e->msg);
}

static inline void rig_sync(rig *r)
{
    ds4_err e = {0};
    rig_check(r->b->op->sync(r->b, &e), &e);
}

/* The backend named by DS4_TEST_BACKEND, the CPU's by default. A test for a GPU is skipped where there is none. */
static inline void rig_backend(rig *r, const rig_options *o)
{
    const char *name = getenv("DS4_TEST_BACKEND");
    ds4_err e = {0};
    backend_options b = {name && *name ? name : "cpu", o->threads ? o->threads : 1, o->act};
    int rc = backend_open(&r->b, &b, &e);
    if (rc && !strncmp(e.msg, "CUDA: no ", 9)) {
        print_message("skipped (no GPU)\n");
        skip();
    }
    rig_check(rc, &e);
}

static inline bool rig_issue_step(backend *b, uint64_t key)
{
    (void)b, (void)key;
    return true;
}

static inline void rig_end_step(backend *b) { (void)b; }

static inline void rig_compose(rig *r)
{
    r->composed = malloc(sizeof *r->composed);
    assert_non_null(r->composed);
    *r->composed = *r->b->op;
    r->composed->block = NULL;
    r->composed->step_begin = rig_issue_step;
    r->composed->step_end = rig_end_step;
    r->b->op = r->composed;
}

/* Takes ownership of the files; drafter may be NULL. Fails the test on any error. */
static inline void rig_open(rig *r, gguf *trunk, gguf *drafter, rig_options o)
{
    ds4_err e = {0};
    *r = (rig){.trunk = trunk, .drafter = drafter};
    rig_backend(r, &o);
    if (o.composed)
        rig_compose(r);
    rig_check(model_open(&r->m, r->b, trunk, drafter, &(model_options){.sim = o.sim}, &e), &e);
    int slots = o.slots ? o.slots : 1;
    rig_check(kv_open(&r->k, r->b, &r->m.s, drafter ? &r->m.ds : NULL, slots, o.ctx, &e), &e);
}

static inline void rig_close(rig *r)
{
    kv_close(&r->k);
    model_close(&r->m);
    r->b->op->close(r->b);
    free(r->composed);
    gguf_close(r->trunk);
    gguf_close(r->drafter);
}

/* n numbers of device memory. */
static inline void rig_get(rig *r, float *host, const float *dev, size_t n)
{
    r->b->op->download(r->b, host, dev, n * sizeof *host);
}

static inline size_t rig_vocab(const rig *r) { return (size_t)r->m.s.dims.vocab; }

static inline be_rows rig_rows(rig *r, int set, int n, const int32_t *tokens, int pos, int slot)
{
    int32_t at[256], none[256] = {0};
    assert_true(n <= 256);
    for (int i = 0; i < n; i++)
        at[i] = pos + i;
    return model_rows(&r->m, set, n, tokens ? tokens : none, at, slot);
}

/* Forward of tokens[from, to) in chunks of `chunk` rows (the last may be shorter). logits: [to - from][vocab], or NULL;
 * rows of a wide chunk get logits only for its last BE_NARROW rows, the others stay untouched. */
static inline void rig_run(rig *r, int slot, const int32_t *tokens, int from, int to, int chunk, float *logits)
{
    for (int at = from; at < to; at += chunk) {
        int n = to - at < chunk ? to - at : chunk, head = n > BE_NARROW ? n - BE_NARROW : 0;
        be_rows rows = rig_rows(r, 0, n, tokens + at, at, slot);
        forward_trunk(&r->m, &r->k, &rows, logits ? head : n);
        if (logits)
            r->b->op->download(r->b, logits + (size_t)(at + head - from) * rig_vocab(r), r->m.sc.logits,
                               (size_t)(n - head) * rig_vocab(r) * sizeof(float));
    }
    rig_sync(r);
}

/* Rows [from, to) of the taps into the drafter's rings. */
static inline void rig_absorb(rig *r, int slot, int from, int to)
{
    for (int at = from; at < to; at += r->b->max_rows) {
        int n = to - at < r->b->max_rows ? to - at : r->b->max_rows;
        be_rows rows = rig_rows(r, 1, n, NULL, at, slot);
        forward_absorb(&r->m, &r->k, &rows);
    }
}

typedef struct rig_drafts {
    int n;
    int32_t id[SHAPE_MAX_BLOCK + 1]; /* [0] = anchor, then the drafts */
    float conf[SHAPE_MAX_BLOCK];
} rig_drafts;

/* One greedy proposal after `pos` tokens were absorbed. base, logits: [block][vocab] before and after the Markov term,
 * or NULL. */
static inline rig_drafts rig_draft(rig *r, int slot, int32_t anchor, int pos, float *base, float *logits)
{
    rig_drafts d = {.n = r->m.ds.block};
    const size_t V = rig_vocab(r);
    const backend_ops *op = r->b->op;
    scratch *sc = &r->m.sc;
    for (int i = 0; i < d.n; i++)
        d.id[i] = i ? r->m.ds.noise : anchor;
    be_rows rows = rig_rows(r, 1, d.n, d.id, pos, slot);
    forward_draft(&r->m, &r->k, &rows);
    forward_draft_head(&r->m, d.n);
    if (base)
        op->download(r->b, base, sc->draft_logits, (size_t)d.n * V * sizeof(float));
    op->upload(r->b, sc->ids, &anchor, sizeof anchor);
    for (int i = 0; i < d.n; i++) {
        float *row = sc->draft_logits + (size_t)i * V;
        op->markov(r->b, &r->m.dw.markov_w1, &r->m.dw.markov_w2, sc->ids + i, row);
        op->pick(r->b, 1, row, 0, 0, rows.pos + i, sc->ids + i + 1);
    }
    op->confidence(r->b, d.n, &r->m.dw.confidence, &r->m.dw.markov_w1, sc->hidden, sc->ids, sc->conf);
    op->download(r->b, d.id, sc->ids, (size_t)(d.n + 1) * sizeof(int32_t));
    op->download(r->b, d.conf, sc->conf, (size_t)d.n * sizeof(float));
    if (logits)
        op->download(r->b, logits, sc->draft_logits, (size_t)d.n * V * sizeof(float));
    rig_sync(r);
    return d;
}

#endif
