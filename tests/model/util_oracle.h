/* util_oracle.h: the golden model of oracle_a as GGUF files of this project's converter. */
#ifndef TESTS_MODEL_UTIL_ORACLE_H
#define TESTS_MODEL_UTIL_ORACLE_H

#include "util/rig.h"

/* Converts the checkpoint in golden directory `dir` into a temporary folder with ds4-quantize (DS4_QUANTIZE or
 * ./ds4-quantize): trunk and drafter, every matrix F32 ("f32") or Q8_0 and F16 ("q8"), experts MXFP4 in both. Returns
 * the folder, or NULL if the program is not there. DS4_TEST_ORACLE_A names a folder with ready files instead.
 * oracle_remove deletes what was made. */
char *oracle_convert(const char *dir);
void oracle_remove(char *files);

/* Opens trunk and drafter of a variant ("f32", "q8"). */
void oracle_open(rig *r, const char *files, const char *variant, enum kv_sim sim, int ctx);

#endif
