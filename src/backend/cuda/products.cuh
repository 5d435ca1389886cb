/* products.cuh: products of tiled weights with the rows of a narrow forward, several in one launch (mm.cu). */
#ifndef DS4_BACKEND_CUDA_PRODUCTS_CUH
#define DS4_BACKEND_CUDA_PRODUCTS_CUH

#include "backend/cuda/narrow.cuh"
#include "backend/cuda/view.cuh"

enum {
    MM_JOBS = 8,
    MM_WARPS = 8,
    MM_THREADS = 32 * MM_WARPS,
    MM_COLUMNS = 6, /* most rows whose columns travel through the rings: a draft of five and its anchor */
};

/* A weight in tiles. */
typedef struct tiled {
    const uint8_t *p;
    int64_t slice; /* bytes of a slice (expert) */
    int64_t bytes; /* of a tile */
    uint32_t type;
    int tiles, chunks; /* tiles of a slice, chunks of a tile */
} tiled;

tiled gpu_tiled(const be_weight *w);

typedef struct mm_job {
    tiled w;
    mm_input x;
    float *y;  /* [n][ldy], or */
    qrows out; /* int8 rows with a scale per 32, when out.q is not NULL (blocks then make 32 outputs at least) */
    int ldy;
    int group_tiles; /* tiles that share one group of inputs; group p sees inputs p * ne0 .. */
    int splits;      /* warps that share a tile; set by mm_plan */
    int first;       /* first block of the launch; set by mm_plan */
    bool add;        /* y += instead of y = */
    bool floats;     /* a Q8_0 weight against float inputs (x.h) */
} mm_job;

typedef struct mm_args {
    mm_job job[MM_JOBS];
    int k, n;
    const int32_t *when; /* 0: nothing has to be done; NULL: always */
} mm_args;

/* How many warps share a tile (a power of two): about 8 KB for each. Depends on the shape alone. */
int mm_splits(const tiled *w);
/* Sets splits and first of all jobs; returns the number of blocks. */
int mm_plan(mm_args *a);
/* All jobs are of the types that kernels FAST take. */
bool mm_fast(const mm_args *a);

/* int8 and half forms of float rows x [n][ldx], columns [0, k). Any of q32, q256, h may have a NULL member. */
typedef struct mm_forms {
    qrows q32, q256;
    hrows h;
} mm_forms;
void gpu_make_forms(gpu *g, int n, int k, const float *x, int ldx, const mm_forms *f);

/* A job without groups whose result is float rows. */
mm_job mm_plain(const be_weight *w, const mm_forms *x, float *y, int ldy);
/* Runs the jobs over n <= BE_NARROW rows. */
void gpu_products(gpu *g, mm_args *a);

/* --- inside kernels --- */

/* part[warp][ct * 128 + 32 i + lane] */
template <int CT> DEV void put_part(float *part, int warp, int lane, const float (&acc)[CT][4])
{
#pragma unroll
    for (int ct = 0; ct < CT; ct++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            part[(warp * CT + ct) * 128 + 32 * i + lane] = acc[ct][i];
}

/* Number e of a tile: sum of `splits` warps' parts in order; its row and column. */
template <int CT> DEV float sum_parts(const float *part, int first_warp, int splits, int e, int *row, int *col)
{
    float v = part[first_warp * CT * 128 + e];
    for (int s = 1; s < splits; s++)
        v = __fadd_rn(v, part[(first_warp + s) * CT * 128 + e]);
    int lane = e % 32, i = e % 128 / 32;
    *row = acc_row(lane, i);
    *col = 8 * (e / 128) + acc_col(lane, i);
    return v;
}

/* A warp quantises 32 numbers, one per lane, to out[row][at ..]. */
DEV void warp_quantise32(const qrows &out, int row, int at, float v, int lane)
{
    float recip, d = group_scale(warp_max(__float_as_uint(v) & 0x7fffffffu), &recip);
    int q = recip == 0 ? 0 : __float2int_rn(__fmul_rn(v, recip));
    int64_t to = (int64_t)row * out.ld + at;
    out.q[to + lane] = (int8_t)q;
    if (lane == 0)
        out.d[to / 32] = d;
}

/* 256 numbers, eight of a lane (8 lane ..), in the forms that have room. Numbers from `left` on are none of the row's
 * (left: a multiple of 32). */
DEV void warp_forms(const mm_forms &f, int row, int at, const float (&v)[8], int left, int lane)
{
    uint32_t top = 0, small;
    bool mine = 8 * lane < left;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t a = __float_as_uint(v[i]) & 0x7fffffffu;
        top = a > top ? a : top;
    }
    small = max(top, __shfl_xor_sync(FULL_WARP, top, 1));
    small = max(small, __shfl_xor_sync(FULL_WARP, small, 2));
    top = f.q256.q ? warp_max(small) : small;
#pragma unroll 1
    for (int large = 0; large < 2; large++) {
        const qrows &q = large ? f.q256 : f.q32;
        if (!q.q)
            continue;
        float recip, d = group_scale(large ? top : small, &recip);
        uint32_t w[2] = {0, 0};
        int sum = 0, to = row * q.ld + at + 8 * lane;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int n = recip == 0 ? 0 : __float2int_rn(__fmul_rn(v[i], recip));
            w[i / 4] |= (uint32_t)(n & 255) << 8 * (i % 4);
            sum += n;
        }
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        if (mine)
            *reinterpret_cast<uint2 *>(q.q + to) = make_uint2(w[0], w[1]);
        if (mine && large && lane % 2 == 0)
            q.sum[to / 16] = (int16_t)sum;
        if (mine && lane % (large ? 32 : 4) == 0)
            q.d[to / q.group] = d;
    }
    if (f.h.v && mine) {
        uint4 *h = f.h.v + (row * f.h.ld + at) / 4 + 2 * lane;
        h[0] = split_halves({v[0], v[1], v[2], v[3]});
        h[1] = split_halves({v[4], v[5], v[6], v[7]});
    }
}

#endif
