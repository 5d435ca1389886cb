/* ds4-quantize: Hugging Face checkpoint -> GGUF. One option table drives parser and help. */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "convert/convert.h"
#include "convert/par.h"
#include "file/quant.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

typedef struct options {
    const char *hf, *out, *recipe, *imatrix, *name, *experts, *dense, *layout;
    long threads;
    bool drafter, dry_run, strict, help;
} options;

enum kind { TEXT, FLAG, NUMBER };

typedef struct option_row { const char *name, *arg, *help; enum kind kind; size_t at; } option_row;

#define AT(f) offsetof(options, f)
static const option_row table[] = {
    {"--hf", "DIR", "checkpoint directory: config.json, *.safetensors, tokenizer.json", TEXT, AT(hf)},
    {"--out", "FILE", "GGUF file to write (replaced only when the new one is complete)", TEXT, AT(out)},
    {"--recipe", "R", "types of the tensors, see below", TEXT, AT(recipe)},
    {"--dspark-support", NULL, "write the DSpark drafter (mtp.N tensors) instead of the trunk", FLAG, AT(drafter)},
    {"--imatrix", "FILE", "importance matrix (legacy .dat); without it: column sums of squared weights", TEXT,
        AT(imatrix)},
    {"--experts", "TYPE", "type of all routed experts instead of the recipe's", TEXT, AT(experts)},
    {"--dense", "TYPE", "type of attention, shared-expert and head matrices instead of the recipe's", TEXT, AT(dense)},
    {"--layout", "L", "ds4 (default) or llama: names and shapes of llama.cpp's files", TEXT, AT(layout)},
    {"--name", "STR", "general.name of the file", TEXT, AT(name)},
    {"--threads", "N", "worker threads (default: processors online)", NUMBER, AT(threads)},
    {"--strict", NULL, "a type that a shape cannot take is an error instead of a fallback", FLAG, AT(strict)},
    {"--dry-run", NULL, "check everything, list the planned tensors, write nothing", FLAG, AT(dry_run)},
    {"--help", NULL, "this text", FLAG, AT(help)},
};
enum { N_OPTIONS = sizeof table / sizeof *table };

static void print_help(FILE *f)
{
    fputs("usage: ds4-quantize --hf DIR --out FILE --recipe R [options]\n\n", f);
    for (int i = 0; i < N_OPTIONS; i++) {
        int n = fprintf(f, "  %s%s%s", table[i].name, table[i].arg ? " " : "", table[i].arg ? table[i].arg : "");
        fprintf(f, "%*s%s\n", n < 22 ? 22 - n : 1, "", table[i].help);
    }
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

static const option_row *find_option(const char *name)
{
    for (int i = 0; i < N_OPTIONS; i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}

static int parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const option_row *r = find_option(argv[i]);
        if (!r)
            return usage(argv[i][0] == '-' ? "unknown option" : "unexpected argument", argv[i]);
        char *field = (char *)o + r->at;
        if (r->kind == FLAG) {
            *(bool *)field = true;
            continue;
        }
        if (++i >= argc)
            return usage("missing value after", r->name);
        if (r->kind == TEXT) {
            *(const char **)field = argv[i];
            continue;
        }
        char *end;
        long v = strtol(argv[i], &end, 10);
        if (*end || end == argv[i] || v < 1 || v > PAR_MAX_THREADS)
            return usage("--threads wants a number in 1..256, found", argv[i]);
        *(long *)field = v;
    }
    return 0;
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
                        .threads = (int)o->threads, .progress = on_tensor,
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
    if (o->layout && strcmp(o->layout, "ds4") && strcmp(o->layout, "llama"))
        return usage("--layout is ds4 or llama, found", o->layout);
    c->plan.llama = o->layout && !strcmp(o->layout, "llama");
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
    int rc = parse(&o, argc, argv);
    if (rc)
        return rc;
    if (o.help) {
        print_help(stdout);
        return EXIT_OK;
    }
    if (!o.threads) {
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        o.threads = n < 1 ? 1 : n > PAR_MAX_THREADS ? PAR_MAX_THREADS : n;
    }
    rc = fill(&c, &o);
    return rc ? rc : work(&c, &o);
}
