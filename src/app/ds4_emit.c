#include "app/ds4_emit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put(emit *m, const char *s, size_t n)
{
    if (!n)
        return;
    fwrite(s, 1, n, m->out);
    m->last = s[n - 1];
}

static void colour(emit *m, const char *code)
{
    if (m->terminal)
        fputs(code, m->out);
}

static void begin_thought(emit *m)
{
    m->thinking = true;
    colour(m, "\033[2m");
    if (!m->terminal)
        put(m, "<think>", 7);
}

static void end_thought(emit *m)
{
    m->thinking = false;
    if (!m->terminal) {
        put(m, "</think>", 8);
        return;
    }
    colour(m, "\033[0m");
    if (m->last && m->last != '\n')
        put(m, "\n", 1);
}

void emit_open(emit *m, const vocab *v, FILE *out, bool thinking, bool raw)
{
    *m = (emit){.out = out, .terminal = isatty(fileno(out)), .raw = raw,
                .think = vocab_special(v, SP_THINK), .think_end = vocab_special(v, SP_THINK_END)};
    detok_init(&m->d, v, true);
    if (thinking)
        begin_thought(m);
}

static void put_safely(emit *m, const char *s, size_t n)
{
    size_t from = 0;
    for (size_t i = 0; m->terminal && i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if ((c >= 32 && c != 127) || c == '\n' || c == '\t')
            continue;
        put(m, s + from, i - from);
        put(m, "\xEF\xBF\xBD", 3);
        from = i + 1;
    }
    put(m, s + from, n - from);
}

static int write_text(emit *m, const char *s, size_t n, ds4_err *e)
{
    put_safely(m, s, n);
    return pyjson_put(m->thinking ? &m->reasoning : &m->content, s, n, e);
}

/* A think tag: what is held back belongs to the part before it. */
static int switch_part(emit *m, bool thinking, ds4_err *e)
{
    const char *s;
    size_t n;
    int rc = detok_flush(&m->d, &s, &n, e);
    if (!rc)
        rc = write_text(m, s, n, e);
    if (thinking)
        begin_thought(m);
    else
        end_thought(m);
    return rc;
}

int emit_token(emit *m, int32_t id, ds4_err *e)
{
    const char *s;
    size_t n;
    int rc;
    if (!m->raw && id == (m->thinking ? m->think_end : m->think)) {
        rc = switch_part(m, !m->thinking, e);
    } else {
        rc = detok_push(&m->d, id, &s, &n, e);
        if (!rc)
            rc = write_text(m, s, n, e);
    }
    if (fflush(m->out) && !rc)
        rc = ds4_fail(e, DS4_EIO, "standard output is closed or full");
    return rc;
}

int emit_end(emit *m, ds4_err *e)
{
    const char *s;
    size_t n;
    int rc = detok_flush(&m->d, &s, &n, e);
    if (!rc)
        rc = write_text(m, s, n, e);
    if (m->thinking)
        colour(m, "\033[0m");
    if (m->last && m->last != '\n')
        put(m, "\n", 1);
    if (fflush(m->out) && !rc)
        rc = ds4_fail(e, DS4_EIO, "standard output is closed or full");
    return rc;
}

void emit_close(emit *m)
{
    detok_free(&m->d);
    free(m->reasoning.p);
    free(m->content.p);
}
