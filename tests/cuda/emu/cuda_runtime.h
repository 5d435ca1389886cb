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
#include <functional>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define GPU_EMULATED
#define GPU_DYNAMIC_SMEM(type, name) type *name = static_cast<type *>(emu_dynamic_smem())

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
#define EMU_VECTORS(T, name, size)                                                                                     \
    struct alignas(2 * size) name##2 {                                                                                 \
        T x, y;                                                                                                        \
    };                                                                                                                 \
    struct alignas(4 * size > 16 ? 16 : 4 * size) name##4 {                                                            \
        T x, y, z, w;                                                                                                  \
    };                                                                                                                 \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                  \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTORS(signed char, char, 1)
EMU_VECTORS(unsigned char, uchar, 1)
EMU_VECTORS(short, short, 2)
EMU_VECTORS(unsigned short, ushort, 2)
EMU_VECTORS(int, int, 4)
EMU_VECTORS(unsigned, uint, 4)
EMU_VECTORS(float, float, 4)
EMU_VECTORS(double, double, 8)

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* --- threads --- */
void *emu_dynamic_smem(void);
void emu_run(dim3 grid, dim3 block, size_t smem, void (*fn)(void *), void *ctx);
void emu_warp_barrier(void);
void *emu_warp_slots(void); /* 1536 bytes for the exchange that begins here; alternates between two sets */
void __syncthreads(void);
static inline void __syncwarp(unsigned = 0xffffffffu) { emu_warp_barrier(); }

unsigned emu_lane(void);
template <class T> static inline T emu_shuffle(T v, int from)
{
    static_assert(sizeof(T) <= 8, "shuffles move at most 8 bytes");
    uint64_t *slot = static_cast<uint64_t *>(emu_warp_slots());
    memcpy(&slot[emu_lane()], &v, sizeof v);
    emu_warp_barrier();
    memcpy(&v, &slot[from], sizeof v);
    return v;
}
template <class T> static inline T __shfl_sync(unsigned, T v, int from, int width = 32)
{
    return emu_shuffle(v, (int)(emu_lane() & ~(width - 1)) | (from & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int x, int = 32)
{
    return emu_shuffle(v, (int)emu_lane() ^ x);
}
template <class T> static inline T __shfl_down_sync(unsigned, T v, unsigned by, int width = 32)
{
    unsigned l = emu_lane();
    return emu_shuffle(v, (int)(l % width + by < (unsigned)width ? l + by : l));
}
template <class T> static inline T __shfl_up_sync(unsigned, T v, unsigned by, int width = 32)
{
    unsigned l = emu_lane();
    return emu_shuffle(v, (int)(l % width >= by ? l - by : l));
}
static inline unsigned __ballot_sync(unsigned, bool flag)
{
    uint64_t *slot = static_cast<uint64_t *>(emu_warp_slots());
    slot[emu_lane()] = flag;
    emu_warp_barrier();
    unsigned votes = 0;
    for (int i = 0; i < 32; i++)
        votes |= (unsigned)(slot[i] & 1) << i;
    return votes;
}
static inline bool __any_sync(unsigned mask, bool flag) { return __ballot_sync(mask, flag) != 0; }
static inline bool __all_sync(unsigned mask, bool flag) { return __ballot_sync(mask, !flag) == 0; }
#define EMU_ATOMIC(name, change)                                                                                       \
    template <class T> static inline T name(T *p, std::type_identity_t<T> v)                                           \
    {                                                                                                                  \
        static_assert(std::is_integral_v<T>, "sums of floats by atomics have no fixed order");                         \
        T old = *p;                                                                                                    \
        *p = change;                                                                                                   \
        return old;                                                                                                    \
    }
EMU_ATOMIC(atomicAdd, old + v)
EMU_ATOMIC(atomicSub, old - v)
EMU_ATOMIC(atomicExch, v)
EMU_ATOMIC(atomicMax, old > v ? old : v)
EMU_ATOMIC(atomicMin, old < v ? old : v)
EMU_ATOMIC(atomicOr, old | v)
EMU_ATOMIC(atomicAnd, old & v)
EMU_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
template <class T> static inline T atomicCAS(T *p, std::type_identity_t<T> old, std::type_identity_t<T> v)
{
    T was = *p;
    *p = was == old ? v : was;
    return was;
}
static inline void __threadfence(void) {}
static inline void __threadfence_block(void) {}
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, std::type_identity_t<T> v) { *p = v; }

/* --- tensor cores (src/backend/cuda/mma.cuh says which lane holds what): every lane lays its part of A and B out as
 * whole matrices, then computes its own four results --- */
static inline float emu_half(unsigned h)
{
    int exp = h >> 10 & 31, man = h & 0x3ff;
    float v = exp == 31 ? (man ? NAN : INFINITY) : std::ldexp((float)(exp ? man | 0x400 : man), (exp ? exp : 1) - 25);
    return h & 0x8000 ? -v : v;
}
static inline void emu_mma_s8(int (&c)[4], const uint32_t *a, int regs, uint32_t b0, uint32_t b1)
{
    const unsigned g = emu_lane() / 4, t = emu_lane() % 4;
    int8_t(*A)[32] = static_cast<int8_t(*)[32]>(emu_warp_slots()), (*B)[32] = A + 16;
    for (int i = 0; i < 4; i++)
        memset(&A[g + 8 * (i & 1)][4 * t + 16 * (i >> 1)], 0, 4);
    for (int i = 0; i < regs; i++)
        memcpy(&A[g + 8 * (i & 1)][4 * t + 16 * (i >> 1)], &a[i], 4);
    memcpy(&B[g][4 * t], &b0, 4);
    memcpy(&B[g][4 * t + 16], &b1, 4);
    emu_warp_barrier();
    for (int i = 0; i < 4; i++) {
        const int8_t *x = A[g + 8 * (i >> 1)], *y = B[2 * t + (i & 1)];
        for (int k = 0; k < 32; k++)
            c[i] += x[k] * y[k];
    }
}
static inline void emu_mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const unsigned g = emu_lane() / 4, t = emu_lane() % 4;
    float(*A)[16] = static_cast<float(*)[16]>(emu_warp_slots()), (*B)[16] = A + 16;
    for (int i = 0; i < 8; i++)
        A[g + 8 * (i >> 1 & 1)][2 * t + 8 * (i >> 2) + (i & 1)] = emu_half(a[i >> 1] >> 16 * (i & 1) & 0xffff);
    for (int i = 0; i < 4; i++)
        B[g][2 * t + 8 * (i >> 1) + (i & 1)] = emu_half((i >> 1 ? b1 : b0) >> 16 * (i & 1) & 0xffff);
    emu_warp_barrier();
    for (int i = 0; i < 4; i++) {
        double sum = c[i];
        for (int k = 0; k < 16; k++)
            sum += (double)A[g + 8 * (i >> 1)][k] * (double)B[2 * t + (i & 1)][k];
        c[i] = (float)sum;
    }
}

static inline void emu_mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const unsigned g = emu_lane() / 4, t = emu_lane() % 4;
    uint32_t(*A)[8] = static_cast<uint32_t(*)[8]>(emu_warp_slots()), (*B)[8] = A + 16;
    for (int i = 0; i < 4; i++)
        A[g + 8 * (i & 1)][t + 4 * (i >> 1)] = a[i] & 0xffffe000u;
    B[g][t] = b0 & 0xffffe000u;
    B[g][t + 4] = b1 & 0xffffe000u;
    emu_warp_barrier();
    for (int i = 0; i < 4; i++) {
        double sum = c[i];
        for (int k = 0; k < 8; k++) {
            float x, y;
            memcpy(&x, &A[g + 8 * (i >> 1)][k], 4);
            memcpy(&y, &B[2 * t + (i & 1)][k], 4);
            sum += (double)x * (double)y;
        }
        c[i] = (float)sum;
    }
}
unsigned long long emu_clock(void); /* nanoseconds */

static inline unsigned __reduce_max_sync(unsigned mask, unsigned v)
{
    for (int step = 16; step; step >>= 1) {
        unsigned o = __shfl_xor_sync(mask, v, step);
        v = o > v ? o : v;
    }
    return v;
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return ~__reduce_max_sync(mask, ~v); }

/* --- arithmetic --- */
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf expf
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
static inline float __int_as_float(int v) { return __uint_as_float((unsigned)v); }
static inline int __float_as_int(float f) { return (int)__float_as_uint(f); }
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
static inline float __int2float_rn(int v) { return (float)v; }
static inline float __uint2float_rn(unsigned v) { return (float)v; }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
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
static inline unsigned __vsub4(unsigned a, unsigned b)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i += 8)
        r |= (((a >> i) - (b >> i)) & 255) << i;
    return r;
}
static inline unsigned __vadd4(unsigned a, unsigned b)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i += 8)
        r |= (((a >> i) + (b >> i)) & 255) << i;
    return r;
}

/* --- the runtime --- */
enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
typedef struct emu_stream *cudaStream_t;
typedef struct emu_event *cudaEvent_t;
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};
enum { EMU_SMEM = 227 << 10 }; /* most shared memory of a block, after cudaFuncSetAttribute */
struct cudaDeviceProp {
    char name[64];
    int major, minor, multiProcessorCount;
    size_t sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int l2CacheSize, integrated;
    size_t totalGlobalMem;
};
size_t emu_smem_of(const void *kernel, size_t raise); /* what the kernel may have; raise: 0 = only ask */
template <class F> static inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute what, int value)
{
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || value > EMU_SMEM)
        return cudaErrorInvalidValue;
    return emu_smem_of(reinterpret_cast<const void *>(kernel), (size_t)value), cudaSuccess;
}
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

/* Capture: launches, copies and fills of device memory are recorded and run when the graph is launched. Whatever else a
 * capture would not survive on a device fails. */
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
typedef struct emu_graph *cudaGraph_t;
typedef struct emu_graph *cudaGraphExec_t;
bool emu_capturing(void);
void emu_record(std::function<void()> work);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

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
        cfg->gridDim.z > 65535 || cfg->dynamicSmemBytes > emu_smem_of(reinterpret_cast<const void *>(kernel), 0))
        return cudaErrorInvalidValue;
    if (emu_capturing()) {
        cudaLaunchConfig_t c = *cfg;
        emu_record([c, call]() mutable {
            emu_run(c.gridDim, c.blockDim, c.dynamicSmemBytes, emu_call<P...>::run, &call);
        });
        return cudaSuccess;
    }
    emu_run(cfg->gridDim, cfg->blockDim, cfg->dynamicSmemBytes, emu_call<P...>::run, &call);
    return cudaSuccess;
}

#endif
