/* linear.c: several independent products over the same rows, in one launch. */
#include "backend/cpu/cpu.h"

enum { MAX_JOBS = 16, CHUNK = CPU_TILE /* outputs per task */, MAX_INPUTS = 4 };

typedef struct launch {
    const cpu *c;
    const be_linear *jobs;
    const cpu_act *input[MAX_JOBS]; /* of each job */
    int first[MAX_JOBS + 1];        /* first task of each job */
    int k, n;
} launch;

static void outputs(void *ctx, int task, int thread)
{
    (void)thread;
    const launch *l = ctx;
    int j = 0;
    while (task >= l->first[j + 1])
        j++;
    const be_linear *job = &l->jobs[j];
    int64_t per_group = job->w->ne1 / job->groups, chunks = (per_group + CHUNK - 1) / CHUNK;
    int group = (int)((task - l->first[j]) / chunks);
    int64_t in_group = (task - l->first[j]) % chunks * CHUNK, o = group * per_group + in_group;
    int count = (int)(per_group - in_group < CHUNK ? per_group - in_group : CHUNK), rows[CPU_MAX_ROWS];
    for (int r = 0; r < l->n; r++)
        rows[r] = r * job->groups + group;
    cpu_dots(l->c, job->w, 0, o, count, l->input[j], rows, l->n, job->y + o, (size_t)job->ldy);
}

static void run(cpu *c, launch *l)
{
    double work = 0;
    l->first[0] = 0;
    for (int j = 0; j < l->k; j++) {
        const be_weight *w = l->jobs[j].w;
        int groups = l->jobs[j].groups;
        l->first[j + 1] = l->first[j] + groups * (int)((w->ne1 / groups + CHUNK - 1) / CHUNK);
        work += (double)w->ne0 * (double)w->ne1 * l->n;
    }
    cpu_for(c, l->first[l->k], work, outputs, l);
}

/* Jobs with the same input share its quantised form. A launch ends where the room for inputs does. */
typedef struct inputs {
    cpu_act act[MAX_INPUTS];
    int count;
} inputs;

static const cpu_act *find(const inputs *in, const be_linear *job, int group)
{
    for (int i = 0; i < in->count; i++) {
        const cpu_act *a = &in->act[i];
        bool same_rows = a->x == job->x && a->ldx == (size_t)job->ldx && a->n == job->w->ne0 && a->parts == job->groups;
        if (same_rows && a->group == group)
            return a;
    }
    return NULL;
}

void cpu_linear(backend *b, int n, const be_linear *jobs, int k)
{
    cpu *c = cpu_of(b);
    while (k > 0 && cpu_ok(c)) {
        launch l = {.c = c, .jobs = jobs, .n = n};
        inputs in = {.count = 0};
        while (l.k < k && l.k < MAX_JOBS) {
            const be_linear *job = &jobs[l.k];
            int group = cpu_act_group(c, job->w->type);
            const cpu_act *a = find(&in, job, group);
            if (!a) {
                if (in.count == MAX_INPUTS)
                    break;
                cpu_act *fresh = &in.act[in.count];
                if (!cpu_act_make(c, fresh, group, job->x, (size_t)job->ldx, job->w->ne0, n * job->groups, job->groups,
                                  (enum cpu_scratch)(S_ACT_A + in.count)))
                    return;
                in.count++;
                a = fresh;
            }
            l.input[l.k++] = a;
        }
        run(c, &l);
        jobs += l.k;
        k -= l.k;
    }
}
