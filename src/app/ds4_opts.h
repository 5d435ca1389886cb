/* ds4_opts.h: the options of ds4. */
#ifndef DS4_APP_DS4_OPTS_H
#define DS4_APP_DS4_OPTS_H

#include "app/cli_opts.h"
#include "base/cfg.h"
#include "text/chat.h"

#define PROGRAM "ds4"

enum ds4_thinking { THINKING_ON, THINKING_MAX, THINKING_OFF };

typedef struct ds4_opts {
    const char *model, *drafter, *backend, *protocol;
    int ctx, threads, act, kv_sim;
    bool dspark, dspark_strict;
    float confidence; /* < 0: the scheduler decides */
    const char *prompt, *prompt_file, *token_ids, *system, *effort_name, *history;
    bool raw, parse_special;
    int thinking; /* enum ds4_thinking */
    int release;  /* 0 auto, 1 preview, 2 0731 */
    int tokens;   /* 0: until the context is full */
    float temp, top_p, min_p;
    int top_k;
    cli_u64 seed;
    bool ignore_eos, stats;
    const char *save, *load;
    bool inspect, dump_tokens, all_positions;
    const char *render, *dump_logits, *dump_logprobs;
    int logprobs_top_k;
    const char *test_proposer;
    bool help, version;
    enum chat_effort effort; /* from effort_name */
    cfg env;
} ds4_opts;

/* Reads arguments and environment, and checks that they go together. On success a missing seed has been drawn. DS4_EARG
 * else. */
int ds4_opts_read(ds4_opts *o, int argc, char *const *argv, ds4_err *e);
void ds4_opts_help(void);

/* One line per variable DS4_* of the environment that nothing reads, on stderr. */
void ds4_opts_warn_environment(void);

#endif
