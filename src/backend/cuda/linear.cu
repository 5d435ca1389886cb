/* linear.cu: several independent products over the same rows. Weights in tiles meet int8 or split halves on tensor
 * cores (mm.cu). Others, and all against float32 activations: a warp makes one output of every row. */
#include "backend/cuda/dot.cuh"
#include "backend/cuda/products.cuh"

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
    const wrow row = row_of(job.w, 0, o);
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

/* --- weights in tiles --- */

/* Room for the forms that a job of this type needs; those of an earlier job with the same input are kept. */
static void add_form(gpu_cutter *c, mm_forms *f, const be_linear *j)
{
    size_t rows = BE_NARROW, k = (size_t)j->w->ne0 * (size_t)j->groups;
    int ld = (int)k, group = unit_group(j->w->type);
    if (group == 0 && !f->h.ld)
        f->h = hrows{(uint4 *)gpu_cut(c, rows * k * 4), ld};
    qrows *q = group == 32 ? &f->q32 : &f->q256;
    if (group && !q->ld) {
        q->ld = ld;
        q->group = group;
        q->q = (int8_t *)gpu_cut(c, rows * k);
        q->d = (float *)gpu_cut(c, rows * k / (size_t)group * 4);
        q->sum = group == 256 ? (int16_t *)gpu_cut(c, rows * k / 8) : NULL;
    }
}

/* Inputs of the jobs: equal ones share their forms. */
static int plan_forms(gpu_cutter *c, mm_forms *forms, int *of, const be_linear *jobs, int k)
{
    int count = 0;
    for (int i = 0; i < k; i++) {
        of[i] = count;
        for (int e = 0; e < i; e++)
            if (jobs[e].x == jobs[i].x && jobs[e].ldx == jobs[i].ldx &&
                jobs[e].w->ne0 * jobs[e].groups == jobs[i].w->ne0 * jobs[i].groups)
                of[i] = of[e];
        if (of[i] == count)
            forms[count++] = mm_forms{};
        add_form(c, &forms[of[i]], &jobs[i]);
    }
    return count;
}

/* Up to MM_JOBS jobs over up to BE_NARROW rows from row0 on. */
static void run_tiled(gpu *g, int row0, int n, const be_linear *jobs, int k, bool add)
{
    mm_forms forms[MM_JOBS];
    int of[MM_JOBS];
    gpu_cutter room = {NULL, 0};
    plan_forms(&room, forms, of, jobs, k);
    room = gpu_cutter{(char *)gpu_scratch_get(g, G_ACT, room.used), 0};
    if (!room.base)
        return;
    int count = plan_forms(&room, forms, of, jobs, k);
    mm_args a = {};
    a.n = n;
    a.k = k;
    for (int f = 0; f < count; f++)
        for (int i = 0; i < k; i++)
            if (of[i] == f) {
                gpu_make_forms(g, n, (int)jobs[i].w->ne0 * jobs[i].groups, jobs[i].x + (int64_t)row0 * jobs[i].ldx,
                               jobs[i].ldx, &forms[f]);
                break;
            }
    for (int i = 0; i < k; i++) {
        const be_linear *j = &jobs[i];
        mm_job *m = &a.job[i];
        int group = unit_group(j->w->type);
        m->w = gpu_tiled(j->w);
        m->x.q = group == 32 ? forms[of[i]].q32 : group ? forms[of[i]].q256 : qrows{};
        m->x.h = group ? hrows{} : forms[of[i]].h;
        m->y = j->y + (int64_t)row0 * j->ldy;
        m->ldy = j->ldy;
        m->group_tiles = m->w.tiles / j->groups;
        m->add = add;
    }
    gpu_products(g, &a);
}

/* Tiles can be used: int8 activations, groups of whole tiles, every input of a form's size. */
static bool takes_tiles(const gpu *g, const be_linear *j)
{
    return g->act == BE_ACT_Q8 && gpu_is_tiled(g, j->w) && j->w->ne1 % (TILE_ROWS * (int64_t)j->groups) == 0;
}

static void run_linear(gpu *g, int n, const be_linear *jobs, int k, bool add)
{
    be_linear tiled_jobs[MM_JOBS], others[MM_JOBS];
    int t = 0, o = 0;
    for (int i = 0; i < k; i++)
        if (takes_tiles(g, &jobs[i]))
            tiled_jobs[t++] = jobs[i];
        else
            others[o++] = jobs[i];
    for (int row0 = 0; t && row0 < n && gpu_ok(g); row0 += BE_NARROW)
        run_tiled(g, row0, n - row0 < BE_NARROW ? n - row0 : BE_NARROW, tiled_jobs, t, add);
    const be_linear *left = others;
    for (int done; gpu_ok(g) && o > 0; left += done, o -= done)
        if (!(done = run_jobs(g, n, left, o, add)))
            return;
}

void gpu_linear(backend *b, int n, const be_linear *jobs, int k)
{
    gpu *g = gpu_of(b);
    for (; gpu_ok(g) && n > 0 && k > 0; jobs += MM_JOBS, k -= MM_JOBS)
        run_linear(g, n, jobs, k < MM_JOBS ? k : MM_JOBS, false);
}

void gpu_linear_add(gpu *g, const be_linear *job)
{
    if (gpu_ok(g))
        run_linear(g, 1, job, 1, true);
}
