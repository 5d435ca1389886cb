/* markov.cu: the drafter's Markov term and its confidence head. */
#include "backend/cuda/mma.cuh"
#include "backend/cuda/view.cuh"

/* --- the Markov term of the drafter: logits += w2 . (row *prev of w1) --- */

static __global__ void table_row(wview w, const int32_t *prev, float *out, const int32_t *when, gpu_fault *fault)
{
    chain_wait();
    if (when && !*when)
        return;
    int token = *prev, u = threadIdx.x;
    if (token < 0 || token >= w.ne1) {
        if (u == 0 && fault->kind == FAULT_NONE)
            *fault = gpu_fault{FAULT_MARKOV, token, (int)w.ne1};
        token = 0;
    }
    const wrow row = row_of(w, 0, token);
    for (; 32 * u < w.ne0; u += blockDim.x) {
        float v[32];
        unit_values(w, row, u, v);
        for (int i = 0; i < 32 && 32 * u + i < w.ne0; i++)
            out[32 * u + i] = v[i];
    }
}

void gpu_markov(backend *b, const be_weight *w1, const be_weight *w2, const int32_t *prev, float *logits)
{
    gpu *g = gpu_of(b);
    float *row = (float *)gpu_scratch_get(g, G_HIDDEN, (size_t)w1->ne0 * sizeof *row);
    if (!row)
        return;
    GPU_CHAIN(g, table_row, 1, 64, 0, view_of(g, w1), prev, row, g->when, g->fault);
    be_linear job = {w2, row, logits, (int)w2->ne0, (int)w2->ne1, 1};
    gpu_linear_add(g, &job);
}

/* --- confidence: w . [hidden ; row prev of w1], one block per row, float64 --- */

static __global__ void confidence(wview w, wview w1, int d, const float *hidden, const int32_t *prev, float *out,
                                  const int32_t *when, gpu_fault *fault)
{
    __shared__ double room[32];
    chain_wait();
    if (when && !*when)
        return;
    int i = blockIdx.x, token = prev[i];
    if (token < 0 || token >= w1.ne1) {
        if (threadIdx.x == 0 && fault->kind == FAULT_NONE)
            *fault = gpu_fault{FAULT_MARKOV, token, (int)w1.ne1};
        token = 0;
    }
    const wrow row = row_of(w, 0, 0), markov = row_of(w1, 0, token);
    double sum = 0;
    for (int u = threadIdx.x; 32 * u < w.ne0; u += blockDim.x) {
        float v[32];
        unit_values(w, row, u, v);
        for (int k = 0; k < 32 && 32 * u + k < d; k++)
            sum = __fma_rn((double)v[k], (double)hidden[(int64_t)i * d + 32 * u + k], sum);
    }
    for (int u = threadIdx.x; 32 * u < w1.ne0; u += blockDim.x) {
        float v[32], x[32];
        unit_values(w1, markov, u, x);
        for (int k = 0; k < 32 && 32 * u + k < w1.ne0; k++) {
            int at = d + 32 * u + k;
            if (at % 32 == 0 || k == 0)
                unit_values(w, row, at / 32, v);
            sum = __fma_rn((double)v[at % 32], (double)x[k], sum);
        }
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        out[i] = (float)sum;
}

void gpu_confidence(backend *b, int n, const be_weight *w, const be_weight *w1, const float *hidden,
                    const int32_t *prev, float *out)
{
    gpu *g = gpu_of(b);
    if (!gpu_ok(g) || n <= 0)
        return;
    if (w->ne0 != b->dims.d + w1->ne0) {
        gpu_fail(g, "confidence head of width %lld, expected %lld", (long long)w->ne0,
                 (long long)(b->dims.d + w1->ne0));
        return;
    }
    GPU_CHAIN(g, confidence, n, GPU_THREADS, 0, view_of(g, w), view_of(g, w1), (int)b->dims.d, hidden, prev, out,
              g->when, g->fault);
}
