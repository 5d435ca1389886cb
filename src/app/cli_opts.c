#include "app/cli_opts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMN = 30, LONGEST_NAME = 40 };

static bool same(const char *name, const char *s, size_t n)
{
    return name && strlen(name) == n && !memcmp(name, s, n);
}

static const cli_opt *find(const cli_opt *table, size_t n, const char *s, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (table[i].kind != CLI_GROUP && (same(table[i].name, s, len) || same(table[i].alias, s, len)))
            return &table[i];
    return NULL;
}

/* Insertions, deletions and replacements that turn a into b; swapped neighbours count two. */
static size_t distance(const char *a, const char *b)
{
    size_t row[LONGEST_NAME + 1], nb = strlen(b);
    if (nb > LONGEST_NAME)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}

const char *cli_nearest(const cli_opt *table, size_t n, const char *wrong)
{
    size_t len = strlen(wrong), best = len > 12 ? 4 : len / 3;
    const char *found = NULL;
    if (len > LONGEST_NAME)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        const char *name = table[i].name;
        if (table[i].kind == CLI_GROUP || !table[i].help)
            continue;
        size_t d = distance(wrong, name);
        if (d > best && len > 3 && !strncmp(name, wrong, len))
            d = best; /* the beginning of an option's name */
        if (d < best || (d == best && !found)) {
            best = d;
            found = name;
        }
    }
    return found;
}

static int unknown(const cli_opt *table, size_t n, const char *arg, size_t len, ds4_err *e)
{
    char name[LONGEST_NAME + 2];
    if (arg[0] != '-')
        return ds4_fail(e, DS4_EARG, "unexpected argument '%.80s' (a text with spaces needs quotes)", arg);
    snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), arg);
    const char *near = cli_nearest(table, n, name);
    return ds4_fail(e, DS4_EARG, "unknown option %s%s%s%s", name, near ? "; did you mean " : "", near ? near : "",
                    near ? "?" : "");
}

static int refuse(const cli_opt *o, const char *v, const char *expected, ds4_err *e)
{
    return ds4_fail(e, DS4_EARG, "%s is '%.80s', expected %s", o->name, v, expected);
}

static int store_int(const cli_opt *o, const char *v, int *field, ds4_err *e)
{
    char expected[80], *end;
    errno = 0;
    long x = strtol(v, &end, 10);
    if (errno || end == v || *end || (double)x < o->lo || (double)x > o->hi) {
        snprintf(expected, sizeof expected, "a whole number from %.0f to %.0f", o->lo, o->hi);
        return refuse(o, v, expected, e);
    }
    *field = (int)x;
    return 0;
}

static int store_u64(const cli_opt *o, const char *v, cli_u64 *field, ds4_err *e)
{
    char *end;
    errno = 0;
    unsigned long long x = strtoull(v, &end, 0);
    if (errno || end == v || *end || v[0] < '0' || v[0] > '9')
        return refuse(o, v, "a whole number from 0 to 18446744073709551615", e);
    *field = (cli_u64){x, true};
    return 0;
}

static int store_real(const cli_opt *o, const char *v, float *field, ds4_err *e)
{
    char expected[80], *end;
    double x = strtod(v, &end);
    if (end == v || *end || !isfinite(x) || x < o->lo || x > o->hi) {
        snprintf(expected, sizeof expected, "a number from %g to %g", o->lo, o->hi);
        return refuse(o, v, expected, e);
    }
    *field = (float)x;
    return 0;
}

static int store_choice(const cli_opt *o, const char *v, int *field, ds4_err *e)
{
    char expected[120];
    const char *word = o->choices;
    for (int i = 0; *word; i++) {
        size_t n = strcspn(word, "|");
        if (same(v, word, n)) {
            *field = i;
            return 0;
        }
        word += n + (word[n] == '|');
    }
    snprintf(expected, sizeof expected, "one of %s", o->choices);
    return refuse(o, v, expected, e);
}

static int store(const cli_opt *o, const char *v, void *field, ds4_err *e)
{
    switch (o->kind) {
    case CLI_GROUP:
        return 0;
    case CLI_FLAG:
        *(bool *)field = true;
        return 0;
    case CLI_SET:
        *(int *)field = (int)o->lo;
        return 0;
    case CLI_WORD:
        *(const char **)field = o->choices;
        return 0;
    case CLI_TEXT:
        *(const char **)field = v;
        return 0;
    case CLI_INT:
        return store_int(o, v, field, e);
    case CLI_U64:
        return store_u64(o, v, field, e);
    case CLI_REAL:
        return store_real(o, v, field, e);
    case CLI_CHOICE:
        return store_choice(o, v, field, e);
    }
    return ds4_fail(e, DS4_EARG, "%s: no such kind of option", o->name);
}

int cli_parse(const cli_opt *table, size_t n, int argc, char *const *argv, void *into, ds4_err *e)
{
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *value = NULL;
        size_t len = arg[0] == '-' && arg[1] == '-' ? strcspn(arg, "=") : strlen(arg);
        const cli_opt *o = find(table, n, arg, len);
        if (!o)
            return unknown(table, n, arg, len, e);
        if (!o->arg && arg[len])
            return ds4_fail(e, DS4_EARG, "%s takes no value, found '%.80s'", o->name, arg + len + 1);
        if (o->arg)
            value = arg[len] ? arg + len + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (o->arg && !value)
            return ds4_fail(e, DS4_EARG, "%s needs a value: %s %s", arg, o->name, o->arg);
        int rc = store(o, value, (char *)into + o->at, e);
        if (rc)
            return rc;
    }
    return 0;
}

static void help_row(FILE *f, const cli_opt *o)
{
    char left[120];
    snprintf(left, sizeof left, "  %s%s%s%s%s", o->name, o->alias ? ", " : "", o->alias ? o->alias : "",
             o->arg ? " " : "", o->arg ? o->arg : "");
    bool own_line = strlen(left) > HELP_COLUMN - 2;
    fprintf(f, "%s", left);
    int at = (int)strlen(left);
    if (own_line) {
        fputc('\n', f);
        at = 0;
    }
    for (const char *s = o->help; *s;) {
        size_t n = strcspn(s, "\n");
        fprintf(f, "%*s%.*s\n", HELP_COLUMN - at, "", (int)n, s);
        s += n + (s[n] == '\n');
        at = 0;
    }
}

void cli_help(FILE *f, const cli_opt *table, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (table[i].kind == CLI_GROUP)
            fprintf(f, "%s%s\n", i ? "\n" : "", table[i].help);
        else if (table[i].help)
            help_row(f, &table[i]);
    }
}
