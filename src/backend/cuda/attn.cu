/* attn.cu: softmax attention with a sink over the window, the compressed rows and, for the drafter, the block's own
 * rows. Keys and values are the same rows. (attend.cu does the same faster for narrow forwards of one shape.)
 *
 * The list of rows that a token sees is cut into pieces of PIECE entries; a warp handles one head of one piece, and the
 * pieces are merged in order. */
#include "backend/cuda/sight.cuh"

enum { PIECE = 32, HEADS_PER_BLOCK = 4, MERGE_THREADS = 128 };

typedef struct attn_args {
    sources in;
    const float *q, *sinks, *freq;
    float *o, *part; /* part: [BE_NARROW][heads][pieces][dim + 4]: sums, largest logit, sum of weights */
    int row0;        /* first row of this launch */
    int heads, dim, rope, pieces;
    float scale;
} attn_args;

/* V: float4 of a row per lane (dim = 128 V). Lane l holds float4 l, l + 32, ... */
template <int V> DEV float row_dot(const float4 (&q)[V], const float *row, int lane)
{
    const float4 *p = reinterpret_cast<const float4 *>(row);
    float dot = 0;
#pragma unroll
    for (int k = 0; k < V; k++) {
        float4 x = p[lane + 32 * k];
        dot = __fmaf_rn(q[k].x, x.x, dot);
        dot = __fmaf_rn(q[k].y, x.y, dot);
        dot = __fmaf_rn(q[k].z, x.z, dot);
        dot = __fmaf_rn(q[k].w, x.w, dot);
    }
    return warp_sum(dot);
}

template <int V> DEV void row_add(float4 (&o)[V], float p, const float *row, int lane)
{
    const float4 *x = reinterpret_cast<const float4 *>(row);
#pragma unroll
    for (int k = 0; k < V; k++) {
        float4 v = x[lane + 32 * k];
        o[k].x = __fmaf_rn(p, v.x, o[k].x);
        o[k].y = __fmaf_rn(p, v.y, o[k].y);
        o[k].z = __fmaf_rn(p, v.z, o[k].z);
        o[k].w = __fmaf_rn(p, v.w, o[k].w);
    }
}

/* Block (piece, group of heads, row). */
template <int V> static __global__ void __launch_bounds__(32 * HEADS_PER_BLOCK) attend_piece(const attn_args a)
{
    int lane = threadIdx.x % 32, h = (int)blockIdx.y * HEADS_PER_BLOCK + threadIdx.x / 32, i = a.row0 + (int)blockIdx.z;
    sight s = see(a.in, i);
    int from = (int)blockIdx.x * PIECE, count = s.total - from < PIECE ? s.total - from : PIECE;
    if (h >= a.heads || count <= 0)
        return;
    const float4 *qp = reinterpret_cast<const float4 *>(a.q + ((int64_t)i * a.heads + h) * a.dim);
    float4 q[V], o[V];
#pragma unroll
    for (int k = 0; k < V; k++) {
        q[k] = qp[lane + 32 * k];
        o[k] = make_float4(0, 0, 0, 0);
    }
    float z = -INFINITY; /* lane t: the logit of entry t */
    for (int t = 0; t < count; t++) {
        float dot = row_dot<V>(q, seen_row(a.in, s, from + t), lane);
        if (lane == t && is_seen(s, from + t))
            z = __fmul_rn(dot, a.scale);
    }
    float top = warp_max(z);
    float p = z == -INFINITY ? 0.0f : expf(__fsub_rn(z, top)); /* NaN stays NaN and shows in this row alone */
    for (int t = 0; t < count; t++)
        row_add<V>(o, __shfl_sync(FULL_WARP, p, t), seen_row(a.in, s, from + t), lane);
    float *part = a.part + (((int64_t)blockIdx.z * a.heads + h) * a.pieces + blockIdx.x) * (a.dim + 4);
    float sum = warp_sum(p);
#pragma unroll
    for (int k = 0; k < V; k++)
        reinterpret_cast<float4 *>(part)[lane + 32 * k] = o[k];
    if (lane == 0) {
        part[a.dim] = top;
        part[a.dim + 1] = sum;
    }
}

/* Block (head, row): the sink and the pieces in order, then the inverse rotation of the tail. */
static __global__ void __launch_bounds__(MERGE_THREADS) merge_pieces(const attn_args a)
{
    int h = blockIdx.x, i = a.row0 + (int)blockIdx.y;
    int pieces = (see(a.in, i).total + PIECE - 1) / PIECE, width = a.dim + 4;
    const float *part = a.part + ((int64_t)blockIdx.y * a.heads + h) * a.pieces * width;
    float sink = a.sinks[h], top = sink, sum;
    for (int c = 0; c < pieces; c++)
        top = part[(int64_t)c * width + a.dim] > top ? part[(int64_t)c * width + a.dim] : top;
    sum = expf(__fsub_rn(sink, top));
    for (int c = 0; c < pieces; c++) {
        const float *p = part + (int64_t)c * width + a.dim;
        sum = __fmaf_rn(p[1], expf(__fsub_rn(p[0], top)), sum);
    }
    for (int k = threadIdx.x; k < a.dim / 2; k += MERGE_THREADS) {
        float2 v = make_float2(0, 0);
        for (int c = 0; c < pieces; c++) {
            const float *p = part + (int64_t)c * width;
            float e = expf(__fsub_rn(p[a.dim], top));
            v.x = __fmaf_rn(p[2 * k], e, v.x);
            v.y = __fmaf_rn(p[2 * k + 1], e, v.y);
        }
        v = make_float2(__fdiv_rn(v.x, sum), __fdiv_rn(v.y, sum));
        int t = k - (a.dim - a.rope) / 2;
        if (t >= 0) {
            float2 cs = angle_of(a.in.pos[i], a.freq[t]);
            v = rotated(v.x, v.y, cs.x, -cs.y);
        }
        float *o = a.o + ((int64_t)i * a.heads + h) * a.dim + 2 * k;
        o[0] = v.x;
        o[1] = v.y;
    }
}

/* At most BE_NARROW rows in one launch, which bounds the scratch. */
static void launch_rows(gpu *g, const attn_args &a, int rows, int most)
{
    dim3 grid(gpu_blocks(most, PIECE), gpu_blocks(a.heads, HEADS_PER_BLOCK), rows), block(32 * HEADS_PER_BLOCK);
    switch (a.dim / 128) {
    case 1:
        GPU_LAUNCH(g, attend_piece<1>, grid, block, 0, a);
        break;
    case 2:
        GPU_LAUNCH(g, attend_piece<2>, grid, block, 0, a);
        break;
    case 3:
        GPU_LAUNCH(g, attend_piece<3>, grid, block, 0, a);
        break;
    default:
        GPU_LAUNCH(g, attend_piece<4>, grid, block, 0, a);
        break;
    }
    GPU_LAUNCH(g, merge_pieces, dim3(a.heads, rows), MERGE_THREADS, 0, a);
}

void gpu_attend(backend *b, const be_rows *r, const be_attn *attn)
{
    gpu *g = gpu_of(b);
    const be_dims *m = &b->dims;
    if (!gpu_ok(g) || r->n <= 0)
        return;
    if (m->head_dim % 128 || m->head_dim > 512) {
        gpu_fail(g, "attention heads of %d numbers; supported are 128, 256, 384 and 512", m->head_dim);
        return;
    }
    be_store none = {};
    attn_args a = {};
    a.in = sources{r->pos, r->seq, attn->comp ? attn->sel : NULL, attn->block, *attn->raw,
                   attn->comp ? *attn->comp : none, r->n, attn->ratio, m->head_dim, m->window, m->idx_topk};
    int most = sight_most(a.in, r->max_pos);
    a.q = attn->q, a.sinks = attn->sinks, a.freq = attn->freq, a.o = attn->o;
    a.heads = m->heads, a.dim = m->head_dim, a.rope = m->rope_dim;
    a.pieces = (int)gpu_blocks(sight_room(most), PIECE);
    a.scale = (float)(1 / sqrt((double)m->head_dim));
    size_t floats = (size_t)BE_NARROW * (size_t)m->heads * (size_t)a.pieces * (size_t)(m->head_dim + 4);
    a.part = (float *)gpu_scratch_get(g, G_PART, floats * sizeof(float));
    if (!a.part)
        return;
    for (a.row0 = 0; a.row0 < r->n; a.row0 += BE_NARROW)
        launch_rows(g, a, r->n - a.row0 < BE_NARROW ? r->n - a.row0 : BE_NARROW, most);
}
