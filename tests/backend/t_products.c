/* t_products.c: products of every weight type in both activation modes: linear, moe, route, markov, confidence,
 * hyper-connections. */
#include "backend/util_be.h"
#include "util/npy.h"

/* --- linear --- */

typedef struct lin_fx {
    be_weight w[3];
    int groups[3];
    float *x;  /* [POOL_ROWS][ldx] */
    int ldx, width;
} lin_fx;

/* Two products of one input and, if there is one, a grouped product of the same numbers; y rows have gaps. */
static void run_linear(backend *b, void *fixture, const int *which, int n, float *out)
{
    lin_fx *f = fixture;
    float *x = dev_room(b, (size_t)(n * f->ldx)), *y[3];
    be_weight w[3];
    be_linear jobs[3];
    int k = 0;
    for (int r = 0; r < n; r++)
        b->op->upload(b, x + r * f->ldx, f->x + which[r] * f->ldx, (size_t)f->ldx * 4);
    for (; k < 3 && f->w[k].ne1; k++) {
        int ldy = (int)f->w[k].ne1 + 3;
        w[k] = bound(b, &f->w[k]);
        y[k] = dev_room(b, (size_t)(n * ldy));
        jobs[k] = (be_linear){&w[k], x, y[k], f->ldx, ldy, f->groups[k]};
    }
    b->op->linear(b, n, jobs, k);
    for (int r = 0; r < n; r++)
        for (int j = 0, at = 0; j < k; at += (int)f->w[j++].ne1)
            b->op->download(b, out + r * f->width + at, y[j] + r * jobs[j].ldy, (size_t)f->w[j].ne1 * 4);
    for (int j = 0; j < k; j++) {
        float gap[3] = {1, 1, 1};
        b->op->download(b, gap, y[j] + f->w[j].ne1, sizeof gap);
        assert_true(gap[0] == 0 && gap[1] == 0 && gap[2] == 0);
        check_guards(b, y[j], (size_t)(n * jobs[j].ldy));
    }
}

static void reference_linear(const lin_fx *f, enum be_act act, int row, double *want, double *size)
{
    int at = 0;
    for (int j = 0; j < 3 && f->w[j].ne1; j++) {
        const be_weight *w = &f->w[j];
        double *q = malloc((size_t)w->ne0 * 8), *v = malloc((size_t)w->ne0 * 8);
        for (int64_t o = 0; o < w->ne1; o++, at++) {
            int64_t part = o / (w->ne1 / f->groups[j]);
            reference_act(act, w->type, f->x + row * f->ldx + part * w->ne0, w->ne0, q);
            weight_row(w, 0, o, v);
            want[at] = size[at] = 0;
            for (int64_t i = 0; i < w->ne0; i++) {
                want[at] += v[i] * q[i];
                size[at] += fabs(v[i] * q[i]);
            }
        }
        free(q);
        free(v);
    }
}

static void check_linear(uint32_t type, enum be_act act, int ne0, int groups)
{
    rng g = {type * 100u + (uint32_t)ne0};
    int block = (int)quant_type_info(type)->block;
    ne0 = (ne0 + block - 1) / block * block;
    lin_fx f = {.ldx = ne0 + 5, .groups = {1, 1, groups}};
    f.w[0] = make_weight(&g, type, ne0, 19, 1);
    f.w[1] = make_weight(&g, Q_F16, ne0, 5, 1);
    if (groups > 1 && ne0 / groups % block == 0)
        f.w[2] = make_weight(&g, type, ne0 / groups, 7 * groups, 1);
    for (int j = 0; j < 3; j++)
        f.width += (int)f.w[j].ne1;
    f.x = malloc((size_t)(POOL_ROWS * f.ldx) * 4);
    fill_normal(&g, f.x, (size_t)(POOL_ROWS * f.ldx), 1);
    memset(f.x + 3 * f.ldx, 0, (size_t)f.ldx * 4); /* a zero row: amax = 0 */
    float *got = malloc((size_t)f.width * 4);
    double *want = malloc((size_t)f.width * 16), *size = want + f.width;
    for (int r = 2; r < 4; r++) {
        backend *b = open_variant(V_PLAIN, act, NULL);
        run_linear(b, &f, &r, 1, got);
        close_clean(b);
        reference_linear(&f, act, r, want, size);
        for (int o = 0; o < f.width; o++)
            assert_close(got[o], want[o], 1e-6 * size[o], quant_type_name(type), o);
    }
    check_rows(run_linear, &f, (size_t)f.width, act, NULL, false);
    for (int j = 0; j < 3; j++)
        free_weight(&f.w[j]);
    free(f.x);
    free(got);
    free(want);
}

static void every_weight_type_multiplies_exactly_quantised_rows(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES; t++)
        check_linear(all_types[t], BE_ACT_Q8, 544, 1);
}

static void every_weight_type_multiplies_float_rows(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES; t++)
        check_linear(all_types[t], BE_ACT_FLOAT, 544, 1);
}

static void short_rows_long_rows_and_groups_are_summed_whole(void **state)
{
    (void)state;
    static const int sizes[] = {32, 64, 256, 288, 2048};
    for (int t = 0; t < N_TYPES; t++)
        for (int i = 0; i < 5; i++)
            for (enum be_act act = BE_ACT_Q8; act <= BE_ACT_FLOAT; act++)
                check_linear(all_types[t], act, sizes[i], i == 4 ? 8 : 2);
    check_linear(Q_F32, BE_ACT_Q8, 37, 1);
    check_linear(Q_F16, BE_ACT_Q8, 301, 1);
    check_linear(Q_BF16, BE_ACT_FLOAT, 1, 1);
}

static void many_inputs_do_not_share_a_quantised_copy(void **state)
{
    (void)state;
    enum { JOBS = 20, N = 3, W = 64 };
    rng g = {5};
    backend *b = open_variant(V_FAST3, BE_ACT_Q8, NULL);
    be_weight host = make_weight(&g, Q_Q8_0, W, 4, 1), w = bound(b, &host);
    be_linear jobs[JOBS];
    float x[JOBS][N * W];
    for (int j = 0; j < JOBS; j++) {
        fill_normal(&g, x[j], N * W, 1);
        jobs[j] = (be_linear){&w, to_dev(b, x[j], N * W), dev_room(b, N * 4), W, 4, 1};
    }
    b->op->linear(b, N, jobs, JOBS);
    double q[W], v[W];
    for (int j = 0; j < JOBS; j++)
        for (int i = 0; i < N * 4; i++) {
            reference_act(BE_ACT_Q8, Q_Q8_0, x[j] + i / 4 * W, W, q);
            weight_row(&host, 0, i % 4, v);
            double want = 0;
            for (int k = 0; k < W; k++)
                want += q[k] * v[k];
            assert_close(jobs[j].y[i], want, 1e-5, "job", j);
        }
    close_clean(b);
    free_weight(&host);
}

static void a_row_with_nan_or_infinity_spoils_only_itself(void **state)
{
    (void)state;
    enum { W = 512 };
    rng g = {6};
    for (int t = 0; t < N_TYPES; t++)
        for (enum variant v = V_PLAIN; v < N_VARIANTS; v++) {
            backend *b = open_variant(v, BE_ACT_Q8, NULL);
            be_weight host = make_weight(&g, all_types[t], W, 2, 1), w = bound(b, &host);
            float x[4 * W];
            fill_normal(&g, x, 4 * W, 1);
            x[W + 7] = NAN;
            x[2 * W + 300] = INFINITY;
            for (int i = 0; i < W; i++)
                x[3 * W + i] *= 1e-42f; /* 1/d overflows: counts as zero, never NaN */
            be_linear job = {&w, to_dev(b, x, 4 * W), dev_room(b, 8), W, 2, 1};
            b->op->linear(b, 4, &job, 1);
            assert_true(isfinite(job.y[0]) && isfinite(job.y[6]) && isfinite(job.y[7]));
            assert_true(isnan(job.y[2]) && isnan(job.y[3]) && !isfinite(job.y[4]) && !isfinite(job.y[5]));
            close_clean(b);
            free_weight(&host);
        }
}

/* --- moe --- */

enum { D = 256, FF = 256, EXPERTS = 6, USED = 3 };

typedef struct moe_fx {
    be_weight w[6]; /* gate up down, shared gate up down */
    float x[POOL_ROWS * D], weights[POOL_ROWS * USED];
    int32_t ids[POOL_ROWS * USED];
} moe_fx;

static const be_dims moe_dims = {.d = D, .streams = 4, .experts = EXPERTS, .used = USED, .ff = FF,
                                 .route_scale = 1.5f, .vocab = 50};

static void run_moe(backend *b, void *fixture, const int *which, int n, float *out)
{
    moe_fx *f = fixture;
    be_weight w[6];
    for (int i = 0; i < 6; i++)
        w[i] = bound(b, &f->w[i]);
    be_moe m = {&w[0], &w[1], &w[2], &w[3], &w[4], &w[5], 0.8f, 0.6f};
    float x[CPU_MAX_ROWS * D], weights[CPU_MAX_ROWS * USED];
    int32_t ids[CPU_MAX_ROWS * USED];
    for (int r = 0; r < n; r++) {
        memcpy(x + r * D, f->x + which[r] * D, D * 4);
        memcpy(weights + r * USED, f->weights + which[r] * USED, USED * 4);
        memcpy(ids + r * USED, f->ids + which[r] * USED, USED * 4);
    }
    float *y = dev_room(b, (size_t)n * D);
    b->op->moe(b, n, &m, to_dev(b, x, (size_t)n * D), ints_to_dev(b, ids, (size_t)n * USED),
               to_dev(b, weights, (size_t)n * USED), y);
    b->op->download(b, out, y, (size_t)n * D * 4);
    check_guards(b, y, (size_t)n * D);
}

static double dot_of(const be_weight *w, int64_t slice, int64_t o, const double *x)
{
    double row[2048], s = 0;
    weight_row(w, slice, o, row);
    for (int64_t i = 0; i < w->ne0; i++)
        s += row[i] * x[i];
    return s;
}

static void one_expert(const be_weight *w, int64_t e, enum be_act act, const float *x, double clamp, double weight,
                       double *y)
{
    double in[D], up_in[D], mid[FF];
    float h[FF];
    reference_act(act, w[0].type, x, D, in);
    reference_act(act, w[1].type, x, D, up_in);
    for (int i = 0; i < FF; i++) {
        double g = fmin(dot_of(&w[0], e, i, in), clamp), u = fmax(fmin(dot_of(&w[1], e, i, up_in), clamp), -clamp);
        h[i] = (float)(g / (1 + exp(-g)) * u * weight);
    }
    reference_act(act, w[2].type, h, FF, mid);
    for (int o = 0; o < D; o++)
        y[o] += dot_of(&w[2], e, o, mid);
}

static void check_moe(uint32_t type, uint32_t down, uint32_t shared, enum be_act act)
{
    rng g = {type + down};
    moe_fx f;
    for (int i = 0; i < 6; i++)
        f.w[i] = make_weight(&g, i < 2 ? type : i == 2 ? down : shared, i % 3 == 2 ? FF : D, i % 3 == 2 ? D : FF,
                             i < 3 ? EXPERTS : 1);
    fill_normal(&g, f.x, POOL_ROWS * D, 1);
    for (int i = 0; i < POOL_ROWS * USED; i++) {
        f.ids[i] = (i / USED * 2 + i % USED) % EXPERTS;
        f.weights[i] = rng_unit(&g);
    }
    float got[D];
    for (int r = 0; r < 2; r++) {
        backend *b = open_variant(V_FAST, act, &moe_dims);
        run_moe(b, &f, &r, 1, got);
        close_clean(b);
        double want[D] = {0};
        for (int s = 0; s < USED; s++)
            one_expert(f.w, f.ids[r * USED + s], act, f.x + r * D, 0.8f, f.weights[r * USED + s], want);
        one_expert(f.w + 3, 0, act, f.x + r * D, 0.6f, 1, want);
        /* a hidden value may round to the neighbouring int8 step: amax/127 of the group times one weight */
        for (int o = 0; o < D; o++)
            assert_close(got[o], want[o], act == BE_ACT_Q8 ? 2e-3 : 1e-5, quant_type_name(type), o);
    }
    check_rows(run_moe, &f, D, act, &moe_dims, false);
    for (int i = 0; i < 6; i++)
        free_weight(&f.w[i]);
}

static void experts_are_grouped_without_changing_a_row(void **state)
{
    (void)state;
    for (enum be_act act = BE_ACT_Q8; act <= BE_ACT_FLOAT; act++) {
        check_moe(Q_IQ2_XXS, Q_Q2_K, Q_Q8_0, act);
        check_moe(Q_MXFP4, Q_MXFP4, Q_Q8_0, act);
        check_moe(Q_Q4_K, Q_Q4_K, Q_F16, act);
        check_moe(Q_F32, Q_F32, Q_F32, act);
    }
}

static void a_token_may_visit_one_expert_twice(void **state)
{
    (void)state;
    rng g = {9};
    moe_fx f;
    for (int i = 0; i < 6; i++)
        f.w[i] = make_weight(&g, Q_Q8_0, i % 3 == 2 ? FF : D, i % 3 == 2 ? D : FF, i < 3 ? EXPERTS : 1);
    fill_normal(&g, f.x, POOL_ROWS * D, 1);
    for (int i = 0; i < POOL_ROWS * USED; i++) {
        f.ids[i] = 2; /* 64 rows * 3 visits of one expert */
        f.weights[i] = rng_unit(&g);
    }
    check_rows(run_moe, &f, D, BE_ACT_Q8, &moe_dims, false);
    for (int i = 0; i < 6; i++)
        free_weight(&f.w[i]);
}

/* --- route --- */

typedef struct route_fx {
    be_weight gate;
    float x[POOL_ROWS * D], bias[64];
    int32_t table[50 * USED], token[POOL_ROWS];
    bool hash;
} route_fx;

static void run_route(backend *b, void *fixture, const int *which, int n, float *out)
{
    route_fx *f = fixture;
    float x[CPU_MAX_ROWS * D], *w = dev_room(b, (size_t)n * USED);
    int32_t token[CPU_MAX_ROWS], *ids = b->op->alloc(b, (size_t)n * USED * 4), id[CPU_MAX_ROWS * USED];
    for (int r = 0; r < n; r++) {
        memcpy(x + r * D, f->x + which[r] * D, D * 4);
        token[r] = f->token[which[r]];
    }
    be_rows rows = {.n = n, .token = ints_to_dev(b, token, (size_t)n)};
    be_weight gate = bound(b, &f->gate);
    b->op->route(b, &rows, to_dev(b, x, (size_t)n * D), &gate, f->hash ? NULL : to_dev(b, f->bias, (size_t)gate.ne1),
                 f->hash ? ints_to_dev(b, f->table, 50 * USED) : NULL, ids, w);
    b->op->download(b, id, ids, (size_t)n * USED * 4);
    for (int r = 0; r < n; r++)
        for (int s = 0; s < USED; s++) {
            out[r * 2 * USED + s] = (float)id[r * USED + s];
            b->op->download(b, &out[r * 2 * USED + USED + s], &w[r * USED + s], 4);
        }
    check_guards(b, w, (size_t)n * USED);
}

static void check_route(bool hash, uint32_t type)
{
    rng g = {11};
    be_dims dims = moe_dims;
    dims.experts = 64;
    route_fx f = {.gate = make_weight(&g, type, D, 64, 1), .hash = hash};
    fill_normal(&g, f.x, POOL_ROWS * D, 2);
    fill_normal(&g, f.bias, 64, 0.3f);
    for (int i = 0; i < 50 * USED; i++)
        f.table[i] = (i * 7) % 64;
    for (int i = 0; i < POOL_ROWS; i++)
        f.token[i] = (i * 5) % 50;
    for (int r = 0; r < 4; r++) {
        float got[2 * USED];
        double p[64], x[D], sum = 0;
        backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
        run_route(b, &f, &r, 1, got);
        close_clean(b);
        for (int i = 0; i < D; i++)
            x[i] = f.x[r * D + i];
        for (int e = 0; e < 64; e++)
            p[e] = sqrt(log1p(exp(dot_of(&f.gate, 0, e, x))));
        for (int s = 0; s < USED; s++)
            sum += p[(int)got[s]];
        for (int s = 0; s < USED; s++) {
            int id = (int)got[s];
            assert_close(got[USED + s], 1.5 * p[id] / sum, 1e-6, "weight", s);
            if (hash)
                assert_int_equal(id, f.table[f.token[r] * USED + s]);
            for (int e = 0, better = 0; !hash && e < 64; e++) {
                better += p[e] + f.bias[e] > p[id] + f.bias[id];
                if (e == 63)
                    assert_int_equal(better, s);
            }
        }
    }
    check_rows(run_route, &f, 2 * USED, BE_ACT_Q8, &dims, false);
    free_weight(&f.gate);
}

static void routing_follows_score_bias_and_table(void **state)
{
    (void)state;
    check_route(false, Q_F16);
    check_route(true, Q_F32);
    check_route(false, Q_Q8_0);
}

static void router_ties_go_to_the_lower_expert_and_nan_is_never_first(void **state)
{
    (void)state;
    be_dims dims = moe_dims;
    dims.d = 32;
    dims.experts = 8;
    backend *b = open_variant(V_FAST, BE_ACT_FLOAT, &dims);
    float zero[8 * 32] = {0}, bias[8] = {0, NAN, 1, 1, 0.5f, 1, NAN, 0}, x[32] = {0};
    be_weight gate = {.name = "gate", .type = Q_F32, .ne0 = 32, .ne1 = 8, .ne2 = 1, .host = zero};
    gate = bound(b, &gate);
    int32_t token = 0, *ids = b->op->alloc(b, 64);
    be_rows r = {.n = 1, .token = ints_to_dev(b, &token, 1)};
    b->op->route(b, &r, to_dev(b, x, 32), &gate, to_dev(b, bias, 8), NULL, ids, dev_room(b, USED));
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], 3);
    assert_int_equal(ids[2], 5);
    close_clean(b);
}

static void router_scores_match_the_golden_vector(void **state)
{
    (void)state;
    npy a;
    if (!golden_npy(&a, "oracle_a/unit_router_score.npy")) {
        print_message("skipped (no golden data)\n");
        skip();
    }
    const float *v = a.f;
    int k = (int)a.count / 2; /* logits, then scores */
    be_dims dims = {.d = 1, .experts = 2, .used = 1, .route_scale = 1, .vocab = 1};
    for (int i = 0; i < k; i++) {
        /* two experts with this logit and with 0: the weight of the first of them is 1, so use two slots and compare
         * the ratio */
        dims.used = 2;
        backend *b = open_variant(V_FAST, BE_ACT_FLOAT, &dims);
        float w[2] = {v[i], 0}, x = 1, bias[2] = {10, 0};
        be_weight gate = {.name = "gate", .type = Q_F32, .ne0 = 1, .ne1 = 2, .ne2 = 1, .host = w};
        gate = bound(b, &gate);
        int32_t *ids = b->op->alloc(b, 8);
        float *weights = dev_room(b, 2);
        be_rows r = {.n = 1};
        b->op->route(b, &r, to_dev(b, &x, 1), &gate, to_dev(b, bias, 2), NULL, ids, weights);
        double p0 = sqrt(log(2.0)), want = v[k + i] / (v[k + i] + p0);
        int slot = ids[0] == 0 ? 0 : 1;
        assert_close(weights[slot], want, 2e-7 * want, "score", i);
        close_clean(b);
    }
    npy_free(&a);
}

/* --- drafter heads --- */

static void markov_adds_the_product_of_the_two_tables(void **state)
{
    (void)state;
    static const uint32_t types[] = {Q_F16, Q_Q8_0, Q_BF16};
    enum { V = 301, RANK = 64 };
    rng g = {12};
    for (int t = 0; t < 3; t++)
        for (enum be_act act = BE_ACT_Q8; act <= BE_ACT_FLOAT; act++)
            for (enum variant v = V_PLAIN; v < N_VARIANTS; v++) {
                backend *b = open_variant(v, act, NULL);
                be_weight h1 = make_weight(&g, types[t], RANK, V, 1), h2 = make_weight(&g, types[t], RANK, V, 1);
                be_weight w1 = bound(b, &h1), w2 = bound(b, &h2);
                float logits[V], row[RANK];
                int32_t prev = 17;
                double e[RANK], q[RANK];
                fill_normal(&g, logits, V, 1);
                float *y = to_dev(b, logits, V);
                b->op->markov(b, &w1, &w2, ints_to_dev(b, &prev, 1), y);
                weight_row(&h1, 0, prev, e);
                for (int i = 0; i < RANK; i++)
                    row[i] = (float)e[i];
                reference_act(act, types[t], row, RANK, q);
                for (int i = 0; i < V; i++)
                    assert_close(y[i], logits[i] + dot_of(&h2, 0, i, q), 1e-6, "logit", i);
                check_guards(b, y, V);
                close_clean(b);
                free_weight(&h1);
                free_weight(&h2);
            }
}

static void confidence_reads_hidden_then_markov_row(void **state)
{
    (void)state;
    enum { HIDDEN = 96, RANK = 32, V = 40, N = 5 };
    rng g = {13};
    be_dims dims = {.d = HIDDEN};
    backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
    be_weight hw = make_weight(&g, Q_Q8_0, HIDDEN + RANK, 1, 1), h1 = make_weight(&g, Q_F16, RANK, V, 1);
    be_weight w = bound(b, &hw), w1 = bound(b, &h1);
    float hidden[N * HIDDEN], *out = dev_room(b, N);
    int32_t prev[N] = {3, 39, 0, 7, 7};
    fill_normal(&g, hidden, N * HIDDEN, 1);
    b->op->confidence(b, N, &w, &w1, to_dev(b, hidden, N * HIDDEN), ints_to_dev(b, prev, N), out);
    for (int i = 0; i < N; i++) {
        double in[HIDDEN + RANK];
        for (int k = 0; k < HIDDEN; k++)
            in[k] = hidden[i * HIDDEN + k];
        weight_row(&h1, 0, prev[i], in + HIDDEN);
        assert_close(out[i], dot_of(&hw, 0, 0, in), 1e-6, "confidence", i);
    }
    check_guards(b, out, N);
    close_clean(b);
    free_weight(&hw);
    free_weight(&h1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_type_multiplies_exactly_quantised_rows),
        cmocka_unit_test(every_weight_type_multiplies_float_rows),
        cmocka_unit_test(short_rows_long_rows_and_groups_are_summed_whole),
        cmocka_unit_test(many_inputs_do_not_share_a_quantised_copy),
        cmocka_unit_test(a_row_with_nan_or_infinity_spoils_only_itself),
        cmocka_unit_test(experts_are_grouped_without_changing_a_row),
        cmocka_unit_test(a_token_may_visit_one_expert_twice),
        cmocka_unit_test(routing_follows_score_bias_and_table),
        cmocka_unit_test(router_ties_go_to_the_lower_expert_and_nan_is_never_first),
        cmocka_unit_test(router_scores_match_the_golden_vector),
        cmocka_unit_test(markov_adds_the_product_of_the_two_tables),
        cmocka_unit_test(confidence_reads_hidden_then_markov_row),
    };
    return cmocka_run_group_tests_name("backend products", tests, NULL, NULL);
}
