/* bench_run.h: an open engine with one session, the text, the contexts to measure, and the table that comes out. */
#ifndef DS4_APP_BENCH_RUN_H
#define DS4_APP_BENCH_RUN_H

#include "app/bench_opts.h"
#include "app/cli_term.h"
#include "base/fsio.h"
#include "ds4.h"

enum { BENCH_SCRIPT = 100 };
enum { BENCH_ROWS = 16 }; /* most rows of one forward that --cycle times */

typedef struct bench {
    const bench_opts *o;
    ds4_engine *eng;
    ds4_session *ses;
    ds4_info info;
    cli_progress progress;
    int32_t *text; /* [longest context + BENCH_ROWS], begins with BOS */
    int *point;    /* [points] contexts, ascending */
    int points;
    uint64_t token_bytes; /* of weights, read by a plain step */
    uint8_t script[BENCH_SCRIPT]; /* --accept */
    int script_len;
    double copy, read;    /* bytes per second of a plain copy, read and written, and of reading; 0: not measured */
    double distinct[BENCH_ROWS]; /* --cycle: experts per layer that so many rows read */
    fsio_writer csv;
    bool csv_open, said_again;
} bench;

int bench_open(bench *b, const bench_opts *o, ds4_err *e);
void bench_close(bench *b);

/* A line of the table, to standard output and --csv. Failures of the file show in bench_commit. */
__attribute__((format(printf, 2, 3))) void bench_put(bench *b, const char *fmt, ...);
int bench_commit(bench *b, ds4_err *e);

/* Feeds the text from the session's position up to context i. *fed tokens took *seconds. */
int bench_feed(bench *b, int i, int *fed, double *seconds, ds4_err *e);
/* Brings the session back to context i, with the same state each time (the last token is fed alone): by rewinding, or
 * where that is no longer possible by feeding the text again, which is announced once. Not timed. */
int bench_back(bench *b, int i, ds4_err *e);

/* Bytes per second, read and written, of copies between blocks of ordinary memory on n threads; the best of a few. */
int bench_copy(int threads, double *out, ds4_err *e);
/* Sorts x. */
double bench_median(double *x, int n);

int bench_sweep(bench *b, ds4_err *e);
int bench_cycle(bench *b, ds4_err *e);

#endif
