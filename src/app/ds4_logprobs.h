/* ds4_logprobs.h: --dump-logprobs. One JSON object per line and generated token:
 *
 *   {"pos": 17, "id": 42, "text": " foo", "bytes": [32, 102, 111, 111], "logprob": -0.25, "top": [{"id", "text",
 * "bytes", "logprob"}, ...]}
 *
 * pos is the token's position in the sequence; logprob is the natural logarithm of its probability at temperature 1
 * without filters; text is null where the bytes are no UTF-8; top is sorted, likeliest first, ties by id. */
#ifndef DS4_APP_DS4_LOGPROBS_H
#define DS4_APP_DS4_LOGPROBS_H

#include <stdbool.h>

#include "base/err.h"
#include "base/fsio.h"
#include "text/vocab.h"

typedef struct logprobs {
    fsio_writer w;
    const vocab *v;
    int top_k;
    int32_t *best; /* [top_k] */
    bool open;     /* w is */
} logprobs;

int logprobs_open(logprobs *l, const char *path, const vocab *v, int top_k, ds4_err *e);
int logprobs_add(logprobs *l, int pos, int32_t id, const float *logits, ds4_err *e);
/* Puts the file in its place. */
int logprobs_commit(logprobs *l, ds4_err *e);
void logprobs_close(logprobs *l); /* gives up unless committed */

#endif
