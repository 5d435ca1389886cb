/* util_be.h: what the backend tests share: random weights of every type, backends in every variant, the
 * row-invariance check. */
#ifndef DS4_TESTS_BACKEND_UTIL_H
#define DS4_TESTS_BACKEND_UTIL_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "file/quant.h"

enum { N_TYPES = 12, POOL_ROWS = 16 };
extern const uint32_t all_types[N_TYPES];

/* --- random numbers: a fixed sequence per seed --- */
typedef struct rng { uint64_t s; } rng;
uint64_t rng_next(rng *g);
float rng_unit(rng *g);   /* [0, 1) */
float rng_normal(rng *g); /* roughly normal, variance 1 */
int rng_below(rng *g, int n);
void fill_normal(rng *g, float *x, size_t n, float scale);

/* --- weights --- */
/* Random blocks whose decoded values have an RMS of about 1/sqrt(ne0). Free host with free((void *)w.host). */
be_weight make_weight(rng *g, uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2);
void free_weight(be_weight *w);
void weight_row(const be_weight *w, int64_t slice, int64_t row, double *out); /* decoded */
be_weight bound(backend *b, const be_weight *w);

/* --- backends --- */
enum variant { V_PLAIN, V_FAST, V_SECOND /* the next best kernels */, V_FAST3 /* three threads,
              every launch spread */, N_VARIANTS };
backend *open_variant(enum variant v, enum be_act act, const be_dims *dims);
float *to_dev(backend *b, const float *host, size_t n); /* with guard numbers before and behind */
float *dev_room(backend *b, size_t n);                  /* zeros, guarded the same way */
int32_t *ints_to_dev(backend *b, const int32_t *host, size_t n);
void check_guards(backend *b, const float *dev, size_t n);
void close_clean(backend *b); /* sync must succeed */

/* The activations as the backend's mode makes them, in double: for a weight of `type`. */
void reference_act(enum be_act act, uint32_t type, const float *x, int64_t n, double *out);
void assert_close(double got, double want, double limit, const char *what, int at);

/* --- row invariance --- */
/* Runs an operation on rows which[0..n-1] of a pool of POOL_ROWS and writes each row's results, `width` floats. */
typedef void (*row_op)(backend *b, void *fixture, const int *which, int n, float *out);
/* Every variant, n = 1..16, 33 and 64 (if `distinct`, only to 16: no row twice in a launch), in order and shuffled,
 * must give each row the bits that plain C gives it alone. */
void check_rows(row_op op, void *fixture, size_t width, enum be_act act, const be_dims *dims, bool distinct);

/* Float32 tensor of the golden model file by name; false if it is not there. */
bool golden_tensor(const char *name, float *out, size_t n);

#endif
