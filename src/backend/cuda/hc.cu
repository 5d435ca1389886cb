/* hc.cu: token embedding and manifold-constrained hyper-connections. */
#include "backend/cuda/block.cuh"
#include "backend/cuda/dot.cuh"

static __global__ void embed_row(wview w, const int32_t *tokens, int d, int copies, float *streams, gpu_fault *fault)
{
    int r = blockIdx.y, token = tokens[r], u = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    bool known = token >= 0 && token < w.ne1;
    if (!known && u == 0 && fault->kind == FAULT_NONE)
        *fault = gpu_fault{FAULT_TOKEN, token, (int)w.ne1};
    if (32 * u >= d)
        return;
    float v[32];
    unit_values(w, row_of(w, 0, known ? token : 0), u, v);
    float *to = streams + (int64_t)r * copies * d + 32 * u;
    for (int i = 0; i < 32 && 32 * u + i < d; i++)
        for (int k = 0; k < copies; k++)
            to[(int64_t)k * d + i] = v[i];
}

void gpu_embed(backend *b, const be_rows *r, const be_weight *table, float *streams)
{
    gpu *g = gpu_of(b);
    gpu_settle(g);
    if (r->n > 0)
        GPU_LAUNCH(g, embed_row, dim3(gpu_blocks(b->dims.d, 32 * 32), r->n), 32, 0, view_of(g, table), r->token,
                   (int)b->dims.d, (int)b->dims.streams, streams, g->fault);
}

/* Block (o, r): output o of fn . streams of row r, in float64; the block behind the last output sums the squares. */
static __global__ void mix_dots(wview fn, const float *streams, int outputs, double *dots)
{
    __shared__ double room[32];
    int o = blockIdx.x, r = blockIdx.y;
    const float *x = streams + (int64_t)r * fn.ne0;
    double sum = 0;
    if (o < outputs)
        sum = dot_double(fn, row_of(fn, 0, o), x, threadIdx.x, blockDim.x);
    else
        for (int i = threadIdx.x; i < fn.ne0; i += blockDim.x)
            sum = __dadd_rn(sum, square(x[i]));
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        dots[r * (outputs + 1) + o] = sum;
}

DEV double sigmoid(double v) { return 1 / (1 + exp(-v)); }

/* One step of Sinkhorn: divides lines of s numbers by (sum + eps). Thread t < s*s owns number t; `line` is the first
 * number of its line and `step` the distance inside. All threads of the block take part. */
DEV void normalise(double *m, int s, int line, int step, double eps)
{
    int t = threadIdx.x;
    double sum = 0;
    for (int k = 0; t < s * s && k < s; k++)
        sum += m[line + k * step];
    __syncthreads();
    if (t < s * s)
        m[t] /= sum + eps;
    __syncthreads();
}

DEV void sinkhorn(double *m, int s, int iterations, double eps)
{
    int t = threadIdx.x, row = t / s * s, column = t % s;
    double top = 0, sum = 0, e = 0;
    if (t < s * s) {
        top = m[row];
        for (int k = 1; k < s; k++)
            top = m[row + k] > top ? m[row + k] : top;
        for (int k = 0; k < s; k++)
            sum += exp(m[row + k] - top);
        e = exp(m[t] - top) / sum + eps;
    }
    __syncthreads();
    if (t < s * s)
        m[t] = e;
    __syncthreads();
    normalise(m, s, column, s, eps);
    for (int i = 1; i < iterations; i++) {
        normalise(m, s, row, 1, eps);
        normalise(m, s, column, s, eps);
    }
}

typedef struct mix_args {
    const double *dots; /* [n][outputs + 1] */
    const float *scale, *base, *norm, *streams;
    float *mix, *y, *x;
    int s, d, iterations, outputs;
    float rms_eps, hc_eps;
    bool head;
} mix_args;

/* Weights of the streams into pre[]; of a sublayer also post and comb, all of them to mix. */
DEV void make_mix(const mix_args &a, int r, double *m, float *pre)
{
    int t = threadIdx.x, s = a.s;
    const double *dots = a.dots + r * (a.outputs + 1);
    double rms = inverse_rms(dots[a.outputs], (int64_t)s * a.d, a.rms_eps);
    float *mix = a.head ? NULL : a.mix + (int64_t)r * a.outputs;
    if (t < s) {
        pre[t] = (float)(sigmoid(dots[t] * rms * (double)a.scale[0] + (double)a.base[t]) + (double)a.hc_eps);
        if (!a.head) {
            mix[t] = pre[t];
            mix[s + t] = (float)(2 * sigmoid(dots[s + t] * rms * (double)a.scale[1] + (double)a.base[s + t]));
        }
    }
    if (!a.head) {
        if (t < s * s)
            m[t] = dots[2 * s + t] * rms * (double)a.scale[2] + (double)a.base[2 * s + t];
        __syncthreads();
        sinkhorn(m, s, a.iterations, (double)a.hc_eps);
        if (t < s * s)
            mix[2 * s + t] = (float)m[t];
    }
    __syncthreads();
}

/* One block per row: mix from the dots, y = sum of pre[s] * stream s, x = rmsw(y, norm). */
static __global__ void __launch_bounds__(GPU_THREADS) mix_finish(const mix_args a)
{
    __shared__ double m[GPU_MAX_STREAMS * GPU_MAX_STREAMS], room[32];
    __shared__ float pre[GPU_MAX_STREAMS];
    int r = blockIdx.x;
    make_mix(a, r, m, pre);
    const float *streams = a.streams + (int64_t)r * a.s * a.d;
    float *x = a.x + (int64_t)r * a.d, *y = a.y ? a.y + (int64_t)r * a.d : x;
    double sum = 0;
    for (int i = threadIdx.x; i < a.d; i += blockDim.x) {
        float v = 0;
        for (int k = 0; k < a.s; k++)
            v = __fadd_rn(v, __fmul_rn(pre[k], streams[(int64_t)k * a.d + i]));
        y[i] = v;
        sum = __dadd_rn(sum, square(v));
    }
    float scale = (float)inverse_rms(block_sum(sum, room), a.d, a.rms_eps);
    for (int i = threadIdx.x; i < a.d; i += blockDim.x) /* each thread reads what it wrote itself */
        x[i] = __fmul_rn(__fmul_rn(y[i], scale), a.norm[i]);
}

static void run_mix(gpu *g, int n, const be_hc *hc, mix_args a)
{
    const be_dims *m = &g->base.dims;
    if (!gpu_ok(g) || n <= 0)
        return;
    if (m->streams > GPU_MAX_STREAMS) {
        gpu_fail(g, "%d hyper-connection streams, at most %d are supported", m->streams, (int)GPU_MAX_STREAMS);
        return;
    }
    double *dots = (double *)gpu_scratch_get(g, G_DOT, (size_t)GPU_MAX_ROWS * (size_t)(a.outputs + 1) * sizeof *dots);
    if (!dots)
        return;
    a.dots = dots;
    a.scale = hc->scale, a.base = hc->base;
    a.s = m->streams, a.d = m->d, a.iterations = m->sinkhorn;
    a.rms_eps = m->rms_eps, a.hc_eps = m->hc_eps;
    GPU_LAUNCH(g, mix_dots, dim3(a.outputs + 1, n), GPU_THREADS, 0, view_of(g, &hc->fn), a.streams, a.outputs, dots);
    GPU_LAUNCH(g, mix_finish, n, GPU_THREADS, 0, a);
}

void gpu_hc_pre(backend *b, int n, const be_hc *hc, const float *norm, const float *streams, float *mix, float *y,
                float *x)
{
    gpu_settle(gpu_of(b));
    mix_args a = {};
    a.norm = norm, a.streams = streams, a.mix = mix, a.y = y, a.x = x;
    a.outputs = b->dims.streams * (2 + b->dims.streams);
    run_mix(gpu_of(b), n, hc, a);
}

/* The head's connection with the kernels of the fused block; open streams are finished on the way. */
static void fast_head(gpu *g, int n, const be_hc *hc, const float *norm, const float *streams, float *y, float *x)
{
    float *part = (float *)gpu_scratch_get(g, G_DOT, gpu_hyper_part_bytes(g));
    open_streams o = g->pending;
    if (o.streams == streams && o.n == n)
        g->pending = open_streams{};
    else
        gpu_settle(g), o = open_streams{};
    if (part)
        gpu_hyper_head(g, n, const_cast<float *>(streams), hc, norm, o.out, o.mix, part, y, x);
}

void gpu_hc_head(backend *b, int n, const be_hc *hc, const float *norm, const float *streams, float *y, float *x)
{
    gpu *g = gpu_of(b);
    if (g->act == BE_ACT_Q8 && gpu_hyper_fits(g, hc) && n > 0 && n <= BE_NARROW) {
        fast_head(g, n, hc, norm, streams, y, x);
        return;
    }
    gpu_settle(g);
    mix_args a = {};
    a.norm = norm, a.streams = streams, a.y = y, a.x = x;
    a.outputs = b->dims.streams;
    a.head = true;
    run_mix(gpu_of(b), n, hc, a);
}

/* streams[k] = post[k] * out + sum over j of comb[j][k] * streams[j]; a thread owns one column, so it may work in
 * place. */
static __global__ void post_mix(const float *mix, const float *out, float *streams, int s, int d)
{
    int r = blockIdx.y, i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= d)
        return;
    const float *post = mix + (int64_t)r * s * (2 + s) + s, *comb = post + s;
    float *x = streams + (int64_t)r * s * d + i, old[GPU_MAX_STREAMS], v = out[(int64_t)r * d + i];
#pragma unroll
    for (int j = 0; j < GPU_MAX_STREAMS; j++)
        old[j] = j < s ? x[(int64_t)j * d] : 0;
    for (int k = 0; k < s; k++) {
        float sum = __fmul_rn(post[k], v);
#pragma unroll
        for (int j = 0; j < GPU_MAX_STREAMS; j++)
            if (j < s)
                sum = __fadd_rn(sum, __fmul_rn(comb[j * s + k], old[j]));
        x[(int64_t)k * d] = sum;
    }
}

void gpu_hc_post(backend *b, int n, const float *mix, const float *out, float *streams)
{
    gpu *g = gpu_of(b);
    int s = b->dims.streams, d = b->dims.d;
    if (g->pending.streams)
        gpu_settle(g);
    if (n > 0 && s <= GPU_MAX_STREAMS)
        GPU_LAUNCH(g, post_mix, dim3(gpu_blocks(d, GPU_THREADS), n), GPU_THREADS, 0, mix, out, streams, s, d);
}
