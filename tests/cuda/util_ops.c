#include "cuda/util_ops.h"

#include "util/unit.h"

backend *open_gpu(enum be_act act, const be_dims *dims)
{
    backend *b;
    ds4_err e = {0};
    int rc = backend_open(&b, &(backend_options){.name = "cuda", .act = act}, &e);
    if (rc && !strncmp(e.msg, "CUDA: no ", 9))
        UNIT_SKIP("no GPU");
    if (rc)
        fail_msg("%s", e.msg);
    b->dims = *dims;
    return b;
}

backend *open_cpu(enum be_act act, const be_dims *dims)
{
    backend *b;
    ds4_err e = {0};
    if (backend_open(&b, &(backend_options){.name = "cpu", .threads = 1, .act = act}, &e))
        fail_msg("%s", e.msg);
    b->dims = *dims;
    return b;
}

/* --- device memory with sentinels --- */

enum { GUARD = 64 };

static float *room(backend *b, size_t n)
{
    float guard[GUARD], *p = b->op->alloc(b, (n + 2 * GUARD) * sizeof *p);
    if (!p) {
        ds4_err e;
        b->op->sync(b, &e);
        fail_msg("%s", e.msg);
    }
    for (int i = 0; i < GUARD; i++)
        guard[i] = -777.25f - (float)i;
    b->op->upload(b, p, guard, sizeof guard);
    b->op->upload(b, p + GUARD + n, guard, sizeof guard);
    return p + GUARD;
}

static float *put(backend *b, const float *host, size_t n)
{
    float *p = room(b, n);
    b->op->upload(b, p, host, n * sizeof *p);
    return p;
}

static void sentinels(backend *b, const float *p, size_t n, const char *name)
{
    float got[2][GUARD];
    b->op->download(b, got[0], p - GUARD, sizeof got[0]);
    b->op->download(b, got[1], p + n, sizeof got[1]);
    for (int i = 0; i < 2 * GUARD; i++)
        if (got[i / GUARD][i % GUARD] != -777.25f - (float)(i % GUARD))
            fail_msg("%s: number %d %s a buffer was overwritten", name, i % GUARD, i < GUARD ? "before" : "behind");
}

static int32_t *put_ints(backend *b, const int32_t *host, size_t n)
{
    return (int32_t *)put(b, (const float *)host, n);
}

/* Rows `which` of a pool, `ld` apart on the device. */
static float *put_rows(backend *b, const float *pool, size_t width, size_t ld, const int *which, int n)
{
    float *x = room(b, (size_t)n * ld);
    for (int r = 0; r < n; r++)
        b->op->upload(b, x + (size_t)r * ld, pool + (size_t)which[r] * width, width * sizeof *x);
    return x;
}

/* Results of each row into out + at; the buffer must not have been exceeded. */
static void get(backend *b, const op_case *c, const float *dev, size_t width, int n, float *out, size_t at)
{
    sentinels(b, dev, (size_t)n * width, c->name);
    float *host = malloc((size_t)n * width * sizeof *host);
    b->op->download(b, host, dev, (size_t)n * width * sizeof *host);
    for (int r = 0; r < n; r++)
        memcpy(out + (size_t)r * c->width + at, host + (size_t)r * width, width * sizeof *host);
    free(host);
}

static void get_ints(backend *b, const op_case *c, const int32_t *dev, size_t width, int n, float *out, size_t at)
{
    get(b, c, (const float *)dev, width, n, out, at);
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < width; i++) {
            int32_t v;
            memcpy(&v, out + (size_t)r * c->width + at + i, 4);
            out[(size_t)r * c->width + at + i] = (float)v;
        }
}

static be_rows put_step(backend *b, const int32_t *token, const int32_t *pos, const int32_t *seq, const int *which,
                        int n)
{
    int32_t t[3][CPU_MAX_ROWS];
    be_rows r = {.n = n};
    for (int i = 0; i < n; i++) {
        t[0][i] = token ? token[which[i]] : 0;
        t[1][i] = pos ? pos[which[i]] : 0;
        t[2][i] = seq ? seq[which[i]] : 0;
        r.max_pos = t[1][i] > r.max_pos ? t[1][i] : r.max_pos;
    }
    r.token = put_ints(b, t[0], (size_t)n);
    r.pos = put_ints(b, t[1], (size_t)n);
    r.seq = put_ints(b, t[2], (size_t)n);
    return r;
}

typedef struct list {
    op_case *c;
    int n;
} list;

static op_case *add(list *l, void *fx, const be_dims *dims,
                    void (*run)(backend *, const op_case *, const int *, int, float *))
{
    l->c = realloc(l->c, (size_t)(l->n + 1) * sizeof *l->c);
    op_case *c = &l->c[l->n++];
    *c = (op_case){.act = BE_ACT_Q8, .dims = *dims, .limit = 2e-5f, .rows = POOL_ROWS, .fx = fx, .run = run};
    return c;
}

/* --- linear --- */

typedef struct lin_fx {
    be_weight w[3];
    int groups[3], ldx;
    float *x;
} lin_fx;

static void run_linear(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const lin_fx *f = c->fx;
    float *x = put_rows(b, f->x, (size_t)f->ldx, (size_t)f->ldx, which, n), *y[3];
    be_weight w[3];
    be_linear jobs[3];
    int k = 0;
    size_t at = 0;
    for (; k < 3 && f->w[k].ne1; k++) {
        w[k] = bound(b, &f->w[k]);
        y[k] = room(b, (size_t)n * (size_t)w[k].ne1);
        jobs[k] = (be_linear){&w[k], x, y[k], f->ldx, (int)w[k].ne1, f->groups[k]};
    }
    b->op->linear(b, n, jobs, k);
    for (int j = 0; j < k; at += (size_t)w[j++].ne1)
        get(b, c, y[j], (size_t)w[j].ne1, n, out, at);
}

static void add_linear(list *l, uint32_t type, enum be_act act, int ne0, int pad)
{
    static const be_dims none = {.d = 1};
    rng g = {type * 1000u + (uint32_t)ne0};
    lin_fx *f = calloc(1, sizeof *f);
    int block = (int)quant_type_info(type)->block;
    f->ldx = ne0 + pad;
    f->w[0] = make_weight(&g, type, ne0, 19, 1);
    f->w[1] = make_weight(&g, Q_F16, ne0, 5, 1);
    f->groups[0] = f->groups[1] = 1;
    f->groups[2] = 2;
    if (ne0 % 2 == 0 && ne0 / 2 % block == 0)
        f->w[2] = make_weight(&g, type, ne0 / 2, 18, 1);
    f->x = malloc((size_t)POOL_ROWS * (size_t)f->ldx * 4);
    fill_normal(&g, f->x, (size_t)POOL_ROWS * (size_t)f->ldx, 1);
    memset(f->x + 3 * f->ldx, 0, (size_t)ne0 * 4); /* amax = 0 */
    op_case *c = add(l, f, &none, run_linear);
    c->act = act;
    c->width = (size_t)(f->w[0].ne1 + f->w[1].ne1 + f->w[2].ne1);
    snprintf(c->name, sizeof c->name, "linear %s %d %s", quant_type_name(type), ne0, act == BE_ACT_Q8 ? "q8" : "float");
}

static void linear_cases(list *l)
{
    static const int sizes[] = {256, 768, 2560};
    for (int t = 0; t < N_TYPES; t++)
        for (enum be_act act = BE_ACT_Q8; act <= BE_ACT_FLOAT; act++)
            for (int i = 0; i < 3; i++)
                add_linear(l, all_types[t], act, sizes[i], i == 1 ? 5 : i == 2 ? 4 : 0);
    add_linear(l, Q_Q8_0, BE_ACT_Q8, 96, 3);
    add_linear(l, Q_Q4_0, BE_ACT_Q8, 1120, 0);
    add_linear(l, Q_MXFP4, BE_ACT_Q8, 288, 1);
    add_linear(l, Q_F32, BE_ACT_Q8, 37, 0);
    add_linear(l, Q_F16, BE_ACT_Q8, 301, 0);
    add_linear(l, Q_BF16, BE_ACT_FLOAT, 1, 0);
}

/* --- experts and router --- */

enum { D = 256, FF = 512, EXPERTS = 12, USED = 4 };
static const be_dims moe_dims = {.d = D,
                                 .streams = 4,
                                 .rms_eps = 1e-6f,
                                 .hc_eps = 1e-6f,
                                 .sinkhorn = 20,
                                 .experts = EXPERTS,
                                 .used = USED,
                                 .ff = FF,
                                 .route_scale = 1.5f,
                                 .vocab = 50};

typedef struct moe_fx {
    be_weight w[6], gate;
    float x[POOL_ROWS * D], weights[POOL_ROWS * USED], bias[EXPERTS];
    int32_t ids[POOL_ROWS * USED], token[POOL_ROWS], table[50 * USED];
    bool hash;
} moe_fx;

static void run_moe(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const moe_fx *f = c->fx;
    be_weight w[6];
    for (int i = 0; i < 6; i++)
        w[i] = bound(b, &f->w[i]);
    be_moe m = {&w[0], &w[1], &w[2], &w[3], &w[4], &w[5], 0.8f, 0.6f};
    float *y = room(b, (size_t)n * D);
    b->op->moe(b, n, &m, put_rows(b, f->x, D, D, which, n),
               (int32_t *)put_rows(b, (const float *)f->ids, USED, USED, which, n),
               put_rows(b, f->weights, USED, USED, which, n), y);
    get(b, c, y, D, n, out, 0);
}

static void add_moe(list *l, uint32_t type, uint32_t down, uint32_t shared, enum be_act act, bool crowd)
{
    rng g = {type + down * 7 + shared};
    moe_fx *f = calloc(1, sizeof *f);
    for (int i = 0; i < 6; i++)
        f->w[i] = make_weight(&g,
                              i < 2    ? type
                              : i == 2 ? down
                                       : shared,
                              i % 3 == 2 ? FF : D, i % 3 == 2 ? D : FF, i < 3 ? EXPERTS : 1);
    fill_normal(&g, f->x, POOL_ROWS * D, 1);
    for (int i = 0; i < POOL_ROWS * USED; i++) {
        f->ids[i] = crowd ? i % 3 == 0 ? 5 : 7 : (i / USED * 2 + i % USED * 5) % EXPERTS;
        f->weights[i] = rng_unit(&g);
    }
    op_case *c = add(l, f, &moe_dims, run_moe);
    c->act = act;
    c->width = D;
    c->limit = act == BE_ACT_Q8 ? 3e-3f : 2e-5f; /* a hidden number may round to the neighbouring int8 step */
    snprintf(c->name, sizeof c->name, "moe %s %s %s%s %s", quant_type_name(type), quant_type_name(down),
             quant_type_name(shared), crowd ? " crowded" : "", act == BE_ACT_Q8 ? "q8" : "float");
}

static void run_route(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const moe_fx *f = c->fx;
    be_rows r = put_step(b, f->token, NULL, NULL, which, n);
    be_weight gate = bound(b, &f->gate);
    float *w = room(b, (size_t)n * USED);
    int32_t *ids = (int32_t *)room(b, (size_t)n * USED);
    b->op->route(b, &r, put_rows(b, f->x, D, D, which, n), &gate, f->hash ? NULL : put(b, f->bias, EXPERTS),
                 f->hash ? put_ints(b, f->table, 50 * USED) : NULL, ids, w);
    get_ints(b, c, ids, USED, n, out, 0);
    get(b, c, w, USED, n, out, USED);
}

static void moe_cases(list *l)
{
    for (enum be_act act = BE_ACT_Q8; act <= BE_ACT_FLOAT; act++) {
        add_moe(l, Q_IQ2_XXS, Q_Q2_K, Q_Q8_0, act, false);
        add_moe(l, Q_MXFP4, Q_MXFP4, Q_Q8_0, act, false);
        add_moe(l, Q_Q4_K, Q_Q4_K, Q_F16, act, false);
        add_moe(l, Q_F32, Q_F32, Q_F32, act, false);
        add_moe(l, Q_Q3_K, Q_Q6_K, Q_Q4_0, act, true);
    }
    for (int i = 0; i < 3; i++) {
        rng g = {11 + (uint64_t)i};
        moe_fx *f = calloc(1, sizeof *f);
        f->gate = make_weight(&g, i == 0 ? Q_F16 : i == 1 ? Q_F32 : Q_Q8_0, D, EXPERTS, 1);
        f->hash = i == 1;
        fill_normal(&g, f->x, POOL_ROWS * D, 2);
        fill_normal(&g, f->bias, EXPERTS, 0.3f);
        for (int k = 0; k < 50 * USED; k++)
            f->table[k] = k * 7 % EXPERTS;
        for (int k = 0; k < POOL_ROWS; k++)
            f->token[k] = k * 5 % 50;
        op_case *c = add(l, f, &moe_dims, run_route);
        c->width = 2 * USED;
        snprintf(c->name, sizeof c->name, "route %s", i == 1 ? "by table" : i ? "Q8_0" : "F16");
    }
}

/* --- embedding and hyper-connections --- */

enum { S = 4, MIX = S * (2 + S), HD = 296 };

typedef struct hc_fx {
    be_weight fn, head_fn, table;
    int d;
    float scale[3], base[MIX], norm[D * 2], streams[POOL_ROWS * S * D * 2], out[POOL_ROWS * D * 2];
    int32_t token[POOL_ROWS], pos[POOL_ROWS], seq[POOL_ROWS];
} hc_fx;

static void run_hc(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const hc_fx *f = c->fx;
    size_t d = (size_t)f->d, at = 0;
    float *scale = put(b, f->scale, 3), *base = put(b, f->base, MIX), *norm = put(b, f->norm, d);
    be_hc hc = {bound(b, &f->fn), scale, base}, head = {bound(b, &f->head_fn), scale, base};
    float *st = put_rows(b, f->streams, S * d, S * d, which, n), *o = put_rows(b, f->out, d, d, which, n);
    size_t k = (size_t)n;
    float *mix = room(b, k * MIX), *y = room(b, k * d), *x = room(b, k * d), *hy = room(b, k * d), *hx = room(b, k * d);
    b->op->hc_pre(b, n, &hc, norm, st, mix, NULL, y);
    b->op->hc_pre(b, n, &hc, norm, st, mix, y, x);
    b->op->hc_head(b, n, &head, norm, st, hy, hx);
    b->op->hc_post(b, n, mix, o, st);
    float *part[] = {y, x, hy, hx};
    get(b, c, mix, MIX, n, out, at);
    at += MIX;
    for (int i = 0; i < 4; i++, at += d)
        get(b, c, part[i], d, n, out, at);
    get(b, c, st, S * d, n, out, at);
}

static void run_embed(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const hc_fx *f = c->fx;
    be_rows r = put_step(b, f->token, NULL, NULL, which, n);
    be_weight w = bound(b, &f->table);
    float *x = room(b, (size_t)(n * S * f->d));
    b->op->embed(b, &r, &w, x);
    get(b, c, x, (size_t)(S * f->d), n, out, 0);
}

/* tap into a ring, then gather from it */
static void run_tap(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const hc_fx *f = c->fx;
    be_rows r = put_step(b, NULL, f->pos, f->seq, which, n);
    size_t d = (size_t)f->d;
    be_store ring = {room(b, 2 * 40 * 2 * d), (int)(2 * d), 40, 40 * 2 * d};
    float *x = room(b, (size_t)n * 2 * d), *st = put_rows(b, f->streams, S * d, S * d, which, n);
    b->op->tap(b, &r, st, 1, &ring);
    b->op->tap(b, &r, st, 0, &ring);
    b->op->gather(b, &r, &ring, x);
    sentinels(b, ring.base, 2 * 40 * 2 * d, c->name);
    get(b, c, x, 2 * d, n, out, 0);
}

static void add_hc(list *l, uint32_t type, int d)
{
    rng g = {2 + type};
    hc_fx *f = calloc(1, sizeof *f);
    be_dims m = moe_dims;
    m.d = f->d = d;
    m.vocab = 77;
    f->fn = make_weight(&g, type, S * d, MIX, 1);
    f->head_fn = make_weight(&g, type, S * d, S, 1);
    fill_normal(&g, f->scale, 3, 1);
    fill_normal(&g, f->base, MIX, 1);
    fill_normal(&g, f->norm, 2 * D, 1);
    fill_normal(&g, f->streams, POOL_ROWS * S * 2 * D, 3);
    fill_normal(&g, f->out, POOL_ROWS * 2 * D, 1);
    for (int i = 0; i < POOL_ROWS; i++) {
        f->pos[i] = i * 3 + 1000;
        f->seq[i] = i % 2;
        f->token[i] = i * 5 % 77;
    }
    op_case *c = add(l, f, &m, run_hc);
    c->width = (size_t)(MIX + 4 * d + S * d);
    snprintf(c->name, sizeof c->name, "hyper-connections %s %d", quant_type_name(type), d);
    c = add(l, f, &m, run_tap);
    c->width = (size_t)(2 * d);
    c->limit = 0;
    c->distinct = true;
    snprintf(c->name, sizeof c->name, "tap and gather %d", d);
}

static void hc_cases(list *l)
{
    add_hc(l, Q_F16, HD);
    add_hc(l, Q_F32, HD);
    add_hc(l, Q_Q8_0, 256);
    for (int t = 0; t < N_TYPES; t++) {
        rng g = {300 + (uint64_t)t};
        hc_fx *f = calloc(1, sizeof *f);
        be_dims m = moe_dims;
        f->d = m.d = quant_type_info(all_types[t])->block == 1 ? HD : 512;
        m.vocab = 77;
        f->table = make_weight(&g, all_types[t], f->d, 77, 1);
        for (int i = 0; i < POOL_ROWS; i++)
            f->token[i] = i == 1 ? 76 : i * 5 % 77;
        op_case *c = add(l, f, &m, run_embed);
        c->width = (size_t)(S * f->d);
        c->limit = 0; /* values are exact */
        snprintf(c->name, sizeof c->name, "embed %s", quant_type_name(all_types[t]));
    }
}

/* --- norms, KV rows --- */

enum {
    HEADS = 10,
    HEAD = 512,
    ROPE = 64,
    CAP = 150,
    IDX_HEADS = 10,
    IDX = 128,
    TOPK = 16,
    WINDOW = 128,
    ROWS = 130,
    SEQS = 2
};
static const be_dims row_dims = {.d = 256,
                                 .streams = 4,
                                 .rms_eps = 1e-6f,
                                 .heads = HEADS,
                                 .head_dim = HEAD,
                                 .rope_dim = ROPE,
                                 .window = WINDOW,
                                 .idx_heads = IDX_HEADS,
                                 .idx_dim = IDX,
                                 .idx_topk = TOPK,
                                 .vocab = 5000};

typedef struct row_fx {
    float *x, *w, *ring, *index, *q, *qi, *wi, *block;
    float freq[ROPE / 2], sinks[HEADS];
    int32_t pos[POOL_ROWS], seq[POOL_ROWS], sel[POOL_ROWS * TOPK];
    int mode;
    bool sim, wide;
} row_fx;

static float *normals(rng *g, size_t n, float scale)
{
    float *x = malloc(n * sizeof *x);
    fill_normal(g, x, n, scale);
    return x;
}

static row_fx *make_row(int mode)
{
    rng g = {3};
    row_fx *f = calloc(1, sizeof *f);
    f->mode = mode;
    f->x = normals(&g, POOL_ROWS * HEADS * HEAD, 2);
    f->w = normals(&g, 128 * 2 * HEAD, 1);
    f->ring = normals(&g, SEQS * CAP * 4 * HEAD, 1);
    f->index = normals(&g, SEQS * ROWS * HEAD, 1);
    f->q = normals(&g, POOL_ROWS * HEADS * HEAD, 1);
    f->qi = normals(&g, POOL_ROWS * IDX_HEADS * IDX, 1);
    f->wi = normals(&g, POOL_ROWS * IDX_HEADS, 1);
    f->block = normals(&g, CPU_MAX_ROWS * HEAD, 1);
    fill_normal(&g, f->sinks, HEADS, 2);
    for (int i = 0; i < ROPE / 2; i++)
        f->freq[i] = powf(10000, -2.0f * (float)i / ROPE);
    for (int i = 0; i < POOL_ROWS; i++) {
        static const int pos[] = {0, 1, 3, 126, 127, 128, 129, 62, 255, 64, 67, 68, 390, 399, 510, 511};
        f->pos[i] = pos[i];
        f->seq[i] = i % SEQS;
        int have = (f->pos[i] + 1) / 4, n = 0;
        for (int s = i % 3; s < have && n < TOPK; s += 1 + i % 4)
            f->sel[i * TOPK + n++] = s;
        while (n < TOPK)
            f->sel[i * TOPK + n++] = -1;
    }
    return f;
}

static void run_norm(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const row_fx *f = c->fx;
    const size_t dim = HEADS * HEAD - 3;
    float *x = put_rows(b, f->x, dim, dim, which, n), *y = room(b, (size_t)n * dim);
    b->op->norm(b, n, (int)dim, x, put(b, f->w, dim), y);
    b->op->norm(b, n, (int)dim, x, put(b, f->w, dim), x);
    get(b, c, y, dim, n, out, 0);
    get(b, c, x, dim, n, out, dim);
}

static void run_q_finish(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const row_fx *f = c->fx;
    be_rows r = put_step(b, NULL, f->pos, NULL, which, n);
    float *q = put_rows(b, f->x, HEADS * HEAD, HEADS * HEAD, which, n);
    b->op->q_finish(b, &r, put(b, f->freq, ROPE / 2), q);
    get(b, c, q, HEADS * HEAD, n, out, 0);
}

static void run_kv(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const row_fx *f = c->fx;
    be_rows r = put_step(b, NULL, f->pos, f->seq, which, n);
    be_store ring = {room(b, SEQS * CAP * HEAD), HEAD, CAP, CAP * HEAD};
    float *kv = put_rows(b, f->x, HEAD, HEAD, which, n), *again = room(b, (size_t)n * HEAD);
    b->op->kv_finish(b, &r, put(b, f->w, HEAD), put(b, f->freq, ROPE / 2), f->sim, kv, &ring);
    b->op->gather(b, &r, &ring, again);
    sentinels(b, ring.base, SEQS * CAP * HEAD, c->name);
    get(b, c, kv, HEAD, n, out, 0);
    get(b, c, again, HEAD, n, out, HEAD);
}

/* mode: ratio; wide: attention rows, else index rows. Rows are put into one ring and pooled from another, which is
 * full: a row that is put may lie in the window of its neighbour. */
static void run_pool(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const row_fx *f = c->fx;
    int d = f->wide ? HEAD : IDX, w = f->mode == 4 ? 2 * d : d;
    be_rows r = put_step(b, NULL, f->pos, f->seq, which, n);
    be_store ring = {room(b, (size_t)(SEQS * CAP * 2 * w)), 2 * w, CAP, (size_t)(CAP * 2 * w)}, full = ring;
    full.base = put(b, f->ring, (size_t)(SEQS * CAP * 2 * w));
    be_store rows = {room(b, (size_t)(SEQS * ROWS * d)), d, ROWS, (size_t)(ROWS * d)};
    float *put_row = room(b, (size_t)(n * 2 * w));
    size_t uw = (size_t)w;
    b->op->comp_put(b, &r, f->mode, put_rows(b, f->x, uw, uw, which, n), put_rows(b, f->q, uw, uw, which, n),
                    put(b, f->w, (size_t)(f->mode * w)), &ring);
    b->op->gather(b, &r, &ring, put_row);
    b->op->comp_pool(b, &r, f->mode, &full, put(b, f->w, (size_t)d), put(b, f->freq, ROPE / 2), !f->wide, f->sim,
                     &rows);
    sentinels(b, ring.base, (size_t)(SEQS * CAP * 2 * w), c->name);
    sentinels(b, rows.base, (size_t)(SEQS * ROWS * d), c->name);
    get(b, c, put_row, 2 * uw, n, out, 0);
    for (int i = 0; i < n; i++) {
        int p = f->pos[which[i]];
        float *to = out + (size_t)i * c->width + 2 * uw;
        memset(to, 0, (size_t)d * 4);
        if ((p + 1) % f->mode == 0)
            b->op->download(b, to, rows.base + (size_t)f->seq[which[i]] * rows.seq_stride + (size_t)(p / f->mode * d),
                            (size_t)d * 4);
    }
}

static void run_query(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const row_fx *f = c->fx;
    be_rows r = put_step(b, NULL, f->pos, NULL, which, n);
    float *q = put_rows(b, f->qi, IDX_HEADS * IDX, IDX_HEADS * IDX, which, n);
    b->op->index_query(b, &r, put(b, f->freq, ROPE / 2), f->sim, q);
    get(b, c, q, IDX_HEADS * IDX, n, out, 0);
}

static void run_select(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const row_fx *f = c->fx;
    be_rows r = put_step(b, NULL, f->pos, f->seq, which, n);
    be_store rows = {put(b, f->index, SEQS * ROWS * IDX), IDX, ROWS, ROWS * IDX};
    int32_t *sel = (int32_t *)room(b, (size_t)n * TOPK);
    b->op->index_select(b, &r, 4, put_rows(b, f->qi, IDX_HEADS * IDX, IDX_HEADS * IDX, which, n),
                        put_rows(b, f->wi, IDX_HEADS, IDX_HEADS, which, n), &rows, sel);
    get_ints(b, c, sel, TOPK, n, out, 0);
}

/* mode 0 window, 1 all compressed rows, 2 selected */
static void run_attend(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const row_fx *f = c->fx;
    be_rows r = put_step(b, NULL, f->pos, f->seq, which, n);
    be_store raw = {put(b, f->ring, SEQS * CAP * HEAD), HEAD, CAP, CAP * HEAD};
    be_store comp = {put(b, f->index, SEQS * ROWS * HEAD), HEAD, ROWS, ROWS * HEAD};
    float *o = room(b, (size_t)n * HEADS * HEAD);
    be_attn a = {.q = put_rows(b, f->q, HEADS * HEAD, HEADS * HEAD, which, n),
                 .o = o,
                 .raw = &raw,
                 .comp = f->mode ? &comp : NULL,
                 .ratio = 4,
                 .sinks = put(b, f->sinks, HEADS),
                 .freq = put(b, f->freq, ROPE / 2),
                 .sel = f->mode == 2 ? (int32_t *)put_rows(b, (const float *)f->sel, TOPK, TOPK, which, n) : NULL};
    b->op->attend(b, &r, &a);
    get(b, c, o, HEADS * HEAD, n, out, 0);
}

static op_case *add_row(list *l, int mode, bool sim, bool wide, size_t width, const char *name,
                        void (*run)(backend *, const op_case *, const int *, int, float *))
{
    row_fx *f = make_row(mode);
    f->sim = sim;
    f->wide = wide;
    op_case *c = add(l, f, &row_dims, run);
    c->width = width;
    c->flips = sim ? 0.004f : 0;
    snprintf(c->name, sizeof c->name, "%s%s", name, sim ? " with simulated rounding" : "");
    return c;
}

static void row_cases(list *l)
{
    add_row(l, 0, false, false, 2 * (HEADS * HEAD - 3), "norm", run_norm);
    add_row(l, 0, false, false, HEADS * HEAD, "q_finish", run_q_finish);
    for (int sim = 0; sim < 2; sim++) {
        add_row(l, 0, sim, false, 2 * HEAD, "kv_finish", run_kv)->distinct = true;
        add_row(l, 4, sim, true, 4 * HEAD + HEAD, "compressor ratio 4", run_pool)->distinct = true;
        add_row(l, 4, sim, false, 4 * IDX + IDX, "compressor of index rows", run_pool)->distinct = true;
        add_row(l, 128, sim, true, 2 * HEAD + HEAD, "compressor ratio 128", run_pool)->distinct = true;
        add_row(l, 0, sim, false, IDX_HEADS * IDX, "index_query", run_query);
    }
    add_row(l, 0, false, false, TOPK, "index_select", run_select);
    add_row(l, 0, false, false, HEADS * HEAD, "attend window", run_attend);
    add_row(l, 1, false, false, HEADS * HEAD, "attend all", run_attend);
    add_row(l, 2, false, false, HEADS * HEAD, "attend selected", run_attend);
}

/* --- choosing and drafting --- */

enum { VOCAB = 5000, RANK = 256 };

typedef struct pick_fx {
    be_weight w1, w2, conf;
    float *logits, *hidden, temp;
    int32_t pos[POOL_ROWS], prev[POOL_ROWS];
} pick_fx;

static void run_pick(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const pick_fx *f = c->fx;
    be_rows r = put_step(b, NULL, f->pos, NULL, which, n);
    int32_t *id = (int32_t *)room(b, (size_t)n);
    b->op->pick(b, n, put_rows(b, f->logits, VOCAB, VOCAB, which, n), f->temp, 99, r.pos, id);
    get_ints(b, c, id, 1, n, out, 0);
}

static void run_markov(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const pick_fx *f = c->fx;
    be_weight w1 = bound(b, &f->w1), w2 = bound(b, &f->w2);
    for (int i = 0; i < n; i++) {
        float *y = put_rows(b, f->logits, VOCAB, VOCAB, which + i, 1);
        b->op->markov(b, &w1, &w2, put_ints(b, &f->prev[which[i]], 1), y);
        op_case one = *c;
        get(b, &one, y, VOCAB, 1, out + (size_t)i * c->width, 0);
    }
}

static void run_confidence(backend *b, const op_case *c, const int *which, int n, float *out)
{
    const pick_fx *f = c->fx;
    be_weight w1 = bound(b, &f->w1), w = bound(b, &f->conf);
    float *z = room(b, (size_t)n);
    b->op->confidence(b, n, &w, &w1, put_rows(b, f->hidden, 256, 256, which, n),
                      (int32_t *)put_rows(b, (const float *)f->prev, 1, 1, which, n), z);
    get(b, c, z, 1, n, out, 0);
}

static void draft_cases(list *l)
{
    static const uint32_t tables[] = {Q_F16, Q_Q8_0, Q_BF16, Q_F32, Q_Q4_K};
    for (int i = 0; i < 5; i++) {
        rng g = {50 + (uint64_t)i};
        pick_fx *f = calloc(1, sizeof *f);
        f->logits = normals(&g, POOL_ROWS * VOCAB, 3);
        f->hidden = normals(&g, POOL_ROWS * 256, 1);
        f->temp = i ? 0.5f * (float)i : 0;
        for (int k = 0; k < POOL_ROWS; k++) {
            f->pos[k] = 17 * k;
            f->prev[k] = k == 2 ? VOCAB - 1 : k * 300;
            f->logits[k * VOCAB + 4000 - k] = k % 2 ? NAN : -INFINITY;
            f->logits[k * VOCAB + 100] = f->logits[k * VOCAB + 3000] = i ? 1 : 20; /* a tie */
        }
        f->w1 = make_weight(&g, tables[i], RANK, VOCAB, 1);
        f->w2 = make_weight(&g, tables[(i + 1) % 5], RANK, VOCAB, 1);
        f->conf = make_weight(&g, tables[i], 256 + RANK, 1, 1);
        op_case *c = add(l, f, &row_dims, run_pick);
        c->width = 1;
        snprintf(c->name, sizeof c->name, "pick %.1f", (double)f->temp);
        c = add(l, f, &row_dims, run_markov);
        c->width = VOCAB;
        snprintf(c->name, sizeof c->name, "markov %s", quant_type_name(tables[i]));
        c = add(l, f, &row_dims, run_confidence);
        c->width = 1;
        snprintf(c->name, sizeof c->name, "confidence %s", quant_type_name(tables[i]));
    }
}

op_case *op_cases(int *count)
{
    list l = {0};
    linear_cases(&l);
    moe_cases(&l);
    hc_cases(&l);
    row_cases(&l);
    draft_cases(&l);
    *count = l.n;
    return l.c;
}
