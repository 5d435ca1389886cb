/* forward.c: DeepSeek-V4's forward, once, for every backend and every number of rows.
 *
 * Read from the bottom up: forward_trunk embeds, runs forward_layer for each layer, and forward_head; a layer is a
 * block, a block is attention and experts, each inside its hyper-connection. The drafter is forward_absorb (what the
 * trunk computed enters its rings), forward_draft (the same block on a proposal) and forward_draft_head. model.h has
 * the shapes, backend/backend.h the operations. */
#include "model/model.h"

#include "base/hash.h"

static bool sim_kv(const model *m) { return m->sim != KV_SIM_OFF; }
static bool sim_index(const model *m) { return m->sim == KV_SIM_FULL; }

/* Selection is needed once a row may see more compressed rows than the indexer selects. */
static bool selects(const model *m, const be_rows *r) { return (r->max_pos + 1) / 4 > m->s.dims.idx_topk; }

static be_linear job(const be_weight *w, const float *x, float *y)
{
    return (be_linear){w, x, y, (int)w->ne0, (int)w->ne1, 1};
}

/* Everything that is a product of the normed input: query low rank, KV row, compressor inputs, index weights. */
static void input_products(model *m, const be_rows *r, const layer_weights *L, const be_place *p)
{
    scratch *s = &m->sc;
    be_linear jobs[7];
    int k = 0;
    jobs[k++] = job(&L->q_a, s->x, s->qa);
    jobs[k++] = job(&L->kv, s->x, s->kv);
    if (p->ratio) {
        jobs[k++] = job(&L->comp.kv, s->x, s->comp_kv);
        jobs[k++] = job(&L->comp.gate, s->x, s->comp_gate);
    }
    if (p->ratio == 4) {
        jobs[k++] = job(&L->index_comp.kv, s->x, s->index_kv);
        jobs[k++] = job(&L->index_comp.gate, s->x, s->index_gate);
        if (p->select)
            jobs[k++] = job(&L->index_proj, s->x, s->index_w);
    }
    m->b->op->linear(m->b, r->n, jobs, k);
}

static void queries(model *m, const be_rows *r, const layer_weights *L, const be_place *p)
{
    scratch *s = &m->sc;
    m->b->op->norm(m->b, r->n, m->s.q_rank, s->qa, L->q_a_norm, s->qa);
    be_linear jobs[2] = {job(&L->q_b, s->qa, s->q), {0}};
    int k = 1;
    if (p->select)
        jobs[k++] = job(&L->index_q_b, s->qa, s->index_q);
    m->b->op->linear(m->b, r->n, jobs, k);
    m->b->op->q_finish(m->b, r, p->freq, s->q);
}

/* Compressor and indexer: store this forward's inputs, pool the windows that end here, select rows. Returns the
 * selection or NULL. */
static const int32_t *compress(model *m, const be_rows *r, const layer_weights *L, const be_place *p)
{
    scratch *s = &m->sc;
    const backend_ops *op = m->b->op;
    op->comp_put(m->b, r, p->ratio, s->comp_kv, s->comp_gate, L->comp.ape, p->comp_in);
    op->comp_pool(m->b, r, p->ratio, p->comp_in, L->comp.norm, p->freq, false, p->sim_kv, p->comp);
    if (p->ratio != 4)
        return NULL;
    op->comp_put(m->b, r, p->ratio, s->index_kv, s->index_gate, L->index_comp.ape, p->index_in);
    op->comp_pool(m->b, r, p->ratio, p->index_in, L->index_comp.norm, p->freq, true, p->sim_index, p->index);
    if (!p->select)
        return NULL;
    op->index_query(m->b, r, p->freq, p->sim_index, s->index_q);
    op->index_select(m->b, r, p->ratio, s->index_q, s->index_w, p->index, (int32_t *)s->sel);
    return (const int32_t *)s->sel;
}

static void attention(model *m, const be_rows *r, const layer_weights *L, const be_place *p)
{
    scratch *s = &m->sc;
    const backend_ops *op = m->b->op;
    input_products(m, r, L, p);
    queries(m, r, L, p);
    op->kv_finish(m->b, r, L->kv_norm, p->freq, p->sim_kv, s->kv, p->drafter ? NULL : p->raw);
    be_attn a = {.q = s->q,
                 .o = s->attn,
                 .raw = p->raw,
                 .ratio = p->ratio,
                 .sinks = L->sinks,
                 .freq = p->freq,
                 .block = p->drafter ? s->kv : NULL};
    if (p->ratio) {
        a.sel = compress(m, r, L, p);
        a.comp = p->comp;
    }
    op->attend(m->b, r, &a);
    const be_dims *d = &m->s.dims;
    be_linear grouped = {&L->out_a, s->attn, s->low, d->heads * d->head_dim, d->groups * d->group_rank, d->groups};
    op->linear(m->b, r->n, &grouped, 1);
    be_linear out = job(&L->out_b, s->low, s->out);
    op->linear(m->b, r->n, &out, 1);
}

static void experts(model *m, const be_rows *r, const layer_weights *L, const be_place *p)
{
    scratch *s = &m->sc;
    int32_t *ids = (int32_t *)s->route_id;
    m->b->op->route(m->b, r, s->x, &L->router, L->router_bias, L->tid2eid, ids, s->route_w);
    be_moe e = {&L->gate_exps, &L->up_exps, &L->down_exps, &L->gate_sh, &L->up_sh, &L->down_sh, p->clamp, p->sclamp};
    m->b->op->moe(m->b, r->n, &e, s->x, ids, s->route_w, s->out);
}

/* Two sublayers, each inside its hyper-connection; sc.streams is replaced. */
static void block(model *m, const be_rows *r, const layer_weights *L, const be_place *p)
{
    scratch *s = &m->sc;
    const backend_ops *op = m->b->op;
    if (op->block && op->block(m->b, r, L, p, s->streams))
        return;
    op->hc_pre(m->b, r->n, &L->hc_attn, L->attn_norm, s->streams, s->mix, NULL, s->x);
    attention(m, r, L, p);
    op->hc_post(m->b, r->n, s->mix, s->out, s->streams);
    op->hc_pre(m->b, r->n, &L->hc_ffn, L->ffn_norm, s->streams, s->mix, NULL, s->x);
    experts(m, r, L, p);
    op->hc_post(m->b, r->n, s->mix, s->out, s->streams);
}

static int tap_slot(const model *m, int layer)
{
    for (int i = 0; m->has_drafter && i < m->ds.targets; i++)
        if (m->ds.target[i] == layer)
            return i;
    return -1;
}

void forward_layer(model *m, kv *k, int layer, const be_rows *r)
{
    int ratio = m->s.ratio[layer], slot = tap_slot(m, layer);
    const kv_layer *kl = &k->layer[layer];
    be_place p = {.ratio = ratio,
                  .freq = ratio ? m->w.freq_comp : m->w.freq_plain,
                  .raw = &kl->raw,
                  .comp_in = ratio ? &kl->comp_in : NULL,
                  .comp = ratio ? &kl->comp : NULL,
                  .index_in = ratio == 4 ? &kl->index_in : NULL,
                  .index = ratio == 4 ? &kl->index : NULL,
                  .select = ratio == 4 && selects(m, r),
                  .sim_kv = sim_kv(m),
                  .sim_index = sim_index(m),
                  .clamp = m->s.clamp[layer],
                  .sclamp = m->s.sclamp[layer]};
    block(m, r, &m->w.layer[layer], &p);
    if (slot >= 0 && k->tap.width)
        m->b->op->tap(m->b, r, m->sc.streams, slot, &k->tap);
}

void forward_head(model *m, int n, int from)
{
    scratch *s = &m->sc;
    size_t skip = (size_t)from * (size_t)(m->s.dims.streams * m->s.dims.d);
    if (from >= n)
        return;
    m->b->op->hc_head(m->b, n - from, &m->w.hc_head, m->w.norm, s->streams + skip, s->hidden, s->normed);
    be_linear out = job(&m->w.output, s->normed, s->logits);
    m->b->op->linear(m->b, n - from, &out, 1);
}

be_rows forward_bound(const model *m, const kv *k, const be_rows *r)
{
    be_rows out = *r;
    int top = 4 * m->s.dims.idx_topk + 2; /* the last position that sees at most idx_topk compressed rows */
    if (!m->b->graphs || r->n > BE_NARROW)
        return out;
    while (top < r->max_pos)
        top = 2 * top + 1;
    out.max_pos = top < k->ctx || k->ctx <= r->max_pos ? top : k->ctx - 1;
    return out;
}

uint64_t forward_key(const model *m, const kv *k, enum forward_part part, const be_rows *r, int head_from)
{
    const void *const place[] = {r->token, r->pos, r->seq, r->count, m->sc.logits, k->layer[0].raw.base, k->tap.base};
    const int32_t shape[] = {(int32_t)part, r->n, r->max_pos, head_from, (int32_t)m->sim};
    return hash64(shape, sizeof shape, hash64(place, sizeof place, 0));
}

/* Issues `ops` as a step if the rows are narrow. */
typedef void (*forward_ops)(model *m, kv *k, const be_rows *r, int head_from);

static void in_step(model *m, kv *k, enum forward_part part, const be_rows *r, int head_from, forward_ops ops)
{
    const be_rows bounded = forward_bound(m, k, r);
    if (r->n > BE_NARROW) {
        ops(m, k, r, head_from);
        return;
    }
    if (m->b->op->step_begin(m->b, forward_key(m, k, part, &bounded, head_from)))
        ops(m, k, &bounded, head_from);
    m->b->op->step_end(m->b);
}

static void trunk_ops(model *m, kv *k, const be_rows *r, int head_from)
{
    m->b->op->embed(m->b, r, &m->w.embed, m->sc.streams);
    for (int l = 0; l < m->s.layers; l++)
        forward_layer(m, k, l, r);
    forward_head(m, r->n, head_from);
}

void forward_trunk(model *m, kv *k, const be_rows *r, int head_from)
{
    in_step(m, k, PART_TRUNK, r, head_from, trunk_ops);
}

static void absorb_ops(model *m, kv *k, const be_rows *r, int head_from)
{
    (void)head_from;
    scratch *s = &m->sc;
    const backend_ops *op = m->b->op;
    op->gather(m->b, r, &k->tap, s->tap);
    be_linear proj = job(&m->dw.main_proj, s->tap, s->main_x);
    op->linear(m->b, r->n, &proj, 1);
    op->norm(m->b, r->n, m->s.dims.d, s->main_x, m->dw.main_norm, s->main_x);
    for (int i = 0; i < m->ds.stages; i++) {
        const layer_weights *L = &m->dw.stage[i];
        be_linear kv_row = job(&L->kv, s->main_x, s->kv);
        op->linear(m->b, r->n, &kv_row, 1);
        op->kv_finish(m->b, r, L->kv_norm, m->w.freq_plain, sim_kv(m), s->kv, &k->stage[i]);
    }
}

void forward_absorb(model *m, kv *k, const be_rows *r) { in_step(m, k, PART_ABSORB, r, 0, absorb_ops); }

static void draft_ops(model *m, kv *k, const be_rows *r, int head_from)
{
    (void)head_from;
    scratch *s = &m->sc;
    const int last = m->s.layers - 1;
    m->b->op->embed(m->b, r, &m->w.embed, s->streams);
    for (int i = 0; i < m->ds.stages; i++) {
        be_place p = {.freq = m->w.freq_plain,
                      .raw = &k->stage[i],
                      .drafter = true,
                      .sim_kv = sim_kv(m),
                      .sim_index = sim_index(m),
                      .clamp = m->s.clamp[last],
                      .sclamp = m->s.sclamp[last]};
        block(m, r, &m->dw.stage[i], &p);
    }
    m->b->op->hc_head(m->b, r->n, &m->dw.hc_head, m->dw.norm, s->streams, s->hidden, s->normed);
}

void forward_draft(model *m, kv *k, const be_rows *r) { in_step(m, k, PART_DRAFT, r, 0, draft_ops); }

void forward_draft_head(model *m, int n)
{
    be_linear out = job(&m->w.output, m->sc.normed, m->sc.draft_logits);
    m->b->op->linear(m->b, n, &out, 1);
}

/* --- whole cycles on the device --- */

static be_rows cycle_rows(be_cycle *c, int set, int n, int max_pos)
{
    return (be_rows){.n = n,
                     .max_pos = max_pos,
                     .token = c->in.token[set],
                     .pos = c->in.pos[set],
                     .seq = c->in.seq[set]};
}

static void cycle_stamp(model *m, bool wanted, int i)
{
    if (wanted)
        m->b->op->stamp(m->b, m->sc.cycle, i);
}

/* Head over the block once, then the sequential part: Markov bias of the previous choice, choice, next. */
static void cycle_drafts(model *m, int n, bool timing)
{
    const size_t vocab = (size_t)m->s.dims.vocab;
    be_cycle *c = m->sc.cycle;
    forward_draft_head(m, n);
    cycle_stamp(m, timing, 4);
    const be_weight *w1 = &m->dw.markov_w1, *w2 = &m->dw.markov_w2;
    const bool whole = m->b->op->chain && m->b->op->chain(m->b, n, w1, w2, c, m->sc.draft_logits);
    for (int i = 0; i < n && !whole; i++) {
        float *logits = m->sc.draft_logits + (size_t)i * vocab;
        m->b->op->markov(m->b, w1, w2, &c->in.draft[i], logits);
        m->b->op->pick_in(m->b, 1, logits, c, &c->in.draft_pos[i], &c->in.draft[i + 1]);
    }
    cycle_stamp(m, timing, 5);
}

static void cycle_proposal(model *m, kv *k, int n, int max_pos, bool timing)
{
    const backend_ops *op = m->b->op;
    be_cycle *c = m->sc.cycle;
    const be_weight *w = &m->dw.confidence, *w1 = &m->dw.markov_w1;
    be_rows committed = cycle_rows(c, 2, m->ds.block + 1, max_pos), block = cycle_rows(c, 1, m->ds.block, max_pos);
    absorb_ops(m, k, &committed, 0);
    cycle_stamp(m, timing, 1);
    draft_ops(m, k, &block, 0);
    cycle_stamp(m, timing, 2);
    op->confidence(m->b, 1, w, w1, m->sc.hidden, c->in.draft, c->logit);
    op->gate(m->b, c);
    op->when(m->b, &c->go);
    cycle_drafts(m, n, timing);
    op->confidence(m->b, n, w, w1, m->sc.hidden, c->in.draft, c->logit);
    op->when(m->b, NULL);
    op->plan(m->b, n, c);
}

bool forward_cycle(model *m, kv *k, int drafts, int max_pos, bool timing)
{
    const backend_ops *op = m->b->op;
    be_cycle *c = m->sc.cycle;
    be_rows r = cycle_rows(c, 0, drafts + 1, max_pos);
    r.count = drafts ? &c->wanted : NULL;
    r = forward_bound(m, k, &r);
    const bool issue = op->step_begin(m->b, forward_key(m, k, PART_CYCLE, &r, timing));
    if (issue) {
        op->stamp(m->b, c, 0);
        if (drafts)
            cycle_proposal(m, k, drafts, r.max_pos, timing);
        trunk_ops(m, k, &r, 0);
        op->pick_in(m->b, r.n, m->sc.logits, c, c->in.choice_pos, c->choice);
        op->judge(m->b, c, m->sc.record);
    }
    op->step_end(m->b);
    return issue;
}
