#include "file/gguf_ahead.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "file/gguf_part.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; older kernels refuse it */
#endif

enum { PIECE = 8 << 20, ASKED = 4 /* pieces asked for before the one that is waited for */ };
static const uint64_t window = (uint64_t)2 << 30;

struct gguf_ahead {
    const gguf *g;
    const gguf_tensor **tensor; /* owned */
    size_t n;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t passed; /* under lock, as stop */
    bool stop;
};

static uintptr_t page_bytes(void) { return (uintptr_t)sysconf(_SC_PAGESIZE); }

/* Bytes [at, at + PIECE) of the tensor, as far as it goes, whole pages. */
static void advise(const gguf_tensor *t, uint64_t at, int how)
{
    const uintptr_t page = page_bytes(), from = ((uintptr_t)t->data + at) / page * page;
    uint64_t n = at < t->nbytes ? t->nbytes - at : 0;
    if (n)
        (void)madvise((void *)from, (uintptr_t)t->data + at + (n < PIECE ? n : PIECE) - from, how);
}

/* Waits until byte `at` of the list is inside the window; false: stop. */
static bool may_fetch(gguf_ahead *a, uint64_t at)
{
    pthread_mutex_lock(&a->lock);
    while (!a->stop && at >= a->passed + window)
        pthread_cond_wait(&a->changed, &a->lock);
    bool go = !a->stop;
    pthread_mutex_unlock(&a->lock);
    return go;
}

static void *fetch(void *ctx)
{
    gguf_ahead *a = ctx;
    uint64_t before = 0; /* of the list */
    for (size_t i = 0; i < a->n; before += a->tensor[i++]->nbytes) {
        const gguf_tensor *t = a->tensor[i];
        for (uint64_t at = 0; at < t->nbytes; at += PIECE) {
            if (!may_fetch(a, before + at))
                return NULL;
            for (uint64_t k = at ? ASKED : 0; k <= ASKED; k++)
                advise(t, at + k * PIECE, MADV_WILLNEED);
            advise(t, at, MADV_POPULATE_READ);
        }
    }
    return NULL;
}

gguf_ahead *gguf_ahead_start(const gguf *g, const gguf_tensor *const *tensor, size_t n)
{
    for (size_t i = 0; i < g->n_parts; i++)
        if (!g->part[i].mapped)
            return NULL;
    gguf_ahead *a = calloc(1, sizeof *a);
    const gguf_tensor **list = a && n ? malloc(n * sizeof *list) : NULL;
    if (!list) {
        free(a);
        return NULL;
    }
    memcpy(list, tensor, n * sizeof *list);
    *a = (gguf_ahead){.g = g, .tensor = list, .n = n};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    if (pthread_create(&a->thread, NULL, fetch, a)) {
        pthread_cond_destroy(&a->changed);
        pthread_mutex_destroy(&a->lock);
        free(list);
        free(a);
        return NULL;
    }
    return a;
}

static void tell(gguf_ahead *a, uint64_t passed, bool stop)
{
    pthread_mutex_lock(&a->lock);
    a->passed = passed > a->passed ? passed : a->passed;
    a->stop = stop;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void gguf_ahead_passed(gguf_ahead *a, uint64_t bytes)
{
    if (a)
        tell(a, bytes, false);
}

void gguf_ahead_stop(gguf_ahead *a)
{
    if (!a)
        return;
    tell(a, 0, true);
    pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a->tensor);
    free(a);
}

/* Whole pages only: what neighbours share stays. */
void gguf_give_back(const gguf *g, const gguf_tensor *t, bool cached)
{
    const gguf_part *part = &g->part[t->part];
    const uintptr_t page = page_bytes(), from = ((uintptr_t)t->data + page - 1) / page * page,
                    to = ((uintptr_t)t->data + t->nbytes) / page * page;
    if (!part->mapped || from >= to)
        return;
    (void)madvise((void *)from, to - from, MADV_DONTNEED);
    if (cached)
        (void)posix_fadvise(part->fd, (off_t)(from - (uintptr_t)part->base), (off_t)(to - from), POSIX_FADV_DONTNEED);
}
