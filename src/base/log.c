#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

bool log_wants(const logger *l, enum log_level level) { return l && l->sink && level <= l->level; }

void log_write(const logger *l, enum log_level level, const char *fmt, ...)
{
    if (!log_wants(l, level))
        return;
    char line[1001];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (char *s = line; *s; s++)
        if ((unsigned char)*s < 32 || *s == 127)
            *s = ' ';
    l->sink(l->user, level, line);
}

bool log_allow(log_rate *r, double now, unsigned *suppressed)
{
    if (now < r->next) {
        r->held++;
        return false;
    }
    if (suppressed)
        *suppressed = r->held;
    r->held = 0;
    r->next = now + r->every;
    return true;
}
