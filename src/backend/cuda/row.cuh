/* row.cuh: work of a whole block on one row in shared memory. Each function is entered by all threads after a barrier
 * and ends with one. */
#ifndef DS4_BACKEND_CUDA_ROW_CUH
#define DS4_BACKEND_CUDA_ROW_CUH

#include "backend/cuda/gpu.cuh"
#include "backend/cuda/num.cuh"

DEV float *ring_row(const be_store &s, int seq, int pos)
{
    return s.base + (size_t)seq * s.seq_stride + (size_t)(pos % s.cap) * (size_t)s.width;
}

DEV float *array_row(const be_store &s, int seq, int i)
{
    return s.base + (size_t)seq * s.seq_stride + (size_t)i * (size_t)s.width;
}

/* cs[i] = (cos, sin) for the first `half` frequencies; no barrier. */
DEV void make_angles(float2 *cs, int pos, const float *freq, int half)
{
    for (int i = threadIdx.x; i < half; i += blockDim.x)
        cs[i] = angle_of(pos, freq[i]);
}

/* row = row / sqrt(mean square + eps) * w; room: 32 doubles of shared memory. */
DEV void row_norm(float *row, const float *w, int n, float eps, double *room)
{
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        sum = __dadd_rn(sum, square(row[i]));
    float scale = (float)inverse_rms(block_sum(sum, room), n, eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        row[i] = __fmul_rn(__fmul_rn(row[i], scale), w[i]);
    __syncthreads();
}

DEV void row_rotate(float *tail, int pos, const float *freq, int half)
{
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        float2 cs = angle_of(pos, freq[i]), v = rotated(tail[2 * i], tail[2 * i + 1], cs.x, cs.y);
        tail[2 * i] = v.x;
        tail[2 * i + 1] = v.y;
    }
    __syncthreads();
}

/* Simulated FP8, one warp per block of 64: the largest magnitude does not depend on the order. */
DEV void row_sim_fp8(float *row, int n)
{
    int lane = threadIdx.x % 32;
    for (int b = (int)threadIdx.x / 32 * 64; b < n; b += (int)blockDim.x / 32 * 64) {
        float v0 = row[b + lane], v1 = row[b + 32 + lane];
        float s = pow2_value(ceil_log2(__fmul_rn(warp_max(fmaxf(1e-4f, fmaxf(fabsf(v0), fabsf(v1)))), 1.0f / 448.0f)));
        row[b + lane] = __fmul_rn(round_e4m3(__fdiv_rn(v0, s)), s);
        row[b + 32 + lane] = __fmul_rn(round_e4m3(__fdiv_rn(v1, s)), s);
    }
    __syncthreads();
}

/* --- one warp on one row in shared memory; barriers are the warp's --- */

DEV void warp_hadamard(float *row, int n)
{
    int lane = threadIdx.x % 32;
    for (int h = 1; h < n; h *= 2) {
        for (int k = lane; k < n / 2; k += 32) {
            int i = k / h * 2 * h + k % h;
            float a = row[i], b = row[i + h];
            row[i] = __fadd_rn(a, b);
            row[i + h] = __fsub_rn(a, b);
        }
        __syncwarp();
    }
    float s = __fdiv_rn(1.0f, __fsqrt_rn((float)n));
    for (int i = lane; i < n; i += 32)
        row[i] = __fmul_rn(row[i], s);
    __syncwarp();
}

/* Simulated FP4 in blocks of 32. */
DEV void warp_sim_fp4(float *row, int n)
{
    int lane = threadIdx.x % 32;
    for (int b = 0; b < n; b += 32) {
        float v = row[b + lane], top = warp_max(fmaxf(6.0f * 1.1754943508222875e-38f, fabsf(v)));
        float s = pow2_value(ceil_log2(__fmul_rn(top, 1.0f / 6.0f)));
        row[b + lane] = __fmul_rn(round_e2m1(__fdiv_rn(v, s)), s);
    }
    __syncwarp();
}

#endif
