#include "util_refuse.h"

static int open_file(const gb *g, const char *name, uint8_t **bytes, gguf **out, ds4_err *e)
{
    size_t n;
    *bytes = gb_bytes(g, &n);
    return gguf_open_mem(out, *bytes, n, name, e);
}

int try_model(const gb *trunk, const gb *drafter, shape *s, drafter_shape *ds, ds4_err *e)
{
    uint8_t *a = NULL, *b = NULL;
    gguf *t = NULL, *d = NULL;
    backend *cpu = NULL;
    model m;
    *e = (ds4_err){0};
    int rc = open_file(trunk, "trunk.gguf", &a, &t, e);
    if (!rc && drafter)
        rc = open_file(drafter, "drafter.gguf", &b, &d, e);
    if (!rc)
        rc = backend_open(&cpu, &(backend_options){"cpu", 1, BE_ACT_Q8}, e);
    if (!rc) {
        rc = model_open(&m, cpu, t, d, &(model_options){0}, e);
        if (!rc && s)
            *s = m.s;
        if (!rc && ds)
            *ds = m.ds;
        if (!rc)
            model_close(&m);
        cpu->op->close(cpu);
    }
    gguf_close(t);
    gguf_close(d);
    free(a);
    free(b);
    return rc;
}

void expect_refusal(const gb *trunk, const gb *drafter, const char *const words[])
{
    ds4_err e;
    int rc = try_model(trunk, drafter, NULL, NULL, &e);
    if (rc != DS4_EMODEL && rc != DS4_EFORMAT)
        fail_msg("expected a refusal that says '%s', got code %d: %s", words[0], rc, e.msg);
    for (int i = 0; words[i]; i++)
        if (!strstr(e.msg, words[i]))
            fail_msg("'%s' does not say '%s'", e.msg, words[i]);
    for (const char *p = e.msg; *p; p++)
        if (*p >= 0 && *p < ' ')
            fail_msg("control characters in '%s'", e.msg);
}
