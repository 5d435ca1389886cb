/* gguf_parse.c: header, metadata and tensor directory of one file. Nothing taken from the file is used before it was
 * compared with the file size; every failure names the place. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/gguf_part.h"
#include "file/quant.h"

typedef struct cursor {
    const gguf_part *part;
    size_t at;
    const char *what; /* "key" or "tensor", for messages; NULL in the header */
    gguf_str name;    /* the entry being read; empty before its name is known */
    ds4_err *e;
} cursor;

static const uint8_t type_bytes[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
static const char *const type_names[13] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array",
                                           "u64", "i64", "f64"};

gguf_text gguf_type_text(const gguf_kv *kv)
{
    gguf_text t;
    const char *el = type_names[kv->elem < 13 ? kv->elem : 0];
    snprintf(t.s, sizeof t.s, "%s%s", kv->type == GGUF_ARR ? "array of " : "", el);
    return t;
}

gguf_text gguf_show(gguf_str s)
{
    gguf_text t;
    size_t n = s.n < sizeof t.s - 4 ? s.n : sizeof t.s - 4;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        t.s[i] = c < 32 || c >= 127 ? '?' : (char)c;
    }
    memcpy(t.s + n, n < s.n ? "..." : "", n < s.n ? 4 : 1);
    return t;
}

/* "key 'general.name': " or nothing, as the start of a message */
static gguf_text entry(const cursor *c)
{
    gguf_text t = {""}, name = gguf_show(c->name);
    if (c->what && c->name.n)
        snprintf(t.s, sizeof t.s, "%s '%.80s': ", c->what, name.s);
    return t;
}

#define FAIL(c, fmt, ...) \
    (ds4_fail((c)->e, DS4_EFORMAT, "%s: %s" fmt, (c)->part->label, entry(c).s, __VA_ARGS__), DS4_EFORMAT)

static size_t left(const cursor *c) { return c->part->len - c->at; }

static int take(cursor *c, size_t n, const char *field, const uint8_t **p)
{
    if (n > left(c))
        return FAIL(c, "%s at byte %zu needs %zu bytes, the file ends at byte %zu: it is truncated or damaged, "
                    "download it again", field, c->at, n, c->part->len);
    *p = c->part->base + c->at;
    c->at += n;
    return 0;
}

static int take_u32(cursor *c, const char *field, uint32_t *out)
{
    const uint8_t *p;
    int rc = take(c, 4, field, &p);
    if (!rc)
        memcpy(out, p, 4);
    return rc;
}

static int take_u64(cursor *c, const char *field, uint64_t *out)
{
    const uint8_t *p;
    int rc = take(c, 8, field, &p);
    if (!rc)
        memcpy(out, p, 8);
    return rc;
}

static int take_str(cursor *c, const char *field, gguf_str *out)
{
    size_t from = c->at;
    uint64_t n;
    int rc = take_u64(c, field, &n);
    if (rc)
        return rc;
    if (n > left(c))
        return FAIL(c, "%s at byte %zu is said to be %" PRIu64 " bytes long, but only %zu bytes follow in the file: it "
                    "is truncated or damaged", field, from, n, left(c));
    out->p = (const char *)c->part->base + c->at;
    out->n = n;
    c->at += n;
    return 0;
}

static int take_name(cursor *c, const char *field, gguf_str *out)
{
    size_t from = c->at;
    int rc = take_str(c, field, out);
    if (rc)
        return rc;
    if (out->n == 0 || out->n > GGUF_MAX_NAME)
        return FAIL(c, "%s at byte %zu has %zu bytes, expected 1 to %d", field, from, out->n, GGUF_MAX_NAME);
    return 0;
}

/* Header */

static int check_magic(cursor *c)
{
    const gguf_part *p = c->part;
    static const char lfs[] = "version https://git-lfs";
    if (p->len >= sizeof lfs - 1 && !memcmp(p->base, lfs, sizeof lfs - 1))
        return FAIL(c, "%s", "this is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`");
    if (p->len < 24)
        return FAIL(c, "%zu bytes are too few for a GGUF file, whose header alone has 24", p->len);
    if (!memcmp(p->base, "FUGG", 4))
        return FAIL(c, "%s", "a big-endian GGUF file (magic \"FUGG\" at byte 0), only little-endian files can be read");
    if (memcmp(p->base, "GGUF", 4))
        return FAIL(c, "not a GGUF file: it starts with bytes %02x %02x %02x %02x, expected 47 47 55 46 (\"GGUF\")",
                    p->base[0], p->base[1], p->base[2], p->base[3]);
    c->at = 4;
    return 0;
}

static int check_version(cursor *c)
{
    uint32_t v;
    int rc = take_u32(c, "version", &v);
    if (rc)
        return rc;
    if (v && !(v & 0xffffu))
        return FAIL(c, "a big-endian GGUF file (version 0x%08x at byte 4), only little-endian files can be read", v);
    if (v != 3)
        return FAIL(c, "GGUF version %u at byte 4, only version 3 can be read: convert the model with a current tool",
                    v);
    return 0;
}

/* A count can be no larger than the entries that would fit into the rest of the file. */
static int take_count(cursor *c, const char *field, size_t smallest, size_t *out)
{
    size_t from = c->at;
    uint64_t n;
    int rc = take_u64(c, field, &n);
    if (rc)
        return rc;
    size_t most = left(c) / smallest;
    if (most > GGUF_MAX_ENTRIES)
        most = GGUF_MAX_ENTRIES;
    if (n > most)
        return FAIL(c, "%s at byte %zu is %" PRIu64 ", but a file of %zu bytes holds at most %zu: it is truncated or "
                    "damaged", field, from, n, c->part->len, most);
    *out = n;
    return 0;
}

/* Metadata */

static int check_bools(cursor *c, const gguf_kv *kv)
{
    for (size_t i = 0; i < kv->bytes; i++)
        if (kv->data[i] > 1)
            return FAIL(c, "a bool at byte %zu is %u, expected 0 or 1", (size_t)(kv->data + i - c->part->base),
                        kv->data[i]);
    return 0;
}

static int take_values(cursor *c, gguf_kv *kv)
{
    size_t from = c->at, unit = kv->elem == GGUF_STR ? 8 : type_bytes[kv->elem];
    if (kv->count > left(c) / unit)
        return FAIL(c, "%" PRIu64 " values of type %s at byte %zu do not fit into the %zu bytes that follow: the file "
                    "is truncated or damaged", kv->count, type_names[kv->elem], from, left(c));
    kv->data = c->part->base + from;
    if (kv->elem != GGUF_STR)
        c->at += kv->count * unit;
    for (uint64_t i = 0; kv->elem == GGUF_STR && i < kv->count; i++) {
        gguf_str s;
        int rc = take_str(c, "a string", &s);
        if (rc)
            return rc;
    }
    kv->bytes = c->at - from;
    return kv->elem == GGUF_BOOL ? check_bools(c, kv) : 0;
}

static int take_kv(cursor *c, gguf_kv *kv)
{
    c->name = (gguf_str){NULL, 0};
    int rc = take_name(c, "a key", &kv->key);
    if (rc)
        return rc;
    c->name = kv->key;
    size_t type_at = c->at;
    if ((rc = take_u32(c, "value type", &kv->type)))
        return rc;
    if (kv->type > GGUF_F64)
        return FAIL(c, "value type %u at byte %zu is unknown, expected 0 to 12", kv->type, type_at);
    kv->elem = kv->type;
    kv->count = 1;
    if (kv->type == GGUF_ARR) {
        type_at = c->at;
        if ((rc = take_u32(c, "element type", &kv->elem)) || (rc = take_u64(c, "element count", &kv->count)))
            return rc;
        if (kv->elem == GGUF_ARR)
            return FAIL(c, "an array of arrays at byte %zu, which no known model uses", type_at);
        if (kv->elem > GGUF_F64)
            return FAIL(c, "element type %u at byte %zu is unknown, expected 0 to 12", kv->elem, type_at);
    }
    return take_values(c, kv);
}

static int take_metadata(gguf_part *part, cursor *c, size_t n)
{
    part->kv = calloc(n ? n : 1, sizeof *part->kv);
    if (!part->kv)
        return ds4_fail(c->e, DS4_ENOMEM, "%s: no memory for %zu metadata entries", part->label, n);
    int rc = gguf_index_init(&part->kv_index, n, c->e);
    c->what = "key";
    for (size_t i = 0; !rc && i < n; i++) {
        gguf_kv *kv = &part->kv[i];
        size_t from = c->at;
        if ((rc = take_kv(c, kv)))
            break;
        part->n_kv++;
        if (gguf_index_add(&part->kv_index, &kv->key))
            rc = FAIL(c, "occurs a second time at byte %zu; every key may occur once", from);
    }
    return rc;
}

static int find_alignment(const gguf_part *part, cursor *c, uint32_t *align)
{
    *align = 32;
    static const char key[] = "general.alignment";
    const gguf_kv *kv = (const gguf_kv *)gguf_index_find(&part->kv_index, key, sizeof key - 1);
    if (!kv)
        return 0;
    c->name = kv->key;
    if (kv->type != GGUF_U32)
        return FAIL(c, "has type %s, expected u32", gguf_type_text(kv).s);
    memcpy(align, kv->data, 4);
    if (*align < 8 || *align > 1u << 20 || (*align & (*align - 1)))
        return FAIL(c, "is %u at byte %zu, expected a power of two from 8 to 1048576", *align,
                    (size_t)(kv->data - part->base));
    return 0;
}

/* Tensor directory */

static int take_shape(cursor *c, gguf_tensor *t, uint64_t *elements)
{
    size_t from = c->at;
    int rc = take_u32(c, "number of dimensions", &t->n_dims);
    if (rc)
        return rc;
    if (t->n_dims < 1 || t->n_dims > 4)
        return FAIL(c, "%u dimensions at byte %zu, expected 1 to 4", t->n_dims, from);
    *elements = 1;
    for (uint32_t d = 0; d < 4; d++)
        t->ne[d] = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        from = c->at;
        if ((rc = take_u64(c, "a dimension", &t->ne[d])))
            return rc;
        if (t->ne[d] == 0)
            return FAIL(c, "dimension %u at byte %zu is zero", d, from);
        if (__builtin_mul_overflow(*elements, t->ne[d], elements) || *elements > INT64_MAX)
            return FAIL(c, "dimension %u at byte %zu is %" PRIu64 ", the number of elements exceeds 2^63", d, from,
                        t->ne[d]);
    }
    return 0;
}

/* Checks type and block size and computes nbytes. */
static int take_type(cursor *c, gguf_tensor *t, uint64_t elements)
{
    size_t from = c->at;
    int rc = take_u32(c, "tensor type", &t->type);
    if (rc)
        return rc;
    const quant_info *q = quant_type_info(t->type);
    if (!q)
        return FAIL(c, "tensor type %u (%s) at byte %zu is not supported", t->type, quant_type_name(t->type), from);
    if (t->ne[0] % q->block)
        return FAIL(c, "its first dimension is %" PRIu64 ", expected a multiple of %u, the block of type %s", t->ne[0],
                    q->block, q->name);
    if (__builtin_mul_overflow(elements / q->block, (uint64_t)q->bytes, &t->nbytes) || t->nbytes > INT64_MAX)
        return FAIL(c, "%" PRIu64 " elements of type %s exceed 2^63 bytes", elements, q->name);
    return 0;
}

/* Until the directory ends, t->data is not known; *offset is relative to the data section. */
static int take_tensor(cursor *c, gguf_tensor *t, uint32_t align, uint64_t *offset)
{
    c->name = (gguf_str){NULL, 0};
    int rc = take_name(c, "a tensor name", &t->name);
    if (rc)
        return rc;
    c->name = t->name;
    uint64_t elements;
    if ((rc = take_shape(c, t, &elements)) || (rc = take_type(c, t, elements)))
        return rc;
    size_t from = c->at;
    if ((rc = take_u64(c, "data offset", offset)))
        return rc;
    if (*offset % align)
        return FAIL(c, "data offset %" PRIu64 " at byte %zu is not a multiple of the alignment %u", *offset, from,
                    align);
    return 0;
}

/* Turns offsets into pointers. Reports the tensor that reaches furthest, since its end is the size the file should
 * have. */
static int place_tensors(gguf_part *part, cursor *c, const uint64_t *offset)
{
    uint64_t furthest = 0;
    const gguf_tensor *last = NULL;
    for (size_t i = 0; i < part->n_tensors; i++) {
        gguf_tensor *t = &part->tensor[i];
        uint64_t end;
        if (__builtin_add_overflow(offset[i], (uint64_t)part->data_at, &end) ||
            __builtin_add_overflow(end, t->nbytes, &end))
            end = UINT64_MAX;
        if (end > furthest) {
            furthest = end;
            last = t;
        }
    }
    if (furthest > part->len && part->outline)
        part->whole = furthest;
    else if (furthest > part->len)
        return ds4_fail(c->e, DS4_EFORMAT, "%s: file is truncated: tensor '%s' ends at byte %" PRIu64 ", file has %zu: "
                        "download it again", part->label, gguf_show(last->name).s, furthest, part->len);
    for (size_t i = 0; i < part->n_tensors; i++) {
        gguf_tensor *t = &part->tensor[i];
        const bool there = offset[i] <= part->len && t->nbytes <= part->len &&
                           part->data_at + offset[i] + t->nbytes <= part->len;
        t->data = there ? part->base + part->data_at + offset[i] : NULL;
    }
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const gguf_tensor *x = *(const gguf_tensor *const *)a, *y = *(const gguf_tensor *const *)b;
    return (x->data > y->data) - (x->data < y->data);
}

static int check_overlap(const gguf_part *part, cursor *c)
{
    size_t n = part->n_tensors;
    const gguf_tensor **order = calloc(n ? n : 1, sizeof *order);
    if (!order)
        return ds4_fail(c->e, DS4_ENOMEM, "%s: no memory to check %zu tensors", part->label, n);
    for (size_t i = 0; i < n; i++)
        order[i] = &part->tensor[i];
    qsort(order, n, sizeof *order, by_place);
    int rc = 0;
    for (size_t i = 1; !rc && i < n; i++) {
        const uint8_t *a = order[i - 1]->data, *b = order[i]->data;
        if (order[i - 1]->nbytes > (uint64_t)(b - a))
            rc = ds4_fail(c->e, DS4_EFORMAT, "%s: tensors '%s' and '%s' overlap at byte %zu of the file: it is damaged",
                          part->label, gguf_show(order[i - 1]->name).s, gguf_show(order[i]->name).s,
                          (size_t)(b - part->base));
    }
    free(order);
    return rc;
}

static int take_directory(gguf_part *part, int id, cursor *c, size_t n, uint32_t align)
{
    uint64_t *offset = calloc(n ? n : 1, sizeof *offset);
    part->tensor = calloc(n ? n : 1, sizeof *part->tensor);
    int rc = 0;
    if (!offset || !part->tensor)
        rc = ds4_fail(c->e, DS4_ENOMEM, "%s: no memory for %zu tensors", part->label, n);
    c->what = "tensor";
    for (size_t i = 0; !rc && i < n; i++) {
        part->tensor[i].part = id;
        rc = take_tensor(c, &part->tensor[i], align, &offset[i]);
    }
    if (!rc) {
        part->n_tensors = n;
        part->data_at = c->at + (align - c->at % align) % align;
        rc = place_tensors(part, c, offset);
    }
    free(offset);
    return rc || part->outline ? rc : check_overlap(part, c);
}

int gguf_part_parse(gguf_part *part, int id, ds4_err *e)
{
    /* smallest entries: length, one byte, type, one byte / length, one byte, rank, one dimension, type, offset */
    enum { SMALLEST_KV = 8 + 1 + 4 + 1, SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8 };
    cursor c = {.part = part, .e = e};
    size_t n_tensors, n_kv;
    uint32_t align;
    int rc;
    if ((rc = check_magic(&c)) || (rc = check_version(&c)))
        return rc;
    if ((rc = take_count(&c, "tensor count", SMALLEST_TENSOR, &n_tensors)))
        return rc;
    if ((rc = take_count(&c, "metadata count", SMALLEST_KV, &n_kv)))
        return rc;
    if ((rc = take_metadata(part, &c, n_kv)) || (rc = find_alignment(part, &c, &align)))
        return rc;
    return take_directory(part, id, &c, n_tensors, align);
}

void gguf_part_free(gguf_part *part)
{
    gguf_index_free(&part->kv_index);
    free(part->kv);
    free(part->tensor);
    free(part->path);
}
