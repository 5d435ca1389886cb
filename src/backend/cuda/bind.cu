/* bind.cu: weights from the mapped file into the device's layout. Rows travel as they are and are repacked on the
 * device, one thread for each unit of 32 elements. */
#include <string.h>

#include "backend/cuda/unit.cuh"

/* Unit u of a row, and where its parts go. */
typedef struct raw_row {
    const uint8_t *p; /* the row in the file's layout */
    uint8_t *to;      /* the packed row */
    int ne0, u;
} raw_row;

DEV void put16(uint8_t *p, uint32_t v) { *reinterpret_cast<uint16_t *>(p) = (uint16_t)v; }
DEV void put32(uint8_t *p, uint32_t v) { *reinterpret_cast<uint32_t *>(p) = v; }
DEV uint32_t byte16(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }

/* low[32]: one number per element */
DEV void put_nibbles(uint8_t *to, const uint8_t *low)
{
    for (int w = 0; w < 4; w++) {
        uint32_t v = 0;
        for (int i = 0; i < 4; i++)
            v |= (uint32_t)(low[8 * w + i] & 15) << 8 * i | (uint32_t)(low[8 * w + 4 + i] & 15) << (8 * i + 4);
        put32(to + 4 * w, v);
    }
}

DEV void put_pairs(uint8_t *to, const uint8_t *low)
{
    for (int w = 0; w < 2; w++) {
        uint32_t v = 0;
        for (int e = 0; e < 16; e++)
            v |= (uint32_t)(low[16 * w + e] & 3) << (8 * (e % 4) + 2 * (e / 4));
        put32(to + 4 * w, v);
    }
}

DEV void put_bits(uint8_t *to, const uint8_t *low)
{
    uint32_t v = 0;
    for (int e = 0; e < 32; e++)
        v |= (uint32_t)(low[e] & 1) << (8 * (e % 4) + e / 4);
    put32(to, v);
}

DEV void pack_q8_0(const raw_row &r)
{
    const uint8_t *b = r.p + 34 * r.u;
    for (int i = 0; i < 32; i++)
        r.to[32 * r.u + i] = b[2 + i];
    put16(r.to + r.ne0 + 2 * r.u, byte16(b));
}

/* Q4_0 and MXFP4: 16 bytes, low nibbles first half, high nibbles second half; a head of 2 or 1 bytes. */
DEV void pack_nibbles32(const raw_row &r, int head)
{
    const uint8_t *b = r.p + (16 + head) * r.u;
    uint8_t q[32];
    for (int i = 0; i < 16; i++) {
        q[i] = b[head + i] & 15;
        q[16 + i] = b[head + i] >> 4;
    }
    put_nibbles(r.to + 16 * r.u, q);
    if (head == 2)
        put16(r.to + r.ne0 / 2 + 2 * r.u, byte16(b));
    else
        r.to[r.ne0 / 2 + r.u] = b[0];
}

/* Q2_K: 16 scales, 64 bytes of quants, d, dmin */
DEV void pack_q2_k(const raw_row &r)
{
    const uint8_t *b = r.p + 84 * (r.u / 8), *q = b + 16 + 32 * (r.u % 8 / 4);
    uint8_t low[32], *sc = r.to + r.ne0 / 4, *d = sc + r.ne0 / 16 + 4 * (r.u / 8);
    for (int i = 0; i < 32; i++)
        low[i] = q[i] >> 2 * (r.u % 4);
    put_pairs(r.to + 8 * r.u, low);
    put16(sc + 2 * r.u, byte16(b + 2 * (r.u % 8)));
    if (r.u % 8 == 0)
        put32(d, byte16(b + 80) | byte16(b + 82) << 16);
}

/* Q3_K: 32 bytes of high bits, 64 of quants, 12 of scales, d */
DEV void pack_q3_k(const raw_row &r)
{
    const uint8_t *b = r.p + 110 * (r.u / 8), *q = b + 32 + 32 * (r.u % 8 / 4), *packed = b + 96;
    uint8_t low[32], *high = r.to + r.ne0 / 4, *sc = high + r.ne0 / 8, *d = sc + r.ne0 / 16 + 2 * (r.u / 8);
    for (int i = 0; i < 32; i++)
        low[i] = q[i] >> 2 * (r.u % 4);
    put_pairs(r.to + 8 * r.u, low);
    for (int i = 0; i < 32; i++)
        low[i] = b[i] >> (r.u % 8);
    put_bits(high + 4 * r.u, low);
    for (int i = 0; i < 2; i++) {
        int j = 2 * (r.u % 8) + i, l = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
        sc[2 * r.u + i] = (uint8_t)((l | (packed[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32);
    }
    if (r.u % 8 == 0)
        put16(d, byte16(b + 108));
}

/* Scale and minimum j of the 12 packed bytes of Q4_K and Q5_K, as two bytes. */
DEV uint32_t k4_scale(const uint8_t *packed, int j)
{
    if (j < 4)
        return (packed[j] & 63) | (uint32_t)(packed[j + 4] & 63) << 8;
    return ((packed[j + 4] & 15) | packed[j - 4] >> 6 << 4) | (uint32_t)(packed[j + 4] >> 4 | packed[j] >> 6 << 4) << 8;
}

/* Q4_K: d, dmin, 12 bytes of scales, 128 of quants. Q5_K: the same with 32 bytes of high bits before the quants. */
DEV void pack_q45_k(const raw_row &r, bool five)
{
    const uint8_t *b = r.p + (five ? 176 : 144) * (r.u / 8), *qh = b + 16,
                  *q = (five ? b + 48 : b + 16) + 32 * (r.u % 8 / 2);
    uint8_t low[32], *high = r.to + r.ne0 / 2, *sc = five ? high + r.ne0 / 8 : high;
    for (int i = 0; i < 32; i++)
        low[i] = q[i] >> 4 * (r.u % 2);
    put_nibbles(r.to + 16 * r.u, low);
    for (int i = 0; five && i < 32; i++)
        low[i] = qh[i] >> (r.u % 8);
    if (five)
        put_bits(high + 4 * r.u, low);
    put16(sc + 2 * r.u, k4_scale(b + 4, r.u % 8));
    if (r.u % 8 == 0)
        put32(sc + r.ne0 / 16 + 4 * (r.u / 8), byte16(b) | byte16(b + 2) << 16);
}

/* Q6_K: 128 bytes of low nibbles, 64 of high pairs, 16 scales, d */
DEV void pack_q6_k(const raw_row &r)
{
    const int half = r.u % 8 / 4, run = r.u % 4;
    const uint8_t *b = r.p + 210 * (r.u / 8), *ql = b + 64 * half + 32 * (run % 2), *qh = b + 128 + 32 * half;
    uint8_t low[32], *high = r.to + r.ne0 / 2, *sc = high + r.ne0 / 4, *d = sc + r.ne0 / 16 + 2 * (r.u / 8);
    for (int i = 0; i < 32; i++)
        low[i] = ql[i] >> 4 * (run / 2);
    put_nibbles(r.to + 16 * r.u, low);
    for (int i = 0; i < 32; i++)
        low[i] = qh[i] >> 2 * run;
    put_pairs(high + 8 * r.u, low);
    put16(sc + 2 * r.u, byte16(b + 192 + 2 * (r.u % 8)));
    if (r.u % 8 == 0)
        put16(d, byte16(b + 208));
}

DEV void pack_iq2_xxs(const raw_row &r)
{
    const uint8_t *b = r.p + 66 * (r.u / 8), *q = b + 2 + 8 * (r.u % 8);
    put32(r.to + 8 * r.u, byte16(q) | byte16(q + 2) << 16);
    put32(r.to + 8 * r.u + 4, byte16(q + 4) | byte16(q + 6) << 16);
    if (r.u % 8 == 0)
        put16(r.to + r.ne0 / 4 + 2 * (r.u / 8), byte16(b));
}

static __global__ void repack(const uint8_t *raw, int64_t raw_row_bytes, uint8_t *to, int64_t to_row_bytes,
                              uint32_t type, int ne0, int64_t rows)
{
    int units = ne0 / 32;
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, o = at / units;
    if (o >= rows)
        return;
    raw_row r = {raw + o * raw_row_bytes, to + o * to_row_bytes, ne0, (int)(at % units)};
    switch (type) {
    case Q_Q8_0:
        pack_q8_0(r);
        break;
    case Q_Q4_0:
        pack_nibbles32(r, 2);
        break;
    case Q_MXFP4:
        pack_nibbles32(r, 1);
        break;
    case Q_Q2_K:
        pack_q2_k(r);
        break;
    case Q_Q3_K:
        pack_q3_k(r);
        break;
    case Q_Q4_K:
        pack_q45_k(r, false);
        break;
    case Q_Q5_K:
        pack_q45_k(r, true);
        break;
    case Q_Q6_K:
        pack_q6_k(r);
        break;
    case Q_IQ2_XXS:
        pack_iq2_xxs(r);
        break;
    default:
        break;
    }
}

/* Rows of a float type: a strided copy; the padding is zero since allocations are. */
static void send_float(gpu *g, const be_weight *w, uint8_t *to, int64_t stride, int64_t rows)
{
    size_t row = w->row_bytes;
    if ((int64_t)row == stride) {
        gpu_upload(g, to, w->host, row * (size_t)rows);
        return;
    }
    for (int64_t o = 0, count; o < rows; o += count) {
        size_t room;
        int64_t left = rows - o;
        int i = gpu_stage_take(g, row * (size_t)left, &room, false);
        if (i < 0)
            return;
        count = (int64_t)(room / row) < left ? (int64_t)(room / row) : left;
        memcpy(g->stage[i].p, (const char *)w->host + (size_t)o * row, (size_t)count * row);
        GPU_CHECK(g, cudaMemcpy2DAsync(to + o * stride, (size_t)stride, g->stage[i].p, row, row, (size_t)count,
                                       cudaMemcpyHostToDevice, g->stream));
        gpu_stage_give(g, i);
    }
}

size_t gpu_weight_bytes(const be_weight *w) { return (size_t)(unit_row_bytes(w->type, w->ne0) * w->ne1 * w->ne2); }

size_t gpu_pack_room(const be_weight *w, int64_t rows) { return (size_t)(unit_row_bytes(w->type, w->ne0) * rows); }

void gpu_pack_rows(gpu *g, const be_weight *w, const uint8_t *raw, uint8_t *units, uint8_t *to, int64_t first,
                   int64_t rows)
{
    const int64_t stride = unit_row_bytes(w->type, w->ne0);
    (void)units;
    to += first * stride;
    if (!unit_is_float(w->type))
        GPU_LAUNCH(g, repack, gpu_blocks(rows * (w->ne0 / 32), GPU_THREADS), GPU_THREADS, 0, raw,
                   (int64_t)w->row_bytes, to, stride, w->type, (int)w->ne0, rows);
    else if (gpu_ok(g))
        GPU_CHECK(g, cudaMemcpy2DAsync(to, (size_t)stride, raw, w->row_bytes, w->row_bytes, (size_t)rows,
                                       cudaMemcpyDeviceToDevice, g->stream));
}

static void send_packed(gpu *g, const be_weight *w, uint8_t *to, int64_t rows)
{
    size_t row = w->row_bytes;
    for (int64_t o = 0, count; o < rows; o += count) {
        size_t room;
        int64_t left = rows - o;
        int i = gpu_stage_take(g, row * (size_t)left, &room, true);
        if (i < 0)
            return;
        count = (int64_t)(room / row) < left ? (int64_t)(room / row) : left;
        memcpy(g->stage[i].p, (const char *)w->host + (size_t)o * row, (size_t)count * row);
        GPU_CHECK(g, cudaMemcpyAsync(g->stage_raw[i].p, g->stage[i].p, (size_t)count * row, cudaMemcpyHostToDevice,
                                     g->stream));
        gpu_pack_rows(g, w, (const uint8_t *)g->stage_raw[i].p, NULL, to, o, count);
        gpu_stage_give(g, i);
    }
}

int gpu_bind(backend *b, be_weight *w, ds4_err *e)
{
    gpu *g = gpu_of(b);
    const quant_info *q = quant_type_info(w->type);
    if (!q || !q->is_float_like)
        return ds4_fail(e, DS4_EMODEL, "tensor %s: type %s cannot be multiplied on the GPU", w->name,
                        quant_type_name(w->type));
    if (w->ne0 <= 0 || w->ne1 <= 0 || w->ne2 <= 0 || w->ne0 % q->block || w->ne0 > 1 << 20)
        return ds4_fail(e, DS4_EMODEL, "tensor %s: shape %lld x %lld x %lld does not fit type %s (blocks of %u)",
                        w->name, (long long)w->ne0, (long long)w->ne1, (long long)w->ne2, q->name, q->block);
    w->row_bytes = quant_row_bytes(w->type, (uint64_t)w->ne0);
    int64_t stride = unit_row_bytes(w->type, w->ne0), rows, bytes;
    if (__builtin_mul_overflow(w->ne1, w->ne2, &rows) || __builtin_mul_overflow(rows, stride, &bytes))
        return ds4_fail(e, DS4_EMODEL, "tensor %s: its size overflows", w->name);
    uint8_t *to = (uint8_t *)gpu_alloc(g, (size_t)bytes);
    if (to && unit_is_float(w->type))
        send_float(g, w, to, stride, rows);
    else if (to)
        send_packed(g, w, to, rows);
    if (!gpu_ok(g))
        return ds4_fail(e, DS4_EBACKEND, "tensor %s: %s", w->name, g->error.msg);
    w->data = to;
    return 0;
}
