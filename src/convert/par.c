#include "convert/par.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct par_part {
    void (*fn)(void *ctx, int thread, uint64_t begin, uint64_t end);
    void *ctx;
    int no;
    uint64_t begin, end;
    pthread_t id;
    bool started;
} par_part;

static void *run_part(void *arg)
{
    par_part *p = arg;
    p->fn(p->ctx, p->no, p->begin, p->end);
    return NULL;
}

void par_run(int threads, uint64_t n, void (*fn)(void *ctx, int thread, uint64_t begin, uint64_t end), void *ctx)
{
    par_part part[PAR_MAX_THREADS];
    if (threads > PAR_MAX_THREADS)
        threads = PAR_MAX_THREADS;
    if ((uint64_t)threads > n)
        threads = n ? (int)n : 1;
    for (int i = 0; i < threads; i++) {
        par_part *p = &part[i];
        *p = (par_part){.fn = fn, .ctx = ctx, .no = i};
        p->begin = n / threads * i + n % threads * i / threads;
        p->end = n / threads * (i + 1) + n % threads * (i + 1) / threads;
        p->started = i + 1 < threads && pthread_create(&p->id, NULL, run_part, p) == 0;
        if (!p->started)
            run_part(p);
    }
    for (int i = 0; i < threads; i++)
        if (part[i].started)
            pthread_join(part[i].id, NULL);
}
