/* ds4.h: DeepSeek-V4 with DSpark speculative decoding, as a library.
 *
 *   engine   a loaded model (trunk, drafter, tokenizer, backend); opened once, read-only afterwards
 *   session  one mutable timeline of tokens with its KV state; belongs to an engine; used by one thread at a time
 *
 * Typical use:
 *     ds4_engine *eng; ds4_session *ses; ds4_error err;
 *
 *     ds4_engine_options eo = ds4_engine_defaults();
 *     eo.model = "model.gguf";
 *     eo.drafter = "drafter.gguf";
 *     eo.dspark = true;
 *     if (ds4_engine_open(&eng, &eo, &err) || ds4_session_open(&ses, eng, &err))
 *         die(err.msg);
 *     ds4_tokenize(eng, text, strlen(text), false, &tokens, &n, &err);
 *     ds4_session_sync(ses, tokens, (int)n, NULL, NULL, NULL, &err); // prompt; keeps what it shares with the last one
 *
 *     ds4_generate_options go = ds4_generate_defaults();
 *     go.max_tokens = 100;
 *     go.on_token = print_it;                                        // called for every token
 *     ds4_generate(ses, &go, &result, &err);
 *
 * Exactness: with the same seed the tokens of ds4_generate do not depend on whether drafting is on. At temperature 0
 * they are the argmax tokens of plain decoding; above it every token is the trunk's own choice with position-keyed
 * noise.
 *
 * Errors: functions return 0 or a negative code and fill err->msg with one line (err may be NULL). Nothing here prints
 * or exits. Threads: one engine may serve several sessions, but only one call into the engine or its sessions may run
 * at a time. */
#ifndef DS4_H
#define DS4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ds4_err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DS4_VERSION "0.1.0"

/* The same object that the rooms below use (ds4_err.h): code and one line of text. */
typedef struct ds4_err ds4_error;

typedef struct ds4_engine ds4_engine;
typedef struct ds4_session ds4_session;

/* Activations of quantised products. */
enum ds4_act { DS4_ACT_Q8 = 0, DS4_ACT_FLOAT = 1 };
/* Simulated rounding of KV rows; FULL is the model. */
enum ds4_kv_sim { DS4_KV_FULL = 0, DS4_KV_FP8 = 1, DS4_KV_OFF = 2 };
/* AUTO: scheduler with cost table; FIXED: confidence threshold. */
enum ds4_drafting { DS4_DRAFT_OFF, DS4_DRAFT_AUTO, DS4_DRAFT_FIXED };
enum ds4_finish { DS4_FINISH_EOS, DS4_FINISH_LIMIT, DS4_FINISH_CONTEXT, DS4_FINISH_CALLER };

/* Loading and prompt progress: `what` is "load" (bytes) or "prompt" (tokens). Return false to cancel. */
typedef bool (*ds4_progress)(void *ctx, const char *what, uint64_t done, uint64_t total);

typedef struct ds4_engine_options {
    const char *model;   /* trunk GGUF (any part of a split set) */
    const char *drafter; /* DSpark support GGUF or NULL */
    bool dspark;         /* drafting is wanted: a missing or wrong drafter is an error, never silent plain decoding */
    const char *backend; /* "cpu", "cuda" or NULL = best available */
    int threads;         /* CPU threads, 0 = all cores */
    int ctx;             /* most tokens of a session; 0 = 4096 or the model's maximum if smaller */
    int sessions;        /* sessions that may be open at once, at least 1 */
    enum ds4_act act;
    enum ds4_kv_sim kv_sim;
    bool host_confidence;  /* diagnostic: compute the confidence head on the host (DS4_DSPARK_NO_GPU_CONFIDENCE) */
    bool stats;            /* time the parts of the drafting cycle */
    int device_fault;      /* for tests: the n-th wait for the device fails; 0: none does */
    /* Instead of `model` and `drafter`, to measure speed without files: random weights of a published shape. */
    const char *synthetic;  /* "flash-q2", "flash-q4", "flash-mxfp4" or NULL */
    int synthetic_layers;   /* the first so many, at least 3; 0 = all */
    bool synthetic_drafter; /* with a drafter of the same kind */
    float synthetic_skew;   /* root mean square of the router bias; 0: all experts are equally likely */
    ds4_progress progress; /* may be NULL */
    void (*note)(void *ctx, const char *line); /* something worth telling before loading starts; may be NULL */
    void *progress_ctx;                        /* of both */
} ds4_engine_options;

ds4_engine_options ds4_engine_defaults(void);
int ds4_engine_open(ds4_engine **out, const ds4_engine_options *o, ds4_error *err);
void ds4_engine_close(ds4_engine *e); /* close its sessions first */

/* What was loaded. */
typedef struct ds4_info {
    const char *backend;
    int layers, hidden, vocab, ctx, eos, bos;
    uint32_t ctx_max; /* of the model */
    uint64_t model_bytes, drafter_bytes, kv_bytes, scratch_bytes;
    uint64_t identity; /* of the trunk file */
    bool has_drafter;
    int draft_block, draft_stages, draft_rank;
} ds4_info;
void ds4_engine_info(const ds4_engine *e, ds4_info *out);

/* Tokenizer of the model. Text is bytes; parse_special lets added tokens match literally (never use it for a user's
 * text). *out is malloc'ed, the caller frees it. */
int ds4_tokenize(const ds4_engine *e, const char *text, size_t len, bool parse_special, int32_t **out, size_t *n,
                 ds4_error *err);
/* The tokenizer itself, for src/text (chat rendering, streaming detokeniser): a `const struct vocab *`. */
const struct vocab *ds4_engine_vocab(const ds4_engine *e);

int ds4_session_open(ds4_session **out, ds4_engine *e, ds4_error *err);
void ds4_session_close(ds4_session *s);
int ds4_session_reset(ds4_session *s, ds4_error *err);
/* Makes tokens[0, n) the timeline: the common prefix is kept, the rest fed. *fed (may be NULL): tokens that had to be
 * fed. */
int ds4_session_sync(ds4_session *s, const int32_t *tokens, int n, ds4_progress cb, void *ctx, int *fed,
                     ds4_error *err);
int ds4_session_rewind(ds4_session *s, int pos, ds4_error *err);
int ds4_session_pos(const ds4_session *s);               /* committed tokens */
const int32_t *ds4_session_tokens(const ds4_session *s); /* valid until the next call */
int ds4_session_save(const ds4_session *s, const char *path, ds4_error *err);
int ds4_session_load(ds4_session *s, const char *path, ds4_error *err);
/* Hash of the whole state: equal exactly if two sessions are bit-identical. */
int ds4_session_hash(const ds4_session *s, uint64_t *out, ds4_error *err);
/* Copies the logits of the last committed position to out[vocab]. DS4_ESTATE if they are not available. */
int ds4_session_logits(ds4_session *s, float *out, ds4_error *err);
/* Feeds tokens one chunk at a time from an empty session and hands the logits of every position to `row`, which returns
 * false to cancel (DS4_ECANCEL; the session stays at that chunk's end). For evaluation. */
int ds4_session_score(ds4_session *s, const int32_t *tokens, int n,
                      bool (*row)(void *ctx, int pos, const float *logits), void *ctx, ds4_error *err);

typedef struct ds4_generate_options {
    float temp; /* below 1e-5: 0, the likeliest token */
    float top_p, min_p;
    int top_k;
    uint64_t seed;
    int max_tokens; /* at least 1 */
    bool ignore_eos;
    enum ds4_drafting drafting;
    float confidence; /* threshold for DS4_DRAFT_FIXED, 0..1 */
    /* Called for every token in order (not for EOS). Return false to stop: the session is then committed exactly up to
     * the token before it, as if plain decoding had stopped there. logits: the row the token was chosen from, host
     * memory, only if want_logits. */
    bool (*on_token)(void *ctx, int32_t token, const float *logits);
    void *ctx;
    bool want_logits;
    const char *test_proposer; /* NULL; for tests "random", "wrong", "short" or "oracle" (needs oracle_tokens) instead
                                  of DSpark */
    const int32_t *oracle_tokens; /* [oracle_count] the tokens that plain decoding emits */
    int oracle_count;
    /* For measuring speed, with the engine's drafter: instead of what is accepted, the drafts that count as accepted in
     * each drafted cycle in turn, over and over (at most as many as were drafted). All work is done as usual, the text
     * is nobody's. In AUTO every confidence is that of a calibrated head, but at least 1/2. */
    const uint8_t *scripted;
    int scripted_count;
} ds4_generate_options;

ds4_generate_options
ds4_generate_defaults(void); /* T = 1, top_p 0.95, as users expect; drafting auto if the engine drafts */

typedef struct ds4_result {
    enum ds4_finish finish;
    int tokens;     /* emitted (EOS not counted) */
    double seconds; /* generation only */
    uint64_t cycles, proposed, accepted;
    uint64_t logits_hash; /* of the last logits row computed */
} ds4_result;

/* Continues the timeline. Needs the logits of the last committed position (call after ds4_session_sync). */
int ds4_generate(ds4_session *s, const ds4_generate_options *o, ds4_result *r, ds4_error *err);

/* One line of drafting statistics since the engine opened ("ds4: DSpark stats cycles=... "), cut to n bytes. Returns
 * its length, 0 if there was no cycle. */
size_t ds4_stats_line(const ds4_engine *e, char *buf, size_t n);
/* Several lines: cost table T(n), proposal cost, the scheduler's decisions. */
size_t ds4_stats_report(const ds4_engine *e, char *buf, size_t n);

/* --- measuring (ds4-bench) --- */
/* Seconds of one forward of n rows (1 to 16: tokens[0, n)) at the session's position, the greedy choice of every row
 * included; *issued (may be NULL): of these, until all work of the forward was handed to the backend (on "cpu" that is
 * nearly all). Nothing is committed; the logits of the last position are lost (ds4_session_sync makes them again) and
 * drafting statistics stay as they were. DS4_EARG if the context has no room for n more tokens. */
int ds4_bench_rows(ds4_session *s, const int32_t *tokens, int n, double *seconds, double *issued, ds4_error *err);

/* Seconds of one full DSpark proposal, and of its parts. */
typedef struct ds4_proposal_times {
    double total; /* without the waits that separate the parts */
    double setup, chain, conf0, logits, markov, confidence; /* the prop_ fields of the statistics line */
} ds4_proposal_times;
/* Proposes twice behind `anchor` at the session's position, as a whole and in parts, each time with one committed row
 * to catch up, as after a cycle that accepted nothing. Commits nothing; statistics stay as they were. DS4_ESTATE
 * without a drafter or a prompt, DS4_EARG without room for a block. */
int ds4_bench_proposal(ds4_session *s, int32_t anchor, ds4_proposal_times *out, ds4_error *err);

/* The session as if tokens[0, n) had been fed, with a random state instead of the one they lead to: speed at a position
 * without the wait. ds4_session_sync with the same tokens then makes the logits. */
int ds4_bench_place(ds4_session *s, const int32_t *tokens, int n, ds4_error *err);
/* Routed experts that a forward of tokens[0, k) at the session's position reads, for every k from 1 to n (at most 16):
 * distinct[k - 1], the average over the layers. Commits nothing; logits as with ds4_bench_rows. */
int ds4_bench_experts(ds4_session *s, const int32_t *tokens, int n, double *distinct, ds4_error *err);

/* Bytes of trunk weights that a step of one token reads, in the file's layout: every tensor once, of routed experts the
 * used ones, of tables by token id (embedding, hash routing) one row. */
uint64_t ds4_bench_token_bytes(const ds4_engine *e);
/* The same for a forward of n rows, whose experts are chosen independently and evenly: an upper bound. */
double ds4_bench_rows_bytes(const ds4_engine *e, int n);
/* Bytes per second of the device's memory: copied (read and written), and read alone. 0: not measured, not on "cpu". */
int ds4_bench_bandwidth(ds4_engine *e, double *copy, double *read, ds4_error *err);

/* What a drafted cycle costs on average that verifies a full block and accepts nothing. Seconds. */
typedef struct ds4_cycle_times {
    double total, propose, verify; /* propose and verify as in the statistics line */
    double host;                   /* of total, not spent waiting for the backend */
    double bytes_to_host;          /* everything read back */
    int drafts;                    /* per cycle */
} ds4_cycle_times;
/* Runs `cycles` of them behind `anchor` at the session's position after one that is not counted, and goes back.
 * Statistics and scheduler stay as they were. Refused as ds4_bench_proposal is. */
int ds4_bench_cycles(ds4_session *s, int32_t anchor, int cycles, ds4_cycle_times *out, ds4_error *err);
/* Bytes of the rows that hold the session's timeline, as float32. */
uint64_t ds4_bench_kv_bytes(const ds4_session *s);

#ifdef __cplusplus
}
#endif
#endif
