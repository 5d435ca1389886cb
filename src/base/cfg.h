/* cfg.h: settings from the environment. cfg.c is the only place that reads it. */
#ifndef DS4_BASE_CFG_H
#define DS4_BASE_CFG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

typedef struct cfg {
#define CFG_BOOL(field, name, def, help) bool field;
#define CFG_INT(field, name, def, lo, hi, help) int field;
#include "base/cfg.def"
#undef CFG_BOOL
#undef CFG_INT
} cfg;

/* One row of the table, for help texts. */
typedef struct cfg_setting {
    const char *name; /* variable */
    const char *type; /* "0|1" or "number" */
    const char *help;
} cfg_setting;

const cfg_setting *cfg_settings(size_t *n);

/* Defaults, then the environment; an empty variable counts as unset. A malformed or out-of-range value: DS4_EARG naming
 * variable, found and expected; *c then holds the defaults. Booleans: 1 0 true false yes no on off. */
int cfg_load(cfg *c, ds4_err *e);

/* Walks DS4_* variables of the environment that nothing reads, so that a typing mistake is noticed. *cursor starts at
 * 0. True: `name` (cut to cap - 1 bytes) is the next one. Variables of the test scripts are not reported. */
bool cfg_unknown(size_t *cursor, char *name, size_t cap);

#endif
