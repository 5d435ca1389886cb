/* bench_opts.h: the options of ds4-bench. */
#ifndef DS4_APP_BENCH_OPTS_H
#define DS4_APP_BENCH_OPTS_H

#include "app/cli_opts.h"
#include "base/cfg.h"

#define BENCH_PROGRAM "ds4-bench"

typedef struct bench_opts {
    const char *model, *drafter, *backend, *prompt_file, *csv;
    const char *synthetic; /* instead of model */
    int layers;            /* of it; 0: all */
    float skew;
    bool synthetic_drafter, place;
    const char *accept; /* scripted acceptance, or NULL */
    int threads, act;
    int ctx_start, ctx_max, step_incr, gen_tokens, repeat;
    float step_mul;   /* 0: step_incr counts */
    float confidence; /* < 0: the scheduler decides */
    bool dspark, cycle, help, version;
    cfg env;
} bench_opts;

/* Reads arguments and environment, and checks that they go together. DS4_EARG else. */
int bench_opts_read(bench_opts *o, int argc, char *const *argv, ds4_err *e);
void bench_opts_help(void);

#endif
