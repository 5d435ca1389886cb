/* hyper.cu: the hyper-connection between two sublayers of the fused block, in two launches.
 *
 *   hyper_dots   finishes the sublayer before (streams[k] = post[k] out + sum_j comb[j][k] streams[j]), then the
 * partial sums of what comes next: fn . streams and the products of the streams with each other hyper_mix    adds the
 * parts, makes pre and post, x = rmsw(sum_s pre[s] streams[s], norm) in the forms that the next products take. The sum
 * of squares of the weighted sum follows from the streams' products, so that no block needs another's columns.
 *
 * The Sinkhorn part of the mix (comb) is needed only at the end of the sublayer: hyper_comb, in a block of its own
 * beside the next products. */
#include "backend/cuda/block.cuh"
#include "backend/cuda/row.cuh"

enum { DOT_COLUMNS = 64, PART_WIDTH = 36, GRAM = 24 /* place of the ten products of streams */ };

typedef struct dots_args {
    nrows r;
    float *streams;
    const float *out, *mix; /* of the sublayer before, or NULL */
    const uint8_t *fn;      /* rows of S*d */
    bool half;              /* fn is F16, else F32 */
    float *part;            /* [n][d / 64][PART_WIDTH] */
    int d, outputs;
} dots_args;

/* Eight weights of an output: a lane's share. */
typedef struct fn_eight {
    uint4 v[2];
} fn_eight;

DEV void load_fn(const dots_args &a, int o, int64_t at, fn_eight &w)
{
    int64_t i = (int64_t)o * 4 * a.d + at;
    w.v[0] = load_stream(a.fn + (a.half ? 2 : 4) * i);
    if (!a.half)
        w.v[1] = load_stream(a.fn + 4 * i + 16);
}

DEV float dot_eight(const dots_args &a, const fn_eight &w, const float *x)
{
    const uint32_t u[8] = {w.v[0].x, w.v[0].y, w.v[0].z, w.v[0].w, w.v[1].x, w.v[1].y, w.v[1].z, w.v[1].w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float f = a.half ? half_value((uint16_t)(u[i / 2] >> 16 * (i % 2))) : __uint_as_float(u[i]);
        sum = __fmaf_rn(f, x[i], sum);
    }
    return sum;
}

/* Block (64 columns, row), thread (stream, column). */
static __global__ void __launch_bounds__(256) hyper_dots(const dots_args a)
{
    __shared__ float v[4][DOT_COLUMNS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, s = threadIdx.x / 64, c = threadIdx.x % 64, r = blockIdx.y;
    int col0 = (int)blockIdx.x * DOT_COLUMNS;
    int64_t mine = (int64_t)(lane / 8) * a.d + col0 + lane % 8 * 8;
    fn_eight w[3] = {};
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (warp + 8 * i < a.outputs)
            load_fn(a, warp + 8 * i, mine, w[i]);
    chain_next();
    chain_wait();
    float *x = a.streams + ((int64_t)r * 4 + s) * a.d + col0 + c;
    float mine_v = *x;
    v[s][c] = mine_v;
    __syncthreads();
    if (a.out) {
        const float *post = a.mix + r * GRAM + 4, *comb = post + 4;
        float sum = __fmul_rn(post[s], a.out[(int64_t)r * a.d + col0 + c]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            sum = __fadd_rn(sum, __fmul_rn(comb[4 * j + s], v[j][c]));
        __syncthreads();
        v[s][c] = sum;
        *x = sum;
        __syncthreads();
    }
    float *part = a.part + ((int64_t)r * gridDim.x + blockIdx.x) * PART_WIDTH;
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (warp + 8 * i < a.outputs) {
            float sum = warp_sum(dot_eight(a, w[i], &v[lane / 8][lane % 8 * 8]));
            if (lane == 0)
                part[warp + 8 * i] = sum;
        }
    for (int p = warp; p < 10; p += 8) {
        int i = p < 4 ? 0 : p < 7 ? 1 : p < 9 ? 2 : 3, j = p < 4 ? p : p < 7 ? p - 3 : p < 9 ? p - 5 : 3;
        float sum = warp_sum(__fmaf_rn(v[i][lane + 32], v[j][lane + 32], __fmul_rn(v[i][lane], v[j][lane])));
        if (lane == 0)
            part[GRAM + p] = sum;
    }
}

typedef struct hmix_args {
    nrows r;
    const float *streams, *part, *scale, *base, *norm;
    float *mix;   /* [n][24]: pre, post, comb before Sinkhorn; NULL: head */
    float *y, *x; /* head: float rows */
    mm_forms f;   /* sublayer: forms of x */
    int d, blocks, outputs;
    float rms_eps, hc_eps, inverse_d;
} hmix_args;

/* Short instruction sequences: these kernels are all latency, much of it of fetching instructions. */
DEV float inverse_root(float v) { return rsqrtf(v); }
DEV float logistic(float v) { return __fdividef(1.0f, __fadd_rn(1.0f, __expf(-v))); }

enum { PART_LANES = 7 }; /* threads that share the parts of one sum */

/* Sums of the parts into tot[]; thread (l, o) takes blocks l, l + 7, ... */
DEV void add_parts(const hmix_args &a, int r, float (*room)[PART_WIDTH], float *tot)
{
    int t = threadIdx.x, o = t % PART_WIDTH, l = t / PART_WIDTH;
    const float *part = a.part + (int64_t)r * a.blocks * PART_WIDTH + o;
    if (l < PART_LANES) {
        float sum = 0;
#pragma unroll 10
        for (int b = l; b < a.blocks; b += PART_LANES)
            sum = __fadd_rn(sum, part[b * PART_WIDTH]);
        room[l][o] = sum;
    }
    __syncthreads();
    if (t < PART_WIDTH) {
        float sum = room[0][t];
        for (int i = 1; i < PART_LANES; i++)
            sum = __fadd_rn(sum, room[i][t]);
        tot[t] = sum;
    }
    __syncthreads();
}

/* pre[]; returns the factor of the norm. */
DEV float mix_factors(const hmix_args &a, int r, const float *tot, float scale, float base, float *pre)
{
    const float *gram = tot + GRAM;
    float square = __fadd_rn(__fadd_rn(gram[0], gram[4]), __fadd_rn(gram[7], gram[9]));
    float rms = inverse_root(__fmaf_rn(square, a.inverse_d * 0.25f, a.rms_eps));
    int t = threadIdx.x;
    if (t < a.outputs) {
        float z = __fmaf_rn(__fmul_rn(tot[t], rms), scale, base);
        float v = t < 4 ? __fadd_rn(logistic(z), a.hc_eps) : t < 8 ? 2.0f * logistic(z) : z;
        if (t < 4)
            pre[t] = v;
        if (a.mix && blockIdx.x == 0)
            a.mix[r * GRAM + t] = v;
    }
    __syncthreads();
    float sum = 0;
    int p = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = i; j < 4; j++, p++)
            sum = __fmaf_rn(i == j ? __fmul_rn(pre[i], pre[j]) : 2.0f * __fmul_rn(pre[i], pre[j]), gram[p], sum);
    sum = sum > 0 ? sum : sum == sum ? 0.0f : sum;
    return inverse_root(__fmaf_rn(sum, a.inverse_d, a.rms_eps));
}

/* Block (256 columns, row), a thread for each column. */
static __global__ void __launch_bounds__(256) hyper_mix(const hmix_args a)
{
    __shared__ float tot[PART_WIDTH], room[PART_LANES][PART_WIDTH], pre[4];
    alignas(16) __shared__ float x[256];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.y, at = 256 * (int)blockIdx.x;
    int i = at + (int)threadIdx.x;
    int t = (int)threadIdx.x < a.outputs ? (int)threadIdx.x : 0;
    float norm = a.norm[i], scale = a.scale[t < 4 ? 0 : t < 8 ? 1 : 2], base = a.base[t];
    chain_next();
    chain_wait();
    const float *s = a.streams + (int64_t)r * 4 * a.d + i;
    float v[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        v[k] = s[(int64_t)k * a.d];
    add_parts(a, r, room, tot);
    float factor = mix_factors(a, r, tot, scale, base, pre);
    float y = 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
        y = __fadd_rn(y, __fmul_rn(pre[k], v[k]));
    float n = __fmul_rn(__fmul_rn(y, factor), norm);
    if (a.y)
        a.y[(int64_t)r * a.d + i] = y;
    if (a.x)
        a.x[(int64_t)r * a.d + i] = n;
    x[threadIdx.x] = n;
    __syncthreads();
    if (warp == 0 && (a.f.q32.q || a.f.q256.q || a.f.h.v)) {
        const float *v = x + 8 * lane;
        warp_forms(a.f, r, at, {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]}, 256, lane);
    }
}

static void launch_dots(gpu *g, const nrows &r, float *streams, const be_hc *hc, int outputs, const float *out,
                        const float *mix, float *part)
{
    int d = g->base.dims.d;
    dots_args a = {r, streams, out, mix, (const uint8_t *)hc->fn.data, hc->fn.type == Q_F16, part, d, outputs};
    GPU_CHAIN(g, hyper_dots, dim3(d / DOT_COLUMNS, r.n), 256, 0, a);
}

bool gpu_hyper_fits(const gpu *g, const be_hc *hc)
{
    const be_dims *m = &g->base.dims;
    return m->streams == 4 && m->d % 256 == 0 && (hc->fn.type == Q_F16 || hc->fn.type == Q_F32) &&
           hc->fn.ne0 == 4 * m->d && !gpu_is_tiled(g, &hc->fn);
}

size_t gpu_hyper_part_bytes(const gpu *g)
{
    return (size_t)BE_NARROW * (size_t)(g->base.dims.d / DOT_COLUMNS) * PART_WIDTH * sizeof(float);
}

void gpu_hyper(gpu *g, const nrows &r, float *streams, const be_hc *hc, const float *norm, const float *out, float *mix,
               float *part, const mm_forms *f)
{
    const be_dims *m = &g->base.dims;
    launch_dots(g, r, streams, hc, 24, out, mix, part);
    hmix_args a = {};
    a.r = r, a.streams = streams, a.part = part, a.scale = hc->scale, a.base = hc->base, a.norm = norm;
    a.mix = mix, a.f = *f, a.d = m->d, a.blocks = m->d / DOT_COLUMNS, a.outputs = 24;
    a.rms_eps = m->rms_eps, a.hc_eps = m->hc_eps, a.inverse_d = 1.0f / (float)m->d;
    GPU_CHAIN(g, hyper_mix, dim3(m->d / 256, r.n), 256, 0, a);
}

void gpu_hyper_head(gpu *g, int n, float *streams, const be_hc *hc, const float *norm, const float *out,
                    const float *mix, float *part, float *y, float *x)
{
    const be_dims *m = &g->base.dims;
    nrows r = {NULL, NULL, NULL, NULL, n};
    launch_dots(g, r, streams, hc, 4, out, mix, part);
    hmix_args a = {};
    a.r = r, a.streams = streams, a.part = part, a.scale = hc->scale, a.base = hc->base, a.norm = norm;
    a.y = y, a.x = x, a.d = m->d, a.blocks = m->d / DOT_COLUMNS, a.outputs = 4;
    a.rms_eps = m->rms_eps, a.hc_eps = m->hc_eps, a.inverse_d = 1.0f / (float)m->d;
    GPU_CHAIN(g, hyper_mix, dim3(m->d / 256, n), 256, 0, a);
}
