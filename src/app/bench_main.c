/* ds4-bench: how fast a model is read and generated, at growing contexts, plain and drafted. */
#include <stdio.h>

#include "app/bench_opts.h"
#include "app/bench_run.h"
#include "app/cli_signal.h"
#include "app/cli_term.h"
#include "ds4.h"

enum { EXIT_USAGE = 2 };

static int run(const bench_opts *o)
{
    bench b;
    ds4_err e = {0};
    cli_signal_catch();
    int rc = bench_open(&b, o, &e);
    if (!rc) {
        rc = o->cycle ? bench_cycle(&b, &e) : bench_sweep(&b, &e);
        if (!rc)
            rc = bench_commit(&b, &e);
        bench_close(&b);
    }
    if (rc)
        cli_say(BENCH_PROGRAM, "%s", e.msg);
    return rc ? 1 : 0;
}

static void warn_environment(void)
{
    size_t cursor = 0;
    char name[80];
    while (cfg_unknown(&cursor, name, sizeof name))
        cli_say(BENCH_PROGRAM, "warning: nothing reads the environment variable %s", name);
}

int main(int argc, char **argv)
{
    bench_opts o;
    ds4_err e = {0};
    int status = 0;
    cli_hold_standard_files();
    warn_environment();
    if (bench_opts_read(&o, argc, argv, &e)) {
        cli_say(BENCH_PROGRAM, "%s (--help lists the options)", e.msg);
        return EXIT_USAGE;
    }
    if (o.help)
        bench_opts_help();
    else if (o.version)
        puts("ds4-bench " DS4_VERSION);
    else
        status = run(&o);
    if (fflush(stdout) || ferror(stdout)) {
        if (!status) /* else the line is written */
            cli_say(BENCH_PROGRAM, "standard output is closed or full");
        return 1;
    }
    return status;
}
