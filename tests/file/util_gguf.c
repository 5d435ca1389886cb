#include "util_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/quant.h"

void put(bytes *b, const void *data, size_t n)
{
    if (!n)
        return;
    b->p = realloc(b->p, b->n + n);
    if (!b->p)
        abort();
    memcpy(b->p + b->n, data, n);
    b->n += n;
}

void put_u32(bytes *b, uint32_t v) { put(b, &v, 4); }
void put_u64(bytes *b, uint64_t v) { put(b, &v, 8); }

void put_str(bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

void put_zeros(bytes *b, size_t n)
{
    uint8_t *zeros = calloc(n + 1, 1);
    put(b, zeros, n);
    free(zeros);
}

void put_pad(bytes *b, size_t align) { put_zeros(b, (align - b->n % align) % align); }

void put_header(bytes *b, uint64_t n_tensors, uint64_t n_kv)
{
    put(b, "GGUF", 4);
    put_u32(b, 3);
    put_u64(b, n_tensors);
    put_u64(b, n_kv);
}

void put_kv_u32(bytes *b, const char *key, uint32_t v) { put_kv_int(b, key, GGUF_U32, v); }

void put_kv_int(bytes *b, const char *key, uint32_t type, uint64_t v)
{
    static const uint8_t width[13] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 8, 8, 8, 8};
    put_str(b, key);
    put_u32(b, type);
    put(b, &v, type < 13 ? width[type] : 8);
}

void put_kv_f32(bytes *b, const char *key, float v)
{
    put_str(b, key);
    put_u32(b, GGUF_F32);
    put(b, &v, 4);
}

void put_kv_f64(bytes *b, const char *key, double v)
{
    put_str(b, key);
    put_u32(b, GGUF_F64);
    put(b, &v, 8);
}

void put_kv_str(bytes *b, const char *key, const char *v)
{
    put_str(b, key);
    put_u32(b, GGUF_STR);
    put_str(b, v);
}

void put_kv_arr(bytes *b, const char *key, uint32_t elem, uint64_t count)
{
    put_str(b, key);
    put_u32(b, GGUF_ARR);
    put_u32(b, elem);
    put_u64(b, count);
}

void put_tensor(bytes *b, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset)
{
    put_str(b, name);
    put_u32(b, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        put_u64(b, d < 4 ? ne[d] : 1);
    put_u32(b, type);
    put_u64(b, offset);
}

static void put_every_value_type(bytes *b)
{
    put_kv_int(b, "v.u8", GGUF_U8, 200);
    put_kv_int(b, "v.i8", GGUF_I8, (uint64_t)-100);
    put_kv_int(b, "v.u16", GGUF_U16, 60000);
    put_kv_int(b, "v.i16", GGUF_I16, (uint64_t)-30000);
    put_kv_int(b, "v.u32", GGUF_U32, 4000000000u);
    put_kv_int(b, "v.i32", GGUF_I32, (uint64_t)-2000000000);
    put_kv_int(b, "v.u64", GGUF_U64, UINT64_MAX);
    put_kv_int(b, "v.i64", GGUF_I64, (uint64_t)-5);
    put_kv_int(b, "v.bool", GGUF_BOOL, 1);
    put_kv_f32(b, "v.f32", 1.5f);
    put_kv_f64(b, "v.f64", 1e-20);
    put_kv_str(b, "v.str", "hello");
    put_kv_str(b, "v.empty", "");
}

bytes good_file(void)
{
    bytes b = {0};
    put_header(&b, 5, 18);
    put_kv_str(&b, "general.architecture", "deepseek4");
    put_kv_u32(&b, "general.alignment", 64);
    put_every_value_type(&b);
    put_kv_arr(&b, "a.i32", GGUF_I32, 3);
    put_u32(&b, 7);
    put_u32(&b, (uint32_t)-8);
    put_u32(&b, 9);
    put_kv_arr(&b, "a.str", GGUF_STR, 3);
    put_str(&b, "x");
    put_str(&b, "");
    put_str(&b, "zzz");
    put_kv_arr(&b, "a.none", GGUF_F32, 0);
    put_tensor(&b, "embd", 2, (uint64_t[]){32, 3}, Q_Q8_0, 0);                /* 102 bytes */
    put_tensor(&b, "norm", 1, (uint64_t[]){5}, Q_F32, 128);                  /* 20 */
    put_tensor(&b, "exps", 3, (uint64_t[]){256, 2, 2}, Q_IQ2_XXS, 192);      /* 264 */
    put_tensor(&b, "ids", 4, (uint64_t[]){2, 1, 2, 1}, Q_I64, 512);          /* 32 */
    put_tensor(&b, "fp4", 1, (uint64_t[]){32}, Q_MXFP4, 576);                /* 17 */
    put_pad(&b, 64);
    for (int i = 0; i < 576 + 17; i++)
        put(&b, &(uint8_t){(uint8_t)(i * 7)}, 1);
    return b;
}

static uint64_t use_kv(const gguf *g, const gguf_kv *kv)
{
    uint64_t sum = 0;
    size_t at = 0;
    gguf_str s;
    for (size_t i = 0; i < kv->key.n; i++)
        sum += (uint8_t)kv->key.p[i];
    while (gguf_next_str(kv, &at, &s))
        for (size_t i = 0; i < s.n; i++)
            sum += (uint8_t)s.p[i];
    for (uint64_t i = 0; kv->elem != GGUF_STR && i < kv->count; i++)
        sum += (uint64_t)gguf_arr_int(kv, i) + (gguf_arr_num(kv, i) > 1);
    char key[80];
    uint32_t u;
    float f;
    bool flag;
    snprintf(key, sizeof key, "%.*s", (int)(kv->key.n < 79 ? kv->key.n : 79), kv->key.p);
    ds4_err e;
    sum += (uint64_t)!gguf_get_u32(g, key, true, 1, 9, &u, &e) + (uint64_t)!gguf_get_f32(g, key, true, 0, 1, &f, &e);
    return sum + (uint64_t)!gguf_get_bool(g, key, false, &flag, &e) + (uint64_t)!gguf_get_str(g, key, false, &s, &e);
}

uint64_t use_everything(const gguf *g)
{
    uint64_t sum = gguf_file_bytes(g);
    for (size_t i = 0; i < gguf_n_kv(g); i++)
        sum += use_kv(g, gguf_kv_at(g, i));
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        const uint8_t *p = t->data;
        for (uint64_t k = 0; k < t->nbytes; k++)
            sum += p[k];
        const quant_info *q = quant_type_info(t->type);
        float y[256];
        if (q->is_float_like)
            quant_decode(t->type, p, y, q->block);
        sum += (uint64_t)q->block;
    }
    return sum + (gguf_find_tensor(g, "embd") != NULL);
}

void save(const char *path, bytes b)
{
    FILE *f = fopen(path, "wb");
    if (!f || (b.n && fwrite(b.p, 1, b.n, f) != b.n) || fclose(f))
        abort();
}

bytes copy_of(bytes b, size_t n)
{
    bytes c = {0};
    put(&c, b.p, n);
    return c;
}
