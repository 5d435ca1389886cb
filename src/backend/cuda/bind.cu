/* bind.cu: weights from the mapped file into the device's layout. Rows travel as they are and are repacked on the
 * device, one thread for each unit of 32 elements. */
#include <string.h>

#include "backend/cuda/view.cuh"

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

/* --- rows of units into tiles: one thread for each lane of each chunk --- */

typedef struct tile_job {
    const uint8_t *from; /* packed rows of units; of F16 the file's rows */
    uint8_t *to;
    int64_t row; /* bytes between rows of `from` */
    uint32_t type;
    int ne0;
    const uint64_t *grid;
} tile_job;

DEV void pack_tile_f16(const tile_job &j, int64_t tile, int c, int lane, uint8_t *to)
{
    int g = lane / 4, t = lane % 4;
    const uint8_t *row[2] = {j.from + (TILE_ROWS * tile + g) * j.row, j.from + (TILE_ROWS * tile + g + 8) * j.row};
    for (int b = 0; b < 4; b++)
        for (int w = 0; w < 4; w++) {
            int k = 64 * c + 16 * b + 4 * t + 2 * (w / 2);
            put32(to + 512 * b + 16 * lane + 4 * w, load32(row[w % 2] + 2 * k));
        }
}

/* Eight codes below 16, in bytes of two words, as nibbles: first half low, second half high. */
DEV uint32_t split_nibbles(uint32_t lo, uint32_t hi)
{
    uint32_t w = 0;
    for (int i = 0; i < 4; i++)
        w |= (lo >> 8 * i & 15) << 4 * i | (hi >> 8 * i & 15) << (16 + 4 * i);
    return w;
}

DEV uint32_t mxfp4_codes(uint32_t bytes)
{
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        int v = (int8_t)(bytes >> 8 * i), m = v < 0 ? -v : v;
        int code = m < 5 ? m : m == 6 ? 5 : m == 8 ? 6 : 7;
        out |= (uint32_t)(code | (v < 0) << 3) << 8 * i;
    }
    return out;
}

/* Selector of four IQ2_XXS magnitudes with signs. */
DEV uint32_t iq2_codes(uint32_t bytes)
{
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        int v = (int8_t)(bytes >> 8 * i), m = v < 0 ? -v : v;
        out |= (uint32_t)((m == 8 ? 0 : m == 25 ? 1 : 2) | (v < 0) << 2) << 4 * i;
    }
    return out;
}

DEV uint32_t pairs_q2(uint32_t lo, uint32_t hi)
{
    uint32_t w = 0;
    for (int i = 0; i < 4; i++)
        w |= (lo >> 8 * i & 3) << 4 * i | (hi >> 8 * i & 3) << (4 * i + 2);
    return w;
}

/* Quants of block kb: v[up] are the two words of the lane's eight numbers of row g + 8 up. */
DEV void pack_tile_block(uint32_t type, int kb, int lane, const uint32_t (&v)[2][2], uint8_t *to)
{
    switch (type) {
    case Q_Q8_0:
        for (int w = 0; w < 4; w++)
            put32(to + 512 * kb + 16 * lane + 4 * w, v[w % 2][w / 2]);
        break;
    case Q_MXFP4:
    case Q_Q4_K:
        for (int up = 0; up < 2; up++)
            put32(to + 512 * (kb / 2) + 16 * lane + 8 * (kb % 2) + 4 * up,
                  type == Q_Q4_K ? v[up][0] | v[up][1] << 4
                                 : split_nibbles(mxfp4_codes(v[up][0]), mxfp4_codes(v[up][1])));
        break;
    case Q_Q2_K:
        put32(to + 512 * (kb / 4) + 16 * lane + 4 * (kb % 4), pairs_q2(v[0][0], v[0][1]) | pairs_q2(v[1][0], v[1][1])
                                                                                               << 16);
        break;
    default: {
        uint32_t sel[3] = {iq2_codes(v[0][0]), iq2_codes(v[1][0]), iq2_codes(v[0][1])}, last = iq2_codes(v[1][1]);
        for (int i = 0; i < 3; i++) {
            int at = 3 * kb + i;
            put16(to + 512 * (at / 8) + 16 * lane + 2 * (at % 8), sel[i] | (last >> i & 0x1111u) << 3);
        }
    }
    }
}

/* Scales of block kb of the rows g and g + 8, from the lane with t = 0; nibbles are gathered by the lane kb = 0. */
DEV void pack_tile_scales(uint32_t type, int kb, int g, int up, const unit &k, const uint8_t *unit_row, int ne0, int u,
                          uint8_t *to)
{
    int r = g + 8 * up;
    if (type == Q_Q8_0)
        put16(to + 2048 + 4 * (4 * g + kb) + 2 * up, load16(unit_row + ne0 + 2 * u));
    else if (type == Q_MXFP4)
        to[1024 + 2 * (4 * g + kb) + up] = unit_row[ne0 / 2 + u];
    else if (type == Q_Q4_K) {
        put16(to + 2048 + 8 * (4 * g + kb / 2) + 4 * up + 2 * (kb % 2), (uint32_t)(k.s[0] | k.m[0] << 8));
        if (kb == 0)
            put32(to + 2304 + 4 * r, load32(unit_row + ne0 / 2 + ne0 / 16 + 4 * (u / 8)));
    } else if (type == Q_Q2_K && kb == 0)
        put32(to + 1280 + 4 * r, load32(unit_row + ne0 / 4 + ne0 / 16 + 4 * (u / 8)));
    else if (type == Q_IQ2_XXS && kb == 0)
        put16(to + 1600 + 2 * r, load16(unit_row + ne0 / 4 + 2 * (u / 8)));
}

/* One block (32 threads) per chunk of a tile. */
static __global__ void pack_tiles(const tile_job j)
{
    int per = tile_inputs(j.type) / 32, chunks = j.ne0 / tile_inputs(j.type), lane = threadIdx.x, g = lane / 4;
    int64_t tile = blockIdx.x / chunks;
    int c = (int)(blockIdx.x % chunks), t = lane % 4;
    uint8_t *to = j.to + (int64_t)blockIdx.x * tile_chunk_bytes(j.type);
    if (j.type == Q_F16) {
        pack_tile_f16(j, tile, c, lane, to);
        return;
    }
    uint32_t s_nib[2][2] = {}, m_nib[2][4] = {}; /* Q2_K: scales by half, minimums by four; IQ2_XXS: scales in [.][0] */
    for (int kb = 0; kb < per; kb++) {
        uint32_t v[2][2];
        for (int up = 0; up < 2; up++) {
            unit k;
            const uint8_t *row = j.from + (TILE_ROWS * tile + g + 8 * up) * j.row;
            wview w = {row, j.grid, 1, j.row, j.ne0, j.type, false};
            any_unit(w, wrow{row, -1}, c * per + kb, k);
            v[up][0] = k.q[2 * t];
            v[up][1] = k.q[2 * t + 1];
            if (t == 0)
                pack_tile_scales(j.type, kb, g, up, k, row, j.ne0, c * per + kb, to);
            for (int h = 0; h < 2; h++) {
                uint32_t s = j.type == Q_IQ2_XXS ? (uint32_t)(k.s[0] - 1) / 2 : (uint32_t)k.s[h];
                s_nib[up][h] |= (s & 15) << 4 * kb;
                m_nib[up][(2 * kb + h) / 4] |= (uint32_t)(k.m[h] & 15) << 4 * ((2 * kb + h) % 4);
            }
        }
        pack_tile_block(j.type, kb, lane, v, to);
    }
    for (int up = 0; up < 2 && t == 0; up++) {
        int r = g + 8 * up;
        if (j.type == Q_IQ2_XXS)
            put32(to + 1536 + 4 * r, s_nib[up][0]);
        for (int h = 0; h < 2 && j.type == Q_Q2_K; h++)
            put32(to + 1024 + 4 * (2 * r + h), s_nib[up][h]);
        for (int i = 0; i < 4 && j.type == Q_Q2_K; i++)
            put16(to + 1152 + 8 * r + 2 * i, m_nib[up][i]);
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

/* Raw rows in device memory, a multiple of TILE_ROWS of them, into tiles; `units` has room for them as rows of units.
 */
static void tile_rows(gpu *g, const be_weight *w, const uint8_t *raw, uint8_t *units, uint8_t *to, int64_t rows)
{
    tile_job j = {raw, to, (int64_t)w->row_bytes, w->type, (int)w->ne0, g->grid};
    if (w->type != Q_F16) {
        j.from = units;
        j.row = unit_row_bytes(w->type, w->ne0);
        GPU_LAUNCH(g, repack, gpu_blocks(rows * (w->ne0 / 32), GPU_THREADS), GPU_THREADS, 0, raw, (int64_t)w->row_bytes,
                   units, j.row, w->type, (int)w->ne0, rows);
    }
    GPU_LAUNCH(g, pack_tiles, (unsigned)(rows / TILE_ROWS * (w->ne0 / tile_inputs(w->type))), GPU_WARP, 0, j);
}

size_t gpu_pack_room(const be_weight *w, int64_t rows) { return (size_t)(unit_row_bytes(w->type, w->ne0) * rows); }

void gpu_pack_rows(gpu *g, const be_weight *w, const uint8_t *raw, uint8_t *units, uint8_t *to, int64_t first,
                   int64_t rows)
{
    if (gpu_is_tiled(g, w)) {
        tile_rows(g, w, raw, units, to + first / TILE_ROWS * tile_bytes(w->type, w->ne0), rows);
        return;
    }
    int64_t stride = unit_row_bytes(w->type, w->ne0);
    to += first * stride;
    if (unit_is_float(w->type)) {
        if (gpu_ok(g))
            GPU_CHECK(g, cudaMemcpy2DAsync(to, (size_t)stride, raw, w->row_bytes, w->row_bytes, (size_t)rows,
                                           cudaMemcpyDeviceToDevice, g->stream));
        return;
    }
    GPU_LAUNCH(g, repack, gpu_blocks(rows * (w->ne0 / 32), GPU_THREADS), GPU_THREADS, 0, raw, (int64_t)w->row_bytes, to,
               stride, w->type, (int)w->ne0, rows);
}

static void send_packed(gpu *g, const be_weight *w, uint8_t *to, int64_t rows)
{
    size_t row = w->row_bytes;
    bool tiled = gpu_is_tiled(g, w);
    for (int64_t o = 0, count; o < rows; o += count) {
        size_t room;
        int64_t left = rows - o;
        int i = gpu_stage_take(g, row * (size_t)left, &room, true);
        if (i < 0)
            return;
        count = (int64_t)(room / row) < left ? (int64_t)(room / row) : left;
        count = tiled ? count / TILE_ROWS * TILE_ROWS : count;
        uint8_t *units = tiled ? (uint8_t *)gpu_scratch_get(g, G_PACK, gpu_pack_room(w, count)) : NULL;
        if (count <= 0 || (tiled && !units)) {
            gpu_fail(g, "tensor %s: a row of %zu bytes is too large", w->name, row);
            return;
        }
        memcpy(g->stage[i].p, (const char *)w->host + (size_t)o * row, (size_t)count * row);
        GPU_CHECK(g, cudaMemcpyAsync(g->stage_raw[i].p, g->stage[i].p, (size_t)count * row, cudaMemcpyHostToDevice,
                                     g->stream));
        gpu_pack_rows(g, w, (const uint8_t *)g->stage_raw[i].p, units, to, o, count);
        gpu_stage_give(g, i);
    }
}

size_t gpu_weight_bytes(backend *b, const be_weight *w)
{
    int64_t rows = w->ne1 * w->ne2;
    return (size_t)(gpu_is_tiled(gpu_of(b), w) ? rows / TILE_ROWS * tile_bytes(w->type, w->ne0)
                                               : rows * unit_row_bytes(w->type, w->ne0));
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
    if (__builtin_mul_overflow(w->ne1, w->ne2, &rows) || __builtin_mul_overflow(rows, 2 * stride, &bytes))
        return ds4_fail(e, DS4_EMODEL, "tensor %s: its size overflows", w->name);
    uint8_t *to = (uint8_t *)gpu_alloc(g, gpu_weight_bytes(b, w));
    if (to && unit_is_float(w->type) && !gpu_is_tiled(g, w))
        send_float(g, w, to, stride, rows);
    else if (to)
        send_packed(g, w, to, rows);
    if (!gpu_ok(g))
        return ds4_fail(e, DS4_EBACKEND, "tensor %s: %s", w->name, g->error.msg);
    w->data = to;
    return 0;
}
