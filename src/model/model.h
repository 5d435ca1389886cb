/* model.h: a loaded trunk (and drafter) with its scratch, and the one forward, written once for all backends.
 *
 *   forward_trunk   rows (token, pos, seq) -> KV stores, taps, logits of the rows asked for
 *   forward_absorb  taps of committed rows -> the drafter's rings
 *   forward_draft   block rows [anchor, noise...] -> hidden rows and base logits
 *
 * Functions issue operations and return at once; errors show at backend sync. Row arrays live in the model's step
 * buffer (model_rows). */
#ifndef DS4_MODEL_MODEL_H
#define DS4_MODEL_MODEL_H

#include "backend/backend.h"
#include "model/kv.h"
#include "model/shape.h"
#include "model/weights.h"

/* Which simulated roundings of KV and index rows are applied. KV_SIM_FULL is the model; the others only serve
 * comparison. */
enum kv_sim { KV_SIM_FULL = 0, KV_SIM_FP8 = 1, KV_SIM_OFF = 2 };

/* Places in scratch.ids. DRAFT: anchor, then drafts; DRAFT_POS: the position each draft will take; CHOICE, CHOICE_POS:
 * the trunk's. */
enum { IDS_DRAFT = 0, IDS_DRAFT_POS = 32, IDS_CHOICE = 64, IDS_CHOICE_POS = 96, IDS_COUNT = 128 };

/* Device scratch, one allocation; float [max_rows][..] each (scratch.def). sel and route_id hold int32. */
typedef struct scratch {
#define X(name, n) float *name;
#include "model/scratch.def"
#undef X
    float *hidden;       /* [BE_NARROW][D] output of a head before its norm */
    float *normed;       /* [BE_NARROW][D] after it */
    float *logits;       /* [BE_NARROW][vocab] of the trunk */
    float *draft_logits; /* [SHAPE_MAX_BLOCK + 1][vocab] of the drafter */
    int32_t *rows;       /* [2][3][max_rows] step inputs: token, pos, seq; two sets (trunk, drafter) */
    int32_t *ids;        /* [IDS_COUNT], see below */
    float *conf;         /* [64] confidence logits */
    be_cycle *cycle;     /* of forward_cycle */
    be_record *record;   /* its result, which the host may read; NULL where the backend has no such operations */
} scratch;

typedef struct model {
    backend *b;
    shape s;
    trunk_weights w;
    bool has_drafter;
    drafter_shape ds;
    drafter_weights dw;
    scratch sc;
    enum kv_sim sim;
    uint64_t identity; /* of the trunk file */
    size_t scratch_bytes;
} model;

typedef struct model_options {
    enum kv_sim sim;
    weights_progress progress; /* may be NULL */
    void *progress_ctx;
} model_options;

/* Reads shapes, binds every tensor, takes scratch. The gguf objects must outlive the model; `drafter` may be NULL. */
int model_open(model *m, backend *b, const gguf *trunk, const gguf *drafter, const model_options *o, ds4_err *e);
void model_close(model *m); /* not the backend, not the gguf objects */

/* Bytes of scratch that model_open takes; ds NULL: without a drafter. */
size_t model_scratch_bytes(const shape *s, const drafter_shape *ds, int max_rows);

/* Uploads n rows into step set `set` (0 trunk, 1 drafter) and returns their description. seq may be NULL (slot `slot`
 * for all). */
be_rows model_rows(model *m, int set, int n, const int32_t *token, const int32_t *pos, int slot);

/* --- steps ---
 * A narrow forward is a step of the backend (step_begin): where steps are replayed, its rows come with the largest
 * position of their context bucket instead of their own, so that a few captured sequences serve every position. The
 * first bucket ends where selection of compressed rows begins; the others double. */
enum forward_part { PART_TRUNK, PART_ABSORB, PART_DRAFT, PART_DRAFT_HEAD, PART_CYCLE };
/* The same rows with the bound of their bucket, if they are narrow and the backend replays steps; else unchanged. */
be_rows forward_bound(const model *m, const kv *k, const be_rows *r);
/* Identifies the operations of `part` on bounded rows: everything that shapes their launches. */
uint64_t forward_key(const model *m, const kv *k, enum forward_part part, const be_rows *r, int head_from);

/* One forward of the trunk over r->n <= max_rows rows, consecutive positions of a sequence in ascending order. Writes
 * KV and taps of every row. Logits of rows [head_from, n) go to sc.logits (at most BE_NARROW rows); head_from = n asks
 * for none. */
void forward_trunk(model *m, kv *k, const be_rows *r, int head_from);
/* One trunk layer on given streams (tests drive single layers with golden inputs). */
void forward_layer(model *m, kv *k, int layer, const be_rows *r);
/* Head over rows [from, n) of sc.streams. */
void forward_head(model *m, int n, int from);

/* main_x = rmsw(main_proj . taps); per stage: KV row from wkv . main_x into the stage's ring. Rows' tokens are not
 * looked at. */
void forward_absorb(model *m, kv *k, const be_rows *r);
/* A whole cycle as one step, without a visit to the host: sc.cycle->in holds its inputs, sc.record its result when the
 * backend was waited for. drafts = 0: row 0 of the trunk and its choice. Else rows set 2 (block + 1 committed ones) is
 * absorbed, the block (set 1) drafted, gated and planned, and the wanted ones of 1 + drafts trunk rows (set 0) judged;
 * max_pos: no row is behind it. timing: stamps between all parts. False: replayed. */
bool forward_cycle(model *m, kv *k, int drafts, int max_pos, bool timing);

/* The drafter's stages over one block of r->n rows at consecutive positions p0, p0+1, ...; ring rows before p0 must
 * have been absorbed. sc.hidden = output of the last stage's hc head before its norm. forward_draft_head: base logits
 * into sc.draft_logits. */
void forward_draft(model *m, kv *k, const be_rows *r);
void forward_draft_head(model *m, int n);

#endif
