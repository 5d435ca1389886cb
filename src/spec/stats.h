/* stats.h: the economics of the drafting cycle. Times are seconds here and milliseconds in the printed line. */
#ifndef DS4_SPEC_STATS_H
#define DS4_SPEC_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STATS_HIST = 17 };

typedef struct ds4_stats {
    bool timing;                 /* fill prop_* parts (each needs a wait for the device) */
    uint64_t cycles;             /* cycles in which a proposal was wanted (drafting on) */
    uint64_t first_tokens;       /* anchors evaluated by those cycles */
    uint64_t proposed, accepted; /* drafts that entered verification; drafts accepted. accepted <= proposed */
    uint64_t full, partial;      /* cycles with drafts: all accepted; not all */
    uint64_t miss_first;         /* of the partial ones: not even the first */
    uint64_t no_draft;           /* a proposal was made and nothing was worth verifying */
    uint64_t gated;              /* of those: the first confidence said no before the head ran */
    uint64_t no_room, invalid, scheduler_skips, tail_skips, errors;
    uint64_t plain_steps;                                            /* one-row forwards among the cycles */
    uint64_t verify_rows;                                            /* rows of multi-row forwards */
    uint64_t bytes_to_host;                                          /* read back by the cycle */
    uint64_t device_cycles; /* cycles that ran without a visit to the host between anchor and choice */
    double propose, setup, chain, conf0, logits, markov, confidence; /* parts of the proposal */
    double verify, target; /* multi-row forwards, reading the choices included; one-row forwards */
    double host;           /* of the device's cycles: what the host did, its one wait left out */
    double saved, spent; /* plain time avoided, and what it took; without cycles whose plain time is not known yet */
    uint64_t draft_hist[STATS_HIST], accepted_hist[STATS_HIST];
} ds4_stats;

/* The line of DS4_DSPARK_STATS=1; returns its length (cut to n - 1), 0 if there was no cycle. */
size_t stats_line(const ds4_stats *s, char *buf, size_t n);

#endif
