/* attend.cu: attention of a narrow forward, from the raw products of q_b to the int8 rows that out_a takes: norm and
 * rotation of the queries, softmax with a sink over the rows that a token sees (sight.cuh), inverse rotation,
 * quantisation. Other shapes and modes compose norm.cu, attn.cu and act.cu.
 *
 * A token's list is cut into pieces of PIECE entries. A block handles one piece for HEADS heads of one token: it loads
 * the rows once, which are keys and values, and multiplies on tensor cores. The pieces are then merged.
 *
 * Precision: products of tf32 pairs (tf32.cuh). Most numbers of a KV row went through simulated FP8 and are tf32
 * numbers as they are: where a whole group of 8 columns of a piece has no lo parts, their products are left out (they
 * would add zeros).
 *
 * Work of warps. Both products are cut by columns of the KV rows: warp w has the groups w, w + 8, ... of 8 columns, so
 * that the rotated columns, which do have lo parts, are spread over all warps. In q.k these are terms of the sum: every
 * warp makes partial logits, which are added in the order of warps. In p.v they are columns of the result. */
#include "backend/cuda/narrow.cuh"
#include "backend/cuda/sight.cuh"
#include "backend/cuda/tf32.cuh"

enum {
    DIM = 512,
    PIECE = 32, /* entries of a piece: 8, 16, 24 or 32 */
    HEADS = 16, /* of a block: rows of a tile */
    WARPS = 8,
    THREADS = 32 * WARPS,
    TILES = PIECE / 8,
    GROUPS = DIM / 8 / WARPS,
    KV_LD = DIM + 8, /* distances that spread the lanes of a load over the banks */
    S_LD = PIECE + 8,
    P_LD = PIECE + 4,
    MERGE_WARPS = 2,  /* of a block of the merge; a warp has 128 columns */
    MERGE_BATCH = 32, /* pieces loaded at a time: a warp's lanes hold their weights */
    SLICES = DIM / 128 / MERGE_WARPS,
};

typedef struct attend_args {
    sources in;
    nrows rows;
    const float *q, *sinks, *freq;
    float *part;  /* [BE_NARROW][heads][pieces][DIM] */
    float2 *stat; /* [BE_NARROW][heads][pieces]: largest logit, sum of weights */
    qrows out;
    int heads, rope, pieces;
    float scale, eps;
} attend_args;

typedef struct attend_room {
    float kv[PIECE][KV_LD];
    float s[WARPS][HEADS][S_LD]; /* partial logits */
    float p[HEADS][P_LD];        /* weights */
    float square[WARPS][HEADS];  /* partial sums of squares of the queries */
    float2 turn[DIM / 2];        /* the token's rotations */
} attend_room;

/* --- a piece --- */

/* Starts to load the warp's rows; lane t has the address of entry t, NULL where there is none: zeros. */
DEV void fetch_rows(attend_room &m, const float *entry, int warp, int lane)
{
#pragma unroll
    for (int i = 0; i < PIECE / WARPS; i++) {
        const float *row = reinterpret_cast<const float *>(
            __shfl_sync(FULL_WARP, reinterpret_cast<unsigned long long>(entry), warp + WARPS * i));
        float *to = m.kv[warp + WARPS * i] + 4 * lane;
        if (row) {
#pragma unroll
            for (int k = 0; k < DIM; k += 128)
                copy_async(to + k, row + k + 4 * lane);
        } else {
#pragma unroll
            for (int k = 0; k < DIM; k += 128)
                *reinterpret_cast<float4 *>(to + k) = make_float4(0, 0, 0, 0);
        }
    }
}

/* The warp's columns of heads g and g + 8, two of each group of 8: q[j][0], [1] of head g, [2], [3] of head g + 8.
 * Heads behind the last repeat it; nothing of them is stored. */
DEV void fetch_queries(float (&q)[GROUPS][4], const attend_args &a, int r, int h0, int warp, int lane)
{
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int h = h0 + g + 8 * half < a.heads ? h0 + g + 8 * half : a.heads - 1;
            const float *p = a.q + ((int64_t)r * a.heads + h) * DIM + 8 * (warp + WARPS * j) + 2 * t;
            float2 v = *reinterpret_cast<const float2 *>(p);
            q[j][2 * half] = v.x;
            q[j][2 * half + 1] = v.y;
        }
}

/* The warp's share of the logits, before norm and scale, and of the squares. Returns bit j: group j has no lo parts. */
DEV unsigned score_rows(attend_room &m, float (&q)[GROUPS][4], int plain, int warp, int lane)
{
    int g = lane / 4, t = lane % 4;
    float main[TILES][4] = {}, small[TILES][4] = {}, square[2] = {0, 0};
    unsigned exact_groups = 0;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        int column = 8 * (warp + WARPS * j) + 2 * t;
        float2 k[TILES], v[2];
        uint32_t rest = 0;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            k[i] = *reinterpret_cast<const float2 *>(&m.kv[8 * i + g][column]);
            rest |= __float_as_uint(k[i].x) | __float_as_uint(k[i].y);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            v[half] = make_float2(q[j][2 * half], q[j][2 * half + 1]);
            square[half] = __fmaf_rn(v[half].x, v[half].x, square[half]);
            square[half] = __fmaf_rn(v[half].y, v[half].y, square[half]);
            if (column >= plain) {
                float2 cs = m.turn[(column - plain) / 2];
                v[half] = rotated(v[half].x, v[half].y, cs.x, cs.y);
            }
        }
        operand left;
        const float parts[4] = {v[0].x, v[1].x, v[0].y, v[1].y};
        split(left, parts);
        bool exact = !__any_sync(FULL_WARP, (rest & TF32_REST) != 0);
        exact_groups |= (unsigned)exact << j;
        if (exact) {
#pragma unroll
            for (int i = 0; i < TILES; i++)
                multiply(main[i], small[i], left, k[i].x, k[i].y);
        } else {
#pragma unroll
            for (int i = 0; i < TILES; i++)
                multiply_split(main[i], small[i], left, k[i].x, k[i].y);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < TILES; i++)
            *reinterpret_cast<float2 *>(&m.s[warp][g + 8 * half][8 * i + 2 * t]) =
                make_float2(__fadd_rn(main[i][2 * half], small[i][2 * half]),
                            __fadd_rn(main[i][2 * half + 1], small[i][2 * half + 1]));
        float sum = __fadd_rn(square[half], __shfl_xor_sync(FULL_WARP, square[half], 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 2));
        if (t == 0)
            m.square[warp][g + 8 * half] = sum;
    }
    return exact_groups;
}

/* Logits and weights of head h, an entry per lane. Returns the largest logit and the sum of weights. */
DEV float2 weigh_rows(attend_room &m, const attend_args &a, int h, bool there, int lane)
{
    float dot = 0, square = 0, z = -INFINITY;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        dot = lane < PIECE ? __fadd_rn(dot, m.s[w][h][lane]) : 0;
        square = __fadd_rn(square, m.square[w][h]);
    }
    float norm = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(square, (float)DIM), a.eps)));
    if (there)
        z = __fmul_rn(dot, __fmul_rn(norm, a.scale));
    float top = warp_max(z);
    float p = z == -INFINITY ? 0.0f : expf(__fsub_rn(z, top)); /* NaN stays NaN and shows in this row alone */
    if (lane < PIECE)
        m.p[h][lane] = p;
    return make_float2(top, warp_sum(p));
}

/* The warp's columns of the weighted sums of rows. */
DEV void mix_rows(const attend_room &m, const attend_args &a, unsigned exact_groups, float *part, int heads, int warp,
                  int lane)
{
    int g = lane / 4, t = lane % 4;
    operand p[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const float v[4] = {m.p[g][8 * i + t], m.p[g + 8][8 * i + t], m.p[g][8 * i + t + 4], m.p[g + 8][8 * i + t + 4]};
        split(p[i], v);
    }
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        int column = 8 * (warp + WARPS * j);
        float main[4] = {}, small[4] = {}, v[TILES][2];
#pragma unroll
        for (int i = 0; i < PIECE / 4; i++)
            v[i / 2][i % 2] = m.kv[4 * i + t][column + g];
        if (exact_groups >> j & 1) {
#pragma unroll
            for (int i = 0; i < TILES; i++)
                multiply(main, small, p[i], v[i][0], v[i][1]);
        } else {
#pragma unroll
            for (int i = 0; i < TILES; i++)
                multiply_split(main, small, p[i], v[i][0], v[i][1]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (g + 8 * half < heads)
                *reinterpret_cast<float2 *>(part + (int64_t)(g + 8 * half) * a.pieces * DIM + column + 2 * t) =
                    make_float2(__fadd_rn(main[2 * half], small[2 * half]),
                                __fadd_rn(main[2 * half + 1], small[2 * half + 1]));
    }
}

/* Block (piece, group of heads, row). */
static __global__ void __launch_bounds__(THREADS, 2) attend_rows(const __grid_constant__ attend_args a)
{
    GPU_DYNAMIC_SMEM(attend_room, m);
    chain_next();
    chain_wait();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h0 = (int)blockIdx.y * HEADS, r = blockIdx.z;
    if (r >= rows_wanted(a.rows))
        return;
    float q[GROUPS][4];
    fetch_queries(q, a, r, h0, warp, lane);
    sight s = see(a.in, r);
    int from = (int)blockIdx.x * PIECE, heads = a.heads - h0 < HEADS ? a.heads - h0 : HEADS, t = from + lane;
    if (from >= s.total)
        return;
    const float *entry = lane < PIECE && t < s.total && is_seen(s, t) ? seen_row(a.in, s, t) : NULL;
    fetch_rows(*m, entry, warp, lane);
    if ((int)threadIdx.x < a.rope / 2)
        m->turn[threadIdx.x] = turn_of(a.in.pos[r], a.freq[threadIdx.x]);
    copy_wait();
    __syncthreads();
    unsigned exact_groups = score_rows(*m, q, DIM - a.rope, warp, lane);
    __syncthreads();
    int64_t first = ((int64_t)r * a.heads + h0) * a.pieces + blockIdx.x;
    for (int h = warp; h < HEADS; h += WARPS) {
        float2 stat = weigh_rows(*m, a, h, entry != NULL, lane);
        if (lane == 0 && h < heads)
            a.stat[first + (int64_t)h * a.pieces] = stat;
    }
    __syncthreads();
    mix_rows(*m, a, exact_groups, a.part + first * DIM, heads, warp, lane);
}

/* --- the merge --- */

/* Largest logit of the sink and all pieces, and the sum of weights relative to it. */
DEV float2 merged_stat(const float2 *stat, int pieces, float sink, int lane)
{
    float top = sink, sum = 0;
    for (int c = lane; c < pieces; c += 32)
        top = fmaxf(top, stat[c].x);
    top = warp_max(top);
    if (lane == 0)
        sum = expf(__fsub_rn(sink, top));
    for (int c = lane; c < pieces; c += 32)
        sum = __fmaf_rn(stat[c].y, expf(__fsub_rn(stat[c].x, top)), sum);
    return make_float2(top, warp_sum(sum));
}

/* A lane's four columns of up to MERGE_BATCH pieces; zeros behind the last. */
DEV void fetch_parts(float4 (&v)[MERGE_BATCH], const float *part, int n)
{
#pragma unroll
    for (int i = 0; i < MERGE_BATCH; i++)
        v[i] = i < n ? *reinterpret_cast<const float4 *>(part + (int64_t)i * DIM) : make_float4(0, 0, 0, 0);
}

/* o += the pieces' sums in order, each times its weight. */
DEV void add_parts(float4 &o, const float4 (&v)[MERGE_BATCH], const float2 *stat, int n, float top, int lane)
{
    float e = lane < n ? expf(__fsub_rn(stat[lane].x, top)) : 0;
#pragma unroll
    for (int i = 0; i < MERGE_BATCH; i++) {
        float w = __shfl_sync(FULL_WARP, e, i);
        o.x = __fmaf_rn(v[i].x, w, o.x);
        o.y = __fmaf_rn(v[i].y, w, o.y);
        o.z = __fmaf_rn(v[i].z, w, o.z);
        o.w = __fmaf_rn(v[i].w, w, o.w);
    }
}

/* Eight neighbouring lanes hold a group of 32 numbers; column: of the lane's four in the row. */
DEV void store_group(const qrows &out, int r, int column, const float4 &v, int lane)
{
    const float x[4] = {v.x, v.y, v.z, v.w};
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t u = __float_as_uint(x[i]) & 0x7fffffffu;
        top = u > top ? u : top;
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
        uint32_t u = __shfl_xor_sync(FULL_WARP, top, step);
        top = u > top ? u : top;
    }
    float recip, d = group_scale(top, &recip);
    signed char q[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        q[i] = (signed char)(recip == 0 ? 0 : __float2int_rn(__fmul_rn(x[i], recip)));
    *reinterpret_cast<char4 *>(out.q + (int64_t)r * out.ld + column) = make_char4(q[0], q[1], q[2], q[3]);
    if (lane % 8 == 0)
        out.d[((int64_t)r * out.ld + column) / 32] = d;
}

/* Block (head and slice of its columns, row); a lane has four columns. */
static __global__ void __launch_bounds__(32 * MERGE_WARPS) merge_rows(const __grid_constant__ attend_args a)
{
    chain_next();
    chain_wait();
    int lane = threadIdx.x % 32, h = blockIdx.x / SLICES, r = blockIdx.y;
    int column = 128 * ((int)(blockIdx.x % SLICES) * MERGE_WARPS + (int)threadIdx.x / 32) + 4 * lane;
    if (r >= rows_wanted(a.rows))
        return;
    int pieces = (see(a.in, r).total + PIECE - 1) / PIECE, turned = column - (DIM - a.rope);
    int64_t first = ((int64_t)r * a.heads + h) * a.pieces;
    const float *part = a.part + first * DIM + column;
    float4 batch[MERGE_BATCH], v = make_float4(0, 0, 0, 0);
    fetch_parts(batch, part, pieces);
    float2 all = merged_stat(a.stat + first, pieces, a.sinks[h], lane);
    add_parts(v, batch, a.stat + first, pieces, all.x, lane);
    for (int c = MERGE_BATCH; c < pieces; c += MERGE_BATCH) {
        fetch_parts(batch, part + (int64_t)c * DIM, pieces - c);
        add_parts(v, batch, a.stat + first + c, pieces - c, all.x, lane);
    }
    v = make_float4(__fdiv_rn(v.x, all.y), __fdiv_rn(v.y, all.y), __fdiv_rn(v.z, all.y), __fdiv_rn(v.w, all.y));
    if (turned >= 0) {
        float2 c0 = turn_of(a.in.pos[r], a.freq[turned / 2]), c1 = turn_of(a.in.pos[r], a.freq[turned / 2 + 1]);
        float2 lo = rotated(v.x, v.y, c0.x, -c0.y), hi = rotated(v.z, v.w, c1.x, -c1.y);
        v = make_float4(lo.x, lo.y, hi.x, hi.y);
    }
    store_group(a.out, r, h * DIM + column, v, lane);
}

bool gpu_attend_fits(const gpu *g)
{
    const be_dims *m = &g->base.dims;
    return m->head_dim == DIM && m->rope_dim % 8 == 0 && m->rope_dim <= DIM && sizeof(attend_room) <= g->smem_most;
}

void gpu_attend_narrow(gpu *g, const nattend *n)
{
    const be_dims *m = &g->base.dims;
    if (!gpu_ok(g) || n->r.n <= 0)
        return;
    if (!gpu_attend_fits(g) || n->r.n > BE_NARROW) {
        gpu_fail(g, "narrow attention of %d rows, heads of %d numbers, %d of them rotated", n->r.n, (int)m->head_dim,
                 (int)m->rope_dim);
        return;
    }
    attend_args a = {};
    a.in =
        sources{n->r.pos,  n->r.seq,   n->comp.base ? n->sel : NULL, n->block, n->raw, n->comp, n->r.n, n->ratio, DIM,
                m->window, m->idx_topk};
    int most = sight_most(a.in, n->max_pos);
    a.rows = n->r, a.q = n->q, a.sinks = n->sinks, a.freq = n->freq, a.out = n->out;
    a.heads = m->heads, a.rope = m->rope_dim, a.eps = m->rms_eps;
    a.pieces = (int)gpu_blocks(sight_room(most), PIECE);
    a.scale = (float)(1 / sqrt((double)DIM));
    size_t all = (size_t)BE_NARROW * (size_t)m->heads * (size_t)a.pieces;
    a.part = (float *)gpu_scratch_get(g, G_PART, all * (DIM * sizeof(float) + sizeof(float2)));
    if (!a.part || !gpu_raise_smem(g, attend_rows, sizeof(attend_room)))
        return;
    a.stat = reinterpret_cast<float2 *>(a.part + all * DIM);
    GPU_CHAIN(g, attend_rows, dim3(gpu_blocks(most, PIECE), gpu_blocks(m->heads, HEADS), n->r.n), THREADS,
              sizeof(attend_room), a);
    GPU_CHAIN(g, merge_rows, dim3((unsigned)m->heads * SLICES, n->r.n), 32 * MERGE_WARPS, 0, a);
}
