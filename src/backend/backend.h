/* backend.h: the seam between the model (written once) and the machines it runs on.
 *
 * A backend is an object with one table of operations. The forward in model/ calls them in order; it reads as
 * mathematics because operations return void and errors are sticky: after a failure every operation does nothing until
 * sync() reports it.
 *
 * Words: a row is one token at one position of one sequence. A forward has n rows, 1..max_rows. Up to BE_NARROW rows is
 * "narrow" (decode, verify). Narrow results are row-invariant: a row's bits do not depend on n, on its place among the
 * rows, or on its neighbours. Every reduction has one order per operation; expert outputs are added in slot order, then
 * the shared expert; ties of top-k and argmax go to the lowest index; NaN is never chosen.
 *
 * Pointers marked `device` live in the backend's memory (on the CPU: ordinary memory). The host never dereferences
 * them; it uses upload and download. `float *` without a note is device memory. Sizes are elements, not bytes, unless
 * named bytes. All operations are issued by one thread and run in issue order. */
#ifndef DS4_BACKEND_BACKEND_H
#define DS4_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/plan.h"
#include "base/err.h"

enum { BE_NARROW = 16 }; /* most rows of a narrow forward */

/* How activations enter a product with a quantised weight (weights of F32/F16/BF16 always take float activations):
 * BE_ACT_Q8   int8 with one float scale d = amax/127 per 32 inputs (weights with 32-element blocks: Q8_0, Q4_0, MXFP4)
 * or per 256 inputs (K-quants and IQ2_XXS); q = round_to_nearest_even(x * (1/d)), all zero when amax = 0. Same
 * definition on every backend. BE_ACT_FLOAT float32 activations against exactly decoded weights: the reference that
 * golden data is compared with. */
enum be_act { BE_ACT_Q8 = 0, BE_ACT_FLOAT = 1 };

/* A matrix bound to the backend. ne0 inputs (contiguous), ne1 outputs, ne2 slices (experts). */
typedef struct be_weight {
    const char *name; /* for messages; owned by the model */
    uint32_t type;    /* enum quant_type */
    int64_t ne0, ne1, ne2;
    const void *data; /* device, backend's own representation; values equal quant_decode of the file's bytes */
    const void *host; /* the file's bytes, mapped as long as the model lives */
    size_t row_bytes; /* of one output row in the file's layout */
} be_weight;

/* The rows of a forward. No (seq, pos) stands twice in one launch. A drafter block is of one
 * sequence with its smallest position in row 0. */
typedef struct be_rows {
    int n;
    int max_pos;          /* host: no row has a larger position (for launch shapes only: results do not depend on it) */
    const int32_t *token; /* device [n] */
    const int32_t *pos;   /* device [n], absolute, zero-based */
    const int32_t *seq;   /* device [n], slot of the KV store */
    const int32_t *count; /* device, NULL = n: only the first *count <= n rows are wanted. Results of the others are
                             undefined (but finite inputs: tokens and positions are valid); their KV rows may or may not
                             be written */
} be_rows;

/* Positional storage: row of position p lives at base + seq*seq_stride + (p % cap)*width (ring), or at index i for
 * arrays (cap = rows). */
typedef struct be_store {
    float *base;       /* device */
    int width;         /* floats per row */
    int cap;           /* rows per sequence */
    size_t seq_stride; /* floats between sequences */
} be_store;

/* Hyper-connection parameters of one sublayer (paper: manifold-constrained hyper-connections). S streams, mix width S +
 * S + S*S. */
typedef struct be_hc {
    be_weight fn;       /* ne0 = S*d, ne1 = S*(2+S) (sublayer) or S (head) */
    const float *scale; /* device [3] (head: [1]) */
    const float *base;  /* device [S*(2+S)] (head: [S]) */
} be_hc;

typedef struct be_dims { /* shape numbers that many operations share; filled once by model/shape */
    int d;               /* hidden size */
    int streams;         /* hyper-connection streams S */
    int sinkhorn;        /* Sinkhorn iterations, the first being softmax + column step */
    float rms_eps, hc_eps;
    int heads, head_dim, rope_dim;
    int window;             /* sliding window, the query's own token included */
    int groups, group_rank; /* grouped output projection */
    int idx_heads, idx_dim, idx_topk;
    int experts, used, ff;
    float route_scale;
    int vocab;
} be_dims;

/* One product y = W x for every row. groups > 1: W's rows are split in `groups` equal parts, part g sees x[row][g] (ne0
 * numbers each). */
typedef struct be_linear {
    const be_weight *w;
    const float *x; /* [n][groups*ne0], row stride ldx */
    float *y;       /* [n][ne1], row stride ldy */
    int ldx, ldy;
    int groups; /* 1 or more */
} be_linear;

typedef struct be_moe {
    const be_weight *gate, *up, *down;    /* [ne2 = experts] */
    const be_weight *sgate, *sup, *sdown; /* shared expert */
    float clamp, sclamp;                  /* SwiGLU clamps: gate from above, up on both sides */
} be_moe;

typedef struct be_attn {
    const float *q;       /* [n][heads][head_dim], rotated */
    float *o;             /* [n][heads][head_dim], result, inverse rotation at the row's position applied */
    const be_store *raw;  /* ring of raw KV rows */
    const be_store *comp; /* array of compressed rows or NULL */
    int ratio;            /* of comp; row s is visible to pos iff s < (pos+1)/ratio */
    const int32_t *sel;   /* device [n][idx_topk]: selected rows, ascending, -1 = none; NULL: all visible rows */
    const float *sinks; /* device [heads] */
    const float *freq;  /* device [rope_dim/2] */
    const float *block; /* drafter: [n][head_dim] KV rows of the block itself, all visible to every row; else NULL. Ring
                           rows are then the min(window, p0) positions before p0 = position of row 0 */
} be_attn;

/* One compressor: two matrices from the same input, a position bias and a norm. width = 2*dim at ratio 4 (lanes A and
 * B), dim at 128. */
typedef struct be_compressor {
    be_weight kv, gate; /* [D -> W] */
    const float *ape;   /* device [ratio][W] */
    const float *norm;  /* device [dim] */
} be_compressor;

/* Weights of one block; float pointers are device memory. Letters as in model/weights.h. Unused members stay zero:
 * comp/index without compressor, tid2eid in scored layers, bias in hash layers. */
typedef struct be_block {
    be_hc hc_attn, hc_ffn;             /* fn [S*D -> S*(2+S)] */
    const float *attn_norm, *ffn_norm; /* [D] */
    be_weight q_a;                     /* [D -> QR] */
    const float *q_a_norm;             /* [QR] */
    be_weight q_b;                     /* [QR -> H*K] */
    be_weight kv;                      /* [D -> K] */
    const float *kv_norm;              /* [K] */
    const float *sinks;                /* [H] */
    be_weight out_a;                   /* [H*K/G -> G*R], G groups */
    be_weight out_b;                   /* [G*R -> D] */
    be_compressor comp;                /* dim K */
    be_compressor index_comp;          /* dim I */
    be_weight index_q_b;               /* [QR -> IH*I] */
    be_weight index_proj;              /* [D -> IH] */
    be_weight router;                  /* [D -> E] */
    const float *router_bias;          /* [E], picks only */
    const int32_t *tid2eid;            /* [vocab][used] */
    be_weight gate_exps, up_exps;      /* [D -> F] x E */
    be_weight down_exps;               /* [F -> D] x E */
    be_weight gate_sh, up_sh, down_sh; /* the shared expert */
} be_block;

/* Where the rows of a block are stored and what they can see. */
typedef struct be_place {
    int ratio;                                            /* 0, 4, 128 */
    const float *freq;                                    /* device [rope_dim/2] */
    const be_store *raw;                                  /* ring: of the trunk's layer, or of a drafter's stage */
    const be_store *comp_in, *comp, *index_in, *index;    /* NULL without compressor (index: ratio 4 only) */
    bool drafter;         /* the rows are one drafter block: they see each other and min(window, p0) ring rows before
                             p0, and are not written to the ring */
    bool select;          /* some row may see more than idx_topk compressed rows */
    bool sim_kv, sim_index;
    float clamp, sclamp;
} be_place;

typedef struct backend backend;

typedef struct backend_ops {
    /* --- life, memory, weights --- */
    void (*close)(backend *b);
    /* Zeroed device memory, freed by close(). NULL and a sticky error if there is none. Not called inside a cycle. */
    void *(*alloc)(backend *b, size_t bytes);
    void (*upload)(backend *b, void *dst, const void *src, size_t bytes);
    void (*download)(backend *b, void *dst, const void *src, size_t bytes); /* waits for earlier operations */
    void (*copy)(backend *b, void *dst, const void *src, size_t bytes);     /* device to device */
    /* Fills w->data for a matrix described by the other members; its bytes lie at w->host in the file's layout. */
    int (*bind)(backend *b, be_weight *w, ds4_err *e);
    /* (optional) Bytes of device memory that bind takes for such a matrix. NULL: none, it goes on using w->host. */
    size_t (*weight_bytes)(backend *b, const be_weight *w);
    /* (optional) The device's memory: free now, in all, and what operations on sequences of ctx tokens will take of it
     * without being asked (dims must be set). NULL: there is none but the host's, which is shared with files. */
    int (*memory)(backend *b, int ctx, size_t *free_bytes, size_t *total, size_t *own, ds4_err *e);
    /* (optional) The same as bind for a matrix that no file holds: random numbers of its type, of mean zero and root
     * mean square scale / sqrt(ne0), the same for the same seed (file/synth.h). w->host may stay NULL. */
    int (*synth)(backend *b, be_weight *w, uint64_t seed, float scale, ds4_err *e);
    /* (optional) Bandwidth of the device's memory in bytes per second: of a plain copy, read and written counted both,
     * and of reading alone. Takes memory for the while; with too little left both are 0. */
    int (*bandwidth)(backend *b, double *copy, double *read, ds4_err *e);
    /* Waits for everything issued; returns 0 or DS4_EBACKEND with the first error. The error stays: the backend is
     * dead. */
    int (*sync)(backend *b, ds4_err *e);
    /* A step is the unit that may be captured and replayed. `key` identifies the sequence of operations that follows
     * (same key, same operations, same pointers and bounds). Returns false when the backend replayed it: the caller
     * then issues nothing. Every begin has an end. Inside a step nothing is allocated, uploaded, downloaded or waited
     * for: what differs from one use to the next is uploaded before. */
    bool (*step_begin)(backend *b, uint64_t key);
    void (*step_end)(backend *b);

    /* --- trunk --- */
    /* streams[r][s][:] = table row of token r, for each of the S streams. */
    void (*embed)(backend *b, const be_rows *r, const be_weight *table, float *streams);
    /* mix = sigmoid/Sinkhorn of fn . rms(streams) (pre S, post S, comb S*S with source slow, destination fast);
     * x = rmsw(sum_s pre[s]*streams[s], norm). Also writes the weighted sum itself to y unless y is NULL. */
    void (*hc_pre)(backend *b, int n, const be_hc *hc, const float *norm, const float *streams, float *mix, float *y,
                   float *x);
    /* streams[k] = post[k]*out + sum_j comb[j][k]*streams[j]. */
    void (*hc_post)(backend *b, int n, const float *mix, const float *out, float *streams);
    /* Head mix: c = sigmoid(fn . rms(streams) * scale + base) + eps; y = sum c[s]*streams[s]; x = rmsw(y, norm). */
    void (*hc_head)(backend *b, int n, const be_hc *hc, const float *norm, const float *streams, float *y, float *x);
    /* k independent products over the same n rows. */
    void (*linear)(backend *b, int n, const be_linear *jobs, int k);
    /* y[r] = rmsw(x[r], w) over dim numbers; in place allowed. */
    void (*norm)(backend *b, int n, int dim, const float *x, const float *w, float *y);
    /* Per head: rms without weight over head_dim, then rotation of the last rope_dim numbers at the row's position. In
     * place. */
    void (*q_finish)(backend *b, const be_rows *r, const float *freq, float *q);
    /* row = rmsw(kv, norm); rotate the tail at pos; simulated FP8 of the rest if sim. Written back to kv, and into the
     * ring unless NULL. */
    void (*kv_finish)(backend *b, const be_rows *r, const float *norm, const float *freq, bool sim, float *kv,
                      const be_store *ring);
    /* Compressor input: ring row of pos = [kv (w) | gate + ape[pos mod ratio] (w)], w = ring->width/2. */
    void (*comp_put)(backend *b, const be_rows *r, int ratio, const float *kv, const float *gate, const float *ape,
                     const be_store *ring);
    /* For each row with (pos+1) mod ratio = 0: pools its window (ratio 4: overlapped with the previous one, lanes A and
     * B; else plain), rmsw, rotates the last rope_dim numbers at the window's first position, then simulated FP8 of all
     * but the tail (index = false) or Hadamard + simulated FP4 (index = true), if sim; stored at array index pos/ratio.
     */
    void (*comp_pool)(backend *b, const be_rows *r, int ratio, const be_store *ring, const float *norm,
                      const float *freq, bool index, bool sim, const be_store *out);
    /* Index queries: per head rotate the tail at pos; if sim: Hadamard + simulated FP4. In place,
     * [n][idx_heads][idx_dim]. */
    void (*index_query)(backend *b, const be_rows *r, const float *freq, bool sim, float *qi);
    /* score_s = sum_h wi[h]/sqrt(idx_dim*idx_heads) * max(0, qi[h].k_s) over visible rows s < (pos+1)/ratio; the
     * idx_topk best in ascending order of index, ties to the lower index, -1 padding. All visible rows when there are
     * at most idx_topk. */
    void (*index_select)(backend *b, const be_rows *r, int ratio, const float *qi, const float *wi,
                         const be_store *rows, int32_t *sel);
    /* Softmax attention with sink over window rows, then compressed rows (order: ring by position, compressed by index,
     * block rows). */
    void (*attend)(backend *b, const be_rows *r, const be_attn *a);
    /* p = sqrt(softplus(gate . x)). tid2eid NULL: the `used` best of p + bias, best first; else the table row of the
     * token. weight = route_scale * p / sum of the chosen p. The logits are accumulated so that routing does not depend
     * on n. */
    void (*route)(backend *b, const be_rows *r, const float *x, const be_weight *gate, const float *bias,
                  const int32_t *tid2eid, int32_t *ids, float *weights);
    /* out = sum over the used experts in slot order of down(silu(min(g,clamp)) * clip(u) * weight), then + shared
     * expert. */
    void (*moe)(backend *b, int n, const be_moe *m, const float *x, const int32_t *ids, const float *weights,
                float *out);
    /* ring row of pos, columns [slot*d, slot*d+d) = mean over the streams. */
    void (*tap)(backend *b, const be_rows *r, const float *streams, int slot, const be_store *ring);
    /* out[i] = ring row of r->pos[i]. */
    void (*gather)(backend *b, const be_rows *r, const be_store *ring, float *out);

    /* (optional) A whole block on r->n <= max_rows rows, streams to streams: what model/forward.c composes from the
     * operations above, with differences within rounding; row-invariant like they are. The streams may be finished
     * later, at the next operation that takes them. False: nothing was done (shapes or types it has no kernels for),
     * the caller composes. The answer depends on weights and shapes alone, not on rows. */
    bool (*block)(backend *b, const be_rows *r, const be_block *w, const be_place *p, float *streams);

    /* --- choosing and drafting --- */
    /* out[i] = token chosen from logits row i: the largest logit if temp <= 0, else the largest logit/temp +
     * noise_gumbel(seed, pos[i], token) (base/noise.h). pos: device [n], the position the chosen token will take. */
    void (*pick)(backend *b, int n, const float *logits, float temp, uint64_t seed, const int32_t *pos, int32_t *out);
    /* logits[v] += w2[v] . w1[*prev] for one row; prev: device. */
    void (*markov)(backend *b, const be_weight *w1, const be_weight *w2, const int32_t *prev, float *logits);
    /* (optional) out[i] = w . [hidden[i] (d) ; w1[prev[i]] (rank)] of decoded weights, accumulated in double in index
     * order on the CPU; w: [d + rank]. NULL slot: spec/confidence.c does the same on the host. */
    void (*confidence)(backend *b, int n, const be_weight *w, const be_weight *w1, const float *hidden,
                       const int32_t *prev, float *out);

    /* --- a cycle without visits to the host (optional: all of these or none; spec/ then goes step by step). c: device.
     * The parts of a cycle are 0 absorption, 1 the drafter's stages, 2 first confidence, 3 head, 4 Markov chain,
     * 5 confidences and plan, 6 forward and choice; stamp i stands before part i. --- */
    /* Zeroed memory that operations can write and the host can read after a wait; a few hundred bytes. */
    void *(*share)(backend *b, size_t bytes);
    /* c->stamp[i] = the device's clock in nanoseconds. */
    void (*stamp)(backend *b, be_cycle *c, int i);
    /* Operations issued until when(b, NULL) may do nothing if *flag (device) is 0; their results are then undefined. */
    void (*when)(backend *b, const int32_t *flag);
    /* pick with the temperature and the seed of c->in. */
    void (*pick_in)(backend *b, int n, const float *logits, const be_cycle *c, const int32_t *pos, int32_t *out);
    /* (may be NULL) markov and pick_in for n drafts, one after the other: row i of the logits takes the term of
     * c->in.draft[i], its choice is c->in.draft[i + 1]. Same bits. False: nothing was done, the caller issues them. */
    bool (*chain)(backend *b, int n, const be_weight *w1, const be_weight *w2, be_cycle *c, float *logits);
    /* c->go = the first confidence, of logit[0], is not below the gate. Stamp 3. */
    void (*gate)(backend *b, be_cycle *c);
    /* Given n drafts and the logits of their confidences: k, wanted = k + 1, and the tokens of the trunk's rows 1 .. n
     * (behind k: the anchor again). Stamp 6. */
    void (*plan)(backend *b, int n, be_cycle *c);
    /* Compares choices with drafts and writes the record, which lies in shared memory. Stamp 7. */
    void (*judge)(backend *b, be_cycle *c, be_record *out);
} backend_ops;

struct backend {
    const backend_ops *op;
    be_dims dims;     /* set by the model before the first operation */
    const char *name; /* "cpu", "cuda" */
    enum be_act act;  /* as opened; set by backend_open */
    int max_rows;     /* most rows of one forward */
    int fault_in;     /* for tests: the sync that is to fail, counted down; 0: none */
    bool unified;     /* device memory is the host's: pages of a file that stay cached take some of it */
    bool graphs;      /* steps are replayed: worth giving narrow forwards few different max_pos */
};

typedef struct backend_options {
    const char *name; /* "cpu", "cuda", or NULL = best available */
    int threads;      /* CPU: 0 = all cores */
    enum be_act act;
} backend_options;

/* backend/select.c: opens the backend that `o` asks for; a name that this build lacks is an error that says so. */
int backend_open(backend **out, const backend_options *o, ds4_err *e);

#endif
