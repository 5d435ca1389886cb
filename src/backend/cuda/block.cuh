/* block.cuh: the fused block: its intermediates and its phases (block.cu runs them in order). */
#ifndef DS4_BACKEND_CUDA_BLOCK_CUH
#define DS4_BACKEND_CUDA_BLOCK_CUH

#include "backend/cuda/products.cuh"

enum { BLOCK_EXPERTS = 256 /* most routed experts */, BLOCK_VISITS = 16 * 16 /* BE_NARROW * GPU_MAX_USED */ };

/* Routed visits (row * used + slot) by expert, experts in order of first visit. */
typedef struct visit_group {
    int expert, count;
    int visit[BE_NARROW]; /* a row visits an expert once */
} visit_group;

typedef struct visit_groups {
    int count;
    visit_group group[BLOCK_VISITS];
} visit_groups;

/* Device intermediates of a slice of at most BE_NARROW rows; one piece of scratch (G_BLOCK). */
typedef struct block_room {
    float *mix, *out; /* [GPU_MAX_ROWS][24], [GPU_MAX_ROWS][d]: outlive the block until the streams are finished */
    float *part;      /* hyper_dots */
    mm_forms x;       /* input of a sublayer */
    float *qa, *kv, *comp_kv, *comp_gate, *index_kv, *index_gate, *index_w, *q, *index_q;
    mm_forms qn; /* normed query rank: int8 and halves */
    int32_t *sel;
    qrows attn, low;         /* attention result; out_a's */
    float *logits, *weights; /* router [n][E]; [n][used] */
    int32_t *ids;            /* [n][used] */
    visit_groups *groups;
    float *hidden, *shidden; /* [visits][F], [n][F] */
    qrows mid, smid;         /* quantised: routed by visit, shared by row */
    int *counters;           /* zero between launches */
} block_room;

enum { COUNT_QA = 0, COUNT_ROUTER = 1, COUNT_SHARED = 8 /* [F / 32] */ };

/* True in every thread of the last of `blocks` blocks that come here; what they wrote before is then visible. The
 * counter is zero again afterwards. Called by all threads. */
DEV bool last_block(int *counter, int blocks, int *flag)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        int before = atomicAdd(counter, 1);
        *flag = before == blocks - 1;
        if (*flag)
            *counter = 0;
    }
    __syncthreads();
    if (*flag)
        __threadfence();
    return *flag;
}

/* Whether the hyper-connection's shapes and types have kernels. */
bool gpu_hyper_fits(const gpu *g, const be_hc *hc);
size_t gpu_hyper_part_bytes(const gpu *g);
/* The connection before a sublayer: finishes the one before (out, mix; out NULL: nothing to finish), then writes pre,
 * post and raw comb to mix and the forms of the normed input. */
void gpu_hyper(gpu *g, const nrows &r, float *streams, const be_hc *hc, const float *norm, const float *out, float *mix,
               float *part, const mm_forms *f);
void gpu_hyper_head(gpu *g, int n, float *streams, const be_hc *hc, const float *norm, const float *out,
                    const float *mix, float *part, float *y, float *x);
/* Sinkhorn on mix[row][8..23] by a warp. */
DEV void row_comb(float *mix, int r, int iterations, float eps)
{
    int lane = threadIdx.x % 32;
    float *m = mix + r * 24 + 8;
    float v = lane < 16 ? m[lane] : 0.0f, top = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, 1)), sum;
    top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
    v = expf(__fsub_rn(v, top));
    for (int i = 0; i < 2 * iterations; i++) { /* rows, columns, rows, ...: the first row step is the softmax */
        int near = i % 2 ? 4 : 1;
        sum = __fadd_rn(v, __shfl_xor_sync(FULL_WARP, v, near));
        sum = __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 2 * near));
        v = i == 0 ? __fadd_rn(__fdiv_rn(v, sum), eps) : __fdiv_rn(v, __fadd_rn(sum, eps));
    }
    if (lane < 16)
        m[lane] = v;
}

/* The same on all rows by a block. */
DEV void hyper_comb(float *mix, int n, int iterations, float eps)
{
    for (int r = threadIdx.x / 32; r < n; r += MM_WARPS)
        row_comb(mix, r, iterations, eps);
}

/* --- phases --- */
void gpu_phase_input(gpu *g, const nrows &r, const be_block *w, const be_place *p, const block_room *k);
void gpu_phase_query(gpu *g, const nrows &r, const be_block *w, const be_place *p, const block_room *k);
void gpu_phase_route(gpu *g, const nrows &r, const be_block *w, const block_room *k);
void gpu_phase_experts(gpu *g, const nrows &r, const be_block *w, const be_place *p, const block_room *k);
/* Whether the experts' types and shapes have kernels. */
bool gpu_experts_fit(const gpu *g, const be_block *w);

#endif
