/* experts.cu: the products of the fused block's second half.
 *
 *   phase_route   blocks: Sinkhorn of the connection | router logits; the last of these chooses experts for every row and
 *                 groups the visits by expert | gate and up of the shared expert, SwiGLU, int8
 *   gate_up       block (16 hidden numbers, group): gate and up of a routed expert for all its visits, SwiGLU; the last
 *                 block of the numbers that share a scale quantises them
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

/* Columns of a group of visits; row of column c = list[c] / div (list NULL: c). */
template <int CT>
DEV void visit_columns(colset<CT> &c, const qrows &x, const int *list, int count, int div, int lane)
{
#pragma unroll
    for (int ct = 0; ct < CT; ct++)
#pragma unroll
        for (int i = 0; i < 3; i++) {
            int col = 8 * ct + (i < 2 ? 2 * (lane % 4) + i : lane / 4), k = col < count ? col : count - 1;
            int row = list ? list[k] / div : k;
            if (i < 2)
                c.d[ct][i] = row * x.ld / x.group;
            else
                c.at[ct] = row * x.ld;
        }
}

/* silu(gate) * up of number e of the block's tile; its row and column. */
template <int CT> DEV float hidden_number(const float *part, int e, float clamp, int *row, int *col)
{
    float g = sum_parts<CT>(part, 0, HID_SPLITS, e, row, col);
    float u = sum_parts<CT>(part, HID_SPLITS, HID_SPLITS, e, row, col);
    return swiglu(g, u, clamp);
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

/* id[visit] of all visits into groups, experts in order of first visit. first: room. */
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
        int group = 0, before = 0, rank = 0;
        for (int j = 0; j < visits; j++) {
            group += first[j] == j && j < first[i];
            before += first[j] < first[i];
            rank += j < i && first[j] == first[i];
        }
        out->visit[before + rank] = i;
        if (first[i] == i) {
            out->expert[group] = id[i];
            out->start[group] = before;
        }
    }
    if (threadIdx.x == 0) {
        int groups = 0;
        for (int j = 0; j < visits; j++)
            groups += first[j] == j;
        out->count = groups;
        out->start[groups] = visits;
    }
}

typedef struct router_args {
    mm_args m;      /* job 0: router */
    bool bytes;     /* the router is Q8_0 */
    mm_input x32;   /* input of the shared expert */
    tiled gate, up; /* shared */
    float *shidden; /* [n][ff] */
    qrows smid;
    choose_args c;
    float *mix;
    int *counter, *counters; /* of the router; of the shared expert's 32 */
    int router_blocks, iterations, ff;
    float hc_eps, clamp;
} router_args;

/* 16 hidden numbers of the shared expert for every row; the second block of 32 quantises them. */
template <int CT> DEV void shared_hidden(const router_args &a, int block, mm_room<CT> *s, int *last)
{
    using S = stream<Q_Q8_0, CT>;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = warp % HID_SPLITS;
    const tiled &w = warp < HID_SPLITS ? a.gate : a.up;
    int from = w.chunks * split / HID_SPLITS, count = w.chunks * (split + 1) / HID_SPLITS - from;
    const uint8_t *p = w.p + (int64_t)block * w.bytes + (int64_t)from * tile_chunk_bytes(Q_Q8_0);
    float acc[CT][4] = {};
    colset<CT> c;
    S::load(s->ring[warp], p, count, lane);
    chain_wait();
    visit_columns<CT>(c, a.x32.q, NULL, a.m.n, 1, lane);
    S::run(s->ring[warp], p, from, count, a.x32, c, lane, acc);
    put_part<CT>(s->part, warp, lane, acc);
    __syncthreads();
    for (int v = threadIdx.x; v < CT * 128; v += MM_THREADS) {
        int row, col;
        float h = hidden_number<CT>(s->part, v, a.clamp, &row, &col);
        if (col < a.m.n)
            a.shidden[(int64_t)col * a.ff + TILE_ROWS * block + row] = h;
    }
    if (!last_block(a.counters + block / 2, 2, last))
        return;
    for (int r = warp; r < a.m.n; r += MM_WARPS)
        warp_quantise32(a.smid, r, block / 2 * 32, __ldcg(a.shidden + (int64_t)r * a.ff + block / 2 * 32 + lane), lane);
}

template <int CT> DEV void router_block(const router_args &a, int block, mm_room<CT> *s, int *last, int (*ids)[2])
{
    const mm_job &j = a.m.job[0];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = MM_WARPS / j.splits;
    int tile0 = block * tiles, tile = tile0 + warp / j.splits;
    float acc[CT][4] = {};
    if (tile >= j.w.tiles)
        chain_wait();
    else if (a.bytes)
        mm_share<Q_Q8_0, CT, true>(j, tile, warp % j.splits, a.m.n, lane, s->ring[warp], acc);
    else
        mm_share<Q_F16, CT>(j, tile, warp % j.splits, a.m.n, lane, s->ring[warp], acc);
    put_part<CT>(s->part, warp, lane, acc);
    __syncthreads();
    mm_store<CT>(j, tile0, a.m.n, s->part);
    if (!last_block(a.counter, a.router_blocks, last))
        return;
    int wanted = rows_wanted(a.c.r), *id = &ids[0][0], *first = id + BLOCK_VISITS;
    for (int r = warp; r < wanted; r += MM_WARPS)
        choose_experts(a.c, r, reinterpret_cast<float *>(s->ring[warp]), id + r * a.c.used, lane);
    __syncthreads();
    make_groups(a.c.groups, id, wanted * a.c.used, first);
}

template <int CT> static __global__ void __launch_bounds__(MM_THREADS, 2) phase_route(const __grid_constant__ router_args a)
{
    GPU_DYNAMIC_SMEM(mm_room<CT>, room);
    __shared__ int last, ids[BLOCK_VISITS][2];
    int b = (int)blockIdx.x;
    chain_next();
    if (b < a.router_blocks) {
        router_block<CT>(a, b, room, &last, ids);
    } else if (b == a.router_blocks) {
        chain_wait();
        hyper_comb(a.mix, a.m.n, a.iterations, a.hc_eps);
    } else {
        shared_hidden<CT>(a, b - a.router_blocks - 1, room, &last);
    }
}

void gpu_phase_route(gpu *g, const nrows &r, const be_block *w, const be_place *p, const block_room *k)
{
    const be_dims *m = &g->base.dims;
    router_args a = {};
    a.m.k = 1, a.m.n = r.n;
    a.m.job[0] = mm_plain(&w->router, &k->x, k->logits, m->experts);
    a.bytes = w->router.type == Q_Q8_0;
    a.m.job[0].x.h = k->x.h;
    if (a.bytes)
        a.m.job[0].x.q = qrows{};
    a.router_blocks = mm_plan(&a.m);
    a.x32.q = k->x.q32;
    a.gate = gpu_tiled(&w->gate_sh), a.up = gpu_tiled(&w->up_sh);
    a.shidden = k->shidden, a.smid = k->smid, a.ff = m->ff;
    a.counters = k->counters + COUNT_SHARED;
    a.c = choose_args{r,       k->logits,      w->router_bias, w->tid2eid,        k->ids, k->weights, m->route_scale,
                      k->groups, (int)m->experts, (int)m->used,   (int)m->vocab, g->fault};
    a.mix = k->mix;
    a.counter = k->counters + COUNT_ROUTER;
    a.iterations = m->sinkhorn, a.hc_eps = m->hc_eps, a.clamp = p->sclamp;
    int blocks = a.router_blocks + 1 + m->ff / TILE_ROWS;
    if (r.n <= 8)
        mm_launch<mm_room<1>>(g, "phase_route", phase_route<1>, blocks, a);
    else
        mm_launch<mm_room<2>>(g, "phase_route", phase_route<2>, blocks, a);
}

/* --- routed gate and up --- */

typedef struct gate_args {
    tiled gate, up;
    mm_input x;
    const visit_groups *groups;
    const float *weights;
    float *hidden; /* [visits][ff] */
    qrows mid;
    int *counters;
    int used, ff;
    float clamp;
} gate_args;

/* Numbers that share a scale, from `at` on, of the group's visits; several blocks wrote them. */
DEV void quantise_visits(const gate_args &a, const int *list, int count, int at)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int k = warp; k < count; k += MM_WARPS) {
        const float *x = a.hidden + (int64_t)list[k] * a.ff + at + lane;
        if (a.mid.group == 32) {
            warp_quantise32(a.mid, list[k], at, __ldcg(x), lane);
            continue;
        }
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = __ldcg(x + 32 * i);
        warp_quantise256(a.mid, list[k], at, v, lane);
    }
}

template <uint32_t T, int CT>
static __global__ void __launch_bounds__(MM_THREADS, mm_resident(CT)) gate_up(const __grid_constant__ gate_args a)
{
    using S = stream<T, CT>;
    GPU_DYNAMIC_SMEM(mm_room<CT>, s);
    __shared__ int last;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = blockIdx.y, tile = blockIdx.x, split = warp % HID_SPLITS;
    chain_next();
    chain_wait();
    if (i >= a.groups->count)
        return;
    const int *list = a.groups->visit + a.groups->start[i];
    int count = a.groups->start[i + 1] - a.groups->start[i];
    const tiled &w = warp < HID_SPLITS ? a.gate : a.up;
    int from = w.chunks * split / HID_SPLITS, chunks = w.chunks * (split + 1) / HID_SPLITS - from;
    const uint8_t *p = w.p + a.groups->expert[i] * w.slice + (int64_t)tile * w.bytes + from * tile_chunk_bytes(T);
    float acc[CT][4] = {};
    colset<CT> c;
    S::load(s->ring[warp], p, chunks, lane);
    visit_columns<CT>(c, a.x.q, list, count, a.used, lane);
    S::run(s->ring[warp], p, from, chunks, a.x, c, lane, acc);
    put_part<CT>(s->part, warp, lane, acc);
    __syncthreads();
    for (int v = threadIdx.x; v < CT * 128; v += MM_THREADS) {
        int row, col;
        float h = hidden_number<CT>(s->part, v, a.clamp, &row, &col);
        if (col < count)
            a.hidden[(int64_t)list[col] * a.ff + TILE_ROWS * tile + row] = __fmul_rn(h, a.weights[list[col]]);
    }
    int group = a.mid.group, at = TILE_ROWS * tile / group;
    if (last_block(a.counters + i * (a.ff / group) + at, group / TILE_ROWS, &last))
        quantise_visits(a, list, count, at * group);
}

template <int CT> static void launch_gate_up(gpu *g, const gate_args &a, int most)
{
    auto *kernel = a.gate.type == Q_IQ2_XXS ? gate_up<Q_IQ2_XXS, CT>
                   : a.gate.type == Q_Q2_K  ? gate_up<Q_Q2_K, CT>
                   : a.gate.type == Q_Q4_K  ? gate_up<Q_Q4_K, CT>
                   : a.gate.type == Q_MXFP4 ? gate_up<Q_MXFP4, CT>
                                            : gate_up<Q_Q8_0, CT>;
    mm_launch<mm_room<CT>>(g, "gate_up", kernel, dim3(a.ff / TILE_ROWS, most), a);
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

template <int CT> struct down_room {
    alignas(16) uint8_t ring[MM_WARPS][MM_RING];
    float routed[8 * CT * MOST_USED][DOWN_SPLITS][TILE_ROWS];
    float shared[SHARED_SPLITS][8 * CT][TILE_ROWS];
};

template <uint32_t T, int CT> DEV void down_unit(const down_args &a, int unit, int tile, int lane, down_room<CT> *s)
{
    int i = unit / DOWN_SPLITS, half = unit % DOWN_SPLITS, start = a.groups->start[i];
    const int *list = a.groups->visit + start;
    int count = a.groups->start[i + 1] - start, from = a.down.chunks * half / DOWN_SPLITS;
    int chunks = a.down.chunks * (half + 1) / DOWN_SPLITS - from;
    const uint8_t *p = a.down.p + a.groups->expert[i] * a.down.slice + (int64_t)tile * a.down.bytes +
                       (int64_t)from * tile_chunk_bytes(T);
    float acc[CT][4] = {};
    uint8_t *ring = s->ring[threadIdx.x / 32];
    colset<CT> c;
    stream<T, CT>::load(ring, p, chunks, lane);
    visit_columns<CT>(c, a.mid.q, list, count, 1, lane);
    stream<T, CT>::run(ring, p, from, chunks, a.mid, c, lane, acc);
#pragma unroll
    for (int ct = 0; ct < CT; ct++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int col = 8 * ct + acc_col(lane, e);
            if (col < count)
                s->routed[list[col]][half][acc_row(lane, e)] = acc[ct][e];
        }
}

template <uint32_t T, int CT>
static __global__ void __launch_bounds__(MM_THREADS, mm_resident(CT)) down_rows(const __grid_constant__ down_args a)
{
    using S = stream<Q_Q8_0, CT>;
    GPU_DYNAMIC_SMEM(down_room<CT>, s);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x;
    chain_next();
    if (warp < SHARED_SPLITS) {
        int from = a.sdown.chunks * warp / SHARED_SPLITS, count = a.sdown.chunks * (warp + 1) / SHARED_SPLITS - from;
        const uint8_t *p = a.sdown.p + (int64_t)tile * a.sdown.bytes + (int64_t)from * tile_chunk_bytes(Q_Q8_0);
        float acc[CT][4] = {};
        colset<CT> c;
        S::load(s->ring[warp], p, count, lane);
        chain_wait();
        visit_columns<CT>(c, a.smid.q, NULL, a.r.n, 1, lane);
        S::run(s->ring[warp], p, from, count, a.smid, c, lane, acc);
#pragma unroll
        for (int ct = 0; ct < CT; ct++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s->shared[warp][8 * ct + acc_col(lane, e)][acc_row(lane, e)] = acc[ct][e];
    } else {
        chain_wait();
    }
    int units = DOWN_SPLITS * a.groups->count, wanted = rows_wanted(a.r);
    for (int u = (warp + MM_WARPS - SHARED_SPLITS) % MM_WARPS; u < units; u += MM_WARPS)
        down_unit<T, CT>(a, u, tile, lane, s);
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

template <int CT> static void launch_down(gpu *g, const down_args &a)
{
    auto *kernel = a.down.type == Q_Q2_K      ? down_rows<Q_Q2_K, CT>
                   : a.down.type == Q_Q4_K    ? down_rows<Q_Q4_K, CT>
                   : a.down.type == Q_MXFP4   ? down_rows<Q_MXFP4, CT>
                   : a.down.type == Q_IQ2_XXS ? down_rows<Q_IQ2_XXS, CT>
                                              : down_rows<Q_Q8_0, CT>;
    mm_launch<down_room<CT>>(g, "down_rows", kernel, a.down.tiles, a);
}

void gpu_phase_experts(gpu *g, const nrows &r, const be_block *w, const be_place *p, const block_room *k)
{
    const be_dims *m = &g->base.dims;
    int most = r.n * m->used < m->experts ? r.n * m->used : m->experts;
    gate_args a = {};
    a.gate = gpu_tiled(&w->gate_exps), a.up = gpu_tiled(&w->up_exps);
    a.x.q = unit_group(w->gate_exps.type) == 32 ? k->x.q32 : k->x.q256;
    a.groups = k->groups, a.weights = k->weights, a.hidden = k->hidden, a.mid = k->mid;
    a.counters = k->counters + COUNT_SHARED + m->ff / 32;
    a.used = m->used, a.ff = m->ff, a.clamp = p->clamp;
    down_args d = {};
    d.r = r;
    d.down = gpu_tiled(&w->down_exps), d.sdown = gpu_tiled(&w->down_sh);
    d.mid.q = k->mid, d.smid.q = k->smid;
    d.groups = k->groups, d.out = k->out, d.used = m->used, d.d = m->d;
    if (r.n <= 8) {
        launch_gate_up<1>(g, a, most);
        launch_down<1>(g, d);
    } else {
        launch_gate_up<2>(g, a, most);
        launch_down<2>(g, d);
    }
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
           m->experts <= BLOCK_EXPERTS && m->used <= MOST_USED && m->ff % 256 == 0 && m->d % 256 == 0;
}
