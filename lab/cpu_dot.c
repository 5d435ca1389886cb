/* cpu_dot.c: speed of the CPU backend's products by weight type and number of rows. Never linked into the product.
 *
 *   cc -O2 -std=gnu11 -ffp-contract=off -Iinclude -Isrc -o cpu_dot lab/cpu_dot.c \
 *      build/libbackend.a build/libfile.a build/libbase.a -lpthread -lm
 *   ./cpu_dot [inputs outputs threads]
 *
 * Each line: type, kernels, rows; the median of several rounds; multiply-adds and weight bytes per second; time
 * against one row. The kernels take turns within each round, so that a noisy machine disturbs them alike. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "base/num.h"
#include "file/quant.h"

enum { ROUNDS = 15, N_ROWS = 5 };
static const int row_counts[N_ROWS] = {1, 2, 4, 8, 16};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

/* Random bits with scales of 1, so that no product is NaN. */
static void *random_weights(uint32_t type, size_t bytes)
{
    const quant_info *q = quant_type_info(type);
    uint8_t *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    uint64_t s = 1;
    for (size_t i = 0; p && i < bytes; i++)
        p[i] = (uint8_t)((s = s * 6364136223846793005u + 1442695040888963407u) >> 56);
    static const int at[][3] = {{Q_Q8_0, 0, -1}, {Q_Q4_0, 0, -1}, {Q_Q2_K, 80, 82}, {Q_Q3_K, 108, -1}, {Q_Q4_K, 0, 2},
                                {Q_Q5_K, 0, 2},  {Q_Q6_K, 208, -1}, {Q_IQ2_XXS, 0, -1}, {Q_F16, 0, -1}, {Q_F32, 2, -1}};
    for (size_t i = 0; p && type == Q_MXFP4 && i < bytes; i += q->bytes)
        p[i] = 127;
    for (size_t k = 0; p && k < sizeof at / sizeof *at; k++)
        for (size_t i = 0; (uint32_t)at[k][0] == type && i < bytes; i += q->bytes)
            for (int f = 1; f < 3; f++)
                if (at[k][f] >= 0)
                    memcpy(p + i + at[k][f], &(uint16_t){0x3c00}, 2);
    return p;
}

static double time_once(backend *b, const be_linear *job, int n, int repeat)
{
    double t = now();
    for (int i = 0; i < repeat; i++)
        b->op->linear(b, n, job, 1);
    return (now() - t) / repeat;
}

static void bench(backend *b, uint32_t type, int64_t ne0, int64_t ne1)
{
    const cpu_kernels *usable[CPU_KERNELS];
    int kinds = cpu_usable(usable);
    be_weight w = {.name = "w", .type = type, .ne0 = ne0, .ne1 = ne1, .ne2 = 1};
    size_t bytes = quant_row_bytes(type, (uint64_t)ne0) * (size_t)ne1;
    w.host = random_weights(type, bytes);
    float *x = b->op->alloc(b, (size_t)(16 * ne0) * 4), *y = b->op->alloc(b, (size_t)(16 * ne1) * 4);
    for (int i = 0; i < 16 * ne0; i++)
        x[i] = sinf((float)i);
    if (!w.host || b->op->bind(b, &w, NULL))
        exit(1);
    be_linear job = {&w, x, y, (int)ne0, (int)ne1, 1};
    static double t[CPU_KERNELS][N_ROWS][ROUNDS];
    int repeat = (int)(2e7 / (double)(ne0 * ne1)) + 1;
    for (int r = 0; r < ROUNDS; r++)
        for (int k = 0; k < kinds; k++)
            for (int i = 0; i < N_ROWS; i++) {
                if (k == kinds - 1 && (row_counts[i] > 4 || r > 2)) {
                    t[k][i][r] = INFINITY; /* plain C is slow: few rounds of few rows */
                    continue;
                }
                ((cpu *)b)->k = usable[k];
                t[k][i][r] = time_once(b, &job, row_counts[i], k == kinds - 1 ? 1 : repeat);
            }
    for (int k = 0; k < kinds; k++) {
        double one = 0;
        for (int i = 0; i < N_ROWS; i++) {
            if (k == kinds - 1 && row_counts[i] > 4)
                continue;
            double v = median(t[k][i], k == kinds - 1 ? 3 : ROUNDS);
            one = i ? one : v;
            printf("%-8s %-13s n=%-2d %9.1f us %7.2f GMAC/s %7.2f GB/s  T(n)/T(1) %.2f\n", quant_type_name(type),
                   usable[k]->name, row_counts[i], v * 1e6, (double)(ne0 * ne1) * row_counts[i] / v * 1e-9,
                   (double)bytes / v * 1e-9, v / one);
        }
    }
    free((void *)w.host);
}

int main(int argc, char **argv)
{
    int64_t ne0 = argc > 1 ? atoll(argv[1]) : 4096, ne1 = argc > 2 ? atoll(argv[2]) : 2048;
    backend_options o = {.name = "cpu", .threads = argc > 3 ? atoi(argv[3]) : 0};
    o.act = argc > 4 ? BE_ACT_FLOAT : BE_ACT_Q8;
    backend *b;
    ds4_err e;
    if (backend_open(&b, &o, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    printf("%lld inputs, %lld outputs, %d threads\n", (long long)ne0, (long long)ne1, ((cpu *)b)->threads);
    static const uint32_t types[] = {Q_Q8_0, Q_IQ2_XXS, Q_Q2_K, Q_MXFP4, Q_Q4_K, Q_Q4_0, Q_Q3_K, Q_Q5_K, Q_Q6_K, Q_F16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        bench(b, types[i], ne0, ne1);
    b->op->close(b);
    return 0;
}
