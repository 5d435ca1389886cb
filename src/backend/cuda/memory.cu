/* memory.cu: device allocations, transfers through pinned memory, scratch. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/gpu.cuh"
#include "backend/cuda/sight.cuh"

static const size_t block_bytes = 8u << 20; /* small allocations are cut from blocks of this size */
static const size_t align_bytes = 256;
static const size_t ring_bytes = 4u << 20, ring_most = 256u << 10; /* uploads up to ring_most go through the ring */
static const size_t shared_bytes = 4096;
static const size_t stage_least = 1u << 20, stage_most = 64u << 20;

struct gpu_block {
    gpu_block *next;
    char *base;
    size_t size, used;
};

static size_t rounded(size_t bytes) { return (bytes + align_bytes - 1) / align_bytes * align_bytes; }

static void no_memory(gpu *g, size_t bytes, cudaError_t rc)
{
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    (void)cudaGetLastError(); /* a refused allocation leaves the context usable */
    gpu_fail(g, "no device memory for %.1f MB: %.1f of %.1f MB are free (%s); use a smaller model or context",
             (double)bytes / 1e6, (double)free_bytes / 1e6, (double)total / 1e6, cudaGetErrorString(rc));
}

static gpu_block *add_block(gpu *g, size_t size)
{
    gpu_block *k = (gpu_block *)calloc(1, sizeof *k);
    if (!k) {
        gpu_fail(g, "no memory for the list of allocations");
        return NULL;
    }
    cudaError_t rc = cudaMalloc((void **)&k->base, size);
    if (rc != cudaSuccess) {
        no_memory(g, size, rc);
        free(k);
        return NULL;
    }
    k->size = size;
    k->next = g->blocks;
    g->blocks = k;
    return k;
}

void *gpu_alloc(gpu *g, size_t bytes)
{
    if (!gpu_ok(g) || !gpu_outside_step(g, "an allocation"))
        return NULL;
    if (bytes > SIZE_MAX / 2) {
        gpu_fail(g, "an allocation of %zu bytes", bytes);
        return NULL;
    }
    size_t whole = rounded(bytes ? bytes : 1);
    gpu_block *k = g->blocks;
    if (whole > block_bytes / 8)
        k = add_block(g, whole);
    else
        while (k && k->size - k->used < whole)
            k = k->next;
    if (!k)
        k = gpu_ok(g) ? add_block(g, block_bytes) : NULL;
    if (!k)
        return NULL;
    void *p = k->base + k->used;
    k->used += whole;
    return GPU_CHECK(g, cudaMemsetAsync(p, 0, whole, g->stream)) ? p : NULL;
}

/* Pinned memory has one address for host and device. */
void *gpu_share(backend *b, size_t bytes)
{
    gpu *g = gpu_of(b);
    size_t whole = (bytes + 63) / 64 * 64;
    if (!gpu_ok(g) || !gpu_outside_step(g, "an allocation"))
        return NULL;
    if (!g->shared) {
        if (!GPU_CHECK(g, cudaMallocHost((void **)&g->shared, shared_bytes)))
            return NULL;
        memset(g->shared, 0, shared_bytes);
    }
    if (whole > shared_bytes - g->shared_used) {
        gpu_fail(g, "no shared memory for %zu bytes", bytes);
        return NULL;
    }
    g->shared_used += whole;
    return g->shared + g->shared_used - whole;
}

/* --- uploads --- */

/* The caller's memory may change as soon as upload returns, so it is copied into pinned memory first. The ring is empty
 * whenever the stream was waited for; if it fills up before, this waits. */
static void upload_small(gpu *g, void *dst, const void *src, size_t bytes)
{
    if (!g->ring && !GPU_CHECK(g, cudaMallocHost((void **)&g->ring, ring_bytes)))
        return;
    size_t whole = (bytes + 63) / 64 * 64;
    if (ring_bytes - g->ring_used < whole) {
        if (!GPU_CHECK(g, cudaStreamSynchronize(g->stream)))
            return;
        g->ring_used = 0;
    }
    char *p = g->ring + g->ring_used;
    g->ring_used += whole;
    memcpy(p, src, bytes);
    GPU_CHECK(g, cudaMemcpyAsync(dst, p, bytes, cudaMemcpyHostToDevice, g->stream));
}

static bool grow_stage(gpu *g, int i, size_t bytes, bool raw)
{
    gpu_buf *host = &g->stage[i], *dev = &g->stage_raw[i];
    if (host->bytes < bytes) {
        cudaFreeHost(host->p);
        *host = gpu_buf{NULL, 0};
        if (!GPU_CHECK(g, cudaMallocHost(&host->p, bytes)))
            return false;
        host->bytes = bytes;
    }
    if (raw && dev->bytes < bytes) {
        cudaFree(dev->p);
        *dev = gpu_buf{NULL, 0};
        cudaError_t rc = cudaMalloc(&dev->p, bytes);
        if (rc != cudaSuccess) {
            no_memory(g, bytes, rc);
            return false;
        }
        dev->bytes = bytes;
    }
    return true;
}

int gpu_stage_take(gpu *g, size_t bytes, size_t *room, bool raw)
{
    int i = g->stage_next;
    if (!gpu_ok(g))
        return -1;
    if (!g->stage_free[i])
        GPU_CHECK(g, cudaEventCreateWithFlags(&g->stage_free[i], cudaEventDisableTiming));
    else
        GPU_CHECK(g, cudaEventSynchronize(g->stage_free[i]));
    bytes = bytes < stage_least ? stage_least : bytes > stage_most ? stage_most : bytes;
    if (!gpu_ok(g) || !grow_stage(g, i, bytes, raw))
        return -1;
    *room = bytes;
    g->stage_next = (i + 1) % GPU_STAGES;
    return i;
}

void gpu_stage_give(gpu *g, int i)
{
    if (gpu_ok(g))
        GPU_CHECK(g, cudaEventRecord(g->stage_free[i], g->stream));
}

void gpu_upload(gpu *g, void *dst, const void *src, size_t bytes)
{
    if (!gpu_ok(g) || !bytes || !gpu_outside_step(g, "an upload"))
        return;
    if (bytes <= ring_most) {
        upload_small(g, dst, src, bytes);
        return;
    }
    for (size_t at = 0, len; at < bytes; at += len) {
        size_t room;
        int i = gpu_stage_take(g, bytes - at, &room, false);
        if (i < 0)
            return;
        len = bytes - at < room ? bytes - at : room;
        memcpy(g->stage[i].p, (const char *)src + at, len);
        GPU_CHECK(g, cudaMemcpyAsync((char *)dst + at, g->stage[i].p, len, cudaMemcpyHostToDevice, g->stream));
        gpu_stage_give(g, i);
    }
}

void gpu_download(gpu *g, void *dst, const void *src, size_t bytes)
{
    if (!gpu_ok(g) || !bytes || !gpu_outside_step(g, "a download"))
        return;
    GPU_CHECK(g, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, g->stream));
    GPU_CHECK(g, cudaStreamSynchronize(g->stream));
    g->ring_used = 0;
}

/* --- scratch --- */

void *gpu_scratch_get(gpu *g, enum gpu_scratch which, size_t bytes)
{
    gpu_buf *s = &g->scratch[which];
    if (!gpu_ok(g))
        return NULL;
    if (bytes <= s->bytes)
        return s->p;
    if (!gpu_outside_step(g, "growing scratch"))
        return NULL;
    g->generation++; /* what was captured knows the old place */
    /* earlier operations may still use the old piece */
    if (s->p && !GPU_CHECK(g, cudaStreamSynchronize(g->stream)))
        return NULL;
    cudaFree(s->p);
    *s = gpu_buf{NULL, 0};
    cudaError_t rc = cudaMalloc(&s->p, bytes);
    if (rc != cudaSuccess) {
        no_memory(g, bytes, rc);
        return NULL;
    }
    s->bytes = bytes;
    return s->p;
}

/* An estimate from above of what the operations' scratch grows to. Fixed: staging and packing of weights (up to 64 MB
 * each), inputs and intermediates of products, captured steps. */
int gpu_memory(backend *b, int ctx, size_t *free_bytes, size_t *total, size_t *own, ds4_err *e)
{
    const size_t fixed = 512u << 20;
    const be_dims *m = &b->dims;
    const int far = ctx / 128 > m->idx_topk ? ctx / 128 : m->idx_topk, cap = ctx / 4 + 1;
    const size_t pieces = gpu_blocks(sight_room(m->window + far + GPU_MAX_ROWS), 32);
    const size_t attention = (size_t)BE_NARROW * (size_t)m->heads * pieces * (size_t)(m->head_dim + 4) * sizeof(float);
    const size_t best = 2 * (size_t)m->idx_topk * gpu_blocks(cap, 16384);
    const size_t keys = cap > m->idx_topk ? GPU_MAX_ROWS * ((size_t)cap + best) * sizeof(uint32_t) : 0;
    gpu *g = gpu_of(b);
    if (gpu_ok(g))
        GPU_CHECK(g, cudaMemGetInfo(free_bytes, total));
    *own = fixed + attention + keys;
    return gpu_ok(g) ? 0 : ds4_fail(e, DS4_EBACKEND, "%s", g->error.msg);
}

void gpu_memory_close(gpu *g)
{
    for (gpu_block *k = g->blocks, *next; k; k = next) {
        next = k->next;
        cudaFree(k->base);
        free(k);
    }
    for (int i = 0; i < G_COUNT; i++)
        cudaFree(g->scratch[i].p);
    for (int i = 0; i < GPU_STAGES; i++) {
        cudaFreeHost(g->stage[i].p);
        cudaFree(g->stage_raw[i].p);
        if (g->stage_free[i])
            cudaEventDestroy(g->stage_free[i]);
    }
    cudaFreeHost(g->ring);
    cudaFreeHost(g->shared);
}
