/* util_oracle.h: the golden model of oracle_a as GGUF files of this project's converter. */
#ifndef TESTS_MODEL_UTIL_ORACLE_H
#define TESTS_MODEL_UTIL_ORACLE_H

#include "util/rig.h"

typedef struct oracle {
    char *dir;   /* oracle_a of the golden data; NULL: the tests skip */
    char *files; /* folder of the converted files */
} oracle;

/* cmocka group fixture; *state is an oracle. Converts the checkpoint into a temporary folder with ds4-quantize
 * (DS4_QUANTIZE, the one of this build, or ./ds4-quantize): trunk and drafter, every matrix F32 ("f32") or Q8_0 and F16
 * ("q8"), experts MXFP4 in both. DS4_TEST_ORACLE_A names a folder with ready files instead. */
int oracle_setup(void **state);
int oracle_teardown(void **state);

/* Opens trunk and drafter of a variant ("f32", "q8") on the backend that DS4_TEST_BACKEND names; oracle_open_composed:
 * of single operations (rig.h). */
void oracle_open(rig *r, const char *files, const char *variant, enum kv_sim sim, int ctx);
void oracle_open_composed(rig *r, const char *files, const char *variant, enum kv_sim sim, int ctx);

#endif
