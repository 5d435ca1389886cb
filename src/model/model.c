#include "model/model.h"

#include <string.h>

_Static_assert((int)PLAN_MOST >= (int)SHAPE_MAX_BLOCK && (int)PLAN_ROWS <= (int)BE_NARROW,
               "a cycle has room for every block");

static size_t scratch_floats_per_row(const shape *s, const drafter_shape *ds)
{
    const be_dims *d = &s->dims;
    const size_t D = (size_t)d->d, S = (size_t)d->streams, QR = (size_t)s->q_rank, H = (size_t)d->heads,
                 K = (size_t)d->head_dim;
    const size_t I = (size_t)d->idx_dim, IH = (size_t)d->idx_heads, TOPK = (size_t)d->idx_topk, G = (size_t)d->groups;
    const size_t R = (size_t)d->group_rank, U = (size_t)d->used, TAPS = ds ? (size_t)ds->targets : 0;
    size_t n = 0;
#define X(name, count) n += (count);
#include "model/scratch.def"
#undef X
    return n;
}

/* Each tensor starts on a 64-byte border. */
static void *cut(char **at, size_t bytes)
{
    void *p = *at;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

static void scratch_cut(model *m, char *at)
{
    const be_dims *d = &m->s.dims;
    const size_t D = (size_t)d->d, S = (size_t)d->streams, QR = (size_t)m->s.q_rank, H = (size_t)d->heads,
                 K = (size_t)d->head_dim;
    const size_t I = (size_t)d->idx_dim, IH = (size_t)d->idx_heads, TOPK = (size_t)d->idx_topk, G = (size_t)d->groups;
    const size_t R = (size_t)d->group_rank, U = (size_t)d->used, TAPS = m->has_drafter ? (size_t)m->ds.targets : 0;
    const size_t rows = (size_t)m->b->max_rows, vocab = (size_t)d->vocab;
    scratch *sc = &m->sc;
#define X(name, count) sc->name = cut(&at, (count)*rows * sizeof(float));
#include "model/scratch.def"
#undef X
    sc->hidden = cut(&at, BE_NARROW * D * sizeof(float));
    sc->normed = cut(&at, BE_NARROW * D * sizeof(float));
    sc->logits = cut(&at, BE_NARROW * vocab * sizeof(float));
    sc->draft_logits = cut(&at, m->has_drafter ? (SHAPE_MAX_BLOCK + 1) * vocab * sizeof(float) : 0);
    sc->rows = cut(&at, 6 * rows * sizeof(int32_t));
    sc->ids = cut(&at, IDS_COUNT * sizeof(int32_t));
    sc->conf = cut(&at, 64 * sizeof(float));
    sc->cycle = cut(&at, sizeof *sc->cycle);
}

size_t model_scratch_bytes(const shape *s, const drafter_shape *ds, int max_rows)
{
    const size_t rows = (size_t)max_rows, D = (size_t)s->dims.d, vocab = (size_t)s->dims.vocab;
    size_t bytes = scratch_floats_per_row(s, ds) * rows * sizeof(float) + 32 * 64;
    bytes += (2 * BE_NARROW * D + (BE_NARROW + SHAPE_MAX_BLOCK + 1) * vocab) * sizeof(float) + 6 * rows * 4 + 4096;
    return bytes + sizeof(be_cycle);
}

static int scratch_open(model *m, ds4_err *e)
{
    const size_t bytes = model_scratch_bytes(&m->s, m->has_drafter ? &m->ds : NULL, m->b->max_rows);
    char *base = m->b->op->alloc(m->b, bytes);
    if (!base)
        return ds4_fail(e, DS4_ENOMEM, "no memory for %.1f MB of scratch", (double)bytes / 1e6);
    scratch_cut(m, base);
    if (m->b->op->share && !(m->sc.record = m->b->op->share(m->b, sizeof *m->sc.record)))
        return ds4_fail(e, DS4_ENOMEM, "no memory for the record of a cycle");
    m->scratch_bytes = bytes;
    return 0;
}

int model_open(model *m, backend *b, const gguf *trunk, const gguf *drafter, const model_options *o, ds4_err *e)
{
    memset(m, 0, sizeof *m);
    m->b = b;
    m->sim = o->sim;
    m->identity = weights_identity(trunk);
    int rc = shape_read(&m->s, trunk, e);
    if (!rc && drafter)
        rc = shape_read_drafter(&m->ds, &m->s, drafter, e);
    if (rc)
        return rc;
    b->dims = m->s.dims;
    m->has_drafter = drafter != NULL;
    rc = weights_bind_trunk(&m->w, &m->s, trunk, b, o->progress, o->progress_ctx, e);
    if (!rc && drafter)
        rc = weights_bind_drafter(&m->dw, &m->s, &m->ds, drafter, b, o->progress, o->progress_ctx, e);
    if (!rc)
        rc = scratch_open(m, e);
    if (!rc)
        rc = b->op->sync(b, e);
    if (rc)
        model_close(m);
    return rc;
}

void model_close(model *m)
{
    weights_free_trunk(&m->w);
    weights_free_drafter(&m->dw);
    m->b = NULL;
}

be_rows model_rows(model *m, int set, int n, const int32_t *token, const int32_t *pos, int slot)
{
    const int cap = m->b->max_rows;
    int32_t host[3 * 256];
    int32_t *dev = m->sc.rows + (size_t)set * 3 * (size_t)cap;
    be_rows r = {.n = n, .token = dev, .pos = dev + n, .seq = dev + 2 * n};
    for (int at = 0; at < n; at += 256) {
        int k = n - at < 256 ? n - at : 256;
        for (int i = 0; i < k; i++) {
            host[i] = token[at + i];
            host[256 + i] = pos[at + i];
            host[512 + i] = slot;
            r.max_pos = pos[at + i] > r.max_pos ? pos[at + i] : r.max_pos;
        }
        m->b->op->upload(m->b, dev + at, host, (size_t)k * 4);
        m->b->op->upload(m->b, dev + n + at, host + 256, (size_t)k * 4);
        m->b->op->upload(m->b, dev + 2 * n + at, host + 512, (size_t)k * 4);
    }
    return r;
}
