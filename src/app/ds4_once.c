#include "app/ds4_once.h"

#include <stdlib.h>

#include "app/cli_signal.h"
#include "app/ds4_app.h"
#include "app/ds4_prompt.h"
#include "app/ds4_talk.h"
#include "file/gguf.h"
#include "json/chat_json.h"

static int failed(const ds4_err *e)
{
    cli_say(PROGRAM, "%s", e->msg);
    return 1;
}

int ds4_once_dump_tokens(const ds4_opts *o)
{
    ds4_err e = {0};
    gguf *g = NULL;
    vocab *v = NULL;
    bpe_ids ids = {0};
    char *text = NULL;
    size_t n;
    int rc = gguf_open(&g, o->model, &e);
    if (!rc)
        rc = vocab_load(&v, g, 0, &e);
    if (!rc)
        rc = prompt_text(o, &text, &n, &e);
    if (!rc)
        rc = bpe_encode(v, text, n, o->parse_special, &ids, &e);
    if (!rc) {
        putchar('[');
        for (size_t i = 0; i < ids.n; i++)
            printf("%s%d", i ? ", " : "", ids.id[i]);
        puts("]");
    }
    bpe_ids_free(&ids);
    free(text);
    vocab_free(v);
    gguf_close(g);
    return rc ? failed(&e) : 0;
}

int ds4_once_render(const ds4_opts *o)
{
    ds4_err e = {0};
    talk t;
    char *text, line[500];
    size_t n;
    ds4_opts plain = *o;
    plain.system = NULL; /* the document has its own */
    int rc = talk_open(&t, &plain, &e);
    if (rc)
        return failed(&e);
    if (protocol_notice(&t.proto, line, sizeof line))
        cli_say(PROGRAM, "%s", line);
    rc = chat_render_json_file(o->render, &t.opts, &text, &n, &e);
    if (!rc) {
        fwrite(text, 1, n, stdout);
        free(text);
    }
    talk_close(&t);
    return rc ? failed(&e) : 0;
}

/* ---- --dump-logits ---- */

typedef struct row_writer { fsio_writer w; size_t bytes; int rc; ds4_err *e; } row_writer;

static bool write_row(void *ctx, int pos, const float *logits)
{
    row_writer *r = ctx;
    (void)pos;
    r->rc = fsio_put(&r->w, logits, r->bytes, r->e);
    return !r->rc && !cli_signal_seen();
}

static int write_last(app *a, const bpe_ids *ids, row_writer *r, ds4_err *e)
{
    float *row = malloc(r->bytes);
    if (!row)
        return ds4_fail(e, DS4_ENOMEM, "no memory for a row of logits");
    int rc = app_sync(a, ids, e);
    if (!rc)
        rc = ds4_session_logits(a->ses, row, e);
    if (!rc)
        rc = fsio_put(&r->w, row, r->bytes, e);
    free(row);
    return rc;
}

static int dump_logits(app *a, const bpe_ids *ids, ds4_err *e)
{
    row_writer r = {.bytes = (size_t)a->info.vocab * sizeof(float), .e = e};
    int rc = fsio_begin(&r.w, a->o->dump_logits, e);
    if (rc)
        return rc;
    if (a->o->all_positions) {
        ds4_err own = {0};
        r.e = &own;
        rc = ds4_session_reset(a->ses, e);
        if (!rc)
            rc = ds4_session_score(a->ses, ids->id, (int)ids->n, write_row, &r, e);
        if (r.rc)
            rc = ds4_fail(e, r.rc, "%s", own.msg);
    } else {
        rc = write_last(a, ids, &r, e);
    }
    if (rc) {
        fsio_abort(&r.w);
        return rc;
    }
    return fsio_commit(&r.w, e);
}

/* ---- an answer ---- */

static int answer(app *a, bool thinking, ds4_err *e)
{
    emit m;
    logprobs lp = {0};
    bool probs = a->o->dump_logprobs != NULL;
    int rc = probs ? logprobs_open(&lp, a->o->dump_logprobs, a->words, a->o->logprobs_top_k, e) : 0;
    if (rc)
        return rc;
    emit_open(&m, a->words, stdout, thinking, a->o->raw || a->o->token_ids);
    rc = app_generate(a, &m, probs ? &lp : NULL, e);
    int end = emit_end(&m, rc ? NULL : e);
    emit_close(&m);
    if (!rc)
        rc = end;
    if (probs && !rc)
        rc = logprobs_commit(&lp, e);
    logprobs_close(&lp);
    return rc;
}

/* The tokens of the snapshot: generation goes on where it ended. */
static int loaded_ids(app *a, bpe_ids *out, ds4_err *e)
{
    int rc = 0;
    for (int i = 0; i < ds4_session_pos(a->ses) && !rc; i++)
        rc = bpe_ids_push(out, ds4_session_tokens(a->ses)[i], e);
    if (!rc && !out->n)
        rc = ds4_fail(e, DS4_EARG, "%s: the snapshot holds no token; give a prompt", a->o->load);
    return rc;
}

static int work(app *a, ds4_err *e)
{
    const ds4_opts *o = a->o;
    bpe_ids ids = {0};
    bool thinking = false, own = o->prompt || o->prompt_file || o->token_ids;
    int rc = own ? prompt_ids(o, a->words, &ids, &thinking, e) : loaded_ids(a, &ids, e);
    cli_signal_catch(); /* not before: Ctrl-C while the prompt is read from standard input just ends the program */
    if (!rc && o->dump_logits) {
        rc = dump_logits(a, &ids, e);
    } else if (!rc) {
        rc = app_sync(a, &ids, e);
        if (!rc)
            rc = answer(a, thinking, e);
        if (!rc && o->save)
            rc = app_save(a, o->save, e);
        if (!rc)
            app_report(a);
    }
    bpe_ids_free(&ids);
    return rc;
}

int ds4_once_answer(const ds4_opts *o)
{
    app a;
    ds4_err e = {0};
    int rc = app_open(&a, o, o->ctx, &e);
    if (rc)
        return failed(&e);
    rc = work(&a, &e);
    app_close(&a);
    if (!rc && cli_signal_seen())
        rc = ds4_fail(&e, DS4_ECANCEL, "stopped by Ctrl-C");
    return rc ? failed(&e) : 0;
}
