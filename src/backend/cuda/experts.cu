/* experts.cu: the products of the fused block's second half.
 *
 *   phase_route   blocks: router logits; the last of these chooses experts for every row and groups the visits by expert |
 *                 Sinkhorn of the connection
 *   gate_up       block (16 hidden numbers, group): gate and up of the shared expert for all rows (first group, its
 *                 weights asked for early), or of a routed expert for its visits; SwiGLU; the last block of the numbers
 *                 that share a scale quantises them
 *   down          block (16 outputs): every group's down product and the shared expert's, added in slot order, then the
 *                 shared expert
 *
 * Half the warps of a block make gate, half up: warp = 4 up + split. */
#include "backend/cuda/block.cuh"
#include "backend/cuda/mm_block.cuh"

enum { HID_SPLITS = MM_WARPS / 2, DOWN_SPLITS = 2, SHARED_SPLITS = 4, MOST_USED = 8 };

DEV float swiglu(float g, float u, float clamp)
{
    g = g > clamp ? clamp : g;
    u = u > clamp ? clamp : u < -clamp ? -clamp : u;
    return __fmul_rn(__fdiv_rn(g, __fadd_rn(1.0f, expf(-g))), u);
}

/* --- routing --- */

typedef struct choose_args {
    nrows r;
    const float *logits, *bias;
    const int32_t *tid2eid;
    int32_t *ids;
    float *weights, scale;
    visit_groups *groups;
    int experts, used, vocab;
    gpu_fault *fault;
} choose_args;

DEV float expert_score(float l) { return __fsqrt_rn(l > 20.0f ? l : l < -20.0f ? expf(l) : log1pf(expf(l))); }

/* Experts of row r by one warp: ids to id[], weights to memory. p: room for the scores. */
DEV void choose_experts(const choose_args &a, int r, float *p, int *id, int lane)
{
    unsigned long long key[BLOCK_EXPERTS / 32];
#pragma unroll
    for (int i = 0; i < BLOCK_EXPERTS / 32; i++) {
        int e = 32 * i + lane;
        key[i] = 0;
        if (e < a.experts) {
            float s = expert_score(__ldcg(a.logits + (int64_t)r * a.experts + e));
            p[e] = s;
            key[i] = ranked(order_key(a.bias ? __fadd_rn(s, a.bias[e]) : s), (uint32_t)e);
        }
    }
    __syncwarp();
    for (int slot = 0; slot < a.used && !a.tid2eid; slot++) {
        unsigned long long best = 0;
#pragma unroll
        for (int i = 0; i < BLOCK_EXPERTS / 32; i++)
            best = key[i] > best ? key[i] : best;
        best = warp_max(best);
#pragma unroll
        for (int i = 0; i < BLOCK_EXPERTS / 32; i++)
            key[i] = key[i] == best ? 0 : key[i];
        if (lane == 0)
            id[slot] = (int)ranked_index(best);
    }
    if (a.tid2eid && lane < a.used) {
        int token = a.r.token[r];
        bool known = token >= 0 && token < a.vocab;
        int e = a.tid2eid[(int64_t)(known ? token : 0) * a.used + lane];
        if ((!known || e < 0 || e >= a.experts) && a.fault->kind == FAULT_NONE)
            *a.fault = known ? gpu_fault{FAULT_EXPERT, e, a.experts} : gpu_fault{FAULT_TOKEN, token, a.vocab};
        id[lane] = e < 0 || e >= a.experts ? 0 : e;
    }
    __syncwarp();
    float sum = 0;
    for (int s = 0; s < a.used; s++)
        sum = __fadd_rn(sum, p[id[s]]);
    if (lane < a.used) {
        a.ids[(int64_t)r * a.used + lane] = id[lane];
        a.weights[(int64_t)r * a.used + lane] = __fdiv_rn(__fmul_rn(a.scale, p[id[lane]]), sum);
    }
    __syncwarp();
}

/* id[visit] of all visits into groups. first, place: room. */
DEV void make_groups(visit_groups *out, const int *id, int visits, int *first)
{
    for (int i = threadIdx.x; i < visits; i += blockDim.x) {
        int j = 0;
        while (id[j] != id[i])
            j++;
        first[i] = j;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < visits; i += blockDim.x) {
        int group = 0, rank = 0, total = 0;
        for (int j = 0; j < visits; j++) {
            group += first[j] == j && j < first[i];
            rank += j < i && first[j] == first[i];
            total += first[j] == first[i];
        }
        out->group[group].visit[rank] = i;
        if (first[i] == i) {
            out->group[group].expert = id[i];
            out->group[group].count = total;
        }
    }
    if (threadIdx.x == 0) {
        int groups = 0;
        for (int j = 0; j < visits; j++)
            groups += first[j] == j;
        out->count = groups;
    }
}

typedef struct router_args {
    mm_args m;  /* job 0: router */
    bool bytes; /* it is Q8_0 */
    choose_args c;
    float *mix;
    int *counter;
    int router_blocks, iterations;
    float hc_eps;
} router_args;

template <int CT, int COLS>
static __global__ void __launch_bounds__(MM_THREADS, 2) phase_route(const __grid_constant__ router_args a)
{
    using R = mm_room<CT, COLS>;
    GPU_DYNAMIC_SMEM(R, s);
    __shared__ int last, ids[2 * BLOCK_VISITS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    chain_next();
    if ((int)blockIdx.x == a.router_blocks) {
        chain_wait();
        hyper_comb(a.mix, a.m.n, a.iterations, a.hc_eps);
        return;
    }
    const mm_job &j = a.m.job[0];
    int tiles = MM_WARPS / j.splits, tile0 = (int)blockIdx.x * tiles, tile = tile0 + warp / j.splits;
    float acc[CT][4] = {};
    if (tile >= j.w.tiles)
        chain_wait();
    else if (a.bytes)
        mm_share<Q_Q8_0, CT, COLS, true>(j, tile, warp % j.splits, a.m.n, lane, s->ring[warp], acc);
    else
        mm_share<Q_F16, CT, COLS>(j, tile, warp % j.splits, a.m.n, lane, s->ring[warp], acc);
    __syncthreads();
    put_part<CT>(s->part, warp, lane, acc);
    __syncthreads();
    mm_store<CT>(j, tile0, a.m.n, s->part);
    if (!last_block(a.counter, a.router_blocks, &last))
        return;
    int wanted = rows_wanted(a.c.r);
    for (int r = warp; r < wanted; r += MM_WARPS)
        choose_experts(a.c, r, reinterpret_cast<float *>(s->ring[warp]), ids + r * a.c.used, lane);
    __syncthreads();
    make_groups(a.c.groups, ids, wanted * a.c.used, ids + BLOCK_VISITS);
}

void gpu_phase_route(gpu *g, const nrows &r, const be_block *w, const block_room *k)
{
    const be_dims *m = &g->base.dims;
    router_args a = {};
    a.m.k = 1, a.m.n = r.n;
    a.m.job[0] = mm_plain(&w->router, &k->x, k->logits, m->experts);
    a.bytes = w->router.type == Q_Q8_0;
    a.m.job[0].x.h = k->x.h;
    a.router_blocks = mm_plan(&a.m);
    a.c = choose_args{r,         k->logits,       w->router_bias, w->tid2eid,    k->ids, k->weights, m->route_scale,
                      k->groups, (int)m->experts, (int)m->used,   (int)m->vocab, g->fault};
    a.mix = k->mix;
    a.counter = k->counters + COUNT_ROUTER;
    a.iterations = m->sinkhorn, a.hc_eps = m->hc_eps;
    int blocks = a.router_blocks + 1;
    if (r.n == 1)
        mm_launch<mm_room<1, 1>>(g, "phase_route", phase_route<1, 1>, blocks, a);
    else if (r.n <= 8)
        mm_launch<mm_room<1, 8>>(g, "phase_route", phase_route<1, 8>, blocks, a);
    else
        mm_launch<mm_room<2, 1>>(g, "phase_route", phase_route<2, 1>, blocks, a);
}

/* --- gate and up --- */

/* One kind of expert: the shared one or the routed ones. */
typedef struct gate_side {
    tiled gate, up;
    mm_input x;
    float *hidden; /* [visits][ff] */
    qrows mid;
    int *counters; /* [groups][ff / mid.group] */
    float clamp;
} gate_side;

typedef struct gate_args {
    gate_side shared, routed;
    nrows r;
    const visit_groups *groups;
    const float *weights;
    int used, ff;
} gate_args;

/* Numbers that share a scale, from `at` on, of all columns; several blocks wrote them. */
DEV void quantise_hidden(const gate_side &s, const int *list, int count, int ff, int at)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int k = warp; k < count; k += MM_WARPS) {
        int row = list ? list[k] : k;
        const float *x = s.hidden + (int64_t)row * ff + at + lane;
        if (s.mid.group == 32) {
            warp_quantise32(s.mid, row, at, __ldcg(x), lane);
            continue;
        }
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = __ldcg(x + 32 * i);
        warp_quantise256(s.mid, row, at, v, lane);
    }
}

/* Sums, SwiGLU, and int8 once all that share a scale are there. */
template <int CT>
DEV void finish_hidden(const gate_args &a, const gate_side &s, float *part, const int *list, int count, int group,
                       int tile, int *last)
{
    for (int v = threadIdx.x; v < CT * 128; v += MM_THREADS) {
        int row, col;
        float g = sum_parts<CT>(part, 0, HID_SPLITS, v, &row, &col);
        float u = sum_parts<CT>(part, HID_SPLITS, HID_SPLITS, v, &row, &col);
        if (col >= count)
            continue;
        float h = swiglu(g, u, s.clamp);
        int k = list ? list[col] : col;
        s.hidden[(int64_t)k * a.ff + TILE_ROWS * tile + row] = list ? __fmul_rn(h, a.weights[k]) : h;
    }
    int scales = a.ff / s.mid.group, at = TILE_ROWS * tile / s.mid.group;
    if (last_block(s.counters + group * scales + at, s.mid.group / TILE_ROWS, last))
        quantise_hidden(s, list, count, a.ff, at * s.mid.group);
}

/* Block (tile, 0): shared expert; (tile, 1 + i): group i of the routed ones. */
template <uint32_t T, int CT, int COLS, int SCOLS>
static __global__ void __launch_bounds__(MM_THREADS, mm_resident(CT, SCOLS)) gate_up(const __grid_constant__ gate_args a)
{
    using S = stream<Q_Q8_0, CT, SCOLS>;
    using E = stream<T, CT, COLS>;
    using R = mm_room<CT, SCOLS>;
    GPU_DYNAMIC_SMEM(R, s);
    __shared__ int last, rows[MM_WARPS][BE_NARROW];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = (int)blockIdx.y - 1, tile = blockIdx.x;
    const int *visits = NULL;
    int split = warp % HID_SPLITS;
    const gate_side &side = i < 0 ? a.shared : a.routed;
    const tiled &w = warp < HID_SPLITS ? side.gate : side.up;
    int from = w.chunks * split / HID_SPLITS, chunks = w.chunks * (split + 1) / HID_SPLITS - from;
    const uint8_t *p = w.p + (int64_t)tile * w.bytes + from * tile_chunk_bytes(w.type);
    float acc[CT][4] = {};
    mm_columns c = {NULL, a.r.n, 0};
    chain_next();
    if (i < 0) {
        S::load_w(s->ring[warp], p, chunks, lane);
        chain_wait();
        S::load_x(s->ring[warp], side.x, c, from, chunks, lane);
        S::run(s->ring[warp], p, from, chunks, side.x, c, true, lane, acc);
    } else {
        chain_wait();
        const visit_group *group = &a.groups->group[i];
        int count = group->count, expert = group->expert;
        if (i >= a.groups->count)
            return;
        visits = group->visit;
        if (lane < count)
            rows[warp][lane] = visits[lane] / a.used;
        __syncwarp();
        c = mm_columns{rows[warp], count, 0};
        p += expert * w.slice;
        E::load_x(s->ring[warp], side.x, c, from, chunks, lane);
        E::load_w(s->ring[warp], p, chunks, lane);
        E::run(s->ring[warp], p, from, chunks, side.x, c, false, lane, acc);
    }
    __syncthreads();
    put_part<CT>(s->part, warp, lane, acc);
    __syncthreads();
    finish_hidden<CT>(a, side, s->part, visits, c.n, i < 0 ? 0 : i, tile, &last);
}

template <int CT, int COLS, int SCOLS> static void launch_gate_up(gpu *g, const gate_args &a, int most)
{
    uint32_t t = a.routed.gate.type;
    auto *kernel = t == Q_IQ2_XXS ? gate_up<Q_IQ2_XXS, CT, COLS, SCOLS>
                   : t == Q_Q2_K  ? gate_up<Q_Q2_K, CT, COLS, SCOLS>
                   : t == Q_Q4_K  ? gate_up<Q_Q4_K, CT, COLS, SCOLS>
                   : t == Q_MXFP4 ? gate_up<Q_MXFP4, CT, COLS, SCOLS>
                                  : gate_up<Q_Q8_0, CT, COLS, SCOLS>;
    mm_launch<mm_room<CT, SCOLS>>(g, "gate_up", kernel, dim3(a.ff / TILE_ROWS, most + 1), a);
}

/* --- down --- */

typedef struct down_args {
    nrows r;
    tiled down, sdown;
    mm_input mid, smid;
    const visit_groups *groups;
    float *out;
    int used, d;
} down_args;

template <int CT, int COLS> struct down_room {
    alignas(16) uint8_t ring[MM_WARPS][mm_ring(CT, COLS)];
    static const int most = CT == 1 && COLS == 1 ? 1 : 8 * CT; /* rows */
    float routed[most * MOST_USED][DOWN_SPLITS][TILE_ROWS];
    float shared[SHARED_SPLITS][most][TILE_ROWS];
    int rows[MM_WARPS][BE_NARROW];
};

template <uint32_t T, int CT, int COLS, class R>
DEV void down_unit(const down_args &a, int unit, int tile, int lane, R *s)
{
    using E = stream<T, CT, COLS>;
    int half = unit % DOWN_SPLITS, from = a.down.chunks * half / DOWN_SPLITS;
    int chunks = a.down.chunks * (half + 1) / DOWN_SPLITS - from;
    const visit_group *group = &a.groups->group[unit / DOWN_SPLITS];
    int count = group->count;
    const uint8_t *p = a.down.p + group->expert * a.down.slice + (int64_t)tile * a.down.bytes +
                       (int64_t)from * tile_chunk_bytes(T);
    uint8_t *ring = s->ring[threadIdx.x / 32];
    int *rows = s->rows[threadIdx.x / 32];
    __syncwarp();
    if (lane < count)
        rows[lane] = group->visit[lane];
    __syncwarp();
    float acc[CT][4] = {};
    mm_columns c = {rows, count, 0};
    E::load_x(ring, a.mid, c, from, chunks, lane);
    E::load_w(ring, p, chunks, lane);
    E::run(ring, p, from, chunks, a.mid, c, false, lane, acc);
#pragma unroll
    for (int ct = 0; ct < CT; ct++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int col = 8 * ct + acc_col(lane, e);
            if (col < count)
                s->routed[rows[col]][half][acc_row(lane, e)] = acc[ct][e];
        }
}

/* SCOLS: columns of the shared expert in the ring. */
template <uint32_t T, int CT, int COLS, int SCOLS>
static __global__ void __launch_bounds__(MM_THREADS, mm_resident(CT, SCOLS)) down_rows(const __grid_constant__ down_args a)
{
    using S = stream<Q_Q8_0, CT, SCOLS>;
    using R = down_room<CT, SCOLS>;
    GPU_DYNAMIC_SMEM(R, s);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x;
    chain_next();
    if (warp < SHARED_SPLITS) {
        int from = a.sdown.chunks * warp / SHARED_SPLITS, count = a.sdown.chunks * (warp + 1) / SHARED_SPLITS - from;
        const uint8_t *p = a.sdown.p + (int64_t)tile * a.sdown.bytes + (int64_t)from * tile_chunk_bytes(Q_Q8_0);
        float acc[CT][4] = {};
        mm_columns c = {NULL, a.r.n, 0};
        S::load_w(s->ring[warp], p, count, lane);
        chain_wait();
        S::load_x(s->ring[warp], a.smid, c, from, count, lane);
        S::run(s->ring[warp], p, from, count, a.smid, c, true, lane, acc);
#pragma unroll
        for (int ct = 0; ct < CT; ct++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * ct + acc_col(lane, e) < a.r.n)
                    s->shared[warp][8 * ct + acc_col(lane, e)][acc_row(lane, e)] = acc[ct][e];
    } else {
        chain_wait();
    }
    int units = DOWN_SPLITS * a.groups->count, wanted = rows_wanted(a.r);
    for (int u = (warp + MM_WARPS - SHARED_SPLITS) % MM_WARPS; u < units; u += MM_WARPS)
        down_unit<T, CT, COLS>(a, u, tile, lane, s);
    __syncthreads();
    for (int v = threadIdx.x; v < TILE_ROWS * a.r.n; v += MM_THREADS) {
        int o = v % TILE_ROWS, r = v / TILE_ROWS;
        float sum = 0, last = s->shared[0][r][o];
        for (int k = 0; k < a.used && r < wanted; k++) {
            const float *p = &s->routed[r * a.used + k][0][0];
            float y = p[o];
            for (int h = 1; h < DOWN_SPLITS; h++)
                y = __fadd_rn(y, p[h * TILE_ROWS + o]);
            sum = k ? __fadd_rn(sum, y) : y;
        }
        for (int h = 1; h < SHARED_SPLITS; h++)
            last = __fadd_rn(last, s->shared[h][r][o]);
        a.out[(int64_t)r * a.d + TILE_ROWS * tile + o] = __fadd_rn(sum, last);
    }
}

template <int CT, int COLS, int SCOLS> static void launch_down(gpu *g, const down_args &a)
{
    uint32_t t = a.down.type;
    auto *kernel = t == Q_Q2_K      ? down_rows<Q_Q2_K, CT, COLS, SCOLS>
                   : t == Q_Q4_K    ? down_rows<Q_Q4_K, CT, COLS, SCOLS>
                   : t == Q_MXFP4   ? down_rows<Q_MXFP4, CT, COLS, SCOLS>
                   : t == Q_IQ2_XXS ? down_rows<Q_IQ2_XXS, CT, COLS, SCOLS>
                                    : down_rows<Q_Q8_0, CT, COLS, SCOLS>;
    mm_launch<down_room<CT, SCOLS>>(g, "down_rows", kernel, a.down.tiles, a);
}

template <int CT, int COLS, int SCOLS> static void run_experts(gpu *g, const gate_args &a, const down_args &d, int most)
{
    launch_gate_up<CT, COLS, SCOLS>(g, a, most);
    launch_down<CT, COLS, SCOLS>(g, d);
}

void gpu_phase_experts(gpu *g, const nrows &r, const be_block *w, const be_place *p, const block_room *k)
{
    const be_dims *m = &g->base.dims;
    int most = r.n * m->used < m->experts ? r.n * m->used : m->experts, *counters = k->counters + COUNT_SHARED;
    gate_args a = {};
    a.shared = gate_side{gpu_tiled(&w->gate_sh), gpu_tiled(&w->up_sh), {k->x.q32, {}}, k->shidden, k->smid, counters,
                         p->sclamp};
    qrows x = unit_group(w->gate_exps.type) == 32 ? k->x.q32 : k->x.q256;
    a.routed = gate_side{gpu_tiled(&w->gate_exps), gpu_tiled(&w->up_exps), {x, {}}, k->hidden, k->mid,
                         counters + m->ff / 32, p->clamp};
    a.r = r, a.groups = k->groups, a.weights = k->weights, a.used = m->used, a.ff = m->ff;
    down_args d = {};
    d.r = r;
    d.down = gpu_tiled(&w->down_exps), d.sdown = gpu_tiled(&w->down_sh);
    d.mid.q = k->mid, d.smid.q = k->smid;
    d.groups = k->groups, d.out = k->out, d.used = m->used, d.d = m->d;
    if (r.n == 1)
        run_experts<1, 1, 1>(g, a, d, most);
    else if (r.n <= 8)
        run_experts<1, 3, 8>(g, a, d, most);
    else
        run_experts<2, 4, 1>(g, a, d, most);
}

static bool expert_type(const be_weight *w)
{
    return gpu_is_tiled(w) && w->type != Q_F16;
}

bool gpu_experts_fit(const gpu *g, const be_block *w)
{
    const be_dims *m = &g->base.dims;
    const be_weight *shared[] = {&w->gate_sh, &w->up_sh, &w->down_sh};
    for (int i = 0; i < 3; i++)
        if (shared[i]->type != Q_Q8_0 || !gpu_is_tiled(shared[i]))
            return false;
    bool router = gpu_is_tiled(&w->router) && (w->router.type == Q_F16 || w->router.type == Q_Q8_0);
    return router && expert_type(&w->gate_exps) && w->up_exps.type == w->gate_exps.type && expert_type(&w->down_exps) &&
           m->experts <= BLOCK_EXPERTS && m->used <= MOST_USED && m->ff % 256 == 0 && m->d % 256 == 0 &&
           g->smem_most >= sizeof(down_room<1, 8>) && g->smem_most >= sizeof(down_room<2, 1>);
}
