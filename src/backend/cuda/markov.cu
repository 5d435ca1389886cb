/* markov.cu: the drafter's Markov term, alone and as a chain of drafts, and its confidence head. */
#include "backend/cuda/draft.cuh"
#include "backend/cuda/mm_block.cuh"
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

/* --- the chain, two launches for each draft: logits with the best candidate of every block, then the choice, which
 * also prepares the next row of w1. Sums and choices are those of markov and pick. --- */

enum { CHAIN_RANK = 1024 /* most numbers of a Markov row */ };

typedef struct chain_args {
    mm_job job; /* w2 and its input */
    wview w1;
    mm_forms forms; /* the same input, to be written */
    const be_cycle *c;
    const int32_t *prev, *pos; /* token whose row is next; position that the choice will take */
    float *logits;
    unsigned long long *best; /* [blocks] */
    int blocks;
    int32_t *out; /* the choice */
    const int32_t *when;
    gpu_fault *fault;
} chain_args;

template <bool FAST>
static __global__ void __launch_bounds__(MM_THREADS, MM_RESIDENT) chain_logits(const __grid_constant__ chain_args a)
{
    using R = mm_room<1, 1>;
    GPU_DYNAMIC_SMEM(R, s);
    __shared__ unsigned long long room[32];
    const mm_job &j = a.job;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = MM_WARPS / j.splits;
    const int tile0 = (int)blockIdx.x * tiles, tile = tile0 + warp / j.splits;
    float acc[1][4] = {};
    if (a.when) {
        chain_wait();
        if (!*a.when)
            return;
    }
    if (tile < j.w.tiles)
        mm_any<1, 1, FAST>(j, tile, warp % j.splits, 1, lane, s->ring[warp], acc);
    else
        chain_wait();
    chain_next();
    __syncthreads();
    put_part<1>(s->part, warp, lane, acc);
    __syncthreads();
    unsigned long long top = 0;
    for (int v = threadIdx.x; v < tiles * 128; v += MM_THREADS) {
        int row, col, at = tile0 + v / 128;
        float y = sum_parts<1>(s->part, v / 128 * j.splits, j.splits, v % 128, &row, &col);
        if (at >= j.w.tiles || col > 0)
            continue;
        const int token = TILE_ROWS * at + row;
        y = __fadd_rn(a.logits[token], y);
        a.logits[token] = y;
        unsigned long long key = candidate(y, a.c->in.temp, a.c->in.seed, (uint32_t)*a.pos, token);
        top = key > top ? key : top;
    }
    top = block_max(top, room);
    if (threadIdx.x == 0)
        a.best[blockIdx.x] = top;
}

/* One block. reduce: chooses from the candidates; otherwise the token is *prev. last: no row is needed any more. */
static __global__ void __launch_bounds__(GPU_THREADS)
    chain_token(const __grid_constant__ chain_args a, bool reduce, bool last)
{
    __shared__ unsigned long long room[32];
    __shared__ float row[CHAIN_RANK];
    chain_wait();
    if (a.when && !*a.when)
        return;
    int32_t token;
    if (reduce) {
        unsigned long long top = 0;
        for (int i = threadIdx.x; i < a.blocks; i += GPU_THREADS)
            top = a.best[i] > top ? a.best[i] : top;
        token = chosen(block_max(top, room));
        if (threadIdx.x == 0)
            *a.out = token;
    } else
        token = *a.prev;
    if (last)
        return;
    if (token < 0 || token >= a.w1.ne1) {
        if (threadIdx.x == 0 && a.fault->kind == FAULT_NONE)
            *a.fault = gpu_fault{FAULT_MARKOV, token, (int)a.w1.ne1};
        token = 0;
    }
    const wrow from = row_of(a.w1, 0, token);
    for (int u = threadIdx.x; 32 * u < CHAIN_RANK; u += GPU_THREADS) {
        float v[32] = {};
        if (32 * u < a.w1.ne0)
            unit_values(a.w1, from, u, v);
        for (int i = 0; i < 32; i++)
            row[32 * u + i] = v[i];
    }
    __syncthreads();
    for (int at = 256 * (int)(threadIdx.x / 32); at < a.w1.ne0; at += 256 * GPU_WARPS) {
        const float *v = row + at + 8 * (threadIdx.x % 32);
        warp_forms(a.forms, 0, at, {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]}, a.w1.ne0 - at, threadIdx.x % 32);
    }
}

/* Scratch for the row's forms; false after a failure. */
static bool chain_forms(gpu *g, const be_weight *w2, mm_forms *f)
{
    const int n = (int)w2->ne0, group = unit_group(w2->type);
    char *at = (char *)gpu_scratch_get(g, G_HIDDEN, (size_t)n * 8 + 256);
    qrows *q = group == 32 ? &f->q32 : &f->q256;
    if (!at)
        return false;
    if (group == 0) {
        f->h = hrows{(uint4 *)at, n};
        return true;
    }
    q->ld = n;
    q->group = group;
    q->q = (int8_t *)at;
    q->d = (float *)(at + n);
    q->sum = group == 256 ? (int16_t *)(at + 2 * n) : NULL;
    return true;
}

bool gpu_chain(backend *b, int n, const be_weight *w1, const be_weight *w2, be_cycle *c, float *logits)
{
    gpu *g = gpu_of(b);
    chain_args a = {};
    mm_args plan = {};
    if (g->act != BE_ACT_Q8 || !gpu_is_tiled(g, w2) || w1->ne0 > CHAIN_RANK || w1->ne0 != w2->ne0 ||
        w2->ne1 != b->dims.vocab)
        return false;
    if (!gpu_ok(g) || !chain_forms(g, w2, &a.forms))
        return true;
    plan.k = plan.n = 1;
    plan.job[0] = mm_plain(w2, &a.forms, logits, (int)w2->ne1);
    a.blocks = mm_plan(&plan);
    a.job = plan.job[0];
    a.w1 = view_of(g, w1);
    a.c = c;
    a.when = g->when;
    a.fault = g->fault;
    a.best = (unsigned long long *)gpu_scratch_get(g, G_KEY, (size_t)a.blocks * sizeof *a.best);
    if (!a.best)
        return true;
    auto *kernel = mm_fast(&plan) ? chain_logits<true> : chain_logits<false>;
    a.prev = &c->in.draft[0];
    GPU_CHAIN(g, chain_token, 1, GPU_THREADS, 0, a, false, false);
    for (int i = 0; i < n; i++) {
        a.pos = &c->in.draft_pos[i];
        a.logits = logits + (size_t)i * (size_t)b->dims.vocab;
        a.out = &c->in.draft[i + 1];
        mm_launch<mm_room<1, 1>>(g, "chain_logits", kernel, a.blocks, a);
        GPU_CHAIN(g, chain_token, 1, GPU_THREADS, 0, a, true, i + 1 == n);
    }
    return true;
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
