/* act.cuh: inputs of products: int8 with one scale per 32 or 256 numbers, or float32 rows. */
#ifndef DS4_BACKEND_CUDA_ACT_CUH
#define DS4_BACKEND_CUDA_ACT_CUH

#include "backend/cuda/view.cuh"

/* Activation row r is part r % parts of token r / parts. Float form: act_row(); rows are aligned to 16 bytes and
 * readable up to the next multiple of 8 numbers (zeros behind n). Int8 form: q, d, sum16 with rows `padded` numbers
 * apart. */
typedef struct aview {
    const float *x;
    int64_t ldx;
    int parts, n;
    int group;  /* 32, 256, or 0 = float */
    int padded; /* n rounded up to 256 */
    int8_t *q;
    float *d;       /* [rows][padded / group] */
    int16_t *sum16; /* [rows][padded / 16], group 256 only */
} aview;

enum { ACT_INPUTS = 8 };

/* Inputs that one launch prepares. */
typedef struct act_set {
    int count;
    aview v[ACT_INPUTS];
    const float *from[ACT_INPUTS]; /* the caller's rows and their distance */
    int64_t from_ld[ACT_INPUTS];
    bool made[ACT_INPUTS]; /* has to be written: int8 or padded float */
    size_t at[ACT_INPUTS]; /* place in scratch */
    size_t bytes;          /* of scratch, for GPU_MAX_ROWS tokens */
} act_set;

/* Elements per scale for a weight type under the backend's mode; 0 = float. */
int act_group(const gpu *g, uint32_t type);
/* Finds or adds an input: rows of n numbers, `parts` in each token's row of distance ldx. The place in set->v, or -1 if
 * the set is full. */
int act_add(act_set *set, int group, const float *x, int64_t ldx, int64_t n, int parts);
/* Fills the views in scratch `which`, in one launch, for `tokens` tokens. `times`: most rows per row of a forward, for
 * the size of scratch (1, or used for rows of experts). False after a failure. */
bool act_make(gpu *g, act_set *set, int tokens, int times, enum gpu_scratch which);

DEV const float *act_row(const aview &a, int r)
{
    return a.x + (int64_t)(r / a.parts) * a.ldx + (int64_t)(r % a.parts) * a.n;
}

#endif
