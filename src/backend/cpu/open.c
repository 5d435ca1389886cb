/* open.c: life, memory and errors of the CPU backend. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/cpu_open.h"
#include "base/pool.h"
#include "file/quant.h"

void cpu_fail(cpu *c, const char *fmt, ...)
{
    if (atomic_exchange(&c->failed, true))
        return;
    char text[sizeof c->error.msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ds4_fail(&c->error, DS4_EBACKEND, "CPU backend: %s", text);
}

static void *get_aligned(size_t bytes)
{
    size_t whole;
    if (__builtin_add_overflow(bytes, (size_t)63, &whole))
        return NULL;
    return aligned_alloc(64, whole / 64 * 64 + (whole < 64 ? 64 : 0));
}

void *cpu_scratch(cpu *c, enum cpu_scratch which, size_t bytes)
{
    cpu_buf *s = &c->buf[which];
    if (bytes <= s->bytes)
        return s->p;
    free(s->p);
    s->bytes = 0;
    s->p = get_aligned(bytes);
    if (!s->p) {
        cpu_fail(c, "no memory for %zu bytes of scratch", bytes);
        return NULL;
    }
    s->bytes = bytes;
    return s->p;
}

static void *op_alloc(backend *b, size_t bytes)
{
    cpu *c = cpu_of(b);
    size_t whole;
    cpu_block *k = __builtin_add_overflow(bytes, (size_t)64, &whole) ? NULL : get_aligned(whole);
    if (!k) {
        cpu_fail(c, "no memory for %zu bytes", bytes);
        return NULL;
    }
    memset(k, 0, whole);
    k->next = c->blocks;
    c->blocks = k;
    return (char *)k + 64;
}

static void op_close(backend *b)
{
    if (!b)
        return;
    cpu *c = cpu_of(b);
    for (cpu_block *k = c->blocks, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    for (int i = 0; i < S_COUNT; i++)
        free(c->buf[i].p);
    pool_free(c->pool);
    free(c);
}

static void op_copy(backend *b, void *dst, const void *src, size_t bytes)
{
    if (cpu_ok(cpu_of(b)) && bytes)
        memmove(dst, src, bytes);
}

static int op_bind(backend *b, be_weight *w, ds4_err *e)
{
    (void)b;
    const quant_info *q = quant_type_info(w->type);
    if (!q || !q->is_float_like)
        return ds4_fail(e, DS4_EMODEL, "tensor %s: type %s cannot be multiplied on the CPU", w->name,
                        quant_type_name(w->type));
    if (w->ne0 <= 0 || w->ne1 <= 0 || w->ne2 <= 0 || w->ne0 % q->block)
        return ds4_fail(e, DS4_EMODEL, "tensor %s: shape %lld x %lld x %lld does not fit type %s (blocks of %u)",
                        w->name, (long long)w->ne0, (long long)w->ne1, (long long)w->ne2, q->name, q->block);
    w->row_bytes = quant_row_bytes(w->type, (uint64_t)w->ne0);
    w->data = w->host;
    return 0;
}

static int op_sync(backend *b, ds4_err *e)
{
    cpu *c = cpu_of(b);
    if (b->fault_in > 0 && --b->fault_in == 0)
        cpu_fail(c, "injected fault");
    return cpu_ok(c) ? 0 : ds4_fail(e, DS4_EBACKEND, "%s", c->error.msg);
}

static bool op_step_begin(backend *b, uint64_t key)
{
    (void)b, (void)key;
    return true;
}

static void op_step_end(backend *b) { (void)b; }

static const backend_ops cpu_ops = {
    .close = op_close, .alloc = op_alloc, .upload = op_copy, .download = op_copy, .copy = op_copy,
    .bind = op_bind, .sync = op_sync, .step_begin = op_step_begin, .step_end = op_step_end,
    .embed = cpu_embed, .hc_pre = cpu_hc_pre, .hc_post = cpu_hc_post, .hc_head = cpu_hc_head,
    .linear = cpu_linear, .norm = cpu_norm, .q_finish = cpu_q_finish, .kv_finish = cpu_kv_finish,
    .comp_put = cpu_comp_put, .comp_pool = cpu_comp_pool, .index_query = cpu_index_query,
    .index_select = cpu_index_select, .attend = cpu_attend, .route = cpu_route, .moe = cpu_moe,
    .tap = cpu_tap, .gather = cpu_gather, .pick = cpu_pick, .markov = cpu_markov, .confidence = cpu_confidence,
    .synth = cpu_synth,
};

int cpu_open(backend **out, const backend_options *o, ds4_err *e)
{
    *out = NULL;
    if (o->threads < 0 || o->threads > CPU_MAX_THREADS)
        return ds4_fail(e, DS4_EARG, "threads: %d is out of range; expected 0 (all cores) to %d", o->threads,
                        CPU_MAX_THREADS);
    cpu *c = calloc(1, sizeof *c);
    if (!c)
        return ds4_fail(e, DS4_ENOMEM, "no memory for the CPU backend");
    c->base.op = &cpu_ops;
    c->base.name = "cpu";
    c->base.max_rows = CPU_MAX_ROWS;
    c->act = o->act;
    const cpu_kernels *usable[CPU_KERNELS];
    cpu_usable(usable);
    c->k = usable[0];
    c->small_work = 30e3; /* waking the other threads costs about as much */
    c->threads = o->threads ? o->threads : pool_cpus();
    if (c->threads > CPU_MAX_THREADS)
        c->threads = CPU_MAX_THREADS;
    atomic_init(&c->failed, false);
    int rc = c->threads > 1 ? pool_create(&c->pool, c->threads, e) : 0;
    if (rc < 0) {
        free(c);
        return rc;
    }
    *out = &c->base;
    return 0;
}

void backend_fault_after(backend *b, int k) { b->fault_in = k; }

void cpu_force_plain(backend *b) { cpu_of(b)->k = &cpu_plain; }
