#include "app/bench_opts.h"

#include "app/cli_file.h"

#define AT(field) .at = offsetof(bench_opts, field)
#define GROUP(text)                                                                                                    \
    {                                                                                                                  \
        .kind = CLI_GROUP, .help = text                                                                                \
    }
enum { MOST_CTX = 1 << 28, MOST_TOKENS = 1 << 20 };

static const cli_opt table[] = {
    GROUP("Model:"),
    {"--model", "-m", "FILE", CLI_TEXT, AT(model), .help = "model file (GGUF; any part of a split set)"},
    {"--mtp", "--mtp-model", "FILE", CLI_TEXT, AT(drafter), .help = "DSpark support file (GGUF) of the same model"},
    {"--synthetic", NULL, "NAME", CLI_TEXT, AT(synthetic),
     .help = "instead: random weights of a real shape, made on the device:\nflash-q2, flash-q4 or flash-mxfp4"},
    {"--layers", NULL, "N", CLI_INT, AT(layers), .lo = 3, .hi = 128, .help = "only the first N layers of it"},
    {"--synthetic-drafter", NULL, NULL, CLI_FLAG, AT(synthetic_drafter), .help = "with a drafter of the same kind"},
    {"--synthetic-skew", NULL, "F", CLI_REAL, AT(skew), .lo = 0, .hi = 100,
     .help = "uneven routing: root mean square of the router bias\n(default 0: all experts are equally likely)"},
    {"--backend", NULL, "NAME", CLI_TEXT, AT(backend), .help = "cpu or cuda (default: the best one there is)"},
    {"--cpu", NULL, NULL, CLI_WORD, AT(backend), .choices = "cpu", .help = "same as --backend cpu"},
    {"--cuda", NULL, NULL, CLI_WORD, AT(backend), .choices = "cuda", .help = "same as --backend cuda"},
    {"--threads", "-t", "N", CLI_INT, AT(threads), .lo = 1, .hi = 1024, .help = "CPU threads (default: all)"},
    {"--act", NULL, "A", CLI_CHOICE, AT(act), .choices = "q8|float",
     .help = "activations of quantised products: q8 (default), float (reference)"},

    GROUP("Contexts:"),
    {"--prompt-file", NULL, "FILE", CLI_TEXT, AT(prompt_file),
     .help = "the text that fills them (- is standard input); a short one is repeated"},
    {"--ctx-start", NULL, "N", CLI_INT, AT(ctx_start), .lo = 1, .hi = MOST_CTX,
     .help = "first context in tokens (default 2048)"},
    {"--ctx-max", NULL, "N", CLI_INT, AT(ctx_max), .lo = 1, .hi = MOST_CTX,
     .help = "no context is longer (default: only the first one)"},
    {"--step-incr", NULL, "N", CLI_INT, AT(step_incr), .lo = 1, .hi = MOST_CTX,
     .help = "each is N longer than the one before (default 2048)"},
    {"--step-mul", NULL, "F", CLI_REAL, AT(step_mul), .lo = 1.001, .hi = 1000,
     .help = "each is F times the one before, instead of --step-incr"},
    {"--place", NULL, NULL, CLI_FLAG, AT(place),
     .help = "fill contexts with random state instead of reading text: no prefill"},

    GROUP("What is measured:"),
    {"--gen-tokens", "-n", "N", CLI_INT, AT(gen_tokens), .lo = 2, .hi = MOST_TOKENS,
     .help = "tokens generated at each context, greedily, past EOS too (default 64)"},
    {"--dspark", NULL, NULL, CLI_FLAG, AT(dspark),
     .help = "the same once more, drafted with the file of --mtp; both texts must agree"},
    {"--dspark-confidence", NULL, "F", CLI_REAL, AT(confidence), .lo = 0, .hi = 1,
     .help = "draft while the confidence is at least F, whatever it costs\n(implies --dspark; default: the cost model "
             "decides)"},
    {"--accept", NULL, "P", CLI_TEXT, AT(accept),
     .help = "scripted acceptance: P drafts of each cycle on average, or a list (2,2,1,3) used\nover and over, "
             "count as accepted; speed at that acceptance, not a text (implies --dspark)"},
    {"--cycle", NULL, NULL, CLI_FLAG, AT(cycle),
     .help = "instead: the time of 1 to 16 rows, and with a drafter of a proposal, its parts and a cycle"},
    {"--repeat", NULL, "N", CLI_INT, AT(repeat), .lo = 1, .hi = 1000,
     .help = "medians of N sweeps (default 1; with --cycle N is the number of rounds, default 5)"},

    GROUP("Output:"),
    {"--csv", NULL, "FILE", CLI_TEXT, AT(csv), .help = "write the table also to FILE (replaced when it is complete)"},
    {"--help", "-h", NULL, CLI_FLAG, AT(help), .help = "this text"},
    {"--version", NULL, NULL, CLI_FLAG, AT(version), .help = "version and exit"},
};
enum { N_OPTIONS = sizeof table / sizeof *table };

void bench_opts_help(void)
{
    printf("usage: ds4-bench -m FILE --prompt-file FILE [options]\n       ds4-bench --synthetic NAME [options]\n\n");
    cli_help(stdout, table, N_OPTIONS);
    printf("\nExit status: 0 done, 1 failed or the texts differ (one line on stderr says why), 2 wrong usage.\n"
           "The table (CSV) goes to standard output, everything else to standard error. docs/bench.md explains it.\n");
}

static int check_files(const bench_opts *o, ds4_err *e)
{
    const char *const in[] = {o->model, o->drafter, o->prompt_file};
    const bool drafts = o->drafter || o->synthetic_drafter;
    if (o->synthetic && (o->model || o->drafter || o->prompt_file))
        return ds4_fail(e, DS4_EARG, "--synthetic goes without -m, --mtp and --prompt-file");
    if (!o->synthetic && (o->layers || o->synthetic_drafter || o->skew > 0))
        return ds4_fail(e, DS4_EARG, "--layers, --synthetic-drafter and --synthetic-skew go with --synthetic NAME");
    if (!o->model && !o->synthetic)
        return ds4_fail(e, DS4_EARG, "no model: give -m FILE (the small one is mini/ds4-mini.gguf)");
    if (!o->prompt_file && !o->synthetic)
        return ds4_fail(e, DS4_EARG, "no text: give --prompt-file FILE");
    if (o->dspark && !drafts)
        return ds4_fail(e, DS4_EARG, "--dspark requires %s",
                        o->synthetic ? "--synthetic-drafter" : "--mtp FILE (the DSpark support GGUF)");
    if (o->drafter && !o->dspark && !o->cycle)
        return ds4_fail(e, DS4_EARG, "--mtp goes with --dspark or --cycle");
    for (size_t i = 0; i < sizeof in / sizeof *in; i++)
        if (cli_same_file(o->csv, in[i]))
            return ds4_fail(e, DS4_EARG, "--csv would replace %s, which is read", in[i]);
    return 0;
}

int bench_opts_read(bench_opts *o, int argc, char *const *argv, ds4_err *e)
{
    *o = (bench_opts){.ctx_start = 2048, .gen_tokens = 64, .confidence = -1};
    int rc = cfg_load(&o->env, e);
    if (!rc)
        rc = cli_parse(table, N_OPTIONS, argc, argv, o, e);
    if (rc || o->help || o->version)
        return rc;
    o->dspark |= o->confidence >= 0 || o->accept;
    rc = check_files(o, e);
    if (rc)
        return rc;
    if (o->dspark && o->cycle)
        return ds4_fail(e, DS4_EARG, "--cycle and --dspark are two tables: give one of them");
    if (o->step_incr && o->step_mul > 0)
        return ds4_fail(e, DS4_EARG, "give only one of --step-incr and --step-mul");
    if (!o->step_incr)
        o->step_incr = 2048;
    if (!o->ctx_max)
        o->ctx_max = o->ctx_start;
    if (o->ctx_max < o->ctx_start)
        return ds4_fail(e, DS4_EARG, "--ctx-max is %d, expected at least --ctx-start, which is %d", o->ctx_max,
                        o->ctx_start);
    if (!o->repeat)
        o->repeat = o->cycle ? 5 : 1;
    return 0;
}
