/* draft.cu: choosing a token. */
#include "backend/cuda/gpu.cuh"
#include "backend/cuda/draft.cuh"
#include "backend/cuda/mma.cuh"

enum { CHUNK = 2048 };

typedef struct pick_args {
    const float *logits;
    const int32_t *pos;
    const be_cycle *c; /* temperature and seed of a cycle, NULL: these */
    float temp;
    uint64_t seed;
    int vocab, chunks;
    unsigned long long *best; /* [rows][chunks] */
    int32_t *out;
    const int32_t *when;
} pick_args;

/* Block (chunk, r): the best candidate of a chunk; 0 if it holds only NaN and -infinity. */
static __global__ void __launch_bounds__(GPU_THREADS) pick_chunk(const pick_args a)
{
    __shared__ unsigned long long room[32];
    chain_wait();
    if (a.when && !*a.when)
        return;
    int r = blockIdx.y, from = (int)blockIdx.x * CHUNK, to = from + CHUNK < a.vocab ? from + CHUNK : a.vocab;
    const float temp = a.c ? a.c->in.temp : a.temp;
    const uint64_t seed = a.c ? a.c->in.seed : a.seed;
    unsigned long long top = 0;
    for (int t = from + (int)threadIdx.x; t < to; t += blockDim.x) {
        unsigned long long key = candidate(a.logits[(int64_t)r * a.vocab + t], temp, seed, (uint32_t)a.pos[r], t);
        top = key > top ? key : top;
    }
    top = block_max(top, room);
    if (threadIdx.x == 0)
        a.best[(int64_t)r * a.chunks + blockIdx.x] = top;
}

/* One warp per row. */
static __global__ void pick_row(const pick_args a)
{
    unsigned long long top = 0;
    chain_wait();
    if (a.when && !*a.when)
        return;
    for (int k = threadIdx.x; k < a.chunks; k += 32) {
        unsigned long long v = a.best[(int64_t)blockIdx.x * a.chunks + k];
        top = v > top ? v : top;
    }
    top = warp_max(top);
    if (threadIdx.x == 0)
        a.out[blockIdx.x] = chosen(top);
}

static void pick(gpu *g, int n, pick_args a)
{
    a.vocab = g->base.dims.vocab;
    a.chunks = (int)gpu_blocks(a.vocab, CHUNK);
    a.when = g->when;
    if (!gpu_ok(g) || n <= 0)
        return;
    size_t bytes = (size_t)GPU_MAX_ROWS * (size_t)a.chunks * sizeof *a.best;
    a.best = (unsigned long long *)gpu_scratch_get(g, G_KEY, bytes);
    if (!a.best)
        return;
    GPU_CHAIN(g, pick_chunk, dim3(a.chunks, n), GPU_THREADS, 0, a);
    GPU_CHAIN(g, pick_row, n, 32, 0, a);
}

void gpu_pick(backend *b, int n, const float *logits, float temp, uint64_t seed, const int32_t *pos, int32_t *out)
{
    pick_args a = {logits, pos, NULL, temp, seed, 0, 0, NULL, out, NULL};
    pick(gpu_of(b), n, a);
}

void gpu_pick_in(backend *b, int n, const float *logits, const be_cycle *c, const int32_t *pos, int32_t *out)
{
    pick_args a = {logits, pos, c, 0, 0, 0, 0, NULL, out, NULL};
    pick(gpu_of(b), n, a);
}
