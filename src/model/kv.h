/* kv.h: the positional state of sequences. Nothing here knows how far a sequence is committed: visibility follows from
 * positions alone.
 *
 *   ring, cap = keep + max_rows:      slot = pos mod cap
 *       ... [p-keep ......... p-1][p ... p+n-1] ...        rows of a forward at p..p+n-1 never destroy the keep rows
 * before p, what position p needs  being written           so rejecting them costs nothing: pos simply does not move
 *   array:  row index = pos / ratio, written when (pos+1) mod ratio = 0; rows at or beyond pos/ratio are not visible
 * and are rewritten
 *
 * Per layer: raw KV ring (keep = window). Ratio 4: compressor input ring (keep 8: previous and current window),
 * compressed rows, the same pair for the indexer. Ratio 128: input ring (keep 128) and compressed rows. With a drafter:
 * the tap ring (keep = window) and one ring per stage, which is derived from the taps (spec/ fills it) and is therefore
 * neither hashed nor saved. */
#ifndef DS4_MODEL_KV_H
#define DS4_MODEL_KV_H

#include "backend/backend.h"
#include "model/shape.h"

typedef struct kv_layer {
    be_store raw;             /* [head_dim] ring */
    be_store comp_in, comp;   /* [2*W] ring, [head_dim] array */
    be_store index_in, index; /* [2*2*idx_dim] ring, [idx_dim] array */
} kv_layer;

/* One stored thing, for hashing and snapshots: keep > 0 is a ring, keep = 0 an array of rows per `ratio` tokens. */
typedef struct kv_field {
    be_store store;
    int keep, ratio;
} kv_field;

typedef struct kv {
    backend *b;
    const shape *s;
    int slots, ctx;  /* sequences; most tokens of each */
    kv_layer *layer; /* [layers] */
    be_store tap;    /* [targets*d] ring; width 0 without a drafter */
    be_store *stage; /* [stages] ring of drafter KV rows */
    int stages;
    kv_field *field; /* everything that defines a sequence, in a fixed order */
    int fields;
    size_t bytes; /* device memory taken */
} kv;

/* Takes all memory now: `slots` sequences of up to ctx tokens. ds may be NULL (no drafter). */
int kv_open(kv *k, backend *b, const shape *s, const drafter_shape *ds, int slots, int ctx, ds4_err *e);
void kv_close(kv *k); /* host parts only; device memory belongs to the backend */
/* Bytes that kv_open would take. */
size_t kv_plan_bytes(const shape *s, const drafter_shape *ds, int slots, int ctx, int max_rows);

/* How far below the highest position ever written (exclusive) a sequence may be rewound with all its windows intact. */
int kv_rewind_room(const kv *k);

/* Rows of field f that belong to a sequence of `pos` tokens, oldest first: their number, and a copy of all of them to
 * or from host memory ([rows][width] floats). */
int kv_field_rows(const kv_field *f, int pos);
void kv_field_read(const kv *k, const kv_field *f, int slot, int pos, float *host);
void kv_field_write(const kv *k, const kv_field *f, int slot, int pos, const float *host);

/* Random rows for a sequence of `pos` tokens that was never computed, every place of the rings and what follows from
 * them included: for measuring speed at a position. Numbers are multiples of 1/2 up to 3/2, which every simulated
 * rounding leaves alone. DS4_ENOMEM on failure. */
int kv_fill(const kv *k, int slot, int pos, uint64_t seed, ds4_err *e);

/* Hash of everything that a sequence of `pos` tokens in `slot` holds: equal exactly if the state is bit-identical. *ok
 * false: no memory. */
uint64_t kv_hash(const kv *k, int slot, int pos, bool *ok);

#endif
