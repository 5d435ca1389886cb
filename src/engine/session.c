#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "text/bpe.h"

void engine_own(ds4_session *s)
{
    if (s->e->owner && s->e->owner != s)
        s->e->owner->s.logits_row = -1;
    s->e->owner = s;
}

int ds4_session_open(ds4_session **out, ds4_engine *e, ds4_error *err)
{
    int slot = 0;
    while (slot < e->o.sessions && e->slot_used[slot])
        slot++;
    if (slot == e->o.sessions)
        return ds4_fail(err, DS4_ESTATE, "all %d sessions are in use; open the engine with more", e->o.sessions);
    ds4_session *s = calloc(1, sizeof *s);
    if (!s)
        return ds4_fail(err, DS4_ENOMEM, "no memory for a session");
    s->e = e;
    int rc = session_open(&s->s, &e->m, &e->k, slot, err);
    if (rc) {
        free(s);
        return rc;
    }
    e->slot_used[slot] = true;
    *out = s;
    return 0;
}

void ds4_session_close(ds4_session *s)
{
    if (!s)
        return;
    if (s->e->owner == s)
        s->e->owner = NULL;
    s->e->slot_used[s->s.slot] = false;
    session_close(&s->s);
    free(s);
}

int ds4_session_reset(ds4_session *s, ds4_error *err) { return session_reset(&s->s, err); }

typedef struct relay {
    ds4_progress cb;
    void *ctx;
} relay;

static bool relay_progress(void *ctx, int done, int total)
{
    const relay *r = ctx;
    return r->cb(r->ctx, "prompt", (uint64_t)done, (uint64_t)total);
}

int ds4_session_sync(ds4_session *s, const int32_t *tokens, int n, ds4_progress cb, void *ctx, int *fed, ds4_error *err)
{
    relay r = {cb, ctx};
    engine_own(s);
    return session_sync(&s->s, tokens, n, cb ? relay_progress : NULL, &r, fed, err);
}

int ds4_session_rewind(ds4_session *s, int pos, ds4_error *err) { return session_rewind(&s->s, pos, err); }
int ds4_session_pos(const ds4_session *s) { return s->s.pos; }
const int32_t *ds4_session_tokens(const ds4_session *s) { return s->s.tokens; }
int ds4_session_save(const ds4_session *s, const char *path, ds4_error *err) { return session_save(&s->s, path, err); }
int ds4_session_load(ds4_session *s, const char *path, ds4_error *err) { return session_load(&s->s, path, err); }
int ds4_session_hash(const ds4_session *s, uint64_t *out, ds4_error *err) { return session_hash(&s->s, out, err); }

int ds4_session_logits(ds4_session *s, float *out, ds4_error *err)
{
    model *m = s->s.m;
    const size_t vocab = (size_t)m->s.dims.vocab;
    if (s->s.logits_row < 0)
        return ds4_fail(err, DS4_ESTATE, "the logits of position %d are gone; sync first", s->s.pos - 1);
    m->b->op->download(m->b, out, m->sc.logits + (size_t)s->s.logits_row * vocab, vocab * sizeof *out);
    return session_wait(&s->s, err);
}

int ds4_session_score(ds4_session *s, const int32_t *tokens, int n,
                      bool (*row)(void *ctx, int pos, const float *logits), void *ctx, ds4_error *err)
{
    session *t = &s->s;
    backend *b = t->m->b;
    const size_t vocab = (size_t)t->m->s.dims.vocab;
    engine_own(s);
    if (t->pos != 0)
        return ds4_fail(err, DS4_ESTATE, "scoring starts from an empty session; position is %d", t->pos);
    for (int at = 0; at < n;) {
        int k = n - at < BE_NARROW ? n - at : BE_NARROW;
        int rc = session_begin(t, tokens + at, k, 0, err);
        if (rc)
            return rc;
        b->op->download(b, s->e->c.logits, t->m->sc.logits, (size_t)k * vocab * sizeof(float));
        rc = session_wait(t, err);
        if (rc)
            return rc;
        session_commit(t, k, k - 1);
        for (int i = 0; i < k; i++)
            if (!row(ctx, at + i, s->e->c.logits + (size_t)i * vocab))
                return ds4_fail(err, DS4_ECANCEL, "cancelled after %d of %d tokens", at + i + 1, n);
        at += k;
    }
    return 0;
}

int ds4_tokenize(const ds4_engine *e, const char *text, size_t len, bool parse_special, int32_t **out, size_t *n,
                 ds4_error *err)
{
    bpe_ids ids = {0};
    int rc = bpe_encode(e->words, text, len, parse_special, &ids, err);
    if (rc)
        return rc;
    *out = ids.id;
    *n = ids.n;
    return 0;
}
