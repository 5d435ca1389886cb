/* par.c: spreading independent tasks over the threads, in contiguous shares. */
#include "backend/cpu/cpu.h"
#include "base/pool.h"

typedef struct shares {
    cpu_task fn;
    void *ctx;
    int n, threads;
} shares;

static void run_share(void *ctx, int thread)
{
    const shares *s = ctx;
    int from = (int)((int64_t)s->n * thread / s->threads), to = (int)((int64_t)s->n * (thread + 1) / s->threads);
    for (int i = from; i < to; i++)
        s->fn(s->ctx, i, thread);
}

void cpu_for(cpu *c, int n, double work, cpu_task fn, void *ctx)
{
    bool spread = c->pool && n > 1 && work >= c->small_work;
    shares s = {fn, ctx, n, spread ? c->threads : 1};
    if (spread)
        pool_run(c->pool, run_share, &s, c->threads);
    else
        run_share(&s, 0);
}
