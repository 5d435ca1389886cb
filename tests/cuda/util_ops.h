/* util_ops.h: every operation of a backend as a case: inputs by row of a pool, and a function that runs it on some of
 * these rows. t_ops compares two backends with them, t_narrow a backend with itself. */
#ifndef DS4_TESTS_CUDA_UTIL_OPS_H
#define DS4_TESTS_CUDA_UTIL_OPS_H

#include "backend/util_be.h"

typedef struct op_case {
    char name[64];
    enum be_act act;
    be_dims dims;
    size_t width;  /* results of a row */
    float limit;   /* of the difference, relative to the RMS of a row's results */
    float flips;   /* share of results that may miss it, by at most a tenth of the largest: roundings that flip */
    bool distinct; /* no row twice in a launch */
    int rows;      /* of the pool that exist */
    void *fx;      /* freed with free(); weights are leaked */
    void (*run)(backend *b, const struct op_case *c, const int *which, int n, float *out);
} op_case;

/* All cases, in a fixed order; *count of them. */
op_case *op_cases(int *count);

/* The backend under test; skips the test if there is no GPU. */
backend *open_gpu(enum be_act act, const be_dims *dims);
backend *open_cpu(enum be_act act, const be_dims *dims);

#endif
