/* t_attention.c: the indexer's choice and attention over window, compressed rows and block. */
#include "backend/util_be.h"

enum { HEADS = 3, HEAD = 128, ROPE = 64, WINDOW = 128, IDX_HEADS = 5, IDX = 128, TOPK = 16, CAP = 160, ROWS = 100,
      SEQS = 2 };

static const be_dims dims = {
    .rms_eps = 1e-6f, .heads = HEADS, .head_dim = HEAD, .rope_dim = ROPE, .window = WINDOW, .idx_heads = IDX_HEADS,
        .idx_dim = IDX,
    .idx_topk = TOPK,
};

typedef struct attn_fx {
    float raw[SEQS * CAP * HEAD], comp[SEQS * ROWS * HEAD], q[POOL_ROWS * HEADS * HEAD], sinks[HEADS], freq[ROPE / 2];
    float block[CPU_MAX_ROWS * HEAD];
    float index[SEQS * ROWS * IDX], qi[POOL_ROWS * IDX_HEADS * IDX], wi[POOL_ROWS * IDX_HEADS];
    int32_t pos[POOL_ROWS], seq[POOL_ROWS], sel[POOL_ROWS * TOPK];
    int mode; /* 0 window only, 1 all compressed rows, 2 selected */
} attn_fx;

static attn_fx *make_fx(int mode)
{
    rng g = {21};
    attn_fx *f = calloc(1, sizeof *f);
    fill_normal(&g, f->raw, SEQS * CAP * HEAD, 1);
    fill_normal(&g, f->comp, SEQS * ROWS * HEAD, 1);
    fill_normal(&g, f->q, POOL_ROWS * HEADS * HEAD, 1);
    fill_normal(&g, f->sinks, HEADS, 2);
    fill_normal(&g, f->block, CPU_MAX_ROWS * HEAD, 1);
    fill_normal(&g, f->index, SEQS * ROWS * IDX, 1);
    fill_normal(&g, f->qi, POOL_ROWS * IDX_HEADS * IDX, 1);
    fill_normal(&g, f->wi, POOL_ROWS * IDX_HEADS, 1);
    for (int i = 0; i < ROPE / 2; i++)
        f->freq[i] = powf(10000, -2.0f * (float)i / ROPE);
    for (int i = 0; i < POOL_ROWS; i++) {
        static const int pos[] = {0, 1, 3, 126, 127, 128, 129, 62, 63, 64, 66, 67, 68, 390, 398, 399};
        f->pos[i] = pos[i];
        f->seq[i] = i % SEQS;
        int have = (f->pos[i] + 1) / 4, n = 0;
        for (int s = i % 3; s < have && n < TOPK; s += 1 + i % 4)
            f->sel[i * TOPK + n++] = s;
        while (n < TOPK)
            f->sel[i * TOPK + n++] = -1;
    }
    f->mode = mode;
    return f;
}

static be_rows make_rows(backend *b, const attn_fx *f, const int *which, int n)
{
    int32_t pos[CPU_MAX_ROWS], seq[CPU_MAX_ROWS];
    be_rows r = {.n = n};
    for (int i = 0; i < n; i++) {
        pos[i] = f->pos[which[i]];
        seq[i] = f->seq[which[i]];
        r.max_pos = pos[i] > r.max_pos ? pos[i] : r.max_pos;
    }
    r.pos = ints_to_dev(b, pos, (size_t)n);
    r.seq = ints_to_dev(b, seq, (size_t)n);
    return r;
}

static void run_attend(backend *b, void *fixture, const int *which, int n, float *out)
{
    attn_fx *f = fixture;
    be_rows r = make_rows(b, f, which, n);
    be_store raw = {to_dev(b, f->raw, SEQS * CAP * HEAD), HEAD, CAP, CAP * HEAD};
    be_store comp = {to_dev(b, f->comp, SEQS * ROWS * HEAD), HEAD, ROWS, ROWS * HEAD};
    float *q = dev_room(b, (size_t)(n * HEADS * HEAD)), *o = dev_room(b, (size_t)(n * HEADS * HEAD));
    int32_t sel[CPU_MAX_ROWS * TOPK];
    for (int i = 0; i < n; i++) {
        b->op->upload(b, q + i * HEADS * HEAD, f->q + which[i] * HEADS * HEAD, HEADS * HEAD * 4);
        memcpy(sel + i * TOPK, f->sel + which[i] * TOPK, TOPK * 4);
    }
    be_attn a = {.q = q, .o = o, .raw = &raw, .comp = f->mode ? &comp : NULL, .ratio = 4,
                 .sinks = to_dev(b, f->sinks, HEADS),
                 .sel = f->mode == 2 ? ints_to_dev(b, sel, (size_t)(n * TOPK)) : NULL,
                     .freq = to_dev(b, f->freq, ROPE / 2)};
    b->op->attend(b, &r, &a);
    b->op->download(b, out, o, (size_t)(n * HEADS * HEAD) * 4);
    check_guards(b, o, (size_t)(n * HEADS * HEAD));
    check_guards(b, q, (size_t)(n * HEADS * HEAD));
}

/* Softmax over given rows in double; `back` rotates the tail by -pos. */
static void reference_head(const float *q, const float *const *row, int n, double sink, int pos, const float *freq,
                           double *o)
{
    double z[1024], top = sink, den;
    for (int t = 0; t < n; t++) {
        z[t] = 0;
        for (int k = 0; k < HEAD; k++)
            z[t] += (double)q[k] * row[t][k];
        z[t] /= sqrt(HEAD);
        top = fmax(top, z[t]);
    }
    den = exp(sink - top);
    memset(o, 0, HEAD * sizeof *o);
    for (int t = 0; t < n; t++) {
        den += exp(z[t] - top);
        for (int k = 0; k < HEAD; k++)
            o[k] += exp(z[t] - top) * row[t][k];
    }
    for (int k = 0; k < HEAD; k++)
        o[k] /= den;
    for (int i = 0; i < ROPE / 2; i++) {
        double *v = o + HEAD - ROPE + 2 * i, a = v[0], c = v[1], w = -(double)((float)pos * freq[i]);
        v[0] = a * cos(w) - c * sin(w);
        v[1] = a * sin(w) + c * cos(w);
    }
}

static int reference_rows(const attn_fx *f, int i, const float **row)
{
    int n = 0, pos = f->pos[i], seq = f->seq[i];
    for (int p = pos < WINDOW ? 0 : pos - WINDOW + 1; p <= pos; p++)
        row[n++] = f->raw + seq * CAP * HEAD + p % CAP * HEAD;
    for (int s = 0; f->mode == 1 && s < (pos + 1) / 4; s++)
        row[n++] = f->comp + seq * ROWS * HEAD + s * HEAD;
    for (int k = 0; f->mode == 2 && k < TOPK && f->sel[i * TOPK + k] >= 0; k++)
        row[n++] = f->comp + seq * ROWS * HEAD + f->sel[i * TOPK + k] * HEAD;
    return n;
}

static void attention_sees_window_compressed_rows_and_sink(void **state)
{
    (void)state;
    for (int mode = 0; mode < 3; mode++) {
        attn_fx *f = make_fx(mode);
        float got[HEADS * HEAD];
        const float *row[512];
        double want[HEAD];
        for (int i = 0; i < POOL_ROWS; i++) {
            backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
            run_attend(b, f, &i, 1, got);
            close_clean(b);
            int n = reference_rows(f, i, row);
            for (int h = 0; h < HEADS; h++) {
                reference_head(f->q + (i * HEADS + h) * HEAD, row, n, f->sinks[h], f->pos[i], f->freq, want);
                for (int k = 0; k < HEAD; k++)
                    assert_close(got[h * HEAD + k], want[k], 1e-6, "attention", i);
            }
        }
        check_rows(run_attend, f, HEADS * HEAD, BE_ACT_Q8, &dims, false);
        free(f);
    }
}

static void draft_rows_see_the_context_and_the_whole_block(void **state)
{
    (void)state;
    enum { N = 5 };
    attn_fx *f = make_fx(0);
    static const int starts[] = {0, 1, 4, 127, 128, 129, 300};
    for (int c = 0; c < 7; c++)
        for (enum variant v = V_PLAIN; v < N_VARIANTS; v++) {
            int p0 = starts[c], which[N];
            for (int i = 0; i < N; i++) {
                f->pos[i] = p0 + i;
                f->seq[i] = 1;
                which[i] = i;
            }
            backend *b = open_variant(v, BE_ACT_Q8, &dims);
            be_rows r = make_rows(b, f, which, N);
            be_store raw = {to_dev(b, f->raw, SEQS * CAP * HEAD), HEAD, CAP, CAP * HEAD};
            float *o = dev_room(b, N * HEADS * HEAD);
            be_attn a = {.q = to_dev(b, f->q, N * HEADS * HEAD), .o = o, .raw = &raw,
                         .sinks = to_dev(b, f->sinks, HEADS),
                         .freq = to_dev(b, f->freq, ROPE / 2), .block = to_dev(b, f->block, N * HEAD)};
            b->op->attend(b, &r, &a);
            const float *row[WINDOW + N];
            int n = 0;
            for (int p = p0 < WINDOW ? 0 : p0 - WINDOW; p < p0; p++)
                row[n++] = f->raw + CAP * HEAD + p % CAP * HEAD;
            for (int k = 0; k < N; k++)
                row[n++] = f->block + k * HEAD;
            for (int i = 0; i < N * HEADS; i++) {
                double want[HEAD];
                reference_head(f->q + i * HEAD, row, n, f->sinks[i % HEADS], p0 + i / HEADS, f->freq, want);
                for (int k = 0; k < HEAD; k++)
                    assert_close(o[i * HEAD + k], want[k], 1e-6, "draft attention", i);
            }
            check_guards(b, o, N * HEADS * HEAD);
            close_clean(b);
        }
    free(f);
}

/* --- indexer --- */

static void run_select(backend *b, void *fixture, const int *which, int n, float *out)
{
    attn_fx *f = fixture;
    be_rows r = make_rows(b, f, which, n);
    be_store rows = {to_dev(b, f->index, SEQS * ROWS * IDX), IDX, ROWS, ROWS * IDX};
    float *qi = dev_room(b, (size_t)(n * IDX_HEADS * IDX)), *wi = dev_room(b, (size_t)(n * IDX_HEADS));
    int32_t *sel = (int32_t *)dev_room(b, (size_t)(n * TOPK)), got[TOPK];
    for (int i = 0; i < n; i++) {
        b->op->upload(b, qi + i * IDX_HEADS * IDX, f->qi + which[i] * IDX_HEADS * IDX, IDX_HEADS * IDX * 4);
        b->op->upload(b, wi + i * IDX_HEADS, f->wi + which[i] * IDX_HEADS, IDX_HEADS * 4);
    }
    b->op->index_select(b, &r, 4, qi, wi, &rows, sel);
    for (int i = 0; i < n; i++) {
        b->op->download(b, got, sel + i * TOPK, sizeof got);
        for (int k = 0; k < TOPK; k++)
            out[i * TOPK + k] = (float)got[k];
    }
    check_guards(b, (float *)sel, (size_t)(n * TOPK));
}

/* The rows by counting how many beat them: larger score, or equal score and lower index. */
static int reference_select(const double *score, int have, int *sel)
{
    int n = 0;
    for (int s = 0; s < have; s++) {
        int better = 0;
        for (int t = 0; t < have; t++)
            better += score[t] > score[s] || (score[t] == score[s] && t < s);
        if (better < TOPK)
            sel[n++] = s;
    }
    return n;
}

static void the_indexer_selects_the_best_rows_in_ascending_order(void **state)
{
    (void)state;
    attn_fx *f = make_fx(0);
    for (int i = 0; i < POOL_ROWS; i++) {
        float got[TOPK];
        double score[ROWS];
        int sel[TOPK], have = (f->pos[i] + 1) / 4;
        backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
        run_select(b, f, &i, 1, got);
        close_clean(b);
        for (int s = 0; s < have; s++) {
            score[s] = 0;
            for (int h = 0; h < IDX_HEADS; h++) {
                double dot = 0;
                for (int k = 0; k < IDX; k++)
                    dot += (double)f->qi[(i * IDX_HEADS + h) * IDX + k] * f->index[(f->seq[i] * ROWS + s) * IDX + k];
                score[s] += f->wi[i * IDX_HEADS + h] * fmax(0, dot);
            }
        }
        int n = reference_select(score, have, sel);
        for (int k = 0; k < TOPK; k++)
            assert_int_equal((int)got[k], k < n ? sel[k] : -1);
    }
    check_rows(run_select, f, TOPK, BE_ACT_Q8, &dims, false);
    free(f);
}

static void index_ties_go_to_the_lower_row_and_nan_is_last(void **state)
{
    (void)state;
    attn_fx *f = make_fx(0);
    rng g = {31};
    int i = 15, have = 100; /* position 399 of sequence 1 */
    float *row = f->index + ROWS * IDX;
    for (int round = 0; round < 50; round++) {
        double score[ROWS];
        float got[TOPK];
        int sel[TOPK];
        memset(f->qi + i * IDX_HEADS * IDX, 0, IDX_HEADS * IDX * 4);
        memset(row, 0, ROWS * IDX * 4);
        for (int h = 0; h < IDX_HEADS; h++)
            f->wi[i * IDX_HEADS + h] = h == 0 ? (round % 2 ? -1 : 1) : -0.5f;
        f->qi[i * IDX_HEADS * IDX] = 1;
        for (int s = 0; s < have; s++) { /* few values: many ties; products of zero with negative weights: -0 */
            row[s * IDX] = (float)(rng_below(&g, 3 + round % 5) - 1);
            score[s] = fmax(0, row[s * IDX]) * f->wi[i * IDX_HEADS];
            if (round > 40 && s % 4 == 0)
                score[s] = -INFINITY, row[s * IDX] = NAN;
        }
        if (round > 40) /* max(0, NaN) must not become a fair score of zero */
            for (int s = 0; s < have; s += 4)
                score[s] = -INFINITY;
        backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
        run_select(b, f, &i, 1, got);
        close_clean(b);
        reference_select(score, have, sel);
        for (int k = 0; k < TOPK; k++)
            assert_int_equal((int)got[k], sel[k]);
    }
    free(f);
}

static void run_query(backend *b, void *fixture, const int *which, int n, float *out)
{
    attn_fx *f = fixture;
    be_rows r = make_rows(b, f, which, n);
    enum { W = IDX_HEADS * IDX };
    float *q[2], *freq = to_dev(b, f->freq, ROPE / 2);
    for (int k = 0; k < 2; k++) {
        q[k] = dev_room(b, (size_t)(n * W));
        for (int i = 0; i < n; i++)
            b->op->upload(b, q[k] + i * W, f->qi + which[i] * W, W * 4);
        b->op->index_query(b, &r, freq, k == 1, q[k]);
        for (int i = 0; i < n; i++)
            b->op->download(b, out + (2 * i + k) * W, q[k] + i * W, W * 4);
        check_guards(b, q[k], (size_t)(n * W));
    }
}

static void index_queries_are_rotated_then_transformed_and_rounded(void **state)
{
    (void)state;
    enum { W = IDX_HEADS * IDX };
    attn_fx *f = make_fx(0);
    float got[2 * W];
    for (int i = 3; i < 6; i++) {
        backend *b = open_variant(V_FAST, BE_ACT_Q8, &dims);
        run_query(b, f, &i, 1, got);
        close_clean(b);
        for (int h = 0; h < IDX_HEADS; h++) {
            const float *x = f->qi + i * W + h * IDX, *y = got + h * IDX;
            for (int k = 0; k < IDX - ROPE; k++)
                assert_true(y[k] == x[k]);
            for (int p = 0; p < ROPE / 2; p++) {
                int k = IDX - ROPE + 2 * p;
                double w = (double)((float)f->pos[i] * f->freq[p]);
                assert_close(y[k], x[k] * cos(w) - x[k + 1] * sin(w), 1e-6, "rotated query", k);
                assert_close(y[k + 1], x[k] * sin(w) + x[k + 1] * cos(w), 1e-6, "rotated query", k + 1);
            }
            for (int blk = 0; blk < IDX; blk += 32) { /* FP4: at most a quarter of the largest number off */
                double amax = 0, v[32];
                for (int k = 0; k < 32; k++) {
                    v[k] = 0;
                    for (int t = 0; t < IDX; t++)
                        v[k] += (__builtin_popcount((unsigned)((blk + k) & t)) % 2 ? -1 : 1) * y[t] / sqrt(IDX);
                    amax = fmax(amax, fabs(v[k]));
                }
                for (int k = 0; k < 32; k++)
                    assert_close(got[W + h * IDX + blk + k], v[k], amax / 3, "transformed query", blk + k);
            }
        }
    }
    check_rows(run_query, f, 2 * W, BE_ACT_Q8, &dims, false);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_sees_window_compressed_rows_and_sink),
        cmocka_unit_test(draft_rows_see_the_context_and_the_whole_block),
        cmocka_unit_test(the_indexer_selects_the_best_rows_in_ascending_order),
        cmocka_unit_test(index_ties_go_to_the_lower_row_and_nan_is_last),
        cmocka_unit_test(index_queries_are_rotated_then_transformed_and_rounded),
    };
    return cmocka_run_group_tests_name("backend attention", tests, NULL, NULL);
}
