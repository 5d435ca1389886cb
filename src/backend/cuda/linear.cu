/* linear.cu: several independent products over the same rows, in one launch. A warp makes one output of every row. */
#include "backend/cuda/dot.cuh"

enum { MAX_JOBS = 8 };

typedef struct lin_job {
    wview w;
    aview a;
    float *y;
    int ldy, groups, per_group; /* outputs per group of inputs */
    int first;                  /* first block */
} lin_job;

typedef struct lin_args {
    lin_job job[MAX_JOBS];
    int k, n;
    bool add; /* y += instead of y = */
} lin_args;

template <int N, bool EXACT>
static __global__ void __launch_bounds__(GPU_THREADS, blocks_for(N)) products(const __grid_constant__ lin_args a)
{
    int lane = threadIdx.x % 32, j = 0;
    while (j + 1 < a.k && (int)blockIdx.x >= a.job[j + 1].first)
        j++;
    const lin_job &job = a.job[j];
    int64_t o = ((int64_t)blockIdx.x - job.first) * GPU_WARPS + threadIdx.x / 32;
    if (o >= job.w.ne1)
        return;
    const uint8_t *row = row_of(job.w, 0, o);
    int part = (int)(o / job.per_group);
    for (int r0 = 0; r0 < a.n; r0 += N) {
        rowset<N> rows;
        float acc[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            rows.r[i] = (r0 + i < a.n ? r0 + i : a.n - 1) * job.groups + part;
        dot_rows<N, EXACT>(job.w, row, job.a, rows, lane, acc);
        float v = lane_value<N>(acc, lane);
        if (lane < N && r0 + lane < a.n) {
            float *y = job.y + (int64_t)(r0 + lane) * job.ldy + o;
            *y = a.add ? __fadd_rn(*y, v) : v;
        }
    }
}

static void launch(gpu *g, const lin_args &a, int blocks)
{
    auto *kernel = g->act == BE_ACT_FLOAT ? products<1, true>
                   : a.n == 1             ? products<1, false>
                   : a.n == 2             ? products<2, false>
                   : a.n <= 4             ? products<4, false>
                                          : products<8, false>;
    GPU_LAUNCH(g, kernel, blocks, GPU_THREADS, 0, a);
}

/* As many of the jobs as one launch takes; returns their number, 0 after a failure. */
static int run_jobs(gpu *g, int n, const be_linear *jobs, int k, bool add)
{
    lin_args a = {};
    act_set set = {};
    int input[MAX_JOBS], blocks = 0;
    for (; a.k < k && a.k < MAX_JOBS; a.k++) {
        const be_linear *j = &jobs[a.k];
        input[a.k] = act_add(&set, act_group(g, j->w->type), j->x, j->ldx, j->w->ne0, j->groups);
        if (input[a.k] < 0)
            break;
    }
    if (!act_make(g, &set, n, 1, G_ACT))
        return 0;
    for (int i = 0; i < a.k; i++) {
        const be_linear *j = &jobs[i];
        a.job[i] =
            lin_job{view_of(g, j->w), set.v[input[i]], j->y, j->ldy, j->groups, (int)(j->w->ne1 / j->groups), blocks};
        blocks += (int)gpu_blocks(j->w->ne1, GPU_WARPS);
    }
    a.n = n;
    a.add = add;
    launch(g, a, blocks);
    return gpu_ok(g) ? a.k : 0;
}

void gpu_linear(backend *b, int n, const be_linear *jobs, int k)
{
    gpu *g = gpu_of(b);
    for (int done; gpu_ok(g) && n > 0 && k > 0; jobs += done, k -= done)
        if (!(done = run_jobs(g, n, jobs, k, false)))
            return;
}

/* --- the Markov term of the drafter: logits += w2 . (row *prev of w1) --- */

static __global__ void table_row(wview w, const int32_t *prev, float *out, gpu_fault *fault)
{
    int token = *prev, u = threadIdx.x;
    if (token < 0 || token >= w.ne1) {
        if (u == 0 && fault->kind == FAULT_NONE)
            *fault = gpu_fault{FAULT_MARKOV, token, (int)w.ne1};
        token = 0;
    }
    const uint8_t *row = row_of(w, 0, token);
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
    GPU_LAUNCH(g, table_row, 1, 64, 0, view_of(g, w1), prev, row, g->fault);
    be_linear job = {w2, row, logits, (int)w2->ne0, (int)w2->ne1, 1};
    run_jobs(g, 1, &job, 1, true);
}

/* --- confidence: w . [hidden ; row prev of w1], one block per row, float64 --- */

static __global__ void confidence(wview w, wview w1, int d, const float *hidden, const int32_t *prev, float *out,
                                  gpu_fault *fault)
{
    __shared__ double room[32];
    int i = blockIdx.x, token = prev[i];
    if (token < 0 || token >= w1.ne1) {
        if (threadIdx.x == 0 && fault->kind == FAULT_NONE)
            *fault = gpu_fault{FAULT_MARKOV, token, (int)w1.ne1};
        token = 0;
    }
    const uint8_t *row = row_of(w, 0, 0), *markov = row_of(w1, 0, token);
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
    GPU_LAUNCH(g, confidence, n, GPU_THREADS, 0, view_of(g, w), view_of(g, w1), (int)b->dims.d, hidden, prev, out,
               g->fault);
}
