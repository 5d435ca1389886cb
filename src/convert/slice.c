#include "convert/slice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "convert/par.h"
#include "file/quant.h"

enum { CHUNK = 4 << 20 }; /* values per chunk: 16 MiB of float32 */

typedef struct thread_state { enc_loss loss; float *tmp; uint64_t tmp_cap, bad_row, bad_col; } thread_state;

struct slice_work {
    int threads;
    thread_state th[PAR_MAX_THREADS];
    float *x;      /* decoded chunk */
    uint8_t *enc;  /* encoded chunk */
    double *sums;  /* importance by column */
    float *imp;
    uint64_t x_cap, enc_cap, col_cap;
    /* the chunk in work */
    const hf_weight *src;
    uint32_t type;
    const float *use_imp;
    uint64_t row0, n_rows, row_bytes;
};

int slice_open(slice_work **out, int threads, ds4_err *e)
{
    slice_work *k = calloc(1, sizeof *k);
    if (!k)
        return ds4_fail(e, DS4_ENOMEM, "out of memory");
    k->threads = threads < 1 ? 1 : threads > PAR_MAX_THREADS ? PAR_MAX_THREADS : threads;
    *out = k;
    return 0;
}

void slice_close(slice_work *k)
{
    if (!k)
        return;
    for (int i = 0; i < k->threads; i++)
        free(k->th[i].tmp);
    free(k->x);
    free(k->enc);
    free(k->sums);
    free(k->imp);
    free(k);
}

void slice_reset_loss(slice_work *k)
{
    for (int i = 0; i < k->threads; i++)
        k->th[i].loss = (enc_loss){0};
}

enc_loss slice_loss(const slice_work *k)
{
    enc_loss all = {0};
    for (int i = 0; i < k->threads; i++) {
        const enc_loss *l = &k->th[i].loss;
        all.n += l->n;
        all.inexact += l->inexact;
        all.err2 += l->err2;
        all.sum2 += l->sum2;
        all.max_err = fmaxf(all.max_err, l->max_err);
    }
    return all;
}

static bool ensure(void **p, uint64_t *cap, uint64_t n, size_t size)
{
    if (*cap >= n && *p)
        return true;
    free(*p);
    *p = calloc(n, size);
    *cap = *p ? n : 0;
    return *p != NULL;
}

static bool ensure_all(slice_work *k, uint64_t rows, uint64_t cols)
{
    bool ok = ensure((void **)&k->x, &k->x_cap, rows * cols, sizeof(float)) &&
              ensure((void **)&k->enc, &k->enc_cap, rows * k->row_bytes, 1);
    for (int i = 0; i < k->threads && ok; i++)
        ok = ensure((void **)&k->th[i].tmp, &k->th[i].tmp_cap, cols, sizeof(float));
    if (ok && k->col_cap < cols) {
        free(k->sums);
        free(k->imp);
        k->sums = calloc(cols, sizeof *k->sums);
        k->imp = calloc(cols, sizeof *k->imp);
        ok = k->sums && k->imp;
        k->col_cap = ok ? cols : 0;
    }
    return ok;
}

/* Decodes rows begin..end of the chunk; notes the first value that cannot be stored. */
static void decode_part(void *ctx, int thread, uint64_t begin, uint64_t end)
{
    slice_work *k = ctx;
    thread_state *t = &k->th[thread];
    uint64_t cols = k->src->cols;
    for (uint64_t r = begin; r < end; r++) {
        float *x = k->x + r * cols;
        hf_decode_rows(k->src, k->row0 + r, 1, x);
        uint64_t at = enc_find_nonfinite(x, cols);
        if (at == cols)
            at = enc_find_overflow(k->type, x, cols);
        if (at < cols) {
            t->bad_row = r;
            t->bad_col = at;
            return;
        }
    }
}

static void encode_part(void *ctx, int thread, uint64_t begin, uint64_t end)
{
    slice_work *k = ctx;
    thread_state *t = &k->th[thread];
    uint64_t cols = k->src->cols;
    for (uint64_t r = begin; r < end; r++) {
        uint8_t *dst = k->enc + r * k->row_bytes;
        enc_row(k->type, k->x + r * cols, k->use_imp, dst, cols);
        enc_add_loss(k->type, k->x + r * cols, dst, t->tmp, cols, &t->loss);
    }
}

/* Adds x^2 of the chunk's rows to columns begin..end: each column is summed by one thread, in row order. */
static void sum_part(void *ctx, int thread, uint64_t begin, uint64_t end)
{
    slice_work *k = ctx;
    uint64_t cols = k->src->cols;
    (void)thread;
    for (uint64_t r = 0; r < k->n_rows; r++)
        for (uint64_t i = begin; i < end; i++)
            k->sums[i] += (double)k->x[r * cols + i] * k->x[r * cols + i];
}

static int decode_chunk(slice_work *k, const st_set *st, uint64_t n, ds4_err *e)
{
    for (int i = 0; i < k->threads; i++)
        k->th[i].bad_row = UINT64_MAX;
    par_run(k->threads, n, decode_part, k);
    for (int i = 0; i < k->threads; i++) {
        const thread_state *t = &k->th[i];
        if (t->bad_row == UINT64_MAX)
            continue;
        float v = k->x[t->bad_row * k->src->cols + t->bad_col];
        return ds4_fail(e, DS4_EMODEL, "%s: tensor %s: value %g at row %llu, column %llu cannot be stored as %s",
                        st_file(st, k->src->t), k->src->t->name, (double)v, (unsigned long long)(k->row0 + t->bad_row),
                        (unsigned long long)t->bad_col, quant_type_name(k->type));
    }
    return 0;
}

static uint64_t chunk_rows(const hf_weight *src)
{
    uint64_t n = CHUNK / src->cols;
    return n < 1 ? 1 : n > src->rows ? src->rows : n;
}

/* Importance without a matrix: sums of squares by column over the whole slice. */
static int column_sums(slice_work *k, const st_set *st, uint64_t chunk, ds4_err *e)
{
    const hf_weight *src = k->src;
    memset(k->sums, 0, src->cols * sizeof *k->sums);
    for (k->row0 = 0; k->row0 < src->rows; k->row0 += chunk) {
        uint64_t n = src->rows - k->row0 < chunk ? src->rows - k->row0 : chunk;
        int rc = decode_chunk(k, st, n, e);
        if (rc)
            return rc;
        k->n_rows = n;
        par_run(k->threads, src->cols, sum_part, k);
    }
    double mean = 0;
    for (uint64_t i = 0; i < src->cols; i++)
        mean += k->sums[i] / (double)src->cols;
    for (uint64_t i = 0; i < src->cols; i++)
        k->imp[i] = mean > 0 ? (float)(k->sums[i] / mean) : 1;
    return 0;
}

static int repack(slice_work *k, const st_set *st, uint64_t chunk, ggufw *w, ds4_err *e)
{
    const hf_weight *src = k->src;
    for (uint64_t r = 0; r < src->rows; r += chunk) {
        uint64_t n = src->rows - r < chunk ? src->rows - r : chunk;
        uint64_t done = hf_repack_mxfp4(src, r, n, k->enc);
        if (done < r + n)
            return ds4_fail(e, DS4_EMODEL, "%s: tensor %s: scale of row %llu is NaN", st_file(st, src->t), src->t->name,
                            (unsigned long long)done);
        int rc = ggufw_data(w, k->enc, n * k->row_bytes, e);
        if (rc)
            return rc;
    }
    k->th[0].loss.n += src->rows * src->cols;
    return 0;
}

int slice_write(slice_work *k, const st_set *st, const hf_weight *src, uint32_t type, const float *imp, ggufw *w,
                ds4_err *e)
{
    uint64_t chunk = chunk_rows(src);
    int rc = 0;
    k->src = src;
    k->type = type;
    k->row_bytes = quant_row_bytes(type, src->cols);
    if (!ensure_all(k, chunk, src->cols))
        return ds4_fail(e, DS4_ENOMEM, "out of memory for tensor %s", src->t->name);
    if (type == Q_MXFP4 && src->coding == HF_FP4)
        return repack(k, st, chunk, w, e);
    if (!imp && enc_wants_importance(type)) {
        if ((rc = column_sums(k, st, chunk, e)))
            return rc;
        imp = k->imp;
    }
    k->use_imp = imp;
    for (k->row0 = 0; k->row0 < src->rows; k->row0 += chunk) {
        uint64_t n = src->rows - k->row0 < chunk ? src->rows - k->row0 : chunk;
        if ((rc = decode_chunk(k, st, n, e)))
            return rc;
        par_run(k->threads, n, encode_part, k);
        if ((rc = ggufw_data(w, k->enc, n * k->row_bytes, e)))
            return rc;
    }
    return 0;
}
