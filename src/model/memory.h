/* memory.h: what a model and its sequences will take of the device's memory, counted before anything is loaded. */
#ifndef DS4_MODEL_MEMORY_H
#define DS4_MODEL_MEMORY_H

#include "backend/backend.h"
#include "file/gguf.h"
#include "model/shape.h"

typedef struct memory_plan {
    uint64_t weights, state; /* state: KV of all sequences */
    uint64_t scratch;        /* intermediates, and what the backend takes by itself */
    uint64_t free, total;    /* of the device. total 0: the backend takes the host's memory, nothing was counted */
    int slots, ctx;
    int most; /* the largest context, up to ctx, that fits: a multiple of 256, or 0 */
} memory_plan;

/* Of `slots` sequences of ctx tokens. drafter and ds may be NULL. Sets the backend's dims. Errors are those of files
 * that do not fit the shapes, and of the device. */
int memory_plan_make(memory_plan *p, backend *b, const shape *s, const drafter_shape *ds, const gguf *trunk,
                     const gguf *drafter, int slots, int ctx, ds4_err *e);
/* One line for the user; returns its length as snprintf does. */
int memory_plan_line(const memory_plan *p, char *buf, size_t n);
/* DS4_ENOMEM with one line that says what is missing and what would fit. */
int memory_plan_check(const memory_plan *p, ds4_err *e);

#endif
