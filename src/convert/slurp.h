/* slurp.h: a whole small file into memory. */
#ifndef DS4_CONVERT_SLURP_H
#define DS4_CONVERT_SLURP_H

#include <stddef.h>

#include "base/err.h"

/* Reads `path` (at most `max` bytes) into *out, terminated by a NUL that *len does not count; the caller frees. */
int slurp(char **out, size_t *len, const char *path, size_t max, ds4_err *e);

#endif
