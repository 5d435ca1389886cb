#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Control bytes (a name from a file may hold any) become spaces: a line stays one and cannot drive a terminal. */
static void one_line(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 32 || *s == 127)
            *s = ' ';
}

/* Removes a UTF-8 sequence that was cut at the end of a full buffer. */
static void trim_cut_char(char *s)
{
    size_t n = strlen(s), back = 0;
    while (back < n && back < 3 && ((unsigned char)s[n - 1 - back] & 0xc0) == 0x80)
        back++;
    if (back >= n)
        return;
    unsigned char lead = (unsigned char)s[n - 1 - back];
    size_t want = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (want > back + 1)
        s[n - 1 - back] = 0;
}

static void store(ds4_err *e, const char *head, const char *tail)
{
    int n = snprintf(e->msg, sizeof e->msg, "%s%s", head, tail);
    one_line(e->msg);
    if (n >= (int)sizeof e->msg)
        trim_cut_char(e->msg);
}

int ds4_fail(ds4_err *e, int code, const char *fmt, ...)
{
    if (e) {
        /* apart from e->msg, which may be an argument; one longer than fits, so that store sees the cut */
        char text[sizeof e->msg + 1];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        store(e, text, "");
        e->code = code;
    }
    return code;
}

int ds4_wrap(ds4_err *e, const char *fmt, ...)
{
    if (!e)
        return DS4_EIO;
    char head[250], old[sizeof e->msg];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(head, sizeof head - 2, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof head - 2)
        trim_cut_char(head);
    strcat(head, ": ");
    memcpy(old, e->msg, sizeof old);
    store(e, head, old);
    return e->code;
}
