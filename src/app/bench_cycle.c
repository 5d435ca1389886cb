/* bench_cycle.c: what the parts of a drafting cycle cost: forwards of 1 to 16 rows, the proposal and its parts.
 *
 * The rows are the text that follows, so that experts are chosen as in real use. Rounds go through all row counts one
 * after the other and ratios are taken within a round: a machine that slows down meanwhile changes them little. */
#include <stdlib.h>
#include <string.h>

#include "app/bench_run.h"
#include "app/cli_signal.h"

enum { PARTS = 7, CYCLES = 8 };

/* Seconds of each round. */
typedef struct round {
    double rows[BENCH_ROWS + 1], issued[BENCH_ROWS + 1]; /* [0] unused */
    ds4_proposal_times proposal;
    ds4_cycle_times cycle;
} round_times;

static int measure(bench *b, int i, round_times *r, ds4_err *e)
{
    const int32_t *next = b->text + b->point[i];
    for (int n = 1; n <= BENCH_ROWS; n++) {
        if (cli_signal_seen())
            return ds4_fail(e, DS4_ECANCEL, "stopped by Ctrl-C");
        int rc = ds4_bench_rows(b->ses, next, n, &r->rows[n], &r->issued[n], e);
        if (rc)
            return rc;
    }
    int rc = b->info.has_drafter ? ds4_bench_proposal(b->ses, next[0], &r->proposal, e) : 0;
    return rc || !b->info.has_drafter ? rc : ds4_bench_cycles(b->ses, next[0], CYCLES, &r->cycle, e);
}

/* Median over the rounds of what stands at `at`. */
static double over_rounds(const bench *b, const round_times *r, size_t at, double *room)
{
    for (int k = 0; k < b->o->repeat; k++)
        memcpy(&room[k], (const char *)&r[k] + at, sizeof *room);
    return bench_median(room, b->o->repeat);
}

/* The same, and the median of its ratio to the one-row forward of the same round. Forwards
 * are compared with the bytes they read if routing is even: ratio of bytes, ratio of ratios, experts read here. */
static void put_item(bench *b, int i, const char *item, int rows, const round_times *r, size_t at, double *room)
{
    const int n = b->o->repeat;
    const double seconds = over_rounds(b, r, at, room);
    double x, bytes = 0;
    char reads[80] = ",,";
    for (int k = 0; k < n; k++) {
        memcpy(&x, (const char *)&r[k] + at, sizeof x);
        room[k] = r[k].rows[1] > 0 ? x / r[k].rows[1] : 0;
    }
    const double ratio = bench_median(room, n);
    if (!strcmp(item, "forward")) {
        bytes = ds4_bench_rows_bytes(b->eng, rows) / ds4_bench_rows_bytes(b->eng, 1);
        snprintf(reads, sizeof reads, "%.3f,%.3f,%.1f", bytes, ratio / bytes, b->distinct[rows - 1]);
    }
    bench_put(b, "%d,%s,%d,%.4f,%.3f,%s", b->point[i], item, rows, seconds * 1e3, ratio, reads);
}

/* Cycles that verify a whole block; what of them is the host's. */
static void put_cycle(bench *b, int i, const round_times *r, double *room)
{
    const int rows = r[0].cycle.drafts + 1;
    const bool apart = strcmp(b->info.backend, "cpu") != 0; /* there the host is the device */
    put_item(b, i, "cycle", rows, r, offsetof(round_times, cycle.total), room);
    put_item(b, i, "cycle_propose", rows, r, offsetof(round_times, cycle.propose), room);
    put_item(b, i, "cycle_verify", rows, r, offsetof(round_times, cycle.verify), room);
    if (apart)
        put_item(b, i, "cycle_host", rows, r, offsetof(round_times, cycle.host), room);
    const double bytes = over_rounds(b, r, offsetof(round_times, cycle.bytes_to_host), room);
    if (apart)
        bench_put(b, "# context %d: a cycle takes %.1f us of the host and reads back %.0f bytes", b->point[i],
                  over_rounds(b, r, offsetof(round_times, cycle.host), room) * 1e6, bytes);
    else
        bench_put(b, "# context %d: a cycle reads back %.0f bytes", b->point[i], bytes);
}

static void put_point(bench *b, int i, const round_times *r, double *room)
{
    static const struct {
        const char *item;
        size_t at;
    } part[PARTS] = {
        {"proposal", offsetof(round_times, proposal.total)},
        {"prop_setup", offsetof(round_times, proposal.setup)},
        {"prop_chain", offsetof(round_times, proposal.chain)},
        {"prop_conf0", offsetof(round_times, proposal.conf0)},
        {"prop_logits", offsetof(round_times, proposal.logits)},
        {"prop_markov", offsetof(round_times, proposal.markov)},
        {"prop_confidence", offsetof(round_times, proposal.confidence)},
    };
    for (int n = 1; n <= BENCH_ROWS; n++)
        put_item(b, i, "forward", n, r, offsetof(round_times, rows) + (size_t)n * sizeof(double), room);
    if (strcmp(b->info.backend, "cpu")) /* there the host is the device */
        for (int n = 1; n <= BENCH_ROWS; n++)
            put_item(b, i, "issue", n, r, offsetof(round_times, issued) + (size_t)n * sizeof(double), room);
    for (int k = 0; k < PARTS && b->info.has_drafter; k++)
        put_item(b, i, part[k].item, b->info.draft_block, r, part[k].at, room);
    if (b->info.has_drafter)
        put_cycle(b, i, r, room);
}

int bench_cycle(bench *b, ds4_err *e)
{
    const int n = b->o->repeat;
    round_times *r = calloc((size_t)n, sizeof *r);
    double *room = malloc((size_t)n * sizeof *room), seconds;
    int rc = r && room ? 0 : ds4_fail(e, DS4_ENOMEM, "no memory for %d rounds", n);
    if (!rc)
        bench_put(b, "ctx_tokens,item,rows,ms,ratio,byte_ratio,over_bytes,experts");
    for (int i = 0; i < b->points && !rc; i++) {
        rc = bench_feed(b, i, NULL, &seconds, e);
        if (!rc)
            rc = ds4_bench_experts(b->ses, b->text + b->point[i], BENCH_ROWS, b->distinct, e);
        if (!rc)
            rc = measure(b, i, &r[0], e); /* warms up */
        for (int k = 0; k < n && !rc; k++)
            rc = measure(b, i, &r[k], e);
        if (!rc)
            put_point(b, i, r, room);
    }
    free(r);
    free(room);
    return rc;
}
