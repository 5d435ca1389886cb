/* mm_block.cuh: what a block of MM_WARPS warps does with a job of products.cuh. Kernels come in three instances, for 1,
 * up to MM_COLUMNS and up to 16 rows: CT column tiles, rings with room for COLS columns: <1, 1>, <1, 6>, <2, 1>. */
#ifndef DS4_BACKEND_CUDA_MM_BLOCK_CUH
#define DS4_BACKEND_CUDA_MM_BLOCK_CUH

#include "backend/cuda/products.cuh"

/* Dynamic shared memory of a block: the warps' rings; once all have run, what they share. */
template <int CT, int COLS> union mm_room {
    alignas(16) uint8_t ring[MM_WARPS][mm_ring()];
    struct {
        float part[MM_WARPS * CT * 128], room[8 * CT * 33];
    };
};

/* A warp's share of one tile. */
template <int CT> struct tile_source {
    const mm_input &in;
    const uint8_t *p;
    mm_columns c;
    int from;
    float acc[CT][4];
    DEV_MEMBER const mm_input &input() const { return in; }
    DEV_MEMBER const uint8_t *weights(int) const { return p; }
    DEV_MEMBER mm_columns columns(int) const { return c; }
    DEV_MEMBER int first(int) const { return from; }
    DEV_MEMBER void take(int, float (&sum)[CT][4])
    {
#pragma unroll
        for (int ct = 0; ct < CT; ct++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[ct][i] = sum[ct][i];
    }
};

/* Of any type that tiles have; weights before the wait. */
template <uint32_t T, int CT, int COLS, bool HALVES = T == Q_F16>
DEV void mm_share(const mm_job &j, int tile, int split, int n, int lane, uint8_t *ring, float (&acc)[CT][4])
{
    stream<T, CT, COLS, false, HALVES> run;
    int from = j.w.chunks * split / j.splits, count = j.w.chunks * (split + 1) / j.splits - from;
    const uint8_t *p = j.w.p + (int64_t)tile * j.w.bytes + (int64_t)from * tile_chunk_bytes(T);
    tile_source<CT> src = {j.x, p, {NULL, n, tile / j.group_tiles * j.w.chunks * tile_inputs(T)}, from, {}};
    run.open(ring, lane);
    run.begin(src, 1, count, true, false);
    chain_wait();
    run.begin(src, 1, count, false, true);
    run.run(src, 1, count, true);
#pragma unroll
    for (int ct = 0; ct < CT; ct++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[ct][i] = src.acc[ct][i];
}

/* FAST: the types of the published files' dense matrices. */
template <int CT, int COLS, bool FAST>
DEV void mm_any(const mm_job &j, int tile, int split, int n, int lane, uint8_t *ring, float (&acc)[CT][4])
{
    if (j.w.type == Q_F16)
        mm_share<Q_F16, CT, COLS>(j, tile, split, n, lane, ring, acc);
    else if (j.floats)
        mm_share<Q_Q8_0, CT, COLS, true>(j, tile, split, n, lane, ring, acc);
    else if (j.w.type == Q_Q8_0)
        mm_share<Q_Q8_0, CT, COLS>(j, tile, split, n, lane, ring, acc);
    else if constexpr (!FAST) {
        if (j.w.type == Q_MXFP4)
            mm_share<Q_MXFP4, CT, COLS>(j, tile, split, n, lane, ring, acc);
        else if (j.w.type == Q_Q4_K)
            mm_share<Q_Q4_K, CT, COLS>(j, tile, split, n, lane, ring, acc);
        else if (j.w.type == Q_Q2_K)
            mm_share<Q_Q2_K, CT, COLS>(j, tile, split, n, lane, ring, acc);
        else
            mm_share<Q_IQ2_XXS, CT, COLS>(j, tile, split, n, lane, ring, acc);
    }
}

template <int CT> DEV void mm_store(const mm_job &j, int tile0, int n, const float *part)
{
    int tiles = MM_WARPS / j.splits, per = CT * 128;
#pragma unroll 1
    for (int v = threadIdx.x; v < tiles * per; v += MM_THREADS) {
        int row, col, tile = v / per;
        float y = sum_parts<CT>(part, tile * j.splits, j.splits, v % per, &row, &col);
        if (tile0 + tile >= j.w.tiles || col >= n)
            continue;
        float *to = j.y + (int64_t)col * j.ldy + TILE_ROWS * (tile0 + tile) + row;
        *to = j.add ? __fadd_rn(*to, y) : y;
    }
}

/* The same into int8 rows, 32 outputs (two tiles) for each scale. */
template <int CT> DEV void mm_quantise(const mm_job &j, int tile0, int n, const float *part, float *room)
{
    int tiles = MM_WARPS / j.splits, per = CT * 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int t0 = 0; t0 < tiles; t0 += 2) {
#pragma unroll 1
        for (int v = threadIdx.x; v < 2 * per; v += MM_THREADS) {
            int row, col;
            float y = sum_parts<CT>(part, (t0 + v / per) * j.splits, j.splits, v % per, &row, &col);
            room[col * 33 + TILE_ROWS * (v / per) + row] = y;
        }
        __syncthreads();
        for (int r = warp; r < n && tile0 + t0 < j.w.tiles; r += MM_WARPS)
            warp_quantise32(j.out, r, TILE_ROWS * (tile0 + t0), room[r * 33 + lane], lane);
        __syncthreads();
    }
}

/* Block `block` of the launch's products; returns the job's number. Waits for the kernel before on every path. */
template <int CT, int COLS, bool FAST> DEV int mm_block(const mm_args &a, int block, mm_room<CT, COLS> *s)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = 0;
    while (i + 1 < a.k && block >= a.job[i + 1].first)
        i++;
    const mm_job &j = a.job[i];
    int tiles = MM_WARPS / j.splits, tile0 = (block - j.first) * tiles, tile = tile0 + warp / j.splits;
    float acc[CT][4] = {};
    if (tile < j.w.tiles)
        mm_any<CT, COLS, FAST>(j, tile, warp % j.splits, a.n, lane, s->ring[warp], acc);
    else
        chain_wait();
    __syncthreads();
    put_part<CT>(s->part, warp, lane, acc);
    __syncthreads();
    if (j.out.q)
        mm_quantise<CT>(j, tile0, a.n, s->part, s->room);
    else
        mm_store<CT>(j, tile0, a.n, s->part);
    return i;
}

enum { MM_RESIDENT = 2 }; /* blocks of a multiprocessor that registers must allow */

/* Launches a kernel whose dynamic shared memory is an R. */
template <class R, class... P, class... A>
static inline void mm_launch(gpu *g, const char *name, void (*kernel)(P...), dim3 grid, A... args)
{
    if (gpu_raise_smem(g, kernel, sizeof(R)))
        gpu_launch(g, name, __FILE__, __LINE__, true, kernel, grid, MM_THREADS, sizeof(R), args...);
}

#endif
