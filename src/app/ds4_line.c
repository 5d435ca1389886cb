#define _GNU_SOURCE
#include "app/ds4_line.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/cli_signal.h"

enum { MOST_LINES = 1000 };

struct line_reader {
    EditLine *el; /* NULL: standard input is no terminal */
    History *past;
    char path[PATH_MAX]; /* of the history; empty: none */
    char *line;          /* plain reading */
    size_t cap;
};

static char *prompt(EditLine *el)
{
    static const char text[] = "> ";
    (void)el;
    return (char *)text;
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

const char *line_read(line_reader *l, bool *interrupted)
{
    int n = 0;
    HistEvent ev;
    *interrupted = false;
    cli_signal_clear();
    if (!l->el)
        return read_plain(l);
    const char *s = el_gets(l->el, &n);
    if (cli_signal_seen()) {
        cli_signal_clear();
        el_reset(l->el);
        fputs("^C\n", stdout);
        *interrupted = true;
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
