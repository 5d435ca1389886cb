/* pool.h: a fixed set of threads that run small parallel loops with low latency.
 *
 *   caller   pool_run ---- share 0 ---- wait for the others ---- return
 *   worker k   (waiting)  - share k -   (waiting)
 *
 * Task t of `ntasks` always runs on the same thread for the same ntasks (contiguous shares), so data stays in that
 * core's cache from call to call. Between calls workers spin for some microseconds, then sleep. */
#ifndef DS4_BASE_POOL_H
#define DS4_BASE_POOL_H

#include "base/err.h"

typedef struct pool pool;
typedef void (*pool_fn)(void *ctx, int task);

enum { POOL_MAX_THREADS = 1024 };

/* CPUs that this process may use (affinity), at least 1. */
int pool_cpus(void);

/* A pool of n threads in all, the caller included: n = 1 starts none. 1 <= n <= POOL_MAX_THREADS, else DS4_EARG;
 * DS4_ENOMEM if threads cannot be started. Workers block all signals. */
int pool_create(pool **out, int n, ds4_err *e);
/* Ends the workers. NULL is fine. Not during pool_run. */
void pool_free(pool *p);

int pool_threads(const pool *p); /* n of pool_create; 1 for NULL */

/* Calls fn(ctx, t) once for every t in 0..ntasks-1 and returns when all calls have returned; what they wrote is then
 * visible to the caller. Allocates nothing and cannot fail. One caller at a time; fn must not call pool_run on the same
 * pool. p NULL or n = 1: runs inline, in order. ntasks <= 0: nothing. */
void pool_run(pool *p, pool_fn fn, void *ctx, int ntasks);

#endif
