/* choose.cuh: which experts the rows of a narrow forward visit, and the visits by expert. */
#ifndef DS4_BACKEND_CUDA_CHOOSE_CUH
#define DS4_BACKEND_CUDA_CHOOSE_CUH

#include "backend/cuda/block.cuh"

typedef struct choose_side {
    nrows r;
    const float *logits, *bias;
    const int32_t *tid2eid;
    int32_t *ids;
    float *weights, scale;
    visit_groups *groups;
    int experts, used, vocab;
    gpu_fault *fault;
} choose_side;

DEV float expert_score(float l) { return __fsqrt_rn(l > 20.0f ? l : l < -20.0f ? expf(l) : log1pf(expf(l))); }

/* The warp's largest key below the lanes' used ones, lowest index first. key[i] belongs to expert 32 i + lane. */
DEV int take_best(uint32_t (&key)[BLOCK_EXPERTS / 32], int lane)
{
    uint32_t top = 0;
    int at = BLOCK_EXPERTS;
#pragma unroll
    for (int i = 0; i < BLOCK_EXPERTS / 32; i++)
        top = key[i] > top ? key[i] : top;
    top = __reduce_max_sync(FULL_WARP, top);
#pragma unroll
    for (int i = BLOCK_EXPERTS / 32 - 1; i >= 0; i--)
        at = key[i] == top ? 32 * i + lane : at;
    at = (int)__reduce_min_sync(FULL_WARP, (uint32_t)at);
#pragma unroll
    for (int i = 0; i < BLOCK_EXPERTS / 32; i++)
        key[i] = at == 32 * i + lane ? 0 : key[i];
    return at;
}

/* Experts of row r by one warp: ids to id[], weights to memory. p: room for the scores. NaN (key 0) only when nothing
 * else is left. */
DEV void choose_experts(const choose_side &a, int r, float *p, int *id, int lane)
{
    uint32_t key[BLOCK_EXPERTS / 32];
    float bias[BLOCK_EXPERTS / 32];
#pragma unroll
    for (int i = 0; i < BLOCK_EXPERTS / 32; i++) { /* one round trip */
        int e = 32 * i + lane;
        float s = e < a.experts ? __ldcg(a.logits + (int64_t)r * a.experts + e) : 0.0f;
        bias[i] = a.bias && e < a.experts ? a.bias[e] : 0.0f;
        key[i] = __float_as_uint(s);
    }
#pragma unroll
    for (int i = 0; i < BLOCK_EXPERTS / 32; i++) {
        int e = 32 * i + lane;
        float s = expert_score(__uint_as_float(key[i]));
        p[e] = s;
        s = __fadd_rn(s, bias[i]);
        key[i] = e < a.experts ? order_key(s) : 0; /* a NaN has 0 too, behind all numbers */
    }
    __syncwarp();
#pragma unroll 1
    for (int slot = 0; slot < a.used && !a.tid2eid; slot++) {
        int e = take_best(key, lane);
        if (lane == 0)
            id[slot] = e < a.experts ? e : 0;
    }
    if (a.tid2eid && lane < a.used) {
        int token = a.r.token[r];
        bool known = token >= 0 && token < a.vocab;
        int e = a.tid2eid[(int64_t)(known ? token : 0) * a.used + lane];
        if ((!known || e < 0 || e >= a.experts) && a.fault->kind == FAULT_NONE)
            *a.fault = known ? gpu_fault{FAULT_EXPERT, e, a.experts} : gpu_fault{FAULT_TOKEN, token, a.vocab};
        id[lane] = e < 0 || e >= a.experts ? 0 : e;
    }
    __syncwarp();
    float sum = 0;
#pragma unroll 1
    for (int s = 0; s < a.used; s++)
        sum = __fadd_rn(sum, p[id[s]]);
    if (lane < a.used) {
        a.ids[(int64_t)r * a.used + lane] = id[lane];
        a.weights[(int64_t)r * a.used + lane] = __fdiv_rn(__fmul_rn(a.scale, p[id[lane]]), sum);
    }
    __syncwarp();
}

/* id[visit] of all visits into groups. first, place: room. */
DEV void make_groups(visit_groups *out, const int *id, int visits, int *first)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < visits; i += blockDim.x) {
        int j = 0;
        while (id[j] != id[i])
            j++;
        first[i] = j;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < visits; i += blockDim.x) {
        int group = 0, rank = 0, total = 0;
        for (int j = 0; j < visits; j++) {
            group += first[j] == j && j < first[i];
            rank += j < i && first[j] == first[i];
            total += first[j] == first[i];
        }
        out->group[group].visit[rank] = i;
        if (first[i] == i) {
            out->group[group].expert = id[i];
            out->group[group].count = total;
        }
    }
    if (threadIdx.x == 0) {
        int groups = 0;
        for (int j = 0; j < visits; j++)
            groups += first[j] == j;
        out->count = groups;
    }
}

#endif
