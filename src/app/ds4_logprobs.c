#include "app/ds4_logprobs.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"

int logprobs_open(logprobs *l, const char *path, const vocab *v, int top_k, ds4_err *e)
{
    *l = (logprobs){.v = v, .top_k = top_k < (int)vocab_size(v) ? top_k : (int)vocab_size(v)};
    l->best = malloc(((size_t)l->top_k + 1) * sizeof *l->best);
    if (!l->best)
        return ds4_fail(e, DS4_ENOMEM, "no memory for --dump-logprobs");
    int rc = fsio_begin(&l->w, path, e);
    l->open = !rc;
    if (rc)
        logprobs_close(l);
    return rc;
}

/* log of the sum of exp(logits), so that logit - it is a log probability. */
static double log_sum(const float *x, size_t n)
{
    double top = x[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (size_t i = 0; i < n; i++)
        sum += exp(x[i] - top);
    return top + log(sum);
}

static int find_best(logprobs *l, const float *x)
{
    int k = 0, n = (int)vocab_size(l->v);
    for (int i = 0; i < n && l->top_k; i++) {
        if (k == l->top_k && !(x[i] > x[l->best[k - 1]]))
            continue;
        int at = k < l->top_k ? k++ : k - 1;
        for (; at && x[i] > x[l->best[at - 1]]; at--)
            l->best[at] = l->best[at - 1];
        l->best[at] = i;
    }
    return k;
}

static json_t *describe(const logprobs *l, int32_t id, double logprob)
{
    size_t n;
    const char *p = vocab_bytes(l->v, id, &n);
    json_t *bytes = json_array(), *o = json_object();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(bytes, json_integer((unsigned char)p[i]));
    json_object_set_new(o, "id", json_integer(id));
    json_object_set_new(o, "text", utf8_check(p, n) == n ? json_stringn(p, n) : json_null());
    json_object_set_new(o, "bytes", bytes);
    json_object_set_new(o, "logprob", isfinite(logprob) ? json_real(logprob) : json_null());
    return o;
}

int logprobs_add(logprobs *l, int pos, int32_t id, const float *logits, ds4_err *e)
{
    double norm = log_sum(logits, vocab_size(l->v));
    json_t *top = json_array(), *o = json_object();
    json_object_set_new(o, "pos", json_integer(pos));
    json_t *own = describe(l, id, logits[id] - norm);
    json_object_update(o, own);
    json_decref(own);
    int k = find_best(l, logits);
    for (int i = 0; i < k; i++)
        json_array_append_new(top, describe(l, l->best[i], logits[l->best[i]] - norm));
    json_object_set_new(o, "top", top);
    char *line = json_dumps(o, JSON_REAL_PRECISION(9));
    json_decref(o);
    if (!line)
        return ds4_fail(e, DS4_ENOMEM, "no memory for --dump-logprobs");
    int rc = fsio_put(&l->w, line, strlen(line), e);
    if (!rc)
        rc = fsio_put(&l->w, "\n", 1, e);
    free(line);
    return rc;
}

int logprobs_commit(logprobs *l, ds4_err *e)
{
    l->open = false;
    return fsio_commit(&l->w, e);
}

void logprobs_close(logprobs *l)
{
    if (l->open)
        fsio_abort(&l->w);
    free(l->best);
    *l = (logprobs){0};
}
