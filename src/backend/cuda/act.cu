/* act.cu: quantises or pads the inputs of a product. One warp makes a piece of 256 numbers of one row. */
#include <stdint.h>

#include "backend/cuda/act.cuh"

enum { PIECE = 256 };

int act_group(const gpu *g, uint32_t type) { return g->act == BE_ACT_FLOAT ? 0 : unit_group(type); }

/* Whether kernels may read rows where they are: whole aligned groups of 8 numbers. */
static bool readable(const float *x, int64_t ldx, int64_t n)
{
    return n % 8 == 0 && ldx % 4 == 0 && (uintptr_t)x % 16 == 0;
}

int act_add(act_set *set, int group, const float *x, int64_t ldx, int64_t n, int parts)
{
    for (int i = 0; i < set->count; i++) {
        const aview *v = &set->v[i];
        if (set->from[i] == x && set->from_ld[i] == ldx && v->n == n && v->parts == parts && v->group == group)
            return i;
    }
    if (set->count == ACT_INPUTS)
        return -1;
    int i = set->count++;
    set->v[i] = aview{x, ldx, parts, (int)n, group, (int)((n + 255) / 256 * 256), NULL, NULL, NULL};
    set->from[i] = x;
    set->from_ld[i] = ldx;
    set->made[i] = group || !readable(x, ldx, n);
    return i;
}

static size_t whole(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* Cuts room for `rows` activation rows from *at. */
static void place(aview *v, char *base, size_t *at, size_t rows)
{
    size_t elems = rows * (size_t)v->padded;
    if (!v->group) {
        v->x = reinterpret_cast<float *>(base + *at);
        v->ldx = v->padded;
        *at += whole(elems * sizeof(float));
        return;
    }
    v->q = reinterpret_cast<int8_t *>(base + *at);
    *at += whole(elems);
    v->d = reinterpret_cast<float *>(base + *at);
    *at += whole(elems / (size_t)v->group * sizeof(float));
    v->sum16 = v->group == 256 ? reinterpret_cast<int16_t *>(base + *at) : NULL;
    *at += v->group == 256 ? whole(elems / 16 * sizeof(int16_t)) : 0;
}

typedef struct make_job {
    aview v;
    const float *from;
    int64_t from_ld;
    int parts; /* of the caller's rows; a padded copy has one row per part */
    int first; /* first warp */
} make_job;

typedef struct make_args {
    make_job job[ACT_INPUTS];
    int count, warps;
} make_args;

/* Lane l holds numbers l, l+32, ...: a group of 32 is one number of every lane. */
DEV void quantise_piece(const aview &v, int64_t base, const float *x, int left, int lane)
{
    float d = 0, recip = 0, value[PIECE / 32];
    uint32_t top = 0;
#pragma unroll
    for (int k = 0; k < PIECE / 32; k++) {
        value[k] = 32 * k < left ? x[32 * k + lane] : 0;
        uint32_t a = __float_as_uint(value[k]) & 0x7fffffffu;
        top = a > top ? a : top;
    }
    if (v.group == 256)
        d = group_scale(warp_max(top), &recip);
#pragma unroll
    for (int k = 0; k < PIECE / 32; k++) {
        if (32 * k >= left)
            break;
        if (v.group == 32)
            d = group_scale(warp_max(__float_as_uint(value[k]) & 0x7fffffffu), &recip);
        int q = recip == 0 ? 0 : __float2int_rn(__fmul_rn(value[k], recip));
        v.q[base + 32 * k + lane] = (int8_t)q;
        if (v.group == 32 && lane == 0)
            v.d[(base + 32 * k) / 32] = d;
        if (v.group == 256) {
            int sum = q;
            for (int step = 8; step; step >>= 1)
                sum += __shfl_xor_sync(FULL_WARP, sum, step);
            if (lane % 16 == 0)
                v.sum16[(base + 32 * k + lane) / 16] = (int16_t)sum;
        }
    }
    if (v.group == 256 && lane == 0)
        v.d[base / 256] = d;
}

static __global__ void make_inputs(const __grid_constant__ make_args a)
{
    int warp = (int)blockIdx.x * GPU_WARPS + (int)threadIdx.x / 32, lane = threadIdx.x % 32, j = 0;
    if (warp >= a.warps)
        return;
    while (j + 1 < a.count && warp >= a.job[j + 1].first)
        j++;
    const make_job &job = a.job[j];
    const aview &v = job.v;
    int pieces = v.padded / PIECE, r = (warp - job.first) / pieces, at = (warp - job.first) % pieces * PIECE;
    const float *x = job.from + (int64_t)(r / job.parts) * job.from_ld + (int64_t)(r % job.parts) * v.n + at;
    if (v.group) {
        quantise_piece(v, (int64_t)r * v.padded + at, x, v.n - at, lane);
        return;
    }
    float *to = const_cast<float *>(v.x) + (int64_t)r * v.padded + at;
    for (int i = lane; i < PIECE; i += 32)
        to[i] = at + i < v.n ? x[i] : 0;
}

bool act_make(gpu *g, act_set *set, int tokens, int times, enum gpu_scratch which)
{
    make_args args = {};
    size_t bytes = 0, at = 0;
    for (int i = 0; i < set->count; i++) {
        aview v = set->v[i];
        if (set->made[i])
            place(&v, NULL, &bytes, (size_t)GPU_MAX_ROWS * (size_t)times * (size_t)v.parts);
    }
    char *base = bytes ? (char *)gpu_scratch_get(g, which, bytes) : NULL;
    if (bytes && !base)
        return false;
    for (int i = 0; i < set->count; i++) {
        if (!set->made[i])
            continue;
        aview *v = &set->v[i];
        place(v, base, &at, (size_t)tokens * (size_t)v->parts);
        args.job[args.count++] = make_job{*v, set->from[i], set->from_ld[i], v->parts, args.warps};
        args.warps += tokens * v->parts * (v->padded / PIECE);
        v->parts = 1;
    }
    if (args.count)
        GPU_LAUNCH(g, make_inputs, gpu_blocks(args.warps, GPU_WARPS), GPU_THREADS, 0, args);
    return gpu_ok(g);
}
