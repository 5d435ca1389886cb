/* emu.cc: fibers for the threads of one block, and the parts of the runtime that the backend uses. */
#include "cuda_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include <map>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

/* --- device memory: each allocation ends at a page that nobody may touch, and is open only while the device works, so
 * that a host that follows a device pointer fails as it would with a real device --- */

enum { PAGE = 4096, HUGE = 2 << 20 };
static struct {
    std::map<char *, size_t> live;       /* first byte, bytes in whole pages */
    std::multimap<size_t, char *> spare; /* the same after cudaFree: mapping anew takes long */
    size_t used;
    int working; /* nested */
} memory;

static void protect(int how)
{
    for (auto &a : memory.live)
        mprotect(a.first, a.second, how);
}

struct device_at_work {
    device_at_work()
    {
        if (!memory.working++)
            protect(PROT_READ | PROT_WRITE);
    }
    ~device_at_work()
    {
        if (!--memory.working)
            protect(PROT_NONE);
    }
};

/* DS4_TEST_EMU_MEMORY: megabytes, for tests of too little memory. */
static size_t device_bytes(void)
{
    const char *mb = getenv("DS4_TEST_EMU_MEMORY");
    return mb ? strtoull(mb, NULL, 10) << 20 : (size_t)8 << 30;
}

enum state { READY, AT_WARP, AT_BLOCK, DONE };
enum { MOST = 1024, STACK = 256 << 10, RAISED = 64 };

struct fiber {
    void *sp; /* x86-64 */
    ucontext_t context;
    char *stack;
    state at;
};

static struct machine {
    fiber f[MOST];
    fiber host;
    int current, threads;
    unsigned turn;             /* varies the order of warps and lanes */
    size_t smem_bytes;
    alignas(64) char slots[32][2][1536]; /* per warp: two sets for exchanges */
    unsigned exchanges[MOST];  /* begun by each thread */
    alignas(64) char smem[EMU_SMEM];
    void (*fn)(void *);
    void *ctx;
} m;

#if defined(__x86_64__)
extern "C" void emu_swap(void **save, void *load);
__asm__(".text\n.globl emu_swap\nemu_swap:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static void swap(fiber *from, fiber *to) { emu_swap(&from->sp, to->sp); }
#else
static void swap(fiber *from, fiber *to) { swapcontext(&from->context, &to->context); }
#endif

static void body(void)
{
    for (;;) {
        m.fn(m.ctx);
        m.f[m.current].at = DONE;
        swap(&m.f[m.current], &m.host);
    }
}

static void wait_at(state s)
{
    fiber *me = &m.f[m.current];
    me->at = s;
    swap(me, &m.host);
}

void emu_warp_barrier(void) { wait_at(AT_WARP); }
void __syncthreads(void) { wait_at(AT_BLOCK); }
void *emu_dynamic_smem(void) { return m.smem; }
void *emu_warp_slots(void) { return m.slots[m.current / 32][m.exchanges[m.current]++ & 1]; }

unsigned emu_lane(void) { return m.current % 32; }

size_t emu_smem_of(const void *kernel, size_t raise)
{
    static struct {
        const void *kernel;
        size_t bytes;
    } raised[RAISED];
    int i = 0;
    while (i < RAISED - 1 && raised[i].kernel && raised[i].kernel != kernel)
        i++;
    if (raise && raise > 48 << 10)
        raised[i] = {kernel, raise};
    return raised[i].kernel == kernel ? raised[i].bytes : 48 << 10;
}

static void make_fiber(fiber *f)
{
    f->stack = static_cast<char *>(aligned_alloc(64, STACK));
    if (!f->stack)
        abort();
#if defined(__x86_64__)
    void **sp = reinterpret_cast<void **>(f->stack + STACK) - 8;
    sp[6] = reinterpret_cast<void *>(body); /* six saved registers, then the address to return to */
    f->sp = sp;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, body, 0);
#endif
}

static void resume(int t)
{
    m.current = t;
    threadIdx = dim3(t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y);
    m.f[t].at = READY;
    swap(&m.host, &m.f[t]);
}

/* Runs the lanes of a warp until each is done or at a barrier of the block. */
static void run_warp(int w, bool backwards)
{
    int from = 32 * w, to = from + 32 < m.threads ? from + 32 : m.threads, n = to - from;
    for (;;) {
        int at_warp = 0, ready = 0, at_block = 0;
        for (int i = 0; i < n; i++) {
            int t = backwards ? to - 1 - i : from + i;
            if (m.f[t].at == READY)
                resume(t);
        }
        for (int t = from; t < to; t++) {
            at_warp += m.f[t].at == AT_WARP;
            at_block += m.f[t].at == AT_BLOCK;
            ready += m.f[t].at == READY;
        }
        if (at_warp && at_block) {
            fprintf(stderr, "emulation: lanes of warp %d wait at different barriers\n", w);
            abort();
        }
        if (!at_warp && !ready)
            return;
        for (int t = from; t < to; t++)
            if (m.f[t].at == AT_WARP)
                m.f[t].at = READY;
    }
}

static void run_block(void)
{
    int warps = (m.threads + 31) / 32;
    memset(m.smem, 0xff, m.smem_bytes);
    for (int t = 0; t < m.threads; t++) {
        m.f[t].at = READY;
        m.exchanges[t] = 0;
    }
    for (bool busy = true; busy;) {
        busy = false;
        m.turn = m.turn * 1664525u + 1013904223u;
        for (int i = 0; i < warps; i++)
            run_warp(m.turn >> 30 & 1 ? warps - 1 - i : i, m.turn >> 31);
        for (int t = 0; t < m.threads; t++)
            if (m.f[t].at == AT_BLOCK) {
                m.f[t].at = READY;
                busy = true;
            }
    }
}

void emu_run(dim3 grid, dim3 block, size_t smem, void (*fn)(void *), void *ctx)
{
    device_at_work now;
    m.smem_bytes = smem;
    m.fn = fn;
    m.ctx = ctx;
    gridDim = grid;
    blockDim = block;
    m.threads = (int)(block.x * block.y * block.z);
    for (int t = 0; t < m.threads; t++)
        if (!m.f[t].stack)
            make_fiber(&m.f[t]);
    const bool backwards = m.turn & 1u << 29;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = backwards ? dim3(grid.x - 1 - x, grid.y - 1 - y, grid.z - 1 - z) : dim3(x, y, z);
                run_block();
            }
}

unsigned long long emu_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (unsigned long long)t.tv_sec * 1000000000ull + (unsigned long long)t.tv_nsec;
}

/* --- capture --- */

struct emu_graph {
    std::vector<std::function<void()>> work;
};
static emu_graph *captured; /* NULL: nothing is being captured */
static bool spoiled;        /* something happened in it that a device does not allow */

bool emu_capturing(void) { return captured != NULL; }
void emu_record(std::function<void()> work) { captured->work.push_back(work); }

/* For calls that are no part of a graph. */
static cudaError_t outside(void)
{
    spoiled = spoiled || captured;
    return captured ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode)
{
    if (captured)
        return cudaErrorStreamCaptureUnsupported;
    spoiled = false;
    captured = new emu_graph;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *out)
{
    *out = captured;
    captured = NULL;
    if (!*out || spoiled) {
        delete *out;
        *out = NULL;
        return cudaErrorStreamCaptureUnsupported;
    }
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    return *out = new emu_graph(*graph), cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t)
{
    if (captured)
        return outside();
    device_at_work now;
    for (auto &work : exec->work)
        work();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }

/* --- the runtime --- */

const char *cudaGetErrorString(cudaError_t e) { return e == cudaSuccess ? "no error" : "emulated error"; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { return *v = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { return *v = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    *p = cudaDeviceProp{"emulation", 9, 0, 2, 48 << 10, EMU_SMEM, EMU_SMEM + 1024, 50 << 20, 0, device_bytes()};
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = device_bytes();
    *free_bytes = *total > memory.used ? *total - memory.used : 0;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    if (captured)
        return outside();
    size_t free_bytes, total, page = bytes < HUGE ? PAGE : HUGE, whole = (bytes + page - 1) / page * page;
    cudaMemGetInfo(&free_bytes, &total);
    *p = NULL;
    if (bytes > free_bytes)
        return cudaErrorMemoryAllocation;
    auto again = memory.spare.find(whole);
    void *m = again != memory.spare.end() ? again->second
                                          : mmap(NULL, whole + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    if (again != memory.spare.end())
        memory.spare.erase(again);
    char *at = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(m) + HUGE - 1) / HUGE * HUGE);
    madvise(at, whole, MADV_HUGEPAGE);
    memory.live[at] = whole;
    memory.used += whole;
    device_at_work now;
    memset(at, 0xff, whole);
    return *p = at + (whole - bytes) / 256 * 256, cudaSuccess;
}
cudaError_t cudaFree(void *p)
{
    if (outside())
        return cudaErrorStreamCaptureUnsupported;
    auto a = memory.live.upper_bound(static_cast<char *>(p));
    if (!p || a == memory.live.begin())
        return p ? cudaErrorInvalidValue : cudaSuccess;
    --a;
    memory.used -= a->second;
    if (a->second <= 32u << 20)
        memory.spare.insert({a->second, a->first});
    else
        munmap(a->first, a->second + PAGE);
    memory.live.erase(a);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    if (captured)
        return outside();
    return *p = malloc(bytes), *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void *p) { return free(p), cudaSuccess; }
cudaError_t cudaMemsetAsync(void *p, int v, size_t bytes, cudaStream_t)
{
    if (captured)
        return emu_record([=] { memset(p, v, bytes); }), cudaSuccess;
    device_at_work now;
    return memset(p, v, bytes), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind, cudaStream_t)
{
    if (captured)
        return emu_record([=] { memmove(dst, src, bytes); }), cudaSuccess;
    device_at_work now;
    return memmove(dst, src, bytes), cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              cudaMemcpyKind, cudaStream_t)
{
    device_at_work now;
    for (size_t i = 0; i < height; i++)
        memcpy(static_cast<char *>(dst) + i * dpitch, static_cast<const char *>(src) + i * spitch, width);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    return *s = reinterpret_cast<cudaStream_t>(1), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return outside(); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    return *e = reinterpret_cast<cudaEvent_t>(1), cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t) { return *ms = 1, cudaSuccess; } /* no clock */
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
