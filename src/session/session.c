#include "session/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

bool session_assert(const session *s)
{
    assert(0 <= s->pos && s->pos <= s->high && s->high <= s->ctx);
    assert(0 <= s->absorbed_from && s->absorbed_from <= s->absorbed && s->absorbed <= s->pos);
    assert(0 <= s->low && s->low <= s->pos);
    assert(s->logits_row < BE_NARROW);
    switch (s->state) {
    case SESSION_EMPTY:
        assert(s->pos == 0 && s->open == 0);
        break;
    case SESSION_READY:
        assert(s->pos > 0 && s->open == 0);
        break;
    case SESSION_OPEN:
        assert(s->open > 0 && s->pos + s->open <= s->high);
        break;
    case SESSION_POISONED:
        break;
    }
    return true;
}

int session_open(session *s, model *m, kv *k, int slot, ds4_err *e)
{
    *s = (session){.m = m, .k = k, .slot = slot, .ctx = k->ctx, .logits_row = -1};
    s->tokens = calloc((size_t)s->ctx, sizeof *s->tokens);
    if (!s->tokens)
        return ds4_fail(e, DS4_ENOMEM, "no memory for a session of %d tokens", s->ctx);
    return 0;
}

void session_close(session *s)
{
    free(s->tokens);
    s->tokens = NULL;
}

int session_reset(session *s, ds4_err *e)
{
    int rc = s->m->b->op->sync(s->m->b, e);
    if (rc) {
        s->state = SESSION_POISONED;
        return rc;
    }
    s->pos = s->high = s->low = s->open = s->absorbed_from = s->absorbed = 0;
    s->logits_row = -1;
    s->state = SESSION_EMPTY;
    return 0;
}

int session_place(session *s, const int32_t *tokens, int n, ds4_err *e)
{
    int rc = n >= 1 && n <= s->ctx ? session_reset(s, e)
                                   : ds4_fail(e, DS4_EARG, "a timeline of %d tokens, expected 1 to %d", n, s->ctx);
    if (!rc)
        rc = kv_fill(s->k, s->slot, n, 1, e);
    if (rc)
        return rc;
    memcpy(s->tokens, tokens, (size_t)n * sizeof *tokens);
    const int kept = s->k->stages ? s->k->stage[0].cap : 0;
    s->pos = s->high = s->absorbed = n;
    s->absorbed_from = n > kept ? n - kept : 0;
    s->state = SESSION_READY;
    return session_wait(s, e);
}

static int poisoned(const session *s, ds4_err *e)
{
    (void)s;
    return ds4_fail(e, DS4_ESTATE, "the session is poisoned by an earlier backend failure: reset it");
}

/* Whether a forward of n rows may be opened now. */
static int may_open(const session *s, int n, ds4_err *e)
{
    assert(session_assert(s));
    if (s->state == SESSION_POISONED)
        return poisoned(s, e);
    if (s->state == SESSION_OPEN)
        return ds4_fail(e, DS4_ESTATE, "a forward is already open at position %d", s->pos);
    if (n < 1 || n > s->m->b->max_rows)
        return ds4_fail(e, DS4_EARG, "a forward of %d rows, expected 1 to %d", n, s->m->b->max_rows);
    if (n > s->ctx - s->pos)
        return ds4_fail(e, DS4_EARG, "the context is full: %d of %d tokens used, %d more wanted; use a larger --ctx",
                        s->pos, s->ctx, n);
    return 0;
}

static int check_token(const session *s, int32_t token, int pos, ds4_err *e)
{
    if (token < 0 || token >= s->m->s.dims.vocab)
        return ds4_fail(e, DS4_EARG, "token id %d at position %d, expected 0 to %d", token, pos,
                        s->m->s.dims.vocab - 1);
    return 0;
}

static void open_rows(session *s, const int32_t *tokens, int known, int n)
{
    memcpy(s->tokens + s->pos, tokens, (size_t)known * sizeof *tokens);
    s->open = n;
    s->high = s->pos + n > s->high ? s->pos + n : s->high;
    s->logits_row = -1;
    s->state = SESSION_OPEN;
}

int session_reserve(session *s, int32_t anchor, int n, ds4_err *e)
{
    int rc = may_open(s, n, e);
    if (!rc)
        rc = check_token(s, anchor, s->pos, e);
    if (!rc)
        open_rows(s, &anchor, 1, n);
    return rc;
}

void session_settle(session *s, const int32_t *tokens, int a, int logits_row)
{
    assert(s->state == SESSION_OPEN && 0 <= a && a <= s->open);
    memcpy(s->tokens + s->pos, tokens, (size_t)a * sizeof *tokens);
    session_commit(s, a, logits_row);
}

int session_begin(session *s, const int32_t *tokens, int n, int head_from, ds4_err *e)
{
    int rc = may_open(s, n, e);
    for (int i = 0; i < n && !rc; i++)
        rc = check_token(s, tokens[i], s->pos + i, e);
    if (rc)
        return rc;
    int32_t pos[256];
    int32_t at = s->pos;
    be_rows r;
    assert(n <= 256);
    for (int i = 0; i < n; i++)
        pos[i] = at + i;
    r = model_rows(s->m, 0, n, tokens, pos, s->slot);
    forward_trunk(s->m, s->k, &r, head_from);
    open_rows(s, tokens, n, n);
    return 0;
}

int session_wait(session *s, ds4_err *e)
{
    int rc = s->m->b->op->sync(s->m->b, e);
    if (rc) {
        s->open = 0;
        s->logits_row = -1;
        s->state = SESSION_POISONED;
    }
    return rc;
}

void session_commit(session *s, int a, int logits_row)
{
    assert(s->state == SESSION_OPEN && 0 <= a && a <= s->open);
    s->pos += a;
    s->open = 0;
    s->logits_row = a ? logits_row : -1;
    s->state = s->pos ? SESSION_READY : SESSION_EMPTY;
    assert(session_assert(s));
}

bool session_can_rewind(const session *s, int pos)
{
    return pos == 0 || (pos >= s->low && s->high - pos <= kv_rewind_room(s->k));
}

int session_rewind(session *s, int pos, ds4_err *e)
{
    if (s->state == SESSION_POISONED)
        return poisoned(s, e);
    if (s->state == SESSION_OPEN || pos < 0 || pos > s->pos)
        return ds4_fail(e, DS4_ESTATE, "cannot rewind from position %d to %d", s->pos, pos);
    if (pos == s->pos)
        return 0;
    if (!session_can_rewind(s, pos))
        return ds4_fail(
            e, DS4_ESTATE,
            "cannot rewind from position %d to %d: rows below were overwritten; reload a snapshot or feed again",
            s->high, pos);
    s->pos = pos;
    s->absorbed = s->absorbed < pos ? s->absorbed : pos;
    s->absorbed_from = s->absorbed_from < pos ? s->absorbed_from : pos;
    s->logits_row = -1;
    s->state = pos ? SESSION_READY : SESSION_EMPTY;
    if (pos == 0)
        s->high = s->low = 0;
    return 0;
}

/* Length of the next chunk: up to the next multiple of max_rows, so that chunk borders are the same whoever asks. */
static int chunk_len(const session *s, int left)
{
    int rows = s->m->b->max_rows, n = rows - s->pos % rows;
    return n < left ? n : left;
}

static int feed(session *s, const int32_t *tokens, int n, session_progress cb, void *ctx, ds4_err *e)
{
    const int start = s->pos;
    while (s->pos < n) {
        int len = chunk_len(s, n - s->pos), last = s->pos + len == n;
        int rc = session_begin(s, tokens + s->pos, len, last ? len - 1 : len, e);
        if (!rc)
            rc = session_wait(s, e);
        if (rc)
            return rc;
        session_commit(s, len, last ? 0 : -1);
        if (cb && !cb(ctx, s->pos - start, n - start))
            return ds4_fail(e, DS4_ECANCEL, "cancelled after %d of %d prompt tokens", s->pos - start, n - start);
    }
    return 0;
}

int session_sync(session *s, const int32_t *tokens, int n, session_progress cb, void *ctx, int *fed, ds4_err *e)
{
    if (s->state == SESSION_POISONED)
        return poisoned(s, e);
    if (n < 1)
        return ds4_fail(e, DS4_EARG, "the prompt is empty");
    if (n > s->ctx)
        return ds4_fail(e, DS4_EARG, "the prompt has %d tokens, the context holds %d; use a larger --ctx", n, s->ctx);
    int same = 0;
    while (same < s->pos && same < n && s->tokens[same] == tokens[same])
        same++;
    if (same == n && s->pos == n && s->logits_row >= 0) {
        if (fed)
            *fed = 0;
        return 0;
    }
    if (same == n)
        same = n - 1; /* the last token is fed again for its logits */
    if (!session_can_rewind(s, same))
        same = 0;
    int rc = session_rewind(s, same, e);
    if (fed)
        *fed = n - same;
    return rc ? rc : feed(s, tokens, n, cb, ctx, e);
}

int session_hash(const session *s, uint64_t *out, ds4_err *e)
{
    bool ok;
    uint64_t h = kv_hash(s->k, s->slot, s->pos, &ok);
    if (!ok)
        return ds4_fail(e, DS4_ENOMEM, "no memory to hash the state");
    *out = hash64(s->tokens, (size_t)s->pos * sizeof *s->tokens, h);
    return 0;
}
