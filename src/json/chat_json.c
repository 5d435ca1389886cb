#include "json/chat_json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json/chat_json_int.h"
#include "json/pyjson.h"

int doc_no_memory(ds4_err *e) { return ds4_fail(e, DS4_ENOMEM, "out of memory for the conversation"); }

int doc_own(chat_doc *d, void *p, ds4_err *e)
{
    if (p && d->n_owned == d->cap_owned) {
        size_t cap = d->cap_owned ? d->cap_owned * 2 : 64;
        void **q = realloc(d->owned, cap * sizeof *q);
        if (!q) {
            free(p);
            return doc_no_memory(e);
        }
        d->owned = q;
        d->cap_owned = cap;
    }
    if (!p)
        return doc_no_memory(e);
    d->owned[d->n_owned++] = p;
    return 0;
}

int doc_hold(chat_doc *d, json_t *v, ds4_err *e)
{
    if (d->n_held == d->cap_held) {
        size_t cap = d->cap_held ? d->cap_held * 2 : 64;
        json_t **q = realloc(d->held, cap * sizeof *q);
        if (!q) {
            json_decref(v);
            return doc_no_memory(e);
        }
        d->held = q;
        d->cap_held = cap;
    }
    d->held[d->n_held++] = v;
    return 0;
}

void chat_doc_free(chat_doc *d)
{
    for (size_t i = 0; i < d->n_owned; i++)
        free(d->owned[i]);
    for (size_t i = 0; i < d->n_held; i++)
        json_decref(d->held[i]);
    free(d->owned);
    free(d->held);
    free(d->msg);
    *d = (chat_doc){0};
}

int doc_dump(chat_doc *d, const json_t *v, chat_str *out, ds4_err *e)
{
    pyjson_buf b = {0};
    int rc = pyjson_dump(&b, v, e);
    if (rc) {
        free(b.p);
        return rc;
    }
    *out = (chat_str){b.p, b.n};
    return doc_own(d, b.p, e);
}

/* A member that is a name: string without NUL. Absent or null: *out = NULL. */
static int get_name(const json_t *obj, const char *key, const char **out, ds4_err *e)
{
    const json_t *v = json_object_get(obj, key);
    *out = NULL;
    if (!v || json_is_null(v))
        return 0;
    if (!pyjson_is_text(v) || memchr(json_string_value(v), 0, json_string_length(v)))
        return ds4_fail(e, DS4_EARG, "%s must be a string", key);
    *out = json_string_value(v);
    return 0;
}

static int read_effort(const json_t *root, enum chat_effort *out, ds4_err *e)
{
    const json_t *v = json_object_get(root, "reasoning_effort");
    const char *name;
    char num[24];
    if (json_is_integer(v)) {
        snprintf(num, sizeof num, "%lld", (long long)json_integer_value(v));
        return chat_effort_parse(num, out, e);
    }
    int rc = get_name(root, "reasoning_effort", &name, e);
    return rc || !name ? rc : chat_effort_parse(name, out, e);
}

static int read_options(const json_t *root, chat_opts *o, ds4_err *e)
{
    const char *mode, *release;
    const json_t *drop = json_object_get(root, "drop_thinking");
    int rc = get_name(root, "thinking_mode", &mode, e);
    rc = rc ? rc : get_name(root, "release", &release, e);
    rc = rc ? rc : read_effort(root, &o->effort, e);
    if (rc)
        return rc;
    if (mode && strcmp(mode, "thinking") && strcmp(mode, "chat"))
        return ds4_fail(e, DS4_EARG, "thinking_mode is \"%.40s\", expected thinking or chat", mode);
    if (mode)
        o->thinking = !strcmp(mode, "thinking");
    if (drop && !json_is_null(drop) && !json_is_boolean(drop))
        return ds4_fail(e, DS4_EARG, "drop_thinking must be true or false");
    if (json_is_boolean(drop))
        o->drop_thinking = json_is_true(drop);
    return release ? chat_release_parse(release, &o->release, e) : 0;
}

/* The schema that a request-level response_format asks for; NULL: free text. *made: a tree to hold. */
static const json_t *request_schema(const json_t *format, json_t **made)
{
    const json_t *type = json_object_get(format, "type");
    const json_t *wrapper = json_object_get(format, "json_schema");
    const char *t = json_is_string(type) ? json_string_value(type) : "";
    *made = NULL;
    if (!strcmp(t, "text"))
        return NULL;
    if (!strcmp(t, "json_object") && json_object_size(format) == 1)
        return *made = json_pack("{s:s}", "type", "object");
    if (!strcmp(t, "json_schema") && json_is_object(wrapper)) {
        const json_t *schema = json_object_get(wrapper, "schema");
        return schema ? schema : wrapper;
    }
    return format;
}

/* Appends request-level tools behind those that the message has. */
static int add_tools(chat_doc *d, chat_msg *m, const json_t *tools, ds4_err *e)
{
    chat_msg more = {0};
    int rc = doc_read_tools(d, tools, &more, "tools", e);
    if (rc || !more.n_tools)
        return rc;
    chat_str *all = calloc(m->n_tools + more.n_tools, sizeof *all);
    if ((rc = doc_own(d, all, e)))
        return rc;
    if (m->n_tools)
        memcpy(all, m->tool, m->n_tools * sizeof *all);
    memcpy(all + m->n_tools, more.tool, more.n_tools * sizeof *all);
    m->tool = all;
    m->n_tools += more.n_tools;
    return 0;
}

/* Tools and response format of the whole request, put on the system message at the front. d->msg has room for one more.
 */
static int read_request(chat_doc *d, const json_t *root, ds4_err *e)
{
    const json_t *tools = json_object_get(root, "tools"), *format = json_object_get(root, "response_format"),
                 *schema = NULL;
    json_t *made = NULL;
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return ds4_fail(e, DS4_EARG, "tools must be a list");
    if (format && !json_is_null(format)) {
        if (!json_is_object(format))
            return ds4_fail(e, DS4_EARG, "response_format must be an object");
        schema = request_schema(format, &made);
        int rc = made ? doc_hold(d, made, e) : 0;
        if (rc)
            return rc;
    }
    if (!json_array_size(tools) && !schema)
        return 0;
    if (!d->n || d->msg[0].role != CHAT_SYSTEM) {
        memmove(d->msg + 1, d->msg, d->n * sizeof *d->msg);
        d->msg[0] = (chat_msg){.role = CHAT_SYSTEM};
        d->n++;
    }
    int rc = tools ? add_tools(d, &d->msg[0], tools, e) : 0;
    return rc || !schema ? rc : doc_dump(d, schema, &d->msg[0].response_format, e);
}

int chat_json_read(json_t *root, const chat_opts *defaults, chat_doc *out, ds4_err *e)
{
    chat_doc d = {.opts = *defaults};
    const json_t *list = json_is_array(root) ? root : json_object_get(root, "messages");
    if (!json_is_array(list))
        return ds4_fail(e, DS4_EARG, "expected a list of messages, or an object with such a list as \"messages\"");
    int rc = doc_hold(&d, json_incref(root), e);
    size_t n = json_array_size(list);
    if (!rc && !(d.msg = calloc(n + 1, sizeof *d.msg)))
        rc = doc_no_memory(e);
    for (; !rc && d.n < n; d.n++)
        if ((rc = doc_read_message(&d, json_array_get(list, d.n), &d.msg[d.n], e)))
            ds4_wrap(e, "messages[%zu]", d.n);
    if (json_is_object(root)) {
        rc = rc ? rc : read_options(root, &d.opts, e);
        rc = rc ? rc : read_request(&d, root, e);
    }
    if (rc)
        chat_doc_free(&d);
    else
        *out = d;
    return rc;
}

int chat_json_parse(const char *text, size_t n, const chat_opts *defaults, chat_doc *out, ds4_err *e)
{
    json_t *root;
    int rc = pyjson_parse(text, n, &root, e);
    if (rc)
        return rc;
    rc = chat_json_read(root, defaults, out, e);
    json_decref(root);
    return rc;
}

static int read_file(const char *path, char **out, size_t *n, ds4_err *e)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return ds4_fail(e, DS4_EIO, "cannot open: %s", strerror(errno));
    size_t cap = 0;
    char *buf = NULL, *q;
    int rc = 0;
    *n = 0;
    do {
        cap = cap ? cap * 2 : 1u << 16;
        q = realloc(buf, cap);
        if (!q) {
            rc = doc_no_memory(e);
            break;
        }
        buf = q;
        *n += fread(buf + *n, 1, cap - *n, f);
    } while (*n == cap && cap <= PYJSON_MAX_BYTES);
    if (!rc && ferror(f))
        rc = ds4_fail(e, DS4_EIO, "cannot read: %s", strerror(errno));
    fclose(f);
    *out = buf;
    if (rc)
        free(buf);
    return rc;
}

static int render_text(const char *text, size_t n, const chat_opts *defaults, char **out, size_t *out_n, ds4_err *e)
{
    chat_doc d;
    chat_text t;
    int rc = chat_json_parse(text, n, defaults, &d, e);
    if (rc)
        return rc;
    rc = chat_render(d.msg, d.n, &d.opts, &t, e);
    chat_doc_free(&d);
    if (rc)
        return rc;
    *out = t.p;
    *out_n = t.n;
    free(t.span);
    return 0;
}

int chat_render_json_file(const char *path, const chat_opts *defaults, char **out, size_t *n, ds4_err *e)
{
    char *text = NULL;
    size_t len = 0;
    int rc = read_file(path, &text, &len, e);
    if (!rc) {
        rc = render_text(text, len, defaults, out, n, e);
        free(text);
    }
    if (rc)
        ds4_wrap(e, "%s", path);
    return rc;
}
