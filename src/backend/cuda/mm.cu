/* mm.cu: jobs of products with tiled weights (phase.cu launches them), and the forms of their inputs. A block makes
 * MM_WARPS / splits tiles; the warps of a tile take ranges of its chunks, and their parts are added in order. */
#include "backend/cuda/products.cuh"

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

/* --- inputs --- */

typedef struct forms_args {
    mm_forms f;
    const float *x;
    int n, k, ldx;
    const int32_t *when;
} forms_args;

/* A warp for each 256 numbers of each row. */
static __global__ void __launch_bounds__(256) make_forms(const forms_args a)
{
    int r = blockIdx.y, lane = threadIdx.x % 32, at = 256 * ((int)blockIdx.x * 8 + (int)threadIdx.x / 32);
    chain_next();
    chain_wait();
    if ((a.when && !*a.when) || at >= a.k)
        return;
    const float *x = a.x + (int64_t)r * a.ldx + at;
    float v[8];
#pragma unroll
    for (int e = 0; e < 8; e++)
        v[e] = at + 8 * lane + e < a.k ? x[8 * lane + e] : 0.0f;
    warp_forms(a.f, r, at, v, a.k - at, lane);
}

void gpu_make_forms(gpu *g, int n, int k, const float *x, int ldx, const mm_forms *f)
{
    forms_args a = {*f, x, n, k, ldx, g->when};
    GPU_CHAIN(g, make_forms, dim3(gpu_blocks(k, 2048), n), 256, 0, a);
}
