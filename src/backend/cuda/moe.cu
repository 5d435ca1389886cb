/* moe.cu: routed and shared experts. Visits (row, slot) are grouped by expert, so that each distinct expert is read once.
 *
 *   hidden[visit] = silu(min(gate x, clamp)) * clip(up x, clamp) * weight
 *   out[row]      = sum over slots, in order, of down hidden[row][slot], then of the shared expert
 *
 * Visits 0..n*used-1 are routed, the n behind them belong to the shared expert. */
#include "backend/cuda/dot.cuh"

enum { MAX_VISITS = GPU_MAX_ROWS * GPU_MAX_USED, GROUP_THREADS = 256 };

/* Routed visits by expert, experts in order of first visit. */
typedef struct moe_groups {
    int count;
    int expert[MAX_VISITS], start[MAX_VISITS + 1]; /* visits of group i: visit[start[i]..start[i+1]) */
    int visit[MAX_VISITS];
} moe_groups;

static __global__ void group_visits(const int32_t *ids, int visits, int experts, moe_groups *out, gpu_fault *fault)
{
    __shared__ int id[MAX_VISITS], first[MAX_VISITS];
    for (int i = threadIdx.x; i < visits; i += blockDim.x) {
        int e = ids[i];
        if (e < 0 || e >= experts) {
            if (fault->kind == FAULT_NONE)
                *fault = gpu_fault{FAULT_EXPERT, e, experts};
            e = 0;
        }
        id[i] = e;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < visits; i += blockDim.x) {
        int j = 0;
        while (id[j] != id[i])
            j++;
        first[i] = j;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < visits; i += blockDim.x) {
        int group = 0, before = 0, rank = 0;
        for (int j = 0; j < visits; j++) {
            group += first[j] == j && j < first[i];
            before += first[j] < first[i];
            rank += j < i && first[j] == first[i];
        }
        out->visit[before + rank] = i;
        if (first[i] == i) {
            out->expert[group] = id[i];
            out->start[group] = before;
        }
    }
    if (threadIdx.x == 0) {
        int groups = 0;
        for (int j = 0; j < visits; j++)
            groups += first[j] == j;
        out->count = groups;
        out->start[groups] = visits;
    }
}

typedef struct moe_args {
    wview gate, up, down, sgate, sup, sdown;
    aview in, shared_in, mid, shared_mid;
    const moe_groups *groups;
    const float *weights;
    float *hidden, *out;
    float clamp, sclamp;
    int n, used, ff, d;
} moe_args;

/* Up to N of the visits at `list` (NULL: the shared expert, whose visits are the rows). */
template <int N> DEV rowset<N> take_visits(const int *list, int at, int count)
{
    rowset<N> v;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int k = at + (i < count ? i : count - 1);
        v.r[i] = list ? list[k] : k;
    }
    return v;
}

DEV float swiglu(float g, float u, float clamp)
{
    g = g > clamp ? clamp : g;
    u = u > clamp ? clamp : u < -clamp ? -clamp : u;
    return __fmul_rn(__fdiv_rn(g, __fadd_rn(1.0f, expf(-g))), u);
}

/* One hidden number of `count` <= N visits. */
template <int N> DEV void hidden_pass(const moe_args &a, bool shared, int64_t expert, int f, const int *list, int at, int count)
{
    int lane = threadIdx.x % 32;
    const wview &gate = shared ? a.sgate : a.gate, &up = shared ? a.sup : a.up;
    const aview &in = shared ? a.shared_in : a.in;
    rowset<N> visit = take_visits<N>(list, at, count), rows;
    float g[N], u[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        rows.r[i] = shared ? visit.r[i] : visit.r[i] / a.used;
    dot_rows<N>(gate, row_of(gate, expert, f), in, rows, lane, g);
    dot_rows<N>(up, row_of(up, expert, f), in, rows, lane, u);
    float gv = lane_value<N>(g, lane), uv = lane_value<N>(u, lane);
    if (lane >= count)
        return;
    int k = list ? list[at + lane] : at + lane;
    float weight = shared ? 1.0f : a.weights[k];
    int64_t to = shared ? (int64_t)a.n * a.used + k : k;
    a.hidden[to * a.ff + f] = __fmul_rn(swiglu(gv, uv, shared ? a.sclamp : a.clamp), weight);
}

/* Passes of at most MAXN visits over `total` of them; the smallest instance that fits. Which one does not touch the bits. */
#define MOE_PASSES(MAXN, total, pass, ...)              \
    for (int at = 0, left; at < (total); at += (MAXN)) { \
        left = (total) - at < (MAXN) ? (total) - at : (MAXN); \
        if (MAXN > 4 && left > 4)                       \
            pass<MAXN>(__VA_ARGS__, at, left);          \
        else if (MAXN > 2 && left > 2)                  \
            pass<(MAXN < 4 ? MAXN : 4)>(__VA_ARGS__, at, left); \
        else if (MAXN > 1 && left > 1)                  \
            pass<(MAXN < 2 ? MAXN : 2)>(__VA_ARGS__, at, left); \
        else                                            \
            pass<1>(__VA_ARGS__, at, left);             \
    }

/* Block row 0 is the shared expert, block row i + 1 routed group i. */
template <int MAXN>
static __global__ void __launch_bounds__(GPU_THREADS) hidden_rows(const __grid_constant__ moe_args a)
{
    int f = (int)blockIdx.x * GPU_WARPS + threadIdx.x / 32, group = (int)blockIdx.y - 1;
    bool shared = group < 0;
    if (f >= a.ff || (!shared && group >= a.groups->count))
        return;
    int from = shared ? 0 : a.groups->start[group], total = shared ? a.n : a.groups->start[group + 1] - from;
    int64_t expert = shared ? 0 : a.groups->expert[group];
    const int *list = shared ? NULL : a.groups->visit + from;
    MOE_PASSES(MAXN, total, hidden_pass, a, shared, expert, f, list)
}

/* Output o of `count` <= N visits into sums[visit]. */
template <int N>
DEV void down_pass(const moe_args &a, bool shared, int64_t expert, int o, const int *list, float *sums, int at, int count)
{
    int lane = threadIdx.x % 32;
    const wview &down = shared ? a.sdown : a.down;
    rowset<N> visit = take_visits<N>(list, at, count);
    float y[N];
    dot_rows<N>(down, row_of(down, expert, o), shared ? a.shared_mid : a.mid, visit, lane, y);
    float v = lane_value<N>(y, lane);
    if (lane < count)
        sums[list ? list[at + lane] : at + lane] = v;
}

/* A warp makes output o of every row: all experts one after the other, then each row adds its slots. */
template <int MAXN>
static __global__ void __launch_bounds__(GPU_THREADS) output_rows(const __grid_constant__ moe_args a)
{
    GPU_DYNAMIC_SMEM(float, room);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, o = (int)blockIdx.x * GPU_WARPS + warp, routed = a.n * a.used;
    float *sums = room + warp * (routed + a.n);
    if (o >= a.d)
        return;
    for (int i = 0; i < a.groups->count; i++) {
        int from = a.groups->start[i], total = a.groups->start[i + 1] - from;
        int64_t expert = a.groups->expert[i];
        const int *list = a.groups->visit + from;
        MOE_PASSES(MAXN, total, down_pass, a, false, expert, o, list, sums)
    }
    float *shared_sums = sums + routed;
    MOE_PASSES(MAXN, a.n, down_pass, a, true, (int64_t)0, o, (const int *)NULL, shared_sums)
    __syncwarp();
    for (int r = lane; r < a.n; r += 32) {
        float v = sums[r * a.used];
        for (int s = 1; s < a.used; s++)
            v = __fadd_rn(v, sums[r * a.used + s]);
        a.out[(int64_t)r * a.d + o] = __fadd_rn(v, shared_sums[r]);
    }
}

template <int MAXN> static bool launch_hidden(gpu *g, const moe_args &a, int experts)
{
    int groups = a.n * a.used < experts ? a.n * a.used : experts;
    GPU_LAUNCH(g, hidden_rows<MAXN>, dim3(gpu_blocks(a.ff, GPU_WARPS), groups + 1), GPU_THREADS, 0, a);
    return gpu_ok(g);
}

template <int MAXN> static void launch_output(gpu *g, const moe_args &a)
{
    size_t smem = (size_t)GPU_WARPS * (size_t)(a.n * (a.used + 1)) * sizeof(float);
    GPU_LAUNCH(g, output_rows<MAXN>, gpu_blocks(a.d, GPU_WARPS), GPU_THREADS, smem, a);
}

/* Inputs of the routed and the shared weights; one quantised copy serves both when they want the same form. */
static bool make_inputs(gpu *g, moe_args *a, const be_moe *m, const float *x)
{
    act_set set = {};
    int routed = act_add(&set, act_group(g, m->gate->type), x, a->d, a->d, 1);
    int shared = act_add(&set, act_group(g, m->sgate->type), x, a->d, a->d, 1);
    if (!act_make(g, &set, a->n, 1, G_ACT))
        return false;
    a->in = set.v[routed];
    a->shared_in = set.v[shared];
    return true;
}

/* Visits are rows of their own here: parts = used makes token r / used, part r % used of the hidden array. */
static bool make_mids(gpu *g, moe_args *a, const be_moe *m)
{
    act_set set = {};
    int64_t wide = (int64_t)a->used * a->ff;
    int routed = act_add(&set, act_group(g, m->down->type), a->hidden, wide, a->ff, a->used);
    int shared = act_add(&set, act_group(g, m->sdown->type), a->hidden + a->n * wide, a->ff, a->ff, 1);
    if (!act_make(g, &set, a->n, 1, G_MID))
        return false;
    a->mid = set.v[routed];
    a->shared_mid = set.v[shared];
    return true;
}

static bool fits(gpu *g, const be_moe *m, int n)
{
    const be_dims *s = &g->base.dims;
    const be_weight *out[] = {m->gate, m->up, m->sgate, m->sup};
    size_t smem = (size_t)GPU_WARPS * (size_t)(n * (s->used + 1)) * sizeof(float);
    if (s->used > GPU_MAX_USED || m->gate->ne2 > GPU_MAX_EXPERTS || smem > g->smem_limit) {
        gpu_fail(g, "%d of %lld experts for each of %d rows, at most %d of %d are supported", s->used,
                 (long long)m->gate->ne2, n, GPU_MAX_USED, GPU_MAX_EXPERTS);
        return false;
    }
    for (int i = 0; i < 4; i++)
        if (out[i]->ne1 != s->ff || out[i]->ne0 != s->d) {
            gpu_fail(g, "tensor %s: an expert of %lld x %lld, expected %d x %d", out[i]->name, (long long)out[i]->ne0,
                     (long long)out[i]->ne1, s->d, s->ff);
            return false;
        }
    if (act_group(g, m->gate->type) != act_group(g, m->up->type)
        || act_group(g, m->sgate->type) != act_group(g, m->sup->type)) {
        gpu_fail(g, "tensors %s and %s: gate and up must take the same form of activations", m->gate->name, m->up->name);
        return false;
    }
    return true;
}

void gpu_moe(backend *b, int n, const be_moe *m, const float *x, const int32_t *ids, const float *weights, float *out)
{
    gpu *g = gpu_of(b);
    const be_dims *s = &b->dims;
    if (!gpu_ok(g) || n <= 0 || !fits(g, m, n))
        return;
    moe_args a = {};
    a.gate = view_of(g, m->gate), a.up = view_of(g, m->up), a.down = view_of(g, m->down);
    a.sgate = view_of(g, m->sgate), a.sup = view_of(g, m->sup), a.sdown = view_of(g, m->sdown);
    size_t rows = (size_t)GPU_MAX_ROWS * (size_t)(s->used + 1);
    moe_groups *groups = (moe_groups *)gpu_scratch_get(g, G_GROUP, sizeof *groups);
    a.hidden = (float *)gpu_scratch_get(g, G_HIDDEN, rows * (size_t)s->ff * sizeof(float));
    a.groups = groups;
    a.weights = weights;
    a.out = out;
    a.clamp = m->clamp, a.sclamp = m->sclamp;
    a.n = n, a.used = s->used, a.ff = s->ff, a.d = s->d;
    if (!groups || !a.hidden || !make_inputs(g, &a, m, x))
        return;
    GPU_LAUNCH(g, group_visits, 1, GROUP_THREADS, 0, ids, n * s->used, (int)m->gate->ne2, groups, g->fault);
    int experts = (int)m->gate->ne2;
    bool ok = n == 1   ? launch_hidden<1>(g, a, experts)
              : n == 2 ? launch_hidden<2>(g, a, experts)
              : n <= 4 ? launch_hidden<4>(g, a, experts)
                       : launch_hidden<8>(g, a, experts);
    if (!ok || !make_mids(g, &a, m))
        return;
    if (n == 1)
        launch_output<1>(g, a);
    else if (n == 2)
        launch_output<2>(g, a);
    else if (n <= 4)
        launch_output<4>(g, a);
    else
        launch_output<8>(g, a);
}
