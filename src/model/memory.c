#include "model/memory.h"

#include <stdio.h>

#include "model/kv.h"
#include "model/model.h"
#include "model/weights.h"

/* What depends on the context: state and scratch. */
static int count_context(memory_plan *p, backend *b, const shape *s, const drafter_shape *ds, int ctx, ds4_err *e)
{
    size_t have, total, own;
    int rc = b->op->memory(b, ctx, &have, &total, &own, e);
    if (rc)
        return rc;
    p->free = have;
    p->total = total;
    p->state = kv_plan_bytes(s, ds, p->slots, ctx, b->max_rows);
    p->scratch = model_scratch_bytes(s, ds, b->max_rows) + own;
    return 0;
}

static bool fits(const memory_plan *p) { return p->weights + p->state + p->scratch <= p->free; }

int memory_plan_make(memory_plan *p, backend *b, const shape *s, const drafter_shape *ds, const gguf *trunk,
                     const gguf *drafter, int slots, int ctx, ds4_err *e)
{
    enum { GRAIN = 256 };
    *p = (memory_plan){.slots = slots, .ctx = ctx};
    b->dims = s->dims;
    if (!b->op->memory)
        return 0;
    int rc = weights_plan_trunk(&p->weights, s, trunk, b, e), low = 0, high = ctx / GRAIN + 1;
    if (!rc && drafter)
        rc = weights_plan_drafter(&p->weights, s, ds, drafter, b, e);
    while (!rc && high - low > 1) { /* low fits or is 0 */
        const int mid = low + (high - low) / 2;
        rc = count_context(p, b, s, ds, mid * GRAIN, e);
        if (fits(p))
            low = mid;
        else
            high = mid;
    }
    p->most = low * GRAIN;
    return rc ? rc : count_context(p, b, s, ds, ctx, e);
}

int memory_plan_line(const memory_plan *p, char *buf, size_t n)
{
    return snprintf(buf, n, "memory: weights %.2f GB, context %.2f GB, scratch %.2f GB of %.2f GB free",
                    (double)p->weights / 1e9, (double)p->state / 1e9, (double)p->scratch / 1e9, (double)p->free / 1e9);
}

int memory_plan_check(const memory_plan *p, ds4_err *e)
{
    char advice[100];
    if (!p->total || fits(p))
        return 0;
    if (p->most)
        snprintf(advice, sizeof advice, "use --ctx %d or less%s", p->most, p->slots > 1 ? ", or fewer sessions" : "");
    else
        snprintf(advice, sizeof advice, "no context fits, use %sa smaller model",
                 p->slots > 1 ? "one session or " : "");
    return ds4_fail(e, DS4_ENOMEM,
                    "device memory: %.2f GB are needed (weights %.2f, context of %d tokens %.2f, scratch %.2f), "
                    "%.2f GB of %.2f are free: %s",
                    (double)(p->weights + p->state + p->scratch) / 1e9, (double)p->weights / 1e9, p->ctx,
                    (double)p->state / 1e9, (double)p->scratch / 1e9, (double)p->free / 1e9, (double)p->total / 1e9,
                    advice);
}
