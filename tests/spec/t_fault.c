/* t_fault: the k-th allocation and the k-th wait for the device fail, for every k: an error of one line, a session
 * READY, EMPTY or POISONED, nothing leaked, and never an answer from a dead backend. */
#include "util/unit.h"

#include "backend/cpu/cpu.h"
#include "spec/cycle.h"
#include "util/tiny_v4.h"

typedef struct faults {
    int in, hits;
} faults;
static faults host, device; /* countdowns: the call that reaches 0 fails; negative: never */

static bool due(faults *f)
{
    f->hits++;
    return f->in > 0 && --f->in == 0;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define HOST_FAULTS 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t k, size_t n);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n) { return due(&host) ? NULL : __libc_malloc(n); }
void *calloc(size_t k, size_t n) { return due(&host) ? NULL : __libc_calloc(k, n); }
void *realloc(void *p, size_t n) { return due(&host) ? NULL : __libc_realloc(p, n); }
#else
#define HOST_FAULTS 0
#endif

static backend_ops real_ops, faulty_ops;

static void *faulty_alloc(backend *b, size_t bytes) { return due(&device) ? NULL : real_ops.alloc(b, bytes); }

typedef struct stack {
    backend *b;
    gguf *t, *d;
    model m;
    kv k;
    session s;
    sched sched;
    ds4_stats st;
    dspark ds;
    cycle c;
} stack;

typedef struct files {
    uint8_t *t, *d;
    size_t nt, nd;
} files;

static files make_files(void)
{
    files f;
    gb t = v4_trunk(), d = v4_drafter(false);
    f.t = gb_bytes(&t, &f.nt);
    f.d = gb_bytes(&d, &f.nd);
    gb_free(&t);
    gb_free(&d);
    return f;
}

static int open_stack(stack *x, const files *f, ds4_err *e)
{
    memset(x, 0, sizeof *x);
    int rc = gguf_open_mem(&x->t, f->t, f->nt, "tiny", e);
    rc = rc ? rc : gguf_open_mem(&x->d, f->d, f->nd, "drafter", e);
    rc = rc ? rc : backend_open(&x->b, &(backend_options){"cpu", 1, BE_ACT_Q8}, e);
    if (!rc) {
        real_ops = faulty_ops = *x->b->op;
        faulty_ops.alloc = faulty_alloc;
        x->b->op = &faulty_ops;
    }
    rc = rc ? rc : model_open(&x->m, x->b, x->t, x->d, &(model_options){0}, e);
    rc = rc ? rc : kv_open(&x->k, x->b, &x->m.s, &x->m.ds, 1, 200, e);
    rc = rc ? rc : session_open(&x->s, &x->m, &x->k, 0, e);
    sched_init(&x->sched, 5);
    sched_set_mode(&x->sched, SCHED_FIXED, 0);
    rc = rc ? rc : cycle_open(&x->c, &x->m, &x->sched, &x->st, e);
    rc = rc ? rc : dspark_open(&x->ds, &x->m, true, &x->st, e);
    x->c.proposer = &x->ds.base;
    x->c.sample = (sample_params){.top_p = 1};
    return rc;
}

static void close_stack(stack *x)
{
    dspark_close(&x->ds);
    cycle_close(&x->c);
    session_close(&x->s);
    kv_close(&x->k);
    model_close(&x->m);
    if (x->b)
        x->b->op->close(x->b);
    gguf_close(x->d);
    gguf_close(x->t);
}

/* Prompt and a few cycles; stops at the first error. */
static int work(stack *x, ds4_err *e)
{
    int32_t in[70], anchor = 0, out[SHAPE_MAX_BLOCK + 1];
    int n;
    uint64_t h;
    for (int i = 0; i < 70; i++)
        in[i] = (i * 37) % 300;
    int rc = session_sync(&x->s, in, 70, NULL, NULL, NULL, e);
    rc = rc ? rc : cycle_choose(&x->c, &x->s, x->s.logits_row, 1, x->s.pos, &anchor, e);
    for (int i = 0; i < 3 && !rc; i++) {
        rc = cycle_step(&x->c, &x->s, anchor, 9, out, &n, e);
        anchor = rc ? anchor : out[n - 1];
    }
    return rc ? rc : session_hash(&x->s, &h, e);
}

static void check_failed(const stack *x, int rc, const ds4_err *e)
{
    assert_true(rc < 0);
    assert_true(e->msg[0] && !strchr(e->msg, '\n'));
    if (x->s.tokens)
        assert_true(session_assert(&x->s) && x->s.state != SESSION_OPEN);
}

static void each_device_allocation(void **u)
{
    (void)u;
    files f = make_files();
    for (int k = 1;; k++) {
        stack x;
        ds4_err e = {0};
        device = (faults){k, 0};
        int rc = open_stack(&x, &f, &e);
        bool hit = device.in == 0;
        device.in = -1;
        if (hit)
            check_failed(&x, rc, &e);
        else
            assert_int_equal(rc, 0);
        close_stack(&x);
        if (!hit) {
            print_message("%d device allocations failed one by one\n", k - 1);
            assert_true(k > 100);
            break;
        }
    }
    free(f.t), free(f.d);
}

static void each_host_allocation(void **u)
{
    (void)u;
    if (!HOST_FAULTS)
        UNIT_SKIP("the sanitizer owns malloc");
    files f = make_files();
    for (int k = 1;; k += k < 60 ? 1 : 13) {
        stack x;
        ds4_err e = {0};
        host = (faults){k, 0};
        int rc = open_stack(&x, &f, &e);
        if (!rc)
            rc = work(&x, &e);
        bool hit = host.in == 0;
        host.in = -1;
        if (hit && rc)
            check_failed(&x, rc, &e);
        else
            assert_int_equal(rc, 0); /* a refused allocation may have a second way (smaller, optional) */
        close_stack(&x);
        if (!hit) {
            print_message("host allocations failed one by one up to the %d-th\n", k);
            assert_true(k > 50);
            break;
        }
    }
    free(f.t), free(f.d);
}

static void each_wait(void **u)
{
    (void)u;
    files f = make_files();
    for (int k = 1; k < 40; k++) {
        stack x;
        ds4_err e = {0}, e2 = {0};
        assert_int_equal(open_stack(&x, &f, &e), 0);
        backend_fault_after(x.b, k);
        int rc = work(&x, &e);
        if (rc) {
            int32_t t = 1, out[SHAPE_MAX_BLOCK + 1];
            int n;
            check_failed(&x, rc, &e);
            assert_int_equal(x.s.state, SESSION_POISONED);
            assert_int_equal(session_begin(&x.s, &t, 1, 0, &e2), DS4_ESTATE);
            assert_true(cycle_step(&x.c, &x.s, 1, 4, out, &n, &e2) < 0 && n == 0);
            assert_true(session_sync(&x.s, &t, 1, NULL, NULL, NULL, &e2) < 0);
            assert_int_equal(session_reset(&x.s, &e2), DS4_EBACKEND); /* dead stays dead */
        }
        close_stack(&x);
        if (!rc) {
            print_message("%d waits failed one by one\n", k - 1);
            assert_true(k > 5);
            break;
        }
    }
    free(f.t), free(f.d);
}

int main(void)
{
    host.in = device.in = -1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_device_allocation),
        cmocka_unit_test(each_host_allocation),
        cmocka_unit_test(each_wait),
    };
    return cmocka_run_group_tests_name("fault", tests, NULL, NULL);
}
