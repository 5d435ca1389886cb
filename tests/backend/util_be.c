#include "backend/util_be.h"

#include "base/num.h"
#include "util/npy.h"

const uint32_t all_types[N_TYPES] = {Q_F32,  Q_F16,  Q_BF16, Q_Q8_0, Q_Q4_0,    Q_Q2_K,
                                     Q_Q3_K, Q_Q4_K, Q_Q5_K, Q_Q6_K, Q_IQ2_XXS, Q_MXFP4};

uint64_t rng_next(rng *g)
{
    uint64_t x = g->s += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

float rng_unit(rng *g) { return (float)(rng_next(g) >> 40) * 0x1p-24f; }

float rng_normal(rng *g)
{
    float s = 0;
    for (int i = 0; i < 12; i++)
        s += rng_unit(g);
    return s - 6;
}

int rng_below(rng *g, int n) { return (int)(rng_next(g) >> 33) % n; }

void fill_normal(rng *g, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rng_normal(g) * scale;
}

static void put16(uint8_t *p, float v)
{
    uint16_t h = num_to_f16(v);
    memcpy(p, &h, 2);
}

/* Random bits, then scales that make the values about `s` large. */
static void random_block(rng *g, uint32_t type, uint8_t *p, uint32_t bytes, float s)
{
    for (uint32_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(rng_next(g) >> 56);
    float v = s * (0.5f + rng_unit(g));
    switch (type) {
    case Q_F32: { float x = rng_normal(g) * s; memcpy(p, &x, 4); break; }
    case Q_F16: put16(p, rng_normal(g) * s); break;
    case Q_BF16: { uint16_t h = num_to_bf16(rng_normal(g) * s); memcpy(p, &h, 2); break; }
    case Q_Q8_0: put16(p, v / 70); break;
    case Q_Q4_0: put16(p, v / 5); break;
    case Q_Q2_K: put16(p + 80, v / 10); put16(p + 82, v / 10); break;
    case Q_Q3_K: put16(p + 108, v / 40); break;
    case Q_Q4_K: put16(p, v / 300); put16(p + 2, v / 40); break;
    case Q_Q5_K: put16(p, v / 600); put16(p + 2, v / 40); break;
    case Q_Q6_K: put16(p + 208, v / 1200); break;
    case Q_IQ2_XXS: put16(p, v / 60); break;
    case Q_MXFP4: p[0] = (uint8_t)(num_ceil_log2(v) + 126 + rng_below(g, 3)); break;
    default: break;
    }
}

be_weight make_weight(rng *g, uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2)
{
    const quant_info *q = quant_type_info(type);
    be_weight w = {.name = q->name, .type = type, .ne0 = ne0, .ne1 = ne1, .ne2 = ne2};
    assert_int_equal(ne0 % q->block, 0);
    size_t blocks = (size_t)(ne0 / q->block * ne1 * ne2);
    uint8_t *p = malloc(blocks * q->bytes); /* exact size: reading past the end is seen by the sanitizer */
    assert_non_null(p);
    for (size_t i = 0; i < blocks; i++)
        random_block(g, type, p + i * q->bytes, q->bytes, 1 / sqrtf((float)ne0));
    w.host = p;
    w.row_bytes = quant_row_bytes(type, (uint64_t)ne0);
    return w;
}

void free_weight(be_weight *w) { free((void *)w->host); }

void weight_row(const be_weight *w, int64_t slice, int64_t row, double *out)
{
    float *f = malloc((size_t)w->ne0 * sizeof *f);
    quant_decode(w->type, (const char *)w->host + (size_t)(slice * w->ne1 + row) * w->row_bytes, f, (uint64_t)w->ne0);
    for (int64_t i = 0; i < w->ne0; i++)
        out[i] = f[i];
    free(f);
}

be_weight bound(backend *b, const be_weight *w)
{
    be_weight k = *w;
    ds4_err e;
    assert_int_equal(b->op->bind(b, &k, &e), 0);
    return k;
}

backend *open_variant(enum variant v, enum be_act act, const be_dims *dims)
{
    backend_options o = {.name = "cpu", .threads = v == V_FAST3 ? 3 : 1, .act = act};
    backend *b;
    ds4_err e;
    if (backend_open(&b, &o, &e) != 0)
        fail_msg("%s", e.msg);
    if (dims)
        b->dims = *dims;
    if (v == V_PLAIN)
        cpu_force_plain(b);
    const cpu_kernels *usable[CPU_KERNELS];
    if (cpu_usable(usable) > 1 && v == V_SECOND)
        ((cpu *)b)->k = usable[1];
    ((cpu *)b)->small_work = 0;
    return b;
}

enum { GUARD = 16 };
static const float guard_value = 12345.678f;

float *dev_room(backend *b, size_t n)
{
    float edge[GUARD], *p = b->op->alloc(b, (n + 2 * GUARD) * sizeof *p);
    assert_non_null(p);
    for (int i = 0; i < GUARD; i++)
        edge[i] = guard_value;
    b->op->upload(b, p, edge, sizeof edge);
    b->op->upload(b, p + GUARD + n, edge, sizeof edge);
    return p + GUARD;
}

float *to_dev(backend *b, const float *host, size_t n)
{
    float *p = dev_room(b, n);
    b->op->upload(b, p, host, n * sizeof *p);
    return p;
}

int32_t *ints_to_dev(backend *b, const int32_t *host, size_t n)
{
    int32_t *p = b->op->alloc(b, n * sizeof *p);
    assert_non_null(p);
    b->op->upload(b, p, host, n * sizeof *p);
    return p;
}

void check_guards(backend *b, const float *dev, size_t n)
{
    float edge[2 * GUARD];
    b->op->download(b, edge, dev - GUARD, GUARD * sizeof *edge);
    b->op->download(b, edge + GUARD, dev + n, GUARD * sizeof *edge);
    for (int i = 0; i < 2 * GUARD; i++)
        if (edge[i] != guard_value)
            fail_msg("a number %s the buffer was overwritten", i < GUARD ? "before" : "behind");
}

void close_clean(backend *b)
{
    ds4_err e;
    if (b->op->sync(b, &e) != 0)
        fail_msg("%s", e.msg);
    b->op->close(b);
}

void reference_act(enum be_act act, uint32_t type, const float *x, int64_t n, double *out)
{
    const quant_info *q = quant_type_info(type);
    int group = act == BE_ACT_FLOAT || q->block == 1 ? 0 : (int)q->block;
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i];
    for (int64_t at = 0; group && at < n; at += group) {
        float amax = 0;
        for (int64_t i = at; i < at + group; i++)
            amax = fmaxf(amax, fabsf(x[i]));
        float d = amax / 127.0f, r = amax > 0 ? 1.0f / d : 0;
        for (int64_t i = at; i < at + group; i++)
            out[i] = nearbyint((double)(x[i] * r)) * d;
    }
}

void assert_close(double got, double want, double limit, const char *what, int at)
{
    if (!(fabs(got - want) <= limit))
        fail_msg("%s[%d] = %.9g, expected %.9g within %.2g", what, at, got, want, limit);
}

static void run_and_compare(row_op op, void *fx, backend *b, enum variant v, const int *which, int n, size_t width,
                            const float *want,
                            float *got)
{
    op(b, fx, which, n, got);
    for (int r = 0; r < n; r++)
        if (memcmp(got + (size_t)r * width, want + (size_t)which[r] * width, width * sizeof *got) != 0) {
            size_t k = 0;
            while (memcmp(got + (size_t)r * width + k, want + (size_t)which[r] * width + k, sizeof *got) == 0)
                k++;
            fail_msg("variant %d, %d rows: row %d (number %d of the pool) differs at %zu: %.9g, alone in plain C %.9g",
                     (int)v, n, r, which[r], k, got[(size_t)r * width + k], want[(size_t)which[r] * width + k]);
        }
}

void check_rows(row_op op, void *fx, size_t width, enum be_act act, const be_dims *dims, bool distinct)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 33, 64};
    float *want = calloc(POOL_ROWS * width, sizeof *want), *got = calloc(CPU_MAX_ROWS * width, sizeof *got);
    rng g = {77};
    for (int i = 0; i < POOL_ROWS; i++) {
        backend *b = open_variant(V_PLAIN, act, dims);
        op(b, fx, &i, 1, want + (size_t)i * width);
        close_clean(b);
    }
    for (enum variant v = V_PLAIN; v < N_VARIANTS; v++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes - (distinct ? 2 : 0); k++) {
            int which[CPU_MAX_ROWS], start = rng_below(&g, POOL_ROWS);
            for (int r = 0; r < sizes[k]; r++)
                which[r] = (r + start) % POOL_ROWS;
            for (int round = 0; round < 2; round++) {
                backend *b = open_variant(v, act, dims);
                run_and_compare(op, fx, b, v, which, sizes[k], width, want, got);
                close_clean(b);
                for (int r = sizes[k] - 1; r > 0; r--) { /* shuffle */
                    int o = rng_below(&g, r + 1), t = which[r];
                    which[r] = which[o];
                    which[o] = t;
                }
            }
        }
    free(want);
    free(got);
}

bool golden_tensor(const char *name, float *out, size_t n)
{
    char path[1000], key[200];
    uint64_t head = 0, from = 0;
    snprintf(path, sizeof path, "%s/oracle_a/model.safetensors", golden_dir());
    snprintf(key, sizeof key, "\"%s\"", name);
    FILE *f = fopen(path, "rb");
    if (!f || fread(&head, 8, 1, f) != 1 || head > 1 << 24) {
        if (f)
            fclose(f);
        return false;
    }
    char *json = calloc(1, head + 1), *at = NULL;
    if (fread(json, 1, head, f) == head && (at = strstr(json, key)) && (at = strstr(at, "\"data_offsets\":")))
        from = strtoull(strchr(at, '[') + 1, NULL, 10);
    bool ok = at && fseek(f, (long)(8 + head + from), SEEK_SET) == 0 && fread(out, 4, n, f) == n;
    free(json);
    fclose(f);
    return ok;
}
