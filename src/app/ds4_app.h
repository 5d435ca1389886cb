/* ds4_app.h: an open engine with one session, as the commands of ds4 use it. */
#ifndef DS4_APP_DS4_APP_H
#define DS4_APP_DS4_APP_H

#include "app/cli_term.h"
#include "app/ds4_emit.h"
#include "app/ds4_logprobs.h"
#include "app/ds4_opts.h"
#include "ds4.h"
#include "text/bpe.h"

typedef struct app {
    const ds4_opts *o;
    ds4_engine *eng;
    ds4_session *ses;
    ds4_info info;
    const vocab *words;
    cli_progress progress;
    int fed;           /* tokens computed by the last app_sync */
    double prefill;    /* seconds it took */
    ds4_result result; /* of the last app_generate */
    int start;         /* where it began, */
    bpe_ids answer;    /* and its tokens */
} app;

/* Opens engine and session for `ctx` tokens (0: default) and loads the snapshot of --load. */
int app_open(app *a, const ds4_opts *o, int ctx, ds4_err *e);
void app_close(app *a);

/* Makes ids the timeline. Ctrl-C cancels (DS4_ECANCEL). A prompt that leaves no room is refused with both numbers. */
int app_sync(app *a, const bpe_ids *ids, ds4_err *e);

/* Generates behind the timeline into m, and into lp if it is not NULL. Ctrl-C ends the answer early, which is no error.
 */
int app_generate(app *a, emit *m, logprobs *lp, ds4_err *e);

/* Writes a snapshot that ends behind the last token of the answer (generation leaves that one chosen but not computed).
 */
int app_save(app *a, const char *path, ds4_err *e);

/* Statistics as --stats and DS4_DSPARK_STATS ask for them, then the line with speeds, on stderr. */
void app_report(const app *a);

#endif
