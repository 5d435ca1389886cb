/* pool.c: see pool.h.
 *
 * Invariants:
 * 1. fn, ctx, ntasks change only while busy == 0; `round` is then advanced, which publishes them.
 * 2. A worker runs each round exactly once and then decrements busy, which publishes its results.
 * 3. Whoever is about to sleep first announces itself (sleepers / caller_sleeps), then checks its condition again under
 *    the mutex; whoever makes the condition true first changes it, then looks for announcements. All four accesses are
 *    sequentially consistent, so at least one side sees the other and no wake-up is lost. */
#define _GNU_SOURCE
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

/* Spinning before sleep: longer than the serial code between two loops of a forward, shorter than what a wasted
 * wait may cost on a busy machine. The clock is read every few pauses, whose length differs tenfold between CPUs. */
static const double spin_seconds = 30e-6;
enum { PAUSES_PER_LOOK = 16 };

typedef struct worker {
    pool *p;
    int id;
    pthread_t thread;
} worker;

struct pool {
    int n;
    bool spin; /* not when there are more threads than CPUs: spinning would take the CPU of the one waited for */
    pool_fn fn;
    void *ctx;
    int ntasks;
    bool stop;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    _Alignas(64) atomic_uint round;
    atomic_int sleepers;
    _Alignas(64) atomic_int busy;
    atomic_int caller_sleeps;
    worker workers[];
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

int pool_cpus(void)
{
    cpu_set_t set;
    long n;
    if (sched_getaffinity(0, sizeof set, &set))
        n = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than the set can hold */
    else
        n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > POOL_MAX_THREADS ? POOL_MAX_THREADS : (int)n;
}

static void run_share(const pool *p, int id)
{
    int64_t total = p->ntasks;
    int from = (int)((total * id + p->n - 1) / p->n), to = (int)((total * (id + 1) + p->n - 1) / p->n);
    for (int t = from; t < to; t++)
        p->fn(p->ctx, t);
}

typedef struct spinner {
    unsigned pauses;
    double until;
} spinner;

/* One pause; false when it is time to sleep. */
static bool spin_on(const pool *p, spinner *s)
{
    if (!p->spin)
        return false;
    relax();
    if (++s->pauses % PAUSES_PER_LOOK)
        return true;
    double now = clock_now();
    if (s->pauses == PAUSES_PER_LOOK)
        s->until = now + spin_seconds;
    return now < s->until;
}

static void wait_round(pool *p, unsigned seen)
{
    for (spinner s = {0}; spin_on(p, &s);)
        if (atomic_load_explicit(&p->round, memory_order_acquire) != seen)
            return;
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->round) == seen)
        pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    pool *p = w->p;
    for (unsigned seen = 0;; seen++) {
        wait_round(p, seen);
        if (p->stop)
            return NULL;
        run_share(p, w->id);
        if (atomic_fetch_sub(&p->busy, 1) == 1 && atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static void start_round(pool *p)
{
    atomic_fetch_add(&p->round, 1);
    if (atomic_load(&p->sleepers)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
}

static void wait_done(pool *p)
{
    for (spinner s = {0}; spin_on(p, &s);)
        if (!atomic_load_explicit(&p->busy, memory_order_acquire))
            return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, 1);
    while (atomic_load(&p->busy))
        pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_sleeps, 0);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(pool *p, pool_fn fn, void *ctx, int ntasks)
{
    if (!p || p->n == 1 || ntasks <= 1) {
        for (int t = 0; t < ntasks; t++)
            fn(ctx, t);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->ntasks = ntasks;
    atomic_store_explicit(&p->busy, p->n - 1, memory_order_relaxed); /* published by the round */
    start_round(p);
    run_share(p, 0);
    wait_done(p);
}

int pool_threads(const pool *p) { return p ? p->n : 1; }

/* Ends and joins workers 1..started. */
static void stop_workers(pool *p, int started)
{
    p->stop = true;
    start_round(p);
    for (int i = 1; i <= started; i++)
        pthread_join(p->workers[i].thread, NULL);
}

static int start_workers(pool *p, ds4_err *e)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* workers inherit it: signals go to the caller's threads */
    int rc = 0;
    for (int i = 1; !rc && i < p->n; i++) {
        p->workers[i].p = p;
        p->workers[i].id = i;
        int err = pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
        if (err) {
            rc = ds4_fail(e, DS4_ENOMEM, "cannot start thread %d of %d: %s: use fewer threads", i + 1, p->n,
                          strerror(err));
            stop_workers(p, i - 1);
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static void release(pool *p)
{
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int pool_create(pool **out, int n, ds4_err *e)
{
    if (n < 1 || n > POOL_MAX_THREADS)
        return ds4_fail(e, DS4_EARG, "%d threads asked for, expected 1 to %d", n, POOL_MAX_THREADS);
    size_t bytes = sizeof(pool) + (size_t)n * sizeof(worker);
    pool *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p)
        return ds4_fail(e, DS4_ENOMEM, "no memory for %d threads", n);
    memset(p, 0, bytes);
    p->n = n;
    p->spin = n <= pool_cpus();
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    int rc = start_workers(p, e);
    if (rc) {
        release(p);
        return rc;
    }
    *out = p;
    return 0;
}

void pool_free(pool *p)
{
    if (!p)
        return;
    stop_workers(p, p->n - 1);
    release(p);
}
