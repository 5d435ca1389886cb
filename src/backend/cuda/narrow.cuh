/* narrow.cuh: what the phases of the fused block share (block.cu lists the phases). */
#ifndef DS4_BACKEND_CUDA_NARROW_CUH
#define DS4_BACKEND_CUDA_NARROW_CUH

#include "backend/cuda/gpu.cuh"
#include "backend/cuda/mm.cuh"

/* The rows of a launch, at most BE_NARROW. */
typedef struct nrows {
    const int32_t *token, *pos, *seq, *count; /* be_rows, moved to the launch's first row */
    int n;
} nrows;

/* Rows that are wanted; the others are skipped where that saves time. */
DEV int rows_wanted(const nrows &r)
{
    int n = r.count ? *r.count : r.n;
    return n < r.n ? n : r.n;
}

/* Attention of a narrow forward: attend.cu. Takes the raw products of q_b, gives what out_a takes. */
typedef struct nattend {
    nrows r;
    int max_pos;        /* largest position of the launch, or a bound of it: for launch shapes alone */
    const float *q;     /* [n][heads][dim], neither normed nor rotated */
    const float *block; /* drafter: [n][dim] finished KV rows of the block; else NULL */
    be_store raw, comp; /* comp.base NULL: none */
    int ratio;
    const int32_t *sel; /* [n][idx_topk] or NULL */
    const float *sinks, *freq;
    qrows out; /* [n][heads * dim], group 32 */
} nattend;
void gpu_attend_narrow(gpu *g, const nattend *a);
bool gpu_attend_fits(const gpu *g); /* whether it has kernels for the model's sizes on this device */

#endif
