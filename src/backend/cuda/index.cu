/* index.cu: the indexer: queries, scores, and the choice of the best compressed rows. */
#include "backend/cuda/row.cuh"

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

void gpu_index_query(backend *b, const be_rows *r, const float *freq, bool sim, float *qi)
{
    const be_dims *m = &b->dims;
    size_t smem = ((size_t)m->rope_dim + (size_t)GPU_WARPS * (size_t)m->idx_dim) * sizeof(float);
    if (r->n > 0)
        GPU_LAUNCH(gpu_of(b), finish_queries, dim3(gpu_blocks(m->idx_heads, GPU_WARPS), r->n), GPU_THREADS, smem,
                   r->pos, freq, sim, qi, (int)m->idx_heads, (int)m->idx_dim, (int)m->rope_dim);
}

enum { TILE = 32 /* compressed rows per block */, SELECT_THREADS = 1024 };

typedef struct score_args {
    const int32_t *pos, *seq;
    const float *qi, *wi;
    be_store rows;
    uint32_t *keys; /* [n][rows.cap] */
    int ratio, heads, dim, top;
    float scale;
} score_args;

/* Block (tile, r). Thread (s, g) adds heads g, g + 8, ... of compressed row s in order; then the eight sums are added
 * in order. The keys of rows that see at most `top` rows are not needed. */
static __global__ void __launch_bounds__(GPU_THREADS) score_tile(const score_args a)
{
    GPU_DYNAMIC_SMEM(float, tile); /* [TILE][dim + 1]: the odd distance spreads the rows over the banks */
    __shared__ float part[GPU_WARPS][TILE];
    int r = blockIdx.y, have = (a.pos[r] + 1) / a.ratio, from = (int)blockIdx.x * TILE, s = threadIdx.x % TILE;
    int g = threadIdx.x / TILE, count = have - from < TILE ? have - from : TILE;
    if (have <= a.top || count <= 0)
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

/* Exclusive count of set flags before this thread, and of all of them. room: 33 ints. */
DEV int block_rank(bool flag, int *room, int *total)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t votes = __ballot_sync(FULL_WARP, flag);
    if (lane == 0)
        room[warp] = __popc(votes);
    __syncthreads();
    int before = __popc(votes & ((1u << lane) - 1)), all = 0;
    for (int i = 0; i < SELECT_THREADS / 32; i++) {
        before += i < warp ? room[i] : 0;
        all += room[i];
    }
    __syncthreads();
    *total = all;
    return before;
}

/* The k-th largest of n keys (k <= n), byte by byte from the top; *above = how many keys are larger. */
DEV uint32_t kth_largest(const uint32_t *key, int n, int k, int *above, int *count, int *found)
{
    uint32_t prefix = 0, mask = 0;
    int left = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256)
            count[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += SELECT_THREADS)
            if ((key[i] & mask) == prefix)
                atomicAdd(&count[key[i] >> shift & 255], 1);
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 255, rest = left;
            while (count[digit] < rest)
                rest -= count[digit--];
            found[0] = digit;
            found[1] = rest;
        }
        __syncthreads();
        prefix |= (uint32_t)found[0] << shift;
        mask |= 255u << shift;
        left = found[1];
        __syncthreads();
    }
    *above = k - left;
    return prefix;
}

/* One block per row: all rows when they fit, else everything above the k-th largest key and the first that equal it. */
static __global__ void __launch_bounds__(SELECT_THREADS)
    select_rows(const int32_t *pos, int ratio, const uint32_t *keys, int cap, int top, int32_t *sel)
{
    __shared__ int count[256], found[2], room[SELECT_THREADS / 32];
    int r = blockIdx.x, have = (pos[r] + 1) / ratio, t = threadIdx.x;
    int32_t *out = sel + (int64_t)r * top;
    if (have <= top) {
        for (int i = t; i < top; i += SELECT_THREADS)
            out[i] = i < have ? i : -1;
        return;
    }
    const uint32_t *key = keys + (int64_t)r * cap;
    int above, equal, total, n = 0, seen = 0; /* n chosen so far, `seen` of them equal to the border */
    uint32_t border = kth_largest(key, have, top, &above, count, found);
    equal = top - above;
    for (int at = 0; at < have; at += SELECT_THREADS) {
        uint32_t v = at + t < have ? key[at + t] : 0;
        bool inside = at + t < have, same = inside && v == border;
        int rank = seen + block_rank(same, room, &total);
        seen += total;
        bool take = inside && (v > border || (same && rank < equal));
        int place = n + block_rank(take, room, &total);
        n += total;
        if (take)
            out[place] = at + t;
    }
}

void gpu_index_select(backend *b, const be_rows *r, int ratio, const float *qi, const float *wi, const be_store *rows,
                      int32_t *sel)
{
    gpu *g = gpu_of(b);
    const be_dims *m = &b->dims;
    int most = (r->max_pos + 1) / ratio;
    if (!gpu_ok(g) || r->n <= 0)
        return;
    uint32_t *keys = NULL;
    if (most > m->idx_topk) {
        keys = (uint32_t *)gpu_scratch_get(g, G_KEY, (size_t)GPU_MAX_ROWS * (size_t)rows->cap * sizeof *keys);
        if (!keys)
            return;
        score_args a = {r->pos,
                        r->seq,
                        qi,
                        wi,
                        *rows,
                        keys,
                        ratio,
                        (int)m->idx_heads,
                        (int)m->idx_dim,
                        (int)m->idx_topk,
                        (float)(1 / sqrt((double)m->idx_dim * m->idx_heads))};
        GPU_LAUNCH(g, score_tile, dim3(gpu_blocks(most, TILE), r->n), GPU_THREADS,
                   (size_t)TILE * (size_t)(m->idx_dim + 1) * sizeof(float), a);
    }
    GPU_LAUNCH(g, select_rows, r->n, SELECT_THREADS, 0, r->pos, ratio, (const uint32_t *)keys, (int)rows->cap,
               (int)m->idx_topk, sel);
}
