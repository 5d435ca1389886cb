/* open.cu: life and errors of the CUDA backend. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/gpu.cuh"

#include "backend/cuda/cuda_open.h"

void gpu_fail(gpu *g, const char *fmt, ...)
{
    if (g->failed)
        return;
    g->failed = true;
    char text[sizeof g->error.msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ds4_fail(&g->error, DS4_EBACKEND, "CUDA backend: %s", text);
}

bool gpu_check(gpu *g, cudaError_t rc, const char *what, const char *file, int line)
{
    if (g->fault_in > 0 && --g->fault_in == 0) {
        gpu_fail(g, "%s:%d: %.200s: failed for a test", file, line, what);
        return false;
    }
    if (rc == cudaSuccess)
        return true;
    gpu_fail(g, "%s:%d: %.200s: %s", file, line, what, cudaGetErrorString(rc));
    return false;
}

static void op_close(backend *b)
{
    if (!b)
        return;
    gpu *g = gpu_of(b);
    if (g->stream) /* what still runs must not see its memory go */
        cudaStreamSynchronize(g->stream);
    gpu_steps_close(g);
    gpu_memory_close(g);
    if (g->stream)
        cudaStreamDestroy(g->stream);
    free(g);
}

static void *op_alloc(backend *b, size_t bytes) { return gpu_alloc(gpu_of(b), bytes); }

static void op_upload(backend *b, void *dst, const void *src, size_t bytes)
{
    gpu_settle(gpu_of(b));
    gpu_upload(gpu_of(b), dst, src, bytes);
}

static void op_download(backend *b, void *dst, const void *src, size_t bytes)
{
    gpu_settle(gpu_of(b));
    gpu_download(gpu_of(b), dst, src, bytes);
}

static void op_copy(backend *b, void *dst, const void *src, size_t bytes)
{
    gpu *g = gpu_of(b);
    gpu_settle(g);
    if (gpu_ok(g) && bytes)
        GPU_CHECK(g, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, g->stream));
}

static void report_fault(gpu *g)
{
    static const char *const what[] = {"", "token %d is outside the vocabulary of %d", "expert %d of %d does not exist",
                                       "token %d is outside the Markov table of %d"};
    const gpu_fault *f = g->fault;
    char text[100];
    if (f->kind <= FAULT_NONE || f->kind > FAULT_MARKOV)
        return;
    snprintf(text, sizeof text, what[f->kind], f->value, f->limit);
    gpu_fail(g, "%s", text);
}

static int op_sync(backend *b, ds4_err *e)
{
    gpu *g = gpu_of(b);
    if (b->fault_in > 0 && --b->fault_in == 0)
        gpu_fail(g, "injected fault");
    if (gpu_ok(g) && gpu_outside_step(g, "a wait")) {
        if (GPU_CHECK(g, cudaStreamSynchronize(g->stream)))
            report_fault(g);
        g->ring_used = 0; /* nothing is in flight */
    }
    return gpu_ok(g) ? 0 : ds4_fail(e, DS4_EBACKEND, "%s", g->error.msg);
}

static const backend_ops *gpu_ops(void)
{
    static const backend_ops ops = {
        .close = op_close,
        .alloc = op_alloc,
        .upload = op_upload,
        .download = op_download,
        .copy = op_copy,
        .bind = gpu_bind,
        .weight_bytes = gpu_weight_bytes,
        .memory = gpu_memory,
        .synth = gpu_synth,
        .bandwidth = gpu_bandwidth,
        .sync = op_sync,
        .step_begin = gpu_step_begin,
        .step_end = gpu_step_end,
        .embed = gpu_embed,
        .hc_pre = gpu_hc_pre,
        .hc_post = gpu_hc_post,
        .hc_head = gpu_hc_head,
        .linear = gpu_linear,
        .norm = gpu_norm,
        .q_finish = gpu_q_finish,
        .kv_finish = gpu_kv_finish,
        .comp_put = gpu_comp_put,
        .comp_pool = gpu_comp_pool,
        .index_query = gpu_index_query,
        .index_select = gpu_index_select,
        .attend = gpu_attend,
        .route = gpu_route,
        .moe = gpu_moe,
        .tap = gpu_tap,
        .gather = gpu_gather,
        .block = gpu_block_run,
        .pick = gpu_pick,
        .markov = gpu_markov,
        .confidence = gpu_confidence,
        .share = gpu_share,
        .stamp = gpu_stamp,
        .when = gpu_when,
        .pick_in = gpu_pick_in,
        .chain = gpu_chain,
        .gate = gpu_gate,
        .plan = gpu_plan,
        .judge = gpu_judge,
    };
    return &ops;
}

/* A device that this build has code for, or the reason why not. */
static int find_device(cudaDeviceProp *prop, ds4_err *e)
{
    int driver = 0, runtime = 0, count = 0;
    cudaError_t rc = cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (rc != cudaSuccess || driver == 0)
        return ds4_fail(e, DS4_EBACKEND, "CUDA: no NVIDIA driver is installed; use --backend cpu");
    rc = cudaGetDeviceCount(&count);
    if (rc == cudaErrorInsufficientDriver)
        return ds4_fail(e, DS4_EBACKEND,
                        "CUDA: the driver supports CUDA %d.%d, this program needs %d.%d: update the driver "
                        "or use --backend cpu",
                        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (rc != cudaSuccess || count == 0)
        return ds4_fail(e, DS4_EBACKEND, "CUDA: no usable device: %s; use --backend cpu",
                        rc != cudaSuccess ? cudaGetErrorString(rc) : "none is visible");
    rc = cudaSetDevice(0);
    if (rc == cudaSuccess)
        rc = cudaGetDeviceProperties(prop, 0);
    if (rc != cudaSuccess)
        return ds4_fail(e, DS4_EBACKEND, "CUDA: device 0 cannot be used: %s", cudaGetErrorString(rc));
    return 0;
}

static __global__ void probe(int *out) { *out = 1; }

/* Streams, fault word, tables; the first kernel shows whether this build has code for the device. */
static void prepare(gpu *g, const cudaDeviceProp *prop)
{
    GPU_CHECK(g, cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking));
    g->fault = (gpu_fault *)gpu_share(&g->base, sizeof *g->fault);
    uint64_t *grid = (uint64_t *)gpu_alloc(g, sizeof quant_iq2xxs_grid);
    gpu_upload(g, grid, quant_iq2xxs_grid, sizeof quant_iq2xxs_grid);
    g->grid = grid;
    int *word = (int *)gpu_alloc(g, sizeof *word);
    if (!gpu_ok(g))
        return;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = cfg.blockDim = dim3(1);
    cfg.stream = g->stream;
    cudaError_t rc = cudaLaunchKernelEx(&cfg, probe, word);
    if (rc != cudaSuccess)
        gpu_fail(g, "%s (compute capability %d.%d): %s; build with `make cuda CUDA_ARCH=sm_%d%d`", prop->name,
                 prop->major, prop->minor, cudaGetErrorString(rc), prop->major, prop->minor);
}

extern "C" int cuda_open(backend **out, const backend_options *o, ds4_err *e)
{
    cudaDeviceProp prop;
    *out = NULL;
    int rc = find_device(&prop, e);
    if (rc)
        return rc;
    gpu *g = (gpu *)calloc(1, sizeof *g);
    if (!g)
        return ds4_fail(e, DS4_ENOMEM, "no memory for the CUDA backend");
    g->base.op = gpu_ops();
    g->base.name = "cuda";
    g->base.max_rows = GPU_MAX_ROWS;
    g->base.graphs = true;
    g->base.unified = prop.integrated;
    g->act = o->act;
    g->sms = prop.multiProcessorCount;
    g->compact_from = prop.totalGlobalMem < ((size_t)125 << 30) ? (size_t)256 << 20 : SIZE_MAX;
    g->chains = prop.major >= 9;
    g->smem_limit = prop.sharedMemPerBlock;
    g->smem_most = prop.sharedMemPerBlockOptin;
    prepare(g, &prop);
    rc = op_sync(&g->base, e);
    if (rc) {
        op_close(&g->base);
        return rc;
    }
    *out = &g->base;
    return 0;
}

extern "C" void cuda_fault_after(backend *b, int k) { gpu_of(b)->fault_in = k; }
