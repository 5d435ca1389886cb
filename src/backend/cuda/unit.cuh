/* unit.cuh: how weights lie in device memory, and how they are decoded.
 *
 * A quantised row is cut into units of 32 elements. A packed row holds the arrays of its units one after the other, so
 * that neighbouring lanes read neighbouring bytes and every load is aligned. With e = ne0:
 *
 *   Q8_0     q e bytes | d half per 32                       IQ2_XXS  8 bytes per unit as in the file | d half per 256
 *   Q4_0     nibbles e/2 | d half per 32                     MXFP4    nibbles e/2 | exponent byte per 32
 *   Q2_K     2 bits e/4 | (scale, min) nibbles e/16 | (d, dmin) halves per 256
 *   Q3_K     2 bits e/4 | high bits e/8 | scale int8 e/16 | d half per 256
 *   Q4_K     nibbles e/2 | (scale, min) bytes per 32 | (d, dmin) halves per 256
 *   Q5_K     nibbles e/2 | high bits e/8 | (scale, min) bytes per 32 | (d, dmin) halves per 256
 *   Q6_K     nibbles e/2 | 2 bits e/4 | scale int8 e/16 | d half per 256
 *   F32, F16, BF16   as in the file, zero behind the end
 *
 * Rows are padded to 32 bytes. Bits inside a unit, with word k = elements 4k..4k+3 as bytes:
 *   nibbles  four words n0..n3: word 2i is ni & 0x0f0f0f0f, word 2i+1 is ni >> 4 & 0x0f0f0f0f
 *   2 bits   two words w0, w1: word 4i+j is wi >> 2j & 0x03030303
 *   1 bit    one word h: word k is h >> k & 0x01010101
 *
 * The values are those of file/quant.c: element i of a unit is (d*s)*q - (dm*m) with both products exact in float32. */
#ifndef DS4_BACKEND_CUDA_UNIT_CUH
#define DS4_BACKEND_CUDA_UNIT_CUH

#include "backend/cuda/gpu.cuh"
#include "backend/cuda/num.cuh"

#define BOTH static __host__ __device__ __forceinline__

typedef struct unit {
    uint32_t q[8];  /* 32 int8 */
    int s[2], m[2]; /* integer scale and minimum of each half */
    float d, dm;
} unit;

/* A weight as kernels see it. */
typedef struct wview {
    const uint8_t *data;
    const uint64_t *grid;
    int64_t ne1, row; /* rows of a slice; bytes of a packed row, or of a tile */
    int ne0;
    uint32_t type;
    bool tiled; /* tile.cuh */
} wview;

/* One row of a weight: its bytes, or its tile and the place in it. */
typedef struct wrow {
    const uint8_t *p;
    int r; /* -1: not tiled */
} wrow;

BOTH bool unit_is_float(uint32_t type) { return type == Q_F32 || type == Q_F16 || type == Q_BF16; }

/* Elements per activation scale of an int8 product. */
BOTH int unit_group(uint32_t type)
{
    switch (type) {
    case Q_Q8_0:
    case Q_Q4_0:
    case Q_MXFP4:
        return 32;
    case Q_F32:
    case Q_F16:
    case Q_BF16:
        return 0;
    default:
        return 256;
    }
}

/* Bytes of the packed row of ne0 elements (a multiple of the type's block). */
BOTH int64_t unit_row_bytes(uint32_t type, int64_t ne0)
{
    int64_t e = ne0, bytes = 0;
    switch (type) {
    case Q_F32:
        bytes = 4 * e;
        break;
    case Q_F16:
    case Q_BF16:
        bytes = 2 * e;
        break;
    case Q_Q8_0:
        bytes = e + e / 16;
        break;
    case Q_Q4_0:
        bytes = e / 2 + e / 16;
        break;
    case Q_MXFP4:
        bytes = e / 2 + e / 32;
        break;
    case Q_Q2_K:
        bytes = e / 4 + e / 16 + e / 64;
        break;
    case Q_Q3_K:
        bytes = e / 4 + e / 8 + e / 16 + e / 128;
        break;
    case Q_Q4_K:
        bytes = e / 2 + e / 16 + e / 64;
        break;
    case Q_Q5_K:
        bytes = e / 2 + e / 8 + e / 16 + e / 64;
        break;
    case Q_Q6_K:
        bytes = e / 2 + e / 4 + e / 16 + e / 128;
        break;
    case Q_IQ2_XXS:
        bytes = e / 4 + e / 128;
        break;
    default:
        break;
    }
    return (bytes + 31) / 32 * 32;
}

DEV uint16_t load16(const uint8_t *p) { return *reinterpret_cast<const uint16_t *>(p); }
DEV uint32_t load32(const uint8_t *p) { return *reinterpret_cast<const uint32_t *>(p); }

DEV void set_scales(unit &k, float d, float dm, int s0, int s1, int m0, int m1)
{
    k.d = d;
    k.dm = dm;
    k.s[0] = s0;
    k.s[1] = s1;
    k.m[0] = m0;
    k.m[1] = m1;
}

DEV void load_nibbles(const uint8_t *p, uint32_t *q)
{
    uint4 n = *reinterpret_cast<const uint4 *>(p);
    uint32_t w[4] = {n.x, n.y, n.z, n.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[2 * i] = w[i] & 0x0f0f0f0fu;
        q[2 * i + 1] = w[i] >> 4 & 0x0f0f0f0fu;
    }
}

DEV void load_pairs(const uint8_t *p, uint32_t *q)
{
    uint2 n = *reinterpret_cast<const uint2 *>(p);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        q[j] = n.x >> 2 * j & 0x03030303u;
        q[4 + j] = n.y >> 2 * j & 0x03030303u;
    }
}

/* Every byte minus `low`, for bytes below 128. */
DEV uint32_t bytes_minus(uint32_t v, uint32_t low) { return ((v | 0x80808080u) - low) ^ 0x80808080u; }

/* MXFP4's doubled values of four codes (one per byte, below 16): magnitude by byte permutation, then the sign. */
DEV uint32_t mxfp4_bytes(uint32_t codes)
{
    uint32_t sel = codes & 0x07070707u;
    sel |= sel >> 4; /* two selectors in byte 0, two in byte 2 */
    sel = (sel & 0xffu) | (sel >> 8 & 0xff00u);
    uint32_t mag = __byte_perm(0x03020100u, 0x0c080604u, sel), mask = (codes >> 3 & 0x01010101u) * 255u;
    return (mag & ~mask) | (bytes_minus(0u, mag) & mask);
}

DEV void open_q8_0(const uint8_t *row, int ne0, int u, unit &k)
{
    uint4 a = *reinterpret_cast<const uint4 *>(row + 32 * u), b = *reinterpret_cast<const uint4 *>(row + 32 * u + 16);
    k.q[0] = a.x, k.q[1] = a.y, k.q[2] = a.z, k.q[3] = a.w;
    k.q[4] = b.x, k.q[5] = b.y, k.q[6] = b.z, k.q[7] = b.w;
    set_scales(k, half_value(load16(row + ne0 + 2 * u)), 0, 1, 1, 0, 0);
}

DEV void open_q4_0(const uint8_t *row, int ne0, int u, unit &k)
{
    load_nibbles(row + 16 * u, k.q);
#pragma unroll
    for (int i = 0; i < 8; i++)
        k.q[i] = bytes_minus(k.q[i], 0x08080808u);
    set_scales(k, half_value(load16(row + ne0 / 2 + 2 * u)), 0, 1, 1, 0, 0);
}

DEV void open_mxfp4(const uint8_t *row, int ne0, int u, unit &k)
{
    load_nibbles(row + 16 * u, k.q);
#pragma unroll
    for (int i = 0; i < 8; i++)
        k.q[i] = mxfp4_bytes(k.q[i]);
    set_scales(k, __fmul_rn(e8m0_value(row[ne0 / 2 + u]), 0.5f), 0, 1, 1, 0, 0);
}

DEV void open_q2_k(const uint8_t *row, int ne0, int u, unit &k)
{
    const uint8_t *sc = row + ne0 / 4, *d = sc + ne0 / 16 + 4 * (u / 8);
    load_pairs(row + 8 * u, k.q);
    uint32_t s = load16(sc + 2 * u), dd = load32(d);
    set_scales(k, half_value((uint16_t)dd), half_value((uint16_t)(dd >> 16)), s & 15, s >> 8 & 15, s >> 4 & 15,
               s >> 12);
}

DEV void open_q3_k(const uint8_t *row, int ne0, int u, unit &k)
{
    const uint8_t *high = row + ne0 / 4, *sc = high + ne0 / 8, *d = sc + ne0 / 16 + 2 * (u / 8);
    load_pairs(row + 8 * u, k.q);
    uint32_t h = load32(high + 4 * u), s = load16(sc + 2 * u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        k.q[i] = bytes_minus(k.q[i] | (h >> i & 0x01010101u) << 2, 0x04040404u);
    set_scales(k, half_value(load16(d)), 0, (int8_t)s, (int8_t)(s >> 8), 0, 0);
}

DEV void open_q4_k(const uint8_t *row, int ne0, int u, unit &k)
{
    const uint8_t *sc = row + ne0 / 2, *d = sc + ne0 / 16 + 4 * (u / 8);
    load_nibbles(row + 16 * u, k.q);
    uint32_t s = load16(sc + 2 * u), dd = load32(d);
    int scale = s & 255, low = s >> 8;
    set_scales(k, half_value((uint16_t)dd), half_value((uint16_t)(dd >> 16)), scale, scale, low, low);
}

DEV void open_q5_k(const uint8_t *row, int ne0, int u, unit &k)
{
    const uint8_t *high = row + ne0 / 2, *sc = high + ne0 / 8, *d = sc + ne0 / 16 + 4 * (u / 8);
    load_nibbles(row + 16 * u, k.q);
    uint32_t h = load32(high + 4 * u), s = load16(sc + 2 * u), dd = load32(d);
    int scale = s & 255, low = s >> 8;
#pragma unroll
    for (int i = 0; i < 8; i++)
        k.q[i] |= (h >> i & 0x01010101u) << 4;
    set_scales(k, half_value((uint16_t)dd), half_value((uint16_t)(dd >> 16)), scale, scale, low, low);
}

DEV void open_q6_k(const uint8_t *row, int ne0, int u, unit &k)
{
    const uint8_t *high = row + ne0 / 2, *sc = high + ne0 / 4, *d = sc + ne0 / 16 + 2 * (u / 8);
    uint32_t h[8], s = load16(sc + 2 * u);
    load_nibbles(row + 16 * u, k.q);
    load_pairs(high + 8 * u, h);
#pragma unroll
    for (int i = 0; i < 8; i++)
        k.q[i] = bytes_minus(k.q[i] | h[i] << 4, 0x20202020u);
    set_scales(k, half_value(load16(d)), 0, (int8_t)s, (int8_t)(s >> 8), 0, 0);
}

/* Four sign bits spread to four byte masks. */
DEV uint32_t sign_bytes(uint32_t bits)
{
    uint32_t one = (bits * 0x00204081u) & 0x01010101u;
    return one * 255u;
}

/* Magnitudes are never zero, so that ~v + 1 carries out of no byte. */
DEV uint32_t negated(uint32_t v, uint32_t mask) { return (v ^ mask) + (mask & 0x01010101u); }

DEV void open_iq2_xxs(const uint8_t *row, int ne0, int u, const uint64_t *grid, unit &k)
{
    uint2 w = *reinterpret_cast<const uint2 *>(row + 8 * u);
#pragma unroll
    for (int l = 0; l < 4; l++) {
        uint64_t v = grid[w.x >> 8 * l & 255];
        uint32_t bits = w.y >> 7 * l & 127;
        bits |= (__popc(bits) & 1) << 7; /* the eighth sign makes the count even */
        k.q[2 * l] = negated((uint32_t)v, sign_bytes(bits & 15));
        k.q[2 * l + 1] = negated((uint32_t)(v >> 32), sign_bytes(bits >> 4));
    }
    int s = (int)(2 * (w.y >> 28) + 1);
    set_scales(k, __fmul_rn(half_value(load16(row + ne0 / 4 + 2 * (u / 8))), 0.125f), 0, s, s, 0, 0);
}

/* Unit u of a packed row. */
template <uint32_t T> DEV void open_unit(const uint8_t *row, int ne0, int u, const uint64_t *grid, unit &k)
{
    if (T == Q_Q8_0)
        open_q8_0(row, ne0, u, k);
    else if (T == Q_Q4_0)
        open_q4_0(row, ne0, u, k);
    else if (T == Q_MXFP4)
        open_mxfp4(row, ne0, u, k);
    else if (T == Q_Q2_K)
        open_q2_k(row, ne0, u, k);
    else if (T == Q_Q3_K)
        open_q3_k(row, ne0, u, k);
    else if (T == Q_Q4_K)
        open_q4_k(row, ne0, u, k);
    else if (T == Q_Q5_K)
        open_q5_k(row, ne0, u, k);
    else if (T == Q_Q6_K)
        open_q6_k(row, ne0, u, k);
    else
        open_iq2_xxs(row, ne0, u, grid, k);
}

DEV float unit_value(const unit &k, int i)
{
    int q = (int8_t)(k.q[i / 4] >> 8 * (i % 4)), h = i / 16;
    return __fsub_rn(__fmul_rn(__fmul_rn(k.d, (float)k.s[h]), (float)q), __fmul_rn(k.dm, (float)k.m[h]));
}

#endif
