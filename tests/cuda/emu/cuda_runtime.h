/* cuda_runtime.h: stands in for NVIDIA's header so that the CUDA backend compiles as C++ and runs on the CPU, for tests
 * of its logic on machines without a GPU. A block's threads are fibers on one system thread; a barrier switches to the
 * next. Barriers that not all threads reach are reported. Device memory is ordinary memory, filled with NaN when
 * allocated.
 *
 * What it cannot show: races that need true concurrency (orders are varied a little), timing, and limits of a device.
 */
#ifndef DS4_TESTS_CUDA_EMU_RUNTIME_H
#define DS4_TESTS_CUDA_EMU_RUNTIME_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmath>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define GPU_DYNAMIC_SMEM(type, name) type *name = static_cast<type *>(emu_dynamic_smem())

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(4) short2 {
    short x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* --- threads --- */
void *emu_dynamic_smem(void);
void emu_run(dim3 grid, dim3 block, size_t smem, void (*fn)(void *), void *ctx);
void emu_warp_barrier(void);
void *emu_warp_slots(void); /* 32 slots of 8 bytes for the exchange that begins here; alternates between two sets */
void __syncthreads(void);
static inline void __syncwarp(unsigned = 0xffffffffu) { emu_warp_barrier(); }

template <class T> static inline T __shfl_sync(unsigned, T v, int from)
{
    static_assert(sizeof(T) <= 8, "shuffles move at most 8 bytes");
    uint64_t *slot = static_cast<uint64_t *>(emu_warp_slots());
    memcpy(&slot[threadIdx.x % 32], &v, sizeof v);
    emu_warp_barrier();
    memcpy(&v, &slot[from & 31], sizeof v);
    return v;
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int x)
{
    return __shfl_sync(mask, v, (int)(threadIdx.x % 32) ^ x);
}
static inline unsigned __ballot_sync(unsigned, bool flag)
{
    uint64_t *slot = static_cast<uint64_t *>(emu_warp_slots());
    slot[threadIdx.x % 32] = flag;
    emu_warp_barrier();
    unsigned votes = 0;
    for (int i = 0; i < 32; i++)
        votes |= (unsigned)(slot[i] & 1) << i;
    return votes;
}
static inline int atomicAdd(int *p, int v)
{
    int old = *p;
    *p += v;
    return old;
}

/* --- arithmetic --- */
static inline float __uint_as_float(unsigned u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline unsigned __float_as_uint(float f)
{
    unsigned u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return std::sqrt(a); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
static inline int __float2int_rn(float f) { return (int)lrintf(f); }
static inline float __ull2float_rn(unsigned long long v) { return (float)v; }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    uint64_t all = (uint64_t)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++)
        r |= (unsigned)(all >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return r;
}

/* --- the runtime --- */
enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
typedef struct emu_stream *cudaStream_t;
typedef struct emu_event *cudaEvent_t;
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
};
struct cudaDeviceProp {
    char name[64];
    int major, minor, multiProcessorCount;
    size_t sharedMemPerBlock;
};
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError(void);
cudaError_t cudaDriverGetVersion(int *v);
cudaError_t cudaRuntimeGetVersion(int *v);
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int i);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int i);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **p, size_t bytes);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemsetAsync(void *p, int v, size_t bytes, cudaStream_t s);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);

template <class... P> struct emu_call {
    void (*kernel)(P...);
    std::tuple<P...> args;
    static void run(void *ctx)
    {
        emu_call *c = static_cast<emu_call *>(ctx);
        std::apply(c->kernel, c->args);
    }
};
template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *cfg, void (*kernel)(P...), A &&...args)
{
    emu_call<P...> call = {kernel, std::tuple<P...>(args...)};
    unsigned threads = cfg->blockDim.x * cfg->blockDim.y * cfg->blockDim.z;
    if (!threads || threads > 1024 || !cfg->gridDim.x || !cfg->gridDim.y || !cfg->gridDim.z || cfg->gridDim.y > 65535 ||
        cfg->gridDim.z > 65535 || cfg->dynamicSmemBytes > 48 << 10)
        return cudaErrorInvalidValue;
    emu_run(cfg->gridDim, cfg->blockDim, cfg->dynamicSmemBytes, emu_call<P...>::run, &call);
    return cudaSuccess;
}

#endif
