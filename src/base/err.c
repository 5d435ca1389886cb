#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void one_line(char *s)
{
    for (; *s; s++)
        if (*s == '\n' || *s == '\r')
            *s = ' ';
}

int ds4_fail(ds4_err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        va_end(ap);
        one_line(e->msg);
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
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    memcpy(old, e->msg, sizeof old);
    int n = snprintf(e->msg, sizeof e->msg, "%s: ", head);
    if (n > 0 && (size_t)n < sizeof e->msg) {
        size_t room = sizeof e->msg - (size_t)n - 1, len = strlen(old);
        if (len > room)
            len = room;
        memcpy(e->msg + n, old, len);
        e->msg[(size_t)n + len] = 0;
    }
    one_line(e->msg);
    return e->code;
}
