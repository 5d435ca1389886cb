#include "base/cfg.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

extern char **environ;

const cfg_setting *cfg_settings(size_t *n)
{
    static const cfg_setting table[] = {
#define CFG_BOOL(field, name, def, help) {name, "0|1", help},
#define CFG_INT(field, name, def, lo, hi, help) {name, "number", help},
#include "base/cfg.def"
#undef CFG_BOOL
#undef CFG_INT
    };
    _Static_assert(sizeof table / sizeof *table <= 12, "more than 12 environment settings: make it an option");
    *n = sizeof table / sizeof *table;
    return table;
}

static cfg defaults(void)
{
    return (cfg){
#define CFG_BOOL(field, name, def, help) .field = (def),
#define CFG_INT(field, name, def, lo, hi, help) .field = (def),
#include "base/cfg.def"
#undef CFG_BOOL
#undef CFG_INT
    };
}

static int read_bool(const char *name, bool *out, ds4_err *e)
{
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    const char *v = getenv(name);
    if (!v || !*v)
        return 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(v, words[i])) {
            *out = i % 2;
            return 0;
        }
    return ds4_fail(e, DS4_EARG, "environment variable %s is '%.80s', expected 0 or 1", name, v);
}

static int read_int(const char *name, long lo, long hi, int *out, ds4_err *e)
{
    const char *v = getenv(name);
    if (!v || !*v)
        return 0;
    char *end;
    errno = 0;
    long x = strtol(v, &end, 10);
    if (errno || *end || end == v || x < lo || x > hi)
        return ds4_fail(e, DS4_EARG, "environment variable %s is '%.80s', expected a number from %ld to %ld", name, v,
                        lo, hi);
    *out = (int)x;
    return 0;
}

int cfg_load(cfg *c, ds4_err *e)
{
    cfg got = defaults();
    *c = got;
    int rc = 0;
#define CFG_BOOL(field, name, def, help) if (!rc) rc = read_bool(name, &got.field, e);
#define CFG_INT(field, name, def, lo, hi, help) if (!rc) rc = read_int(name, lo, hi, &got.field, e);
#include "base/cfg.def"
#undef CFG_BOOL
#undef CFG_INT
    if (!rc)
        *c = got;
    return rc;
}

static bool has_prefix(const char *s, size_t n, const char *prefix)
{
    size_t k = strlen(prefix);
    return n >= k && !memcmp(s, prefix, k);
}

static bool is_known(const char *s, size_t n)
{
    static const char *const script_names[] = {"DS4_BIN", "DS4_BENCH_BIN", "DS4_DSPARK_MODEL",
                                               "DS4_DSPARK_SUPPORT"};
    size_t count;
    const cfg_setting *t = cfg_settings(&count);
    for (size_t i = 0; i < count; i++)
        if (strlen(t[i].name) == n && !memcmp(t[i].name, s, n))
            return true;
    for (size_t i = 0; i < sizeof script_names / sizeof *script_names; i++)
        if (strlen(script_names[i]) == n && !memcmp(script_names[i], s, n))
            return true;
    return has_prefix(s, n, "DS4_TEST_") || has_prefix(s, n, "DS4_DSPARK_FIXTURE_");
}

bool cfg_unknown(size_t *cursor, char *name, size_t cap)
{
    for (; environ && environ[*cursor]; ++*cursor) {
        const char *s = environ[*cursor];
        size_t n = strcspn(s, "=");
        if (!has_prefix(s, n, "DS4_") || is_known(s, n))
            continue;
        size_t cut = n < cap ? n : cap - 1;
        memcpy(name, s, cut);
        name[cut] = 0;
        ++*cursor;
        return true;
    }
    return false;
}
