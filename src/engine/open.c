#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/synth.h"
#include "model/memory.h"

ds4_engine_options ds4_engine_defaults(void) { return (ds4_engine_options){.sessions = 1}; }

/* Passes loading progress on; the model counts bytes of one file at a time. */
static void load_progress(void *ctx, uint64_t done, uint64_t total)
{
    const ds4_engine_options *o = ctx;
    if (o->progress)
        o->progress(o->progress_ctx, "load", done, total);
}

static int check_options(const ds4_engine_options *o, ds4_error *err)
{
    if (o->synthetic && (o->model || o->drafter || o->host_confidence))
        return ds4_fail(err, DS4_EARG, "a synthetic model goes with no file and no diagnostic of the host");
    if (!o->model && !o->synthetic)
        return ds4_fail(err, DS4_EARG, "no model file given; use -m FILE");
    if (o->dspark && !o->drafter && !o->synthetic_drafter)
        return ds4_fail(err, DS4_EARG, "--dspark requires --mtp FILE (the DSpark support GGUF)");
    if (o->ctx < 0 || o->sessions < 1 || o->sessions > 1024)
        return ds4_fail(err, DS4_EARG, "context %d and %d sessions: expected 0 or more, and 1 to 1024", o->ctx,
                        o->sessions);
    return 0;
}

static int make_files(ds4_engine *e, ds4_error *err)
{
    const synth_model s = {e->o.synthetic, e->o.synthetic_layers, e->o.synthetic_skew};
    int rc = synth_trunk(&e->trunk, &e->made[0], &s, err);
    if (!rc && e->o.synthetic_drafter)
        rc = synth_drafter(&e->drafter, &e->made[1], &s, err);
    return rc;
}

/* Made-up weights have no file behind them: on the CPU all of them must fit into memory. */
static int check_memory(const ds4_engine *e, ds4_error *err)
{
    const double have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double need = (double)gguf_file_bytes(e->trunk);
    need += e->drafter ? (double)gguf_file_bytes(e->drafter) : 0;
    if (!e->o.synthetic || strcmp(e->b->name, "cpu") || need < 0.8 * have)
        return 0;
    return ds4_fail(err, DS4_EARG, "synthetic model %s takes %.1f GB, this machine has %.1f: use fewer --layers",
                    e->o.synthetic, need / 1e9, have / 1e9);
}

static int choose_context(ds4_engine *e, uint32_t most, ds4_error *err)
{
    e->ctx = e->o.ctx ? e->o.ctx : most < 4096 ? (int)most : 4096;
    if ((uint32_t)e->ctx > most)
        return ds4_fail(err, DS4_EARG, "a context of %d tokens exceeds the model's maximum of %u", e->ctx, most);
    return 0;
}

/* What will be taken, said and checked before anything is loaded. */
static int plan_memory(ds4_engine *e, ds4_error *err)
{
    shape s;
    drafter_shape ds;
    memory_plan p;
    char line[200];
    int rc = shape_read(&s, e->trunk, err);
    if (!rc && e->drafter)
        rc = shape_read_drafter(&ds, &s, e->drafter, err);
    if (!rc)
        rc = choose_context(e, s.ctx_max, err);
    if (!rc)
        rc = memory_plan_make(&p, e->b, &s, e->drafter ? &ds : NULL, e->trunk, e->drafter, e->o.sessions, e->ctx, err);
    if (rc || !p.total)
        return rc;
    memory_plan_line(&p, line, sizeof line);
    if (e->o.note)
        e->o.note(e->o.progress_ctx, line);
    return memory_plan_check(&p, err);
}

static int open_files(ds4_engine *e, ds4_error *err)
{
    if (e->o.synthetic)
        return make_files(e, err);
    int rc = gguf_open(&e->trunk, e->o.model, err);
    if (!rc && e->o.drafter)
        rc = gguf_open(&e->drafter, e->o.drafter, err);
    return rc;
}

static int open_model(ds4_engine *e, ds4_error *err)
{
    backend_options bo = {e->o.backend, e->o.threads, (enum be_act)e->o.act};
    model_options mo = {(enum kv_sim)e->o.kv_sim, load_progress, &e->o};
    int rc = backend_open(&e->b, &bo, err);
    if (!rc)
        rc = check_memory(e, err);
    if (!rc)
        rc = plan_memory(e, err);
    if (!rc)
        rc = model_open(&e->m, e->b, e->trunk, e->drafter, &mo, err);
    if (!rc)
        e->b->fault_in = e->o.device_fault;
    if (!rc)
        rc = vocab_load(&e->words, e->trunk, (uint32_t)e->m.s.dims.vocab, err);
    return rc;
}

static int open_state(ds4_engine *e, ds4_error *err)
{
    e->slot_used = calloc((size_t)e->o.sessions, sizeof *e->slot_used);
    if (!e->slot_used)
        return ds4_fail(err, DS4_ENOMEM, "no memory for %d sessions", e->o.sessions);
    const drafter_shape *ds = e->drafter ? &e->m.ds : NULL;
    int rc = kv_open(&e->k, e->b, &e->m.s, ds, e->o.sessions, e->ctx, err);
    if (!rc)
        rc = cycle_open(&e->c, &e->m, &e->sched, &e->stats, err);
    e->stats.timing = e->o.stats;
    e->c.eos = vocab_eos(e->words);
    sched_init(&e->sched, ds ? ds->block : 0);
    if (!rc && ds) {
        rc = dspark_open(&e->ds, &e->m, e->o.host_confidence, &e->stats, err);
        e->has_dspark = !rc;
    }
    return rc;
}

int ds4_engine_open(ds4_engine **out, const ds4_engine_options *o, ds4_error *err)
{
    int rc = check_options(o, err);
    if (rc)
        return rc;
    ds4_engine *e = calloc(1, sizeof *e);
    if (!e)
        return ds4_fail(err, DS4_ENOMEM, "no memory for the engine");
    e->o = *o;
    rc = open_files(e, err);
    if (!rc)
        rc = open_model(e, err);
    if (!rc)
        rc = open_state(e, err);
    e->o.model = e->o.drafter = e->o.backend = e->o.synthetic = NULL; /* the caller's strings may go */
    if (rc) {
        ds4_engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

void ds4_engine_close(ds4_engine *e)
{
    if (!e)
        return;
    if (e->has_dspark)
        dspark_close(&e->ds);
    cycle_close(&e->c);
    kv_close(&e->k);
    model_close(&e->m);
    vocab_free(e->words);
    if (e->b)
        e->b->op->close(e->b);
    gguf_close(e->drafter);
    gguf_close(e->trunk);
    free(e->made[0]);
    free(e->made[1]);
    free(e->slot_used);
    free(e);
}

void ds4_engine_info(const ds4_engine *e, ds4_info *out)
{
    *out = (ds4_info){
        .backend = e->b->name,
        .layers = e->m.s.layers,
        .hidden = e->m.s.dims.d,
        .vocab = e->m.s.dims.vocab,
        .ctx = e->ctx,
        .eos = vocab_eos(e->words),
        .bos = vocab_bos(e->words),
        .ctx_max = e->m.s.ctx_max,
        .model_bytes = gguf_file_bytes(e->trunk),
        .drafter_bytes = e->drafter ? gguf_file_bytes(e->drafter) : 0,
        .kv_bytes = e->k.bytes,
        .scratch_bytes = e->m.scratch_bytes,
        .identity = e->m.identity,
        .has_drafter = e->has_dspark,
        .draft_block = e->m.ds.block,
        .draft_stages = e->m.ds.stages,
        .draft_rank = e->m.ds.rank,
    };
}

const struct vocab *ds4_engine_vocab(const ds4_engine *e) { return e->words; }

size_t ds4_stats_line(const ds4_engine *e, char *buf, size_t n) { return stats_line(&e->stats, buf, n); }

size_t ds4_stats_report(const ds4_engine *e, char *buf, size_t n) { return sched_report(&e->sched, buf, n); }
