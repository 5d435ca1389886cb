/* embed_hc.c: token embedding and manifold-constrained hyper-connections. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "file/quant.h"

enum { MAX_STREAMS = 8, MAX_MIX = MAX_STREAMS * (2 + MAX_STREAMS) };

void cpu_embed(backend *b, const be_rows *r, const be_weight *table, float *streams)
{
    cpu *c = cpu_of(b);
    int d = b->dims.d, copies = b->dims.streams;
    for (int i = 0; cpu_ok(c) && i < r->n; i++) {
        float *s = streams + (size_t)i * (size_t)(copies * d);
        if (r->token[i] < 0 || r->token[i] >= table->ne1) {
            cpu_fail(c, "token %d is outside the vocabulary of %lld", r->token[i], (long long)table->ne1);
            return;
        }
        quant_decode(table->type, cpu_row(table, 0, r->token[i]), s, (uint64_t)d);
        for (int k = 1; k < copies; k++)
            memcpy(s + (size_t)k * (size_t)d, s, (size_t)d * sizeof *s);
    }
}

static double sigmoid(double v) { return 1 / (1 + exp(-v)); }

typedef struct hc_job {
    const cpu *c;
    const be_dims *dims;
    const be_hc *hc;
    const float *norm, *streams;
    float *mix, *y, *x;
    double *dots; /* [n][outputs]: fn . streams */
    cpu_act act;
    int n, outputs;
    bool head;
} hc_job;

static void hc_dot(void *ctx, int o, int thread)
{
    (void)thread;
    const hc_job *j = ctx;
    double v[CPU_MAX_ROWS];
    cpu_dot_double(j->c, j->hc->fn.type, cpu_row(&j->hc->fn, 0, o), &j->act, cpu_iota, j->n, v);
    for (int r = 0; r < j->n; r++)
        j->dots[r * j->outputs + o] = v[r];
}

static void softmax_rows(double *m, int s, double eps)
{
    for (int j = 0; j < s; j++) {
        double *row = m + j * s, top = row[0], sum = 0;
        for (int k = 1; k < s; k++)
            top = row[k] > top ? row[k] : top;
        for (int k = 0; k < s; k++)
            sum += row[k] = exp(row[k] - top);
        for (int k = 0; k < s; k++)
            row[k] = row[k] / sum + eps;
    }
}

/* Divides s lines of s numbers by (sum + eps): rows with step 1 and stride s, columns with step s and stride 1. */
static void normalise(double *m, int s, int step, int stride, double eps)
{
    for (int j = 0; j < s; j++) {
        double sum = 0;
        for (int k = 0; k < s; k++)
            sum += m[j * stride + k * step];
        for (int k = 0; k < s; k++)
            m[j * stride + k * step] /= sum + eps;
    }
}

static void sinkhorn(double *m, int s, int iterations, double eps)
{
    softmax_rows(m, s, eps);
    normalise(m, s, s, 1, eps);
    for (int i = 1; i < iterations; i++) {
        normalise(m, s, 1, s, eps);
        normalise(m, s, s, 1, eps);
    }
}

/* From the dots m of one row: pre (S), post (S), comb (S x S, source slow). */
static void sublayer_mix(const be_dims *dims, const be_hc *hc, const double *m, float *mix)
{
    int s = dims->streams;
    double comb[MAX_STREAMS * MAX_STREAMS];
    for (int i = 0; i < s; i++) {
        mix[i] = (float)(sigmoid(m[i] * hc->scale[0] + hc->base[i]) + dims->hc_eps);
        mix[s + i] = (float)(2 * sigmoid(m[s + i] * hc->scale[1] + hc->base[s + i]));
    }
    for (int i = 0; i < s * s; i++)
        comb[i] = m[2 * s + i] * hc->scale[2] + hc->base[2 * s + i];
    sinkhorn(comb, s, dims->sinkhorn, dims->hc_eps);
    for (int i = 0; i < s * s; i++)
        mix[2 * s + i] = (float)comb[i];
}

static void head_mix(const be_dims *dims, const be_hc *hc, const double *m, float *mix)
{
    for (int i = 0; i < dims->streams; i++)
        mix[i] = (float)(sigmoid(m[i] * hc->scale[0] + hc->base[i]) + dims->hc_eps);
}

/* One row: mix from the dots, y = sum of pre[s] * stream s, x = rmsw(y, norm). */
static void hc_finish(void *ctx, int r, int thread)
{
    (void)thread;
    const hc_job *j = ctx;
    int s = j->dims->streams, d = j->dims->d;
    const float *streams = j->streams + (size_t)r * (size_t)(s * d);
    double m[MAX_MIX], rms = 1 / sqrt(cpu_square(j->c, streams, (int64_t)s * d) / (s * d) + j->dims->rms_eps);
    for (int o = 0; o < j->outputs; o++)
        m[o] = j->dots[r * j->outputs + o] * rms;
    float pre[MAX_STREAMS], *mix = j->head ? pre : j->mix + r * j->outputs, *x = j->x + (size_t)r * (size_t)d;
    if (j->head)
        head_mix(j->dims, j->hc, m, mix);
    else
        sublayer_mix(j->dims, j->hc, m, mix);
    float *y = j->y ? j->y + (size_t)r * (size_t)d : x;
    memset(y, 0, (size_t)d * sizeof *y);
    for (int k = 0; k < s; k++)
        j->c->k->add_scaled(y, streams + k * d, mix[k], d);
    cpu_rms(j->c, y, j->norm, x, d);
}

static void hc_run(cpu *c, hc_job *j)
{
    int s = c->base.dims.streams, d = c->base.dims.d;
    if (!cpu_ok(c) || j->n <= 0)
        return;
    if (s > MAX_STREAMS) {
        cpu_fail(c, "%d hyper-connection streams, at most %d are supported", s, MAX_STREAMS);
        return;
    }
    j->c = c;
    j->dims = &c->base.dims;
    j->dots = cpu_scratch(c, S_MIX, (size_t)CPU_MAX_ROWS * (size_t)j->outputs * sizeof *j->dots);
    if (!j->dots || !cpu_act_make(c, &j->act, 0, j->streams, (size_t)(s * d), (int64_t)s * d, j->n, 1, S_ACT_A))
        return;
    double work = (double)j->n * s * d;
    cpu_for(c, j->outputs, work * j->outputs, hc_dot, j);
    cpu_for(c, j->n, 3 * work, hc_finish, j);
}

void cpu_hc_pre(backend *b, int n, const be_hc *hc, const float *norm, const float *streams, float *mix, float *y,
                float *x)
{
    int s = b->dims.streams;
    hc_job j = {.hc = hc, .norm = norm, .streams = streams, .mix = mix, .y = y, .x = x, .n = n, .outputs = s * (2 + s)};
    hc_run(cpu_of(b), &j);
}

void cpu_hc_head(backend *b, int n, const be_hc *hc, const float *norm, const float *streams, float *y, float *x)
{
    hc_job j = {.hc = hc, .norm = norm, .streams = streams, .y = y, .x = x, .n = n, .outputs = b->dims.streams,
                .head = true};
    hc_run(cpu_of(b), &j);
}

typedef struct post_job {
    const cpu *c;
    const be_dims *dims;
    const float *mix, *out;
    float *streams;
    int pieces;
} post_job;

enum { POST_PIECE = 256 };

/* One row, one piece of the hidden dimension: all streams of the piece are read before any is written. */
static void post_piece(void *ctx, int task, int thread)
{
    (void)thread;
    const post_job *j = ctx;
    int s = j->dims->streams, d = j->dims->d, r = task / j->pieces, at = task % j->pieces * POST_PIECE;
    int len = d - at < POST_PIECE ? d - at : POST_PIECE;
    const float *post = j->mix + r * s * (2 + s) + s, *comb = post + s, *out = j->out + (size_t)r * (size_t)d + at;
    float *streams = j->streams + (size_t)r * (size_t)(s * d) + at, fresh[MAX_STREAMS][POST_PIECE];
    for (int k = 0; k < s; k++) {
        for (int i = 0; i < len; i++)
            fresh[k][i] = post[k] * out[i];
        for (int from = 0; from < s; from++)
            j->c->k->add_scaled(fresh[k], streams + from * d, comb[from * s + k], len);
    }
    for (int k = 0; k < s; k++)
        memcpy(streams + k * d, fresh[k], (size_t)len * sizeof(float));
}

void cpu_hc_post(backend *b, int n, const float *mix, const float *out, float *streams)
{
    cpu *c = cpu_of(b);
    if (!cpu_ok(c) || b->dims.streams > MAX_STREAMS)
        return;
    int s = b->dims.streams, pieces = (b->dims.d + POST_PIECE - 1) / POST_PIECE;
    post_job j = {c, &b->dims, mix, out, streams, pieces};
    cpu_for(c, n * pieces, (double)n * b->dims.d * s * (s + 1), post_piece, &j);
}
