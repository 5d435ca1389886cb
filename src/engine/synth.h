/* synth.h: models that no file holds, for measuring speed: the shape and the types of a published model, numbers made
 * up. What the loader gets is the beginning of a file (metadata, directory, small vectors); matrices are made by the
 * backend (file/synth.h). The vocabulary has the special tokens and the 256 bytes; the rest is unused. */
#ifndef DS4_ENGINE_SYNTH_H
#define DS4_ENGINE_SYNTH_H

#include <stdint.h>

#include "base/err.h"
#include "file/gguf.h"

typedef struct synth_model {
    const char *name; /* flash-q2, flash-q4, flash-mxfp4, or tiny-q2, a small one for tests */
    int layers;       /* the first so many; 0: all */
    float skew;       /* root mean square of the router bias; 0: experts are equally likely */
} synth_model;

/* Both leave the bytes, which must outlive the object, in *bytes: the caller frees them. */
int synth_trunk(gguf **out, uint8_t **bytes, const synth_model *s, ds4_err *e);
int synth_drafter(gguf **out, uint8_t **bytes, const synth_model *s, ds4_err *e);

#endif
