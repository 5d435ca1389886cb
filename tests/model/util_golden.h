/* util_golden.h: reading the golden data: NumPy arrays, JSON, and comparing. Every failure fails the running test. */
#ifndef TESTS_MODEL_UTIL_GOLDEN_H
#define TESTS_MODEL_UTIL_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "util/npy.h"

/* Folder <golden dir>/<set>, NULL if it is not there. The caller frees it. */
char *golden_set(const char *set);

/* The array <golden dir>/<name>; free with npy_free. */
npy golden_array(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

json_t *golden_json(const char *dir, const char *name);
/* Array of integers / numbers under a key; the caller frees. *n may be NULL. null becomes NaN. */
int32_t *golden_ints(const json_t *o, const char *key, int *n);
double *golden_nums(const json_t *o, const char *key, int *n);

/* Largest |a - b|; NaN anywhere gives infinity. */
double max_diff(const float *a, const float *b, size_t n);
double median(double *v, int n); /* reorders v */

#endif
