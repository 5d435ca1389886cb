#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "spec/confidence.h"
#include "spec/proposer.h"

/* With timing on, the parts are separated by waits; without, this is only the clock's start. */
static double mark(dspark *d, double since, double *part)
{
    if (!d->base.stats->timing)
        return since;
    d->m->b->op->sync(d->m->b, NULL);
    double now = clock_now();
    *part += now - since;
    return now;
}

/* Brings the stage rings up to pos: rows of the last window positions that were not absorbed yet, from the tap ring.
 * At most `spare` of them may be left out: the caller's step absorbs that many by itself. */
static void catch_up(dspark *d, session *s, int spare)
{
    const int window = d->m->s.dims.window, most = d->m->b->max_rows;
    const int first = s->pos > window ? s->pos - window : 0;
    int from = s->absorbed;
    if (s->absorbed_from > first || s->absorbed < first) /* the beginning is missing, or rows were skipped */
        from = s->absorbed_from = first;
    else if (s->pos - from <= spare)
        return;
    while (from < s->pos) {
        int32_t pos[256], token[256] = {0};
        int n = s->pos - from < most ? s->pos - from : most;
        for (int i = 0; i < n; i++)
            pos[i] = from + i;
        be_rows r = model_rows(d->m, 1, n, token, pos, s->slot);
        forward_absorb(d->m, s->k, &r);
        from += n;
    }
    s->absorbed = s->pos;
}

/* The block [anchor, noise, ...] at pos, pos+1, ... through the stages. Leaves anchor and draft positions in
 * scratch.ids. */
static void run_stages(dspark *d, session *s, int32_t anchor)
{
    model *m = d->m;
    const int n = m->ds.block;
    int32_t pos[SHAPE_MAX_BLOCK + 1], token[SHAPE_MAX_BLOCK + 1], ids[IDS_DRAFT_POS + SHAPE_MAX_BLOCK + 1] = {0};
    for (int i = 0; i < n; i++) {
        pos[i] = s->pos + i;
        token[i] = i ? m->ds.noise : anchor;
        ids[IDS_DRAFT_POS + i] = s->pos + 1 + i;
    }
    ids[IDS_DRAFT] = anchor;
    m->b->op->upload(m->b, m->sc.ids, ids, sizeof ids);
    be_rows r = model_rows(m, 1, n, token, pos, s->slot);
    forward_draft(m, s->k, &r);
}

/* Confidence logits of rows [0, n), given scratch.ids. */
static int confidences(dspark *d, int n, float *z, ds4_err *e)
{
    model *m = d->m;
    const int width = m->s.dims.d;
    if (!d->host_confidence) {
        m->b->op->confidence(m->b, n, &m->dw.confidence, &m->dw.markov_w1, m->sc.hidden, m->sc.ids + IDS_DRAFT,
                             m->sc.conf);
        m->b->op->download(m->b, z, m->sc.conf, (size_t)n * sizeof *z);
        return 0;
    }
    int32_t prev[SHAPE_MAX_BLOCK + 1];
    m->b->op->download(m->b, d->hidden, m->sc.hidden, (size_t)n * (size_t)width * sizeof(float));
    m->b->op->download(m->b, prev, m->sc.ids + IDS_DRAFT, (size_t)n * sizeof *prev);
    d->base.stats->bytes_to_host += (size_t)n * (size_t)width * sizeof(float);
    int rc = m->b->op->sync(m->b, e); /* a dead backend leaves prev unset */
    for (int i = 0; i < n && !rc; i++)
        rc = confidence_host(m, d->hidden + (size_t)i * (size_t)width, prev[i], &z[i], e);
    return rc;
}

/* Head over the whole block once, then the sequential part: Markov bias of the previous choice, choice, next. */
static void markov_chain(dspark *d, int n, const sample_params *sp)
{
    model *m = d->m;
    const size_t vocab = (size_t)m->s.dims.vocab;
    int32_t *ids = m->sc.ids;
    for (int i = 0; i < n; i++) {
        float *logits = m->sc.draft_logits + (size_t)i * vocab;
        m->b->op->markov(m->b, &m->dw.markov_w1, &m->dw.markov_w2, ids + IDS_DRAFT + i, logits);
        m->b->op->pick(m->b, 1, logits, sp->temp, sp->seed, ids + IDS_DRAFT_POS + i, ids + IDS_DRAFT + i + 1);
    }
}

static int dspark_propose(proposer *p, session *s, int32_t anchor, int max, float gate, const sample_params *sp,
                          proposal *out, ds4_err *e)
{
    dspark *d = (dspark *)p;
    model *m = d->m;
    ds4_stats *st = p->stats;
    const int n = max < m->ds.block ? max : m->ds.block;
    float z[SHAPE_MAX_BLOCK + 1];
    memset(out, 0, sizeof *out);
    double t = clock_now();
    catch_up(d, s, 0);
    t = mark(d, t, &st->setup);
    run_stages(d, s, anchor);
    t = mark(d, t, &st->chain);
    int rc = confidences(d, 1, z, e);
    t = mark(d, t, &st->conf0);
    st->bytes_to_host += sizeof(float);
    if (rc)
        return rc;
    if (plan_gated(gate, plan_sigmoid(z[0]))) {
        out->gated = true;
        return m->b->op->sync(m->b, e);
    }
    forward_draft_head(m, n);
    t = mark(d, t, &st->logits);
    markov_chain(d, n, sp);
    t = mark(d, t, &st->markov);
    rc = confidences(d, n, z, e);
    t = mark(d, t, &st->confidence);
    m->b->op->download(m->b, out->draft, m->sc.ids + IDS_DRAFT + 1, (size_t)n * sizeof *out->draft);
    st->bytes_to_host += (size_t)n * (sizeof(float) + sizeof(int32_t));
    if (!rc)
        rc = m->b->op->sync(m->b, e);
    for (int i = 0; i < n; i++)
        out->conf[i] = plan_sigmoid(z[i]);
    out->n = rc ? 0 : n;
    return rc;
}

/* The last block + 1 committed rows are left to the cycle's step, which absorbs them whether they are new or not. */
static bool dspark_ready(proposer *p, session *s)
{
    dspark *d = (dspark *)p;
    const int own = d->m->ds.block + 1;
    if (d->host_confidence || s->pos < own)
        return false;
    catch_up(d, s, own);
    return true;
}

int dspark_open(dspark *d, model *m, bool host_confidence, ds4_stats *stats, ds4_err *e)
{
    *d = (dspark){.base = {m->ds.block, dspark_propose, dspark_ready, stats}, .m = m};
    d->host_confidence = host_confidence || !m->b->op->confidence;
    if (d->host_confidence)
        d->hidden = malloc(sizeof(float) * (size_t)m->s.dims.d * (size_t)m->ds.block);
    if (d->host_confidence && !d->hidden)
        return ds4_fail(e, DS4_ENOMEM, "no memory for the confidence diagnostic");
    return 0;
}

void dspark_close(dspark *d)
{
    free(d->hidden);
    d->hidden = NULL;
}
