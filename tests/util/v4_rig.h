/* v4_rig.h: the tiny model of tiny_v4.h opened on the CPU. Header only, as rig.h. */
#ifndef TESTS_UTIL_V4_RIG_H
#define TESTS_UTIL_V4_RIG_H

#include "util/rig.h"
#include "util/tiny_v4.h"

typedef struct v4_rig {
    rig r;
    uint8_t *trunk, *drafter; /* file bytes */
} v4_rig;

/* Opens the bytes of g as a GGUF; *bytes must live as long as the result. Frees g. */
static inline gguf *v4_open_file(gb *g, uint8_t **bytes, const char *name)
{
    ds4_err e = {0};
    gguf *out = NULL;
    size_t n;
    *bytes = gb_bytes(g, &n);
    gb_free(g);
    rig_check(gguf_open_mem(&out, *bytes, n, name, &e), &e);
    return out;
}

static inline void v4_open(v4_rig *t, rig_options o)
{
    gb trunk = v4_trunk(), drafter = v4_drafter(false);
    gguf *a = v4_open_file(&trunk, &t->trunk, "tiny.gguf"),
         *b = v4_open_file(&drafter, &t->drafter, "tiny-dspark.gguf");
    rig_open(&t->r, a, b, o);
}

static inline void v4_close(v4_rig *t)
{
    rig_close(&t->r);
    free(t->trunk);
    free(t->drafter);
}

#endif
