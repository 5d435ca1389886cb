/* ds4: talks with a model. */
#include <stdio.h>

#include "app/cli_term.h"
#include "app/ds4_chat.h"
#include "app/ds4_once.h"
#include "app/ds4_opts.h"
#include "ds4.h"

enum { EXIT_USAGE = 2 };

static int run(const ds4_opts *o)
{
    if (o->inspect)
        return ds4_once_inspect(o);
    if (o->render)
        return ds4_once_render(o);
    if (o->dump_tokens)
        return ds4_once_dump_tokens(o);
    if (o->prompt || o->prompt_file || o->token_ids || o->load)
        return ds4_once_answer(o);
    return ds4_chat(o);
}

int main(int argc, char **argv)
{
    ds4_opts o;
    ds4_err e = {0};
    cli_hold_standard_files();
    ds4_opts_warn_environment();
    if (ds4_opts_read(&o, argc, argv, &e)) {
        cli_say(PROGRAM, "%s (--help lists the options)", e.msg);
        return EXIT_USAGE;
    }
    if (o.help)
        ds4_opts_help();
    else if (o.version)
        puts("ds4 " DS4_VERSION);
    else {
        int status = run(&o);
        if (fflush(stdout) || ferror(stdout)) {
            if (!status) /* else the line is written */
                cli_say(PROGRAM, "standard output is closed or full");
            return 1;
        }
        return status;
    }
    return 0;
}
