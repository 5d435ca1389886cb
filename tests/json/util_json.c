#include "util_json.h"

char *read_all(const char *dir, const char *name, size_t *n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    char *buf = malloc(1 << 22);
    assert_non_null(buf);
    *n = fread(buf, 1, (1 << 22) - 1, f);
    assert_true(*n < (1 << 22) - 1);
    fclose(f);
    buf[*n] = 0;
    return buf;
}

chat_opts defaults_with(const protocol *p)
{
    return (chat_opts){.thinking = true, .drop_thinking = true, .release = CHAT_0731, .proto = p};
}

char *render(const char *json, const chat_opts *o)
{
    ds4_err e = {0};
    chat_doc d;
    chat_text t;
    if (chat_json_parse(json, strlen(json), o, &d, &e) || chat_render(d.msg, d.n, &d.opts, &t, &e))
        fail_msg("%s", e.msg);
    chat_doc_free(&d);
    free(t.span);
    return t.p;
}

const char *render_error(const char *json, const chat_opts *o, ds4_err *e)
{
    chat_doc d;
    chat_text t;
    *e = (ds4_err){0};
    int rc = chat_json_parse(json, strlen(json), o, &d, e);
    if (!rc) {
        rc = chat_render(d.msg, d.n, &d.opts, &t, e);
        chat_doc_free(&d);
    }
    assert_true(rc < 0);
    assert_int_equal(rc, e->code);
    return e->msg;
}
