#include "util_golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

char *golden_set(const char *set)
{
    const char *dir = golden_dir();
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir ? dir : "", set);
    return !dir || stat(path, &st) ? NULL : strdup(path);
}

npy golden_array(const char *fmt, ...)
{
    char name[256];
    npy a = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    if (golden_npy(&a, name) != 1)
        fail_msg("no golden array %s", name);
    return a;
}

json_t *golden_json(const char *dir, const char *name)
{
    char path[4400];
    json_error_t e;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    json_t *j = json_load_file(path, 0, &e);
    if (!j)
        fail_msg("%s: %s", path, e.text);
    return j;
}

double *golden_nums(const json_t *o, const char *key, int *n)
{
    const json_t *a = key ? json_object_get(o, key) : o;
    if (!json_is_array(a))
        fail_msg("golden data has no array '%s'", key);
    double *v = malloc((json_array_size(a) + 1) * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < json_array_size(a); i++)
        v[i] = json_is_number(json_array_get(a, i)) ? json_number_value(json_array_get(a, i)) : NAN;
    if (n)
        *n = (int)json_array_size(a);
    return v;
}

int32_t *golden_ints(const json_t *o, const char *key, int *n)
{
    int count;
    double *d = golden_nums(o, key, &count);
    int32_t *v = malloc(((size_t)count + 1) * sizeof *v);
    assert_non_null(v);
    for (int i = 0; i < count; i++)
        v[i] = (int32_t)d[i];
    free(d);
    if (n)
        *n = count;
    return v;
}

double max_diff(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        worst = d <= worst ? worst : isnan(d) ? INFINITY : d;
    }
    return worst;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *v, int n)
{
    assert_true(n > 0);
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}
