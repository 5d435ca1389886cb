/* util_session.h: a session over the tiny model. Header only. */
#ifndef TESTS_SESSION_UTIL_SESSION_H
#define TESTS_SESSION_UTIL_SESSION_H

#include "session/session.h"
#include "util/v4_rig.h"

typedef struct timeline {
    v4_rig t;
    session s;
    int32_t ids[600];
} timeline;

static inline void timeline_open(timeline *l, int ctx)
{
    ds4_err e = {0};
    v4_tokens(l->ids, 600);
    v4_open(&l->t, (rig_options){.act = BE_ACT_Q8, .sim = KV_SIM_FULL, .ctx = ctx});
    rig_check(session_open(&l->s, &l->t.r.m, &l->t.r.k, 0, &e), &e);
}

static inline void timeline_close(timeline *l)
{
    session_close(&l->s);
    v4_close(&l->t);
}

/* Makes ids[0, n) the timeline; returns how many tokens were fed. */
static inline int timeline_sync(timeline *l, int n)
{
    ds4_err e = {0};
    int fed = -1;
    rig_check(session_sync(&l->s, l->ids, n, NULL, NULL, &fed, &e), &e);
    assert_true(session_assert(&l->s));
    assert_int_equal(l->s.pos, n);
    return fed;
}

static inline uint64_t timeline_hash(const timeline *l)
{
    ds4_err e = {0};
    uint64_t h = 0;
    rig_check(session_hash(&l->s, &h, &e), &e);
    return h;
}

/* Logits of the newest token, from the scratch row that the session says holds them. */
static inline void timeline_logits(const timeline *l, float *out)
{
    const rig *r = &l->t.r;
    assert_true(l->s.logits_row >= 0);
    r->b->op->download(r->b, out, r->m.sc.logits + (size_t)l->s.logits_row * V4_VOCAB, V4_VOCAB * sizeof *out);
}

/* A greedy proposal for the session's position; absorbs what is missing first. */
static inline rig_drafts timeline_draft(timeline *l, int32_t anchor)
{
    const int window = l->t.r.m.s.dims.window;
    int from = l->s.absorbed > l->s.pos - window ? l->s.absorbed : l->s.pos - window;
    rig_drafts d;
    memset(&d, 0, sizeof d);
    rig_absorb(&l->t.r, 0, from > 0 ? from : 0, l->s.pos);
    l->s.absorbed = l->s.pos;
    rig_drafts got = rig_draft(&l->t.r, 0, anchor, l->s.pos, NULL, NULL);
    memcpy(d.id, got.id, sizeof(int32_t) * (size_t)(got.n + 1));
    memcpy(d.conf, got.conf, sizeof(float) * (size_t)got.n);
    return d;
}

/* The call must fail with this code and one line that contains the word. */
#define REFUSES(call, want, word)                                                                                      \
    do {                                                                                                               \
        ds4_err e_ = {0};                                                                                              \
        ds4_err *e = &e_;                                                                                              \
        int rc_ = (call);                                                                                              \
        if (rc_ != (want) || !strstr(e_.msg, word))                                                                    \
            fail_msg("%s gave %d '%s', expected %d '%s'", #call, rc_, e_.msg, (int)(want), word);                      \
    } while (0)

#endif
