/* beside.cuh: what blocks of a phase do beside or after its products: the query rank, the KV row, the compressors. */
#ifndef DS4_BACKEND_CUDA_BESIDE_CUH
#define DS4_BACKEND_CUDA_BESIDE_CUH

#include "backend/cuda/block.cuh"
#include "backend/cuda/row.cuh"

typedef struct input_side {
    const float *qa, *qa_norm;
    mm_forms qn;
    int rank;
    float inverse_rank, rms_eps;
} input_side;

/* The block norms the query ranks of all rows and makes their forms. factor: room for a number per row. rank: a
 * multiple of 128. */
DEV void finish_rank(const input_side &a, int n, float *factor)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pieces = (a.rank + 255) / 256;
#pragma unroll 1
    for (int r = warp; r < n; r += MM_WARPS) {
        const float4 *x = reinterpret_cast<const float4 *>(a.qa + (int64_t)r * a.rank);
        float sum = 0;
#pragma unroll 4
        for (int i = lane; i < a.rank / 4; i += 32) {
            float4 v = __ldcg(x + i);
            sum = __fmaf_rn(v.x, v.x, sum), sum = __fmaf_rn(v.y, v.y, sum);
            sum = __fmaf_rn(v.z, v.z, sum), sum = __fmaf_rn(v.w, v.w, sum);
        }
        factor[r] = rsqrtf(__fmaf_rn(warp_sum(sum), a.inverse_rank, a.rms_eps));
    }
    __syncthreads();
#pragma unroll 1
    for (int p = warp; p < n * pieces; p += MM_WARPS) {
        int r = p / pieces, at = p % pieces * 256, i = at + 8 * lane, left = a.rank - at;
        float v[8] = {}, f = factor[r];
        for (int e = 0; e < 8 && 8 * lane < left; e++)
            v[e] = __fmul_rn(__fmul_rn(__ldcg(a.qa + (int64_t)r * a.rank + i + e), f), a.qa_norm[i + e]);
        warp_forms(a.qn, r, at, v, left, lane);
    }
}

/* One compressor of a layer. */
typedef struct pool_side {
    const float *kv, *gate, *ape, *norm;
    be_store ring, out;
    bool index;
} pool_side;

typedef struct query_side {
    nrows r;
    const float *kv_norm, *freq;
    float *kv;
    be_store raw; /* base NULL: not stored */
    pool_side side[2];
    int sides, ratio, dim, rope;
    float eps;
    bool sim_kv, sim_index;
} query_side;

enum { ROW_EACH = 2 }; /* numbers of a row for each thread: rows of up to 512 */

/* row = row / sqrt(mean square + eps) * w, and the rotation of its tail at pos; v: the thread's numbers of the row, w:
 * of the norm, freq: the thread's frequency; sums: a number for each warp. In float32: some devices have hardly any
 * float64. All loads were made before, in one round trip. */
DEV void norm_and_rotate(float *row, float (&v)[ROW_EACH], const float (&w)[ROW_EACH], int n, float eps, int pos,
                         float freq, int rope, float *sums)
{
    float sum = 0;
#pragma unroll
    for (int k = 0; k < ROW_EACH; k++)
        sum = __fmaf_rn(v[k], v[k], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < MM_WARPS; i++)
        sum = __fadd_rn(sum, sums[i]);
    float f = rsqrtf(__fadd_rn(__fdividef(sum, (float)n), eps));
#pragma unroll
    for (int k = 0; k < ROW_EACH; k++)
        if ((int)threadIdx.x + k * MM_THREADS < n)
            row[threadIdx.x + k * MM_THREADS] = __fmul_rn(__fmul_rn(v[k], f), w[k]);
    __syncthreads();
    float *tail = row + n - rope;
    int i = threadIdx.x;
    if (i < rope / 2) {
        float2 cs = turn_of(pos, freq), t = rotated(tail[2 * i], tail[2 * i + 1], cs.x, cs.y);
        tail[2 * i] = t.x;
        tail[2 * i + 1] = t.y;
    }
    __syncthreads();
}

DEV void load_row(float (&v)[ROW_EACH], const float *x, int n)
{
#pragma unroll
    for (int k = 0; k < ROW_EACH; k++)
        v[k] = (int)threadIdx.x + k * MM_THREADS < n ? x[threadIdx.x + k * MM_THREADS] : 0.0f;
}

DEV float load_freq(const query_side &a) { return (int)threadIdx.x < a.rope / 2 ? a.freq[threadIdx.x] : 0.0f; }

/* Finishes the KV row of row r: norm, rotation, simulated FP8. */
DEV void finish_kv_row(const query_side &a, int r, float *row, float *sums)
{
    float *x = a.kv + (int64_t)r * a.dim, v[ROW_EACH], w[ROW_EACH], freq = load_freq(a);
    int pos = a.r.pos[r], seq = a.r.seq[r];
    load_row(v, x, a.dim);
    load_row(w, a.kv_norm, a.dim);
    norm_and_rotate(row, v, w, a.dim, a.eps, pos, freq, a.rope, sums);
    if (a.sim_kv)
        row_sim_fp8(row, a.dim - a.rope);
    float *to = a.raw.base ? ring_row(a.raw, seq, pos) : NULL;
    for (int i = threadIdx.x; i < a.dim; i += blockDim.x) {
        x[i] = row[i];
        if (to)
            to[i] = row[i];
    }
}

/* The row of this forward at position p of a sequence, or -1. */
DEV int own_row(const query_side &a, int seq, int p)
{
    for (int i = 0; i < a.r.n; i++)
        if (a.r.pos[i] == p && a.r.seq[i] == seq)
            return i;
    return -1;
}

/* Where the input of a window's position lies: its values, its gates (ape to be added unless it comes from the ring).
 */
typedef struct window_row {
    const float *kv, *gate, *ape;
} window_row;

DEV window_row find_row(const query_side &a, const pool_side &s, int seq, int p, int start)
{
    int w = s.ring.width / 2, own = own_row(a, seq, p), lane = w == 2 * s.out.width && p >= start ? s.out.width : 0;
    if (own < 0) {
        const float *x = ring_row(s.ring, seq, p) + lane;
        return window_row{x, x + w, NULL};
    }
    return window_row{s.kv + (int64_t)own * w + lane, s.gate + (int64_t)own * w + lane,
                      s.ape + (int64_t)(p % a.ratio) * w + lane};
}

/* Column k of a window; compress.cu states the rule, these are the same sums. */
DEV float pool_value(const window_row *rows, int n, int k)
{
    float top = 0, sum = 0, acc = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        float z = rows[i].ape ? __fadd_rn(rows[i].gate[k], rows[i].ape[k]) : rows[i].gate[k];
        top = i == 0 || z > top ? z : top;
    }
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        float z = rows[i].ape ? __fadd_rn(rows[i].gate[k], rows[i].ape[k]) : rows[i].gate[k];
        float e = expf(__fsub_rn(z, top));
        sum = __fadd_rn(sum, e);
        acc = __fadd_rn(acc, __fmul_rn(e, rows[i].kv[k]));
    }
    return __fdiv_rn(acc, sum);
}

/* Stores row r's compressor input; pools the window that ends with it, if one does. */
DEV void pool_row(const query_side &a, const pool_side &s, int r, float *row, window_row *rows, float *sums)
{
    int w = s.ring.width / 2, d = s.out.width, pos = a.r.pos[r], seq = a.r.seq[r], at = pos / a.ratio;
    float *to = ring_row(s.ring, seq, pos);
    for (int i = threadIdx.x; i < w; i += blockDim.x) {
        to[i] = s.kv[(int64_t)r * w + i];
        to[w + i] = __fadd_rn(s.gate[(int64_t)r * w + i], s.ape[(int64_t)(pos % a.ratio) * w + i]);
    }
    if ((pos + 1) % a.ratio)
        return;
    int start = at * a.ratio, first = w == 2 * d && at > 0 ? start - a.ratio : start, end = start + a.ratio;
    float v[ROW_EACH], norm[ROW_EACH], freq = load_freq(a);
    load_row(norm, s.norm, d);
    for (int i = threadIdx.x; i < end - first; i += blockDim.x)
        rows[i] = find_row(a, s, seq, first + i, start);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ROW_EACH; k++)
        v[k] =
            (int)threadIdx.x + k * MM_THREADS < d ? pool_value(rows, end - first, threadIdx.x + k * MM_THREADS) : 0.0f;
    norm_and_rotate(row, v, norm, d, a.eps, start, freq, a.rope, sums);
    if (a.sim_kv && !s.index)
        row_sim_fp8(row, d - a.rope);
    if (a.sim_index && s.index && threadIdx.x < 32) {
        warp_hadamard(row, d);
        warp_sim_fp4(row, d);
    }
    __syncthreads();
    float *out = array_row(s.out, seq, at);
    for (int k = threadIdx.x; k < d; k += blockDim.x)
        out[k] = row[k];
}

#endif
