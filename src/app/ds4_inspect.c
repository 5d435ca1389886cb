#define _GNU_SOURCE
/* --inspect: what the files say, without loading weights. */
#include <stdlib.h>
#include <string.h>

#include "app/cli_term.h"
#include "app/ds4_once.h"
#include "file/gguf.h"
#include "file/quant.h"
#include "text/vocab.h"

enum { MOST_TYPES = 64 };

static void print_array(const gguf_kv *kv)
{
    bool numbers = kv->elem != GGUF_STR;
    printf("[%llu]", (unsigned long long)kv->count);
    for (uint64_t i = 0; numbers && i < kv->count && i < 12; i++)
        printf(" %.9g", gguf_arr_num(kv, i));
    if (numbers && kv->count > 12)
        printf(" ...");
}

/* Text of a file is shown without its control bytes: they could drive the terminal. */
static void print_text(gguf_str s)
{
    for (size_t i = 0; i < s.n && i < 70; i++)
        putchar((unsigned char)s.p[i] < 32 || s.p[i] == 127 ? ' ' : s.p[i]);
    printf("%s", s.n > 70 ? "..." : "");
}

static void print_metadata(const gguf *g)
{
    printf("metadata:\n");
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const gguf_kv *kv = gguf_kv_at(g, i);
        gguf_str s = kv->key;
        size_t cursor = 0;
        printf("  ");
        print_text(s);
        printf(" = ");
        if (kv->type == GGUF_ARR)
            print_array(kv);
        else if (kv->type == GGUF_STR && gguf_next_str(kv, &cursor, &s))
            print_text(s);
        else
            printf("%.9g", gguf_arr_num(kv, 0));
        putchar('\n');
    }
}

static void print_types(const gguf *g)
{
    struct { uint32_t type; size_t count; uint64_t bytes; } by[MOST_TYPES];
    size_t n = 0;
    uint64_t total = 0;
    char text[32];
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        size_t k = 0;
        while (k < n && by[k].type != t->type)
            k++;
        if (k == MOST_TYPES)
            continue;
        if (k == n)
            by[n++] = (typeof(by[0])){.type = t->type};
        by[k].count++;
        by[k].bytes += t->nbytes;
        total += t->nbytes;
    }
    printf("tensors: %zu, %s\n", gguf_n_tensors(g), cli_bytes(total, text, sizeof text));
    for (size_t k = 0; k < n; k++)
        printf("  %-8s %6zu  %s\n", quant_type_name(by[k].type), by[k].count,
               cli_bytes(by[k].bytes, text, sizeof text));
}

static bool has_tensor(const gguf *g, const char *part)
{
    size_t len = strlen(part);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        gguf_str s = gguf_tensor_at(g, i)->name;
        if (memmem(s.p, s.n, part, len))
            return true;
    }
    return false;
}

static const char *yes(bool b) { return b ? "yes" : "no"; }

/* First of the spellings that published drafters use. */
static const gguf_kv *drafter_key(const gguf *g, const char *name)
{
    static const char *const prefix[] = {"deepseek4.dspark.", "deepseek4.dspark_", "dspark.", "dflash."};
    const gguf_kv *kv = NULL;
    char key[80];
    for (size_t i = 0; i < sizeof prefix / sizeof *prefix && !kv; i++) {
        snprintf(key, sizeof key, "%s%s", prefix[i], name);
        kv = gguf_find_kv(g, key);
    }
    return kv;
}

static void print_number(const char *name, const gguf_kv *kv)
{
    if (kv && kv->elem != GGUF_STR && kv->count)
        printf(" %s=%lld", name, (long long)gguf_arr_int(kv, 0));
    else
        printf(" %s=unknown", name);
}

static int count_stages(const gguf *g)
{
    int n = 0;
    char part[32];
    for (int i = 0; i < 16; i++) {
        snprintf(part, sizeof part, gguf_find_kv(g, "dflash.block_size") ? "blk.%d." : "mtp.%d.", i);
        n += has_tensor(g, part);
    }
    return n;
}

static void print_drafter(const gguf *g)
{
    const gguf_kv *targets = drafter_key(g, "target_layer_ids"), *rank = drafter_key(g, "markov_rank");
    const gguf_tensor *w1 = gguf_find_tensor(g, "markov_w1.weight");
    if (!targets)
        targets = drafter_key(g, "target_layers");
    const gguf_kv *noise = drafter_key(g, "noise_token_id");
    printf("mtp/dspark: stages=%d", count_stages(g));
    print_number("block", drafter_key(g, "block_size"));
    if (!rank && w1)
        printf(" markov_rank=%llu", (unsigned long long)w1->ne[0]);
    else
        print_number("markov_rank", rank);
    print_number("noise_token", noise ? noise : gguf_find_kv(g, "tokenizer.ggml.mask_token_id"));
    printf(" target_layers=");
    for (uint64_t i = 0; targets && targets->type == GGUF_ARR && targets->elem != GGUF_STR && i < targets->count; i++)
        printf("%s%lld", i ? "," : "", (long long)gguf_arr_int(targets, i));
    printf("\nmtp/dspark tensors: main_proj=%s main_norm=%s markov=%s confidence=%s final_head=%s\n",
           yes(has_tensor(g, "main_proj.") || gguf_find_tensor(g, "fc.weight")),
           yes(has_tensor(g, "main_norm.") || gguf_find_tensor(g, "enc.output_norm.weight")),
           yes(has_tensor(g, "markov_")), yes(has_tensor(g, "confidence_") || has_tensor(g, "conf_proj")),
           yes(has_tensor(g, "hc_head_fn.")));
}

static int inspect_file(const char *path, bool drafter, ds4_err *e)
{
    gguf *g;
    vocab *v;
    char text[32];
    int rc = gguf_open(&g, path, e);
    if (rc)
        return rc;
    printf("file: %s (%s)\n", path, cli_bytes(gguf_file_bytes(g), text, sizeof text));
    print_metadata(g);
    print_types(g);
    if (drafter || has_tensor(g, ".main_proj.")) {
        print_drafter(g);
    } else if (gguf_find_kv(g, "tokenizer.ggml.tokens")) {
        ds4_err why;
        if (!vocab_load(&v, g, 0, &why)) {
            printf("tokenizer: %u tokens, bos %d, eos %d\n", vocab_size(v), vocab_bos(v), vocab_eos(v));
            vocab_free(v);
        } else {
            printf("tokenizer: not usable: %s\n", why.msg);
        }
    }
    gguf_close(g);
    return 0;
}

int ds4_once_inspect(const ds4_opts *o)
{
    ds4_err e = {0};
    int rc = inspect_file(o->model, false, &e);
    if (!rc && o->drafter) {
        putchar('\n');
        rc = inspect_file(o->drafter, true, &e);
    }
    if (rc)
        cli_say(PROGRAM, "%s", e.msg);
    return rc ? 1 : 0;
}
