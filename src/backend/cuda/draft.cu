/* draft.cu: choosing a token. */
#include "backend/cuda/gpu.cuh"
#include "backend/cuda/num.cuh"

enum { CHUNK = 2048 };

/* The position-keyed noise of base/noise.h. */
DEV uint64_t mix_bits(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

DEV float gumbel(uint64_t seed, uint32_t pos, uint32_t token)
{
    uint64_t h = mix_bits(seed + 0x9e3779b97f4a7c15ull * ((uint64_t)pos + 1));
    h = mix_bits(h ^ 0xd1342543de82ef95ull * ((uint64_t)token + 1)) | 1;
    float v = __fmul_rn(__ull2float_rn(h), 5.42101086242752217e-20f); /* 2^-64 */
    v = v < 1.0f ? v : 1.0f - 5.9604644775390625e-8f;
    return -logf(-log1pf(-v));
}

/* Block (chunk, r): the best candidate of a chunk; 0 if it holds only NaN and -infinity. */
static __global__ void __launch_bounds__(GPU_THREADS)
    pick_chunk(const float *logits, int vocab, float temp, uint64_t seed, const int32_t *pos, unsigned long long *best)
{
    __shared__ unsigned long long room[32];
    int r = blockIdx.y, from = (int)blockIdx.x * CHUNK, to = from + CHUNK < vocab ? from + CHUNK : vocab;
    unsigned long long top = 0;
    for (int t = from + (int)threadIdx.x; t < to; t += blockDim.x) {
        float v = logits[(int64_t)r * vocab + t];
        if (temp > 0)
            v = __fadd_rn(__fdiv_rn(v, temp), gumbel(seed, (uint32_t)pos[r], (uint32_t)t));
        unsigned long long key = ranked(order_key(v), (uint32_t)t);
        top = v > -INFINITY && key > top ? key : top;
    }
    top = block_max(top, room);
    if (threadIdx.x == 0)
        best[(int64_t)r * gridDim.x + blockIdx.x] = top;
}

/* One warp per row. */
static __global__ void pick_row(const unsigned long long *best, int chunks, int32_t *out)
{
    unsigned long long top = 0;
    for (int k = threadIdx.x; k < chunks; k += 32) {
        unsigned long long v = best[(int64_t)blockIdx.x * chunks + k];
        top = v > top ? v : top;
    }
    top = warp_max(top);
    if (threadIdx.x == 0)
        out[blockIdx.x] = top ? (int32_t)ranked_index(top) : 0;
}

void gpu_pick(backend *b, int n, const float *logits, float temp, uint64_t seed, const int32_t *pos, int32_t *out)
{
    gpu *g = gpu_of(b);
    int vocab = b->dims.vocab, chunks = (int)gpu_blocks(vocab, CHUNK);
    if (!gpu_ok(g) || n <= 0)
        return;
    unsigned long long *best =
        (unsigned long long *)gpu_scratch_get(g, G_KEY, (size_t)GPU_MAX_ROWS * (size_t)chunks * sizeof *best);
    if (!best)
        return;
    GPU_LAUNCH(g, pick_chunk, dim3(chunks, n), GPU_THREADS, 0, logits, vocab, temp, seed, pos, best);
    GPU_LAUNCH(g, pick_row, n, 32, 0, (const unsigned long long *)best, chunks, out);
}
