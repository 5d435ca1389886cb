#include "sample/sample.h"

#include <math.h>

#include "base/noise.h"

int sample_check(const sample_params *p, ds4_err *e)
{
    if (!(p->temp >= 0 && p->temp <= 100))
        return ds4_fail(e, DS4_EARG, "temperature is %g, expected 0 to 100", (double)p->temp);
    if (p->top_k < 0)
        return ds4_fail(e, DS4_EARG, "top-k is %d, expected 0 (off) or more", p->top_k);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return ds4_fail(e, DS4_EARG, "top-p is %g, expected above 0 to 1", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return ds4_fail(e, DS4_EARG, "min-p is %g, expected 0 to 1", (double)p->min_p);
    return 0;
}

bool sample_is_plain(const sample_params *p)
{
    return p->temp <= 0 || (p->top_k <= 0 && p->top_p >= 1 && p->min_p <= 0);
}

/* A heap with the best candidate on top: larger logit, then lower id. */
static bool better(sample_cand a, sample_cand b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

static void sift(sample_cand *h, int n, int i)
{
    for (;;) {
        int c = 2 * i + 1;
        if (c >= n)
            return;
        if (c + 1 < n && better(h[c + 1], h[c]))
            c++;
        if (!better(h[c], h[i]))
            return;
        sample_cand t = h[i];
        h[i] = h[c];
        h[c] = t;
        i = c;
    }
}

/* Moves the best of the n heap members to its end. */
static sample_cand pop(sample_cand *h, int n)
{
    sample_cand top = h[0];
    h[0] = h[n - 1];
    h[n - 1] = top;
    sift(h, n - 1, 0);
    return top;
}

static int gather(const float *logits, int vocab, sample_cand *room)
{
    int n = 0;
    for (int i = 0; i < vocab; i++)
        if (!isnan(logits[i]))
            room[n++] = (sample_cand){logits[i], i};
    return n;
}

static int32_t greedy(const float *logits, int vocab)
{
    int best = -1;
    for (int i = 0; i < vocab; i++)
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best]))
            best = i;
    return best < 0 ? 0 : best;
}

/* Keeps the best candidates in order until top-k, top-p or min-p says stop. They end up at the end of room, best last;
 * returns how many. */
static int filter(const sample_params *p, sample_cand *room, int n)
{
    for (int i = n / 2 - 1; i >= 0; i--)
        sift(room, n, i);
    const float top = room[0].logit;
    const int most = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    double total = 0, sum = 0;
    if (most < n) /* the k best leave the heap; they alone are what top-p is a share of */
        for (int i = 0; i < most; i++)
            total += exp((double)(pop(room, n - i).logit - top) / (double)p->temp);
    else
        for (int i = 0; i < n; i++)
            total += exp((double)(room[i].logit - top) / (double)p->temp);
    int kept = 0;
    while (kept < most && sum < (double)p->top_p * total) {
        sample_cand c = most < n ? room[n - 1 - kept] : room[0];
        double w = exp((double)(c.logit - top) / (double)p->temp);
        if (kept && w < (double)p->min_p)
            break;
        if (most == n)
            pop(room, n - kept);
        sum += w;
        kept++;
    }
    return kept;
}

int32_t sample_choose(const sample_params *p, const float *logits, int vocab, uint32_t pos, sample_cand *room)
{
    if (p->temp <= 0)
        return greedy(logits, vocab);
    int n = gather(logits, vocab, room), kept = n, from = 0;
    if (n == 0)
        return 0;
    if (!sample_is_plain(p)) {
        kept = filter(p, room, n);
        from = n - kept;
    }
    int32_t best = -1;
    float best_value = 0;
    for (int i = from; i < from + kept; i++) {
        float v = room[i].logit / p->temp + noise_gumbel(p->seed, pos, (uint32_t)room[i].id);
        if (best < 0 || v > best_value || (v == best_value && room[i].id < best)) {
            best = room[i].id;
            best_value = v;
        }
    }
    return best;
}
