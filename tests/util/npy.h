/* npy.h: golden arrays for tests (NumPy format 1.x, C order, little endian, float32 or int32). */
#ifndef DS4_TESTS_UTIL_NPY_H
#define DS4_TESTS_UTIL_NPY_H

#include <stddef.h>
#include <stdint.h>

typedef struct npy {
    int n_dims;      /* 0..8 */
    size_t shape[8]; /* slowest first */
    size_t count;    /* product */
    float *f;        /* float32 data, or NULL */
    int32_t *i;      /* int32 data, or NULL */
} npy;

/* 0, or -1 with a line in why[200]. Free with npy_free. */
int npy_load(npy *a, const char *path, char why[200]);
void npy_free(npy *a);

/* Folder of the golden data: DS4_TEST_DATA, else ../shared/data beside the repository. NULL if there is none. */
const char *golden_dir(void);
/* Loads <golden dir>/<name>. 1 = loaded, 0 = no golden data on this machine (the caller skips); anything wrong with a
 * file that should be there ends the test with a message. */
int golden_npy(npy *a, const char *name);

#endif
