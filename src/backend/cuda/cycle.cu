/* cycle.cu: what a cycle decides, so that the host need not look before it is over: whether the first confidence lets
 * the proposal go on (gate), how many drafts to verify (plan), how many hold (judge). One warp each; the decisions are
 * those of backend/plan.h. */
#include "backend/cuda/gpu.cuh"
#include "backend/cuda/mma.cuh"

DEV uint64_t device_clock()
{
#if defined(__CUDA_ARCH__)
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
#elif defined(__CUDACC__)
    return 0; /* never compiled into anything */
#else
    return emu_clock();
#endif
}

static __global__ void stamp(be_cycle *c, int i)
{
    chain_wait();
    c->stamp[i] = device_clock();
}

static __global__ void gate(be_cycle *c)
{
    chain_wait();
    c->go = !plan_gated(c->in.rule.gate, plan_sigmoid(c->logit[0]));
    c->stamp[3] = device_clock();
}

static __global__ void plan(be_cycle *c, int n)
{
    __shared__ float conf[PLAN_ROWS];
    __shared__ int k;
    const int lane = threadIdx.x;
    chain_wait();
    if (lane < n)
        conf[lane] = plan_sigmoid(c->logit[lane]);
    __syncthreads();
    if (lane == 0) {
        c->invalid = 0;
        c->gated = !c->go;
        k = c->go ? plan_choose(&c->in.rule, n, conf) : 0;
        k = plan_usable(c->in.draft + 1, k, c->in.eos, c->in.vocab, &c->invalid);
        c->k = k;
        c->wanted = k + 1;
        c->stamp[6] = device_clock();
    }
    __syncthreads();
    if (lane < n)
        c->in.token[0][1 + lane] = lane < k ? c->in.draft[1 + lane] : c->in.draft[0];
}

static __global__ void judge(be_cycle *c, be_record *out)
{
    chain_wait();
    const int lane = threadIdx.x, k = c->in.most > 0 ? c->k : 0;
    if (lane <= k)
        out->choice[lane] = c->choice[lane];
    if (lane == 0) {
        int a = 0;
        while (a < k && c->choice[a] == c->in.draft[a + 1])
            a++;
        out->k = k;
        out->accepted = a;
        out->gated = c->in.most > 0 && c->gated;
        out->invalid = c->in.most > 0 ? c->invalid : 0;
        c->stamp[7] = device_clock();
    }
    __syncthreads();
    if (lane < PLAN_STAMPS) { /* a stamp that this cycle did not set is older than its first */
        const uint64_t start = c->stamp[0], t = c->stamp[lane + 1];
        out->ns[lane] = t > start ? (uint32_t)(t - start) : 0;
    }
    if (lane == 0)
        out->serial = c->in.serial;
}

void gpu_stamp(backend *b, be_cycle *c, int i) { GPU_CHAIN(gpu_of(b), stamp, 1, 1, 0, c, i); }
void gpu_when(backend *b, const int32_t *flag) { gpu_of(b)->when = flag; }
void gpu_gate(backend *b, be_cycle *c) { GPU_CHAIN(gpu_of(b), gate, 1, 1, 0, c); }

void gpu_plan(backend *b, int n, be_cycle *c)
{
    if (n > PLAN_MOST)
        gpu_fail(gpu_of(b), "a block of %d drafts, at most %d are supported", n, PLAN_MOST);
    GPU_CHAIN(gpu_of(b), plan, 1, 32, 0, c, n);
}

void gpu_judge(backend *b, be_cycle *c, be_record *out) { GPU_CHAIN(gpu_of(b), judge, 1, 32, 0, c, out); }
