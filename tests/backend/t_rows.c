/* t_rows.c: operations on single rows: embedding, hyper-connections, norms, rotation, KV rows, compressor, taps. */
#include "backend/util_be.h"
#include "base/num.h"
#include "util/npy.h"

enum { S = 4, MIX = S * (2 + S) };

static const be_dims dims = {
    .d = 296, .streams = S, .sinkhorn = 20, .rms_eps = 1e-6f, .hc_eps = 1e-6f, .heads = 3, .head_dim = 128,
        .rope_dim = 64, .window = 128,
    .idx_heads = 5, .idx_dim = 128, .idx_topk = 16, .vocab = 77,
};
enum { D = 296, HEADS = 3, HEAD = 128, ROPE = 64 };

static be_rows make_rows(backend *b, const int32_t *token, const int32_t *pos, const int32_t *seq, const int *which,
                         int n)
{
    int32_t t[3][CPU_MAX_ROWS];
    be_rows r = {.n = n};
    for (int i = 0; i < n; i++) {
        t[0][i] = token ? token[which[i]] : 0;
        t[1][i] = pos[which[i]];
        t[2][i] = seq ? seq[which[i]] : 0;
        r.max_pos = t[1][i] > r.max_pos ? t[1][i] : r.max_pos;
    }
    r.token = ints_to_dev(b, t[0], (size_t)n);
    r.pos = ints_to_dev(b, t[1], (size_t)n);
    r.seq = ints_to_dev(b, t[2], (size_t)n);
    return r;
}

/* Rows of a pool, gathered into guarded device memory. */
static float *gather_rows(backend *b, const float *pool, size_t width, const int *which, int n)
{
    float *x = dev_room(b, (size_t)n * width);
    for (int r = 0; r < n; r++)
        b->op->upload(b, x + (size_t)r * width, pool + (size_t)which[r] * width, width * 4);
    return x;
}

static void give_back(backend *b, float *out, size_t stride, size_t at, const float *dev, size_t width, int n)
{
    check_guards(b, dev, (size_t)n * width);
    for (int r = 0; r < n; r++)
        b->op->download(b, out + (size_t)r * stride + at, dev + (size_t)r * width, width * 4);
}

/* --- embedding --- */

static void embed_copies_the_decoded_row_to_every_stream(void **state)
{
    (void)state;
    rng g = {1};
    static const uint32_t types[] = {Q_F32, Q_F16, Q_Q8_0};
    be_dims m = dims;
    m.d = 288;
    for (int t = 0; t < 3; t++) {
        backend *b = open_variant(V_FAST, BE_ACT_Q8, &m);
        be_weight host = make_weight(&g, types[t], m.d, 77, 1), w = bound(b, &host);
        int32_t token[] = {0, 76, 5}, zero[3] = {0};
        int which[] = {0, 1, 2};
        be_rows r = make_rows(b, token, zero, NULL, which, 3);
        float *x = dev_room(b, (size_t)(3 * S * m.d));
        double row[288];
        b->op->embed(b, &r, &w, x);
        for (int i = 0; i < 3 * S; i++) {
            weight_row(&host, 0, token[i / S], row);
            for (int k = 0; k < m.d; k++)
                assert_true(x[i * m.d + k] == (float)row[k]);
        }
        check_guards(b, x, (size_t)(3 * S * m.d));
        close_clean(b);
        free_weight(&host);
    }
}

static void a_token_outside_the_vocabulary_is_an_error_not_a_crash(void **state)
{
    (void)state;
    rng g = {1};
    backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
    be_weight host = make_weight(&g, Q_F32, D, 77, 1), w = bound(b, &host);
    int32_t token = 77, zero = 0;
    int which = 0;
    ds4_err e;
    be_rows r = make_rows(b, &token, &zero, NULL, &which, 1);
    b->op->embed(b, &r, &w, dev_room(b, S * D));
    assert_int_equal(b->op->sync(b, &e), DS4_EBACKEND);
    assert_non_null(strstr(e.msg, "77"));
    b->op->close(b);
    free_weight(&host);
}

/* --- hyper-connections --- */

typedef struct hc_fx {
    be_weight fn, head_fn;
    float scale[3], base[MIX], norm[D], streams[POOL_ROWS * S * D], out[POOL_ROWS * D];
} hc_fx;

static hc_fx *make_hc(uint32_t type)
{
    rng g = {2};
    hc_fx *f = calloc(1, sizeof *f);
    f->fn = make_weight(&g, type, S * D, MIX, 1);
    f->head_fn = make_weight(&g, type, S * D, S, 1);
    fill_normal(&g, f->scale, 3, 1);
    fill_normal(&g, f->base, MIX, 1);
    fill_normal(&g, f->norm, D, 1);
    fill_normal(&g, f->streams, POOL_ROWS * S * D, 3);
    fill_normal(&g, f->out, POOL_ROWS * D, 1);
    return f;
}

static void free_hc(hc_fx *f)
{
    free_weight(&f->fn);
    free_weight(&f->head_fn);
    free(f);
}

enum { HC_WIDTH = MIX + 2 * D + S * D + 2 * D };

/* pre, post and head on the same streams: [mix | y | x | new streams | head y | head x] */
static void run_hc(backend *b, void *fixture, const int *which, int n, float *out)
{
    hc_fx *f = fixture;
    float *scale = to_dev(b, f->scale, 3), *base = to_dev(b, f->base, MIX), *norm = to_dev(b, f->norm, D);
    be_hc hc = {bound(b, &f->fn), scale, base}, head = {bound(b, &f->head_fn), scale, base};
    float *st = gather_rows(b, f->streams, S * D, which, n), *o = gather_rows(b, f->out, D, which, n);
    size_t k = (size_t)n;
    float *mix = dev_room(b, k * MIX), *y = dev_room(b, k * D), *x = dev_room(b, k * D), *x2 = dev_room(b, k * D);
    float *hy = dev_room(b, k * D), *hx = dev_room(b, k * D);
    b->op->hc_pre(b, n, &hc, norm, st, mix, y, x);
    b->op->hc_pre(b, n, &hc, norm, st, mix, NULL, x2);
    assert_memory_equal(x, x2, k * D * 4);
    b->op->hc_head(b, n, &head, norm, st, hy, hx);
    b->op->hc_post(b, n, mix, o, st);
    give_back(b, out, HC_WIDTH, 0, mix, MIX, n);
    give_back(b, out, HC_WIDTH, MIX, y, D, n);
    give_back(b, out, HC_WIDTH, MIX + D, x, D, n);
    give_back(b, out, HC_WIDTH, MIX + 2 * D, st, S * D, n);
    give_back(b, out, HC_WIDTH, MIX + 2 * D + S * D, hy, D, n);
    give_back(b, out, HC_WIDTH, MIX + 3 * D + S * D, hx, D, n);
    check_guards(b, x2, k * D);
}

static double sig(double v) { return 1 / (1 + exp(-v)); }

static void rms_of(const double *x, const float *w, int n, double *y)
{
    double s = 0;
    for (int i = 0; i < n; i++)
        s += x[i] * x[i];
    for (int i = 0; i < n; i++)
        y[i] = x[i] / sqrt(s / n + 1e-6) * (w ? w[i] : 1);
}

static void mixes(const be_weight *fn, const float *streams, double *m)
{
    double x[S * D], row[S * D];
    for (int i = 0; i < S * D; i++)
        x[i] = streams[i];
    rms_of(x, NULL, S * D, x);
    for (int o = 0; o < fn->ne1; o++) {
        weight_row(fn, 0, o, row);
        m[o] = 0;
        for (int i = 0; i < S * D; i++)
            m[o] += row[i] * x[i];
    }
}

static void reference_comb(double c[S][S])
{
    for (int j = 0; j < S; j++) {
        double top = fmax(fmax(c[j][0], c[j][1]), fmax(c[j][2], c[j][3])), sum = 0;
        for (int k = 0; k < S; k++)
            sum += exp(c[j][k] - top);
        for (int k = 0; k < S; k++)
            c[j][k] = exp(c[j][k] - top) / sum + 1e-6;
    }
    for (int round = 0; round < 20; round++) {
        for (int j = 0; round && j < S; j++) {
            double sum = c[j][0] + c[j][1] + c[j][2] + c[j][3] + 1e-6;
            for (int k = 0; k < S; k++)
                c[j][k] /= sum;
        }
        for (int k = 0; k < S; k++) {
            double sum = c[0][k] + c[1][k] + c[2][k] + c[3][k] + 1e-6;
            for (int j = 0; j < S; j++)
                c[j][k] /= sum;
        }
    }
}

static void reference_hc(const hc_fx *f, int r, double *want)
{
    const float *st = f->streams + r * S * D, *out = f->out + r * D;
    double m[MIX], c[S][S], *y = want + MIX, *head = want + MIX + 2 * D + S * D;
    mixes(&f->fn, st, m);
    for (int i = 0; i < S; i++) {
        want[i] = sig(m[i] * f->scale[0] + f->base[i]) + 1e-6;
        want[S + i] = 2 * sig(m[S + i] * f->scale[1] + f->base[S + i]);
        for (int k = 0; k < S; k++)
            c[i][k] = m[2 * S + i * S + k] * f->scale[2] + f->base[2 * S + i * S + k];
    }
    reference_comb(c);
    memcpy(want + 2 * S, c, sizeof c);
    mixes(&f->head_fn, st, m);
    for (int k = 0; k < D; k++) {
        y[k] = head[k] = 0;
        for (int i = 0; i < S; i++) {
            y[k] += want[i] * st[i * D + k];
            head[k] += (sig(m[i] * f->scale[0] + f->base[i]) + 1e-6) * st[i * D + k];
        }
        for (int to = 0; to < S; to++) {
            double v = want[S + to] * out[k];
            for (int from = 0; from < S; from++)
                v += c[from][to] * st[from * D + k];
            want[MIX + 2 * D + to * D + k] = v;
        }
    }
    rms_of(y, f->norm, D, y + D);
    rms_of(head, f->norm, D, head + D);
}

static void hyper_connections_follow_the_definition_for_every_row(void **state)
{
    (void)state;
    static const uint32_t types[] = {Q_F32, Q_F16, Q_Q8_0};
    for (int t = 0; t < 2; t++) {
        hc_fx *f = make_hc(types[t]);
        float got[HC_WIDTH];
        double *want = malloc(HC_WIDTH * sizeof *want);
        for (int r = 0; r < 3; r++) {
            backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
            run_hc(b, f, &r, 1, got);
            close_clean(b);
            reference_hc(f, r, want);
            for (int i = 0; i < HC_WIDTH; i++)
                assert_close(got[i], want[i], 2e-6 * (1 + fabs(want[i])), "hyper-connection", i);
        }
        check_rows(run_hc, f, HC_WIDTH, BE_ACT_Q8, &dims, false);
        free(want);
        free_hc(f);
    }
}

/* Golden mixes (the 24 products, before scale and base): feeds them through hc_pre by way of a model of hidden size 1
 * whose four streams are (2, 0, 0, 0), so that rms is 1 and product o is 2 * fn[o][0]. */
static void sinkhorn_matches_the_golden_vectors(void **state)
{
    (void)state;
    npy mix, pre, post, comb;
    if (!golden_npy(&mix, "oracle_a/unit_hc_mix.npy")) {
        print_message("skipped (no golden data)\n");
        skip();
    }
    golden_npy(&pre, "oracle_a/unit_hc_pre.npy");
    golden_npy(&post, "oracle_a/unit_hc_post.npy");
    golden_npy(&comb, "oracle_a/unit_hc_comb.npy");
    float scale[3], base[MIX];
    if (!golden_tensor("layers.0.hc_attn_scale", scale, 3) || !golden_tensor("layers.0.hc_attn_base", base, MIX))
        fail_msg("layers.0.hc_attn_scale and hc_attn_base not found in oracle_a/model.safetensors");
    be_dims m = dims;
    m.d = 1;
    m.rms_eps = 0;
    for (int r = 0; r < 12; r++) {
        backend *b = open_variant(V_FAST, BE_ACT_FLOAT, &m);
        float fn[MIX * S] = {0}, st[S] = {2}, one = 1;
        for (int o = 0; o < MIX; o++)
            fn[o * S] = mix.f[r * MIX + o] / 2;
        be_weight w = {.name = "fn", .type = Q_F32, .ne0 = S, .ne1 = MIX, .ne2 = 1, .host = fn};
        be_hc hc = {bound(b, &w), to_dev(b, scale, 3), to_dev(b, base, MIX)};
        float *got = dev_room(b, MIX);
        b->op->hc_pre(b, 1, &hc, to_dev(b, &one, 1), to_dev(b, st, S), got, NULL, dev_room(b, 1));
        for (int i = 0; i < S; i++) {
            assert_close(got[i], pre.f[r * S + i], 1.2e-7, "pre", i);
            assert_close(got[S + i], post.f[r * S + i], 2.4e-7, "post", i);
        }
        for (int i = 0; i < S * S; i++)
            assert_close(got[2 * S + i], comb.f[r * S * S + i], 3e-7, "comb", i);
        close_clean(b);
    }
    npy_free(&mix);
    npy_free(&pre);
    npy_free(&post);
    npy_free(&comb);
}

/* --- norms and rotation --- */

typedef struct row_fx {
    float x[POOL_ROWS * HEADS * HEAD], w[HEADS * HEAD], freq[ROPE / 2];
    int32_t pos[POOL_ROWS], seq[POOL_ROWS];
} row_fx;

static row_fx *make_row_fx(void)
{
    rng g = {3};
    row_fx *f = calloc(1, sizeof *f);
    fill_normal(&g, f->x, POOL_ROWS * HEADS * HEAD, 2);
    fill_normal(&g, f->w, HEADS * HEAD, 1);
    for (int i = 0; i < ROPE / 2; i++)
        f->freq[i] = powf(10000, -2.0f * (float)i / ROPE);
    for (int i = 0; i < POOL_ROWS; i++) {
        f->pos[i] = i * i * 4001 + i;
        f->seq[i] = i % 2;
    }
    return f;
}

static void run_norm(backend *b, void *fixture, const int *which, int n, float *out)
{
    row_fx *f = fixture;
    float *x = gather_rows(b, f->x, HEADS * HEAD, which, n), *w = to_dev(b, f->w, HEADS * HEAD),
        *y = dev_room(b, (size_t)(n * HEADS * HEAD));
    b->op->norm(b, n, HEADS * HEAD, x, w, y);
    b->op->norm(b, n, HEADS * HEAD, x, w, x);
    assert_memory_equal(x, y, (size_t)(n * HEADS * HEAD) * 4);
    give_back(b, out, HEADS * HEAD, 0, y, HEADS * HEAD, n);
}

static void run_q_finish(backend *b, void *fixture, const int *which, int n, float *out)
{
    row_fx *f = fixture;
    be_rows r = make_rows(b, NULL, f->pos, NULL, which, n);
    float *q = gather_rows(b, f->x, HEADS * HEAD, which, n);
    b->op->q_finish(b, &r, to_dev(b, f->freq, ROPE / 2), q);
    give_back(b, out, HEADS * HEAD, 0, q, HEADS * HEAD, n);
}

static void rotate_ref(double *v, int32_t pos, const float *freq)
{
    for (int i = 0; i < ROPE / 2; i++) {
        double a = v[2 * i], c = v[2 * i + 1], w = (double)((float)pos * freq[i]);
        v[2 * i] = a * cos(w) - c * sin(w);
        v[2 * i + 1] = a * sin(w) + c * cos(w);
    }
}

static void norms_and_query_rotation_follow_the_definition(void **state)
{
    (void)state;
    row_fx *f = make_row_fx();
    float got[HEADS * HEAD];
    double x[HEADS * HEAD], want[HEADS * HEAD];
    for (int r = 0; r < POOL_ROWS; r++) {
        for (int i = 0; i < HEADS * HEAD; i++)
            x[i] = f->x[r * HEADS * HEAD + i];
        backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
        run_norm(b, f, &r, 1, got);
        rms_of(x, f->w, HEADS * HEAD, want);
        for (int i = 0; i < HEADS * HEAD; i++)
            assert_close(got[i], want[i], 1e-6, "norm", i);
        run_q_finish(b, f, &r, 1, got);
        close_clean(b);
        for (int h = 0; h < HEADS; h++) {
            rms_of(x + h * HEAD, NULL, HEAD, x + h * HEAD);
            rotate_ref(x + h * HEAD + HEAD - ROPE, f->pos[r], f->freq);
        }
        for (int i = 0; i < HEADS * HEAD; i++)
            assert_close(got[i], x[i], 1e-6, "query", i);
    }
    check_rows(run_norm, f, HEADS * HEAD, BE_ACT_Q8, &dims, false);
    check_rows(run_q_finish, f, HEADS * HEAD, BE_ACT_Q8, &dims, false);
    free(f);
}

static void check_golden_rope(const char *file, bool compressed)
{
    static const int32_t at[14] = {0, 1, 2, 3, 127, 128, 1000, 4096, 65535, 65536, 131071, 262143, 524288, 1048575};
    npy a;
    if (!golden_npy(&a, file)) {
        print_message("skipped (no golden data)\n");
        skip();
    }
    float freq[ROPE / 2], cs[ROPE];
    for (int i = 0; i < ROPE / 2; i++) {
        float ramp = fminf(fmaxf(((float)i - 15) / 10, 0), 1),
            f = 1.0f / powf(compressed ? 160000 : 10000, 2.0f * (float)i / ROPE);
        freq[i] = compressed ? f / 16 * ramp + f * (1 - ramp) : f;
    }
    for (int p = 0; p < 14; p++) {
        cpu_angles(at[p], freq, ROPE / 2, cs);
        /* one unit of a float32 frequency moves the angle by pos * f * 2^-23 */
        for (int i = 0; i < ROPE; i++)
            assert_close(cs[i], a.f[p * ROPE + i], 1.3e-7 * (1 + at[p] * freq[i / 2]), file, p * ROPE + i);
    }
    npy_free(&a);
}

static void rotation_tables_match_the_golden_vectors(void **state)
{
    (void)state;
    check_golden_rope("oracle_a/unit_rope_plain.npy", false);
    check_golden_rope("oracle_a/unit_rope_compressed.npy", true);
}

/* --- KV rows --- */

enum { CAP = 160 };

static void run_kv(backend *b, void *fixture, const int *which, int n, float *out)
{
    row_fx *f = fixture;
    be_rows r = make_rows(b, NULL, f->pos, f->seq, which, n);
    be_store ring = {dev_room(b, 2 * CAP * HEAD), HEAD, CAP, CAP * HEAD};
    float *kv = dev_room(b, (size_t)(n * HEAD)), *raw = dev_room(b, (size_t)(n * HEAD));
    float *norm = to_dev(b, f->w, HEAD), *freq = to_dev(b, f->freq, ROPE / 2);
    for (int i = 0; i < n; i++) {
        b->op->upload(b, kv + i * HEAD, f->x + which[i] * HEADS * HEAD, HEAD * 4);
        b->op->upload(b, raw + i * HEAD, f->x + which[i] * HEADS * HEAD, HEAD * 4);
    }
    b->op->kv_finish(b, &r, norm, freq, true, kv, &ring);
    b->op->kv_finish(b, &r, norm, freq, false, raw, NULL);
    float *back = dev_room(b, (size_t)(n * HEAD));
    b->op->gather(b, &r, &ring, back);
    assert_memory_equal(back, kv, (size_t)(n * HEAD) * 4);
    for (int i = 0; i < n; i++) {
        int slot = f->seq[which[i]] * CAP + f->pos[which[i]] % CAP;
        assert_memory_equal(ring.base + slot * HEAD, kv + i * HEAD, HEAD * 4);
    }
    check_guards(b, ring.base, 2 * CAP * HEAD);
    give_back(b, out, 2 * HEAD, 0, kv, HEAD, n);
    give_back(b, out, 2 * HEAD, HEAD, raw, HEAD, n);
}

static void kv_rows_are_normed_rotated_rounded_and_stored_by_position(void **state)
{
    (void)state;
    row_fx *f = make_row_fx();
    float got[2 * HEAD], plain[HEAD];
    double want[HEAD];
    for (int r = 0; r < POOL_ROWS; r++) {
        backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
        run_kv(b, f, &r, 1, got);
        close_clean(b);
        for (int i = 0; i < HEAD; i++)
            want[i] = f->x[r * HEADS * HEAD + i];
        rms_of(want, f->w, HEAD, want);
        rotate_ref(want + HEAD - ROPE, f->pos[r], f->freq);
        for (int i = 0; i < HEAD; i++)
            assert_close(got[HEAD + i], want[i], 1e-6, "kv", i);
        memcpy(plain, got + HEAD, sizeof plain);
        num_sim_fp8(plain, HEAD - ROPE);
        assert_memory_equal(got, plain, sizeof plain);
    }
    check_rows(run_kv, f, 2 * HEAD, BE_ACT_Q8, &dims, true);
    free(f);
}

/* --- compressor --- */

enum { SEQS = POOL_ROWS }; /* one sequence per pool row, so that any subset of rows is independent */

typedef struct comp_fx {
    int ratio, width, steps; /* width of a compressed row; tokens per sequence */
    bool index;
    float *kv, *gate;        /* [SEQS][steps][w] */
    float ape[128 * 256], norm[128], freq[ROPE / 2];
} comp_fx;

static comp_fx *make_comp(int ratio, bool index)
{
    rng g = {(uint64_t)ratio};
    comp_fx *f = calloc(1, sizeof *f);
    f->ratio = ratio;
    f->index = index;
    f->width = 128;
    f->steps = ratio == 4 ? 20 : 256;
    size_t n = (size_t)(SEQS * f->steps * 256);
    f->kv = malloc(n * 4);
    f->gate = malloc(n * 4);
    fill_normal(&g, f->kv, n, 1);
    fill_normal(&g, f->gate, n, 2);
    fill_normal(&g, f->ape, 128 * 256, 1);
    fill_normal(&g, f->norm, 128, 1);
    for (int i = 0; i < ROPE / 2; i++)
        f->freq[i] = powf(160000, -2.0f * (float)i / ROPE);
    return f;
}

static void free_comp(comp_fx *f)
{
    free(f->kv);
    free(f->gate);
    free(f);
}

/* Feeds every token of the chosen sequences, one token of each per call, and returns the last two compressed rows,
 * unrounded and rounded. */
static void run_comp(backend *b, void *fixture, const int *which, int n, float *out)
{
    comp_fx *f = fixture;
    int w = f->ratio == 4 ? 2 * f->width : f->width, cap = 2 * f->ratio + 16;
    size_t ring_seq = (size_t)(cap * 2 * w), comp_cap = (size_t)(f->steps / f->ratio),
        comp_seq = comp_cap * (size_t)f->width;
    be_store ring = {dev_room(b, SEQS * ring_seq), 2 * w, cap, ring_seq};
    be_store comp[2];
    for (int k = 0; k < 2; k++)
        comp[k] = (be_store){dev_room(b, SEQS * comp_seq), f->width, (int)comp_cap, comp_seq};
    float *kv = dev_room(b, (size_t)(n * w)), *gate = dev_room(b, (size_t)(n * w));
    float *ape = to_dev(b, f->ape, (size_t)(f->ratio * w)), *norm = to_dev(b, f->norm, 128),
        *freq = to_dev(b, f->freq, ROPE / 2);
    int32_t pos[SEQS], seq[SEQS];
    for (int t = 0; t < f->steps; t++) {
        for (int i = 0; i < SEQS; i++) {
            pos[i] = t;
            seq[i] = i;
        }
        be_rows r = make_rows(b, NULL, pos, seq, which, n);
        for (int i = 0; i < n; i++) {
            size_t at = (size_t)((which[i] * f->steps + t) * w);
            b->op->upload(b, kv + i * w, f->kv + at, (size_t)w * 4);
            b->op->upload(b, gate + i * w, f->gate + at, (size_t)w * 4);
        }
        b->op->comp_put(b, &r, f->ratio, kv, gate, ape, &ring);
        b->op->comp_pool(b, &r, f->ratio, &ring, norm, freq, f->index, false, &comp[0]);
        b->op->comp_pool(b, &r, f->ratio, &ring, norm, freq, f->index, true, &comp[1]);
    }
    for (int k = 0; k < 2; k++) {
        check_guards(b, comp[k].base, SEQS * comp_seq);
        for (int i = 0; i < n; i++)
            b->op->download(b, out + i * 4 * f->width + k * 2 * f->width,
                            comp[k].base + (size_t)which[i] * comp_seq + (comp_cap - 2) * (size_t)f->width,
                                (size_t)(2 * f->width) * 4);
    }
    check_guards(b, ring.base, SEQS * ring_seq);
}

static void reference_pool(const comp_fx *f, int seq, int s, double *row)
{
    int w = f->ratio == 4 ? 2 * f->width : f->width;
    for (int k = 0; k < f->width; k++) {
        double num = 0, den = 0;
        for (int t = (f->ratio == 4 && s > 0 ? s - 1 : s) * f->ratio; t < (s + 1) * f->ratio; t++) {
            int col = f->ratio == 4 && t >= s * f->ratio ? f->width + k : k;
            size_t at = (size_t)((seq * f->steps + t) * w + col);
            double e = exp(f->gate[at] + (double)f->ape[t % f->ratio * w + col]);
            num += e * f->kv[at];
            den += e;
        }
        row[k] = num / den;
    }
    rms_of(row, f->norm, f->width, row);
    rotate_ref(row + f->width - ROPE, s * f->ratio, f->freq);
}

static void check_comp(int ratio, bool index)
{
    comp_fx *f = make_comp(ratio, index);
    float got[512], rounded[128];
    double want[128];
    backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
    int r = 1, last = f->steps / ratio - 1;
    run_comp(b, f, &r, 1, got);
    close_clean(b);
    for (int k = 0; k < 2; k++) {
        reference_pool(f, r, last - 1 + k, want);
        for (int i = 0; i < 128; i++)
            assert_close(got[k * 128 + i], want[i], 1e-6 * (1 + fabs(want[i])), "compressed row", i);
        memcpy(rounded, got + k * 128, sizeof rounded);
        if (index) {
            num_hadamard(rounded, 128);
            num_sim_fp4(rounded, 128);
        } else {
            num_sim_fp8(rounded, 64);
        }
        assert_memory_equal(rounded, got + 256 + k * 128, sizeof rounded);
    }
    if (ratio == 4) /* ratio 128 is the same code, and slow here */
        check_rows(run_comp, f, 512, BE_ACT_Q8, &dims, true);
    free_comp(f);
}

static void compressed_rows_pool_their_own_windows(void **state)
{
    (void)state;
    check_comp(4, false);
    check_comp(4, true);
    check_comp(128, false);
}

static void the_first_window_has_no_predecessor(void **state)
{
    (void)state;
    comp_fx *f = make_comp(4, false);
    f->steps = 8;
    float got[512];
    double want[128];
    int r = 0;
    backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
    run_comp(b, f, &r, 1, got);
    close_clean(b);
    reference_pool(f, 0, 0, want);
    for (int i = 0; i < 128; i++)
        assert_close(got[i], want[i], 2e-6, "compressed row 0", i);
    free_comp(f);
}

/* --- taps --- */

static void taps_hold_the_mean_of_the_streams_at_their_columns(void **state)
{
    (void)state;
    hc_fx *f = make_hc(Q_F32);
    backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
    int32_t pos[] = {9, 170, 12}, seq[] = {1, 0, 0};
    int which[] = {0, 1, 2};
    be_rows r = make_rows(b, NULL, pos, seq, which, 3);
    be_store ring = {dev_room(b, 2 * CAP * 3 * D), 3 * D, CAP, CAP * 3 * D};
    float *st = gather_rows(b, f->streams, S * D, which, 3), *back = dev_room(b, 3 * 3 * D);
    b->op->tap(b, &r, st, 2, &ring);
    b->op->gather(b, &r, &ring, back);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3 * D; k++) {
            double want = 0;
            for (int h = 0; k >= 2 * D && h < S; h++)
                want += f->streams[(i * S + h) * D + k - 2 * D] / 4.0;
            assert_close(back[i * 3 * D + k], want, 1e-6, "tap", k);
        }
    check_guards(b, ring.base, 2 * CAP * 3 * D);
    check_guards(b, back, 3 * 3 * D);
    close_clean(b);
    free_hc(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_copies_the_decoded_row_to_every_stream),
        cmocka_unit_test(a_token_outside_the_vocabulary_is_an_error_not_a_crash),
        cmocka_unit_test(hyper_connections_follow_the_definition_for_every_row),
        cmocka_unit_test(sinkhorn_matches_the_golden_vectors),
        cmocka_unit_test(norms_and_query_rotation_follow_the_definition),
        cmocka_unit_test(rotation_tables_match_the_golden_vectors),
        cmocka_unit_test(kv_rows_are_normed_rotated_rounded_and_stored_by_position),
        cmocka_unit_test(compressed_rows_pool_their_own_windows),
        cmocka_unit_test(the_first_window_has_no_predecessor),
        cmocka_unit_test(taps_hold_the_mean_of_the_streams_at_their_columns),
    };
    return cmocka_run_group_tests_name("backend rows", tests, NULL, NULL);
}
