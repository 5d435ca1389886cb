/* block.cu: a whole block of the model in a dozen launches, for narrow forwards with int8 activations.
 *
 *   1 hyper_dots    finishes the sublayer before; partial sums of the connection         hyper.cu
 *   2 hyper_mix     normed input and its int8 and half forms
 *   3 phase_input   query rank, KV row, compressor inputs; norm of the query rank        attention.cu
 *   4 phase_query   queries; KV row stored, windows pooled; index queries
 *     (selection)   index scores and the best rows, once more rows are visible            index.cu
 *   5,6 attention   pieces, merged and quantised                                          attend.cu
 *   7 out_a         grouped, result quantised                                             mm.cu
 *   8 out_b
 *   9,10            the connection of the experts
 *   11 phase_route  experts chosen and grouped                                            experts.cu
 *   12 gate_up      shared and routed experts
 *   13 down         the same, added
 *
 * The sublayer's last step (streams = post out + comb streams) is left to launch 1 of what follows: gpu_settle for
 * other operations. Forwards of more than BE_NARROW rows run in slices, so that their rows have the bits of narrow
 * ones. */
#include "backend/cuda/block.cuh"

static float *take_floats(gpu_cutter *c, size_t rows, size_t n)
{
    return (float *)gpu_cut(c, rows * n * sizeof(float));
}

static qrows take_rows(gpu_cutter *c, size_t rows, int n, int group)
{
    qrows q = {};
    q.ld = n;
    q.group = group;
    q.q = (int8_t *)gpu_cut(c, rows * (size_t)n);
    q.d = (float *)gpu_cut(c, rows * (size_t)(n / group + 1) * sizeof(float));
    q.sum = group == 256 ? (int16_t *)gpu_cut(c, rows * (size_t)(n / 16) * sizeof(int16_t)) : NULL;
    return q;
}

static mm_forms take_forms(gpu_cutter *c, size_t rows, int n)
{
    mm_forms f;
    f.q32 = take_rows(c, rows, n, 32);
    f.q256 = take_rows(c, rows, n, 256);
    f.h = hrows{(uint4 *)gpu_cut(c, rows * (size_t)n * 4), n};
    return f;
}

static int larger(int a, int b) { return a > b ? a : b; }

/* rank: the largest query rank seen; the room is cut anew for every block, so all blocks must agree on its sizes. */
static void cut_room(const be_dims *m, int rank, size_t part, block_room *k, gpu_cutter *c)
{
    const size_t n = BE_NARROW, visits = n * (size_t)m->used;
    k->mix = take_floats(c, GPU_MAX_ROWS, 24);
    k->out = take_floats(c, GPU_MAX_ROWS, (size_t)m->d);
    k->counters = (int *)gpu_cut(c, (COUNT_SHARED + (visits + 1) * (size_t)(m->ff / 32)) * sizeof(int));
    k->part = (float *)gpu_cut(c, part);
    k->x = take_forms(c, n, m->d);
    k->qn = take_forms(c, n, rank);
    k->qa = take_floats(c, n, (size_t)rank);
    k->kv = take_floats(c, n, (size_t)m->head_dim);
    k->comp_kv = take_floats(c, n, 2 * (size_t)m->head_dim);
    k->comp_gate = take_floats(c, n, 2 * (size_t)m->head_dim);
    k->index_kv = take_floats(c, n, 2 * (size_t)m->idx_dim);
    k->index_gate = take_floats(c, n, 2 * (size_t)m->idx_dim);
    k->index_w = take_floats(c, n, (size_t)m->idx_heads);
    k->q = take_floats(c, n, (size_t)(m->heads * m->head_dim));
    k->index_q = take_floats(c, n, (size_t)(m->idx_heads * m->idx_dim));
    k->sel = (int32_t *)gpu_cut(c, n * (size_t)m->idx_topk * sizeof(int32_t));
    k->attn = take_rows(c, n, m->heads * m->head_dim, 32);
    k->low = take_rows(c, n, m->groups * m->group_rank, 32);
    k->logits = take_floats(c, n, (size_t)m->experts);
    k->weights = take_floats(c, n, (size_t)m->used);
    k->ids = (int32_t *)gpu_cut(c, visits * sizeof(int32_t));
    k->groups = (visit_groups *)gpu_cut(c, sizeof *k->groups);
    k->hidden = take_floats(c, visits, (size_t)m->ff);
    k->mid = take_rows(c, visits, m->ff, 32); /* room for either group: scales for 32, sums for 256 */
    k->mid.sum = (int16_t *)gpu_cut(c, visits * (size_t)(m->ff / 16) * sizeof(int16_t));
    k->shidden = take_floats(c, n, (size_t)m->ff);
    k->smid = take_rows(c, n, m->ff, 32);
}

static bool get_room(gpu *g, int rank, block_room *k)
{
    gpu_cutter c = {NULL, 0};
    size_t part = gpu_hyper_part_bytes(g);
    g->rank = larger(g->rank, rank);
    cut_room(&g->base.dims, g->rank, part, k, &c);
    bool fresh = g->scratch[G_BLOCK].bytes < c.used;
    c = gpu_cutter{(char *)gpu_scratch_get(g, G_BLOCK, c.used), 0};
    if (!c.base)
        return false;
    if (fresh && !GPU_CHECK(g, cudaMemsetAsync(c.base, 0, g->scratch[G_BLOCK].bytes, g->stream)))
        return false;
    cut_room(&g->base.dims, g->rank, part, k, &c);
    return true;
}

/* --- what has kernels --- */

static bool dense(const gpu *g, const be_weight *w, bool half)
{
    return gpu_is_tiled(g, w) && (unit_group(w->type) == 32 || (half && w->type == Q_F16));
}

static bool attention_fits(const gpu *g, const be_block *w, const be_place *p)
{
    const be_dims *m = &g->base.dims;
    if (!gpu_attend_fits(g) || !dense(g, &w->q_a, true) || !dense(g, &w->kv, true) || !dense(g, &w->q_b, false) ||
        !dense(g, &w->out_a, false) || !dense(g, &w->out_b, false))
        return false;
    if (p->ratio && (!dense(g, &w->comp.kv, true) || !dense(g, &w->comp.gate, true) || p->ratio > 128))
        return false;
    if (p->ratio == 4 && (!dense(g, &w->index_comp.kv, true) || !dense(g, &w->index_comp.gate, true) ||
                          !dense(g, &w->index_proj, true) || !dense(g, &w->index_q_b, true)))
        return false;
    return w->q_a.ne1 % 128 == 0 && m->group_rank % 32 == 0 && m->heads * m->head_dim % m->groups == 0 &&
           w->comp.kv.ne1 <= 2 * m->head_dim && m->idx_dim % 32 == 0;
}

/* --- order --- */

void gpu_settle(gpu *g)
{
    open_streams o = g->pending;
    g->pending = open_streams{};
    if (o.streams)
        gpu_hc_post(&g->base, o.n, o.mix, o.out, o.streams);
}

static void select_rows(gpu *g, const be_rows *r, const be_place *p, const block_room *k)
{
    gpu_index_query(&g->base, r, p->freq, p->sim_index, k->index_q);
    gpu_index_select(&g->base, r, p->ratio, k->index_q, k->index_w, p->index, k->sel);
}

static void attend(gpu *g, const be_rows *r, const nrows &rows, const be_block *w, const be_place *p,
                   const block_room *k)
{
    nattend a = {};
    a.r = rows;
    a.max_pos = r->max_pos;
    a.q = k->q;
    a.block = p->drafter ? k->kv : NULL;
    a.raw = *p->raw;
    if (p->ratio)
        a.comp = *p->comp;
    a.ratio = p->ratio;
    a.sel = p->select ? k->sel : NULL;
    a.sinks = w->sinks, a.freq = p->freq;
    a.out = k->attn;
    gpu_attend_narrow(g, &a);
}

static void outputs(gpu *g, int n, const be_block *w, const block_room *k)
{
    const be_dims *m = &g->base.dims;
    mm_forms in = {};
    mm_args a = {};
    in.q32 = k->attn;
    a.n = n, a.k = 1;
    a.job[0] = mm_plain(&w->out_a, &in, NULL, 0);
    a.job[0].out = k->low;
    a.job[0].group_tiles = a.job[0].w.tiles / m->groups;
    gpu_products(g, &a);
    in.q32 = k->low;
    a.job[0] = mm_plain(&w->out_b, &in, k->out, m->d);
    gpu_products(g, &a);
}

/* Rows [row0, row0 + rows->n) of the forward. */
static void slice(gpu *g, const be_rows *r, const be_block *w, const be_place *p, block_room k, float *streams,
                  bool open)
{
    nrows rows = {r->token, r->pos, r->seq, r->count, r->n};
    mm_forms f = k.x;
    f.q256.q = NULL;
    if (!p->ratio)
        f.h.v = NULL;
    gpu_hyper(g, rows, streams, &w->hc_attn, w->attn_norm, open ? k.out : NULL, k.mix, k.part, &f);
    gpu_phase_input(g, rows, w, p, &k);
    gpu_phase_query(g, rows, w, p, &k);
    if (p->select)
        select_rows(g, r, p, &k);
    attend(g, r, rows, w, p, &k);
    outputs(g, r->n, w, &k);
    f = k.x;
    if (unit_group(w->gate_exps.type) == 32)
        f.q256.q = NULL;
    gpu_hyper(g, rows, streams, &w->hc_ffn, w->ffn_norm, k.out, k.mix, k.part, &f);
    gpu_phase_route(g, rows, w, &k);
    gpu_phase_experts(g, rows, w, p, &k);
}

bool gpu_block_run(backend *b, const be_rows *r, const be_block *w, const be_place *p, float *streams)
{
    gpu *g = gpu_of(b);
    const be_dims *m = &b->dims;
    block_room k = {};
    if (g->act != BE_ACT_Q8 || !gpu_hyper_fits(g, &w->hc_attn) || !gpu_hyper_fits(g, &w->hc_ffn) ||
        !attention_fits(g, w, p) || !gpu_experts_fit(g, w))
        return false;
    if (!gpu_ok(g) || r->n <= 0 || !get_room(g, (int)w->q_a.ne1, &k))
        return true;
    bool open = g->pending.streams == streams && g->pending.n == r->n;
    if (!open)
        gpu_settle(g);
    k.mid.group = unit_group(w->down_exps.type);
    open_streams next = {streams, k.mix, k.out, r->n};
    for (int row0 = 0; row0 < r->n; row0 += BE_NARROW) {
        be_rows part = *r;
        part.token += row0, part.pos += row0, part.seq += row0;
        part.n = r->n - row0 < BE_NARROW ? r->n - row0 : BE_NARROW;
        slice(g, &part, w, p, k, streams + (size_t)row0 * (size_t)(m->streams * m->d), open);
        k.mix += BE_NARROW * 24;
        k.out += (size_t)BE_NARROW * (size_t)m->d;
    }
    g->pending = next;
    return true;
}
