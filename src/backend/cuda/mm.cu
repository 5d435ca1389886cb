/* mm.cu: products of tiled weights, several in one launch. A block of 16 warps makes 16 / splits tiles; the warps of a
 * tile take ranges of its chunks, and their parts are added in order. */
#include "backend/cuda/mm_block.cuh"

bool gpu_is_tiled(const be_weight *w) { return tile_fits(w->type, w->ne0, w->ne1); }

tiled gpu_tiled(const be_weight *w)
{
    tiled t = {};
    t.p = (const uint8_t *)w->data;
    t.bytes = tile_bytes(w->type, w->ne0);
    t.tiles = (int)(w->ne1 / TILE_ROWS);
    t.slice = t.bytes * t.tiles;
    t.type = w->type;
    t.chunks = (int)(w->ne0 / tile_inputs(w->type));
    return t;
}

int mm_splits(const tiled *w)
{
    const int64_t share = w->tiles >= 1024 ? 17408 : 8704; /* bytes; more where there are tiles for every warp */
    int s = 1;
    while (s < MM_WARPS && 2 * s <= w->chunks && w->bytes > share * s)
        s *= 2;
    return s;
}

int mm_plan(mm_args *a)
{
    int blocks = 0;
    for (int i = 0; i < a->k; i++) {
        mm_job *j = &a->job[i];
        int most = j->out.q ? MM_WARPS / 2 : MM_WARPS;
        j->splits = mm_splits(&j->w) < most ? mm_splits(&j->w) : most;
        j->first = blocks;
        blocks += (int)gpu_blocks(j->w.tiles, MM_WARPS / j->splits);
    }
    return blocks;
}

bool mm_fast(const mm_args *a)
{
    for (int i = 0; i < a->k; i++)
        if (a->job[i].w.type != Q_Q8_0 && a->job[i].w.type != Q_F16)
            return false;
    return true;
}

mm_job mm_plain(const be_weight *w, const mm_forms *x, float *y, int ldy)
{
    mm_job j = {};
    int group = unit_group(w->type);
    j.w = gpu_tiled(w);
    j.x.q = group == 32 ? x->q32 : group ? x->q256 : qrows{};
    j.x.h = group ? hrows{} : x->h;
    j.y = y;
    j.ldy = ldy;
    j.group_tiles = j.w.tiles;
    return j;
}

template <int CT, int COLS, bool FAST>
static __global__ void __launch_bounds__(MM_THREADS, FAST ? mm_resident(CT, COLS) : 2)
    mm_products(const __grid_constant__ mm_args a)
{
    using R = mm_room<CT, COLS>;
    GPU_DYNAMIC_SMEM(R, room);
    chain_next();
    if (a.when) {
        chain_wait();
        if (!*a.when)
            return;
    }
    mm_block<CT, COLS, FAST>(a, (int)blockIdx.x, room);
}

template <int CT, int COLS> static void launch(gpu *g, const mm_args &a, int blocks)
{
    auto *kernel = mm_fast(&a) ? mm_products<CT, COLS, true> : mm_products<CT, COLS, false>;
    mm_launch<mm_room<CT, COLS>>(g, "mm_products", kernel, blocks, a);
}

void gpu_products(gpu *g, mm_args *a)
{
    int blocks = mm_plan(a);
    a->when = g->when;
    if (a->n == 1)
        launch<1, 1>(g, *a, blocks);
    else if (a->n <= 8)
        launch<1, 8>(g, *a, blocks);
    else
        launch<2, 1>(g, *a, blocks);
}

/* --- inputs --- */

typedef struct forms_args {
    mm_forms f;
    const float *x;
    int n, k, ldx;
    const int32_t *when;
} forms_args;

/* Block (256 numbers, row) of 8 warps. Numbers behind k are zero. */
static __global__ void __launch_bounds__(256) make_forms(const forms_args a)
{
    int r = blockIdx.y, at = 256 * (int)blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *x = a.x + (int64_t)r * a.ldx;
    chain_next();
    chain_wait();
    if (a.when && !*a.when)
        return;
    int i = at + 32 * warp + lane;
    if (a.f.q32.q && at + 32 * warp < a.k)
        warp_quantise32(a.f.q32, r, at + 32 * warp, i < a.k ? x[i] : 0.0f, lane);
    if (a.f.h.v && warp < 2 && at + 128 * warp < a.k) {
        float v[4];
        for (int e = 0; e < 4; e++) {
            int k = at + 128 * warp + 4 * lane + e;
            v[e] = k < a.k ? x[k] : 0.0f;
        }
        if (at + 128 * warp + 4 * lane < a.k) /* rows may be shorter than 128 */
            put_halves(a.f.h, r, at + 128 * warp, v, lane);
    }
    if (a.f.q256.q && warp == 7) {
        float v[8];
        for (int e = 0; e < 8; e++)
            v[e] = at + 32 * e + lane < a.k ? x[at + 32 * e + lane] : 0.0f;
        warp_quantise256(a.f.q256, r, at, v, lane);
    }
}

void gpu_make_forms(gpu *g, int n, int k, const float *x, int ldx, const mm_forms *f)
{
    forms_args a = {*f, x, n, k, ldx, g->when};
    GPU_CHAIN(g, make_forms, dim3(gpu_blocks(k, 256), n), 256, 0, a);
}
