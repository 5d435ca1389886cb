/* moe.c: routed and shared experts. Rows are grouped by expert, so that each expert's weights are read once per launch.
 *
 *   hidden[row][slot] = silu(min(gate x, clamp)) * clip(up x, clamp) * weight     slots: routed, then shared
 *   out[row]          = sum over slots of down hidden[row][slot], then the shared expert's */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

enum { CHUNK = CPU_TILE /* weight rows per task */ };

/* Rows that visit one expert. The shared expert is the last group. */
typedef struct group {
    const be_weight *gate, *up, *down;
    int64_t expert;
    int count;
    int row[CPU_MAX_ROWS];    /* token row */
    int hidden[CPU_MAX_ROWS]; /* its row among the routed (row*used + slot) or the shared hidden rows (row) */
} group;

typedef struct moe_job {
    cpu *c;
    const be_moe *m;
    const float *weights;
    int n, used, ff, d, groups, chunks;
    group *group;
    cpu_act in, shared_in;         /* x as the routed and as the shared gate and up want it */
    cpu_act mid, shared_mid;       /* hidden rows as down wants them */
    float *hidden, *shared_hidden; /* [n*used][ff], [n][ff] */
    float *sums;                   /* per thread: [n*used + n][CHUNK] */
    float *out;
} moe_job;

static bool is_shared(const moe_job *j, const group *g) { return g == j->group + j->groups - 1; }

static float swiglu(float g, float u, float clamp)
{
    g = g > clamp ? clamp : g;
    u = u > clamp ? clamp : u < -clamp ? -clamp : u;
    return g / (1 + expf(-g)) * u;
}

static void hidden_chunk(void *ctx, int task, int thread)
{
    (void)thread;
    moe_job *j = ctx;
    const group *g = &j->group[task / j->chunks];
    bool shared = is_shared(j, g);
    const cpu_act *in = shared ? &j->shared_in : &j->in;
    float clamp = shared ? j->m->sclamp : j->m->clamp, *hidden = shared ? j->shared_hidden : j->hidden;
    float gate[CPU_MAX_ROWS][CHUNK], up[CPU_MAX_ROWS][CHUNK];
    int f = task % j->chunks * CHUNK, count = j->ff - f < CHUNK ? j->ff - f : CHUNK;
    cpu_dots(j->c, g->gate, g->expert, f, count, in, g->row, g->count, gate[0], CHUNK);
    cpu_dots(j->c, g->up, g->expert, f, count, in, g->row, g->count, up[0], CHUNK);
    for (int k = 0; k < g->count; k++) {
        float *h = hidden + (size_t)g->hidden[k] * (size_t)j->ff + f, weight = shared ? 1 : j->weights[g->hidden[k]];
        for (int i = 0; i < count; i++)
            h[i] = swiglu(gate[k][i], up[k][i], clamp) * weight;
    }
}

/* A few outputs of every row: all experts into `sums`, then each row adds its slots in order. */
static void output_chunk(void *ctx, int task, int thread)
{
    moe_job *j = ctx;
    int from = task * CHUNK, len = j->d - from < CHUNK ? j->d - from : CHUNK, routed = j->n * j->used;
    float *sums = j->sums + (size_t)thread * (size_t)(CPU_MAX_ROWS * (j->used + 1) * CHUNK), y[CPU_MAX_ROWS][CHUNK];
    for (int i = 0; i < j->groups; i++) {
        const group *g = &j->group[i];
        bool shared = is_shared(j, g);
        const cpu_act *mid = shared ? &j->shared_mid : &j->mid;
        cpu_dots(j->c, g->down, g->expert, from, len, mid, g->hidden, g->count, y[0], CHUNK);
        for (int k = 0; k < g->count; k++)
            memcpy(sums + (g->hidden[k] + (shared ? routed : 0)) * CHUNK, y[k], (size_t)len * sizeof(float));
    }
    for (int r = 0; r < j->n; r++)
        for (int o = 0; o < len; o++) {
            float v = sums[r * j->used * CHUNK + o];
            for (int s = 1; s < j->used; s++)
                v += sums[(r * j->used + s) * CHUNK + o];
            j->out[(size_t)r * (size_t)j->d + (size_t)(from + o)] = v + sums[(routed + r) * CHUNK + o];
        }
}

static void add_to_group(group *g, int row, int hidden)
{
    g->row[g->count] = row;
    g->hidden[g->count++] = hidden;
}

/* One group per distinct expert in order of first visit (a second one if a table names an expert more than
 * CPU_MAX_ROWS times). */
static bool make_groups(moe_job *j, const int32_t *ids)
{
    const be_moe *m = j->m;
    for (int i = 0; i < j->n * j->used; i++) {
        if (ids[i] < 0 || ids[i] >= m->gate->ne2) {
            cpu_fail(j->c, "expert %d of %lld does not exist", ids[i], (long long)m->gate->ne2);
            return false;
        }
        int k = 0;
        while (k < j->groups && (j->group[k].expert != ids[i] || j->group[k].count == CPU_MAX_ROWS))
            k++;
        group *g = &j->group[k];
        if (k == j->groups) {
            *g = (group){.gate = m->gate, .up = m->up, .down = m->down, .expert = ids[i]};
            j->groups++;
        }
        add_to_group(g, i / j->used, i);
    }
    group *g = &j->group[j->groups++];
    *g = (group){.gate = m->sgate, .up = m->sup, .down = m->sdown};
    for (int r = 0; r < j->n; r++)
        add_to_group(g, r, r);
    return true;
}

/* Inputs of the routed and the shared weights; one quantised copy serves both when they want the same form. */
static bool make_inputs(moe_job *j, const float *x)
{
    cpu *c = j->c;
    int routed = cpu_act_group(c, j->m->gate->type), shared = cpu_act_group(c, j->m->sgate->type);
    if (!cpu_act_make(c, &j->in, routed, x, (size_t)j->d, j->d, j->n, 1, S_ACT_A))
        return false;
    j->shared_in = j->in;
    return shared == routed || cpu_act_make(c, &j->shared_in, shared, x, (size_t)j->d, j->d, j->n, 1, S_ACT_B);
}

static bool make_mids(moe_job *j)
{
    cpu *c = j->c;
    size_t wide = (size_t)j->used * (size_t)j->ff;
    int routed = cpu_act_group(c, j->m->down->type), shared = cpu_act_group(c, j->m->sdown->type);
    return cpu_act_make(c, &j->mid, routed, j->hidden, wide, j->ff, j->n * j->used, j->used, S_ACT_C) &&
           cpu_act_make(c, &j->shared_mid, shared, j->shared_hidden, (size_t)j->ff, j->ff, j->n, 1, S_ACT_D);
}

static bool make_room(moe_job *j)
{
    size_t rows = (size_t)CPU_MAX_ROWS * (size_t)(j->used + 1), ff = (size_t)j->ff;
    j->hidden = cpu_scratch(j->c, S_HIDDEN, rows * ff * sizeof(float));
    j->sums = cpu_scratch(j->c, S_SUM, (size_t)j->c->threads * rows * CHUNK * sizeof(float));
    j->group = cpu_scratch(j->c, S_GROUP, rows * sizeof(group));
    if (!j->hidden || !j->sums || !j->group)
        return false;
    j->shared_hidden = j->hidden + (size_t)(CPU_MAX_ROWS * j->used) * ff;
    return true;
}

void cpu_moe(backend *b, int n, const be_moe *m, const float *x, const int32_t *ids, const float *weights, float *out)
{
    cpu *c = cpu_of(b);
    const be_dims *s = &b->dims;
    moe_job j = {.c = c, .m = m, .weights = weights, .n = n, .used = s->used, .ff = s->ff, .d = s->d, .out = out};
    if (!cpu_ok(c) || n <= 0)
        return;
    if (m->gate->ne1 != s->ff || m->sgate->ne1 != s->ff || m->down->ne0 != s->ff || m->sdown->ne0 != s->ff) {
        cpu_fail(c, "experts of inner size %lld and %lld, expected %d", (long long)m->gate->ne1,
                 (long long)m->sgate->ne1, s->ff);
        return;
    }
    if (!make_room(&j) || !make_groups(&j, ids) || !make_inputs(&j, x))
        return;
    double work = (double)n * (s->used + 1) * s->ff * s->d;
    j.chunks = (s->ff + CHUNK - 1) / CHUNK;
    cpu_for(c, j.groups * j.chunks, 2 * work, hidden_chunk, &j);
    if (make_mids(&j))
        cpu_for(c, (s->d + CHUNK - 1) / CHUNK, work, output_chunk, &j);
}
