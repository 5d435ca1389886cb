/* cli_opts.h: one option table per program drives the parser, the help text, and the advice on mistakes.
 *
 *     static const cli_opt table[] = {
 *         {.help = "Model:", .kind = CLI_GROUP},
 *         {.name = "--model", .alias = "-m", .arg = "FILE", .kind = CLI_TEXT, .at = offsetof(options, model), .help =
 * "..."},
 *     };
 *     options o = {defaults};
 *     if (cli_parse(table, N, argc, argv, &o, &err)) ...            // o is filled
 *     cli_help(stdout, table, N);
 *
 * Values are "--name VALUE" or "--name=VALUE"; short names take "-x VALUE". The last one of a repeated option counts.
 */
#ifndef DS4_APP_CLI_OPTS_H
#define DS4_APP_CLI_OPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum cli_kind {
    CLI_GROUP,  /* a heading of the help text */
    CLI_FLAG,   /* bool: becomes true */
    CLI_SET,    /* int: becomes lo */
    CLI_WORD,   /* const char *: becomes `choices`; an option that stands for a value of another one */
    CLI_TEXT,   /* const char *: points into argv */
    CLI_INT,    /* int in [lo, hi] */
    CLI_U64,    /* cli_u64 */
    CLI_REAL,   /* float in [lo, hi] */
    CLI_CHOICE, /* int: index of the word within `choices` ("one|two") */
};

typedef struct cli_u64 {
    uint64_t value;
    bool given;
} cli_u64;

typedef struct cli_opt {
    const char *name, *alias; /* with their dashes; alias may be NULL */
    const char *arg;          /* what the value is called in the help text; NULL without value */
    enum cli_kind kind;
    size_t at;                /* offset of the field within the options struct */
    double lo, hi;
    const char *choices;
    const char *help;         /* lines are separated by '\n'; NULL: not shown */
} cli_opt;

/* Fills the struct at `into`. DS4_EARG with one line: an unknown option with the nearest known one, an argument that is
 * no option, a missing value, a value with what was expected. */
int cli_parse(const cli_opt *table, size_t n, int argc, char *const *argv, void *into, ds4_err *e);

void cli_help(FILE *f, const cli_opt *table, size_t n);

/* The option nearest to a wrong one, or NULL if none is near. */
const char *cli_nearest(const cli_opt *table, size_t n, const char *wrong);

#endif
