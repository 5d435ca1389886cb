#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

/* One symbol of the piece being merged: a doubly linked list over array indices. Merging keeps the left one; a dead one
 * has id -1. */
typedef struct sym {
    int32_t id, prev, next;
} sym;

/* A pair that may merge: the symbol at `pos` with its right neighbour. Stale if the pair there no longer has this rank.
 */
typedef struct cand {
    int32_t rank, pos, merged;
} cand;

typedef struct work {
    const vocab *v;
    sym *s;
    size_t cap_s;
    cand *heap;
    size_t n_heap, cap_heap;
} work;

int bpe_ids_push(bpe_ids *a, int32_t id, ds4_err *e)
{
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64;
        int32_t *p = cap > SIZE_MAX / sizeof *p ? NULL : realloc(a->id, cap * sizeof *p);
        if (!p)
            return ds4_fail(e, DS4_ENOMEM, "out of memory for %zu tokens", cap);
        a->id = p;
        a->cap = cap;
    }
    a->id[a->n++] = id;
    return 0;
}

void bpe_ids_free(bpe_ids *a)
{
    free(a->id);
    *a = (bpe_ids){0};
}

/* Lowest rank first, then leftmost. */
static bool before(const cand *a, const cand *b) { return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos; }

/* The heap never outgrows its room: see reserve(). */
static void heap_push(work *w, cand c)
{
    size_t i = w->n_heap++;
    for (size_t up; i > 0 && (up = (i - 1) / 2, before(&c, &w->heap[up])); i = up)
        w->heap[i] = w->heap[up];
    w->heap[i] = c;
}

static cand heap_pop(work *w)
{
    cand top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0, kid;
    while ((kid = 2 * i + 1) < w->n_heap) {
        if (kid + 1 < w->n_heap && before(&w->heap[kid + 1], &w->heap[kid]))
            kid++;
        if (!before(&w->heap[kid], &last))
            break;
        w->heap[i] = w->heap[kid];
        i = kid;
    }
    w->heap[i] = last;
    return top;
}

/* Room for a piece of n bytes: n symbols; n - 1 first pairs and two new ones for each of at most n - 1 merges. */
static int reserve(work *w, size_t n, ds4_err *e)
{
    if (n <= w->cap_s)
        return 0;
    size_t cap = n < 256 ? 256 : n + n / 2;
    free(w->s);
    free(w->heap);
    w->s = malloc(cap * sizeof *w->s);
    w->heap = malloc(3 * cap * sizeof *w->heap);
    w->cap_s = w->s && w->heap ? cap : 0;
    return w->cap_s ? 0 : ds4_fail(e, DS4_ENOMEM, "out of memory for tokenizing a piece of %zu bytes", n);
}

static void offer(work *w, int32_t pos)
{
    int32_t next, merged, rank;
    if (pos < 0 || (next = w->s[pos].next) < 0)
        return;
    rank = vocab_merge(w->v, w->s[pos].id, w->s[next].id, &merged);
    if (rank >= 0)
        heap_push(w, (cand){rank, pos, merged});
}

static bool stale(const work *w, const cand *c)
{
    int32_t next, merged;
    return w->s[c->pos].id < 0 || (next = w->s[c->pos].next) < 0 ||
           vocab_merge(w->v, w->s[c->pos].id, w->s[next].id, &merged) != c->rank;
}

static void join(work *w, const cand *c)
{
    sym *left = &w->s[c->pos], *right = &w->s[left->next];
    left->id = c->merged;
    right->id = -1;
    left->next = right->next;
    if (left->next >= 0)
        w->s[left->next].prev = c->pos;
    offer(w, left->prev);
    offer(w, c->pos);
}

static int encode_piece(work *w, const uint8_t *p, size_t n, bpe_ids *out, ds4_err *e)
{
    if (n == 1)
        return bpe_ids_push(out, vocab_byte(w->v, p[0]), e);
    int rc = reserve(w, n, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++)
        w->s[i] = (sym){vocab_byte(w->v, p[i]), (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++)
        offer(w, (int32_t)i);
    while (w->n_heap) {
        cand c = heap_pop(w);
        if (!stale(w, &c))
            join(w, &c);
    }
    for (int32_t i = 0; !rc && i >= 0; i = w->s[i].next)
        rc = bpe_ids_push(out, w->s[i].id, e);
    return rc;
}

/* Text without any added token in it. */
static int encode_plain(work *w, const char *text, size_t len, bpe_ids *out, ds4_err *e)
{
    const pretok *pre = vocab_pretok(w->v);
    int rc = 0;
    for (size_t pos = 0; !rc && pos < len;) {
        size_t end = pretok_next(pre, text, len, pos);
        rc = encode_piece(w, (const uint8_t *)text + pos, end - pos, out, e);
        pos = end;
    }
    return rc;
}

/* Walks the spans; `from` is the start of the ordinary text that has not been encoded yet. */
static int encode_spans(work *w, const char *text, const bpe_span *span, size_t n_spans, bpe_ids *out, ds4_err *e)
{
    size_t from = 0, pos = 0;
    int rc = 0;
    for (size_t i = 0; !rc && i < n_spans; i++) {
        while (!rc && span[i].template && pos < span[i].end) {
            int32_t id;
            size_t k = vocab_match_added(w->v, text + pos, span[i].end - pos, &id);
            if (k) {
                rc = encode_plain(w, text + from, pos - from, out, e);
                rc = rc ? rc : bpe_ids_push(out, id, e);
                from = pos + k;
            }
            pos += k ? k : 1;
        }
        pos = span[i].end;
    }
    return rc ? rc : encode_plain(w, text + from, pos - from, out, e);
}

int bpe_encode_spans(const vocab *v, const char *text, const bpe_span *span, size_t n_spans, bpe_ids *out, ds4_err *e)
{
    if (!n_spans)
        return 0;
    size_t len = span[n_spans - 1].end, had = out->n;
    if (len >= INT32_MAX)
        return ds4_fail(e, DS4_EARG, "text of %zu bytes is too long to tokenize (limit 2 GiB)", len);
    work w = {.v = v};
    int rc = encode_spans(&w, text, span, n_spans, out, e);
    free(w.s);
    free(w.heap);
    if (rc)
        out->n = had;
    return rc;
}

int bpe_encode(const vocab *v, const char *text, size_t len, bool parse_special, bpe_ids *out, ds4_err *e)
{
    bpe_span all = {len, parse_special};
    return bpe_encode_spans(v, text, &all, 1, out, e);
}
