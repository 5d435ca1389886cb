#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "convert/hf.h"

static st_tensor *find_scale(st_set *s, const char *name)
{
    char buf[256];
    size_t n = strlen(name);
    if (n < 7 || n >= sizeof buf || strcmp(name + n - 7, ".weight"))
        return NULL;
    snprintf(buf, sizeof buf, "%.*s.scale", (int)(n - 7), name);
    return st_find(s, buf);
}

static bool has_shape(const st_tensor *t, uint64_t rows, uint64_t cols)
{
    if (rows == 0)
        return t->n_dims == 1 && t->shape[0] == cols;
    return t->n_dims == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

static int coding_of(const st_tensor *t, bool scaled)
{
    switch (t->dtype) {
    case ST_F8_E4M3: return scaled ? HF_FP8 : -1;
    case ST_I8: case ST_U8: return scaled ? HF_FP4 : -1;
    case ST_I32: case ST_I64: return scaled ? -1 : HF_IDS;
    case ST_F32: case ST_F16: case ST_BF16: return scaled ? -1 : HF_PLAIN;
    default: return -1;
    }
}

static const char *want_shape(uint64_t rows, uint64_t cols, char *buf, size_t n)
{
    if (rows)
        snprintf(buf, n, "[%llu, %llu]", (unsigned long long)rows, (unsigned long long)cols);
    else
        snprintf(buf, n, "[%llu]", (unsigned long long)cols);
    return buf;
}

/* The scale tensor must be E8M0 (or raw bytes, or float32 for FP8) of exactly the right grid. */
static int check_scale(const hf_weight *w, st_set *s, ds4_err *e)
{
    uint64_t r = w->coding == HF_FP8 ? (w->rows + 127) / 128 : w->rows;
    uint64_t c = w->coding == HF_FP8 ? (w->cols + 127) / 128 : w->cols / 32;
    const st_tensor *t = w->scale;
    char have[96], want[64];
    bool type_ok = t->dtype == ST_F8_E8M0 || t->dtype == ST_U8 || (w->coding == HF_FP8 && t->dtype == ST_F32);
    if (!type_ok || !has_shape(t, r, c))
        return ds4_fail(e, DS4_EMODEL, "%s: tensor %s: expected F8_E8M0 %s, found %s %s", st_file(s, t), t->name,
                        want_shape(r, c, want, sizeof want), st_dtype_name(t->dtype),
                        st_shape_str(t, have, sizeof have));
    return 0;
}

int hf_find_weight(hf_weight *out, st_set *s, const char *name, uint64_t rows, uint64_t cols, ds4_err *e)
{
    char have[96], want[64];
    st_tensor *t = st_find(s, name), *scale = find_scale(s, name);
    if (!t)
        return ds4_fail(e, DS4_EMODEL, "%s: tensor %s is missing (expected shape %s)",
                        st_count(s) ? st_file(s, st_at(s, 0)) : "checkpoint", name,
                        want_shape(rows, cols, want, sizeof want));
    hf_weight w = {.t = t, .scale = scale, .rows = rows ? rows : 1, .cols = cols};
    w.coding = coding_of(t, scale != NULL);
    if (w.coding < 0)
        return ds4_fail(e, DS4_EMODEL, "%s: tensor %s: dtype %s %s cannot be decoded", st_file(s, t), name,
                        st_dtype_name(t->dtype), scale ? "with a scale tensor" : "without a scale tensor");
    uint64_t stored = w.coding == HF_FP4 ? cols / 2 : cols;
    if (!has_shape(t, rows, stored) || (w.coding == HF_FP4 && cols % 32) || (scale && !rows))
        return ds4_fail(e, DS4_EMODEL, "%s: tensor %s: expected shape %s, found %s %s%s", st_file(s, t), name,
                        want_shape(rows, cols, want, sizeof want), st_dtype_name(t->dtype),
                        st_shape_str(t, have, sizeof have), w.coding == HF_FP4 ? " (two columns per byte)" : "");
    if (scale) {
        int rc = check_scale(&w, s, e);
        if (rc)
            return rc;
        scale->used = true;
    }
    t->used = true;
    *out = w;
    return 0;
}

static float load_f32(const uint8_t *p)
{
    float f;
    memcpy(&f, p, 4);
    return f;
}

static uint16_t load_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static void decode_plain(const hf_weight *w, uint64_t first, uint64_t n, float *dst)
{
    uint32_t size = st_dtype_bytes(w->t->dtype);
    const uint8_t *p = w->t->data + first * size;
    for (uint64_t i = 0; i < n; i++, p += size)
        dst[i] = size == 4 ? load_f32(p) : w->t->dtype == ST_F16 ? num_f16(load_u16(p)) : num_bf16(load_u16(p));
}

static void decode_fp8_row(const hf_weight *w, uint64_t row, float *dst)
{
    uint64_t blocks = (w->cols + 127) / 128;
    const uint8_t *p = w->t->data + row * w->cols;
    const uint8_t *s = w->scale->data + row / 128 * blocks * st_dtype_bytes(w->scale->dtype);
    for (uint64_t b = 0; b < blocks; b++) {
        float scale = w->scale->dtype == ST_F32 ? load_f32(s + 4 * b) : num_e8m0(s[b]);
        uint64_t end = b * 128 + 128 < w->cols ? b * 128 + 128 : w->cols;
        for (uint64_t i = b * 128; i < end; i++)
            dst[i] = num_e4m3(p[i]) * scale;
    }
}

static void decode_fp4_row(const hf_weight *w, uint64_t row, float *dst)
{
    const uint8_t *p = w->t->data + row * (w->cols / 2), *s = w->scale->data + row * (w->cols / 32);
    for (uint64_t i = 0; i < w->cols; i += 2) {
        float scale = num_e8m0(s[i / 32]);
        dst[i] = num_e2m1(p[i / 2] & 15) * scale;
        dst[i + 1] = num_e2m1(p[i / 2] >> 4) * scale;
    }
}

void hf_decode_rows(const hf_weight *w, uint64_t row0, uint64_t n, float *dst)
{
    if (w->coding == HF_PLAIN) {
        decode_plain(w, row0 * w->cols, n * w->cols, dst);
        return;
    }
    for (uint64_t r = 0; r < n; r++, dst += w->cols) {
        if (w->coding == HF_FP8)
            decode_fp8_row(w, row0 + r, dst);
        else
            decode_fp4_row(w, row0 + r, dst);
    }
}

uint64_t hf_repack_mxfp4(const hf_weight *w, uint64_t row0, uint64_t n, uint8_t *dst)
{
    uint64_t blocks = w->cols / 32;
    for (uint64_t r = row0; r < row0 + n; r++)
        for (uint64_t b = 0; b < blocks; b++, dst += 17) {
            const uint8_t *p = w->t->data + r * (w->cols / 2) + b * 16; /* byte c: columns 2c (low), 2c+1 (high) */
            dst[0] = w->scale->data[r * blocks + b];
            if (dst[0] == 255)
                return r;
            for (int i = 0; i < 16; i += 2) { /* MXFP4 byte j: columns j (low) and j+16 (high) */
                uint8_t lo = p[i / 2], hi = p[8 + i / 2];
                dst[1 + i] = (uint8_t)((lo & 15) | hi << 4);
                dst[2 + i] = (uint8_t)(lo >> 4 | (hi & 0xf0));
            }
        }
    return row0 + n;
}

int hf_decode_ids(const hf_weight *w, const st_set *s, int32_t *dst, uint32_t limit, ds4_err *e)
{
    uint64_t n = w->rows * w->cols;
    uint32_t size = st_dtype_bytes(w->t->dtype);
    for (uint64_t i = 0; i < n; i++) {
        int64_t v = 0;
        int32_t v32;
        if (size == 8) {
            memcpy(&v, w->t->data + 8 * i, 8);
        } else {
            memcpy(&v32, w->t->data + 4 * i, 4);
            v = v32;
        }
        if (v < 0 || v >= limit)
            return ds4_fail(e, DS4_EMODEL, "%s: tensor %s: id %lld at element %llu, expected 0..%u", st_file(s, w->t),
                            w->t->name, (long long)v, (unsigned long long)i, limit - 1);
        dst[i] = (int32_t)v;
    }
    return 0;
}
