/* gpu.cuh: inside of the CUDA backend. One device, one stream; operations are launched in issue order and return at
 * once.
 *
 * Files: open (life, errors), graph (steps: capture and replay), memory (allocations, transfers, scratch), bind
 * (weights into the device's layout), unit (that layout and its decoding), num (small formats, reductions), act
 * (quantised inputs), dot (inner products), linear, moe, hc (embedding, hyper-connections), norm (norms, rotation, KV
 * rows, taps), compress, index, attn, route, draft (pick), markov (Markov and confidence heads), cycle (gate, plan and
 * judge of a cycle); block lists those of the fused block.
 *
 * Row invariance. Every sum has one order that depends on the shape of the operation alone: a lane of a warp adds its
 * own elements in ascending order, then a fixed tree adds the lanes. A pass may serve 1, 2, 4 or 8 rows with one
 * decoded weight; the arithmetic of a row is spelled with __fmaf_rn and friends, so that no instance is contracted in
 * another way. There are no atomics on floats.
 *
 * Capture. No operation waits for the device or reads from it. Shapes of launches depend on the number of rows, on
 * max_pos and on the model's sizes alone. Scratch grows at the first operation of a new shape and, for attention, when
 * the context doubles; not otherwise. A step is issued the first time (scratch grows), captured the second time and
 * replayed from then on; when scratch moves, everything captured before is dropped. */
#ifndef DS4_BACKEND_CUDA_GPU_CUH
#define DS4_BACKEND_CUDA_GPU_CUH

#include <cuda_runtime.h>

#define PLAN_FN static __host__ __device__ inline

extern "C" {
#include "backend/backend.h"
#include "file/quant.h"
}

enum {
    GPU_MAX_ROWS = 64, /* most rows of a forward */
    GPU_WARP = 32,
    GPU_THREADS = 256, /* of a block, unless a kernel says otherwise */
    GPU_WARPS = GPU_THREADS / GPU_WARP,
    GPU_MAX_STREAMS = 8,
    GPU_MAX_USED = 16, /* experts of a token */
    GPU_MAX_EXPERTS = 1024,
    GPU_STAGES = 2,  /* pinned staging buffers */
    GPU_RAISED = 64, /* kernels with more shared memory than the default limit */
    GPU_STEPS = 64,  /* captured steps kept */
};

/* Declares `name` as the block's dynamic shared memory. */
#ifndef GPU_DYNAMIC_SMEM
#define GPU_DYNAMIC_SMEM(type, name)                                                                                   \
    extern __shared__ __align__(16) unsigned char gpu_dynamic_smem[];                                                  \
    type *name = reinterpret_cast<type *>(gpu_dynamic_smem)
#endif

enum gpu_scratch {
    G_ACT,    /* quantised or padded inputs of a product */
    G_MID,    /* the same of the experts' hidden rows */
    G_HIDDEN, /* experts' hidden rows; decoded Markov row */
    G_GROUP,  /* rows by expert */
    G_DOT,    /* float64 products: hyper-connections, router */
    G_KEY,    /* index scores as ordered integers; candidates of pick */
    G_PART,   /* partial results of attention */
    G_PACK,   /* weights on their way into tiles */
    G_BLOCK,  /* intermediates of the fused block */
    G_COUNT
};

typedef struct gpu_buf {
    void *p;
    size_t bytes;
} gpu_buf;

/* First fault seen by a kernel (an id out of range). */
enum gpu_fault_kind { FAULT_NONE = 0, FAULT_TOKEN, FAULT_EXPERT, FAULT_MARKOV };
typedef struct gpu_fault {
    int kind, value, limit;
} gpu_fault;

enum gpu_step_state { STEP_NONE, STEP_SEEN, STEP_READY };
typedef struct gpu_step {
    enum gpu_step_state state;
    uint64_t key;
    uint64_t generation; /* of scratch, when it was issued or captured */
    uint64_t used;       /* when it was last begun, for making room */
    cudaGraphExec_t graph;
} gpu_step;

typedef struct gpu_block gpu_block; /* memory.cu: blocks that allocations are cut from */

/* Streams whose last sublayer is not yet mixed in: streams[k] = post[k] out + sum_j comb[j][k] streams[j]. */
typedef struct open_streams {
    float *streams;
    const float *mix, *out;
    int n;
} open_streams;

typedef struct gpu {
    backend base;
    enum be_act act;
    cudaStream_t stream;
    bool failed;
    ds4_err error;                  /* the first failure */
    int sms;                        /* multiprocessors */
    size_t compact_from;            /* bytes from which on a matrix is not made larger than it is in the file */
    bool chains;                    /* the device has programmatic dependent launch */
    size_t smem_limit;              /* bytes of dynamic shared memory that a block may have */
    size_t smem_most;               /* the same for kernels that gpu_raise_smem was called for */
    const void *raised[GPU_RAISED]; /* these kernels */
    gpu_block *blocks;
    gpu_buf scratch[G_COUNT];
    char *ring; /* pinned: small uploads in flight */
    size_t ring_used;
    gpu_buf stage[GPU_STAGES];     /* pinned: large uploads in flight */
    gpu_buf stage_raw[GPU_STAGES]; /* device: raw weights waiting to be repacked */
    cudaEvent_t stage_free[GPU_STAGES];
    int stage_next;
    gpu_fault *fault; /* pinned host memory: kernels write it when they must, the host reads it after a wait */
    char *shared;     /* pinned: what share() hands out */
    size_t shared_used;
    const int32_t *when;  /* device: 0 = operations may do nothing; NULL: they must work */
    int fault_in;         /* tests: the call of the runtime that is to fail, counted down; 0: none */
    const uint64_t *grid; /* device: the IQ2_XXS lattice */
    open_streams pending; /* left by the fused block */
    int rank;             /* largest query rank of a fused block */
    gpu_step step[GPU_STEPS];
    gpu_step *open;      /* the step between begin and end, or NULL */
    bool capturing;      /* of `open` */
    uint64_t generation; /* counts moves of scratch */
    uint64_t steps;      /* begun so far */
    uint64_t replays;    /* of those, replayed */
} gpu;

static inline gpu *gpu_of(backend *b) { return reinterpret_cast<gpu *>(b); }
static inline bool gpu_ok(const gpu *g) { return !g->failed; }

/* Records the first failure; later operations do nothing. */
__attribute__((format(printf, 2, 3))) void gpu_fail(gpu *g, const char *fmt, ...);
/* False, after recording where and what, if a call of the runtime failed. */
bool gpu_check(gpu *g, cudaError_t rc, const char *what, const char *file, int line);
#define GPU_CHECK(g, call) gpu_check(g, call, #call, __FILE__, __LINE__)

/* Launches a kernel on the backend's stream unless the backend has failed. */
template <class... P, class... A>
static inline void gpu_launch(gpu *g, const char *name, const char *file, int line, bool chain, void (*kernel)(P...),
                              dim3 grid, dim3 block, size_t smem, A... args)
{
    if (!gpu_ok(g))
        return;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = grid;
    cfg.blockDim = block;
    cfg.dynamicSmemBytes = smem;
    cfg.stream = g->stream;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cfg.attrs = &early;
    cfg.numAttrs = chain && g->chains ? 1 : 0;
    gpu_check(g, cudaLaunchKernelEx(&cfg, kernel, static_cast<P>(args)...), name, file, line);
}
#define GPU_LAUNCH(g, kernel, grid, block, smem, ...)                                                                  \
    gpu_launch(g, #kernel, __FILE__, __LINE__, false, kernel, grid, block, smem, __VA_ARGS__)
/* The same for kernels that call chain_wait (mma.cuh): they may start before the kernel before them has finished. */
#define GPU_CHAIN(g, kernel, grid, block, smem, ...)                                                                   \
    gpu_launch(g, #kernel, __FILE__, __LINE__, true, kernel, grid, block, smem, __VA_ARGS__)

/* Lets a kernel have `bytes` of dynamic shared memory; false after a failure. */
template <class... P> static inline bool gpu_raise_smem(gpu *g, void (*kernel)(P...), size_t bytes)
{
    const void *k = reinterpret_cast<const void *>(kernel);
    int i = 0;
    while (i < GPU_RAISED - 1 && g->raised[i] && g->raised[i] != k)
        i++;
    if (!gpu_ok(g) || g->raised[i] == k)
        return gpu_ok(g);
    if (GPU_CHECK(g, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes)))
        g->raised[i] = k;
    return gpu_ok(g);
}

static inline unsigned gpu_blocks(int64_t work, int per_block)
{
    return (unsigned)((work + per_block - 1) / per_block);
}

/* Cuts pieces from one allocation; with base NULL it only counts their bytes. */
typedef struct gpu_cutter {
    char *base;
    size_t used;
} gpu_cutter;

static inline void *gpu_cut(gpu_cutter *c, size_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (bytes + 255) / 256 * 256;
    return p;
}

/* --- memory.cu --- */
void *gpu_alloc(gpu *g, size_t bytes); /* zeroed; NULL and a sticky error if there is none */
void *gpu_share(backend *b, size_t bytes);
void gpu_upload(gpu *g, void *dst, const void *src, size_t bytes);
void gpu_download(gpu *g, void *dst, const void *src, size_t bytes);
/* At least `bytes` of device scratch; NULL after a failure. Sized for max_rows by the callers, so that it stops
 * growing. */
void *gpu_scratch_get(gpu *g, enum gpu_scratch which, size_t bytes);
/* A pinned staging buffer of up to `bytes` (at most 64 MB; *room says how much) that no transfer uses any more, or -1.
 */
int gpu_stage_take(gpu *g, size_t bytes, size_t *room, bool raw);
void gpu_stage_give(gpu *g, int i); /* everything issued so far must pass before it is taken again */
int gpu_memory(backend *b, int ctx, size_t *free_bytes, size_t *total, size_t *own, ds4_err *e);
void gpu_memory_close(gpu *g);

/* --- graph.cu --- */
bool gpu_step_begin(backend *b, uint64_t key);
void gpu_step_end(backend *b);
/* False, after a sticky error, inside a step that is being captured: what cannot be part of one. */
bool gpu_outside_step(gpu *g, const char *what);
void gpu_steps_close(gpu *g);

/* --- bind.cu --- */
int gpu_bind(backend *b, be_weight *w, ds4_err *e);
size_t gpu_weight_bytes(backend *b, const be_weight *w); /* in the device's layout */
/* Rows [first, first + rows) of a matrix, in the file's layout in device memory, into the device's layout at `to`.
 * units: gpu_pack_room bytes of device memory. first and rows: multiples of 16 unless the matrix's last. */
size_t gpu_pack_room(const be_weight *w, int64_t rows);
void gpu_pack_rows(gpu *g, const be_weight *w, const uint8_t *raw, uint8_t *units, uint8_t *to, int64_t first,
                   int64_t rows);

/* --- synth.cu, bandwidth.cu --- */
int gpu_synth(backend *b, be_weight *w, uint64_t seed, float scale, ds4_err *e);
int gpu_bandwidth(backend *b, double *copy, double *read, ds4_err *e);

/* --- the operations --- */
void gpu_embed(backend *b, const be_rows *r, const be_weight *table, float *streams);
void gpu_hc_pre(backend *b, int n, const be_hc *hc, const float *norm, const float *streams, float *mix, float *y,
                float *x);
void gpu_hc_post(backend *b, int n, const float *mix, const float *out, float *streams);
void gpu_hc_head(backend *b, int n, const be_hc *hc, const float *norm, const float *streams, float *y, float *x);
void gpu_linear(backend *b, int n, const be_linear *jobs, int k);
void gpu_norm(backend *b, int n, int dim, const float *x, const float *w, float *y);
void gpu_q_finish(backend *b, const be_rows *r, const float *freq, float *q);
void gpu_kv_finish(backend *b, const be_rows *r, const float *norm, const float *freq, bool sim, float *kv,
                   const be_store *ring);
void gpu_comp_put(backend *b, const be_rows *r, int ratio, const float *kv, const float *gate, const float *ape,
                  const be_store *ring);
void gpu_comp_pool(backend *b, const be_rows *r, int ratio, const be_store *ring, const float *norm, const float *freq,
                   bool index, bool sim, const be_store *out);
void gpu_index_query(backend *b, const be_rows *r, const float *freq, bool sim, float *qi);
void gpu_index_select(backend *b, const be_rows *r, int ratio, const float *qi, const float *wi, const be_store *rows,
                      int32_t *sel);
void gpu_attend(backend *b, const be_rows *r, const be_attn *a);
void gpu_route(backend *b, const be_rows *r, const float *x, const be_weight *gate, const float *bias,
               const int32_t *tid2eid, int32_t *ids, float *weights);
void gpu_moe(backend *b, int n, const be_moe *m, const float *x, const int32_t *ids, const float *weights, float *out);
bool gpu_block_run(backend *b, const be_rows *r, const be_block *w, const be_place *p, float *streams);
void gpu_settle(gpu *g); /* finishes open streams */
void gpu_tap(backend *b, const be_rows *r, const float *streams, int slot, const be_store *ring);
void gpu_gather(backend *b, const be_rows *r, const be_store *ring, float *out);
void gpu_pick(backend *b, int n, const float *logits, float temp, uint64_t seed, const int32_t *pos, int32_t *out);
void gpu_markov(backend *b, const be_weight *w1, const be_weight *w2, const int32_t *prev, float *logits);
void gpu_pick_in(backend *b, int n, const float *logits, const be_cycle *c, const int32_t *pos, int32_t *out);
void gpu_stamp(backend *b, be_cycle *c, int i);
void gpu_when(backend *b, const int32_t *flag);
bool gpu_chain(backend *b, int n, const be_weight *w1, const be_weight *w2, be_cycle *c, float *logits);
void gpu_gate(backend *b, be_cycle *c);
void gpu_plan(backend *b, int n, be_cycle *c);
void gpu_judge(backend *b, be_cycle *c, be_record *out);
/* y += W x of one row (linear.cu). */
void gpu_linear_add(gpu *g, const be_linear *job);
void gpu_confidence(backend *b, int n, const be_weight *w, const be_weight *w1, const float *hidden,
                    const int32_t *prev, float *out);

#endif
