/* view.cuh: a bound weight as kernels see it, whichever way it lies: rows of units (unit.cuh) or tiles (tile.cuh). */
#ifndef DS4_BACKEND_CUDA_VIEW_CUH
#define DS4_BACKEND_CUDA_VIEW_CUH

#include "backend/cuda/tile.cuh"

/* Whether a matrix lies in tiles. IQ2_XXS takes 1.55 times its bytes there: where memory is short, large matrices of
 * that type stay rows of units. */
static inline bool gpu_is_tiled(const gpu *g, const be_weight *w)
{
    if (w->type == Q_IQ2_XXS && (size_t)(unit_row_bytes(w->type, w->ne0) * w->ne1 * w->ne2) >= g->compact_from)
        return false;
    return tile_fits(w->type, w->ne0, w->ne1);
}

static inline wview view_of(const gpu *g, const be_weight *w)
{
    bool tiled = gpu_is_tiled(g, w);
    int64_t row = tiled ? tile_bytes(w->type, w->ne0) : unit_row_bytes(w->type, w->ne0);
    return wview{(const uint8_t *)w->data, g->grid, w->ne1, row, (int)w->ne0, w->type, tiled};
}

DEV wrow row_of(const wview &w, int64_t slice, int64_t o)
{
    int64_t at = slice * w.ne1 + o;
    if (w.tiled)
        return wrow{w.data + at / TILE_ROWS * w.row, (int)(at % TILE_ROWS)};
    return wrow{w.data + at * w.row, -1};
}

/* Number `at` of a row of a float type. */
DEV float float_at(const wview &w, const wrow &row, int at)
{
    if (w.type == Q_F32)
        return __uint_as_float(load32(row.p + 4 * (int64_t)at));
    uint16_t h = row.r >= 0 ? tile_half(row.p, row.r, at) : load16(row.p + 2 * (int64_t)at);
    return w.type == Q_F16 ? half_value(h) : bf16_value(h);
}

/* Any quantised type, chosen at run time. */
DEV void any_unit(const wview &w, const wrow &row, int u, unit &k)
{
    if (row.r >= 0) {
        tile_unit(w.type, row.p, row.r, u, k);
        return;
    }
    switch (w.type) {
    case Q_Q8_0:
        open_unit<Q_Q8_0>(row.p, w.ne0, u, w.grid, k);
        break;
    case Q_Q4_0:
        open_unit<Q_Q4_0>(row.p, w.ne0, u, w.grid, k);
        break;
    case Q_MXFP4:
        open_unit<Q_MXFP4>(row.p, w.ne0, u, w.grid, k);
        break;
    case Q_Q2_K:
        open_unit<Q_Q2_K>(row.p, w.ne0, u, w.grid, k);
        break;
    case Q_Q3_K:
        open_unit<Q_Q3_K>(row.p, w.ne0, u, w.grid, k);
        break;
    case Q_Q4_K:
        open_unit<Q_Q4_K>(row.p, w.ne0, u, w.grid, k);
        break;
    case Q_Q5_K:
        open_unit<Q_Q5_K>(row.p, w.ne0, u, w.grid, k);
        break;
    case Q_Q6_K:
        open_unit<Q_Q6_K>(row.p, w.ne0, u, w.grid, k);
        break;
    default:
        open_unit<Q_IQ2_XXS>(row.p, w.ne0, u, w.grid, k);
        break;
    }
}

/* The 32 values of unit u; of a float type those up to the row's end, then zeros. Slow and general. */
DEV void unit_values(const wview &w, const wrow &row, int u, float *v)
{
    if (unit_is_float(w.type)) {
        for (int i = 0; i < 32; i++)
            v[i] = 32 * u + i < w.ne0 ? float_at(w, row, 32 * u + i) : 0;
        return;
    }
    unit k;
    any_unit(w, row, u, k);
#pragma unroll
    for (int i = 0; i < 32; i++)
        v[i] = unit_value(k, i);
}

#endif
