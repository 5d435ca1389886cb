#include "spec/confidence.h"

#include <stdlib.h>

#include "file/quant.h"

int confidence_host(const model *m, const float *hidden, int32_t prev, float *z, ds4_err *e)
{
    const be_weight *w = &m->dw.confidence, *w1 = &m->dw.markov_w1;
    const int d = m->s.dims.d, rank = m->ds.rank;
    float *row = malloc(sizeof(float) * (size_t)(w->ne0 + w1->ne0));
    if (!row)
        return ds4_fail(e, DS4_ENOMEM, "no memory for the confidence row");
    float *markov = row + w->ne0;
    quant_decode(w->type, w->host, row, (uint64_t)w->ne0);
    quant_decode(w1->type, (const char *)w1->host + (size_t)prev * w1->row_bytes, markov, (uint64_t)w1->ne0);
    double sum = 0;
    for (int i = 0; i < d; i++)
        sum += (double)row[i] * (double)hidden[i];
    for (int i = 0; i < rank; i++)
        sum += (double)row[d + i] * (double)markov[i];
    free(row);
    *z = (float)sum;
    return 0;
}
