/* bench_sweep.c: speed of reading and generating at growing contexts. */
#include <stdlib.h>
#include <string.h>

#include "app/bench_run.h"
#include "app/cli_signal.h"
#include "base/clock.h"

/* What one sweep found at one context. */
typedef struct cell {
    int fed;
    uint64_t kv_bytes;
    double prefill, plain, dspark, ratio, length;
} cell;

/* One generation. */
typedef struct gen {
    int32_t *ids; /* [gen_tokens] */
    int n;
    double first; /* when the first token came */
    double tps, length;
} gen;

static bool on_token(void *ctx, int32_t id, const float *logits)
{
    gen *g = ctx;
    (void)logits;
    if (!g->n)
        g->first = clock_now();
    g->ids[g->n++] = id;
    return !cli_signal_seen();
}

static int generate(bench *b, bool drafted, gen *g, ds4_err *e)
{
    ds4_generate_options o = ds4_generate_defaults();
    ds4_result r;
    o.temp = 0;
    o.max_tokens = b->o->gen_tokens;
    o.ignore_eos = true;
    o.drafting = !drafted ? DS4_DRAFT_OFF : b->o->confidence >= 0 ? DS4_DRAFT_FIXED : DS4_DRAFT_AUTO;
    o.confidence = b->o->confidence >= 0 ? b->o->confidence : 0;
    if (drafted && b->o->accept) {
        o.scripted = b->script;
        o.scripted_count = b->script_len;
    }
    o.on_token = on_token;
    o.ctx = g;
    g->n = 0;
    const double start = clock_now();
    int rc = ds4_generate(b->ses, &o, &r, e);
    if (rc)
        return rc;
    if (r.tokens != b->o->gen_tokens)
        return ds4_fail(e, DS4_ECANCEL, "stopped by Ctrl-C after %d of %d tokens", r.tokens, b->o->gen_tokens);
    const double seconds = r.seconds - (g->first - start); /* r.seconds has no measuring of costs in it */
    g->tps = seconds > 0 ? (r.tokens - 1) / seconds : 0;
    g->length = r.cycles ? 1 + (double)r.accepted / (double)r.cycles : 1;
    return 0;
}

static int compare(const bench *b, int i, const gen *plain, const gen *drafted, ds4_err *e)
{
    for (int k = 0; k < b->o->gen_tokens; k++)
        if (plain->ids[k] != drafted->ids[k])
            return ds4_fail(e, DS4_ESTATE, "context %d: token %d is %d, drafted %d: DSpark changed the text",
                            b->point[i], k, plain->ids[k], drafted->ids[k]);
    return 0;
}

/* Plain, and drafted if it is wanted; which goes first changes from sweep to sweep. */
static int measure(bench *b, int i, int sweep, gen g[2], cell *c, ds4_err *e)
{
    const int runs = b->o->dspark ? 2 : 1;
    int rc = bench_feed(b, i, &c->fed, &c->prefill, e);
    c->prefill = c->prefill > 0 ? c->fed / c->prefill : 0;
    c->kv_bytes = ds4_bench_kv_bytes(b->ses);
    for (int k = 0; k < runs && !rc; k++) {
        const int which = runs == 2 ? (k + sweep) % 2 : 0;
        rc = bench_back(b, i, e);
        if (!rc)
            rc = generate(b, which == 1, &g[which], e);
    }
    if (!rc && runs == 2 && !b->o->accept)
        rc = compare(b, i, &g[0], &g[1], e);
    if (rc)
        return rc;
    c->plain = g[0].tps;
    c->dspark = g[1].tps;
    c->ratio = g[0].tps > 0 ? g[1].tps / g[0].tps : 0;
    c->length = g[1].length;
    return i + 1 < b->points ? bench_back(b, i, e) : 0; /* the next interval begins here */
}

/* Median over the sweeps of one member of the cells of a context. */
static double over(const cell *c, int n, size_t member, double *room)
{
    for (int k = 0; k < n; k++)
        memcpy(&room[k], (const char *)&c[k] + member, sizeof *room);
    return bench_median(room, n);
}
#define OVER(member) over(c, b->o->repeat, offsetof(cell, member), room)

static double script_mean(const bench *b)
{
    double sum = 0;
    for (int i = 0; i < b->script_len; i++)
        sum += b->script[i];
    return sum / b->script_len;
}

static void put_row(bench *b, int i, const cell *c, double *room)
{
    const double plain = OVER(plain), rate = plain * (double)b->token_bytes;
    char percent[24] = "", drafted[200] = "";
    if (b->copy > 0)
        snprintf(percent, sizeof percent, "%.1f", 100 * rate / b->copy);
    if (b->o->dspark)
        snprintf(drafted, sizeof drafted, ",%.2f,%.2f,%.3f,%.3f", plain, OVER(dspark), OVER(ratio), OVER(length));
    const size_t at = strlen(drafted);
    if (b->o->accept) /* a list's commas would be columns */
        snprintf(drafted + at, sizeof drafted - at, ",scripted acceptance of %.2f", script_mean(b));
    bench_put(b, "%d,%d,%.2f,%d,%.2f,%llu,%.3f,%s%s", b->point[i], c->fed, OVER(prefill), b->o->gen_tokens, plain,
              (unsigned long long)c->kv_bytes, rate / 1e9, percent, drafted);
}

static int sweep_once(bench *b, int sweep, gen g[2], cell *cells, double *room, ds4_err *e)
{
    const int n = b->o->repeat;
    int rc = ds4_session_reset(b->ses, e);
    for (int i = 0; i < b->points && !rc; i++) {
        cell *c = &cells[(size_t)i * (size_t)n];
        rc = measure(b, i, sweep, g, &c[sweep], e);
        if (rc)
            break;
        if (n > 1)
            cli_say(BENCH_PROGRAM, "sweep %d of %d: context %d: prefill %.2f t/s, generation %.2f t/s", sweep + 1, n,
                    b->point[i], c[sweep].prefill, c[sweep].plain);
        if (sweep == n - 1)
            put_row(b, i, c, room);
    }
    return rc;
}

int bench_sweep(bench *b, ds4_err *e)
{
    const size_t n = (size_t)b->o->repeat, tokens = (size_t)b->o->gen_tokens;
    cell *cells = calloc((size_t)b->points * n, sizeof *cells);
    double *room = malloc(n * sizeof *room);
    int32_t *ids = malloc(2 * tokens * sizeof *ids);
    int rc = cells && room && ids ? 0 : ds4_fail(e, DS4_ENOMEM, "no memory for %d contexts", b->points);
    if (!rc) {
        gen g[2] = {{.ids = ids}, {.ids = ids + tokens}};
        bench_put(b,
                  "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes,gb_per_s,percent_of_copy%s",
                  b->o->accept   ? ",plain_tps,scripted_tps,scripted_ratio,scripted_length,label"
                  : b->o->dspark ? ",plain_tps,dspark_tps,ratio,acceptance_length"
                                 : "");
        for (int sweep = 0; sweep < b->o->repeat && !rc; sweep++)
            rc = sweep_once(b, sweep, g, cells, room, e);
    }
    free(cells);
    free(room);
    free(ids);
    return rc;
}
