#include "app/ds4_chat.h"

#include <stdlib.h>
#include <string.h>

#include "app/cli_signal.h"
#include "app/ds4_app.h"
#include "app/ds4_line.h"
#include "app/ds4_talk.h"
#include "base/fsio.h"

enum { MOST_BYTES = 64 << 20 };

typedef struct chat {
    const ds4_opts *o;
    app a;
    talk t;
    bpe_ids ids;
    line_reader *lines;
    bool over;
} chat;

static void help(void)
{
    fputs("  /help       this text\n"
          "  /think      think before answering\n"
          "  /nothink    answer at once\n"
          "  /ctx [N]    how much of the context is used; N: change it (the conversation is read again)\n"
          "  /read FILE  send the text of a file\n"
          "  /reset      begin anew\n"
          "  /quit       leave (so does Ctrl-D); Ctrl-C stops an answer\n",
          stderr);
}

/* What the answer becomes in the history: thoughts and text apart. */
static int remember(chat *c, const emit *m, ds4_err *e)
{
    return talk_add(&c->t, CHAT_ASSISTANT, m->content.p, m->content.n, m->reasoning.p, m->reasoning.n, e);
}

static int generate(chat *c, ds4_err *e)
{
    emit m;
    emit_open(&m, c->a.words, stdout, c->t.opts.thinking, false);
    int rc = app_generate(&c->a, &m, NULL, e);
    int end = emit_end(&m, rc ? NULL : e);
    if (!rc)
        rc = end;
    if (!rc)
        rc = remember(c, &m, e);
    emit_close(&m);
    return rc;
}

/* One turn: the user's text, then the answer. On failure the conversation is as before. */
static int turn(chat *c, const char *text, size_t n, ds4_err *e)
{
    int rc = talk_add(&c->t, CHAT_USER, text, n, NULL, 0, e);
    if (rc)
        return rc;
    rc = talk_encode(&c->t, c->a.words, &c->ids, e);
    if (!rc)
        rc = app_sync(&c->a, &c->ids, e);
    if (!rc)
        rc = generate(c, e);
    if (rc) {
        talk_drop(&c->t);
        return rc;
    }
    if (cli_signal_seen())
        cli_say(PROGRAM, "stopped");
    else if (c->a.result.finish == DS4_FINISH_CONTEXT)
        cli_say(PROGRAM, "the context of %d tokens is full: /reset, or /ctx N for a larger one", c->a.info.ctx);
    app_report(&c->a);
    return 0;
}

static int send_file(chat *c, const char *path, ds4_err *e)
{
    char *text;
    size_t n;
    if (!*path)
        return ds4_fail(e, DS4_EARG, "/read needs a file name");
    int rc = fsio_read(path, MOST_BYTES, &text, &n, e);
    if (rc)
        return rc;
    rc = turn(c, text, n, e);
    free(text);
    return rc;
}

static int change_context(chat *c, const char *arg, ds4_err *e)
{
    char *end;
    long n = strtol(arg, &end, 10);
    if (!*arg) {
        cli_say(PROGRAM, "%d of %d tokens are used", ds4_session_pos(c->a.ses), c->a.info.ctx);
        return 0;
    }
    if (*end || n < 1 || n > 1 << 30)
        return ds4_fail(e, DS4_EARG, "/ctx: '%.40s' is no number of tokens", arg);
    int before = c->a.info.ctx;
    ds4_opts plain = *c->o;
    plain.load = NULL;
    app_close(&c->a);
    int rc = app_open(&c->a, &plain, (int)n, e);
    if (rc && app_open(&c->a, &plain, before, NULL)) {
        c->over = true;
        return rc;
    }
    c->a.o = c->o;
    cli_say(PROGRAM, "context: %d tokens%s", c->a.info.ctx,
            c->t.n > 0 ? "; the conversation is read again at the next turn" : "");
    return rc;
}

static int reset(chat *c, ds4_err *e)
{
    talk_reset(&c->t);
    c->a.start = 0;
    c->a.answer.n = 0;
    int rc = ds4_session_reset(c->a.ses, e);
    if (!rc)
        cli_say(PROGRAM, "a new conversation begins");
    return rc;
}

static void set_thinking(chat *c, bool on)
{
    c->t.opts.thinking = on;
    cli_say(PROGRAM, "%s", on ? "thinking before answers" : "answering at once");
}

static bool is_command(const char *line, const char *name, const char **arg)
{
    size_t n = strlen(name);
    if (strncmp(line, name, n) || (line[n] && line[n] != ' ' && line[n] != '\t'))
        return false;
    *arg = line + n + strspn(line + n, " \t");
    return true;
}

static int command(chat *c, const char *line, ds4_err *e)
{
    const char *arg;
    if (is_command(line, "/help", &arg))
        help();
    else if (is_command(line, "/think", &arg) || is_command(line, "/nothink", &arg))
        set_thinking(c, line[1] == 't');
    else if (is_command(line, "/ctx", &arg))
        return change_context(c, arg, e);
    else if (is_command(line, "/read", &arg))
        return send_file(c, arg, e);
    else if (is_command(line, "/reset", &arg))
        return reset(c, e);
    else if (is_command(line, "/quit", &arg) || is_command(line, "/exit", &arg))
        c->over = true;
    else
        return ds4_fail(e, DS4_EARG, "no such command: %.40s (/help lists them)", line);
    return 0;
}

static int loop(chat *c)
{
    while (!c->over) {
        bool interrupted;
        ds4_err e = {0};
        const char *line = line_read(c->lines, &interrupted);
        if (!line)
            break;
        if (!line[strspn(line, " \t\r")])
            continue;
        int rc = line[0] == '/' ? command(c, line, &e) : turn(c, line, strlen(line), &e);
        if (!rc)
            continue;
        cli_say(PROGRAM, "%s", rc == DS4_ECANCEL ? "stopped" : e.msg);
        if (!line_terminal(c->lines) || rc == DS4_EBACKEND)
            return 1;
    }
    return 0;
}

static int begin(chat *c, ds4_err *e)
{
    int rc = app_open(&c->a, c->o, c->o->ctx, e);
    if (!rc)
        rc = talk_open(&c->t, c->o, e);
    if (!rc)
        rc = line_open(&c->lines, PROGRAM, c->o->history, e);
    return rc;
}

int ds4_chat(const ds4_opts *o)
{
    chat c = {.o = o};
    ds4_err e = {0};
    int rc = begin(&c, &e), status = 0;
    if (!rc) {
        if (line_terminal(c.lines))
            cli_say(PROGRAM, "%s, context %d tokens, %s. /help lists commands, Ctrl-D leaves.", o->model, c.a.info.ctx,
                    c.t.opts.thinking ? "thinking" : "not thinking");
        cli_signal_catch();
        status = loop(&c);
        if (o->save && c.a.ses)
            rc = app_save(&c.a, o->save, &e);
    }
    if (rc)
        cli_say(PROGRAM, "%s", e.msg);
    line_close(c.lines);
    talk_close(&c.t);
    bpe_ids_free(&c.ids);
    app_close(&c.a);
    return rc ? 1 : status;
}
