/* sight.cuh: the rows that a token attends to. They form one list, which depends on the token's position alone (and,
 * for the drafter, on its block): window by position, compressed rows by index, rows of the block. */
#ifndef DS4_BACKEND_CUDA_SIGHT_CUH
#define DS4_BACKEND_CUDA_SIGHT_CUH

#include "backend/cuda/row.cuh"

/* Where the rows of a forward of n tokens lie. */
typedef struct sources {
    const int32_t *pos, *seq, *sel; /* sel: [n][top] or NULL */
    const float *block;             /* [n][dim] or NULL */
    be_store raw, comp;             /* comp.base NULL: none */
    int n, ratio, dim, window, top;
} sources;

/* What token i sees. */
typedef struct sight {
    int seq, from, ring, comp, total; /* first ring position; numbers of ring rows, compressed rows, all rows */
    const int32_t *sel;
} sight;

DEV sight see(const sources &a, int i)
{
    sight s;
    int pos = a.pos[i], end = a.block ? a.pos[0] : pos + 1, visible = a.comp.base ? (pos + 1) / a.ratio : 0;
    s.seq = a.seq[i];
    s.from = end > a.window ? end - a.window : 0;
    s.ring = end - s.from;
    s.sel = a.comp.base && a.sel ? a.sel + (int64_t)i * a.top : NULL;
    s.comp = s.sel && visible > a.top ? a.top : visible;
    s.total = s.ring + s.comp + (a.block ? a.n : 0);
    return s;
}

DEV const float *seen_row(const sources &a, const sight &s, int t)
{
    if (t < s.ring)
        return ring_row(a.raw, s.seq, s.from + t);
    t -= s.ring;
    if (t < s.comp) {
        int row = s.sel ? s.sel[t] : t;
        return array_row(a.comp, s.seq, row < 0 ? 0 : row);
    }
    return a.block + (int64_t)(t - s.comp) * a.dim;
}

/* Whether entry t is really there: a selection may end early. */
DEV bool is_seen(const sight &s, int t)
{
    return !s.sel || t < s.ring || t >= s.ring + s.comp || s.sel[t - s.ring] >= 0;
}

/* Most rows that a token of a forward of n tokens sees; pos: the largest position, or a bound of it. */
static inline int sight_most(const sources &a, int pos)
{
    int visible = a.comp.base ? (pos + 1) / a.ratio : 0;
    visible = a.sel && visible > a.top ? a.top : visible;
    return a.window + visible + (a.block ? a.n : 0);
}

/* Entries that scratch has room for: doubling, so that it grows a few times in a long context and then no more. */
static inline int sight_room(int entries)
{
    int room = 1024;
    while (room < entries)
        room *= 2;
    return room;
}

#endif
