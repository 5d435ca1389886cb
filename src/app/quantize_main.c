/* ds4-quantize: Hugging Face checkpoint -> GGUF. One option table drives parser and help. */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/cli_opts.h"
#include "app/cli_term.h"
#include "convert/convert.h"
#include "convert/par.h"
#include "file/quant.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

typedef struct options {
    const char *hf, *out, *recipe, *imatrix, *name, *experts, *dense;
    int threads, layout;
    bool drafter, dry_run, strict, help;
} options;

#define AT(f) .at = offsetof(options, f)
static const cli_opt table[] = {
    {"--hf", NULL, "DIR", CLI_TEXT, AT(hf), .help = "checkpoint directory: config.json, *.safetensors, tokenizer.json"},
    {"--out", NULL, "FILE", CLI_TEXT, AT(out),
     .help = "GGUF file to write (replaced only when the new one is complete)"},
    {"--recipe", NULL, "R", CLI_TEXT, AT(recipe), .help = "types of the tensors, see below"},
    {"--dspark-support", NULL, NULL, CLI_FLAG, AT(drafter),
     .help = "write the DSpark drafter (mtp.N tensors) instead of the trunk"},
    {"--imatrix", NULL, "FILE", CLI_TEXT, AT(imatrix),
     .help = "importance matrix (legacy .dat); without it: column sums of squared weights"},
    {"--experts", NULL, "TYPE", CLI_TEXT, AT(experts), .help = "type of all routed experts instead of the recipe's"},
    {"--dense", NULL, "TYPE", CLI_TEXT, AT(dense),
     .help = "type of attention, shared-expert and head matrices instead of the recipe's"},
    {"--layout", NULL, "L", CLI_CHOICE, AT(layout), .choices = "ds4|llama",
     .help = "ds4 (default) or llama: names and shapes of llama.cpp's files"},
    {"--name", NULL, "STR", CLI_TEXT, AT(name), .help = "general.name of the file"},
    {"--threads", NULL, "N", CLI_INT, AT(threads), .lo = 1, .hi = PAR_MAX_THREADS,
     .help = "worker threads (default: processors online)"},
    {"--strict", NULL, NULL, CLI_FLAG, AT(strict),
     .help = "a type that a shape cannot take is an error instead of a fallback"},
    {"--dry-run", NULL, NULL, CLI_FLAG, AT(dry_run),
     .help = "check everything, list the planned tensors, write nothing"},
    {"--help", "-h", NULL, CLI_FLAG, AT(help), .help = "this text"},
};
enum { N_OPTIONS = sizeof table / sizeof *table };

static void print_help(FILE *f)
{
    fputs("usage: ds4-quantize --hf DIR --out FILE --recipe R [options]\n\n", f);
    cli_help(f, table, N_OPTIONS);
    fputs("\nrecipes:\n", f);
    for (const plan_recipe *r = plan_recipes; r->name; r++)
        fprintf(f, "  %-8s %s\n", r->name, r->text);
    fputs("  (vectors stay F32; from f16 on hyper-connections, compressor, indexer, router and embedding are F16)\n"
          "types: f32 f16 bf16 q8_0 q4_k q2_k iq2_xxs mxfp4\n"
          "exit status: 0 done, 1 failed (one line on stderr), 2 wrong usage\n", f);
}

static int usage(const char *what, const char *arg)
{
    fprintf(stderr, "ds4-quantize: %s%s%s (see --help)\n", what, arg ? " " : "", arg ? arg : "");
    return EXIT_USAGE;
}

/* "[256, 32, 8]" in GGUF order. */
static const char *shape_text(const plan_tensor *t, char *buf, size_t n)
{
    size_t at = (size_t)snprintf(buf, n, "[");
    for (uint32_t i = 0; i < t->n_dims && at < n; i++)
        at += (size_t)snprintf(buf + at, n - at, "%s%llu", i ? ", " : "", (unsigned long long)t->ne[i]);
    if (at < n)
        snprintf(buf + at, n - at, "]");
    return buf;
}

static void print_tensor(const plan_tensor *t)
{
    char shape[96];
    printf("%-40s %-20s %-8s %12llu", t->name, shape_text(t, shape, sizeof shape), quant_type_name(t->type),
           (unsigned long long)t->nbytes);
}

static void on_tensor(void *ctx, const plan *p, size_t no, const enc_loss *loss, const char *remark)
{
    const plan_tensor *t = &p->t[no];
    (void)ctx;
    printf("%4zu/%zu ", no + 1, p->n);
    print_tensor(t);
    if (loss->inexact)
        printf("  relative error %.2e, largest %.2e, %llu of %llu values changed", sqrt(loss->err2 / loss->sum2),
               (double)loss->max_err, (unsigned long long)loss->inexact, (unsigned long long)loss->n);
    else
        printf("  exact");
    printf("%s%s\n", *remark ? "; " : "", remark);
    fflush(stdout);
}

static void print_plan(const conv *c, const options *o)
{
    const plan *p = conv_plan(c);
    for (size_t i = 0; i < p->n; i++) {
        const plan_tensor *t = &p->t[i];
        if (o->dry_run) {
            print_tensor(t);
            putchar('\n');
        }
        if (t->type != t->wanted)
            printf("note: %s: rows of %llu values cannot be %s, %s is used\n", t->name, (unsigned long long)t->ne[0],
                   quant_type_name(t->wanted), quant_type_name(t->type));
    }
    if (conv_n_other(c))
        printf("note: %zu tensors of the checkpoint belong to the %s and are left out\n", conv_n_other(c),
               o->drafter ? "trunk" : "drafter (--dspark-support)");
    if (!o->drafter && !conv_has_tokenizer(c))
        printf("note: %s has no tokenizer.json: the file gets no tokenizer\n", o->hf);
    printf("total: %zu tensors, %llu bytes (%.2f GiB)\n", p->n, (unsigned long long)p->bytes,
           (double)p->bytes / (1 << 30));
    fflush(stdout);
}

static int fill(conv_options *c, const options *o)
{
    uint32_t type;
    *c = (conv_options){.hf_dir = o->hf, .out = o->out, .imatrix = o->imatrix, .name = o->name, .drafter = o->drafter,
                        .threads = o->threads, .progress = on_tensor,
                        .plan = {.experts = -1, .dense = -1, .strict = o->strict}};
    if (!o->hf || !o->recipe || (!o->out && !o->dry_run))
        return usage("--hf, --recipe and --out are needed", NULL);
    if (!(c->plan.recipe = plan_find_recipe(o->recipe)))
        return usage("unknown recipe", o->recipe);
    if (o->experts && !enc_type_by_name(o->experts, &type))
        return usage("unknown type after --experts:", o->experts);
    if (o->experts)
        c->plan.experts = type;
    if (o->dense && !enc_type_by_name(o->dense, &type))
        return usage("unknown type after --dense:", o->dense);
    if (o->dense)
        c->plan.dense = type;
    c->plan.llama = o->layout == 1;
    return 0;
}

static int work(const conv_options *co, const options *o)
{
    conv *c;
    ds4_err e = {0};
    uint64_t bytes = 0;
    if (conv_open(&c, co, &e)) {
        fprintf(stderr, "ds4-quantize: %s\n", e.msg);
        return EXIT_FAILED;
    }
    print_plan(c, o);
    int rc = o->dry_run ? 0 : conv_run(c, &bytes, &e);
    conv_close(c);
    if (rc) {
        fprintf(stderr, "ds4-quantize: %s\n", e.msg);
        return EXIT_FAILED;
    }
    if (!o->dry_run)
        printf("wrote %s: %llu bytes\n", o->out, (unsigned long long)bytes);
    return EXIT_OK;
}

int main(int argc, char **argv)
{
    options o = {0};
    conv_options c;
    ds4_err e = {0};
    cli_hold_standard_files();
    if (cli_parse(table, N_OPTIONS, argc, argv, &o, &e))
        return usage(e.msg, NULL);
    if (o.help) {
        print_help(stdout);
        return EXIT_OK;
    }
    if (!o.threads) {
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        o.threads = n < 1 ? 1 : n > PAR_MAX_THREADS ? PAR_MAX_THREADS : (int)n;
    }
    int rc = fill(&c, &o);
    return rc ? rc : work(&c, &o);
}
