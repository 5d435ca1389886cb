/* The real layer shapes (oracle_c: hidden 4096, 64 heads of 512, 8 output groups) against golden data. Slow: it
 * makes 1.6 GB of weights from a hash and runs a few trillion operations; only with DS4_TEST_SLOW=1. DS4_TEST_ORACLE_C
 * names a folder with ready files. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "util_golden.h"
#include "util/rig.h"

enum { LAYERS = 3, TOKENS = 420, SPOTS = 4, BLOCK = 5, CASES = 8 };

typedef struct ctx {
    char *dir, files[200];
    bool made;
} ctx;

static const int spots[SPOTS] = {127, 128, 263, 419};

static int spot_of(int pos)
{
    for (int i = 0; i < SPOTS; i++)
        if (spots[i] == pos)
            return i;
    return -1;
}

static double rms(const npy *a)
{
    double sum = 0;
    for (size_t i = 0; i < a->count; i++)
        sum += (double)a->f[i] * (double)a->f[i];
    return sqrt(sum / (double)a->count);
}

/* Difference that 99 % of the numbers keep, over the golden RMS. */
static double most(const float *got, const npy *want)
{
    double *d = malloc(want->count * sizeof *d);
    assert_non_null(d);
    for (size_t i = 0; i < want->count; i++)
        d[i] = fabs((double)got[i] - (double)want->f[i]);
    median(d, (int)want->count);
    double x = d[want->count - 1 - want->count / 100] / rms(want);
    free(d);
    return x;
}

static void check(const char *name, const float *got, double limit)
{
    npy a = golden_array("oracle_c/%s.npy", name);
    double x = most(got, &a);
    print_message("  %-24s 99 %% within %.2g of the RMS\n", name, x);
    if (!(x <= limit))
        fail_msg("%s: limit %g", name, limit);
    npy_free(&a);
}

static gguf *open_part(const ctx *c, const char *name)
{
    char path[300];
    gguf *g = NULL;
    ds4_err e = {0};
    snprintf(path, sizeof path, "%s/%s.gguf", c->files, name);
    rig_check(gguf_open(&g, path, &e), &e);
    return g;
}

static void open_rig(const ctx *c, rig *r, enum kv_sim sim, bool composed)
{
    rig_open(r, open_part(c, "trunk"), open_part(c, "drafter"),
             (rig_options){.act = BE_ACT_FLOAT, .sim = sim, .threads = 2, .ctx = 448, .composed = composed});
}

/* --- logits --- */

static void gate(const ctx *c, const char *mode, const float *logits, size_t vocab)
{
    char name[40];
    int n;
    json_t *j = golden_json(c->dir, "golden.json");
    int32_t *at = golden_ints(j, "logit_positions", &n);
    snprintf(name, sizeof name, "noise_%s", mode);
    double *noise = golden_nums(j, name, NULL), d[64], worst = 0;
    npy want = golden_array("oracle_c/logits_%s.npy", mode);
    int over = 0;
    for (int i = 0; i < n; i++) {
        d[i] = max_diff(logits + (size_t)at[i] * vocab, want.f + (size_t)i * vocab, vocab);
        worst = fmax(worst, d[i]);
        over += d[i] > fmax(0.05, 10 * noise[at[i]]);
    }
    double mid = median(d, n);
    print_message("  %s: %d positions, median difference %.2g, largest %.2g, %d over the limit\n", mode, n, mid, worst,
                  over);
    if (!strcmp(mode, "exact"))
        assert_true(worst <= 5e-4);
    else
        assert_true(mid <= 0.05 && over <= n / 20);
    free(at);
    free(noise);
    npy_free(&want);
    json_decref(j);
}

static void logits_of(const ctx *c, const char *mode, enum kv_sim sim)
{
    json_t *j = golden_json(c->dir, "golden.json");
    int32_t *ids = golden_ints(j, "tokens", NULL);
    rig r;
    open_rig(c, &r, sim, false);
    float *logits = calloc(TOKENS * rig_vocab(&r), sizeof *logits);
    assert_non_null(logits);
    rig_run(&r, 0, ids, 0, TOKENS, BE_NARROW, logits);
    gate(c, mode, logits, rig_vocab(&r));
    free(logits);
    free(ids);
    rig_close(&r);
    json_decref(j);
}

static void exact_logits(void **s)
{
    ctx *c = *s;
    if (!c->dir)
        skip();
    logits_of(c, "exact", KV_SIM_OFF);
}

static void kvfp8_logits(void **s)
{
    ctx *c = *s;
    if (!c->dir)
        skip();
    logits_of(c, "kvfp8", KV_SIM_FP8);
}

static void full_logits_of_whole_forwards(void **s)
{
    ctx *c = *s;
    const char *name = getenv("DS4_TEST_BACKEND");
    if (!c->dir)
        skip();
    if (!name || !strcmp(name, "cpu")) {
        print_message("skipped (on the CPU the next test does the same)\n");
        skip();
    }
    logits_of(c, "full", KV_SIM_FULL);
}

/* --- mode full: layer outputs, stores, drafter on the way --- */

typedef struct seen {
    float *streams[LAYERS], *attn[LAYERS], *ffn[LAYERS]; /* [spots][..] */
    float *features, *main_x, *hidden, *base, *rows;     /* [cases][..] */
    int drafts, same, clear, clear_same;
    double conf;
} seen;

static void copy_spots(rig *r, int layer, int at, int n, seen *s)
{
    const size_t D = (size_t)r->m.s.dims.d, SD = D * (size_t)r->m.s.dims.streams;
    const be_weight *w = &r->m.w.layer[layer].out_b;
    for (int i = 0; i < n; i++) {
        int k = spot_of(at + i);
        if (k < 0)
            continue;
        rig_get(r, s->streams[layer] + (size_t)k * SD, r->m.sc.streams + (size_t)i * SD, SD);
        rig_get(r, s->ffn[layer] + (size_t)k * D, r->m.sc.out + (size_t)i * D, D);
        be_linear out = {w, r->m.sc.low + (size_t)i * (size_t)w->ne0, r->m.sc.x, (int)w->ne0, (int)w->ne1, 1};
        r->b->op->linear(r->b, 1, &out, 1);
        rig_get(r, s->attn[layer] + (size_t)k * D, r->m.sc.x, D);
    }
}

/* The trunk, layer by layer, so that each may be looked at. */
static void advance(rig *r, const int32_t *ids, int from, int to, float *logits, seen *s)
{
    const size_t V = rig_vocab(r);
    for (int at = from, n; at < to; at += n) {
        n = to - at < BE_NARROW ? to - at : BE_NARROW;
        be_rows rows = rig_rows(r, 0, n, ids + at, at, 0);
        r->b->op->embed(r->b, &rows, &r->m.w.embed, r->m.sc.streams);
        for (int l = 0; l < LAYERS; l++) {
            forward_layer(&r->m, &r->k, l, &rows);
            copy_spots(r, l, at, n, s);
        }
        forward_head(&r->m, n, 0);
        r->b->op->download(r->b, logits + (size_t)at * V, r->m.sc.logits, (size_t)n * V * sizeof(float));
    }
    rig_absorb(r, 0, from, to);
    rig_sync(r);
}

static void store_row(rig *r, const be_store *s, int pos, float *out)
{
    r->b->op->download(r->b, out, s->base + (size_t)(pos % s->cap) * (size_t)s->width,
                       (size_t)s->width * sizeof(float));
}

static void draft_case(rig *r, const json_t *o, int k, int len, seen *s)
{
    const size_t D = (size_t)r->m.s.dims.d, K = (size_t)r->m.s.dims.head_dim, V = rig_vocab(r);
    store_row(r, &r->k.tap, len - 1, s->features + (size_t)k * 3 * D);
    rig_absorb(r, 0, len - 1, len);
    rig_get(r, s->main_x + (size_t)k * D, r->m.sc.main_x, D);
    for (int st = 0; st < 3; st++)
        for (int i = 0; i < 4; i++)
            store_row(r, &r->k.stage[st], len - 4 + i, s->rows + (((size_t)k * 3 + (size_t)st) * 4 + (size_t)i) * K);
    int32_t anchor = (int32_t)json_integer_value(json_object_get(o, "anchor")), *want = golden_ints(o, "drafts", NULL);
    double *conf = golden_nums(o, "confidence_logits", NULL), *margin = golden_nums(o, "margins", NULL);
    rig_drafts d = rig_draft(r, 0, anchor, len, s->base + (size_t)k * BLOCK * V, NULL);
    rig_get(r, s->hidden + (size_t)k * BLOCK * D, r->m.sc.hidden, BLOCK * D);
    bool chain = true;
    for (int i = 0; i < BLOCK && chain; i++) {
        bool same = d.id[i + 1] == want[i];
        s->drafts++;
        s->same += same;
        s->clear += margin[i] > 0.1;
        s->clear_same += margin[i] > 0.1 && same;
        s->conf = fmax(s->conf, fabs(conf[i] - (double)d.conf[i]));
        chain = same;
    }
    free(want);
    free(conf);
    free(margin);
}

static void *room(size_t n)
{
    void *p = calloc(n, sizeof(float));
    assert_non_null(p);
    return p;
}

static seen seen_make(const rig *r)
{
    const size_t D = (size_t)r->m.s.dims.d, V = rig_vocab(r);
    seen s = {.features = room(CASES * 3 * D),
              .main_x = room(CASES * D),
              .hidden = room(CASES * BLOCK * D),
              .base = room(CASES * BLOCK * V),
              .rows = room(CASES * 12 * (size_t)r->m.s.dims.head_dim)};
    for (int l = 0; l < LAYERS; l++) {
        s.streams[l] = room(SPOTS * 4 * D);
        s.attn[l] = room(SPOTS * D);
        s.ffn[l] = room(SPOTS * D);
    }
    return s;
}

static void check_store(rig *r, const char *name, const be_store *st, int first)
{
    npy a = golden_array("oracle_c/%s.npy", name);
    float *got = room(a.count);
    for (size_t i = 0; i < a.shape[0]; i++)
        store_row(r, st, first + (int)i, got + i * (size_t)st->width);
    check(name, got, 0.02);
    free(got);
    npy_free(&a);
}

static void check_seen(rig *r, const seen *s)
{
    char name[60];
    for (int l = 0; l < LAYERS; l++) {
        snprintf(name, sizeof name, "layer%d_attn_out", l);
        check(name, s->attn[l], l ? 0.03 : 0.01);
        snprintf(name, sizeof name, "layer%d_ffn_out", l);
        check(name, s->ffn[l], l ? 0.03 : 0.01);
        snprintf(name, sizeof name, "layer%d_streams", l);
        check(name, s->streams[l], l ? 0.03 : 0.01);
    }
    check_store(r, "layer0_window_rows", &r->k.layer[0].raw, 412);
    check_store(r, "layer1_comp_rows", &r->k.layer[1].comp, 0);
    check_store(r, "layer1_index_rows", &r->k.layer[1].index, 0);
    check_store(r, "layer2_comp_rows", &r->k.layer[2].comp, 0);
    check("dspark_main_hidden", s->features, 0.03);
    check("dspark_main_x", s->main_x, 0.03);
    check("dspark_last4_context_rows", s->rows, 0.03);
    check("dspark_hidden", s->hidden, 0.05);
    check("dspark_base_logits", s->base, 0.05);
    print_message("  %d of %d drafts equal (%d of %d clear ones), confidence logits within %.2g\n", s->same, s->drafts,
                  s->clear_same, s->clear, s->conf);
    assert_true(s->clear_same >= 0.95 * s->clear);
}

static void full_logits_layers_and_drafts(void **state)
{
    ctx *c = *state;
    if (!c->dir)
        skip();
    json_t *j = golden_json(c->dir, "golden.json");
    const json_t *cases = json_object_get(j, "dspark");
    int32_t *ids = golden_ints(j, "tokens", NULL);
    rig r;
    open_rig(c, &r, KV_SIM_FULL, true);
    float *logits = room(TOKENS * rig_vocab(&r));
    seen s = seen_make(&r);
    int at = 0;
    for (int len = 1; len <= TOKENS; len++)
        for (int k = 0; k < CASES; k++) {
            const json_t *o = json_array_get(cases, (size_t)k);
            if (json_integer_value(json_object_get(o, "context_length")) != len)
                continue;
            advance(&r, ids, at, len, logits, &s);
            at = len;
            draft_case(&r, o, k, len, &s);
        }
    advance(&r, ids, at, TOKENS, logits, &s);
    gate(c, "full", logits, rig_vocab(&r));
    check_seen(&r, &s);
    for (int l = 0; l < LAYERS; l++)
        free(s.streams[l]), free(s.attn[l]), free(s.ffn[l]);
    free(s.features), free(s.main_x), free(s.hidden), free(s.base), free(s.rows), free(logits), free(ids);
    rig_close(&r);
    json_decref(j);
}

static int setup(void **state)
{
    static ctx c;
    const char *slow = getenv("DS4_TEST_SLOW"), *ready = getenv("DS4_TEST_ORACLE_C"), *tmp = getenv("TMPDIR");
    char cmd[9000];
    *state = &c;
    if (!slow || strcmp(slow, "1")) {
        print_message("skipped (slow; set DS4_TEST_SLOW=1)\n");
        return 0;
    }
    c.dir = golden_set("oracle_c");
    if (!c.dir) {
        print_message("skipped (no golden data)\n");
        return 0;
    }
    snprintf(c.files, sizeof c.files, "%s", ready ? ready : "");
    if (ready)
        return 0;
    snprintf(c.files, sizeof c.files, "%s/ds4-oracle-c-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    c.made = mkdtemp(c.files) != NULL;
    snprintf(cmd, sizeof cmd, "python3 tools/oracle_c.py '%s' '%s'", c.dir, c.files);
    return !c.made || system(cmd);
}

static int teardown(void **state)
{
    ctx *c = *state;
    char path[300];
    for (int i = 0; i < 2 && c->made; i++) {
        snprintf(path, sizeof path, "%s/%s.gguf", c->files, i ? "drafter" : "trunk");
        unlink(path);
    }
    if (c->made)
        rmdir(c->files);
    free(c->dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact_logits), cmocka_unit_test(kvfp8_logits),
                                       cmocka_unit_test(full_logits_of_whole_forwards),
                                       cmocka_unit_test(full_logits_layers_and_drafts)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
