/* attention.cu: the products of the fused block's attention half, and what runs beside them.
 *
 *   phase_input   blocks: Sinkhorn of the connection | products of the normed input: query rank, KV row, compressors.
 *                 The last of the query rank's blocks norms it and makes its forms.
 *   phase_query   blocks: KV row finished and stored | compressor inputs stored and windows pooled | products of the
 *                 query rank: queries, index queries */
#include "backend/cuda/block.cuh"
#include "backend/cuda/mm_block.cuh"
#include "backend/cuda/row.cuh"

typedef struct input_args {
    mm_args m; /* job 0: query rank */
    float *mix;
    const float *qa, *qa_norm;
    mm_forms qn;
    int *counter;
    int qa_blocks, rank, iterations;
    float hc_eps, rms_eps;
} input_args;

/* The block norms the query ranks of all rows and makes their forms. factor: room for a number per row. rank: a
 * multiple of 128. */
DEV void finish_rank(const input_args &a, float *factor)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int r = warp; r < a.m.n; r += MM_WARPS) {
        const float4 *x = reinterpret_cast<const float4 *>(a.qa + (int64_t)r * a.rank);
        float sum = 0;
#pragma unroll 8
        for (int i = lane; i < a.rank / 4; i += 32) {
            float4 v = __ldcg(x + i);
            sum = __fmaf_rn(v.x, v.x, sum), sum = __fmaf_rn(v.y, v.y, sum);
            sum = __fmaf_rn(v.z, v.z, sum), sum = __fmaf_rn(v.w, v.w, sum);
        }
        sum = warp_sum(sum);
        factor[r] = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)a.rank), a.rms_eps)));
    }
    __syncthreads();
    int pieces = a.rank / 128;
#pragma unroll 2
    for (int p = warp; p < a.m.n * pieces; p += MM_WARPS) {
        int r = p / pieces, at = p % pieces * 128;
        const float *x = a.qa + (int64_t)r * a.rank + at;
        float v[4], f = factor[r];
#pragma unroll
        for (int e = 0; e < 4; e++)
            v[e] = __fmul_rn(__fmul_rn(__ldcg(x + 32 * e + lane), f), a.qa_norm[at + 32 * e + lane]);
#pragma unroll
        for (int e = 0; e < 4; e++)
            warp_quantise32(a.qn.q32, r, at + 32 * e, v[e], lane);
        if (a.qn.h.v) {
            for (int e = 0; e < 4; e++)
                v[e] = __fmul_rn(__fmul_rn(__ldcg(x + 4 * lane + e), f), a.qa_norm[at + 4 * lane + e]);
            put_halves(a.qn.h, r, at, v, lane);
        }
    }
}

template <int CT, int COLS, bool FAST>
static __global__ void __launch_bounds__(MM_THREADS, FAST ? mm_resident(CT, COLS) : 2)
    phase_input(const __grid_constant__ input_args a)
{
    using R = mm_room<CT, COLS>;
    GPU_DYNAMIC_SMEM(R, room);
    __shared__ int last;
    chain_next();
    if (blockIdx.x == 0) {
        chain_wait();
        hyper_comb(a.mix, a.m.n, a.iterations, a.hc_eps);
        return;
    }
    int job = mm_block<CT, COLS, FAST>(a.m, (int)blockIdx.x - 1, room);
    if (job == 0 && last_block(a.counter, a.qa_blocks, &last))
        finish_rank(a, room->room);
}

template <int CT, int COLS> static void launch_input(gpu *g, const input_args &a, int blocks)
{
    auto *kernel = mm_fast(&a.m) ? phase_input<CT, COLS, true> : phase_input<CT, COLS, false>;
    mm_launch<mm_room<CT, COLS>>(g, "phase_input", kernel, blocks, a);
}

void gpu_phase_input(gpu *g, const nrows &r, const be_block *w, const be_place *p, const block_room *k)
{
    const be_dims *m = &g->base.dims;
    input_args a = {};
    mm_job *j = a.m.job;
    int rank = (int)w->q_a.ne0 ? (int)w->q_a.ne1 : 0, n = 0;
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
    a.mix = k->mix, a.qa = k->qa, a.qa_norm = w->q_a_norm, a.qn = k->qn;
    if (!p->select)
        a.qn.h.v = NULL;
    a.counter = k->counters + COUNT_QA;
    a.rank = rank, a.iterations = m->sinkhorn, a.hc_eps = m->hc_eps, a.rms_eps = m->rms_eps;
    int blocks = mm_plan(&a.m);
    a.qa_blocks = j[1].first;
    if (r.n == 1)
        launch_input<1, 1>(g, a, blocks + 1);
    else if (r.n <= 8)
        launch_input<1, 8>(g, a, blocks + 1);
    else
        launch_input<2, 1>(g, a, blocks + 1);
}

/* One compressor of a layer. */
typedef struct pool_side {
    const float *kv, *gate, *ape, *norm;
    be_store ring, out;
    bool index;
} pool_side;

typedef struct query_args {
    mm_args m;
    nrows r;
    const float *kv_norm, *freq;
    float *kv;
    be_store raw; /* base NULL: not stored */
    pool_side side[2];
    int sides, ratio, dim, rope;
    float eps;
    bool sim_kv, sim_index;
} query_args;

/* Finishes the KV row of row r: norm, rotation, simulated FP8. */
DEV void finish_kv_row(const query_args &a, int r, float *row, double *sums)
{
    float *x = a.kv + (int64_t)r * a.dim;
    for (int i = threadIdx.x; i < a.dim; i += blockDim.x)
        row[i] = x[i];
    __syncthreads();
    row_norm(row, a.kv_norm, a.dim, a.eps, sums);
    row_rotate(row + a.dim - a.rope, a.r.pos[r], a.freq, a.rope / 2);
    if (a.sim_kv)
        row_sim_fp8(row, a.dim - a.rope);
    float *to = a.raw.base ? ring_row(a.raw, a.r.seq[r], a.r.pos[r]) : NULL;
    for (int i = threadIdx.x; i < a.dim; i += blockDim.x) {
        x[i] = row[i];
        if (to)
            to[i] = row[i];
    }
}

DEV int own_row(const query_args &a, int seq, int p)
{
    for (int i = 0; i < a.r.n; i++)
        if (a.r.pos[i] == p && a.r.seq[i] == seq)
            return i;
    return -1;
}

/* Where the input of a window's position lies: its values, its gates (ape to be added unless it comes from the ring). */
typedef struct window_row {
    const float *kv, *gate, *ape;
} window_row;

DEV window_row find_row(const query_args &a, const pool_side &s, int seq, int p, int start)
{
    int w = s.ring.width / 2, own = own_row(a, seq, p), lane = w == 2 * s.out.width && p >= start ? s.out.width : 0;
    if (own < 0) {
        const float *x = ring_row(s.ring, seq, p) + lane;
        return window_row{x, x + w, NULL};
    }
    return window_row{s.kv + (int64_t)own * w + lane, s.gate + (int64_t)own * w + lane,
                      s.ape + (int64_t)(p % a.ratio) * w + lane};
}

/* Column k of a window; compress.cu states the rule, these are the same sums. */
DEV float pool_value(const window_row *rows, int n, int k)
{
    float top = 0, sum = 0, acc = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        float z = rows[i].ape ? __fadd_rn(rows[i].gate[k], rows[i].ape[k]) : rows[i].gate[k];
        top = i == 0 || z > top ? z : top;
    }
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        float z = rows[i].ape ? __fadd_rn(rows[i].gate[k], rows[i].ape[k]) : rows[i].gate[k];
        float e = expf(__fsub_rn(z, top));
        sum = __fadd_rn(sum, e);
        acc = __fadd_rn(acc, __fmul_rn(e, rows[i].kv[k]));
    }
    return __fdiv_rn(acc, sum);
}

/* Stores row r's compressor input; pools the window that ends with it, if one does. */
DEV void pool_row(const query_args &a, const pool_side &s, int r, float *row, window_row *rows, double *sums)
{
    int w = s.ring.width / 2, d = s.out.width, pos = a.r.pos[r], seq = a.r.seq[r], at = pos / a.ratio;
    float *to = ring_row(s.ring, seq, pos);
    for (int i = threadIdx.x; i < w; i += blockDim.x) {
        to[i] = s.kv[(int64_t)r * w + i];
        to[w + i] = __fadd_rn(s.gate[(int64_t)r * w + i], s.ape[(int64_t)(pos % a.ratio) * w + i]);
    }
    if ((pos + 1) % a.ratio)
        return;
    int start = at * a.ratio, first = w == 2 * d && at > 0 ? start - a.ratio : start, end = start + a.ratio;
    for (int i = threadIdx.x; i < end - first; i += blockDim.x)
        rows[i] = find_row(a, s, seq, first + i, start);
    __syncthreads();
    for (int k = threadIdx.x; k < d; k += blockDim.x)
        row[k] = pool_value(rows, end - first, k);
    __syncthreads();
    row_norm(row, s.norm, d, a.eps, sums);
    row_rotate(row + d - a.rope, start, a.freq, a.rope / 2);
    if (a.sim_kv && !s.index)
        row_sim_fp8(row, d - a.rope);
    if (a.sim_index && s.index && threadIdx.x < 32) {
        warp_hadamard(row, d);
        warp_sim_fp4(row, d);
    }
    __syncthreads();
    float *out = array_row(s.out, seq, at);
    for (int k = threadIdx.x; k < d; k += blockDim.x)
        out[k] = row[k];
}

template <int CT, int COLS, bool FAST>
static __global__ void __launch_bounds__(MM_THREADS, FAST ? mm_resident(CT, COLS) : 2)
    phase_query(const __grid_constant__ query_args a)
{
    using R = mm_room<CT, COLS>;
    GPU_DYNAMIC_SMEM(R, room);
    __shared__ double sums[32];
    int extra = a.r.n * (1 + a.sides), b = blockIdx.x;
    chain_next();
    if (b >= extra) {
        mm_block<CT, COLS, FAST>(a.m, b - extra, room);
        return;
    }
    chain_wait();
    int r = b % a.r.n, what = b / a.r.n;
    if (r >= rows_wanted(a.r))
        return;
    if (what == 0)
        finish_kv_row(a, r, room->part, sums);
    else
        pool_row(a, a.side[what - 1], r, room->part, reinterpret_cast<window_row *>(room->ring[1]), sums);
}

template <int CT, int COLS> static void launch_query(gpu *g, const query_args &a, int blocks)
{
    auto *kernel = mm_fast(&a.m) ? phase_query<CT, COLS, true> : phase_query<CT, COLS, false>;
    mm_launch<mm_room<CT, COLS>>(g, "phase_query", kernel, blocks, a);
}

void gpu_phase_query(gpu *g, const nrows &r, const be_block *w, const be_place *p, const block_room *k)
{
    const be_dims *m = &g->base.dims;
    query_args a = {};
    int n = 0;
    a.m.job[n++] = mm_plain(&w->q_b, &k->qn, k->q, m->heads * m->head_dim);
    if (p->select)
        a.m.job[n++] = mm_plain(&w->index_q_b, &k->qn, k->index_q, (int)w->index_q_b.ne1);
    a.m.k = n, a.m.n = r.n;
    a.r = r;
    a.kv_norm = w->kv_norm, a.freq = p->freq, a.kv = k->kv;
    if (!p->drafter)
        a.raw = *p->raw;
    if (p->ratio)
        a.side[a.sides++] = pool_side{k->comp_kv, k->comp_gate, w->comp.ape, w->comp.norm, *p->comp_in, *p->comp, false};
    if (p->ratio == 4)
        a.side[a.sides++] = pool_side{k->index_kv,       k->index_gate, w->index_comp.ape, w->index_comp.norm,
                                      *p->index_in,      *p->index,     true};
    a.ratio = p->ratio, a.dim = m->head_dim, a.rope = m->rope_dim, a.eps = m->rms_eps;
    a.sim_kv = p->sim_kv, a.sim_index = p->sim_index;
    int blocks = mm_plan(&a.m) + r.n * (1 + a.sides);
    if (r.n == 1)
        launch_query<1, 1>(g, a, blocks);
    else if (r.n <= 8)
        launch_query<1, 8>(g, a, blocks);
    else
        launch_query<2, 1>(g, a, blocks);
}
