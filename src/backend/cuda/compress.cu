/* compress.cu: the compressor. Rows wait in a ring by position; a compressed row is pooled from the ring when its
 * window ends. */
#include "backend/cuda/row.cuh"

static __global__ void put_rows(const int32_t *pos, const int32_t *seq, int ratio, const float *kv, const float *gate,
                                const float *ape, be_store ring)
{
    int w = ring.width / 2, r = blockIdx.y, k = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (k >= w)
        return;
    float *row = ring_row(ring, seq[r], pos[r]);
    row[k] = kv[(int64_t)r * w + k];
    row[w + k] = __fadd_rn(gate[(int64_t)r * w + k], ape[(int64_t)(pos[r] % ratio) * w + k]);
}

void gpu_comp_put(backend *b, const be_rows *r, int ratio, const float *kv, const float *gate, const float *ape,
                  const be_store *ring)
{
    if (r->n > 0)
        GPU_LAUNCH(gpu_of(b), put_rows, dim3(gpu_blocks(ring->width / 2, GPU_THREADS), r->n), GPU_THREADS, 0, r->pos,
                   r->seq, ratio, kv, gate, ape, *ring);
}

typedef struct pool_args {
    const int32_t *pos, *seq;
    be_store ring, out;
    const float *norm, *freq;
    int ratio, rope;
    float eps;
    bool index, sim;
} pool_args;

/* Column k of window s: softmax over its rows in order of position. With overlap: lane A (first half of the columns) of
 * the previous window, then lane B of its own. */
DEV float pool_column(const pool_args &a, int seq, int s, int k)
{
    int w = a.ring.width / 2, d = a.out.width, own = s * a.ratio;
    bool overlap = w == 2 * d;
    int from = overlap && s > 0 ? own - a.ratio : own, to = own + a.ratio;
    float top = 0, sum = 0, acc = 0;
    for (int p = from; p < to; p++) {
        float z = ring_row(a.ring, seq, p)[(overlap && p >= own ? d : 0) + w + k];
        top = p == from || z > top ? z : top;
    }
    for (int p = from; p < to; p++) {
        const float *row = ring_row(a.ring, seq, p) + (overlap && p >= own ? d : 0) + k;
        float e = expf(__fsub_rn(row[w], top));
        sum = __fadd_rn(sum, e);
        acc = __fadd_rn(acc, __fmul_rn(e, row[0]));
    }
    return __fdiv_rn(acc, sum);
}

/* One block per row of the forward; rows that end no window leave at once. */
static __global__ void __launch_bounds__(GPU_THREADS) pool_rows(const pool_args a)
{
    GPU_DYNAMIC_SMEM(float, row);
    __shared__ double room[32];
    int r = blockIdx.x, pos = a.pos[r], seq = a.seq[r], d = a.out.width, s = pos / a.ratio;
    if ((pos + 1) % a.ratio)
        return;
    for (int k = threadIdx.x; k < d; k += blockDim.x)
        row[k] = pool_column(a, seq, s, k);
    __syncthreads();
    row_norm(row, a.norm, d, a.eps, room);
    row_rotate(row + d - a.rope, s * a.ratio, a.freq, a.rope / 2);
    if (a.sim && !a.index)
        row_sim_fp8(row, d - a.rope);
    if (a.sim && a.index && threadIdx.x < 32) {
        warp_hadamard(row, d);
        warp_sim_fp4(row, d);
    }
    __syncthreads();
    float *to = array_row(a.out, seq, s);
    for (int k = threadIdx.x; k < d; k += blockDim.x)
        to[k] = row[k];
}

void gpu_comp_pool(backend *b, const be_rows *r, int ratio, const be_store *ring, const float *norm, const float *freq,
                   bool index, bool sim, const be_store *out)
{
    pool_args a = {r->pos, r->seq, *ring, *out, norm, freq, ratio, (int)b->dims.rope_dim, b->dims.rms_eps, index, sim};
    if (r->n > 0)
        GPU_LAUNCH(gpu_of(b), pool_rows, r->n, GPU_THREADS, (size_t)out->width * sizeof(float), a);
}
