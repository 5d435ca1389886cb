/* norm.cu: RMS norms, partial rotation, the finishing of query and KV rows, taps. */
#include "backend/cuda/row.cuh"

static __global__ void __launch_bounds__(GPU_THREADS)
    norm_rows(const float *x, const float *w, float *y, int dim, float eps)
{
    __shared__ double room[32];
    const float *from = x + (int64_t)blockIdx.x * dim;
    float *to = y + (int64_t)blockIdx.x * dim;
    double sum = 0;
    for (int i = threadIdx.x; i < dim; i += blockDim.x)
        sum = __dadd_rn(sum, square(from[i]));
    float scale = (float)inverse_rms(block_sum(sum, room), dim, eps);
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        float v = __fmul_rn(from[i], scale);
        to[i] = w ? __fmul_rn(v, w[i]) : v;
    }
}

void gpu_norm(backend *b, int n, int dim, const float *x, const float *w, float *y)
{
    if (n > 0)
        GPU_LAUNCH(gpu_of(b), norm_rows, n, GPU_THREADS, 0, x, w, y, dim, b->dims.rms_eps);
}

/* One warp per head, GPU_WARPS heads of one row per block; the block's angles are made once. */
static __global__ void __launch_bounds__(GPU_THREADS)
    finish_heads(const int32_t *pos, const float *freq, float *q, int heads, int dim, int rope, float eps)
{
    GPU_DYNAMIC_SMEM(float2, cs);
    int lane = threadIdx.x % 32, h = (int)blockIdx.x * GPU_WARPS + threadIdx.x / 32, r = blockIdx.y;
    make_angles(cs, pos[r], freq, rope / 2);
    __syncthreads();
    if (h >= heads)
        return;
    float *x = q + ((int64_t)r * heads + h) * dim;
    double sum = 0;
    for (int i = lane; i < dim; i += 32)
        sum = __dadd_rn(sum, square(x[i]));
    float scale = (float)inverse_rms(warp_sum(sum), dim, eps);
    for (int i = lane; i < dim / 2; i += 32) {
        float2 v = make_float2(__fmul_rn(x[2 * i], scale), __fmul_rn(x[2 * i + 1], scale));
        int k = i - (dim - rope) / 2;
        if (k >= 0)
            v = rotated(v.x, v.y, cs[k].x, cs[k].y);
        x[2 * i] = v.x;
        x[2 * i + 1] = v.y;
    }
}

void gpu_q_finish(backend *b, const be_rows *r, const float *freq, float *q)
{
    const be_dims *m = &b->dims;
    if (r->n > 0)
        GPU_LAUNCH(gpu_of(b), finish_heads, dim3(gpu_blocks(m->heads, GPU_WARPS), r->n), GPU_THREADS,
                   (size_t)m->rope_dim / 2 * sizeof(float2), r->pos, freq, q, (int)m->heads, (int)m->head_dim,
                   (int)m->rope_dim, m->rms_eps);
}

/* One block per row, the row in shared memory. */
static __global__ void __launch_bounds__(GPU_THREADS)
    finish_kv(const int32_t *pos, const int32_t *seq, const float *norm, const float *freq, bool sim, float *kv,
              be_store ring, int dim, int rope, float eps)
{
    GPU_DYNAMIC_SMEM(float, row);
    __shared__ double room[32];
    int r = blockIdx.x;
    float *x = kv + (int64_t)r * dim;
    for (int i = threadIdx.x; i < dim; i += blockDim.x)
        row[i] = x[i];
    __syncthreads();
    row_norm(row, norm, dim, eps, room);
    row_rotate(row + dim - rope, pos[r], freq, rope / 2);
    if (sim)
        row_sim_fp8(row, dim - rope);
    float *to = ring.base ? ring_row(ring, seq[r], pos[r]) : NULL;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        x[i] = row[i];
        if (to)
            to[i] = row[i];
    }
}

void gpu_kv_finish(backend *b, const be_rows *r, const float *norm, const float *freq, bool sim, float *kv,
                   const be_store *ring)
{
    const be_dims *m = &b->dims;
    be_store none = {};
    if (r->n > 0)
        GPU_LAUNCH(gpu_of(b), finish_kv, r->n, GPU_THREADS, (size_t)m->head_dim * sizeof(float), r->pos, r->seq, norm,
                   freq, sim, kv, ring ? *ring : none, (int)m->head_dim, (int)m->rope_dim, m->rms_eps);
}

static __global__ void tap_rows(const int32_t *pos, const int32_t *seq, const float *streams, int s, int d, int slot,
                                be_store ring)
{
    int r = blockIdx.y, k = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (k >= d)
        return;
    const float *from = streams + (int64_t)r * s * d + k;
    float sum = from[0];
    for (int h = 1; h < s; h++)
        sum = __fadd_rn(sum, from[(int64_t)h * d]);
    ring_row(ring, seq[r], pos[r])[(int64_t)slot * d + k] = __fdiv_rn(sum, (float)s);
}

void gpu_tap(backend *b, const be_rows *r, const float *streams, int slot, const be_store *ring)
{
    int d = b->dims.d;
    gpu_settle(gpu_of(b));
    if (r->n > 0)
        GPU_LAUNCH(gpu_of(b), tap_rows, dim3(gpu_blocks(d, GPU_THREADS), r->n), GPU_THREADS, 0, r->pos, r->seq, streams,
                   (int)b->dims.streams, d, slot, *ring);
}

static __global__ void gather_rows(const int32_t *pos, const int32_t *seq, be_store ring, float *out)
{
    int r = blockIdx.y, k = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (k < ring.width)
        out[(int64_t)r * ring.width + k] = ring_row(ring, seq[r], pos[r])[k];
}

void gpu_gather(backend *b, const be_rows *r, const be_store *ring, float *out)
{
    if (r->n > 0)
        GPU_LAUNCH(gpu_of(b), gather_rows, dim3(gpu_blocks(ring->width, GPU_THREADS), r->n), GPU_THREADS, 0, r->pos,
                   r->seq, *ring, out);
}
