#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "text/chat_turns.h"

/* Writing is sticky: after the first failure nothing more is written and rc tells it at the end. */
typedef struct writer {
    chat_text *t;
    const chat_opts *o;
    bool thinking;
    int rc;
} writer;

static int grow(void **p, size_t *cap, size_t need, size_t item)
{
    if (need <= *cap)
        return 0;
    size_t want = need < 256 ? 256 : need + need / 2;
    void *q = want < need || want > SIZE_MAX / item ? NULL : realloc(*p, want * item);
    if (!q)
        return -1;
    *p = q;
    *cap = want;
    return 0;
}

static void put(writer *w, const char *p, size_t n, bool template)
{
    chat_text *t = w->t;
    if (w->rc || !n)
        return;
    if (n > SIZE_MAX - t->n - 1 || grow((void **)&t->p, &t->cap, t->n + n + 1, 1) ||
        grow((void **)&t->span, &t->cap_spans, t->n_spans + 1, sizeof *t->span)) {
        w->rc = DS4_ENOMEM;
        return;
    }
    memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = 0;
    if (!t->n_spans || t->span[t->n_spans - 1].template != template)
        t->n_spans++;
    t->span[t->n_spans - 1] = (bpe_span){t->n, template};
}

static void put_client(writer *w, chat_str s) { put(w, s.p, s.n, false); }
static void put_fixed(writer *w, const char *s) { put(w, s, strlen(s), true); }
static void put_part(writer *w, enum protocol_part i) { put(w, w->o->proto->text[i], w->o->proto->n[i], true); }

static void put_special(writer *w, enum vocab_special which)
{
    put_fixed(w, vocab_special_text(which));
    w->t->uses |= 1u << which;
}

/* <DSML-word, also with a slash. */
static void put_tag(writer *w, const char *open, const char *word)
{
    put_fixed(w, open);
    put_special(w, SP_DSML);
    put_fixed(w, word);
}

static void put_call(writer *w, const chat_call *c)
{
    put_tag(w, "<", "invoke name=\"");
    put_client(w, c->name);
    put_fixed(w, "\">\n");
    for (size_t i = 0; i < c->n_params; i++) {
        const chat_param *p = &c->param[i];
        put_tag(w, i ? "\n<" : "<", "parameter name=\"");
        put_client(w, p->name);
        put_fixed(w, p->is_string ? "\" string=\"true\">" : "\" string=\"false\">");
        put_client(w, p->value);
        put_tag(w, "</", "parameter>");
    }
    put_tag(w, "\n</", "invoke>");
}

static void put_calls(writer *w, const chat_msg *m)
{
    if (!m->n_calls)
        return;
    put_tag(w, "\n\n<", "tool_calls>\n");
    for (size_t i = 0; i < m->n_calls; i++) {
        if (i)
            put_fixed(w, "\n");
        put_call(w, &m->call[i]);
    }
    put_tag(w, "\n</", "tool_calls>");
}

/* What a system or developer message says: its text, the tools, the response format. */
static void put_instructions(writer *w, const chat_msg *m)
{
    put_client(w, m->content);
    if (m->n_tools) {
        put_fixed(w, "\n\n");
        put_part(w, PROTO_TOOLS_PREFIX);
        w->t->uses |= 1u << SP_DSML;
        for (size_t i = 0; i < m->n_tools; i++) {
            if (i)
                put_fixed(w, "\n");
            put_client(w, m->tool[i]);
        }
        put_part(w, PROTO_TOOLS_SUFFIX);
    }
    if (m->response_format.n) {
        put_fixed(w, "\n\n");
        put_part(w, PROTO_RESPONSE);
        put_client(w, m->response_format);
    }
}

static void put_user(writer *w, const turn *u)
{
    put_special(w, SP_USER);
    for (size_t i = 0; i < u->n; i++) {
        bool tool = u->part[i]->role == CHAT_TOOL;
        if (i)
            put_fixed(w, "\n\n");
        if (tool)
            put_fixed(w, "<tool_result>");
        put_client(w, u->part[i]->content);
        if (tool)
            put_fixed(w, "</tool_result>");
    }
}

/* `thoughts`: this turn was opened with <think>. */
static void put_assistant(writer *w, const chat_msg *m, bool thoughts)
{
    if (thoughts) {
        put_client(w, m->reasoning);
        put_special(w, SP_THINK_END);
    }
    put_client(w, m->content);
    put_calls(w, m);
    if (!m->wo_eos)
        put_special(w, SP_EOS);
}

/* What stands between a turn and the assistant's answer to it. The tag of an action task depends on the mode alone, so
 * that the turn reads the same when it has become history. */
static void put_transition(writer *w, const turns *t, size_t i)
{
    const turn *u = &t->turn[i];
    if (i + 1 < t->n && t->turn[i + 1].role != CHAT_ASSISTANT && t->turn[i + 1].role != CHAT_REMINDER)
        return;
    if (u->task == CHAT_ACTION) {
        put_special(w, SP_ASSISTANT);
        put_special(w, w->thinking ? SP_THINK : SP_THINK_END);
    }
    if (u->task != CHAT_NO_TASK) {
        put_special(w, (enum vocab_special)(SP_ACTION + (u->task - CHAT_ACTION)));
    } else if (u->role == CHAT_USER || u->role == CHAT_DEVELOPER) {
        put_special(w, SP_ASSISTANT);
        put_special(w, w->thinking && (!t->drop || (ptrdiff_t)i >= t->last) ? SP_THINK : SP_THINK_END);
    }
}

static void put_turn(writer *w, const turns *t, size_t i)
{
    const turn *u = &t->turn[i];
    bool after_task = i > 0 && t->turn[i - 1].task != CHAT_NO_TASK;
    switch (u->role) {
    case CHAT_SYSTEM:
        put_instructions(w, u->part[0]);
        break;
    case CHAT_DEVELOPER:
        put_special(w, SP_USER);
        put_instructions(w, u->part[0]);
        break;
    case CHAT_REMINDER:
        put_special(w, SP_REMINDER);
        put_client(w, u->part[0]->content);
        break;
    case CHAT_ASSISTANT:
        put_assistant(w, u->part[0], w->thinking && !after_task && (!t->drop || (ptrdiff_t)i > t->last));
        break;
    default:
        put_user(w, u);
    }
    put_transition(w, t, i);
}

static int check(const chat_msg *m, size_t i, ds4_err *e)
{
    bool instructs = m->role == CHAT_SYSTEM || m->role == CHAT_DEVELOPER;
    if (!instructs && (m->n_tools || m->response_format.n))
        return ds4_fail(e, DS4_EARG, "messages[%zu]: tools and response_format belong to a system or developer message",
                        i);
    if (m->role != CHAT_ASSISTANT && (m->n_calls || m->wo_eos))
        return ds4_fail(e, DS4_EARG, "messages[%zu]: only an assistant message can have tool calls or stay open", i);
    return 0;
}

int chat_render(const chat_msg *msg, size_t n, const chat_opts *opts, chat_text *out, ds4_err *e)
{
    int rc = n ? 0 : ds4_fail(e, DS4_EARG, "there are no messages to render");
    for (size_t i = 0; !rc && i < n; i++)
        rc = check(&msg[i], i, e);
    if (rc)
        return rc;
    turns t;
    writer w = {out, opts, opts->thinking && opts->effort != CHAT_EFFORT_OFF, 0};
    rc = turns_make(&t, msg, n, w.thinking && opts->drop_thinking, e);
    if (rc)
        return rc;
    *out = (chat_text){0};
    put_special(&w, SP_BOS);
    enum protocol_part effort = chat_effort_text(opts);
    if (effort != PROTO_COUNT)
        put_part(&w, effort);
    for (size_t i = 0; i < t.n; i++)
        put_turn(&w, &t, i);
    turns_free(&t);
    if (!w.rc)
        return 0;
    chat_text_free(out);
    return ds4_fail(e, w.rc, "out of memory for the rendered prompt");
}

void chat_text_free(chat_text *t)
{
    free(t->p);
    free(t->span);
    *t = (chat_text){0};
}

int chat_encode(const vocab *v, const chat_text *t, bpe_ids *out, ds4_err *e)
{
    for (int i = 0; i < SP_COUNT; i++)
        if ((t->uses >> i & 1) && vocab_special(v, (enum vocab_special)i) < 0)
            return ds4_fail(e, DS4_EMODEL, "the model's vocabulary has no token \"%s\", which these messages need",
                            vocab_special_text((enum vocab_special)i));
    return bpe_encode_spans(v, t->p, t->span, t->n_spans, out, e);
}
