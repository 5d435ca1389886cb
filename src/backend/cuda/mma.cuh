/* mma.cuh: the machine's instructions that kernels of the narrow path are made of: tensor-core products, streaming
 * loads, and the two halves of a programmatic dependent launch. tests/cuda/emu has a twin of each. */
#ifndef DS4_BACKEND_CUDA_MMA_CUH
#define DS4_BACKEND_CUDA_MMA_CUH

#include "backend/cuda/num.cuh"

/* Fragments, lane = 4 g + t. c[0], c[1]: row g, columns 2t, 2t+1; c[2], c[3]: row g + 8.
 * k32 int8: a[0] row g, k = 4t..4t+3; a[1] row g+8; a[2], a[3] the same with k + 16; b[0] column g, k = 4t..4t+3; b[1]
 * k +
 * 16. k16 int8: a[0], a[1], b as the first halves of these.
 * k16 half: a[0] row g, k = 2t, 2t+1; a[1] row g+8; a[2], a[3] the same with k + 8; b[0] column g, k = 2t, 2t+1; b[1] k
 * + 8. */
DEV void mma_s8_k32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if defined(__CUDA_ARCH__)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif defined(GPU_EMULATED)
    emu_mma_s8(c, a, 4, b0, b1);
#endif
}

DEV void mma_s8_k16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0)
{
#if defined(__CUDA_ARCH__)
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
#elif defined(GPU_EMULATED)
    const uint32_t a[2] = {a0, a1};
    emu_mma_s8(c, a, 2, b0, 0);
#endif
}

DEV void mma_f16_k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if defined(__CUDA_ARCH__)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif defined(GPU_EMULATED)
    emu_mma_f16(c, a, b0, b1);
#endif
}

/* tf32 is float32 whose last 13 bits are ignored. a[0] row g, k = t; a[1] row g+8; a[2], a[3] the same with k + 4; b[0]
 * column g, k = t; b[1] k + 4. */
DEV void mma_tf32_k8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if defined(__CUDA_ARCH__)
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif defined(GPU_EMULATED)
    emu_mma_tf32(c, a, b0, b1);
#endif
}

/* 16 bytes from global to shared memory. They are there after the thread's copy_wait and a barrier of the block. */
DEV void copy_async(void *shared, const void *global)
{
#if defined(__CUDA_ARCH__)
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
#else
    *reinterpret_cast<uint4 *>(shared) = *reinterpret_cast<const uint4 *>(global);
#endif
}

DEV void copy_wait()
{
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* Groups of copies: those issued since the last call; waits until at most N groups of the thread are on their way. */
DEV void copy_group()
{
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N> DEV void copy_wait_group()
{
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* Four bytes, for what is not aligned to more. */
DEV void copy_word(void *shared, const void *global)
{
#if defined(__CUDA_ARCH__)
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
#else
    *reinterpret_cast<uint32_t *>(shared) = *reinterpret_cast<const uint32_t *>(global);
#endif
}

/* 16 bytes of a weight: read once, not worth a place in L1. */
DEV uint4 load_stream(const void *p)
{
#if defined(__CUDA_ARCH__)
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
#else
    return *reinterpret_cast<const uint4 *>(p);
#endif
}

/* Programmatic dependent launch (GPU_CHAIN in gpu.cuh). A kernel launched that way may start before the one before it
 * has finished. It must call chain_wait() in every thread before it touches anything that an earlier kernel reads or
 * writes; weights may be read before. chain_next() lets the kernel after it start. Without effect below sm_90. */
DEV void chain_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEV void chain_next()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
