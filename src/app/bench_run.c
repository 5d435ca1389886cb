#include "app/bench_run.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "app/cli_signal.h"
#include "base/clock.h"
#include "base/pool.h"

enum { MOST_BYTES = 256 << 20, MOST_POINTS = 100000 };

static bool on_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    cli_progress_step(ctx, what, done, total);
    return !cli_signal_seen();
}

static void on_note(void *ctx, const char *line)
{
    cli_progress_clear(ctx);
    cli_say(BENCH_PROGRAM, "%s", line);
}

/* Contexts from --ctx-start to --ctx-max. */
static int plan_points(bench *b, ds4_err *e)
{
    const bench_opts *o = b->o;
    for (int pass = 0; pass < 2; pass++) {
        int n = 0;
        for (int64_t ctx = o->ctx_start; ctx <= o->ctx_max && n <= MOST_POINTS; n++) {
            if (pass)
                b->point[n] = (int)ctx;
            int64_t next = o->step_mul > 0 ? (int64_t)((double)ctx * (double)o->step_mul) : ctx + o->step_incr;
            ctx = next > ctx ? next : ctx + 1;
        }
        if (n > MOST_POINTS)
            return ds4_fail(e, DS4_EARG, "more than %d contexts: use a larger step", MOST_POINTS);
        b->points = n;
        if (!pass && !(b->point = malloc((size_t)n * sizeof *b->point)))
            return ds4_fail(e, DS4_ENOMEM, "no memory for %d contexts", n);
    }
    return 0;
}

/* BOS, then any tokens: a synthetic model has no text. */
static int fill_random(bench *b, size_t want, ds4_err *e)
{
    b->text = malloc(want * sizeof *b->text);
    if (!b->text)
        return ds4_fail(e, DS4_ENOMEM, "no memory for %zu tokens", want);
    uint64_t x = 1;
    for (size_t i = 0; i < want; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        b->text[i] = i ? (int32_t)((x >> 33) % (uint64_t)b->info.vocab) : b->info.bos;
    }
    return 0;
}

/* BOS, then the text as often as it takes. */
static int fill_text(bench *b, ds4_err *e)
{
    if (b->o->synthetic)
        return fill_random(b, (size_t)b->point[b->points - 1] + BENCH_ROWS, e);
    const char *path = strcmp(b->o->prompt_file, "-") ? b->o->prompt_file : "/dev/stdin";
    const size_t want = (size_t)b->point[b->points - 1] + BENCH_ROWS;
    char *bytes = NULL;
    size_t len, n = 0;
    int32_t *ids = NULL;
    int rc = fsio_read(path, MOST_BYTES, &bytes, &len, e);
    if (!rc)
        rc = ds4_tokenize(b->eng, bytes, len, false, &ids, &n, e);
    if (!rc && !n)
        rc = ds4_fail(e, DS4_EFORMAT, "%s: holds no text", path);
    if (!rc && !(b->text = malloc(want * sizeof *b->text)))
        rc = ds4_fail(e, DS4_ENOMEM, "no memory for %zu tokens", want);
    for (size_t i = 0; i < want && !rc; i++)
        b->text[i] = i ? ids[(i - 1) % n] : b->info.bos;
    if (!rc && want - 1 > n)
        cli_say(BENCH_PROGRAM, "%s has %zu tokens: repeated to fill %zu", path, n, want);
    free(ids);
    free(bytes);
    return rc;
}

/* A list of numbers of drafts, or a mean that 0 or 1 more and less make up. */
static int read_script(bench *b, ds4_err *e)
{
    const char *p = b->o->accept;
    char *end;
    const double mean = strtod(p, &end);
    if (end != p && !*end && mean >= 0 && mean <= b->info.draft_block) {
        for (b->script_len = 0; b->script_len < BENCH_SCRIPT; b->script_len++)
            b->script[b->script_len] =
                (uint8_t)((int)((b->script_len + 1) * mean + 1e-9) - (int)(b->script_len * mean + 1e-9));
        return 0;
    }
    for (b->script_len = 0; b->script_len < BENCH_SCRIPT; p = end + 1) {
        const long v = strtol(p, &end, 10);
        if (end == p || v < 0 || v > b->info.draft_block || (*end && *end != ','))
            break;
        b->script[b->script_len++] = (uint8_t)v;
        if (!*end)
            return 0;
    }
    return ds4_fail(e, DS4_EARG,
                    "--accept is '%s', expected a number from 0 to %d, or up to %d whole ones with commas",
                    b->o->accept, b->info.draft_block, BENCH_SCRIPT);
}

static int open_engine(bench *b, ds4_err *e)
{
    const bench_opts *o = b->o;
    ds4_engine_options eo = ds4_engine_defaults();
    eo.model = o->model;
    eo.drafter = o->drafter;
    eo.synthetic = o->synthetic;
    eo.synthetic_layers = o->layers;
    eo.synthetic_drafter = o->synthetic_drafter;
    eo.synthetic_skew = o->skew;
    eo.dspark = o->dspark;
    eo.backend = o->backend;
    eo.threads = o->threads ? o->threads : o->env.threads;
    eo.ctx = b->point[b->points - 1] + o->gen_tokens + 2 * BENCH_ROWS;
    eo.act = (enum ds4_act)o->act;
    eo.host_confidence = o->env.dspark_no_gpu_confidence;
    eo.progress = on_progress;
    eo.note = on_note;
    eo.progress_ctx = &b->progress;
    int rc = ds4_engine_open(&b->eng, &eo, e);
    cli_progress_clear(&b->progress);
    if (!rc)
        rc = ds4_session_open(&b->ses, b->eng, e);
    if (!rc)
        ds4_engine_info(b->eng, &b->info);
    if (!rc && o->accept)
        rc = read_script(b, e);
    return rc;
}

static void describe(bench *b, int threads)
{
    char bytes[32], name[100];
    snprintf(name, sizeof name, "synthetic %s of %d layers, skew %g", b->o->synthetic ? b->o->synthetic : "",
             b->info.layers, (double)b->o->skew);
    bench_put(b, "# ds4-bench %s: %s, backend %s, act %s, medians of %d", DS4_VERSION,
              b->o->synthetic ? name : b->o->model, b->info.backend, b->o->act == DS4_ACT_FLOAT ? "float" : "q8",
              b->o->repeat);
    if (b->o->place)
        bench_put(b, "# contexts were not read: random state in their place");
    if (b->o->cycle)
        return;
    bench_put(b, "# weights read per token: %s (dense tensors once, used experts)",
              cli_bytes(b->token_bytes, bytes, sizeof bytes));
    if (b->o->accept)
        bench_put(b,
                  "# scripted acceptance %s: drafts count as accepted by a list, whatever the model says; its text is "
                  "meaningless",
                  b->o->accept);
    if (b->read > 0)
        bench_put(b, "# copy bandwidth: %.2f GB/s, read and written, of the device's memory; reading alone %.2f GB/s",
                  b->copy / 1e9, b->read / 1e9);
    else if (b->copy > 0)
        bench_put(b, "# copy bandwidth: %.2f GB/s, read and written, memcpy on %d CPU threads", b->copy / 1e9, threads);
    else
        bench_put(b, "# copy bandwidth: not measured for backend %s, percent_of_copy is empty", b->info.backend);
}

/* Random routing is the worst case for many rows: the table says how bad it is. */
static int describe_routing(bench *b, ds4_err *e)
{
    double distinct[BENCH_ROWS];
    const int32_t *next = b->text + b->point[0];
    int rc = ds4_bench_place(b->ses, b->text, b->point[0], e);
    if (!rc)
        rc = ds4_bench_experts(b->ses, next, BENCH_ROWS, distinct, e);
    if (!rc)
        rc = ds4_session_reset(b->ses, e);
    if (!rc)
        bench_put(b, "# distinct experts per layer of 1, 2, 4, 6, 8, 16 rows: %.1f %.1f %.1f %.1f %.1f %.1f",
                  distinct[0], distinct[1], distinct[3], distinct[5], distinct[7], distinct[15]);
    return rc;
}

int bench_open(bench *b, const bench_opts *o, ds4_err *e)
{
    *b = (bench){.o = o};
    cli_progress_init(&b->progress, stderr, BENCH_PROGRAM);
    int rc = o->csv ? fsio_begin(&b->csv, o->csv, e) : 0;
    b->csv_open = o->csv && !rc;
    if (!rc)
        rc = plan_points(b, e);
    if (!rc)
        rc = open_engine(b, e);
    if (!rc)
        rc = fill_text(b, e);
    int threads = o->threads ? o->threads : o->env.threads ? o->env.threads : pool_cpus();
    if (!rc && !o->cycle)
        rc = !strcmp(b->info.backend, "cpu") ? bench_copy(threads, &b->copy, e)
                                             : ds4_bench_bandwidth(b->eng, &b->copy, &b->read, e);
    if (rc) {
        bench_close(b);
        return rc;
    }
    b->token_bytes = ds4_bench_token_bytes(b->eng);
    describe(b, threads);
    rc = o->synthetic ? describe_routing(b, e) : 0;
    if (rc)
        bench_close(b);
    return rc;
}

void bench_close(bench *b)
{
    if (b->csv_open)
        fsio_abort(&b->csv);
    cli_progress_clear(&b->progress);
    ds4_session_close(b->ses);
    ds4_engine_close(b->eng);
    free(b->text);
    free(b->point);
    *b = (bench){0};
}

void bench_put(bench *b, const char *fmt, ...)
{
    char line[4096];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    n = n < 0 ? 0 : n > (int)sizeof line - 2 ? (int)sizeof line - 2 : n;
    line[n++] = '\n';
    fwrite(line, 1, (size_t)n, stdout);
    fflush(stdout);
    if (b->csv_open)
        fsio_put(&b->csv, line, (size_t)n, NULL); /* sticky */
}

int bench_commit(bench *b, ds4_err *e)
{
    if (!b->csv_open)
        return 0;
    b->csv_open = false;
    if (b->csv.rc) { /* the line of the first failure was not kept */
        int rc = b->csv.rc;
        fsio_abort(&b->csv);
        return ds4_fail(e, rc, "%s: cannot write", b->o->csv);
    }
    return fsio_commit(&b->csv, e);
}

/* Contexts that are not read. */
static int place(bench *b, int i, ds4_err *e)
{
    int rc = ds4_bench_place(b->ses, b->text, b->point[i], e);
    return rc ? rc : ds4_session_sync(b->ses, b->text, b->point[i], NULL, NULL, NULL, e);
}

int bench_feed(bench *b, int i, int *fed, double *seconds, ds4_err *e)
{
    if (b->o->place) {
        *seconds = 0;
        if (fed)
            *fed = 0;
        return place(b, i, e);
    }
    const double start = clock_now();
    int rc = ds4_session_sync(b->ses, b->text, b->point[i], on_progress, &b->progress, fed, e);
    *seconds = clock_now() - start;
    cli_progress_clear(&b->progress);
    return rc;
}

static int last_alone(bench *b, int i, ds4_err *e)
{
    int rc = ds4_session_rewind(b->ses, b->point[i] - 1, e);
    return rc ? rc : ds4_session_sync(b->ses, b->text, b->point[i], NULL, NULL, NULL, e);
}

int bench_back(bench *b, int i, ds4_err *e)
{
    double seconds;
    if (!last_alone(b, i, e))
        return 0;
    if (b->o->place)
        return place(b, i, e);
    if (!b->said_again)
        cli_say(BENCH_PROGRAM, "%d tokens are more than can be rewound: the text is fed again, which is not timed",
                b->o->gen_tokens);
    b->said_again = true;
    int rc = ds4_session_reset(b->ses, e);
    for (int k = 0; k <= i && !rc; k++) { /* in the pieces of the first time, for the same bits */
        rc = bench_feed(b, k, NULL, &seconds, e);
        if (!rc)
            rc = last_alone(b, k, e);
    }
    return rc;
}

/* A copy in pieces, one per thread. */
enum { COPY_BYTES = 256 << 20, COPY_TIMES = 5 };
typedef struct copy_job {
    char *to;
    const char *from;
    size_t piece;
} copy_job;

static void copy_piece(void *ctx, int k)
{
    const copy_job *j = ctx;
    memcpy(j->to + (size_t)k * j->piece, j->from + (size_t)k * j->piece, j->piece);
}

int bench_copy(int threads, double *out, ds4_err *e)
{
    pool *p = NULL;
    char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    int rc = from && to ? pool_create(&p, threads, e) : ds4_fail(e, DS4_ENOMEM, "no memory to measure copying");
    *out = 0;
    if (!rc) {
        copy_job j = {to, from, COPY_BYTES / (size_t)threads};
        memset(from, 1, COPY_BYTES);
        memset(to, 0, COPY_BYTES);
        for (int i = 0; i < COPY_TIMES; i++) {
            const double start = clock_now();
            pool_run(p, copy_piece, &j, threads);
            const double rate = 2.0 * (double)j.piece * threads / (clock_now() - start);
            *out = rate > *out ? rate : *out;
        }
    }
    pool_free(p);
    free(from);
    free(to);
    return rc;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}
