#include "backend/cuda/products.cuh"
void gpu_attend_narrow(gpu *g, const nattend *a)
{
    backend *b = &g->base;
    const be_dims *m = &b->dims;
    be_rows r = {a->r.n, a->max_pos, a->r.token, a->r.pos, a->r.seq, a->r.count};
    float *o = (float *)gpu_scratch_get(g, G_MID, (size_t)BE_NARROW * m->heads * m->head_dim * 4);
    if (!o) return;
    gpu_q_finish(b, &r, a->freq, (float *)a->q);
    be_attn at = {};
    at.q = a->q, at.o = o, at.raw = &a->raw, at.comp = a->comp.base ? &a->comp : NULL, at.ratio = a->ratio, at.sel = a->sel;
    at.sinks = a->sinks, at.freq = a->freq, at.block = a->block;
    gpu_attend(b, &r, &at);
    mm_forms f = {};
    f.q32 = a->out;
    gpu_make_forms(g, r.n, m->heads * m->head_dim, o, m->heads * m->head_dim, &f);
}
