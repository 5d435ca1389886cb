#include "convert/imatrix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"

typedef struct im_entry { char *name; float *v; uint32_t n; } im_entry;

struct imatrix {
    char *path, *dataset;
    uint32_t chunks;
    im_entry *e; /* sorted by name */
    size_t n;
};

typedef struct im_cursor { const uint8_t *p; size_t left; } im_cursor;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const im_entry *)a)->name, ((const im_entry *)b)->name);
}

void imatrix_close(imatrix *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n; i++) {
        free(m->e[i].name);
        free(m->e[i].v);
    }
    free(m->e);
    free(m->path);
    free(m->dataset);
    free(m);
}

/* A count in 0..max, -1 if truncated or out of range. */
static int64_t take_count(im_cursor *c, int64_t max)
{
    int32_t v;
    if (c->left < 4)
        return -1;
    memcpy(&v, c->p, 4);
    c->p += 4;
    c->left -= 4;
    return v < 0 || v > max ? -1 : v;
}

static char *take_text(im_cursor *c, int64_t n)
{
    if (n < 0 || (uint64_t)n > c->left || memchr(c->p, 0, (size_t)n))
        return NULL;
    char *s = malloc((size_t)n + 1);
    if (s) {
        memcpy(s, c->p, (size_t)n);
        s[n] = 0;
        c->p += n;
        c->left -= (size_t)n;
    }
    return s;
}

static int take_entry(imatrix *m, im_cursor *c, size_t no, ds4_err *e)
{
    im_entry *x = &m->e[m->n];
    x->name = take_text(c, take_count(c, 4096));
    if (!x->name)
        return ds4_fail(e, DS4_EFORMAT, "%s: entry %zu: bad or truncated name", m->path, no);
    m->n++;
    int64_t calls = take_count(c, INT32_MAX), n = take_count(c, INT32_MAX);
    if (calls < 0 || n <= 0 || (uint64_t)n > c->left / 4)
        return ds4_fail(e, DS4_EFORMAT, "%s: entry %s: bad value count or truncated", m->path, x->name);
    if (!(x->v = malloc((size_t)n * 4)))
        return ds4_fail(e, DS4_ENOMEM, "%s: out of memory for entry %s", m->path, x->name);
    memcpy(x->v, c->p, (size_t)n * 4);
    x->n = (uint32_t)n;
    c->p += (size_t)n * 4;
    c->left -= (size_t)n * 4;
    for (int64_t i = 0; i < n; i++)
        if (!(x->v[i] >= 0) || isinf(x->v[i]))
            return ds4_fail(e, DS4_EFORMAT, "%s: entry %s: value %lld is %g, expected a finite sum of squares", m->path,
                            x->name, (long long)i, (double)x->v[i]);
    return 0;
}

static int take_all(imatrix *m, im_cursor *c, ds4_err *e)
{
    int64_t n = take_count(c, INT32_MAX);
    if (n <= 0 || (uint64_t)n > c->left / 13)
        return ds4_fail(e, DS4_EFORMAT, "%s: not a legacy importance matrix (.dat): bad entry count", m->path);
    if (!(m->e = calloc((size_t)n, sizeof *m->e)))
        return ds4_fail(e, DS4_ENOMEM, "%s: out of memory for %lld entries", m->path, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        int rc = take_entry(m, c, (size_t)i, e);
        if (rc)
            return rc;
    }
    qsort(m->e, m->n, sizeof *m->e, by_name);
    for (size_t i = 1; i < m->n; i++)
        if (!strcmp(m->e[i - 1].name, m->e[i].name))
            return ds4_fail(e, DS4_EFORMAT, "%s: entry %s occurs twice", m->path, m->e[i].name);
    if (c->left >= 4) {
        int64_t chunks = take_count(c, INT32_MAX);
        m->chunks = chunks < 0 ? 0 : (uint32_t)chunks;
        if (c->left >= 4)
            m->dataset = take_text(c, take_count(c, 1 << 16));
    }
    return 0;
}

int imatrix_parse(imatrix **out, const void *buf, size_t len, const char *name, ds4_err *e)
{
    im_cursor c = {buf, len};
    imatrix *m = calloc(1, sizeof *m);
    if (!m || !(m->path = strdup(name))) {
        free(m);
        return ds4_fail(e, DS4_ENOMEM, "out of memory reading %s", name);
    }
    int rc = take_all(m, &c, e);
    if (rc) {
        imatrix_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

int imatrix_open(imatrix **out, const char *path, ds4_err *e)
{
    char *buf;
    size_t len;
    int rc = fsio_read(path, (size_t)4 << 30, &buf, &len, e);
    if (rc)
        return rc;
    rc = imatrix_parse(out, buf, len, path, e);
    free(buf);
    return rc;
}

static const im_entry *lookup(const imatrix *m, const char *name)
{
    im_entry key = {.name = (char *)name};
    return bsearch(&key, m->e, m->n, sizeof *m->e, by_name);
}

int imatrix_find(const imatrix *m, const char *name, uint32_t expert, uint32_t n_experts, uint64_t cols,
                 const float **out, ds4_err *e)
{
    static const char *const forms[] = {
        "%.*s.weight.expert.%u", "%.*s.weight.expert_%u", "%.*s.expert.%u", "%.*s.expert_%u",
    };
    char buf[320];
    size_t n = strlen(name);
    int stem = (int)(n > 7 && !strcmp(name + n - 7, ".weight") ? n - 7 : n);
    const im_entry *x = NULL;
    *out = NULL;
    for (int i = 0; i < 4 && !x; i++) {
        snprintf(buf, sizeof buf, forms[i], stem, name, expert);
        x = lookup(m, buf);
    }
    if (x && x->n == cols) {
        *out = x->v;
        return 0;
    }
    if (!x) {
        snprintf(buf, sizeof buf, "%.*s", stem, name);
        x = lookup(m, name) ? lookup(m, name) : lookup(m, buf);
        if (!x)
            return 0;
        if (x->n == (uint64_t)n_experts * cols) {
            *out = x->v + (size_t)expert * cols;
            return 0;
        }
    }
    return ds4_fail(e, DS4_EMODEL, "%s: entry %s has %u values, tensor %s needs %llu columns for each of %u experts",
                    m->path, x->name, x->n, name, (unsigned long long)cols, n_experts);
}

size_t imatrix_count(const imatrix *m) { return m->n; }
uint32_t imatrix_chunks(const imatrix *m) { return m->chunks; }
const char *imatrix_dataset(const imatrix *m) { return m->dataset ? m->dataset : ""; }
