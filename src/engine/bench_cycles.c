/* bench_cycles.c: whole drafted cycles, and how much of them is the host's. The backend's table of operations is
 * replaced by one that watches waiting and reading back, whoever does it. */
#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"

typedef struct watch {
    backend_ops ops; /* first: the backend's table points here */
    const backend_ops *real;
    double waited;
    uint64_t bytes;
} watch;

static watch *watch_of(backend *b) { return (watch *)(uintptr_t)b->op; }

static int watch_sync(backend *b, ds4_err *e)
{
    watch *w = watch_of(b);
    const double start = clock_now();
    int rc = w->real->sync(b, e);
    w->waited += clock_now() - start;
    return rc;
}

static void watch_download(backend *b, void *dst, const void *src, size_t bytes)
{
    watch *w = watch_of(b);
    const double start = clock_now();
    w->real->download(b, dst, src, bytes);
    w->waited += clock_now() - start;
    w->bytes += bytes;
}

static void watch_begin(watch *w, backend *b)
{
    *w = (watch){.ops = *b->op, .real = b->op};
    w->ops.sync = watch_sync;
    w->ops.download = watch_download;
    b->op = &w->ops;
}

static int run_cycles(ds4_session *s, int32_t anchor, int cycles, ds4_cycle_times *out, ds4_error *err)
{
    ds4_engine *e = s->e;
    const int most = e->ds.base.most;
    int32_t ids[SHAPE_MAX_BLOCK + 1];
    watch w;
    int n, rc = cycle_step(&e->c, &s->s, anchor, most + 1, ids, &n, err); /* warms up */
    e->stats = (ds4_stats){0};
    watch_begin(&w, e->b);
    const double start = clock_now();
    for (int i = 0; i < cycles && !rc; i++)
        rc = cycle_step(&e->c, &s->s, ids[n - 1], most + 1, ids, &n, err);
    const double total = clock_now() - start;
    const uint64_t read = e->stats.bytes_to_host; /* also what comes by another way than download */
    e->b->op = w.real;
    *out = (ds4_cycle_times){.total = total / cycles,
                             .propose = e->stats.propose / cycles,
                             .verify = (e->stats.verify + e->stats.target) / cycles,
                             .host = (total - w.waited) / cycles,
                             .bytes_to_host = (double)(read > w.bytes ? read : w.bytes) / cycles,
                             .drafts = (int)(e->stats.proposed / (uint64_t)cycles)};
    return rc;
}

int ds4_bench_cycles(ds4_session *s, int32_t anchor, int cycles, ds4_cycle_times *out, ds4_error *err)
{
    ds4_engine *e = s->e;
    const int pos = s->s.pos, most = e->ds.base.most;
    const uint8_t none[1] = {0};
    cycle_script script = {.accept = none, .n = 1};
    if (!e->has_dspark || s->s.state != SESSION_READY)
        return ds4_fail(err, DS4_ESTATE, "a drafted cycle needs %s", e->has_dspark ? "a prompt" : "a drafter");
    if (cycles < 1 || 1 + cycles + most > kv_rewind_room(&e->k) || s->s.ctx - pos < 1 + cycles + most)
        return ds4_fail(err, DS4_EARG, "%d cycles at position %d of %d do not fit or cannot be undone", cycles, pos,
                        s->s.ctx);
    if (anchor < 0 || anchor >= e->m.s.dims.vocab)
        return ds4_fail(err, DS4_EARG, "token id %d, expected 0 to %d", anchor, e->m.s.dims.vocab - 1);
    const cycle before = e->c;
    const sched decisions = e->sched;
    const ds4_stats stats = e->stats;
    engine_own(s);
    e->c.proposer = &e->ds.base;
    e->c.sample = (sample_params){0};
    e->c.eos = -1;
    e->c.keep_logits = false;
    e->c.script = &script;
    e->stats.timing = false;
    sched_set_mode(&e->sched, SCHED_FIXED, 0);
    int rc = run_cycles(s, anchor, cycles, out, err);
    e->c = before;
    e->sched = decisions;
    e->stats = stats;
    return rc ? rc : session_rewind(&s->s, pos, err);
}
