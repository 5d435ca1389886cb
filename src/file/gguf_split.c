/* gguf_split.c: mapping of files, and split sets.
 *
 * A set of N files is named PREFIX-00001-of-0000N.gguf ... and each part says in its metadata which one it is: split.no
 * (from 0), split.count, split.tensors.count (of the whole set). The first part holds the metadata of the model. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/gguf_part.h"

int gguf_part_name(gguf_part *part, const char *path, ds4_err *e)
{
    size_t n = strlen(path), room = sizeof part->label - 4;
    part->path = strdup(path);
    if (!part->path)
        return ds4_fail(e, DS4_ENOMEM, "no memory for a file name");
    snprintf(part->label, sizeof part->label, "%s%s", n > room ? "..." : "", n > room ? path + n - room : path);
    return 0;
}

static int map_fd(gguf_part *part, int fd, ds4_err *e)
{
    struct stat st;
    if (fstat(fd, &st))
        return ds4_fail(e, DS4_EIO, "%s: cannot get the size: %s", part->label, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return ds4_fail(e, DS4_EIO, "%s: is %s, expected a GGUF file", part->label,
                        S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    if (st.st_size == 0)
        return ds4_fail(e, DS4_EFORMAT, "%s: the file is empty: download it again", part->label);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return ds4_fail(e, DS4_EIO, "%s: cannot map %jd bytes: %s", part->label, (intmax_t)st.st_size, strerror(errno));
    part->base = p;
    part->len = (size_t)st.st_size;
    part->mapped = true;
    part->fd = fd;
    return 0;
}

int gguf_part_map(gguf_part *part, const char *path, ds4_err *e)
{
    int rc = gguf_part_name(part, path, e);
    if (rc)
        return rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a FIFO must not hang us */
    if (fd < 0)
        return ds4_fail(e, DS4_EIO, "%s: cannot open: %s", part->label, strerror(errno));
    rc = map_fd(part, fd, e);
    if (rc)
        close(fd);
    return rc;
}

void gguf_part_unmap(gguf_part *part)
{
    if (!part->mapped)
        return;
    munmap((void *)part->base, part->len);
    close(part->fd);
}

/* An optional split.* integer of a part, in lo..hi; absent leaves *out. */
static int split_int(const gguf_part *part, const char *key, int64_t lo, int64_t hi, int64_t *out, ds4_err *e)
{
    const gguf_kv *kv = (const gguf_kv *)gguf_index_find(&part->kv_index, key, strlen(key));
    if (!kv)
        return 0;
    if (!gguf_kv_int(kv, out))
        return ds4_fail(e, DS4_EFORMAT, "%s: key '%s' has type %s, expected an integer", part->label, key,
                        gguf_type_text(kv).s);
    if (*out < lo || *out > hi)
        return ds4_fail(e, DS4_EFORMAT, "%s: key '%s' is %" PRId64 ", expected %" PRId64 " to %" PRId64, part->label,
                        key, *out, lo, hi);
    return 0;
}

typedef struct split {
    int64_t no, count, tensors; /* tensors -1: not said */
} split;

static int read_split(const gguf_part *part, split *s, ds4_err *e)
{
    *s = (split){0, 1, -1};
    int rc = split_int(part, "split.count", 0, 99999, &s->count, e);
    if (!rc && s->count == 0)
        s->count = 1;
    if (!rc)
        rc = split_int(part, "split.no", 0, s->count - 1, &s->no, e);
    if (!rc)
        rc = split_int(part, "split.tensors.count", 0, INT64_MAX, &s->tensors, e);
    return rc;
}

static int check_part(const gguf_part *part, const split *want, int64_t no, ds4_err *e)
{
    split s;
    int rc = read_split(part, &s, e);
    if (rc)
        return rc;
    if (s.count != want->count || s.no != no)
        return ds4_fail(e, DS4_EFORMAT, "%s: says it is part %" PRId64 " of %" PRId64 ", expected part %" PRId64 " of %"
                        PRId64 ": it belongs to another set or was renamed", part->label, s.no + 1, s.count, no + 1,
                        want->count);
    if (s.tensors != want->tensors)
        return ds4_fail(e, DS4_EFORMAT, "%s: key 'split.tensors.count' is %" PRId64 ", another part says %" PRId64
                        ": the parts belong to different sets", part->label, s.tensors, want->tensors);
    return 0;
}

static int check_total(const gguf *g, const split *want, ds4_err *e)
{
    int64_t sum = 0;
    for (size_t i = 0; i < g->n_parts; i++)
        sum += (int64_t)g->part[i].n_tensors;
    if (want->tensors >= 0 && sum != want->tensors)
        return ds4_fail(e, DS4_EFORMAT,
                        "%s: the %zu part%s hold %" PRId64 " tensors, key 'split.tensors.count' says %" PRId64,
                        g->part[0].label, g->n_parts, g->n_parts > 1 ? "s" : "", sum, want->tensors);
    return 0;
}

enum { SUFFIX_BYTES = sizeof "-00001-of-00002.gguf" };

static void part_suffix(char out[SUFFIX_BYTES], int64_t no, int64_t count)
{
    snprintf(out, SUFFIX_BYTES, "-%05u-of-%05u.gguf", (unsigned)(no + 1) % 100000u, (unsigned)count % 100000u);
}

/* Opens part `no`, whose name differs from `path` in the suffix alone. */
static int open_sibling(gguf *g, const char *path, const split *want, int64_t no, ds4_err *e)
{
    char suffix[SUFFIX_BYTES];
    part_suffix(suffix, no, want->count);
    char *name = strdup(path);
    if (!name)
        return ds4_fail(e, DS4_ENOMEM, "no memory for a file name");
    memcpy(name + strlen(path) - (SUFFIX_BYTES - 1), suffix, SUFFIX_BYTES);
    gguf_part *part = &g->part[no];
    int rc = gguf_part_map(part, name, e);
    if (rc == DS4_EIO)
        ds4_wrap(e, "part %" PRId64 " of %" PRId64 " is missing or unreadable, all parts must be in one folder", no + 1,
                 want->count);
    free(name);
    if (!rc)
        rc = gguf_part_parse(part, (int)no, e);
    return rc ? rc : check_part(part, want, no, e);
}

static int open_siblings(gguf *g, const char *path, const split *want, ds4_err *e)
{
    char suffix[SUFFIX_BYTES];
    part_suffix(suffix, want->no, want->count);
    size_t n = strlen(path);
    if (n < SUFFIX_BYTES - 1 || strcmp(path + n - (SUFFIX_BYTES - 1), suffix))
        return ds4_fail(e, DS4_EFORMAT,
                        "%s: is part %" PRId64 " of %" PRId64 " of a split model, so its name must end in "
                        "'%s': give all parts their names back",
                        g->part[0].label, want->no + 1, want->count, suffix);
    gguf_part *all = calloc((size_t)want->count, sizeof *all);
    if (!all)
        return ds4_fail(e, DS4_ENOMEM, "no memory for %" PRId64 " parts", want->count);
    all[want->no] = g->part[0];
    free(g->part);
    g->part = all;
    g->n_parts = (size_t)want->count;
    gguf_part *mine = &all[want->no];
    for (size_t i = 0; i < mine->n_tensors; i++)
        mine->tensor[i].part = (int)want->no;
    int rc = 0;
    for (int64_t no = 0; !rc && no < want->count; no++)
        if (no != want->no)
            rc = open_sibling(g, path, want, no, e);
    return rc;
}

int gguf_load_parts(gguf *g, const char *path, ds4_err *e)
{
    int rc = gguf_part_map(&g->part[0], path, e);
    if (!rc)
        rc = gguf_part_parse(&g->part[0], 0, e);
    split want;
    if (!rc)
        rc = read_split(&g->part[0], &want, e);
    if (!rc && want.count > 1)
        rc = open_siblings(g, path, &want, e);
    return rc ? rc : check_total(g, &want, e);
}
