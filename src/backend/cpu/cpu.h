/* cpu.h: inside of the CPU backend. Device memory is ordinary memory, operations run at once on the calling thread
 * and a pool.
 *
 * Files: open (life, memory), par (threads), scratch, act (quantised activations), dot_* (inner products of one
 * weight row), linear, embed_hc, norm (norms, rotation, KV rows), compress, index, attn, route, moe, draft (pick,
 * Markov, confidence).
 *
 * How a product is formed. One task owns some rows of the weight matrix. For each weight row the kernel walks along
 * the row in stretches of 256 elements; a stretch is decoded once and multiplied with the activations of every row of
 * the launch. The order in which one activation row is summed is fixed by the kernel and does not depend on the other
 * rows, on their number or on the thread. */
#ifndef DS4_BACKEND_CPU_CPU_H
#define DS4_BACKEND_CPU_CPU_H

#include <stdatomic.h>

#include "backend/backend.h"

enum {
    CPU_MAX_ROWS = 64,  /* most rows of a forward */
    CPU_MAX_THREADS = 256,
    CPU_STRETCH = 512,  /* elements decoded to float32 at a time */
    CPU_LANES = 32,     /* partial sums of a float32 product: element i goes to lane i mod 32 */
    CPU_LANES64 = 16,   /* partial sums of a float64 product */
    CPU_TILE = 16,      /* weight rows of one task, and of a tile kernel */
};

/* Inputs of a product: rows of float32, and their int8 form where the weight wants it. A token may carry several rows
 * ("parts": the groups of a grouped product, the used experts): activation row r is part r % parts of token r /
 * parts. */
typedef struct cpu_act {
    int64_t n;       /* elements of an activation row */
    const float *x;  /* token t, part g at x + t*ldx + g*n */
    size_t ldx;
    int parts;
    int group;       /* elements per scale: 32 or 256; 0 = float only */
    int64_t padded;  /* n rounded up to 256: distance of quantised rows; the padding is zero */
    int8_t *q;       /* [rows][padded] */
    float *d;        /* [rows][padded/group] */
    int32_t *sum32;  /* [rows][padded/32] sums of 32 q (group 32), else NULL */
    int16_t *sum16;  /* [rows][padded/16] sums of 16 q (group 256), else NULL */
} cpu_act;

static inline const float *cpu_act_row(const cpu_act *a, int r)
{
    return a->x + (size_t)(r / a->parts) * a->ldx + (size_t)(r % a->parts) * (size_t)a->n;
}

/* y[k] = weight row . activation row rows[k] for k < n, n <= CPU_MAX_ROWS. */
typedef void (*cpu_dot_fn)(const void *w, const cpu_act *a, const int *rows, int n, float *y);

/* y[k*ldy + o] = weight row o . activation row rows[k] for the CPU_TILE weight rows at w, w + step, ... */
typedef void (*cpu_tile_fn)(const void *w, size_t step, const cpu_act *a, const int *rows, int n, float *y, size_t ldy);

/* Inner loops that exist in plain C and for vector units, with equal bits. */
typedef struct cpu_kernels {
    const char *name;
    /* lane[r][i mod CPU_LANES] += w[i] * x[r][i] */
    void (*lanes32)(const float *w, const float *const *x, int rows, int64_t n, float (*lane)[CPU_LANES]);
    /* the same in float64 with CPU_LANES64 lanes; the products are exact there */
    void (*lanes64)(const float *w, const float *const *x, int rows, int64_t n, double (*lane)[CPU_LANES64]);
    /* y[r * ldy] = sum of the lanes of row r, as cpu_tree adds them */
    void (*tree32)(float (*lane)[CPU_LANES], int rows, float *y, size_t ldy);
    /* z[t] = q . row[t], in CPU_LANES lanes added by cpu_tree */
    void (*dots)(const float *q, const float *const *row, int n, int dim, float *z);
    /* o = sum over t, in order, of p[t] * row[t] */
    void (*mix)(const float *p, const float *const *row, int n, int dim, float *o);
    void (*add_scaled)(float *y, const float *x, float s, int n); /* y += s * x */
    void (*half)(const void *src, float *dst, int n);             /* F16 to float32 */
    void (*quant32)(const float *x, int8_t *q, float *d, int32_t *sum32);  /* one group of 32 */
    void (*quant256)(const float *x, int8_t *q, float *d, int16_t *sum16); /* one group of 256 */
    cpu_dot_fn q8_0, q4_0, mxfp4;                        /* int8 with one scale per 32 */
    cpu_dot_fn q2_k, q3_k, q4_k, q5_k, q6_k, iq2_xxs;    /* int8 with one scale per 256 */
    struct { cpu_tile_fn run; int from; } tile[40];      /* by weight type; for `from` rows or more; NULL: row by row */
} cpu_kernels;

extern const cpu_kernels cpu_plain;
extern const cpu_kernels cpu_avx2, cpu_avx512; /* x86-64 only */
enum { CPU_KERNELS = 3 };
int cpu_usable(const cpu_kernels *best_first[CPU_KERNELS]); /* those that this machine can run; how many */

typedef struct cpu_buf { /* scratch that only grows; contents do not survive an operation */
    void *p;
    size_t bytes;
} cpu_buf;

enum cpu_scratch {
    S_ACT_A, S_ACT_B, S_ACT_C, S_ACT_D, /* quantised inputs of one launch, one each */
    S_MIX,     /* hyper-connection mixes, router logits */
    S_ROTATE,  /* cosines and sines of the rows */
    S_LOGIT,   /* attention logits, one strip per thread */
    S_SCORE,   /* index scores */
    S_HIDDEN,  /* expert hidden rows */
    S_SUM,     /* expert outputs of one chunk, one strip per thread */
    S_GROUP,   /* rows by expert */
    S_DRAFT,   /* decoded row of the Markov table; candidates of pick */
    S_COUNT
};

typedef struct cpu_block { /* one device allocation; the list is freed by close */
    struct cpu_block *next;
} cpu_block;

typedef struct pool pool;

typedef struct cpu {
    backend base;
    enum be_act act;
    const cpu_kernels *k;
    pool *pool;       /* NULL with one thread */
    int threads;
    double small_work; /* launches of fewer multiply-adds stay on the calling thread; tests set 0 */
    atomic_bool failed;
    ds4_err error;    /* the first failure */
    cpu_block *blocks;
    cpu_buf buf[S_COUNT];
} cpu;

static inline cpu *cpu_of(backend *b) { return (cpu *)b; }

/* Records the first failure; later operations do nothing. */
__attribute__((format(printf, 2, 3))) void cpu_fail(cpu *c, const char *fmt, ...);
static inline bool cpu_ok(cpu *c) { return !atomic_load_explicit(&c->failed, memory_order_relaxed); }

/* --- tests only --- */
/* The k-th sync from now on fails (k >= 1), as a lost device would. */
void backend_fault_after(backend *b, int k);
/* Plain C kernels instead of the vector units. */
void cpu_force_plain(backend *b);

/* --- par.c, scratch --- */
/* fn(ctx, i, thread) for i in [0, n), spread over the threads; `work` = multiply-adds of all tasks together, so that
 * small jobs stay on the calling thread. Results must not depend on the spreading. */
typedef void (*cpu_task)(void *ctx, int i, int thread);
void cpu_for(cpu *c, int n, double work, cpu_task fn, void *ctx);
/* At least `bytes` of 64-byte aligned scratch. It grows at the first operation of a new shape (sized by max_rows, not
 * by the rows at hand), so that nothing is allocated once every shape has been seen. NULL and a sticky error if there
 * is no memory. */
void *cpu_scratch(cpu *c, enum cpu_scratch which, size_t bytes);

/* --- act.c --- */
/* Elements per activation scale for a weight type under the backend's mode; 0 = float. */
int cpu_act_group(const cpu *c, uint32_t type);
/* Describes `rows` activation rows of n numbers (rows = tokens * parts, at most CPU_MAX_ROWS tokens); quantises them
 * into scratch `which` if group > 0. False after a failure. */
bool cpu_act_make(cpu *c, cpu_act *a, int group, const float *x, size_t ldx, int64_t n, int rows, int parts,
                  enum cpu_scratch which);

/* --- dot.c --- */
/* y[k] = weight row . activation row rows[k], the weight decoded exactly, accumulated in float64 (router,
 * hyper-connections). n <= CPU_MAX_ROWS. */
void cpu_dot_double(const cpu *c, uint32_t type, const void *w, const cpu_act *a, const int *rows, int n, double *y);
/* A product in the form that `a` was made for, int8 or float32, for `count` <= CPU_TILE weight rows from row o of a
 * slice: y[k*ldy + i] = weight row (o + i) . activation row rows[k]. */
void cpu_dots(const cpu *c, const be_weight *w, int64_t slice, int64_t o, int count, const cpu_act *a,
              const int *rows, int n, float *y, size_t ldy);
extern const int cpu_iota[CPU_MAX_ROWS]; /* 0, 1, 2, ... */
static inline const char *cpu_row(const be_weight *w, int64_t slice, int64_t o)
{
    return (const char *)w->data + (size_t)(slice * w->ne1 + o) * w->row_bytes;
}
/* Sum of n lanes (a power of two up to CPU_LANES; 64: CPU_LANES64) in one fixed tree: upper half onto lower half. */
float cpu_tree(const float *lane, int n);
double cpu_tree64(const double *lane);
double cpu_square(const cpu *c, const float *x, int64_t n);            /* sum of squares, float64 */

/* --- norm.c --- */
/* y = x / sqrt(mean(x^2) + eps) * w; w may be NULL; y may be x. The sum is float64. */
void cpu_rms(const cpu *c, const float *x, const float *w, float *y, int n);
/* cs[2i] = cos, cs[2i+1] = sin of (float)pos * freq[i], i < half. */
void cpu_angles(int32_t pos, const float *freq, int half, float *cs);
void cpu_rotate(float *tail, const float *cs, int half, bool inverse);
/* cs tables of all rows in scratch: row r at result + r*rope_dim. */
const float *cpu_row_angles(cpu *c, const be_rows *r, const float *freq);
static inline float *cpu_ring_row(const be_store *s, int32_t seq, int64_t pos)
{
    return s->base + (size_t)seq * s->seq_stride + (size_t)(pos % s->cap) * (size_t)s->width;
}
static inline float *cpu_array_row(const be_store *s, int32_t seq, int64_t i)
{
    return s->base + (size_t)seq * s->seq_stride + (size_t)i * (size_t)s->width;
}

/* --- the operations --- */
void cpu_embed(backend *b, const be_rows *r, const be_weight *table, float *streams);
void cpu_hc_pre(backend *b, int n, const be_hc *hc, const float *norm, const float *streams, float *mix, float *y,
                float *x);
void cpu_hc_post(backend *b, int n, const float *mix, const float *out, float *streams);
void cpu_hc_head(backend *b, int n, const be_hc *hc, const float *norm, const float *streams, float *y, float *x);
void cpu_linear(backend *b, int n, const be_linear *jobs, int k);
void cpu_norm(backend *b, int n, int dim, const float *x, const float *w, float *y);
void cpu_q_finish(backend *b, const be_rows *r, const float *freq, float *q);
void cpu_kv_finish(backend *b, const be_rows *r, const float *norm, const float *freq, bool sim, float *kv,
                   const be_store *ring);
void cpu_comp_put(backend *b, const be_rows *r, int ratio, const float *kv, const float *gate, const float *ape,
                  const be_store *ring);
void cpu_comp_pool(backend *b, const be_rows *r, int ratio, const be_store *ring, const float *norm,
                   const float *freq, bool index, bool sim, const be_store *out);
void cpu_index_query(backend *b, const be_rows *r, const float *freq, bool sim, float *qi);
void cpu_index_select(backend *b, const be_rows *r, int ratio, const float *qi, const float *wi, const be_store *rows,
                      int32_t *sel);
void cpu_attend(backend *b, const be_rows *r, const be_attn *a);
void cpu_route(backend *b, const be_rows *r, const float *x, const be_weight *gate, const float *bias,
               const int32_t *tid2eid, int32_t *ids, float *weights);
void cpu_moe(backend *b, int n, const be_moe *m, const float *x, const int32_t *ids, const float *weights, float *out);
void cpu_tap(backend *b, const be_rows *r, const float *streams, int slot, const be_store *ring);
void cpu_gather(backend *b, const be_rows *r, const be_store *ring, float *out);
void cpu_pick(backend *b, int n, const float *logits, float temp, uint64_t seed, const int32_t *pos, int32_t *out);
void cpu_markov(backend *b, const be_weight *w1, const be_weight *w2, const int32_t *prev, float *logits);
int cpu_synth(backend *b, be_weight *w, uint64_t seed, float scale, ds4_err *e);
void cpu_confidence(backend *b, int n, const be_weight *w, const be_weight *w1, const float *hidden,
                    const int32_t *prev, float *out);

#endif
