/* weights.h: every tensor of trunk and drafter, fetched with the type class and shape expected, counted, and bound to
 * the backend.
 *
 * A tensor that is missing, extra, of a wrong shape or of an unusable type is an error naming tensor, found and
 * expected. Letters: D hidden, S streams, QR query rank, H heads, K head_dim, G groups, R group rank, W compressor
 * width, I index dim, E experts, F expert width. */
#ifndef DS4_MODEL_WEIGHTS_H
#define DS4_MODEL_WEIGHTS_H

#include "backend/backend.h"
#include "file/gguf.h"
#include "model/shape.h"

typedef be_compressor comp_weights;
typedef be_block layer_weights;

typedef struct trunk_weights {
    be_weight embed;                     /* [D] x vocab rows */
    be_weight output;                    /* [D -> vocab] */
    const float *norm;                   /* [D] */
    be_hc hc_head;                       /* fn [S*D -> S] */
    const float *freq_plain, *freq_comp; /* [rope_dim/2] */
    layer_weights *layer;                /* [layers] */
    char *names;                         /* what be_weight.name points into */
} trunk_weights;

typedef struct drafter_weights {
    be_weight main_proj;    /* [targets*D -> D] */
    const float *main_norm; /* [D] */
    const float *norm;      /* [D], final norm of the last stage */
    be_hc hc_head;
    be_weight markov_w1, markov_w2; /* [rank] x vocab rows */
    be_weight confidence;           /* [D + rank -> 1] */
    layer_weights *stage;           /* [stages] */
    char *names;                    /* what be_weight.name points into */
} drafter_weights;

/* Binds everything the file holds. progress (may be NULL) is called with bytes bound so far and in total. On success
 * the caller owns w->layer / d->stage and the names (free with weights_free_*); device memory belongs to the backend.
 */
typedef void (*weights_progress)(void *ctx, uint64_t done, uint64_t total);
int weights_bind_trunk(trunk_weights *w, const shape *s, const gguf *g, backend *b, weights_progress cb, void *ctx,
                       ds4_err *e);
int weights_bind_drafter(drafter_weights *w, const shape *s, const drafter_shape *ds, const gguf *g, backend *b,
                         weights_progress cb, void *ctx, ds4_err *e);
/* Adds to *bytes what binding would take of the device's memory. The directory is checked on the way, no data is read.
 */
int weights_plan_trunk(uint64_t *bytes, const shape *s, const gguf *g, backend *b, ds4_err *e);
int weights_plan_drafter(uint64_t *bytes, const shape *s, const drafter_shape *ds, const gguf *g, backend *b,
                         ds4_err *e);
void weights_free_trunk(trunk_weights *w);
void weights_free_drafter(drafter_weights *w);

/* Identity of a model file for snapshots: a hash over metadata, tensor directory and samples of every tensor's bytes.
 */
uint64_t weights_identity(const gguf *g);

#endif
