/* moe.cu: routed and shared experts. Visits (row, slot) are grouped by expert, so that each distinct expert is read
 * once.
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

/* One group of visits: a routed expert's, or (list NULL) the shared expert's. */
typedef struct moe_group {
    const int *list;
    int64_t expert;
    int total;
} moe_group;

/* Group i of the routed ones; the one behind them is the shared expert. */
DEV moe_group group_at(const moe_args &a, int i)
{
    if (i >= a.groups->count)
        return moe_group{NULL, 0, a.n};
    int from = a.groups->start[i];
    return moe_group{a.groups->visit + from, a.groups->expert[i], a.groups->start[i + 1] - from};
}

/* One hidden number of `count` <= N visits. */
template <int N, bool EXACT>
DEV void hidden_pass(const moe_args &a, const moe_group &group, int f, float *, int at, int count)
{
    int lane = threadIdx.x % 32;
    bool shared = !group.list;
    rowset<N> rows = take_visits<N>(group.list, at, count);
    float half[2] = {0, 0}; /* gate and up of the visit that this lane writes */
#pragma unroll
    for (int i = 0; i < N; i++)
        rows.r[i] = shared ? rows.r[i] : rows.r[i] / a.used;
#pragma unroll 1
    for (int k = 0; k < 2; k++) {
        const wview &w = shared ? k ? a.sup : a.sgate : k ? a.up : a.gate;
        float acc[N];
        dot_rows<N, EXACT>(w, row_of(w, group.expert, f), shared ? a.shared_in : a.in, rows, lane, acc);
        float v = lane_value<N>(acc, lane);
        half[0] = k ? half[0] : v;
        half[1] = v;
    }
    if (lane >= count)
        return;
    int k = shared ? at + lane : group.list[at + lane];
    float weight = shared ? 1.0f : a.weights[k];
    int64_t to = shared ? (int64_t)a.n * a.used + k : k;
    a.hidden[to * a.ff + f] = __fmul_rn(swiglu(half[0], half[1], shared ? a.sclamp : a.clamp), weight);
}

/* Output o of `count` <= N visits into sums[visit], those of the shared expert behind the routed ones. */
template <int N, bool EXACT>
DEV void down_pass(const moe_args &a, const moe_group &group, int o, float *sums, int at, int count)
{
    int lane = threadIdx.x % 32;
    bool shared = !group.list;
    const wview &down = shared ? a.sdown : a.down;
    rowset<N> visit = take_visits<N>(group.list, at, count);
    float acc[N];
    dot_rows<N, EXACT>(down, row_of(down, group.expert, o), shared ? a.shared_mid : a.mid, visit, lane, acc);
    float v = lane_value<N>(acc, lane);
    if (lane < count)
        sums[shared ? a.n * a.used + at + lane : group.list[at + lane]] = v;
}

/* Passes of at most MAXN visits over a group; the smallest instance that fits. Which one does not touch the bits. */
#define MOE_PASSES(pass, group, index, sums)                                                                           \
    for (int at = 0, left; at < group.total; at += MAXN) {                                                             \
        left = group.total - at < MAXN ? group.total - at : MAXN;                                                      \
        if (MAXN > 4 && left > 4)                                                                                      \
            pass<MAXN, EXACT>(a, group, index, sums, at, left);                                                        \
        else if (MAXN > 2 && left > 2)                                                                                 \
            pass<(MAXN < 4 ? MAXN : 4), EXACT>(a, group, index, sums, at, left);                                       \
        else if (MAXN > 1 && left > 1)                                                                                 \
            pass<(MAXN < 2 ? MAXN : 2), EXACT>(a, group, index, sums, at, left);                                       \
        else                                                                                                           \
            pass<1, EXACT>(a, group, index, sums, at, left);                                                           \
    }

/* Block row i is group i; rows behind the shared expert have nothing to do. */
template <int MAXN, bool EXACT>
static __global__ void __launch_bounds__(GPU_THREADS, blocks_for(MAXN)) hidden_rows(const __grid_constant__ moe_args a)
{
    int f = (int)blockIdx.x * GPU_WARPS + threadIdx.x / 32, i = blockIdx.y;
    if (f >= a.ff || i > a.groups->count)
        return;
    moe_group group = group_at(a, i);
    MOE_PASSES(hidden_pass, group, f, NULL)
}

/* A warp makes output o of every row: all experts one after the other, then each row adds its slots. */
template <int MAXN, bool EXACT>
static __global__ void __launch_bounds__(GPU_THREADS, blocks_for(MAXN)) output_rows(const __grid_constant__ moe_args a)
{
    GPU_DYNAMIC_SMEM(float, room);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, o = (int)blockIdx.x * GPU_WARPS + warp, routed = a.n * a.used;
    float *sums = room + warp * (routed + a.n);
    if (o >= a.d)
        return;
#pragma unroll 1
    for (int i = 0; i <= a.groups->count; i++) {
        moe_group group = group_at(a, i);
        MOE_PASSES(down_pass, group, o, sums)
    }
    __syncwarp();
    for (int r = lane; r < a.n; r += 32) {
        float v = sums[r * a.used];
        for (int s = 1; s < a.used; s++)
            v = __fadd_rn(v, sums[r * a.used + s]);
        a.out[(int64_t)r * a.d + o] = __fadd_rn(v, sums[routed + r]);
    }
}

static void launch_hidden(gpu *g, const moe_args &a, int experts)
{
    auto *kernel = g->act == BE_ACT_FLOAT ? hidden_rows<1, true>
                   : a.n == 1             ? hidden_rows<1, false>
                   : a.n <= 4             ? hidden_rows<4, false>
                                          : hidden_rows<8, false>;
    int groups = a.n * a.used < experts ? a.n * a.used : experts;
    GPU_LAUNCH(g, kernel, dim3(gpu_blocks(a.ff, GPU_WARPS), groups + 1), GPU_THREADS, 0, a);
}

static void launch_output(gpu *g, const moe_args &a)
{
    auto *kernel = g->act == BE_ACT_FLOAT ? output_rows<1, true>
                   : a.n == 1             ? output_rows<1, false>
                   : a.n <= 4             ? output_rows<4, false>
                                          : output_rows<8, false>;
    size_t smem = (size_t)GPU_WARPS * (size_t)(a.n * (a.used + 1)) * sizeof(float);
    GPU_LAUNCH(g, kernel, gpu_blocks(a.d, GPU_WARPS), GPU_THREADS, smem, a);
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
    if (act_group(g, m->gate->type) != act_group(g, m->up->type) ||
        act_group(g, m->sgate->type) != act_group(g, m->sup->type)) {
        gpu_fail(g, "tensors %s and %s: gate and up must take the same form of activations", m->gate->name,
                 m->up->name);
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
    launch_hidden(g, a, (int)m->gate->ne2);
    if (make_mids(g, &a, m))
        launch_output(g, a);
}
