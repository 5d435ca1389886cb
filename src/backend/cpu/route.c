/* route.c: which experts a token visits, and their weights. */
#include <math.h>
#include <stdint.h>

#include "backend/cpu/cpu.h"

typedef struct gate_job {
    const cpu *c;
    const be_weight *gate;
    cpu_act act;
    double *logit; /* [n][experts] */
    int n;
} gate_job;

static void gate_logit(void *ctx, int e, int thread)
{
    (void)thread;
    const gate_job *j = ctx;
    double v[CPU_MAX_ROWS];
    cpu_dot_double(j->c, j->gate->type, cpu_row(j->gate, 0, e), &j->act, cpu_iota, j->n, v);
    for (int r = 0; r < j->n; r++)
        j->logit[(int64_t)r * j->gate->ne1 + e] = v[r];
}

/* sqrt(softplus(logit)); logit and softplus are rounded to float32, as the model has them, each from float64 */
static float router_score(double logit)
{
    double l = (float)logit;
    float softplus = (float)(l > 20 ? l : l < -20 ? exp(l) : log1p(exp(l)));
    return sqrtf(softplus);
}

/* The k largest of p + bias, best first, ties to the lower index; NaN only when nothing else is left. */
static void choose(const float *p, const float *bias, int experts, int k, int32_t *ids)
{
    for (int slot = 0; slot < k; slot++) {
        int best = -1;
        float top = 0;
        for (int e = 0; e < experts; e++) {
            bool taken = false;
            for (int s = 0; s < slot; s++)
                taken |= ids[s] == e;
            float v = p[e] + (bias ? bias[e] : 0);
            if (!taken && (best < 0 || v > top || (isnan(top) && !isnan(v)))) {
                best = e;
                top = v;
            }
        }
        ids[slot] = best;
    }
}

static bool ids_from_table(cpu *c, const int32_t *tid2eid, int32_t token, int32_t *ids)
{
    const be_dims *m = &c->base.dims;
    if (token < 0 || token >= m->vocab) {
        cpu_fail(c, "token %d is outside the vocabulary of %d", token, m->vocab);
        return false;
    }
    for (int s = 0; s < m->used; s++) {
        ids[s] = tid2eid[(size_t)token * (size_t)m->used + (size_t)s];
        if (ids[s] < 0 || ids[s] >= m->experts) {
            cpu_fail(c, "token %d is routed to expert %d of %d", token, ids[s], m->experts);
            return false;
        }
    }
    return true;
}

void cpu_route(backend *b, const be_rows *r, const float *x, const be_weight *gate, const float *bias,
               const int32_t *tid2eid, int32_t *ids, float *weights)
{
    cpu *c = cpu_of(b);
    const be_dims *m = &b->dims;
    if (!cpu_ok(c) || r->n <= 0)
        return;
    size_t experts = (size_t)m->experts;
    gate_job j = {.c = c, .gate = gate, .n = r->n};
    j.logit = cpu_scratch(c, S_MIX, experts * (CPU_MAX_ROWS * sizeof(double) + sizeof(float)));
    if (!j.logit || !cpu_act_make(c, &j.act, 0, x, (size_t)m->d, gate->ne0, r->n, 1, S_ACT_A))
        return;
    cpu_for(c, m->experts, (double)r->n * m->experts * m->d, gate_logit, &j);
    float *p = (float *)(j.logit + CPU_MAX_ROWS * experts);
    for (int i = 0; i < r->n; i++) {
        int32_t *id = ids + i * m->used;
        for (int e = 0; e < m->experts; e++)
            p[e] = router_score(j.logit[(size_t)i * experts + (size_t)e]);
        if (!tid2eid)
            choose(p, bias, m->experts, m->used, id);
        else if (!ids_from_table(c, tid2eid, r->token[i], id))
            return;
        double sum = 0;
        for (int s = 0; s < m->used; s++)
            sum += p[id[s]];
        for (int s = 0; s < m->used; s++)
            weights[i * m->used + s] = (float)(m->route_scale * (double)p[id[s]] / sum);
    }
}
