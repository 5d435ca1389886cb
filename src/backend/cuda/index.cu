/* index.cu: the indexer: queries, scores, and the choice of the best compressed rows. */
#include "backend/cuda/row.cuh"
#include "backend/cuda/tf32.cuh"

enum { DIM = 128, VALUES = DIM / 32 /* heads of the fast kernels; numbers of a lane */ };

/* warp_hadamard and warp_sim_fp4 on a row whose numbers l, l + 32, ... lane l holds. */
DEV void lane_hadamard(float (&v)[VALUES], int lane)
{
#pragma unroll
    for (int h = 1; h < 32; h *= 2)
#pragma unroll
        for (int j = 0; j < VALUES; j++) {
            float other = __shfl_xor_sync(FULL_WARP, v[j], h);
            v[j] = lane & h ? __fsub_rn(other, v[j]) : __fadd_rn(v[j], other);
        }
#pragma unroll
    for (int h = 1; h < VALUES; h *= 2)
#pragma unroll
        for (int j = 0; j < VALUES; j++)
            if (!(j & h)) {
                float a = v[j], b = v[j + h];
                v[j] = __fadd_rn(a, b);
                v[j + h] = __fsub_rn(a, b);
            }
    float s = __fdiv_rn(1.0f, __fsqrt_rn((float)DIM));
#pragma unroll
    for (int j = 0; j < VALUES; j++)
        v[j] = __fmul_rn(v[j], s);
}

DEV void lane_sim_fp4(float (&v)[VALUES])
{
#pragma unroll
    for (int j = 0; j < VALUES; j++) {
        float top = warp_max(fmaxf(6.0f * 1.1754943508222875e-38f, fabsf(v[j])));
        float s = pow2_value(ceil_log2(__fmul_rn(top, 1.0f / 6.0f)));
        v[j] = __fmul_rn(round_e2m1(__fdiv_rn(v[j], s)), s);
    }
}

/* One warp per head, GPU_WARPS heads of one row per block. */
static __global__ void __launch_bounds__(GPU_THREADS)
    finish_queries(const int32_t *pos, const float *freq, bool sim, float *qi, int heads, int dim, int rope)
{
    GPU_DYNAMIC_SMEM(float2, cs); /* angles, then one row per warp */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = (int)blockIdx.x * GPU_WARPS + warp, r = blockIdx.y;
    make_angles(cs, pos[r], freq, rope / 2);
    __syncthreads();
    if (h >= heads)
        return;
    float *row = reinterpret_cast<float *>(cs + rope / 2) + warp * dim, *q = qi + ((int64_t)r * heads + h) * dim;
    for (int i = lane; i < dim / 2; i += 32) {
        int k = i - (dim - rope) / 2;
        float2 v = make_float2(q[2 * i], q[2 * i + 1]);
        if (k >= 0)
            v = rotated(v.x, v.y, cs[k].x, cs[k].y);
        row[2 * i] = v.x;
        row[2 * i + 1] = v.y;
    }
    __syncwarp();
    if (sim) {
        warp_hadamard(row, dim);
        warp_sim_fp4(row, dim);
    }
    for (int i = lane; i < dim; i += 32)
        q[i] = row[i];
}

/* The same for heads of DIM numbers: lane l holds numbers l, l + 32, ... in registers. */
static __global__ void __launch_bounds__(GPU_THREADS)
    finish_queries_fast(const int32_t *pos, const float *freq, bool sim, float *qi, int heads, int rope)
{
    chain_next();
    chain_wait();
    int lane = threadIdx.x % 32, h = (int)blockIdx.x * GPU_WARPS + (int)threadIdx.x / 32, r = blockIdx.y;
    if (h >= heads)
        return;
    float *q = qi + ((int64_t)r * heads + h) * DIM + lane, v[VALUES];
#pragma unroll
    for (int j = 0; j < VALUES; j++)
        v[j] = q[32 * j];
#pragma unroll
    for (int j = 0; j < VALUES; j++) {
        int k = 32 * j + lane - (DIM - rope);
        float other = __shfl_xor_sync(FULL_WARP, v[j], 1);
        if (k >= 0) {
            float2 cs = turn_of(pos[r], freq[k / 2]);
            v[j] = lane % 2 ? rotated(other, v[j], cs.x, cs.y).y : rotated(v[j], other, cs.x, cs.y).x;
        }
    }
    if (sim) {
        lane_hadamard(v, lane);
        lane_sim_fp4(v);
    }
#pragma unroll
    for (int j = 0; j < VALUES; j++)
        q[32 * j] = v[j];
}

void gpu_index_query(backend *b, const be_rows *r, const float *freq, bool sim, float *qi)
{
    const be_dims *m = &b->dims;
    dim3 grid(gpu_blocks(m->idx_heads, GPU_WARPS), r->n);
    if (r->n > 0 && m->idx_dim == DIM) {
        GPU_CHAIN(gpu_of(b), finish_queries_fast, grid, GPU_THREADS, 0, r->pos, freq, sim, qi, (int)m->idx_heads,
                  (int)m->rope_dim);
        return;
    }
    size_t smem = ((size_t)m->rope_dim + (size_t)GPU_WARPS * (size_t)m->idx_dim) * sizeof(float);
    if (r->n > 0)
        GPU_LAUNCH(gpu_of(b), finish_queries, grid, GPU_THREADS, smem, r->pos, freq, sim, qi, (int)m->idx_heads,
                   (int)m->idx_dim, (int)m->rope_dim);
}

enum {
    STEPS = DIM / 16,
    TILE = 8, /* compressed rows of a warp's product */
    MOST_HEADS = 16 * GPU_WARPS,
    SLOW_TILE = 32, /* compressed rows of a block of the other kernel */
    SELECT_THREADS = 1024,
    BINS = 2 * SELECT_THREADS,
    PASSES = 3,
    KEYS = 8,        /* of a lane, loaded together */
    SEGMENT = 16384, /* keys of a block where several blocks select */
};

typedef struct score_args {
    const int32_t *pos, *seq, *count;
    const float *qi, *wi;
    be_store rows;
    uint32_t *keys; /* [n][rows.cap] */
    int n, ratio, heads, dim, top;
    float scale;
} score_args;

/* Compressed rows that need keys: none where all are taken, or the row of the forward is not wanted. */
DEV int rows_to_rank(const int32_t *pos, const int32_t *count, int ratio, int top, int r)
{
    int have = (pos[r] + 1) / ratio;
    return have <= top || (count && r >= *count) ? 0 : have;
}

/* --- scores --- */

/* Heads 16 m + g and 16 m + g + 8 of a row of queries as a left side: step j has columns 16 j .. 16 j + 15, of which
 * the lane has 16 j + 4 t and the next three, and is two products. Heads behind the last repeat it; their weight is
 * zero. */
typedef struct query_rows {
    const float *head[2]; /* moved to column 4 t */
} query_rows;

DEV query_rows query_of(const score_args &a, int r, int m, int lane)
{
    query_rows p;
    for (int half = 0; half < 2; half++) {
        int h = 16 * m + lane / 4 + 8 * half;
        p.head[half] = a.qi + ((int64_t)r * a.heads + (h < a.heads ? h : a.heads - 1)) * DIM + 4 * (lane % 4);
    }
    return p;
}

/* q[0], q[1]: the left sides of the two products. */
DEV void fetch_step(float (&q)[2][4], const query_rows &p, int j)
{
    for (int half = 0; half < 2; half++) {
        float4 v = *reinterpret_cast<const float4 *>(p.head[half] + 16 * j);
        q[0][half] = v.x, q[0][2 + half] = v.y;
        q[1][half] = v.z, q[1][2 + half] = v.w;
    }
}

/* Whether all numbers of the warp are tf32 numbers, as they are after simulated FP4. */
DEV bool all_exact(uint32_t bits) { return !__any_sync(FULL_WARP, (bits & TF32_REST) != 0); }

DEV uint32_t bits_of(const float4 &v)
{
    return __float_as_uint(v.x) | __float_as_uint(v.y) | __float_as_uint(v.z) | __float_as_uint(v.w);
}

DEV void multiply_exact(float (&c)[4], const float (&q)[4], float x, float y)
{
    const uint32_t hi[4] = {__float_as_uint(q[0]), __float_as_uint(q[1]), __float_as_uint(q[2]), __float_as_uint(q[3])};
    mma_tf32_k8(c, hi, __float_as_uint(x), __float_as_uint(y));
}

/* c = q.k of the warp's heads and rows; `row` is the lane's (row g of the tile). q: the queries, if `exact`. */
DEV void dots(float (&c)[4], const float (&q)[STEPS][2][4], bool exact, const query_rows &p, const float *row, int lane)
{
    float4 k[STEPS];
    float main[4] = {}, small[4] = {};
    uint32_t bits = 0;
    row += 4 * (lane % 4);
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        k[j] = *reinterpret_cast<const float4 *>(row + 16 * j);
        bits |= bits_of(k[j]);
    }
    if (all_exact(bits) && exact) {
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            multiply_exact(main, q[j][0], k[j].x, k[j].y);
            multiply_exact(small, q[j][1], k[j].z, k[j].w);
        }
    } else {
#pragma unroll 1
        for (int j = 0; j < STEPS; j++) { /* from memory again: parts of all queries are too many for registers */
            operand left;
            float v[2][4];
            fetch_step(v, p, j);
            float4 x = *reinterpret_cast<const float4 *>(row + 16 * j);
            split(left, v[0]);
            multiply_split(main, small, left, x.x, x.y);
            split(left, v[1]);
            multiply_split(main, small, left, x.z, x.w);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = __fadd_rn(main[i], small[i]);
}

/* Block (x, r): compressed rows x * slots * TILE .. and every gridDim.x-th tile of that size after them. The warps of a
 * slot share TILE rows, each has 16 heads, whose terms are added by a fixed tree; then the warps' sums in order. */
static __global__ void __launch_bounds__(GPU_THREADS, 2) score_rows(const __grid_constant__ score_args a)
{
    __shared__ float part[2][GPU_WARPS][TILE];
    chain_next();
    chain_wait();
    int r = blockIdx.y, have = rows_to_rank(a.pos, a.count, a.ratio, a.top, r);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = (a.heads + 15) / 16, slots = GPU_WARPS / tiles;
    int slot = warp / tiles, m = warp % tiles, g = lane / 4, t = lane % 4, turn = 0;
    if (!have)
        return;
    float q[STEPS][2][4], weight[2];
    uint32_t bits = 0;
    query_rows p = query_of(a, r, m, lane);
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        fetch_step(q[j], p, j);
        for (int i = 0; i < 4; i++)
            bits |= __float_as_uint(q[j][0][i]) | __float_as_uint(q[j][1][i]);
    }
    bool exact = all_exact(bits);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int h = 16 * m + g + 8 * half;
        weight[half] = h < a.heads ? __fmul_rn(a.wi[(int64_t)r * a.heads + h], a.scale) : 0;
    }
    for (int at = (int)blockIdx.x * slots; at * TILE < have; at += (int)gridDim.x * slots, turn ^= 1) {
        int from = (at + slot) * TILE, row = from + g < have ? from + g : have - 1;
        if (slot < slots && from < have) {
            float c[4], sum[2];
            dots(c, q, exact, p, array_row(a.rows, a.seq[r], row), lane);
#pragma unroll
            for (int i = 0; i < 2; i++) { /* row 2 t + i; negative products count nothing, NaN stays */
                sum[i] = __fadd_rn(__fmul_rn(weight[0], c[i] < 0 ? 0 : c[i]),
                                   __fmul_rn(weight[1], c[2 + i] < 0 ? 0 : c[2 + i]));
                for (int step = 4; step < 32; step *= 2)
                    sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(FULL_WARP, sum[i], step));
            }
            if (g == 0)
                *reinterpret_cast<float2 *>(&part[turn][warp][2 * t]) = make_float2(sum[0], sum[1]);
        }
        __syncthreads();
        if (slot < slots && m == 0 && lane < TILE && from + lane < have) {
            float sum = part[turn][warp][lane];
            for (int i = 1; i < tiles; i++)
                sum = __fadd_rn(sum, part[turn][warp + i][lane]);
            a.keys[(int64_t)r * a.rows.cap + from + lane] = order_key(sum);
        }
    }
}

/* Block (tile, r), for other sizes. Thread (s, g) adds heads g, g + 8, ... of compressed row s in order; then the eight
 * sums are added in order. */
static __global__ void __launch_bounds__(GPU_THREADS) score_slow(const score_args a)
{
    GPU_DYNAMIC_SMEM(float, tile); /* [SLOW_TILE][dim + 1]: the odd distance spreads the rows over the banks */
    __shared__ float part[GPU_WARPS][SLOW_TILE];
    int r = blockIdx.y, have = rows_to_rank(a.pos, a.count, a.ratio, a.top, r), from = (int)blockIdx.x * SLOW_TILE;
    int s = threadIdx.x % SLOW_TILE, g = threadIdx.x / SLOW_TILE;
    int count = have - from < SLOW_TILE ? have - from : SLOW_TILE;
    if (count <= 0)
        return;
    for (int i = threadIdx.x; i < count * a.dim; i += blockDim.x)
        tile[i / a.dim * (a.dim + 1) + i % a.dim] = array_row(a.rows, a.seq[r], from + i / a.dim)[i % a.dim];
    __syncthreads();
    float sum = 0;
    const float *k = tile + (s < count ? s : 0) * (a.dim + 1);
    for (int h = g; h < a.heads; h += GPU_WARPS) {
        const float *q = a.qi + ((int64_t)r * a.heads + h) * a.dim;
        float dot = 0, weight = __fmul_rn(a.wi[(int64_t)r * a.heads + h], a.scale);
#pragma unroll 8
        for (int i = 0; i < a.dim; i++)
            dot = __fmaf_rn(q[i], k[i], dot);
        sum = __fadd_rn(sum, __fmul_rn(weight, dot < 0 ? 0 : dot));
    }
    part[g][s] = sum;
    __syncthreads();
    if (g == 0 && s < count) {
        for (int i = 1; i < GPU_WARPS; i++)
            sum = __fadd_rn(sum, part[i][s]);
        a.keys[(int64_t)r * a.rows.cap + from + s] = order_key(sum);
    }
}

/* --- the choice --- */

typedef struct select_room {
    int count[PASSES][BINS];
    int sums[32], digit, rest;
    int above[32], equal[32]; /* per warp */
} select_room;

/* Warp w has the keys [w * share, w * share + share) of n. use(v, at, inside) for 32 of them at a time, lane l with key
 * at + l if that is inside; KEYS loads are in flight. */
DEV int share_of(int n) { return (n + SELECT_THREADS - 1) / SELECT_THREADS * 32; }

template <class F> DEV void each_key(const uint32_t *key, int n, F use)
{
    int share = share_of(n), from = (int)threadIdx.x / 32 * share, to = n < from + share ? n : from + share;
    const int lane = threadIdx.x % 32;
    for (int at = from; at < to; at += 32 * KEYS) {
        uint32_t v[KEYS];
#pragma unroll
        for (int i = 0; i < KEYS; i++)
            v[i] = at + 32 * i + lane < to ? key[at + 32 * i + lane] : 0;
#pragma unroll
        for (int i = 0; i < KEYS; i++)
            if (at + 32 * i < to)
                use(v[i], at + 32 * i, at + 32 * i + lane < to);
    }
}

/* The bin, from the highest one down, in which the sum of counts reaches `left`; *rest: what is left inside it. */
DEV int find_bin(const int *count, int left, select_room &m, int *rest)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, bin = BINS - 1 - 2 * (int)threadIdx.x;
    int high = count[bin], both = high + count[bin - 1], sum = both;
    for (int step = 1; step < 32; step *= 2) {
        int v = __shfl_up_sync(FULL_WARP, sum, step);
        sum += lane >= step ? v : 0;
    }
    if (lane == 31)
        m.sums[warp] = sum;
    __syncthreads();
    int before = warp_sum(lane < warp ? m.sums[lane] : 0) + sum - both; /* counts of higher bins */
    if (before < left && left <= before + both) {
        m.digit = before + high >= left ? bin : bin - 1;
        m.rest = before + high >= left ? left - before : left - before - high;
    }
    __syncthreads();
    *rest = m.rest;
    return m.digit;
}

/* The k-th largest of n keys (k <= n), 11, 11 and 10 bits from the top; *equal: how many of the keys that equal it
 * belong to the k largest. */
DEV uint32_t kth_largest(const uint32_t *key, int n, int k, select_room &m, int *equal)
{
    uint32_t prefix = 0;
    int left = k;
    for (int i = threadIdx.x; i < PASSES * BINS; i += SELECT_THREADS)
        (&m.count[0][0])[i] = 0;
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, bits = pass < 2 ? 11 : 10;
        each_key(key, n, [&](uint32_t v, int, bool inside) {
            if (inside && (pass == 0 || v >> (shift + bits) == prefix))
                atomicAdd(&m.count[pass][v >> shift & ((1u << bits) - 1)], 1);
        });
        __syncthreads();
        prefix = prefix << bits | (uint32_t)find_bin(m.count[pass], left, m, &left);
    }
    *equal = left;
    return prefix;
}

/* The `top` largest of n > top keys, ties to the lower place: put(rank, place) for each in ascending order of place. */
template <class F> DEV void choose(const uint32_t *key, int n, int top, select_room &m, F put)
{
    int equal, warp = threadIdx.x / 32, lane = threadIdx.x % 32, above = 0, same = 0;
    uint32_t border = kth_largest(key, n, top, m, &equal), below = (1u << lane) - 1;
    each_key(key, n, [&](uint32_t v, int, bool inside) {
        above += inside && v > border;
        same += inside && v == border;
    });
    above = warp_sum(above);
    same = warp_sum(same);
    if (lane == 0) {
        m.above[warp] = above;
        m.equal[warp] = same;
    }
    __syncthreads();
    above = warp_sum(lane < warp ? m.above[lane] : 0); /* of the keys before: larger ones, equal ones */
    same = warp_sum(lane < warp ? m.equal[lane] : 0);
    each_key(key, n, [&](uint32_t v, int at, bool inside) {
        uint32_t larger = __ballot_sync(FULL_WARP, inside && v > border);
        uint32_t equals = __ballot_sync(FULL_WARP, inside && v == border);
        int ties = same + __popc(equals & below), rank = above + __popc(larger & below) + (ties < equal ? ties : equal);
        if (larger >> lane & 1 || (equals >> lane & 1 && ties < equal))
            put(rank, at + lane);
        above += __popc(larger);
        same += __popc(equals);
    });
}

typedef struct select_args {
    const int32_t *pos, *count;
    const uint32_t *keys; /* [n][cap] */
    uint32_t *best;       /* [n][segments][top]: the best keys of each segment and, in `place`, where they are */
    int32_t *place;
    int32_t *sel; /* [n][top] */
    int ratio, cap, top, segments;
} select_args;

/* Block (segment, r), for long lists: only the best `top` of a segment can be among the best of all. */
static __global__ void __launch_bounds__(SELECT_THREADS) select_segments(const select_args a)
{
    __shared__ select_room m;
    chain_next();
    chain_wait();
    int r = blockIdx.y, from = (int)blockIdx.x * SEGMENT, n = rows_to_rank(a.pos, a.count, a.ratio, a.top, r) - from;
    n = n < SEGMENT ? n : SEGMENT;
    const uint32_t *key = a.keys + (int64_t)r * a.cap + from;
    int64_t first = ((int64_t)r * a.segments + blockIdx.x) * a.top;
    uint32_t *best = a.best + first;
    int32_t *place = a.place + first;
    auto put = [=](int rank, int i) {
        best[rank] = key[i];
        place[rank] = from + i;
    };
    if (n > a.top)
        choose(key, n, a.top, m, put);
    else
        for (int i = threadIdx.x; i < n; i += SELECT_THREADS)
            put(i, i);
}

/* One block per row: all rows when they fit, else the best of the keys or, with segments, of the best keys of each. */
static __global__ void __launch_bounds__(SELECT_THREADS) select_rows(const select_args a)
{
    __shared__ select_room m;
    chain_next();
    chain_wait();
    int r = blockIdx.x, n = rows_to_rank(a.pos, a.count, a.ratio, a.top, r), have = (a.pos[r] + 1) / a.ratio;
    int32_t *out = a.sel + (int64_t)r * a.top;
    if (!n) { /* rows that are not wanted also get some that exist */
        for (int i = threadIdx.x; i < a.top; i += SELECT_THREADS)
            out[i] = i < have ? i : -1;
    } else if (a.segments == 1) {
        choose(a.keys + (int64_t)r * a.cap, n, a.top, m, [=](int rank, int i) { out[rank] = i; });
    } else {
        int last = (n - 1) / SEGMENT, tail = n - last * SEGMENT;
        const int32_t *place = a.place + (int64_t)r * a.segments * a.top;
        const uint32_t *best = a.best + (int64_t)r * a.segments * a.top;
        n = last * a.top + (tail < a.top ? tail : a.top);
        if (n > a.top)
            choose(best, n, a.top, m, [=](int rank, int i) { out[rank] = place[i]; });
        else
            for (int i = threadIdx.x; i < a.top; i += SELECT_THREADS)
                out[i] = place[i];
    }
}

static void launch_scores(gpu *g, const score_args &a, int most)
{
    if (a.dim == DIM && a.heads <= MOST_HEADS) {
        int slots = GPU_WARPS / ((a.heads + 15) / 16);
        unsigned tiles = gpu_blocks(most, slots * TILE), fill = gpu_blocks(2 * g->sms, a.n);
        GPU_CHAIN(g, score_rows, dim3(tiles < fill ? tiles : fill, a.n), GPU_THREADS, 0, a);
        return;
    }
    GPU_LAUNCH(g, score_slow, dim3(gpu_blocks(most, SLOW_TILE), a.n), GPU_THREADS,
               (size_t)SLOW_TILE * (size_t)(a.dim + 1) * sizeof(float), a);
}

void gpu_index_select(backend *b, const be_rows *r, int ratio, const float *qi, const float *wi, const be_store *rows,
                      int32_t *sel)
{
    gpu *g = gpu_of(b);
    const be_dims *m = &b->dims;
    int most = (r->max_pos + 1) / ratio, top = m->idx_topk;
    if (!gpu_ok(g) || r->n <= 0)
        return;
    select_args s = {r->pos, r->count, NULL, NULL, NULL, sel, ratio, rows->cap, top, 1};
    if (most > top) {
        const int segments = (int)gpu_blocks(rows->cap, SEGMENT);
        const size_t keys = (size_t)GPU_MAX_ROWS * (size_t)rows->cap, best = (size_t)(GPU_MAX_ROWS * segments * top);
        uint32_t *room = (uint32_t *)gpu_scratch_get(g, G_KEY, (keys + 2 * best) * sizeof *room);
        if (!room)
            return;
        launch_scores(g,
                      score_args{r->pos, r->seq, r->count, qi, wi, *rows, room, r->n, ratio, (int)m->idx_heads,
                                 (int)m->idx_dim, top, (float)(1 / sqrt((double)m->idx_dim * m->idx_heads))},
                      most);
        s.keys = room, s.best = room + keys, s.place = (int32_t *)(room + keys + best);
        s.segments = (int)gpu_blocks(most, SEGMENT);
        if (s.segments > 1)
            GPU_CHAIN(g, select_segments, dim3(s.segments, r->n), SELECT_THREADS, 0, s);
    }
    GPU_CHAIN(g, select_rows, r->n, SELECT_THREADS, 0, s);
}
