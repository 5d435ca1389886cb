#include "text/detok.h"

#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"

static const char replacement[3] = {(char)0xEF, (char)0xBF, (char)0xBD};

void detok_init(detok *d, const vocab *v, bool show_added) { *d = (detok){.v = v, .show_added = show_added}; }

void detok_free(detok *d)
{
    free(d->buf);
    d->buf = NULL;
    d->cap = d->n_held = 0;
}

/* Every byte that comes in can leave as three (U+FFFD). */
static int reserve(detok *d, size_t bytes_in, ds4_err *e)
{
    if (bytes_in > (SIZE_MAX - 64) / 3)
        return ds4_fail(e, DS4_ENOMEM, "out of memory for detokenizing %zu bytes", bytes_in);
    size_t need = 3 * bytes_in + 64;
    if (need <= d->cap)
        return 0;
    char *p = realloc(d->buf, need);
    if (!p)
        return ds4_fail(e, DS4_ENOMEM, "out of memory for detokenizing %zu bytes", bytes_in);
    d->buf = p;
    d->cap = need;
    return 0;
}

static size_t put(detok *d, size_t out, const void *p, size_t n)
{
    memcpy(d->buf + out, p, n);
    return out + n;
}

/* Completes or gives up the held bytes with bytes from p[*i..len). Returns the new output length. */
static size_t drain_held(detok *d, const uint8_t *p, size_t len, size_t *i, size_t out)
{
    uint32_t cp;
    while (d->n_held && *i < len) {
        d->held[d->n_held] = p[*i];
        int k = utf8_step(d->held, d->n_held + 1, &cp);
        if (k < 0) { /* the held bytes are the whole subpart; the new byte is looked at afresh */
            out = put(d, out, replacement, 3);
            d->n_held = 0;
            return out;
        }
        ++*i;
        if (k == 0) {
            d->n_held++;
            continue;
        }
        out = put(d, out, d->held, (size_t)k);
        d->n_held = 0;
    }
    return out;
}

static size_t feed(detok *d, const uint8_t *p, size_t len, size_t out)
{
    size_t i = 0;
    uint32_t cp;
    out = drain_held(d, p, len, &i, out);
    while (i < len) {
        int k = utf8_step(p + i, len - i, &cp);
        if (k == 0) {
            d->n_held = len - i;
            memcpy(d->held, p + i, d->n_held);
            break;
        }
        out = k > 0 ? put(d, out, p + i, (size_t)k) : put(d, out, replacement, 3);
        i += (size_t)(k > 0 ? k : -k);
    }
    return out;
}

static size_t give_up_held(detok *d, size_t out)
{
    if (d->n_held)
        out = put(d, out, replacement, 3);
    d->n_held = 0;
    return out;
}

static int hand_out(detok *d, size_t out, const char **text, size_t *n)
{
    d->buf[out] = 0;
    *text = d->buf;
    *n = out;
    return 0;
}

int detok_bytes(detok *d, const char *p, size_t len, const char **text, size_t *n, ds4_err *e)
{
    int rc = reserve(d, len, e);
    return rc ? rc : hand_out(d, feed(d, (const uint8_t *)p, len, 0), text, n);
}

int detok_push(detok *d, int32_t id, const char **text, size_t *n, ds4_err *e)
{
    if (id < 0 || (uint32_t)id >= vocab_size(d->v))
        return ds4_fail(e, DS4_EARG, "token id %d is outside the vocabulary (0 to %u)", id, vocab_size(d->v) - 1);
    size_t len, out = 0;
    const char *p = vocab_bytes(d->v, id, &len);
    int rc = reserve(d, len, e);
    if (rc)
        return rc;
    if (vocab_type_of(d->v, id) != VOCAB_NORMAL) {
        out = give_up_held(d, out);
        if (!d->show_added)
            len = 0;
    }
    return hand_out(d, feed(d, (const uint8_t *)p, len, out), text, n);
}

int detok_flush(detok *d, const char **text, size_t *n, ds4_err *e)
{
    int rc = reserve(d, 0, e);
    return rc ? rc : hand_out(d, give_up_held(d, 0), text, n);
}
