#include "spec/stats.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct out {
    char *buf;
    size_t n, at;
} out;

__attribute__((format(printf, 2, 3))) static void put(out *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int k = vsnprintf(o->buf + o->at, o->n - o->at, fmt, ap);
    va_end(ap);
    if (k > 0)
        o->at += (size_t)k < o->n - o->at ? (size_t)k : o->n - o->at - 1;
}

static void put_count(out *o, const char *name, uint64_t v) { put(o, " %s=%llu", name, (unsigned long long)v); }
static void put_ms(out *o, const char *name, double seconds) { put(o, " %s=%.3f", name, seconds * 1e3); }

static void put_hist(out *o, const char *name, const uint64_t *h)
{
    int any = 0;
    put(o, " %s=", name);
    for (int i = 0; i < STATS_HIST; i++)
        if (h[i])
            put(o, "%s%d:%llu", any++ ? "," : "", i, (unsigned long long)h[i]);
    if (!any)
        put(o, "none");
}

static void put_counters(out *o, const ds4_stats *s)
{
    put_count(o, "cycles", s->cycles);
    put_count(o, "first_tokens", s->first_tokens);
    put_count(o, "proposed", s->proposed);
    put_count(o, "accepted_draft", s->accepted);
    put(o, " accept_rate=%.2f%%", s->proposed ? 100.0 * (double)s->accepted / (double)s->proposed : 0.0);
    put(o, " avg_accept=%.3f", s->cycles ? (double)s->accepted / (double)s->cycles : 0.0);
    put_count(o, "full", s->full);
    put_count(o, "partial", s->partial);
    put_count(o, "direct_full", s->full);
    put_count(o, "direct_partial", s->partial);
    put_count(o, "replay_fallbacks", 0);
    put_count(o, "miss_first", s->miss_first);
    put_count(o, "no_draft", s->no_draft);
    put_count(o, "no_room", s->no_room);
    put_count(o, "invalid", s->invalid);
    put_count(o, "scheduler_skips", s->scheduler_skips);
    put_count(o, "tail_skips", s->tail_skips);
    put_count(o, "verifier_unavailable", 0);
    put_count(o, "errors", s->errors);
    put_count(o, "gated", s->gated);
    put_count(o, "plain_steps", s->plain_steps);
    put_count(o, "verify_rows", s->verify_rows);
    put_count(o, "bytes_to_host", s->bytes_to_host);
    put_count(o, "device_cycles", s->device_cycles);
    put(o, " acceptance_length=%.3f", s->cycles ? 1.0 + (double)s->accepted / (double)s->cycles : 0.0);
}

static void put_times(out *o, const ds4_stats *s)
{
    put(o, " time_ms");
    put_ms(o, "propose", s->propose);
    put_ms(o, "prop_setup", s->setup);
    put_ms(o, "prop_chain", s->chain);
    put_ms(o, "prop_conf0", s->conf0);
    put_ms(o, "prop_logits", s->logits);
    put_ms(o, "prop_markov", s->markov);
    put_ms(o, "prop_confidence", s->confidence);
    put_ms(o, "snapshot", 0);
    put_ms(o, "verify", s->verify);
    put_ms(o, "replay", 0);
    put_ms(o, "spec_total", s->verify);
    put_ms(o, "target", s->target);
    put_ms(o, "host", s->host);
    put_ms(o, "saved", s->saved);
    put_ms(o, "net_saved", s->saved - s->spent);
}

size_t stats_line(const ds4_stats *s, char *buf, size_t n)
{
    out o = {buf, n, 0};
    if (n == 0)
        return 0;
    buf[0] = 0;
    if (!s->cycles)
        return 0;
    put(&o, "ds4: DSpark stats");
    put_counters(&o, s);
    put_times(&o, s);
    put_hist(&o, "draft_len_hist", s->draft_hist);
    put_hist(&o, "accepted_len_hist", s->accepted_hist);
    return o.at;
}
