#include "app/ds4_app.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/cli_signal.h"
#include "base/clock.h"
#include "base/fsio.h"

static bool on_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    cli_progress_step(ctx, what, done, total);
    return !cli_signal_seen();
}

static void on_note(void *ctx, const char *line)
{
    cli_progress_clear(ctx);
    cli_say(PROGRAM, "%s", line);
}

static ds4_engine_options engine_options(app *a, int ctx)
{
    const ds4_opts *o = a->o;
    ds4_engine_options eo = ds4_engine_defaults();
    eo.model = o->model;
    eo.drafter = o->dspark ? o->drafter : NULL;
    eo.dspark = o->dspark;
    eo.backend = o->backend;
    eo.threads = o->threads ? o->threads : o->env.threads;
    eo.ctx = ctx;
    eo.act = (enum ds4_act)o->act;
    eo.kv_sim = (enum ds4_kv_sim)o->kv_sim;
    eo.host_confidence = o->env.dspark_no_gpu_confidence;
    eo.stats = o->stats || o->env.dspark_stats;
    eo.device_fault = o->env.device_fault;
    eo.progress = on_progress;
    eo.note = on_note;
    eo.progress_ctx = &a->progress;
    return eo;
}

/* A drafter that is named but not used is at least a file that is there. */
static int check_unused_drafter(const ds4_opts *o, ds4_err *e)
{
    if (!o->drafter || o->dspark)
        return 0;
    if (access(o->drafter, R_OK))
        return ds4_fail(e, DS4_EIO, "%s: cannot open the file given to --mtp", o->drafter);
    cli_say(PROGRAM, "%s is given without --dspark: decoding plainly", o->drafter);
    return 0;
}

/* A snapshot that cannot be written shall not show only after a long answer. */
static int check_save(const ds4_opts *o, ds4_err *e)
{
    fsio_writer w;
    int rc = o->save ? fsio_begin(&w, o->save, e) : 0;
    if (o->save && !rc)
        fsio_abort(&w);
    return rc;
}

/* The files of two releases have equal shapes; only their published names tell them apart. */
static void compare_releases(const ds4_opts *o)
{
    static const char mark[] = "0731";
    if (!o->dspark || !strstr(o->model, "DeepSeek-V4") || !strstr(o->drafter, "DeepSeek-V4"))
        return;
    if (!strstr(o->model, mark) != !strstr(o->drafter, mark))
        cli_say(PROGRAM,
                "only one of the names of model and drafter says %s: if they are of different releases, the text "
                "stays right but few drafts are accepted",
                mark);
}

static void describe(const app *a)
{
    const ds4_info *i = &a->info;
    char model[32], kv[32], scratch[32], level[32];
    if (i->has_drafter) {
        compare_releases(a->o);
        snprintf(level, sizeof level, "confidence %.2f", (double)a->o->confidence);
        cli_say(PROGRAM, "DSpark enabled: %d stages, block %d, markov_rank %d, %s", i->draft_stages, i->draft_block,
                i->draft_rank,
                a->o->dspark_strict     ? "never drafting (strict)"
                : a->o->confidence >= 0 ? level
                                        : "auto");
    }
    if (!a->o->stats)
        return;
    cli_say(PROGRAM, "backend %s, %d layers, hidden %d, vocabulary %d, context %d of %u", i->backend, i->layers,
            i->hidden, i->vocab, i->ctx, i->ctx_max);
    cli_say(PROGRAM, "memory: files %s, KV %s, scratch %s",
            cli_bytes(i->model_bytes + i->drafter_bytes, model, sizeof model), cli_bytes(i->kv_bytes, kv, sizeof kv),
            cli_bytes(i->scratch_bytes, scratch, sizeof scratch));
    cli_say(PROGRAM, "seed: %llu", (unsigned long long)a->o->seed.value);
}

int app_open(app *a, const ds4_opts *o, int ctx, ds4_err *e)
{
    *a = (app){.o = o};
    cli_progress_init(&a->progress, stderr, PROGRAM);
    int rc = check_unused_drafter(o, e);
    if (!rc)
        rc = check_save(o, e);
    if (!rc) {
        ds4_engine_options eo = engine_options(a, ctx);
        rc = ds4_engine_open(&a->eng, &eo, e);
    }
    cli_progress_clear(&a->progress);
    if (!rc)
        rc = ds4_session_open(&a->ses, a->eng, e);
    if (!rc && o->load)
        rc = ds4_session_load(a->ses, o->load, e);
    if (rc) {
        app_close(a);
        return rc;
    }
    ds4_engine_info(a->eng, &a->info);
    a->words = ds4_engine_vocab(a->eng);
    describe(a);
    return 0;
}

void app_close(app *a)
{
    ds4_session_close(a->ses);
    ds4_engine_close(a->eng);
    bpe_ids_free(&a->answer);
    a->ses = NULL;
    a->eng = NULL;
}

int app_sync(app *a, const bpe_ids *ids, ds4_err *e)
{
    if (ids->n > (size_t)a->info.ctx)
        return ds4_fail(e, DS4_EARG, "the prompt has %zu tokens, the context only %d: use --ctx %zu or more", ids->n,
                        a->info.ctx, ids->n + 256);
    double start = clock_now();
    a->fed = 0;
    int rc = ds4_session_sync(a->ses, ids->id, (int)ids->n, on_progress, &a->progress, &a->fed, e);
    a->prefill = clock_now() - start;
    cli_progress_clear(&a->progress);
    return rc;
}

/* Where the tokens of a generation go. */
typedef struct sink {
    emit *m;
    logprobs *lp;
    bpe_ids *kept;
    int pos, rc;
    ds4_err *e;
} sink;

static bool on_token(void *ctx, int32_t id, const float *logits)
{
    sink *s = ctx;
    if (cli_signal_seen())
        return false;
    s->rc = bpe_ids_push(s->kept, id, s->e);
    if (!s->rc && s->lp)
        s->rc = logprobs_add(s->lp, s->pos, id, logits, s->e);
    if (!s->rc && s->m)
        s->rc = emit_token(s->m, id, s->e);
    s->pos++;
    return s->rc == 0;
}

static ds4_generate_options generate_options(const ds4_opts *o)
{
    ds4_generate_options g = ds4_generate_defaults();
    g.temp = o->temp;
    g.top_p = o->top_p;
    g.min_p = o->min_p;
    g.top_k = o->top_k;
    g.seed = o->seed.value;
    g.max_tokens = o->tokens ? o->tokens : INT_MAX;
    g.ignore_eos = o->ignore_eos;
    g.drafting = o->confidence >= 0 || o->test_proposer ? DS4_DRAFT_FIXED : DS4_DRAFT_AUTO;
    if (o->dspark_strict || !(o->dspark || o->test_proposer))
        g.drafting = DS4_DRAFT_OFF;
    g.confidence = o->confidence >= 0 ? o->confidence : 0;
    g.test_proposer = o->test_proposer;
    g.on_token = on_token;
    return g;
}

static int generate(app *a, ds4_generate_options *g, sink *s, ds4_err *e)
{
    ds4_err own = {0};
    s->pos = ds4_session_pos(a->ses);
    s->e = &own;
    g->ctx = s;
    g->want_logits = s->lp != NULL;
    int rc = ds4_generate(a->ses, g, &a->result, e);
    if (!rc && s->rc)
        rc = ds4_fail(e, s->rc, "%s", own.msg);
    return rc;
}

/* What plain decoding says, for the test proposer that knows it. The session is as before. */
static int learn_answer(app *a, ds4_generate_options g, bpe_ids *kept, ds4_err *e)
{
    sink s = {.kept = kept};
    bpe_ids prompt = {0};
    int n = ds4_session_pos(a->ses), rc = 0;
    for (int i = 0; i < n && !rc; i++)
        rc = bpe_ids_push(&prompt, ds4_session_tokens(a->ses)[i], e);
    g.test_proposer = NULL;
    g.drafting = DS4_DRAFT_OFF;
    if (!rc)
        rc = generate(a, &g, &s, e);
    if (!rc && a->result.finish == DS4_FINISH_EOS)
        rc = bpe_ids_push(kept, a->info.eos, e);
    if (!rc)
        rc = ds4_session_reset(a->ses, e);
    if (!rc)
        rc = app_sync(a, &prompt, e);
    bpe_ids_free(&prompt);
    return rc;
}

int app_generate(app *a, emit *m, logprobs *lp, ds4_err *e)
{
    ds4_generate_options g = generate_options(a->o);
    sink s = {.m = m, .lp = lp, .kept = &a->answer};
    bpe_ids known = {0};
    int rc = 0;
    if (g.test_proposer && !strcmp(g.test_proposer, "oracle")) {
        rc = learn_answer(a, g, &known, e);
        g.oracle_tokens = known.id;
        g.oracle_count = (int)known.n;
    }
    a->start = ds4_session_pos(a->ses);
    a->answer.n = 0;
    if (!rc)
        rc = generate(a, &g, &s, e);
    bpe_ids_free(&known);
    return rc;
}

int app_save(app *a, const char *path, ds4_err *e)
{
    bpe_ids all = {0};
    int rc = 0, end = a->start + (int)a->answer.n, pos = ds4_session_pos(a->ses);
    if (end > a->info.ctx)
        end = a->info.ctx;
    for (int i = 0; i < end && !rc; i++)
        rc = bpe_ids_push(&all, i < pos ? ds4_session_tokens(a->ses)[i] : a->answer.id[i - a->start], e);
    if (!rc && pos < end)
        rc = ds4_session_sync(a->ses, all.id, end, NULL, NULL, NULL, e);
    bpe_ids_free(&all);
    return rc ? rc : ds4_session_save(a->ses, path, e);
}

static void report_statistics(const app *a)
{
    char line[2000], text[8000];
    if ((a->o->env.dspark_stats || a->o->stats) && ds4_stats_line(a->eng, line, sizeof line))
        fprintf(stderr, "%s\n", line);
    if (a->o->stats && ds4_stats_report(a->eng, text, sizeof text))
        fprintf(stderr, "%s%s", text, text[strlen(text) - 1] == '\n' ? "" : "\n");
}

/* The first token comes from the prompt's own logits: it took no step of the generation. */
static double generated(const ds4_result *r) { return r->tokens > 1 ? r->tokens - 1 : r->tokens; }

static double rate(double n, double seconds) { return n > 0 && seconds > 0 ? n / seconds : 0; }

void app_report(const app *a)
{
    const ds4_result *r = &a->result;
    char accepted[120] = "none (no drafts)";
    report_statistics(a);
    if (r->proposed)
        snprintf(accepted, sizeof accepted, "%.1f %% (%llu of %llu), mean length %.2f",
                 100.0 * (double)r->accepted / (double)r->proposed, (unsigned long long)r->accepted,
                 (unsigned long long)r->proposed, 1 + (double)r->accepted / (double)r->cycles);
    fprintf(stderr,
            "%s: prefill: %.2f t/s (%d tokens), generation: %.2f t/s (%d tokens), acceptance: %s, logits: %016llx\n",
            PROGRAM, rate(a->fed, a->prefill), a->fed, rate(generated(r), r->seconds), r->tokens, accepted,
            (unsigned long long)r->logits_hash);
}
