/* bandwidth.cu: how fast the device's memory is read and copied, to compare speeds with. */
#include "backend/cuda/gpu.cuh"

enum { TIMES = 8, LOADS = 8 /* in flight per thread */ };

/* Reads everything; nothing is written unless a sum happens to be the one value that is asked for. */
static __global__ void read_all(const uint4 *p, int64_t n, uint32_t never, uint32_t *out)
{
    uint32_t sum = 0;
    int64_t step = (int64_t)gridDim.x * blockDim.x, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (LOADS - 1) * step < n; i += LOADS * step) {
        uint4 v[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            v[k] = p[i + k * step];
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (sum == never)
        *out = sum;
}

/* Best of some times of one job, in seconds; 0 after a failure. */
static double best_of(gpu *g, bool reading, char *from, char *to, size_t bytes)
{
    cudaEvent_t a = NULL, b = NULL;
    double best = 0;
    GPU_CHECK(g, cudaEventCreate(&a));
    GPU_CHECK(g, cudaEventCreate(&b));
    for (int i = 0; i <= TIMES && gpu_ok(g); i++) { /* the first one warms up */
        float ms = 0;
        GPU_CHECK(g, cudaEventRecord(a, g->stream));
        if (reading)
            GPU_LAUNCH(g, read_all, (unsigned)g->sms * 8, GPU_THREADS, 0, (const uint4 *)from,
                       (int64_t)(bytes / sizeof(uint4)), 0x9e3779b9u, (uint32_t *)to);
        else
            GPU_CHECK(g, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, g->stream));
        GPU_CHECK(g, cudaEventRecord(b, g->stream));
        GPU_CHECK(g, cudaEventSynchronize(b));
        GPU_CHECK(g, cudaEventElapsedTime(&ms, a, b));
        if (i && ms > 0 && (best <= 0 || ms * 1e-3 < best))
            best = ms * 1e-3;
    }
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    return best;
}

int gpu_bandwidth(backend *base, double *copy, double *read, ds4_err *e)
{
    gpu *g = gpu_of(base);
    size_t bytes = 1u << 30; /* of each side */
    char *p = NULL;
    *copy = *read = 0;
    for (; gpu_ok(g) && bytes >= 64u << 20; bytes /= 2) {
        if (cudaMalloc((void **)&p, 2 * bytes) == cudaSuccess)
            break;
        (void)cudaGetLastError(); /* a refused allocation leaves the context usable */
        p = NULL;
    }
    if (p && GPU_CHECK(g, cudaMemsetAsync(p, 1, 2 * bytes, g->stream))) {
        const double c = best_of(g, false, p, p + bytes, bytes), r = best_of(g, true, p, p + bytes, bytes);
        *copy = c > 0 ? 2.0 * (double)bytes / c : 0;
        *read = r > 0 ? (double)bytes / r : 0;
    }
    cudaFree(p);
    return gpu_ok(g) ? 0 : ds4_fail(e, DS4_EBACKEND, "%s", g->error.msg);
}
