/* par.c: spreading independent tasks over the threads. */
#include "backend/cpu/cpu.h"

/* Below this many multiply-adds waking the other threads costs more than it saves. */
static const double small_work = 30e3;

void cpu_for(cpu *c, int n, double work, cpu_task fn, void *ctx)
{
    (void)c, (void)work, (void)small_work;
    for (int i = 0; i < n; i++)
        fn(ctx, i, 0);
}
