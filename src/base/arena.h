/* arena.h: one allocation cut into aligned pieces, sized by the very code that cuts it.
 *
 *   arena a = {0};
 *   cut(&a, &it);                   planning: every arena_take adds up and returns NULL
 *   rc = arena_alloc(&a, "scratch", e);
 *   cut(&a, &it);                   cutting: the same calls return the pieces
 *   ... arena_free(&a);
 *
 * States: {0} PLANNING -> arena_alloc -> CUTTING -> arena_free -> PLANNING. */
#ifndef DS4_BASE_ARENA_H
#define DS4_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum { ARENA_ALIGN = 64 };

typedef struct arena {
    void *raw;           /* what malloc gave; NULL while planning */
    unsigned char *base; /* aligned start */
    size_t size;         /* planned bytes */
    size_t used;         /* cut so far */
    bool bad;            /* a size overflowed or more was taken than planned; sticky */
} arena;

/* count elements of elem bytes, aligned to ARENA_ALIGN. Planning: adds to the size, returns NULL. Cutting: returns the
 * piece (zeroed on the first cut), or NULL if the plan is exceeded. A piece of 0 bytes is NULL. */
void *arena_take(arena *a, size_t count, size_t elem);

/* Ends planning: allocates a->size zeroed bytes (pages are touched when used). `what` names it in the error.
 * DS4_EARG if the plan overflowed, DS4_ENOMEM (with the size) if there is no memory; the arena is then as after
 * arena_free. */
int arena_alloc(arena *a, const char *what, ds4_err *e);

/* True when every planned byte and no more was cut: the two passes agreed. */
bool arena_complete(const arena *a);

void arena_free(arena *a);

#endif
