#define _GNU_SOURCE
#include "app/ds4_line.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "app/cli_signal.h"

enum { MOST_LINES = 1000 };

struct line_reader {
    EditLine *el; /* NULL: standard input is no terminal */
    History *past;
    char path[PATH_MAX]; /* of the history; empty: none */
    char *line;          /* plain reading */
    size_t cap;
    sigset_t waiting; /* signals blocked while a key is awaited: not SIGINT */
};

static char *prompt(EditLine *el)
{
    static const char text[] = "> ";
    (void)el;
    return (char *)text;
}

/* Waits for one character. SIGINT is blocked except during the wait itself: a Ctrl-C between the look whether there was
 * one and a plain read would be noticed only after the next key. */
static int get_character(EditLine *el, wchar_t *out)
{
    struct line_reader *l;
    mbstate_t state = {0};
    el_get(el, EL_CLIENTDATA, &l);
    for (;;) {
        struct pollfd key = {.fd = STDIN_FILENO, .events = POLLIN};
        char c;
        if (ppoll(&key, 1, NULL, &l->waiting) < 0) {
            if (errno == EINTR && !cli_signal_seen())
                continue;
            return -1;
        }
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return (int)n;
        size_t k = mbrtowc(out, &c, 1, &state);
        if (k != (size_t)-1 && k != (size_t)-2)
            return 1;
        if (k == (size_t)-1)
            state = (mbstate_t){0}; /* no character: the byte is dropped */
    }
}

static void choose_history(line_reader *l, const char *path)
{
    const struct passwd *me = path ? NULL : getpwuid(getuid());
    if (path)
        snprintf(l->path, sizeof l->path, "%s", path);
    else if (me && me->pw_dir)
        snprintf(l->path, sizeof l->path, "%s/.ds4_history", me->pw_dir);
}

static int open_terminal(line_reader *l, const char *program, const char *past, ds4_err *e)
{
    HistEvent ev;
    /* Characters of more than one byte are edited as one; numbers keep their C form. */
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8"))
        setlocale(LC_CTYPE, "C.UTF-8");
    l->el = el_init(program, stdin, stdout, stderr);
    l->past = history_init();
    if (!l->el || !l->past)
        return ds4_fail(e, DS4_EIO, "line editing does not start on this terminal");
    choose_history(l, past);
    history(l->past, &ev, H_SETSIZE, MOST_LINES);
    history(l->past, &ev, H_SETUNIQUE, 1);
    if (*l->path)
        history(l->past, &ev, H_LOAD, l->path);
    el_set(l->el, EL_PROMPT, prompt);
    el_set(l->el, EL_EDITOR, "emacs");
    el_set(l->el, EL_HIST, history, l->past);
    el_set(l->el, EL_SIGNAL, 0);
    el_set(l->el, EL_CLIENTDATA, l);
    el_set(l->el, EL_GETCFN, get_character);
    return 0;
}

int line_open(line_reader **out, const char *program, const char *past, ds4_err *e)
{
    line_reader *l = calloc(1, sizeof *l);
    if (!l)
        return ds4_fail(e, DS4_ENOMEM, "no memory for the line editor");
    int rc = isatty(STDIN_FILENO) ? open_terminal(l, program, past, e) : 0;
    if (rc)
        line_close(l);
    else
        *out = l;
    return rc;
}

static const char *read_plain(line_reader *l)
{
    ssize_t n = getline(&l->line, &l->cap, stdin);
    if (n < 0)
        return NULL;
    l->line[strcspn(l->line, "\n")] = 0;
    return l->line;
}

static char *keep(line_reader *l, const char *s, size_t n)
{
    free(l->line);
    l->line = strndup(s, n);
    return l->line;
}

/* A Ctrl-C that comes after the line is complete belongs to its answer: it is seen when the mask is restored. */
static const char *edit(line_reader *l, int *n, bool *interrupted)
{
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    l->waiting = before;
    sigdelset(&l->waiting, SIGINT);
    cli_signal_clear();
    el_set(l->el, EL_PREP_TERM, 1); /* before the prompt is seen: a Ctrl-D typed in the other mode would be lost */
    const char *s = el_gets(l->el, n);
    *interrupted = cli_signal_seen();
    cli_signal_clear();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return s;
}

const char *line_read(line_reader *l, bool *interrupted)
{
    int n = 0;
    HistEvent ev;
    *interrupted = false;
    if (!l->el) {
        cli_signal_clear();
        return read_plain(l);
    }
    const char *s = edit(l, &n, interrupted);
    if (*interrupted) {
        el_reset(l->el);
        fputs("^C\n", stdout);
        return "";
    }
    if (!s || n <= 0) {
        fputc('\n', stdout);
        return NULL;
    }
    s = keep(l, s, strcspn(s, "\n"));
    if (s && *s)
        history(l->past, &ev, H_ENTER, s);
    return s;
}

bool line_terminal(const line_reader *l) { return l->el != NULL; }

void line_close(line_reader *l)
{
    HistEvent ev;
    if (!l)
        return;
    if (l->past && *l->path)
        history(l->past, &ev, H_SAVE, l->path);
    if (l->past)
        history_end(l->past);
    if (l->el)
        el_end(l->el);
    free(l->line);
    free(l);
}
