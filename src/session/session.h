/* session.h: one mutable timeline of tokens over the positional KV state.
 *
 * Invariants (session_assert restates them):
 *   1. tokens[0, pos) are committed, and exactly those positions have valid rows in the KV stores.
 *   2. 0 <= pos <= high <= ctx; no position at or above high was ever written since the last reset.
 *   3. The anchor (newest chosen token, position pos) is known to the caller but is not in tokens[0, pos).
 *   4. In OPEN, rows pos .. pos+open-1 were written by a forward, tokens[pos, pos+open) are theirs; none is committed.
 *      (After session_reserve the tokens behind the anchor come with session_settle.)
 *   5. logits_row >= 0 only if scratch row logits_row holds the logits of position pos - 1 and nothing overwrote it.
 *   6. absorbed_from <= absorbed <= pos: drafter rings hold the rows of [absorbed_from, absorbed), as far as a window
 *      reaches back. After a rewind that may be less than the window: the rest is then absorbed again.
 *   7. high - pos <= rewind room whenever the windows below pos are used (rewind refuses otherwise).
 *   8. low <= pos: rows that only positions below low need were not restored by the load that set it (0: none).
 *
 *           begin(n)                commit(a), 0 <= a <= n
 *   EMPTY ------------> OPEN ----------------------------> READY (EMPTY if pos = 0)
 *   READY ------------> OPEN
 *     ^ reset, load        \ backend failure
 *     |                     v
 *     +------ reset ---- POISONED   (refuses everything but reset; after a fatal device error reset fails too)
 *
 * Rollback is not moving pos: commit(0) costs nothing. */
#ifndef DS4_SESSION_SESSION_H
#define DS4_SESSION_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

enum session_state { SESSION_EMPTY, SESSION_READY, SESSION_OPEN, SESSION_POISONED };

typedef struct session {
    /* configuration */
    model *m;
    kv *k;
    int slot, ctx;
    /* state */
    enum session_state state;
    int32_t *tokens; /* [ctx] */
    int pos, high, low, open, absorbed_from, absorbed;
    int logits_row;
} session;

/* Called during long feeds with tokens done and to do; returning false cancels (DS4_ECANCEL; what was fed stays
 * committed). */
typedef bool (*session_progress)(void *ctx, int done, int total);

int session_open(session *s, model *m, kv *k, int slot, ds4_err *e);
void session_close(session *s);

/* Forgets everything. The only way out of POISONED; fails if the backend is dead. */
int session_reset(session *s, ds4_err *e);

/* Opens a transaction: forward of n tokens at positions pos .. pos+n-1, logits of rows [head_from, n) (rows 0.. of
 * sc.logits). DS4_EARG if the context is full, DS4_ESTATE if not EMPTY or READY. Issues work only; failures of the
 * device show at session_wait. */
int session_begin(session *s, const int32_t *tokens, int n, int head_from, ds4_err *e);
/* The transaction alone, for a forward of up to n rows that is issued elsewhere (spec/device.c) and whose tokens but
 * the first, the anchor, are chosen on the device: everything that session_begin checks. session_settle then commits
 * the first a of them and takes their tokens. */
int session_reserve(session *s, int32_t anchor, int n, ds4_err *e);
void session_settle(session *s, const int32_t *tokens, int a, int logits_row);
/* Waits for the device; a failure poisons the session. */
int session_wait(session *s, ds4_err *e);
/* Commits the first a rows of the open transaction. `logits_row`: scratch row with the logits of the last committed
 * row, -1 if unknown. */
void session_commit(session *s, int a, int logits_row);

/* Makes tokens[0, n) the committed timeline and the logits of n-1 available: keeps the common prefix, rewinds if that
 * is legal, else starts over; feeds the rest in chunks that end at fixed absolute positions. *fed (may be NULL) gets
 * the number of tokens fed. */
int session_sync(session *s, const int32_t *tokens, int n, session_progress cb, void *ctx, int *fed, ds4_err *e);

/* For measuring only: a timeline of tokens[0, n) whose state is random (kv_fill), as if it had been fed. No logits. */
int session_place(session *s, const int32_t *tokens, int n, ds4_err *e);

/* Moves pos back. Legal while every window below still holds: high - pos <= kv_rewind_room and pos >= low (after a
 * load: one token), or pos = 0. DS4_ESTATE otherwise: the caller reloads a snapshot or feeds again. */
int session_rewind(session *s, int pos, ds4_err *e);
bool session_can_rewind(const session *s, int pos);

/* Hash of pos, tokens and all defining KV rows. */
int session_hash(const session *s, uint64_t *out, ds4_err *e);

/* Checks the invariants; returns true so that it can stand inside an assert. */
bool session_assert(const session *s);

/* --- snapshot.c: save and load
 * ------------------------------------------------------------------------------------------------ File: magic, format
 * version, model identity, counts, tokens, every defining field's rows, CRC-32C per section. Written under a temporary
 * name and renamed. Load checks everything before the session is touched: a foreign, truncated or corrupt file is
 * refused (DS4_EFORMAT or DS4_EMODEL, one line; DS4_EARG if it holds more tokens than the context) and left alone; a
 * loaded session continues bit-identically to the one that was saved. It has no logits (session_sync feeds the last
 * token again) and absorbed = 0: the drafter's rings are made again from the restored taps. A file with taps loads into
 * a session without drafter, not the other way round. Should the file change or the device fail between check and load,
 * the session is left empty (poisoned). */
int session_save(const session *s, const char *path, ds4_err *e);
int session_load(session *s, const char *path, ds4_err *e);

#endif
