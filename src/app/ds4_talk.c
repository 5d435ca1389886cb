#include "app/ds4_talk.h"

#include <stdlib.h>
#include <string.h>

#include "app/cli_term.h"
#include "file/gguf.h"

static int settle_release(talk *t, const ds4_opts *o, ds4_err *e)
{
    gguf *g;
    t->opts.release = o->release == 2 ? CHAT_0731 : CHAT_PREVIEW;
    if (o->release || !o->model)
        return 0;
    int rc = gguf_open(&g, o->model, e);
    if (rc)
        return rc;
    t->opts.release = chat_release_guess(g);
    gguf_close(g);
    return 0;
}

/* Says so if the effort asked for is written in words that are not DeepSeek's. */
static void mention_texts(const talk *t)
{
    char line[500];
    enum protocol_part part = chat_effort_text(&t->opts);
    if (part == PROTO_COUNT || t->proto.origin[part] == PROTO_OFFICIAL || !t->proto.n[part])
        return;
    if (protocol_notice(&t->proto, line, sizeof line))
        cli_say(PROGRAM, "%s", line);
}

int talk_open(talk *t, const ds4_opts *o, ds4_err *e)
{
    *t = (talk){.opts = {.thinking = o->thinking != THINKING_OFF && o->effort != CHAT_EFFORT_OFF,
                         .drop_thinking = true, .effort = o->effort, .proto = &t->proto}};
    int rc = protocol_load(&t->proto, o->protocol, o->model, e);
    if (!rc)
        rc = settle_release(t, o, e);
    if (!rc && o->system)
        rc = talk_add(t, CHAT_SYSTEM, o->system, strlen(o->system), NULL, 0, e);
    if (rc)
        talk_close(t);
    else
        mention_texts(t);
    return rc;
}

static void free_msg(chat_msg *m)
{
    free((char *)m->content.p);
    free((char *)m->reasoning.p);
}

void talk_close(talk *t)
{
    for (size_t i = 0; i < t->n; i++)
        free_msg(&t->msg[i]);
    free(t->msg);
    protocol_free(&t->proto);
    *t = (talk){0};
}

static char *copy(const char *p, size_t n)
{
    char *s = malloc(n + 1);
    if (s) {
        if (n)
            memcpy(s, p, n);
        s[n] = 0;
    }
    return s;
}

int talk_add(talk *t, enum chat_role role, const char *content, size_t n, const char *reasoning, size_t n_reasoning,
             ds4_err *e)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 16;
        chat_msg *more = realloc(t->msg, cap * sizeof *more);
        if (!more)
            return ds4_fail(e, DS4_ENOMEM, "no memory for the conversation");
        t->msg = more;
        t->cap = cap;
    }
    chat_msg m = {
        .role = role, .content = {copy(content, n), n}, .reasoning = {copy(reasoning, n_reasoning), n_reasoning}};
    if (!m.content.p || !m.reasoning.p) {
        free_msg(&m);
        return ds4_fail(e, DS4_ENOMEM, "no memory for the conversation");
    }
    t->msg[t->n++] = m;
    return 0;
}

void talk_drop(talk *t)
{
    if (t->n)
        free_msg(&t->msg[--t->n]);
}

void talk_reset(talk *t)
{
    while (t->n && t->msg[t->n - 1].role != CHAT_SYSTEM)
        talk_drop(t);
}

int talk_encode(const talk *t, const vocab *v, bpe_ids *out, ds4_err *e)
{
    chat_text text = {0};
    int rc = chat_render(t->msg, t->n, &t->opts, &text, e);
    out->n = 0;
    if (!rc)
        rc = chat_encode(v, &text, out, e);
    chat_text_free(&text);
    return rc;
}
