#include "convert/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/st_shards.h"

enum { ST_MAX_HEADER = 100 << 20 }; /* the format's own limit */

typedef struct st_map { char *path; const uint8_t *base; size_t len; bool mapped; } st_map;

struct st_set {
    st_map *files;
    size_t n_files;
    st_tensor *t;
    size_t n, cap;
};

static const struct { const char *name; uint32_t bytes; } dtypes[ST_N_DTYPES] = {
    [ST_F32] = {"F32", 4}, [ST_F16] = {"F16", 2}, [ST_BF16] = {"BF16", 2}, [ST_F8_E4M3] = {"F8_E4M3", 1},
    [ST_F8_E8M0] = {"F8_E8M0", 1}, [ST_I8] = {"I8", 1}, [ST_U8] = {"U8", 1}, [ST_I32] = {"I32", 4},
    [ST_I64] = {"I64", 8},
};

const char *st_dtype_name(int dtype) { return dtype >= 0 && dtype < ST_N_DTYPES ? dtypes[dtype].name : "?"; }
uint32_t st_dtype_bytes(int dtype) { return dtypes[dtype].bytes; }
size_t st_count(const st_set *s) { return s->n; }
st_tensor *st_at(st_set *s, size_t i) { return &s->t[i]; }
const char *st_file(const st_set *s, const st_tensor *t) { return s->files[t->file].path; }

const char *st_shape_str(const st_tensor *t, char *buf, size_t n)
{
    size_t at = (size_t)snprintf(buf, n, "[");
    for (uint32_t i = 0; i < t->n_dims && at < n; i++)
        at += (size_t)snprintf(buf + at, n - at, "%s%llu", i ? ", " : "", (unsigned long long)t->shape[i]);
    if (at < n)
        snprintf(buf + at, n - at, "]");
    return buf;
}

void st_close(st_set *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        free((char *)s->t[i].name);
    for (size_t i = 0; i < s->n_files; i++) {
        if (s->files[i].mapped)
            munmap((void *)s->files[i].base, s->files[i].len);
        free(s->files[i].path);
    }
    free(s->files);
    free(s->t);
    free(s);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const st_tensor *)a)->name, ((const st_tensor *)b)->name);
}

st_tensor *st_find(st_set *s, const char *name)
{
    st_tensor key = {.name = name};
    return s->n ? bsearch(&key, s->t, s->n, sizeof *s->t, by_name) : NULL;
}

static int read_dtype(const char *text)
{
    for (int i = 0; i < ST_N_DTYPES; i++)
        if (text && !strcmp(text, dtypes[i].name))
            return i;
    return -1;
}

/* Shape array into t; false if it is not 0..4 positive sizes with a product that fits. */
static bool read_shape(const json_t *shape, st_tensor *t, uint64_t *elements)
{
    if (!json_is_array(shape) || json_array_size(shape) > 4)
        return false;
    t->n_dims = (uint32_t)json_array_size(shape);
    *elements = 1;
    for (uint32_t i = 0; i < 4; i++) {
        t->shape[i] = 1;
        if (i >= t->n_dims)
            continue;
        const json_t *v = json_array_get(shape, i);
        if (!json_is_integer(v) || json_integer_value(v) <= 0)
            return false;
        t->shape[i] = (uint64_t)json_integer_value(v);
        if (__builtin_mul_overflow(*elements, t->shape[i], elements))
            return false;
    }
    return true;
}

static bool read_offsets(const json_t *off, uint64_t *begin, uint64_t *end)
{
    const json_t *b = json_array_get(off, 0), *x = json_array_get(off, 1);
    if (json_array_size(off) != 2 || !json_is_integer(b) || !json_is_integer(x))
        return false;
    if (json_integer_value(b) < 0 || json_integer_value(x) < json_integer_value(b))
        return false;
    *begin = (uint64_t)json_integer_value(b);
    *end = (uint64_t)json_integer_value(x);
    return true;
}

/* One header entry -> t (without its name). `data` is the data section of `space` bytes. */
static int read_entry(const char *path, const char *name, const json_t *v, const uint8_t *data, uint64_t space,
                      st_tensor *t, ds4_err *e)
{
    const char *dt = json_string_value(json_object_get(v, "dtype"));
    uint64_t begin, end, count, bytes;
    t->dtype = read_dtype(dt);
    if (t->dtype < 0)
        return ds4_fail(e, DS4_EFORMAT, "%s: tensor %s: dtype %s is not supported (expected F32, F16, BF16, F8_E4M3, "
                        "F8_E8M0, I8, U8, I32 or I64)", path, name, dt ? dt : "missing");
    if (!read_shape(json_object_get(v, "shape"), t, &count))
        return ds4_fail(e, DS4_EFORMAT, "%s: tensor %s: shape must be at most 4 positive sizes", path, name);
    if (!read_offsets(json_object_get(v, "data_offsets"), &begin, &end))
        return ds4_fail(e, DS4_EFORMAT, "%s: tensor %s: data_offsets must be [begin, end]", path, name);
    if (end > space)
        return ds4_fail(e, DS4_EFORMAT, "%s: tensor %s: data ends at byte %llu of a data section of %llu bytes; the "
                        "file is truncated or damaged", path, name, (unsigned long long)end, (unsigned long long)space);
    if (__builtin_mul_overflow(count, dtypes[t->dtype].bytes, &bytes) || bytes != end - begin)
        return ds4_fail(e, DS4_EFORMAT, "%s: tensor %s: %llu bytes of data, dtype and shape need another number", path,
                        name, (unsigned long long)(end - begin));
    t->data = data + begin;
    t->nbytes = bytes;
    return 0;
}

static int add_tensor(st_set *s, const char *name, const st_tensor *proto, ds4_err *e)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 256;
        st_tensor *grown = realloc(s->t, cap * sizeof *grown);
        if (!grown)
            return ds4_fail(e, DS4_ENOMEM, "out of memory for %zu tensor entries", cap);
        s->t = grown;
        s->cap = cap;
    }
    s->t[s->n] = *proto;
    s->t[s->n].name = strdup(strncmp(name, "model.", 6) ? name : name + 6);
    if (!s->t[s->n].name)
        return ds4_fail(e, DS4_ENOMEM, "out of memory for a tensor name");
    s->n++;
    return 0;
}

static int by_data(const void *a, const void *b)
{
    const st_tensor *x = a, *y = b;
    return x->data < y->data ? -1 : x->data > y->data;
}

/* The ranges of one file's tensors must tile its data section exactly (a rule of the format). */
static int check_tiling(st_tensor *t, size_t n, const char *path, const uint8_t *data, uint64_t space, ds4_err *e)
{
    const uint8_t *at = data;
    qsort(t, n, sizeof *t, by_data);
    for (size_t i = 0; i < n; i++) {
        if (t[i].data != at)
            return ds4_fail(e, DS4_EFORMAT,
                            "%s: tensor %s: data begins at byte %llu of the data section, expected %llu "
                            "(%s)", path, t[i].name, (unsigned long long)(t[i].data - data),
                            (unsigned long long)(at - data), t[i].data < at ? "overlap" : "hole");
        at += t[i].nbytes;
    }
    if ((uint64_t)(at - data) != space)
        return ds4_fail(e, DS4_EFORMAT, "%s: the tensors cover %llu of %llu data bytes", path,
                        (unsigned long long)(at - data), (unsigned long long)space);
    return 0;
}

/* Header of file number `f` (already mapped) -> tensors. */
static int read_header(st_set *s, size_t f, ds4_err *e)
{
    const st_map *m = &s->files[f];
    uint64_t n = 0;
    if (m->len < 8)
        return ds4_fail(e, DS4_EFORMAT, "%s: %zu bytes are too few for a safetensors file", m->path, m->len);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | m->base[i];
    if (n < 2 || n > ST_MAX_HEADER || n > m->len - 8)
        return ds4_fail(e, DS4_EFORMAT,
                        "%s: header length %llu does not fit a file of %zu bytes: not a safetensors file, "
                        "or truncated", m->path, (unsigned long long)n, m->len);
    json_error_t je;
    json_t *root = json_loadb((const char *)m->base + 8, (size_t)n, JSON_REJECT_DUPLICATES, &je);
    if (!json_is_object(root)) {
        json_decref(root);
        return ds4_fail(e, DS4_EFORMAT, "%s: header is not a JSON object: %s", m->path, root ? "other type" : je.text);
    }
    size_t first = s->n;
    const char *name;
    json_t *v;
    int rc = 0;
    json_object_foreach(root, name, v) {
        st_tensor t = {.file = (uint32_t)f};
        if (!strcmp(name, "__metadata__"))
            continue;
        if ((rc = read_entry(m->path, name, v, m->base + 8 + n, m->len - 8 - n, &t, e)) ||
            (rc = add_tensor(s, name, &t, e)))
            break;
    }
    json_decref(root);
    return rc ? rc : check_tiling(s->t + first, s->n - first, m->path, m->base + 8 + n, m->len - 8 - n, e);
}

static int finish(st_set *s, ds4_err *e)
{
    if (s->n)
        qsort(s->t, s->n, sizeof *s->t, by_name);
    for (size_t i = 1; i < s->n; i++)
        if (!strcmp(s->t[i - 1].name, s->t[i].name))
            return ds4_fail(e, DS4_EFORMAT, "%s: tensor %s occurs twice (also in %s)", st_file(s, &s->t[i]),
                            s->t[i].name,
                            st_file(s, &s->t[i - 1]));
    return 0;
}

static st_set *new_set(size_t n_files)
{
    st_set *s = calloc(1, sizeof *s);
    if (s && !(s->files = calloc(n_files, sizeof *s->files))) {
        free(s);
        return NULL;
    }
    return s;
}

int st_open_mem(st_set **out, const void *buf, size_t len, const char *name, ds4_err *e)
{
    st_set *s = new_set(1);
    char *path = strdup(name);
    if (!s || !path) {
        st_close(s);
        free(path);
        return ds4_fail(e, DS4_ENOMEM, "out of memory opening %s", name);
    }
    s->n_files = 1;
    s->files[0] = (st_map){.path = path, .base = buf, .len = len};
    int rc = read_header(s, 0, e);
    if (!rc)
        rc = finish(s, e);
    if (rc) {
        st_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

/* Maps one file as the set's next; takes ownership of nothing (the path is copied). */
static int map_file(st_set *s, const char *path, ds4_err *e)
{
    struct stat sb;
    st_map *m = &s->files[s->n_files];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ds4_fail(e, DS4_EIO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &sb) || !S_ISREG(sb.st_mode) || sb.st_size < 8) {
        close(fd);
        return ds4_fail(e, DS4_EFORMAT, "%s: not a regular file of at least 8 bytes", path);
    }
    void *p = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int err = errno;
    close(fd);
    if (p == MAP_FAILED)
        return ds4_fail(e, DS4_EIO, "%s: cannot map: %s", path, strerror(err));
    *m = (st_map){.path = strdup(path), .base = p, .len = (size_t)sb.st_size, .mapped = true};
    s->n_files++;
    return m->path ? 0 : ds4_fail(e, DS4_ENOMEM, "out of memory opening %s", path);
}

static int open_all(st_set *s, const st_shards *sh, ds4_err *e)
{
    int rc;
    for (size_t i = 0; i < sh->n; i++)
        if ((rc = map_file(s, sh->path[i], e)) || (rc = read_header(s, i, e)))
            return rc;
    if ((rc = finish(s, e)))
        return rc;
    return st_shards_check(sh, s, e);
}

int st_open_dir(st_set **out, const char *dir, ds4_err *e)
{
    st_shards sh;
    int rc = st_shards_find(&sh, dir, e);
    if (rc)
        return rc;
    st_set *s = new_set(sh.n);
    rc = s ? open_all(s, &sh, e) : ds4_fail(e, DS4_ENOMEM, "out of memory opening %s", dir);
    st_shards_free(&sh);
    if (rc) {
        st_close(s);
        return rc;
    }
    *out = s;
    return 0;
}
