#include <string.h>

#include "base/noise.h"
#include "spec/proposer.h"

static float chance(const double_proposer *d, int pos, uint32_t what)
{
    return noise_uniform(d->seed, (uint32_t)pos, what);
}

static int32_t any_token(const double_proposer *d, int pos, int vocab)
{
    int32_t t = (int32_t)(chance(d, pos, 2) * (float)vocab);
    return t < vocab ? t : vocab - 1;
}

static int double_propose(proposer *p, session *s, int32_t anchor, int max, float gate, const sample_params *sp,
                          proposal *out, ds4_err *e)
{
    double_proposer *d = (double_proposer *)p;
    const int vocab = s->m->s.dims.vocab;
    (void)anchor, (void)gate, (void)sp, (void)e;
    memset(out, 0, sizeof *out);
    int n = d->kind == DOUBLE_SHORT ? 1 : max;
    if (d->kind == DOUBLE_RANDOM)
        n = (int)(chance(d, s->pos, 0) * (float)(max + 1));
    for (int i = 0; i < n && i < p->most; i++) {
        int pos = s->pos + 1 + i, at = pos - d->start;
        bool known = at >= 0 && at < d->count;
        int32_t t = known ? d->truth[at] : any_token(d, pos, vocab);
        if (d->kind == DOUBLE_WRONG)
            t = (t + 1) % vocab;
        if (d->kind == DOUBLE_RANDOM && chance(d, pos, 1) > 0.7f)
            t = any_token(d, pos, vocab);
        out->draft[i] = t;
        out->conf[i] = 1.0f;
        out->n = i + 1;
    }
    return 0;
}

int double_open(double_proposer *d, const char *name, const int32_t *truth, int count, int start, ds4_stats *stats,
                ds4_err *e)
{
    static const char *const names[] = {"oracle", "wrong", "random", "short"};
    *d = (double_proposer){
        .base = {5, double_propose, NULL, stats}, .truth = truth, .count = count, .start = start, .seed = 1};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) {
            d->kind = (enum double_kind)i;
            return 0;
        }
    return ds4_fail(e, DS4_EARG, "test proposer '%s', expected oracle, wrong, random or short", name);
}
