/* par.h: splitting rows over a few short-lived threads. */
#ifndef DS4_CONVERT_PAR_H
#define DS4_CONVERT_PAR_H

#include <stdint.h>

enum { PAR_MAX_THREADS = 256 };

/* Calls fn(ctx, thread, begin, end) once per thread with contiguous ranges that cover 0..n, and waits for all. Where a
 * thread cannot be started its range runs in the caller, so the work is always done. */
void par_run(int threads, uint64_t n, void (*fn)(void *ctx, int thread, uint64_t begin, uint64_t end), void *ctx);

#endif
