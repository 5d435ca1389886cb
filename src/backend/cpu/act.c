/* act.c: activations of a product: float rows, and their int8 form with one scale per 32 or 256 numbers. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "file/quant.h"

int cpu_act_group(const cpu *c, uint32_t type)
{
    if (c->act == BE_ACT_FLOAT)
        return 0;
    switch (type) {
    case Q_Q8_0: case Q_Q4_0: case Q_MXFP4:
        return 32;
    case Q_Q2_K: case Q_Q3_K: case Q_Q4_K: case Q_Q5_K: case Q_Q6_K: case Q_IQ2_XXS:
        return 256;
    default:
        return 0;
    }
}

/* The three arrays lie one after the other in one piece of scratch, each at a multiple of 64 bytes. Sums take 1/8
 * byte per element in both forms: 4 bytes per 32, 2 bytes per 16. */
static size_t scale_bytes(int group, size_t elems) { return (elems / (size_t)group * sizeof(float) + 63) / 64 * 64; }

static void lay_out(cpu_act *a, char *p, size_t elems)
{
    char *sums = p + elems + scale_bytes(a->group, elems);
    a->q = (int8_t *)p;
    a->d = (float *)(p + elems);
    a->sum32 = a->group == 32 ? (int32_t *)sums : NULL;
    a->sum16 = a->group == 256 ? (int16_t *)sums : NULL;
}

typedef struct quantise_job {
    const cpu *c;
    cpu_act *a;
} quantise_job;

static void quantise_row(void *ctx, int r, int thread)
{
    (void)thread;
    const quantise_job *j = ctx;
    const cpu_act *a = j->a;
    const float *x = cpu_act_row(a, r);
    int64_t base = (int64_t)r * a->padded, i = 0;
    for (; i < a->n; i += a->group) {
        int64_t at = base + i;
        if (a->group == 32)
            j->c->k->quant32(x + i, a->q + at, a->d + at / 32, a->sum32 + at / 32);
        else
            j->c->k->quant256(x + i, a->q + at, a->d + at / 256, a->sum16 + at / 16);
    }
    for (; i < a->padded; i += 32) { /* only groups of 32 leave a tail */
        memset(a->q + base + i, 0, 32);
        a->d[(base + i) / 32] = 0;
        a->sum32[(base + i) / 32] = 0;
    }
}

bool cpu_act_make(cpu *c, cpu_act *a, int group, const float *x, size_t ldx, int64_t n, int rows, int parts,
                  enum cpu_scratch which)
{
    *a = (cpu_act){.n = n, .x = x, .ldx = ldx, .parts = parts, .group = group};
    if (!group)
        return true;
    a->padded = (n + 255) / 256 * 256;
    /* sized for a full forward, so that the number of rows at hand never makes it grow */
    size_t most = (size_t)CPU_MAX_ROWS * (size_t)parts * (size_t)a->padded;
    char *p = cpu_scratch(c, which, most + scale_bytes(group, most) + most / 8);
    if (!p)
        return false;
    lay_out(a, p, (size_t)rows * (size_t)a->padded);
    quantise_job j = {c, a};
    cpu_for(c, rows, (double)rows * (double)n, quantise_row, &j);
    return true;
}
