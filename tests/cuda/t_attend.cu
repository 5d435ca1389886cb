/* t_attend.cu: attention of narrow forwards (attend.cu) against the operations that it replaces: norm and rotation of
 * the queries, attention, quantisation. And against itself: a row's bits alone and among others. */
#include "backend/cuda/narrow.cuh"

#include <math.h>

extern "C" {
#include "util/unit.h"
}

enum { DIM = 512, ROPE = 64, WINDOW = 128, CAP = 150, TOP = 200, SEQS = 2, POOL = 16, ARRAY = 700 };

typedef struct kase {
    const char *name;
    int heads, ratio; /* ratio 0: window only */
    bool select, drafter, exact;
    int pos[POOL];
} kase;

static const kase kases[] = {
    {"window",
     20,
     0,
     false,
     false,
     true,
     {0, 1, 31, 32, 62, 63, 127, 128, 129, 200, 511, 1000, 4097, 99999, 524288, 999999}},
    {"window, no simulated rounding",
     4,
     0,
     false,
     false,
     false,
     {5, 6, 7, 8, 90, 91, 92, 93, 126, 127, 128, 129, 300, 301, 302, 303}},
    {"all compressed rows, ratio 4",
     4,
     4,
     false,
     false,
     true,
     {0, 2, 3, 4, 127, 128, 131, 259, 260, 399, 511, 700, 707, 708, 799, 801}},
    {"selected rows",
     20,
     4,
     true,
     false,
     true,
     {3, 799, 803, 804, 900, 1000, 1203, 1300, 1403, 1500, 1700, 1900, 2000, 2399, 2500, 2799}},
    {"all compressed rows, ratio 128",
     4,
     128,
     false,
     false,
     true,
     {0, 126, 127, 128, 255, 256, 4095, 4096, 8191, 20000, 30000, 32767, 40000, 60000, 70000, 89599}},
    {"drafter at the start", 4, 0, false, true, true, {0}},
    {"drafter", 4, 0, false, true, true, {77}},
    {"drafter, full window", 20, 0, false, true, false, {5000}},
};

typedef struct rig {
    const kase *k;
    backend *b;
    float *q, *block, *raw, *comp, *sinks, *freq; /* device */
    int32_t *sel, pos[POOL];
    size_t width;
} rig;

static backend *open_gpu(const be_dims *dims)
{
    backend *b;
    ds4_err e = {};
    backend_options o = {};
    o.name = "cuda";
    int rc = backend_open(&b, &o, &e);
    if (rc && !strncmp(e.msg, "CUDA: no ", 9))
        UNIT_SKIP("no GPU");
    if (rc)
        fail_msg("%s", e.msg);
    b->dims = *dims;
    return b;
}

static void close_clean(backend *b)
{
    ds4_err e = {};
    if (b->op->sync(b, &e))
        fail_msg("%s", e.msg);
    b->op->close(b);
}

/* Roughly normal numbers. */
static void fill_normal(uint64_t *seed, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t u = unit_rand(seed);
        float sum = 0;
        for (int k = 0; k < 4; k++)
            sum += (float)(u >> 16 * k & 0xffff) / 65536 - 0.5f;
        x[i] = sum * 1.7320508f * scale;
    }
}

static float *up(backend *b, const void *host, size_t n)
{
    float *p = (float *)b->op->alloc(b, n * 4);
    if (host)
        b->op->upload(b, p, host, n * 4);
    return p;
}

/* Rows as the model stores them: all but the rotated part as if rounded to FP8. */
static float *kv_rows(uint64_t *g, backend *b, size_t rows, bool exact)
{
    float *x = (float *)malloc(rows * DIM * sizeof *x);
    fill_normal(g, x, rows * DIM, 1);
    for (size_t i = 0; exact && i < rows * DIM; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        u &= 0xfff00000u;
        if (i % DIM < DIM - ROPE)
            memcpy(&x[i], &u, 4);
    }
    float *p = up(b, x, rows * DIM);
    free(x);
    return p;
}

static rig make_rig(const kase *k)
{
    static float q[POOL * 20 * DIM], sinks[20], freq[ROPE / 2];
    static int32_t sel[POOL * TOP];
    be_dims m = {};
    m.d = 256, m.heads = k->heads, m.head_dim = DIM, m.rope_dim = ROPE, m.window = WINDOW, m.idx_topk = TOP;
    m.rms_eps = 1e-6f;
    uint64_t g = 7;
    rig r = {};
    r.k = k;
    r.b = open_gpu(&m);
    r.width = (size_t)k->heads * DIM;
    fill_normal(&g, q, POOL * r.width, 3);
    fill_normal(&g, sinks, 20, 2);
    for (int i = 0; i < ROPE / 2; i++)
        freq[i] = powf(10000, -2.0f * (float)i / (float)ROPE);
    for (int i = 0; i < POOL; i++) {
        r.pos[i] = k->drafter ? k->pos[0] + i : k->pos[i];
        int have = k->ratio ? (r.pos[i] + 1) / k->ratio : 0, s = 0;
        for (int t = 0; t < TOP; t++) /* row 5 has a selection that ends early */
            sel[i * TOP + t] = s >= have || (i == 5 && t > 150) ? -1 : have <= TOP ? s++ : have - TOP + s++;
    }
    r.q = up(r.b, q, POOL * r.width);
    r.sinks = up(r.b, sinks, 20);
    r.freq = up(r.b, freq, ROPE / 2);
    r.sel = (int32_t *)up(r.b, sel, POOL * TOP);
    r.raw = kv_rows(&g, r.b, SEQS * CAP, k->exact);
    r.comp = kv_rows(&g, r.b, SEQS * ARRAY, k->exact);
    r.block = kv_rows(&g, r.b, POOL, k->exact);
    return r;
}

typedef struct result {
    int8_t *q; /* [n][width] */
    float *d;  /* [n][width / 32] */
} result;

typedef struct launch {
    be_rows r;
    float *q;
    int32_t *sel;
} launch;

/* Rows `which` of the pool as a forward; wanted < n sets the device's count. */
static launch make_launch(rig *g, const int *which, int n, int wanted)
{
    int32_t pos[POOL], seq[POOL];
    launch l = {};
    l.q = up(g->b, NULL, (size_t)n * g->width);
    l.sel = (int32_t *)up(g->b, NULL, (size_t)n * TOP);
    for (int i = 0; i < n; i++) {
        pos[i] = g->pos[which[i]];
        seq[i] = g->k->drafter ? 1 : which[i] % SEQS;
        l.r.max_pos = pos[i] > l.r.max_pos ? pos[i] : l.r.max_pos;
        g->b->op->copy(g->b, l.q + (size_t)i * g->width, g->q + (size_t)which[i] * g->width, g->width * 4);
        g->b->op->copy(g->b, l.sel + i * TOP, g->sel + which[i] * TOP, TOP * 4);
    }
    l.r.n = n;
    l.r.pos = l.r.token = (int32_t *)up(g->b, pos, (size_t)n);
    l.r.seq = (int32_t *)up(g->b, seq, (size_t)n);
    l.r.count = wanted < n ? (int32_t *)up(g->b, &wanted, 1) : NULL;
    return l;
}

static be_store store(float *base, int cap) { return be_store{base, DIM, cap, (size_t)cap * DIM}; }

static result run(rig *g, const int *which, int n, int wanted)
{
    launch l = make_launch(g, which, n, wanted);
    result out = {(int8_t *)calloc(n, g->width), (float *)calloc(n, g->width / 8)};
    nattend a = {};
    a.r = nrows{l.r.token, l.r.pos, l.r.seq, l.r.count, n};
    a.max_pos = l.r.max_pos;
    a.q = l.q, a.sinks = g->sinks, a.freq = g->freq, a.block = g->k->drafter ? g->block : NULL;
    a.raw = store(g->raw, CAP);
    if (g->k->ratio)
        a.comp = store(g->comp, ARRAY);
    a.ratio = g->k->ratio;
    a.sel = g->k->select ? l.sel : NULL;
    a.out.q = (int8_t *)up(g->b, NULL, (size_t)n * g->width / 4);
    a.out.d = up(g->b, NULL, (size_t)n * g->width / 32);
    a.out.ld = (int)g->width, a.out.group = 32;
    gpu_attend_narrow(gpu_of(g->b), &a);
    g->b->op->download(g->b, out.q, a.out.q, (size_t)n * g->width);
    g->b->op->download(g->b, out.d, a.out.d, (size_t)n * g->width / 8);
    return out;
}

/* The same by the operations, as floats. */
static float *reference(rig *g, const int *which, int n)
{
    launch l = make_launch(g, which, n, n);
    be_store raw = store(g->raw, CAP), comp = store(g->comp, ARRAY);
    float *o = up(g->b, NULL, (size_t)n * g->width), *out = (float *)malloc((size_t)n * g->width * 4);
    g->b->op->q_finish(g->b, &l.r, g->freq, l.q);
    be_attn a = {};
    a.q = l.q, a.o = o, a.raw = &raw, a.comp = g->k->ratio ? &comp : NULL, a.ratio = g->k->ratio;
    a.sel = g->k->select ? l.sel : NULL;
    a.sinks = g->sinks, a.freq = g->freq, a.block = g->k->drafter ? g->block : NULL;
    g->b->op->attend(g->b, &l.r, &a);
    g->b->op->download(g->b, out, o, (size_t)n * g->width * 4);
    return out;
}

/* The two differ in the last bits of their sums (tensor cores cut what they add up, the operations round), which the
 * scales show: 1e-5 is allowed. A number may be one step off where it lies on the border of two steps, within 0.02 of
 * one: 15 times what such an error moves it. Such numbers are common where a token sees one row only, whose numbers
 * have few bits: half of the largest is 63.5 steps exactly. Hence 1.5 % may differ. */
static const float scale_error = 1e-5f, border = 0.02f;

static void compare(const rig *g, const result &got, const float *want, int n)
{
    size_t flips = 0, all = (size_t)n * g->width;
    float worst = 0;
    for (size_t at = 0; at < all; at += 32) {
        float top = 0;
        for (int i = 0; i < 32; i++)
            top = fmaxf(top, fabsf(want[at + i]));
        float d = top / 127, error = fabsf(got.d[at / 32] - d);
        worst = fmaxf(worst, error / d);
        if (!(error <= scale_error * d))
            fail_msg("%s, %d rows: scale %zu is %.9g, expected %.9g", g->k->name, n, at / 32, (double)got.d[at / 32],
                     (double)d);
        for (int i = 0; i < 32; i++) {
            int q = (int)lrintf(want[at + i] * (1 / d)), diff = abs(q - got.q[at + i]);
            flips += diff != 0;
            if (diff > 1 || (diff && fabsf(fabsf(want[at + i] / d - (float)q) - 0.5f) > border))
                fail_msg("%s, %d rows: number %zu of head %zu of row %zu is %d, expected %.3f", g->k->name, n,
                         (at + i) % DIM, (at + i) / DIM % g->k->heads, (at + i) / g->width, got.q[at + i],
                         (double)(want[at + i] / d));
        }
    }
    print_message("  %s, %d rows: %.3f %% of the numbers differ, scales by %.1g at most\n", g->k->name, n,
                  100.0 * (double)flips / (double)all, (double)worst);
    if (flips * 1000 > all * 15)
        fail_msg("%s, %d rows: %zu of %zu numbers differ", g->k->name, n, flips, all);
}

static void release(result r)
{
    free(r.q);
    free(r.d);
}

static const int sizes[] = {1, 2, 3, 6, 16};

static void narrow_attention_equals_the_operations(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof kases / sizeof *kases; c++) {
        rig g = make_rig(&kases[c]);
        for (int k = getenv("DS4_TEST_EMU") ? 3 : 0; k < 5; k++) {
            int which[POOL], n = sizes[k];
            for (int i = 0; i < n; i++)
                which[i] = g.k->drafter ? i : (k * 5 + i) % POOL;
            result got = run(&g, which, n, n);
            float *want = reference(&g, which, n);
            compare(&g, got, want, n);
            release(got);
            free(want);
        }
        close_clean(g.b);
    }
}

static void a_row_does_not_depend_on_the_others(void **state)
{
    (void)state;
    const int most = getenv("DS4_TEST_EMU") ? 5 : 16;
    for (size_t c = 0; c < sizeof kases / sizeof *kases; c++) {
        if (kases[c].drafter)
            continue;
        rig g = make_rig(&kases[c]);
        result alone[POOL];
        for (int i = 0; i < POOL; i++)
            alone[i] = run(&g, &i, 1, 1);
        for (int n = 2; n <= most; n++) {
            int which[POOL], wanted = n % 3 ? n : n - 1;
            for (int i = 0; i < n; i++)
                which[i] = (n * 7 + i * 5) % POOL;
            result got = run(&g, which, n, wanted);
            for (int i = 0; i < wanted; i++) {
                assert_memory_equal(got.q + (size_t)i * g.width, alone[which[i]].q, g.width);
                assert_memory_equal(got.d + (size_t)i * g.width / 32, alone[which[i]].d, g.width / 8);
            }
            release(got);
        }
        for (int i = 0; i < POOL; i++)
            release(alone[i]);
        close_clean(g.b);
    }
}

static void unsupported_heads_are_an_error(void **state)
{
    (void)state;
    kase k = kases[0];
    rig g = make_rig(&k);
    ds4_err e;
    g.b->dims.head_dim = 256;
    assert_false(gpu_attend_fits(gpu_of(g.b)));
    nattend a = {};
    a.r.n = 1;
    gpu_attend_narrow(gpu_of(g.b), &a);
    assert_int_equal(g.b->op->sync(g.b, &e), DS4_EBACKEND);
    assert_has(e.msg, "heads of 256 numbers");
    g.b->op->close(g.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(narrow_attention_equals_the_operations),
        cmocka_unit_test(a_row_does_not_depend_on_the_others),
        cmocka_unit_test(unsupported_heads_are_an_error),
    };
    return cmocka_run_group_tests_name("attention of narrow forwards", tests, NULL, NULL);
}
