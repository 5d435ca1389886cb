#include "util/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The header is a Python dict; the three values that matter are found by their keys. */
static const char *value_of(const char *header, const char *key)
{
    const char *p = strstr(header, key);
    return p ? p + strlen(key) : NULL;
}

static int parse_shape(npy *a, const char *p)
{
    a->count = 1;
    for (p = strchr(p, '('); p && *p && *p != ')';) {
        p++;
        while (*p == ' ' || *p == ',')
            p++;
        if (*p == ')')
            break;
        char *end;
        unsigned long long v = strtoull(p, &end, 10);
        if (end == p || a->n_dims == 8 || __builtin_mul_overflow(a->count, (size_t)v, &a->count))
            return -1;
        a->shape[a->n_dims++] = (size_t)v;
        p = end;
    }
    return p && *p == ')' ? 0 : -1;
}

static int parse_header(npy *a, const char *header, int *is_int)
{
    const char *descr = value_of(header, "'descr': '"), *order = value_of(header, "'fortran_order': ");
    const char *shape = value_of(header, "'shape': ");
    if (!descr || !order || !shape || strncmp(order, "False", 5))
        return -1;
    *is_int = !strncmp(descr, "<i4'", 4);
    if (!*is_int && strncmp(descr, "<f4'", 4))
        return -1;
    return parse_shape(a, shape);
}

static int read_array(npy *a, FILE *f)
{
    unsigned char head[10];
    char header[4096];
    int is_int;
    if (fread(head, 1, 10, f) != 10 || memcmp(head, "\x93NUMPY\x01", 7))
        return -1;
    size_t n = head[8] | (size_t)head[9] << 8;
    if (n >= sizeof header || fread(header, 1, n, f) != n)
        return -1;
    header[n] = 0;
    size_t bytes;
    if (parse_header(a, header, &is_int) || __builtin_mul_overflow(a->count, (size_t)4, &bytes))
        return -1;
    void *data = malloc(bytes ? bytes : 1);
    if (!data)
        return -1;
    if (is_int)
        a->i = data;
    else
        a->f = data;
    return fread(data, 1, bytes, f) == bytes && fgetc(f) == EOF ? 0 : -1;
}

int npy_load(npy *a, const char *path, char why[200])
{
    *a = (npy){0};
    FILE *f = fopen(path, "rb");
    if (!f) {
        snprintf(why, 200, "%.150s: cannot open", path);
        return -1;
    }
    int rc = read_array(a, f);
    fclose(f);
    if (rc) {
        npy_free(a);
        snprintf(why, 200, "%.120s: not a whole C-order float32 or int32 .npy file", path);
    }
    return rc;
}

void npy_free(npy *a)
{
    free(a->f);
    free(a->i);
    *a = (npy){0};
}

const char *golden_dir(void)
{
    struct stat st;
    const char *dir = getenv("DS4_TEST_DATA");
    if (!dir || !*dir)
        dir = "../shared/data";
    return !stat(dir, &st) && S_ISDIR(st.st_mode) ? dir : NULL;
}

int golden_npy(npy *a, const char *name)
{
    char path[4096], why[200];
    const char *dir = golden_dir();
    if (!dir)
        return 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (npy_load(a, path, why)) {
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
    return 1;
}
