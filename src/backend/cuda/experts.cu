/* experts.cu: the experts of the fused block.
 *
 *   gate_up   block (some tiles of 16 hidden numbers): gate and up of the shared expert for all rows (the first blocks,
 *             their weights asked for early), or of a routed expert for its visits; SwiGLU; the last block of the
 * numbers that share a scale quantises them. Half the warps make gate, half up: warp = 4 up + split down      block (16
 * outputs): every group's down product and the shared expert's, added in slot order, then the shared expert
 *
 * A warp streams its share of all its tiles, or of all its experts, without a pause between them. */
#include "backend/cuda/block.cuh"
#include "backend/cuda/mm_block.cuh"

enum { SHARED_TILES = 2, HID_SPLITS = MM_WARPS / 2, DOWN_SPLITS = 2, SHARED_SPLITS = 4, MOST_USED = 8 };

/* Tiles of a block of gate_up that makes routed numbers, whose weights are small: for one row and for more. */
BOTH constexpr int routed_tiles(int ct, int cols) { return ct == 1 && cols == 1 ? 4 : 2; }
/* Columns whose sums are kept. */
BOTH constexpr int hid_columns(int ct, int cols) { return ct == 1 && cols == 1 ? 1 : 8 * ct; }

DEV float swiglu(float g, float u, float clamp)
{
    g = g > clamp ? clamp : g;
    u = u > clamp ? clamp : u < -clamp ? -clamp : u;
    return __fmul_rn(__fdividef(g, __fadd_rn(1.0f, __expf(-g))), u);
}

/* --- gate and up --- */

/* One kind of expert: the shared one or the routed ones. */
typedef struct gate_side {
    tiled gate, up;
    mm_input x;
    float *hidden; /* [visits][ff] */
    qrows mid;
    int *counters; /* [groups][ff / 256] */
    float clamp;
} gate_side;

typedef struct gate_args {
    gate_side shared, routed;
    nrows r;
    const visit_groups *groups;
    const float *weights;
    int used, ff;
} gate_args;

/* Numbers [at, at + 256) of all columns; several blocks wrote them. */
DEV void quantise_hidden(const gate_side &s, const int *list, int count, int ff, int at)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    mm_forms f = {};
    if (s.mid.group == 32)
        f.q32 = s.mid;
    else
        f.q256 = s.mid;
#pragma unroll 1
    for (int k = warp; k < count; k += MM_WARPS) {
        int row = list ? list[k] : k;
        const float4 *x = reinterpret_cast<const float4 *>(s.hidden + (int64_t)row * ff + at + 8 * lane);
        float4 u = __ldcg(x), w = __ldcg(x + 1);
        warp_forms(f, row, at, {u.x, u.y, u.z, u.w, w.x, w.y, w.z, w.w}, 256, lane);
    }
}

template <int CT, int COLS> struct gate_room {
    static const int bytes = mm_ring(768 + 4 * routed_tiles(CT, COLS) * MM_WARPS * hid_columns(CT, COLS) * TILE_ROWS);
    alignas(16) uint8_t ring[MM_WARPS][bytes];
    float part[routed_tiles(CT, COLS)][MM_WARPS][hid_columns(CT, COLS)][TILE_ROWS];
    int rows[MM_WARPS][BE_NARROW];
    int last;
};

/* A warp's part of a range of tiles. */
template <int CT, class R> struct gate_source {
    const mm_input &in;
    const uint8_t *p;
    int64_t tile_bytes;
    mm_columns c;
    int from, warp, lane;
    R *room;
    DEV_MEMBER const mm_input &input() const { return in; }
    DEV_MEMBER const uint8_t *weights(int i) const { return p + i * tile_bytes; }
    DEV_MEMBER mm_columns columns(int) const { return c; }
    DEV_MEMBER int first(int) const { return from; }
    DEV_MEMBER void take(int i, float (&acc)[CT][4])
    {
#pragma unroll
        for (int ct = 0; ct < CT; ct++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * ct + acc_col(lane, e) < c.n)
                    room->part[i][warp][8 * ct + acc_col(lane, e)][acc_row(lane, e)] = acc[ct][e];
    }
};

/* Sums, SwiGLU, and int8 once all that share a scale are there. */
template <class R>
DEV void finish_hidden(const gate_args &a, const gate_side &s, R *room, const int *list, int count, int group,
                       int tile0, int tiles)
{
#pragma unroll 1
    for (int v = threadIdx.x; v < tiles * TILE_ROWS * count; v += MM_THREADS) {
        int row = v % TILE_ROWS, t = v / TILE_ROWS % tiles, col = v / TILE_ROWS / tiles;
        float g = room->part[t][0][col][row], u = room->part[t][HID_SPLITS][col][row];
#pragma unroll
        for (int i = 1; i < HID_SPLITS; i++) {
            g = __fadd_rn(g, room->part[t][i][col][row]);
            u = __fadd_rn(u, room->part[t][HID_SPLITS + i][col][row]);
        }
        float h = swiglu(g, u, s.clamp);
        int k = list ? list[col] : col;
        s.hidden[(int64_t)k * a.ff + TILE_ROWS * (tile0 + t) + row] = list ? __fmul_rn(h, a.weights[k]) : h;
    }
    int at = TILE_ROWS * tile0 / 256;
    if (last_block(s.counters + group * (a.ff / 256) + at, 256 / (TILE_ROWS * tiles), &room->last))
        quantise_hidden(s, list, count, a.ff, at * 256);
}

/* The first blocks: shared expert; then those of group 0, group 1, ... of the routed ones. */
template <uint32_t T, int CT, int COLS, int SCOLS>
static __global__ void __launch_bounds__(MM_THREADS, MM_RESIDENT) gate_up(const __grid_constant__ gate_args a)
{
    using R = gate_room<CT, SCOLS>;
    GPU_DYNAMIC_SMEM(R, s);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, routed = (int)blockIdx.x - a.ff / TILE_ROWS / SHARED_TILES;
    int tiles = routed < 0 ? SHARED_TILES : routed_tiles(CT, SCOLS), each = a.ff / TILE_ROWS / tiles;
    int i = routed < 0 ? -1 : routed / each, tile0 = tiles * (routed < 0 ? (int)blockIdx.x : routed % each);
    int split = warp % HID_SPLITS, count = a.r.n;
    const int *visits = NULL;
    const gate_side &side = i < 0 ? a.shared : a.routed;
    const tiled &w = warp < HID_SPLITS ? side.gate : side.up;
    int from = w.chunks * split / HID_SPLITS, per = w.chunks * (split + 1) / HID_SPLITS - from;
    gate_source<CT, R> src = {
        side.x, w.p + tile0 * w.bytes + from * tile_chunk_bytes(w.type), w.bytes, {NULL, count, 0}, from, warp, lane,
        s};
    if (i < 0) {
        stream<Q_Q8_0, CT, SCOLS, false, false, R::bytes> run;
        run.open(s->ring[warp], lane);
        run.begin(src, per ? tiles : 0, per, true, false);
        chain_wait();
        run.begin(src, per ? tiles : 0, per, false, true);
        run.run(src, per ? tiles : 0, per, true);
    } else {
        chain_wait();
        const visit_group *group = &a.groups->group[i];
        int expert = group->expert, groups = a.groups->count,
            mine = group->visit[lane % BE_NARROW]; /* one round trip */
        count = group->count;
        visits = group->visit;
        if (i >= groups)
            return;
        if (lane < count)
            s->rows[warp][lane] = mine / a.used;
        __syncwarp();
        src.c = mm_columns{s->rows[warp], count, 0};
        src.p += expert * w.slice;
        stream<T, CT, COLS, (COLS > 1), false, R::bytes> run;
        run.open(s->ring[warp], lane);
        run.begin(src, per ? tiles : 0, per, true, true);
        run.run(src, per ? tiles : 0, per, false);
    }
    chain_next();
    for (int t = 0; t < tiles && !per; t++) { /* fewer chunks than warps */
        float none[CT][4] = {};
        src.take(t, none);
    }
    __syncthreads();
    finish_hidden(a, side, s, visits, count, i < 0 ? 0 : i, tile0, tiles);
}

template <int CT, int COLS, int SCOLS> static void launch_gate_up(gpu *g, const gate_args &a, int most)
{
    uint32_t t = a.routed.gate.type;
    auto *kernel = t == Q_IQ2_XXS ? gate_up<Q_IQ2_XXS, CT, COLS, SCOLS>
                   : t == Q_Q2_K  ? gate_up<Q_Q2_K, CT, COLS, SCOLS>
                   : t == Q_Q4_K  ? gate_up<Q_Q4_K, CT, COLS, SCOLS>
                   : t == Q_MXFP4 ? gate_up<Q_MXFP4, CT, COLS, SCOLS>
                                  : gate_up<Q_Q8_0, CT, COLS, SCOLS>;
    mm_launch<gate_room<CT, SCOLS>>(
        g, "gate_up", kernel, a.ff / TILE_ROWS / SHARED_TILES + most * (a.ff / TILE_ROWS / routed_tiles(CT, SCOLS)), a);
}

/* --- down --- */

typedef struct down_args {
    nrows r;
    tiled down, sdown;
    mm_input mid, smid;
    const visit_groups *groups;
    float *out;
    int used, d;
    int splits; /* units of an expert: DOWN_SPLITS if its chunks are even in number, else 1 */
} down_args;

template <int CT, int COLS> struct down_room {
    static const int most = CT == 1 && COLS == 1 ? 1 : 8 * CT; /* rows */
    static const int bytes = mm_ring(4 * most * TILE_ROWS * (MOST_USED * DOWN_SPLITS + SHARED_SPLITS) + 256 * most);
    alignas(16) uint8_t ring[MM_WARPS][bytes];
    float routed[most * MOST_USED][DOWN_SPLITS][TILE_ROWS];
    float shared[SHARED_SPLITS][most][TILE_ROWS];
    int rows[MM_WARPS][8][most]; /* visits of a warp's units, as far ahead as its ring reaches */
};

/* The units of a warp: (group, part of its inputs), every eighth of all. */
template <int CT, class R> struct down_source {
    const down_args &a;
    int unit0, tile, lane, seen; /* seen: units whose visits are in rows */
    R *room;
    DEV_MEMBER const mm_input &input() const { return a.mid; }
    DEV_MEMBER int unit(int i) const { return unit0 + MM_WARPS * i; }
    DEV_MEMBER const visit_group *group(int i) const { return &a.groups->group[unit(i) / a.splits]; }
    DEV_MEMBER int first(int i) const { return a.down.chunks * (unit(i) % a.splits) / a.splits; }
    DEV_MEMBER int *rows(int i) const { return room->rows[threadIdx.x / 32][i % 8]; }
    DEV_MEMBER const uint8_t *weights(int i) const
    {
        return a.down.p + group(i)->expert * a.down.slice + tile * a.down.bytes +
               first(i) * tile_chunk_bytes(a.down.type);
    }
    DEV_MEMBER mm_columns columns(int i)
    {
        int count = group(i)->count;
        if (i >= seen) {
            if (lane < count)
                rows(i)[lane] = group(i)->visit[lane];
            seen = i + 1;
            __syncwarp();
        }
        return mm_columns{rows(i), count, 0};
    }
    DEV_MEMBER void take(int i, float (&acc)[CT][4])
    {
        mm_columns c = columns(i);
#pragma unroll
        for (int ct = 0; ct < CT; ct++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * ct + acc_col(lane, e) < c.n)
                    room->routed[c.rows[8 * ct + acc_col(lane, e)]][unit(i) % a.splits][acc_row(lane, e)] = acc[ct][e];
    }
};

/* A warp's part of the shared expert. */
template <int CT, class R> DEV void put_shared(R *s, const float (&acc)[CT][4], int warp, int n, int lane)
{
#pragma unroll
    for (int ct = 0; ct < CT; ct++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * ct + acc_col(lane, e) < n)
                s->shared[warp][8 * ct + acc_col(lane, e)][acc_row(lane, e)] = acc[ct][e];
}

/* SCOLS: columns of the shared expert in the ring. */
template <uint32_t T, int CT, int COLS, int SCOLS>
static __global__ void __launch_bounds__(MM_THREADS, MM_RESIDENT) down_rows(const __grid_constant__ down_args a)
{
    using R = down_room<CT, SCOLS>;
    GPU_DYNAMIC_SMEM(R, s);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x;
    uint8_t *ring = s->ring[warp];
    if (warp < SHARED_SPLITS) {
        int from = a.sdown.chunks * warp / SHARED_SPLITS, per = a.sdown.chunks * (warp + 1) / SHARED_SPLITS - from;
        const uint8_t *p = a.sdown.p + (int64_t)tile * a.sdown.bytes + from * tile_chunk_bytes(Q_Q8_0);
        tile_source<CT> src = {a.smid, p, {NULL, a.r.n, 0}, from, {}};
        stream<Q_Q8_0, CT, SCOLS, false, false, R::bytes> run;
        run.open(ring, lane);
        run.begin(src, per > 0, per, true, false);
        chain_wait();
        run.begin(src, per > 0, per, false, true);
        run.run(src, per > 0, per, true);
        put_shared<CT>(s, src.acc, warp, a.r.n, lane);
    } else {
        chain_wait();
    }
    int unit0 = (warp + MM_WARPS - SHARED_SPLITS) % MM_WARPS, per = a.down.chunks / a.splits;
    int units = a.splits * a.groups->count, wanted = rows_wanted(a.r);
    int mine = (units - unit0 + MM_WARPS - 1) / MM_WARPS;
    down_source<CT, R> src = {a, unit0, tile, lane, 0, s};
    stream<T, CT, COLS, (COLS > 1), false, R::bytes> run;
    run.open(ring, lane);
    run.begin(src, mine, per, true, true);
    run.run(src, mine, per, false);
    chain_next();
    __syncthreads();
#pragma unroll 1
    for (int v = threadIdx.x; v < TILE_ROWS * a.r.n; v += MM_THREADS) {
        int o = v % TILE_ROWS, r = v / TILE_ROWS;
        float sum = 0, last = s->shared[0][r][o];
#pragma unroll 1
        for (int k = 0; k < a.used && r < wanted; k++) {
            const float *p = &s->routed[r * a.used + k][0][0];
            float y = p[o];
            for (int h = 1; h < a.splits; h++)
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
    a.shared = gate_side{
        gpu_tiled(&w->gate_sh), gpu_tiled(&w->up_sh), {k->x.q32, {}}, k->shidden, k->smid, counters, p->sclamp};
    qrows x = unit_group(w->gate_exps.type) == 32 ? k->x.q32 : k->x.q256;
    a.routed = gate_side{
        gpu_tiled(&w->gate_exps), gpu_tiled(&w->up_exps), {x, {}}, k->hidden, k->mid, counters + m->ff / 256, p->clamp};
    a.r = r, a.groups = k->groups, a.weights = k->weights, a.used = m->used, a.ff = m->ff;
    down_args d = {};
    d.r = r;
    d.down = gpu_tiled(&w->down_exps), d.sdown = gpu_tiled(&w->down_sh);
    d.mid.q = k->mid, d.smid.q = k->smid;
    d.groups = k->groups, d.out = k->out, d.used = m->used, d.d = m->d;
    d.splits = d.down.chunks % DOWN_SPLITS ? 1 : DOWN_SPLITS;
    if (r.n == 1)
        run_experts<1, 1, 1>(g, a, d, most);
    else if (r.n <= MM_COLUMNS)
        run_experts<1, 4, 6>(g, a, d, most);
    else
        run_experts<2, 4, 1>(g, a, d, most);
}

static bool expert_type(const gpu *g, const be_weight *w) { return gpu_is_tiled(g, w) && w->type != Q_F16; }

bool gpu_experts_fit(const gpu *g, const be_block *w)
{
    const be_dims *m = &g->base.dims;
    const be_weight *shared[] = {&w->gate_sh, &w->up_sh, &w->down_sh};
    for (int i = 0; i < 3; i++)
        if (shared[i]->type != Q_Q8_0 || !gpu_is_tiled(g, shared[i]))
            return false;
    bool router = gpu_is_tiled(g, &w->router) && (w->router.type == Q_F16 || w->router.type == Q_Q8_0);
    return router && expert_type(g, &w->gate_exps) && w->up_exps.type == w->gate_exps.type &&
           expert_type(g, &w->down_exps) && m->experts <= BLOCK_EXPERTS && m->used <= MOST_USED && m->ff % 256 == 0 &&
           m->d % 256 == 0 && g->smem_most >= sizeof(down_room<1, 6>) && g->smem_most >= sizeof(down_room<2, 1>) &&
           g->smem_most >= sizeof(gate_room<1, 6>);
}
