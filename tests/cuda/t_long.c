/* t_long.c: long contexts on the device: the choice among many thousand compressed rows, attention over them, and the
 * small model across the places where something wraps or changes its shape. */
#include "backend/util_be.h"
#include "cuda/util_mini.h"
#include "cuda/util_ops.h"

enum { N = 3, RATIO = 4 };

static be_dims dims(void)
{
    const bool small = mini_reduced();
    return (be_dims){.d = 256,
                     .streams = 4,
                     .rms_eps = 1e-6f,
                     .heads = small ? 2 : 64,
                     .head_dim = 512,
                     .rope_dim = 64,
                     .window = 128,
                     .idx_heads = small ? 8 : 64,
                     .idx_dim = 128,
                     .idx_topk = small ? 64 : 512};
}

static float *normals(rng *g, size_t n, float scale)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    fill_normal(g, x, n, scale);
    return x;
}

static be_rows put_rows(backend *b, const int32_t *pos, int n)
{
    static const int32_t none[N] = {0};
    be_rows r = {.n = n, .token = ints_to_dev(b, none, (size_t)n), .seq = ints_to_dev(b, none, (size_t)n)};
    r.pos = ints_to_dev(b, pos, (size_t)n);
    for (int i = 0; i < n; i++)
        r.max_pos = pos[i] > r.max_pos ? pos[i] : r.max_pos;
    return r;
}

/* --- the indexer --- */

typedef struct pool {
    int rows;              /* that exist */
    float *k, *q, *w;      /* [rows][dim], [N][heads][dim], [N][heads] */
    double *score;         /* of one query */
    int32_t sel[2][N][512]; /* of all queries together, of each alone */
} pool;

/* Every third row is a copy of the row before it: a tie. */
static pool make_pool(const be_dims *m, int rows)
{
    rng g = {(uint64_t)rows};
    const size_t dim = (size_t)m->idx_dim, heads = (size_t)m->idx_heads;
    pool p = {rows, normals(&g, (size_t)rows * dim, 1), normals(&g, N * heads * dim, 1), normals(&g, N * heads, 1),
              calloc((size_t)rows, sizeof(double)), {{{0}}}};
    for (int s = 2; s < rows; s += 3)
        memcpy(p.k + (size_t)s * dim, p.k + (size_t)(s - 1) * dim, dim * sizeof *p.k);
    return p;
}

static void free_pool(pool *p) { free(p->k), free(p->q), free(p->w), free(p->score); }

/* Rows see one row less than exist, and twice all of them. */
static void select_rows(pool *p, const be_dims *m)
{
    const int32_t pos[N] = {RATIO * p->rows - 2, RATIO * p->rows - 1, RATIO * p->rows + 2};
    const size_t q = (size_t)(m->idx_heads * m->idx_dim), top = (size_t)m->idx_topk;
    backend *b = open_gpu(BE_ACT_Q8, m);
    be_store rows = {.width = m->idx_dim, .cap = p->rows + 5, .seq_stride = (size_t)(p->rows + 5) * (size_t)m->idx_dim};
    rows.base = b->op->alloc(b, rows.seq_stride * sizeof(float));
    b->op->upload(b, rows.base, p->k, (size_t)p->rows * (size_t)m->idx_dim * sizeof(float));
    float *dq = to_dev(b, p->q, N * q), *dw = to_dev(b, p->w, N * (size_t)m->idx_heads);
    int32_t *sel = b->op->alloc(b, N * top * sizeof *sel), got[N * 512];
    for (int alone = 0; alone < 2; alone++)
        for (int i = 0; i < (alone ? N : 1); i++) {
            be_rows r = put_rows(b, pos + i, alone ? 1 : N);
            b->op->index_select(b, &r, RATIO, dq + (size_t)i * q, dw + i * m->idx_heads, &rows, sel);
            b->op->download(b, got, sel, (size_t)r.n * top * sizeof *sel);
            for (int k = 0; k < r.n; k++)
                memcpy(p->sel[alone][i + k], got + (size_t)k * top, top * sizeof *got);
        }
    close_clean(b);
}

static void score_rows(pool *p, const be_dims *m, int query)
{
    const float *q = p->q + (size_t)query * (size_t)(m->idx_heads * m->idx_dim);
    for (int s = 0; s < p->rows; s++) {
        const float *k = p->k + (size_t)s * (size_t)m->idx_dim;
        double sum = 0;
        for (int h = 0; h < m->idx_heads; h++) {
            float part[8] = {0};
            for (int i = 0; i < m->idx_dim; i++)
                part[i % 8] += q[h * m->idx_dim + i] * k[i];
            double dot = 0;
            for (int i = 0; i < 8; i++)
                dot += (double)part[i];
            sum += (double)p->w[query * m->idx_heads + h] * fmax(dot, 0);
        }
        p->score[s] = sum;
    }
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Ascending, no row twice, nothing that clearly belongs out, nothing missing that clearly belongs in; of two equal rows
 * the first. */
static void check_selection(const pool *p, const be_dims *m, int query, int visible)
{
    const int32_t *sel = p->sel[0][query];
    double *sorted = malloc((size_t)visible * sizeof *sorted);
    char *in = calloc((size_t)visible, 1);
    memcpy(sorted, p->score, (size_t)visible * sizeof *sorted);
    qsort(sorted, (size_t)visible, sizeof *sorted, descending);
    const double edge = sorted[m->idx_topk - 1], slack = 1e-5 * (sorted[0] - sorted[visible - 1]);
    for (int i = 0; i < m->idx_topk; i++) {
        if (sel[i] < 0 || sel[i] >= visible || (i && sel[i] <= sel[i - 1]))
            fail_msg("%d rows, query %d: number %d is row %d behind row %d", p->rows, query, i, sel[i],
                     i ? sel[i - 1] : -1);
        in[sel[i]] = 1;
    }
    for (int s = 0; s < visible; s++) {
        if (in[s] ? p->score[s] < edge - slack : p->score[s] > edge + slack)
            fail_msg("%d rows, query %d: row %d with score %.7g is %s, the edge is %.7g", p->rows, query, s,
                     p->score[s], in[s] ? "in" : "out", edge);
        if (s % 3 == 2 && in[s] && !in[s - 1])
            fail_msg("%d rows, query %d: row %d was taken, its equal %d was not", p->rows, query, s, s - 1);
    }
    free(sorted);
    free(in);
}

static void the_best_of_many_rows_are_selected(void **state)
{
    (void)state;
    static const int counts[2][4] = {{8191, 8192, 8193, 32768}, {511, 512, 513, 2048}};
    const be_dims m = dims();
    for (int c = 0; c < 4; c++) {
        pool p = make_pool(&m, counts[mini_reduced()][c]);
        select_rows(&p, &m);
        for (int i = 0; i < N; i++) {
            score_rows(&p, &m, i);
            check_selection(&p, &m, i, i ? p.rows : p.rows - 1);
            if (memcmp(p.sel[0][i], p.sel[1][i], (size_t)m.idx_topk * sizeof(int32_t)))
                fail_msg("%d rows, query %d: alone other rows are selected", p.rows, i);
        }
        free_pool(&p);
    }
}

/* --- attention --- */

typedef struct attn_fx {
    int rows, ratio;
    float *raw, *comp, *q, *sinks, *freq;
    int32_t *sel; /* or NULL */
} attn_fx;

enum { CAP = 192 };

static float *attend(backend *b, const attn_fx *f)
{
    const be_dims *m = &b->dims;
    const size_t K = (size_t)m->head_dim, HK = (size_t)m->heads * K, cap = (size_t)f->rows + 2;
    const int32_t pos[2] = {f->rows * f->ratio - 1, f->rows * f->ratio};
    be_rows r = put_rows(b, pos, 2);
    be_store raw = {to_dev(b, f->raw, CAP * K), m->head_dim, CAP, CAP * K}, comp = {.width = m->head_dim,
                                                                                    .cap = (int)cap,
                                                                                    .seq_stride = cap * K};
    comp.base = b->op->alloc(b, cap * K * sizeof(float));
    b->op->upload(b, comp.base, f->comp, (size_t)f->rows * K * sizeof(float));
    float *o = dev_room(b, 2 * HK), *out = malloc(2 * HK * sizeof *out);
    be_attn a = {.q = to_dev(b, f->q, 2 * HK),
                 .o = o,
                 .raw = &raw,
                 .comp = &comp,
                 .ratio = f->ratio,
                 .sinks = to_dev(b, f->sinks, (size_t)m->heads),
                 .freq = to_dev(b, f->freq, (size_t)m->rope_dim / 2),
                 .sel = f->sel ? ints_to_dev(b, f->sel, 2 * (size_t)m->idx_topk) : NULL};
    b->op->attend(b, &r, &a);
    b->op->download(b, out, o, 2 * HK * sizeof *out);
    close_clean(b);
    return out;
}

static void check_attention(int rows, int ratio, bool select)
{
    const be_dims m = dims();
    const size_t K = (size_t)m.head_dim, HK = (size_t)m.heads * K;
    rng g = {17};
    attn_fx f = {rows, ratio, normals(&g, CAP * K, 1), normals(&g, (size_t)rows * K, 1), normals(&g, 2 * HK, 1),
                 normals(&g, (size_t)m.heads, 1), malloc((size_t)m.rope_dim / 2 * sizeof(float)), NULL};
    for (int i = 0; i < m.rope_dim / 2; i++)
        f.freq[i] = powf(160000, -2.0f * (float)i / (float)m.rope_dim);
    if (select)
        f.sel = malloc(2 * (size_t)m.idx_topk * sizeof *f.sel);
    for (int i = 0; select && i < 2 * m.idx_topk; i++) /* spread over all rows, the last included */
        f.sel[i] = rows - 1 - (m.idx_topk - 1 - i % m.idx_topk) * (rows / m.idx_topk);
    float *got = attend(open_gpu(BE_ACT_Q8, &m), &f), *want = attend(open_variant(V_FAST3, BE_ACT_Q8, &m), &f);
    double sum = 0, most = 0;
    for (size_t i = 0; i < 2 * HK; i++) {
        double d = fabs((double)got[i] - (double)want[i]);
        sum += (double)want[i] * (double)want[i];
        most = d <= most ? most : isnan(d) ? INFINITY : d;
    }
    most /= sqrt(sum / (double)(2 * HK));
    print_message("%d rows of ratio %d%s: within %.2g of the RMS\n", rows, ratio, select ? ", selected" : "", most);
    assert_true(most < 1e-4);
    free(got), free(want), free(f.raw), free(f.comp), free(f.q), free(f.sinks), free(f.freq), free(f.sel);
}

static void attention_over_many_rows_agrees_with_the_cpu(void **state)
{
    (void)state;
    const int rows = mini_reduced() ? 500 : 8100;
    check_attention(rows, 128, false);
    check_attention(rows, 4, true);
}

/* --- the small model --- */

enum { STEPS = 14 }; /* positions looked at around an edge */

/* One row at a time against chunks of 6 and 16 rows, from the same state. */
static void check_edge(rig *r, const int32_t *ids, int from)
{
    static const int chunks[] = {6, BE_NARROW};
    const size_t V = rig_vocab(r);
    float *one = malloc(STEPS * V * sizeof *one), *many = malloc(STEPS * V * sizeof *many);
    bool ok;
    rig_run(r, 0, ids, from, from + STEPS, 1, one);
    for (size_t i = 0; i < STEPS * V; i++)
        if (!isfinite(one[i]))
            fail_msg("position %zu: a logit is %g", (size_t)from + i / V, (double)one[i]);
    uint64_t state = kv_hash(&r->k, 0, from + STEPS, &ok);
    for (int c = 0; c < 2; c++) {
        rig_run(r, 0, ids, from, from + STEPS, chunks[c], many);
        for (size_t p = 0; p < STEPS; p++)
            if (memcmp(one + p * V, many + p * V, V * sizeof *one))
                fail_msg("position %zu: logits with chunks of %d rows differ from one row at a time",
                         (size_t)from + p, chunks[c]);
        if (kv_hash(&r->k, 0, from + STEPS, &ok) != state)
            fail_msg("position %d: the state with chunks of %d rows differs from one row at a time", from, chunks[c]);
    }
    free(one);
    free(many);
}

/* The end of the window and of the first 128 rows, the first wrap of the ring, the first selection, and so on. */
static void bits_do_not_depend_on_rows_at_the_edges(void **state)
{
    (void)state;
    static const int edges[] = {120, 184, 248, 1016, 4089, 8185, 16377, 32761};
    mini_need_gpu();
    const int count = mini_reduced() ? 1 : sizeof edges / sizeof *edges, end = edges[count - 1] + STEPS;
    ds4_engine *eng = mini_engine("cpu", DS4_ACT_Q8, DS4_KV_FULL, 64, false); /* for its tokenizer */
    size_t n;
    int32_t *prose = mini_prose(eng, &n), *ids = malloc((size_t)end * sizeof *ids);
    for (int i = 0; i < end; i++)
        ids[i] = prose[(size_t)i % n];
    rig r;
    mini_rig(&r, "cuda", (rig_options){.act = BE_ACT_Q8, .sim = KV_SIM_FULL, .ctx = end + 2});
    for (int i = 0, at = 0; i < count; at = edges[i++] + STEPS) {
        rig_run(&r, 0, ids, at, edges[i], r.b->max_rows, NULL);
        check_edge(&r, ids, edges[i]);
    }
    print_message("%d edges up to position %d\n", count, end);
    rig_close(&r);
    free(prose);
    free(ids);
    ds4_engine_close(eng);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_of_many_rows_are_selected),
        cmocka_unit_test(attention_over_many_rows_agrees_with_the_cpu),
        cmocka_unit_test(bits_do_not_depend_on_rows_at_the_edges),
    };
    return cmocka_run_group_tests_name("cuda long contexts", tests, NULL, NULL);
}
