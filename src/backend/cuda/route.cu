/* route.cu: which experts a token visits, and their weights. */
#include "backend/cuda/dot.cuh"

/* One warp per (expert, row): the logit in float64. */
static __global__ void __launch_bounds__(GPU_THREADS) gate_logits(wview gate, const float *x, int d, double *logits)
{
    int e = (int)blockIdx.x * GPU_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.y;
    if (e >= gate.ne1)
        return;
    double v = warp_sum(dot_double(gate, row_of(gate, 0, e), x + (int64_t)r * d, lane, 32));
    if (lane == 0)
        logits[(int64_t)r * gate.ne1 + e] = v;
}

/* sqrt(softplus(logit)); logit and softplus are rounded to float32, as the model has them, each from float64 */
DEV float router_score(double logit)
{
    double l = (double)(float)logit;
    return __fsqrt_rn((float)(l > 20 ? l : l < -20 ? exp(l) : log1p(exp(l))));
}

typedef struct route_args {
    const double *logits;
    const float *bias;
    const int32_t *tid2eid, *token;
    int32_t *ids;
    float *weights, scale;
    int experts, used, vocab;
    gpu_fault *fault;
} route_args;

/* The `used` largest of p + bias, best first, ties to the lower index; NaN only when nothing else is left. */
DEV void choose(const route_args &a, const float *p, int *id, unsigned long long *room)
{
    for (int slot = 0; slot < a.used; slot++) {
        unsigned long long best = 0;
        for (int e = threadIdx.x; e < a.experts; e += blockDim.x) {
            bool taken = false;
            for (int s = 0; s < slot; s++)
                taken |= id[s] == e;
            unsigned long long key = ranked(order_key(a.bias ? __fadd_rn(p[e], a.bias[e]) : p[e]), (uint32_t)e);
            best = !taken && key > best ? key : best;
        }
        best = block_max(best, room);
        if (threadIdx.x == 0)
            id[slot] = (int)ranked_index(best);
        __syncthreads();
    }
}

DEV void from_table(const route_args &a, int token, int *id)
{
    if (threadIdx.x == 0 && (token < 0 || token >= a.vocab)) {
        if (a.fault->kind == FAULT_NONE)
            *a.fault = gpu_fault{FAULT_TOKEN, token, a.vocab};
    }
    if ((int)threadIdx.x < a.used) {
        bool known = token >= 0 && token < a.vocab;
        int e = a.tid2eid[(int64_t)(known ? token : 0) * a.used + threadIdx.x];
        if (e < 0 || e >= a.experts) {
            if (a.fault->kind == FAULT_NONE)
                *a.fault = gpu_fault{FAULT_EXPERT, e, a.experts};
            e = 0;
        }
        id[threadIdx.x] = e;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(GPU_THREADS) pick_experts(const route_args a)
{
    GPU_DYNAMIC_SMEM(float, p); /* [experts] */
    __shared__ int id[GPU_MAX_USED];
    __shared__ unsigned long long room[32];
    int r = blockIdx.x, t = threadIdx.x;
    for (int e = t; e < a.experts; e += blockDim.x)
        p[e] = router_score(a.logits[(int64_t)r * a.experts + e]);
    __syncthreads();
    if (a.tid2eid)
        from_table(a, a.token[r], id);
    else
        choose(a, p, id, room);
    if (t >= a.used)
        return;
    double sum = 0;
    for (int s = 0; s < a.used; s++)
        sum = __dadd_rn(sum, (double)p[id[s]]);
    a.ids[(int64_t)r * a.used + t] = id[t];
    a.weights[(int64_t)r * a.used + t] = (float)((double)a.scale * (double)p[id[t]] / sum);
}

void gpu_route(backend *b, const be_rows *r, const float *x, const be_weight *gate, const float *bias,
               const int32_t *tid2eid, int32_t *ids, float *weights)
{
    gpu *g = gpu_of(b);
    const be_dims *m = &b->dims;
    if (!gpu_ok(g) || r->n <= 0)
        return;
    if (m->used > GPU_MAX_USED || m->experts > GPU_MAX_EXPERTS || m->used > m->experts || gate->ne1 != m->experts) {
        gpu_fail(g, "%d of %d experts (router of %lld), at most %d of %d are supported", m->used, m->experts,
                 (long long)gate->ne1, (int)GPU_MAX_USED, (int)GPU_MAX_EXPERTS);
        return;
    }
    double *logits = (double *)gpu_scratch_get(g, G_DOT, (size_t)GPU_MAX_ROWS * (size_t)m->experts * sizeof *logits);
    if (!logits)
        return;
    GPU_LAUNCH(g, gate_logits, dim3(gpu_blocks(m->experts, GPU_WARPS), r->n), GPU_THREADS, 0, view_of(g, gate), x,
               (int)m->d, logits);
    route_args a = {logits,          bias,         tid2eid,       r->token, ids, weights, m->route_scale,
                    (int)m->experts, (int)m->used, (int)m->vocab, g->fault};
    GPU_LAUNCH(g, pick_experts, r->n, GPU_THREADS, (size_t)m->experts * sizeof(float), a);
}
