#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>

/* Pieces are padded to the alignment, so that planning and cutting add up the same numbers. */
static bool padded(size_t count, size_t elem, size_t *out)
{
    size_t n;
    if (__builtin_mul_overflow(count, elem, &n) || __builtin_add_overflow(n, (size_t)ARENA_ALIGN - 1, &n))
        return false;
    *out = n / ARENA_ALIGN * ARENA_ALIGN;
    return true;
}

void *arena_take(arena *a, size_t count, size_t elem)
{
    size_t n;
    if (!padded(count, elem, &n)) {
        a->bad = true;
        return NULL;
    }
    if (!a->raw) {
        if (__builtin_add_overflow(a->size, n, &a->size))
            a->bad = true;
        return NULL;
    }
    if (n > a->size - a->used) {
        a->bad = true;
        return NULL;
    }
    void *piece = n ? a->base + a->used : NULL;
    a->used += n;
    return piece;
}

int arena_alloc(arena *a, const char *what, ds4_err *e)
{
    size_t size = a->size, whole;
    if (a->bad || __builtin_add_overflow(size, (size_t)ARENA_ALIGN, &whole)) {
        arena_free(a);
        return ds4_fail(e, DS4_EARG, "%s: the size asked for exceeds the address space", what);
    }
    a->raw = calloc(whole, 1);
    if (!a->raw) {
        arena_free(a);
        return ds4_fail(e, DS4_ENOMEM, "%s: no memory for %zu bytes (%.1f MiB)", what, size, (double)size / 1048576.0);
    }
    a->base = (unsigned char *)(((uintptr_t)a->raw + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN);
    a->used = 0;
    return 0;
}

bool arena_complete(const arena *a) { return a->raw && !a->bad && a->used == a->size; }

void arena_free(arena *a)
{
    free(a->raw);
    *a = (arena){0};
}
