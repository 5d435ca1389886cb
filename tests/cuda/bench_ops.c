/* bench_ops.c: time of operations at the shapes of DeepSeek-V4-Flash, through the backend's table. Each operation runs
 * over copies of its weights that together exceed the device's cache. Prints microseconds and the GB/s of weight bytes
 * read.
 *
 *   bench_ops [copies' megabytes, default 400] */
#include <stdio.h>

#include "backend/util_be.h"
#include "base/clock.h"

enum { REPEATS = 60, MOST = 64, EXPERTS = 48 };
static const int rows[] = {1, 2, 3, 4, 6, 8, 16};

static const be_dims flash = {.d = 4096,
                              .streams = 4,
                              .sinkhorn = 20,
                              .rms_eps = 1e-6f,
                              .hc_eps = 1e-6f,
                              .heads = 64,
                              .head_dim = 512,
                              .rope_dim = 64,
                              .window = 128,
                              .groups = 8,
                              .group_rank = 1024,
                              .idx_heads = 64,
                              .idx_dim = 128,
                              .idx_topk = 512,
                              .experts = EXPERTS,
                              .used = 6,
                              .ff = 2048,
                              .route_scale = 1.5f,
                              .vocab = 129280};

typedef struct rig {
    backend *b;
    float *x, *y, *big; /* room for any input and output */
    int32_t *pos, *ids;
    double budget; /* bytes of all copies of one weight */
    rng g;
} rig;

static void wait(rig *k)
{
    ds4_err e;
    if (k->b->op->sync(k->b, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
}

typedef void (*timed)(rig *k, int n, int turn, void *ctx);

static void report(rig *k, const char *name, double bytes, timed fn, void *ctx)
{
    printf("%-44s %8.2f MB", name, bytes / 1e6);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int t = 0; t < 5; t++)
            fn(k, rows[i], t, ctx);
        wait(k);
        double start = clock_now();
        for (int t = 0; t < REPEATS; t++)
            fn(k, rows[i], t, ctx);
        wait(k);
        double us = (clock_now() - start) / REPEATS * 1e6;
        printf(bytes > 0 ? " | %7.1f %5.0f" : " | %7.1f      ", us, bytes / us / 1e3);
    }
    printf("\n");
}

typedef struct copies {
    be_weight w[MOST];
    int n, groups;
} copies;

static double bind_copies(rig *k, copies *c, uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2)
{
    be_weight host = make_weight(&k->g, type, ne0, ne1, ne2);
    double bytes = (double)host.row_bytes * (double)(ne1 * ne2);
    c->n = (int)(k->budget / bytes) + 1;
    c->n = c->n > MOST ? MOST : c->n;
    for (int i = 0; i < c->n; i++)
        c->w[i] = bound(k->b, &host);
    wait(k);
    free_weight(&host);
    return bytes;
}

static void run_linear(rig *k, int n, int turn, void *ctx)
{
    copies *c = ctx;
    const be_weight *w = &c->w[turn % c->n];
    be_linear job = {w, k->x, k->y, (int)w->ne0 * c->groups, (int)w->ne1, c->groups};
    k->b->op->linear(k->b, n, &job, 1);
}

static void time_linear(rig *k, const char *what, uint32_t type, int64_t ne0, int64_t ne1, int groups)
{
    char name[80];
    copies c = {.groups = groups};
    double bytes = bind_copies(k, &c, type, ne0, ne1, 1);
    snprintf(name, sizeof name, "%s %s %lldx%lld", what, quant_type_name(type), (long long)ne1, (long long)ne0);
    report(k, name, bytes, run_linear, &c);
}

typedef struct moe_copies {
    copies gate, up, down, sgate, sup, sdown;
} moe_copies;

static void run_moe(rig *k, int n, int turn, void *ctx)
{
    moe_copies *c = ctx;
    be_moe m = {&c->gate.w[turn % c->gate.n],
                &c->up.w[turn % c->up.n],
                &c->down.w[turn % c->down.n],
                &c->sgate.w[turn % c->sgate.n],
                &c->sup.w[turn % c->sup.n],
                &c->sdown.w[turn % c->sdown.n],
                10,
                10};
    k->b->op->moe(k->b, n, &m, k->x, k->ids + turn % 8 * 16 * 6, k->big, k->y);
}

static void time_moe(rig *k, uint32_t type, uint32_t down)
{
    char name[80];
    static moe_copies c;
    double one = bind_copies(k, &c.gate, type, 4096, 2048, EXPERTS), all = 0;
    bind_copies(k, &c.up, type, 4096, 2048, EXPERTS);
    all = (2 * one + bind_copies(k, &c.down, down, 2048, 4096, EXPERTS)) / EXPERTS * 6;
    all += 2 * bind_copies(k, &c.sgate, Q_Q8_0, 4096, 2048, 1);
    bind_copies(k, &c.sup, Q_Q8_0, 4096, 2048, 1);
    all += bind_copies(k, &c.sdown, Q_Q8_0, 2048, 4096, 1);
    snprintf(name, sizeof name, "moe %s/%s, bytes of one row", quant_type_name(type), quant_type_name(down));
    report(k, name, all, run_moe, &c);
}

typedef struct hc_fx {
    copies fn;
    float *scale, *base, *norm;
} hc_fx;

static void run_hc_pre(rig *k, int n, int turn, void *ctx)
{
    hc_fx *f = ctx;
    be_hc hc = {f->fn.w[turn % f->fn.n], f->scale, f->base};
    k->b->op->hc_pre(k->b, n, &hc, f->norm, k->x, k->y, NULL, k->big);
}

static void run_hc_post(rig *k, int n, int turn, void *ctx)
{
    (void)turn, (void)ctx;
    k->b->op->hc_post(k->b, n, k->big, k->y, k->x);
}

static void run_attend(rig *k, int n, int turn, void *ctx)
{
    (void)turn;
    be_rows r = {.n = n, .max_pos = 8191, .token = k->pos, .pos = k->pos, .seq = k->ids + 4096};
    be_store raw = {k->big, 512, 192, 192 * 512}, comp = {k->big, 512, 2049, 2049 * 512};
    be_attn a = {
        .q = k->x, .o = k->y, .raw = &raw, .comp = &comp, .ratio = 4, .sinks = k->big, .freq = k->big, .sel = ctx};
    k->b->op->attend(k->b, &r, &a);
}

static void run_select(rig *k, int n, int turn, void *ctx)
{
    (void)turn;
    be_rows r = {.n = n, .max_pos = 8191, .token = k->pos, .pos = k->pos, .seq = k->ids + 4096};
    be_store index = {k->big, 128, 2049, 2049 * 128};
    k->b->op->index_select(k->b, &r, 4, k->x, k->y, &index, ctx);
}

static void run_pick(rig *k, int n, int turn, void *ctx)
{
    (void)turn, (void)ctx;
    k->b->op->pick(k->b, n, k->big, 0, 0, k->pos, k->ids + 5000);
}

static void small_ops(rig *k)
{
    int32_t sel[16 * 512];
    for (int i = 0; i < 16 * 512; i++)
        sel[i] = i % 512 * 4;
    int32_t *dev = k->b->op->alloc(k->b, sizeof sel);
    k->b->op->upload(k->b, dev, sel, sizeof sel);
    report(k, "attend at 8K: 128 + 512 rows", 0, run_attend, dev);
    report(k, "index_select at 8K: 512 of 2048", 0, run_select, dev);
    report(k, "pick of 129280", 0, run_pick, NULL);
    /* last: their results grow from turn to turn */
    hc_fx f = {.scale = k->big + 64, .base = k->big + 128, .norm = k->big + 256};
    f.fn.groups = 1;
    double bytes = bind_copies(k, &f.fn, Q_F16, 16384, 24, 1);
    report(k, "hc_pre", bytes, run_hc_pre, &f);
    report(k, "hc_post", 0, run_hc_post, NULL);
}

static void open_rig(rig *k)
{
    ds4_err e;
    const size_t most = (size_t)16 * 129280;
    if (backend_open(&k->b, &(backend_options){.name = "cuda"}, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(77);
    }
    k->b->dims = flash;
    k->g.s = 1;
    float *host = malloc(most * sizeof *host);
    fill_normal(&k->g, host, most, 1);
    float **room[] = {&k->x, &k->y, &k->big};
    for (int i = 0; i < 3; i++) {
        *room[i] = k->b->op->alloc(k->b, most * sizeof *host);
        k->b->op->upload(k->b, *room[i], host, most * sizeof *host);
    }
    int32_t pos[16], ids[8192] = {0};
    for (int i = 0; i < 16; i++)
        pos[i] = 8191 - 15 + i;
    for (int i = 0; i < 8 * 16 * 6; i++) /* six different experts of each row */
        ids[i] = (i / 6 * 17 + i % 6 * 7 + rng_below(&k->g, 2)) % EXPERTS;
    k->pos = k->b->op->alloc(k->b, sizeof pos);
    k->ids = k->b->op->alloc(k->b, sizeof ids);
    k->b->op->upload(k->b, k->pos, pos, sizeof pos);
    k->b->op->upload(k->b, k->ids, ids, sizeof ids);
    free(host);
}

int main(int argc, char **argv)
{
    rig k = {.budget = (argc > 1 ? atof(argv[1]) : 400) * 1e6};
    open_rig(&k);
    printf("%-44s %11s", "operation, weight bytes", "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf(" | n=%-2d us GB/s", rows[i]);
    printf("\n");
    time_linear(&k, "q_a", Q_Q8_0, 4096, 1024, 1);
    time_linear(&k, "q_b", Q_Q8_0, 1024, 32768, 1);
    time_linear(&k, "out_a", Q_Q8_0, 4096, 8192, 8);
    time_linear(&k, "out_b", Q_Q8_0, 8192, 4096, 1);
    time_linear(&k, "head (a quarter)", Q_Q8_0, 4096, 32320, 1);
    time_linear(&k, "compressor", Q_F16, 4096, 1024, 1);
    time_linear(&k, "index q_b", Q_F16, 1024, 8192, 1);
    time_moe(&k, Q_IQ2_XXS, Q_Q2_K);
    time_moe(&k, Q_MXFP4, Q_MXFP4);
    small_ops(&k);
    k.b->op->close(k.b);
    return 0;
}
