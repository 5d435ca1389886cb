/* chat_json_msg.c: one JSON message to one chat_msg. */
#include <stdlib.h>
#include <string.h>

#include "json/chat_json_int.h"
#include "json/pyjson.h"

static chat_str str_of(const json_t *v) { return (chat_str){json_string_value(v), json_string_length(v)}; }

static bool absent(const json_t *v) { return !v || json_is_null(v); }

/* An optional string member. */
static int get_str(const json_t *obj, const char *key, chat_str *out, ds4_err *e)
{
    const json_t *v = json_object_get(obj, key);
    if (absent(v))
        return 0;
    if (!pyjson_is_text(v))
        return ds4_fail(e, DS4_EARG, "%s must be a string", key);
    *out = str_of(v);
    return 0;
}

static bool is_text_type(const char *t)
{
    return !strcmp(t, "text") || !strcmp(t, "input_text") || !strcmp(t, "output_text");
}

/* One item of a content list, appended to b. */
static int read_item(const json_t *item, pyjson_buf *b, ds4_err *e)
{
    const json_t *type = json_object_get(item, "type"), *text = json_object_get(item, "text");
    if (pyjson_is_text(item))
        return pyjson_put(b, json_string_value(item), json_string_length(item), e);
    if (!pyjson_is_text(type))
        return ds4_fail(e, DS4_EARG, "must be a string or an object with a string \"type\"");
    if (!is_text_type(json_string_value(type))) {
        int rc = pyjson_put(b, "[Unsupported ", 13, e);
        rc = rc ? rc : pyjson_put(b, json_string_value(type), json_string_length(type), e);
        return rc ? rc : pyjson_put(b, "]", 1, e);
    }
    if (!pyjson_is_text(text))
        return ds4_fail(e, DS4_EARG, "text must be a string");
    return pyjson_put(b, json_string_value(text), json_string_length(text), e);
}

static int read_content(chat_doc *d, const json_t *v, chat_str *out, ds4_err *e)
{
    if (absent(v))
        return 0;
    if (pyjson_is_text(v)) {
        *out = str_of(v);
        return 0;
    }
    if (!json_is_array(v))
        return ds4_fail(e, DS4_EARG, "content must be a string, null or a list");
    pyjson_buf b = {0};
    int rc = pyjson_put(&b, "", 0, e);
    for (size_t i = 0; !rc && i < json_array_size(v); i++) {
        rc = i ? pyjson_put(&b, "\n\n", 2, e) : 0;
        if (!rc && (rc = read_item(json_array_get(v, i), &b, e)))
            ds4_wrap(e, "content[%zu]", i);
    }
    if (rc) {
        free(b.p);
        return rc;
    }
    *out = (chat_str){b.p, b.n};
    return doc_own(d, b.p, e);
}

int doc_read_tools(chat_doc *d, const json_t *tools, chat_msg *m, const char *where, ds4_err *e)
{
    size_t n = json_array_size(tools);
    if (absent(tools))
        return 0;
    if (!json_is_array(tools))
        return ds4_fail(e, DS4_EARG, "%s must be a list", where);
    if (!n)
        return 0;
    chat_str *s = calloc(n, sizeof *s);
    int rc = doc_own(d, s, e);
    for (size_t i = 0; !rc && i < n; i++) {
        const json_t *tool = json_array_get(tools, i), *inner = json_object_get(tool, "function");
        if (!json_is_object(tool) || (inner && !json_is_object(inner)))
            return ds4_fail(e, DS4_EARG, "%s[%zu] must be an object with an object \"function\"", where, i);
        rc = doc_dump(d, inner ? inner : tool, &s[i], e);
    }
    m->tool = s;
    m->n_tools = rc ? 0 : n;
    return rc;
}

/* The members of an arguments object as parameters, in their order. */
static int read_params(chat_doc *d, const json_t *args, chat_call *c, ds4_err *e)
{
    size_t n = json_object_size(args);
    if (!n)
        return 0;
    chat_param *p = calloc(n, sizeof *p);
    int rc = doc_own(d, p, e);
    if (rc)
        return rc;
    c->param = p;
    json_t *obj = (json_t *)args; /* jansson's iterators take no const; nothing is changed */
    for (void *it = json_object_iter(obj); !rc && it; it = json_object_iter_next(obj, it)) {
        const json_t *v = json_object_iter_value(it);
        chat_param *q = &p[c->n_params++];
        q->name = (chat_str){json_object_iter_key(it), strlen(json_object_iter_key(it))};
        q->is_string = pyjson_is_text(v);
        if (q->is_string)
            q->value = str_of(v);
        else
            rc = doc_dump(d, v, &q->value, e);
    }
    return rc;
}

/* Arguments as OpenAI sends them: a string that should hold a JSON object. */
static int read_arguments(chat_doc *d, const json_t *v, chat_call *c, ds4_err *e)
{
    json_t *parsed;
    if (absent(v))
        return 0;
    if (json_is_object(v))
        return read_params(d, v, c, e);
    if (!pyjson_is_text(v))
        return ds4_fail(e, DS4_EARG, "arguments must be a string or an object");
    int rc = pyjson_parse(json_string_value(v), json_string_length(v), &parsed, e);
    if (rc == DS4_ENOMEM)
        return rc;
    if (!rc) {
        bool is_object = json_is_object(parsed);
        rc = doc_hold(d, parsed, e);
        if (rc || is_object)
            return rc ? rc : read_params(d, parsed, c, e);
    }
    chat_param *p = calloc(1, sizeof *p);
    if ((rc = doc_own(d, p, e)))
        return rc;
    *p = (chat_param){{"arguments", 9}, str_of(v), true};
    c->param = p;
    c->n_params = 1;
    return 0;
}

static int read_call(chat_doc *d, const json_t *v, chat_call *c, ds4_err *e)
{
    const json_t *inner = json_object_get(v, "function");
    if (!json_is_object(v) || (inner && !json_is_object(inner)))
        return ds4_fail(e, DS4_EARG, "must be an object with an object \"function\"");
    const json_t *f = inner ? inner : v;
    int rc = get_str(v, "id", &c->id, e);
    rc = rc ? rc : get_str(f, "name", &c->name, e);
    if (!rc && !c->name.n)
        rc = ds4_fail(e, DS4_EARG, "function.name is missing");
    return rc ? rc : read_arguments(d, json_object_get(f, "arguments"), c, e);
}

static int read_calls(chat_doc *d, const json_t *calls, chat_msg *m, ds4_err *e)
{
    size_t n = json_array_size(calls);
    if (absent(calls))
        return 0;
    if (!json_is_array(calls))
        return ds4_fail(e, DS4_EARG, "tool_calls must be a list");
    if (!n)
        return 0;
    chat_call *c = calloc(n, sizeof *c);
    int rc = doc_own(d, c, e);
    for (size_t i = 0; !rc && i < n; i++)
        if ((rc = read_call(d, json_array_get(calls, i), &c[i], e)))
            ds4_wrap(e, "tool_calls[%zu]", i);
    m->call = c;
    m->n_calls = rc ? 0 : n;
    return rc;
}

/* A member that is a word of a fixed set: a string without NUL. Absent: *out = NULL unless required. */
static int get_word(const json_t *v, const char *key, bool required, const char **out, ds4_err *e)
{
    const json_t *w = json_object_get(v, key);
    *out = NULL;
    if (absent(w) && !required)
        return 0;
    if (!pyjson_is_text(w) || memchr(json_string_value(w), 0, json_string_length(w)))
        return ds4_fail(e, DS4_EARG, "%s must be a string", key);
    *out = json_string_value(w);
    return 0;
}

static int read_flags(const json_t *v, chat_msg *m, ds4_err *e)
{
    const char *role, *task;
    const json_t *open = json_object_get(v, "wo_eos");
    int rc = get_word(v, "role", true, &role, e);
    rc = rc ? rc : chat_role_parse(role, &m->role, e);
    rc = rc ? rc : get_word(v, "task", false, &task, e);
    if (!rc && task)
        rc = chat_task_parse(task, &m->task, e);
    if (!rc && !absent(open) && !json_is_boolean(open))
        rc = ds4_fail(e, DS4_EARG, "wo_eos must be true or false");
    if (!rc)
        m->wo_eos = json_is_true(open);
    return rc;
}

int doc_read_message(chat_doc *d, const json_t *v, chat_msg *m, ds4_err *e)
{
    *m = (chat_msg){0};
    if (!json_is_object(v))
        return ds4_fail(e, DS4_EARG, "must be an object with role and content");
    const json_t *format = json_object_get(v, "response_format");
    bool has_reasoning = !absent(json_object_get(v, "reasoning_content"));
    int rc = read_flags(v, m, e);
    rc = rc ? rc : read_content(d, json_object_get(v, "content"), &m->content, e);
    rc = rc ? rc : get_str(v, has_reasoning ? "reasoning_content" : "reasoning", &m->reasoning, e);
    rc = rc ? rc : get_str(v, "tool_call_id", &m->call_id, e);
    rc = rc ? rc : read_calls(d, json_object_get(v, "tool_calls"), m, e);
    rc = rc ? rc : doc_read_tools(d, json_object_get(v, "tools"), m, "tools", e);
    if (!rc && !absent(format) && !json_is_object(format))
        rc = ds4_fail(e, DS4_EARG, "response_format must be an object");
    if (!rc && json_object_size(format))
        rc = doc_dump(d, format, &m->response_format, e);
    return rc;
}
