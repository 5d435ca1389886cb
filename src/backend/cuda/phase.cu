/* phase.cu: products of the fused block with what goes beside them, all in one kernel: its code stays near from phase
 * to phase.
 *
 *   input   beside: Sinkhorn of the connection. After the query rank: its norm and forms
 *   query   beside: KV rows finished and stored; compressor inputs stored, windows pooled
 *   route   beside: Sinkhorn of the connection. After the router: experts chosen, visits grouped
 *   plain   products alone */
#include "backend/cuda/beside.cuh"
#include "backend/cuda/choose.cuh"
#include "backend/cuda/mm_block.cuh"

enum phase_kind { PHASE_PLAIN, PHASE_INPUT, PHASE_QUERY, PHASE_ROUTE };

typedef struct phase_args {
    mm_args m; /* input, route: job 0 has something after it */
    enum phase_kind kind;
    int beside;       /* blocks before those of the products */
    int first_blocks; /* of job 0 */
    int *counter;
    float *mix;
    int iterations;
    float hc_eps;
    input_side input;
    query_side query;
    choose_side choose;
} phase_args;

template <class R> DEV void beside_block(const phase_args &a, int b, R *s)
{
    __shared__ float sums[MM_WARPS];
    if (a.kind != PHASE_QUERY) {
        hyper_comb(a.mix, a.m.n, a.iterations, a.hc_eps);
        return;
    }
    int r = b % a.m.n, what = b / a.m.n;
    if (what == 0)
        finish_kv_row(a.query, r, s->part, sums);
    else
        pool_row(a.query, a.query.side[what - 1], r, s->part, reinterpret_cast<window_row *>(s->ring[1]), sums);
}

/* The last block of job 0 goes on with what needs all of its outputs. */
template <class R> DEV void after_first(const phase_args &a, R *s)
{
    __shared__ int last;
    if (!last_block(a.counter, a.first_blocks, &last))
        return;
    if (a.kind == PHASE_INPUT) {
        finish_rank(a.input, a.m.n, s->room);
        return;
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wanted = rows_wanted(a.choose.r);
    int *ids = reinterpret_cast<int *>(s->ring[MM_WARPS - 1]); /* [2][BLOCK_VISITS] */
#pragma unroll 1
    for (int r = warp; r < wanted; r += MM_WARPS)
        choose_experts(a.choose, r, reinterpret_cast<float *>(s->ring[warp] + 4 * 2 * BLOCK_VISITS),
                       ids + r * a.choose.used, lane);
    __syncthreads();
    make_groups(a.choose.groups, ids, wanted * a.choose.used, ids + BLOCK_VISITS);
}

template <int CT, int COLS, bool FAST>
static __global__ void __launch_bounds__(MM_THREADS, MM_RESIDENT) phase(const __grid_constant__ phase_args a)
{
    using R = mm_room<CT, COLS>;
    GPU_DYNAMIC_SMEM(R, room);
    chain_next();
    int b = (int)blockIdx.x;
    if (b < a.beside || a.m.when) {
        chain_wait();
        if (b < a.beside) {
            beside_block(a, b, room);
            return;
        }
        if (!*a.m.when)
            return;
    }
    int job = mm_block<CT, COLS, FAST>(a.m, b - a.beside, room);
    if (job == 0 && a.first_blocks)
        after_first(a, room);
}

template <int CT, int COLS> static void launch(gpu *g, const phase_args &a, int blocks)
{
    auto *kernel = mm_fast(&a.m) ? phase<CT, COLS, true> : phase<CT, COLS, false>;
    mm_launch<mm_room<CT, COLS>>(g, "phase", kernel, blocks, a);
}

static void run(gpu *g, phase_args *a)
{
    int blocks = a->beside + mm_plan(&a->m);
    if (a->kind == PHASE_INPUT || a->kind == PHASE_ROUTE)
        a->first_blocks = a->m.k > 1 ? a->m.job[1].first : blocks - a->beside;
    if (a->m.n == 1)
        launch<1, 1>(g, *a, blocks);
    else if (a->m.n <= MM_COLUMNS)
        launch<1, MM_COLUMNS>(g, *a, blocks);
    else
        launch<2, 1>(g, *a, blocks);
}

void gpu_products(gpu *g, mm_args *m)
{
    phase_args a = {};
    m->when = g->when;
    a.m = *m;
    run(g, &a);
}

static void set_comb(const gpu *g, phase_args *a, const block_room *k)
{
    a->beside = 1;
    a->mix = k->mix;
    a->iterations = g->base.dims.sinkhorn;
    a->hc_eps = g->base.dims.hc_eps;
}

void gpu_phase_input(gpu *g, const nrows &r, const be_block *w, const be_place *p, const block_room *k)
{
    const be_dims *m = &g->base.dims;
    phase_args a = {};
    mm_job *j = a.m.job;
    int rank = (int)w->q_a.ne1, n = 0;
    j[n++] = mm_plain(&w->q_a, &k->x, k->qa, rank);
    j[n++] = mm_plain(&w->kv, &k->x, k->kv, m->head_dim);
    if (p->ratio) {
        j[n++] = mm_plain(&w->comp.kv, &k->x, k->comp_kv, (int)w->comp.kv.ne1);
        j[n++] = mm_plain(&w->comp.gate, &k->x, k->comp_gate, (int)w->comp.gate.ne1);
    }
    if (p->ratio == 4) {
        j[n++] = mm_plain(&w->index_comp.kv, &k->x, k->index_kv, (int)w->index_comp.kv.ne1);
        j[n++] = mm_plain(&w->index_comp.gate, &k->x, k->index_gate, (int)w->index_comp.gate.ne1);
    }
    if (p->select)
        j[n++] = mm_plain(&w->index_proj, &k->x, k->index_w, (int)w->index_proj.ne1);
    a.m.k = n, a.m.n = r.n;
    a.kind = PHASE_INPUT;
    set_comb(g, &a, k);
    a.counter = k->counters + COUNT_QA;
    a.input = input_side{k->qa, w->q_a_norm, k->qn, rank, 1.0f / (float)rank, m->rms_eps};
    a.input.qn.q256.q = NULL;
    if (!p->select)
        a.input.qn.h.v = NULL;
    run(g, &a);
}

void gpu_phase_query(gpu *g, const nrows &r, const be_block *w, const be_place *p, const block_room *k)
{
    const be_dims *m = &g->base.dims;
    phase_args a = {};
    query_side *q = &a.query;
    int n = 0;
    a.m.job[n++] = mm_plain(&w->q_b, &k->qn, k->q, m->heads * m->head_dim);
    if (p->select)
        a.m.job[n++] = mm_plain(&w->index_q_b, &k->qn, k->index_q, (int)w->index_q_b.ne1);
    a.m.k = n, a.m.n = r.n;
    a.kind = PHASE_QUERY;
    q->r = r;
    q->kv_norm = w->kv_norm, q->freq = p->freq, q->kv = k->kv;
    if (!p->drafter)
        q->raw = *p->raw;
    if (p->ratio)
        q->side[q->sides++] =
            pool_side{k->comp_kv, k->comp_gate, w->comp.ape, w->comp.norm, *p->comp_in, *p->comp, false};
    if (p->ratio == 4)
        q->side[q->sides++] =
            pool_side{k->index_kv, k->index_gate, w->index_comp.ape, w->index_comp.norm, *p->index_in, *p->index, true};
    q->ratio = p->ratio, q->dim = m->head_dim, q->rope = m->rope_dim, q->eps = m->rms_eps;
    q->sim_kv = p->sim_kv, q->sim_index = p->sim_index;
    a.beside = r.n * (1 + q->sides);
    run(g, &a);
}

void gpu_phase_route(gpu *g, const nrows &r, const be_block *w, const block_room *k)
{
    const be_dims *m = &g->base.dims;
    phase_args a = {};
    a.m.k = 1, a.m.n = r.n;
    a.m.job[0] = mm_plain(&w->router, &k->x, k->logits, m->experts);
    a.m.job[0].floats = w->router.type == Q_Q8_0;
    a.m.job[0].x.h = k->x.h;
    a.kind = PHASE_ROUTE;
    set_comb(g, &a, k);
    a.counter = k->counters + COUNT_ROUTER;
    a.choose =
        choose_side{r,         k->logits,       w->router_bias, w->tid2eid,    k->ids,  k->weights, m->route_scale,
                    k->groups, (int)m->experts, (int)m->used,   (int)m->vocab, g->fault};
    run(g, &a);
}
