#include "app/cli_term.h"

#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { BAR = 30 };
static const double redraw_every = 0.1, line_every = 5.0;

void cli_progress_init(cli_progress *p, FILE *out, const char *program)
{
    *p = (cli_progress){.out = out, .terminal = isatty(fileno(out)), .program = program};
}

const char *cli_bytes(uint64_t n, char *buf, size_t cap)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    double x = (double)n;
    size_t i = 0;
    while (x >= 1000 && i + 1 < sizeof unit / sizeof *unit) {
        x /= 1000;
        i++;
    }
    snprintf(buf, cap, i ? "%.1f %s" : "%.0f %s", x, unit[i]);
    return buf;
}

void cli_progress_clear(cli_progress *p)
{
    if (p->shown)
        fputs("\r\033[K", p->out);
    p->shown = false;
    fflush(p->out);
}

static void amount(const char *what, uint64_t done, uint64_t total, char *buf, size_t cap)
{
    char a[32], b[32];
    if (!strcmp(what, "load"))
        snprintf(buf, cap, "%s of %s", cli_bytes(done, a, sizeof a), cli_bytes(total, b, sizeof b));
    else
        snprintf(buf, cap, "%llu of %llu tokens", (unsigned long long)done, (unsigned long long)total);
}

static void draw(cli_progress *p, const char *what, uint64_t done, uint64_t total)
{
    char text[80], bar[BAR + 1];
    int full = total ? (int)((double)done / (double)total * BAR) : BAR;
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)(full > BAR ? BAR : full));
    bar[BAR] = 0;
    amount(what, done, total, text, sizeof text);
    fprintf(p->out, "\r\033[K%-6s [%s] %s", what, bar, text);
    fflush(p->out);
    p->shown = true;
}

void cli_progress_step(cli_progress *p, const char *what, uint64_t done, uint64_t total)
{
    double now = clock_now(), every = p->terminal ? redraw_every : line_every;
    if (p->start == 0 || done < p->last) {
        p->start = now;
        p->next = now + every;
    }
    p->last = done;
    if (done >= total) {
        cli_progress_clear(p);
        p->start = 0;
        return;
    }
    if (now < p->next)
        return;
    p->next = now + every;
    if (p->terminal) {
        draw(p, what, done, total);
    } else {
        char text[80];
        amount(what, done, total, text, sizeof text);
        fprintf(p->out, "%s: %s: %s\n", p->program, what, text);
        fflush(p->out);
    }
}

void cli_hold_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd ? O_RDONLY : O_WRONLY); /* the lowest free number: this one */
}

void cli_say(const char *program, const char *fmt, ...)
{
    char line[2000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (char *s = line; *s; s++)
        if ((unsigned char)*s < 32 || *s == 127)
            *s = ' ';
    fprintf(stderr, "%s: %s\n", program, line);
}
