/* gguf_ahead.h: tensors that are copied elsewhere one after the other: a thread brings the next ones into memory, so
 * that the disk works while the copy does, and pages of those that were copied are given back.
 *
 *   order:  [given back ... ][being copied][ ... fetched, at most WINDOW bytes behind the start of it ][not yet ...]
 *
 * All of this is hints: where they do nothing, reading is slower and right. */
#ifndef DS4_FILE_GGUF_AHEAD_H
#define DS4_FILE_GGUF_AHEAD_H

#include "file/gguf.h"

typedef struct gguf_ahead gguf_ahead;

/* Starts with the first of n tensors (the list may go, the file must stay). NULL if there is nothing to be gained or no
 * thread. */
gguf_ahead *gguf_ahead_start(const gguf *g, const gguf_tensor *const *tensor, size_t n);
/* The copy has come to the end of the first `bytes` bytes of the list. */
void gguf_ahead_passed(gguf_ahead *a, uint64_t bytes);
void gguf_ahead_stop(gguf_ahead *a); /* NULL is fine */

/* Gives the pages of t back (later reads would fetch them again), with `cached` also what the system keeps of them. */
void gguf_give_back(const gguf *g, const gguf_tensor *t, bool cached);

#endif
