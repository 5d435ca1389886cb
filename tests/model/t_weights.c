/* Tensors: whatever is missing, too many, of a wrong shape or type is named with what was found and expected; in both
 * drafter layouts. */
#include <stdio.h>

#include "util_refuse.h"

typedef struct files {
    gb trunk, drafter[2]; /* ds4's and llama.cpp's names */
} files;

static int setup(void **state)
{
    static files f;
    f = (files){v4_trunk(), {v4_drafter(false), v4_drafter(true)}};
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    files *f = *state;
    gb_free(&f->trunk);
    gb_free(&f->drafter[0]);
    gb_free(&f->drafter[1]);
    return 0;
}

/* The file under test: 0 trunk, 1 and 2 drafter. */
static gb *part(files *f, int which) { return which ? &f->drafter[which - 1] : &f->trunk; }
static const gb *drafter_of(files *f, int which) { return which ? &f->drafter[which - 1] : NULL; }

typedef void (*change)(files *f, int which, gb_tensor *t);

static void for_every_tensor(void **state, change fn)
{
    files *f = *state;
    for (int which = 0; which < 3; which++)
        for (size_t i = 0; i < part(f, which)->n_t; i++) {
            gb_tensor *t = &part(f, which)->t[i], keep = *t;
            fn(f, which, t);
            part(f, which)->t[i] = keep;
        }
}

/* Every mention of the tensor in a message: its name, then a blank. */
static void missing(files *f, int which, gb_tensor *t)
{
    gb *g = part(f, which);
    char want[160];
    gb_tensor keep = *t;
    size_t i = (size_t)(t - g->t);
    snprintf(want, sizeof want, "tensor %s is missing, expected ", t->name);
    g->t[i] = g->t[--g->n_t];
    if (strstr(keep.name, "main_proj")) /* what tells the kind of the file */
        REFUSED(&f->trunk, drafter_of(f, which), "tensor mtp.0.main_proj.weight is missing");
    else if (!strcmp(keep.name, "markov_w1.weight"))
        REFUSED(&f->trunk, drafter_of(f, which), "tensor markov_w1.weight is missing");
    else
        REFUSED(&f->trunk, drafter_of(f, which), want);
    g->n_t++;
    g->t[g->n_t - 1] = g->t[i];
    g->t[i] = keep;
}

static void missing_tensors(void **state) { for_every_tensor(state, missing); }

/* One row of blocks less. */
static void shorter(files *f, int which, gb_tensor *t)
{
    char want[160], found[40];
    int last = (int)t->n_dims - 1;
    if (t->ne[last] < 2 ||
        !strcmp(t->name, "token_embd.weight")) /* one number; the vocabulary size comes from the embedding */
        return;
    t->ne[last]--;
    if (last == 0 && t->type != GB_F32)
        return;
    snprintf(want, sizeof want, "tensor %s is ", t->name);
    snprintf(found, sizeof found, "%llu]", (unsigned long long)t->ne[last]);
    REFUSED(&f->trunk, drafter_of(f, which), want, found, ", expected ");
}

static void short_tensors(void **state) { for_every_tensor(state, shorter); }

/* One row more. */
static void longer(files *f, int which, gb_tensor *t)
{
    char want[160], found[40];
    int last = (int)t->n_dims - 1;
    gb_tensor keep = *t;
    if (!strcmp(t->name, "token_embd.weight"))
        return;
    t->bytes = keep.bytes / keep.ne[last] * (keep.ne[last] + 1);
    t->ne[last]++;
    t->data = calloc(t->bytes, 1);
    assert_non_null(t->data);
    snprintf(want, sizeof want, "tensor %s is ", t->name);
    snprintf(found, sizeof found, "%llu]", (unsigned long long)t->ne[last]);
    REFUSED(&f->trunk, drafter_of(f, which), want, found, ", expected ");
    free(t->data);
    *t = keep;
}

static void long_tensors(void **state) { for_every_tensor(state, longer); }

/* The same number of elements in another order of dimensions. */
static void transposed(files *f, int which, gb_tensor *t)
{
    char want[160];
    if (t->n_dims < 2 || t->ne[0] == t->ne[1] || t->ne[1] % 32)
        return;
    uint64_t swap = t->ne[0];
    t->ne[0] = t->ne[1];
    t->ne[1] = swap;
    snprintf(want, sizeof want, "tensor %s is ", t->name);
    if (!strcmp(t->name, "token_embd.weight"))
        REFUSED(&f->trunk, drafter_of(f, which), "token_embd.weight");
    else if (!strcmp(t->name, "markov_w1.weight")) /* the rank of this layout is read from it */
        REFUSED(&f->trunk, drafter_of(f, which), "markov");
    else
        REFUSED(&f->trunk, drafter_of(f, which), want, ", expected ");
}

static void transposed_tensors(void **state) { for_every_tensor(state, transposed); }

/* A type that this tensor cannot have: integers for weights, quantised blocks for vectors, floats for tables. */
static void wrong_type(files *f, int which, gb_tensor *t)
{
    char want[160];
    uint64_t n = t->ne[0] * (t->n_dims > 1 ? t->ne[1] : 1) * (t->n_dims > 2 ? t->ne[2] : 1);
    gb_tensor keep = *t;
    t->type = t->type == GB_I32 ? GB_F32 : GB_I32;
    t->bytes = n * 4;
    t->data = calloc(n, 4);
    assert_non_null(t->data);
    snprintf(want, sizeof want, "tensor %s is of type %s, expected ", t->name, t->type == GB_I32 ? "I32" : "F32");
    REFUSED(&f->trunk, drafter_of(f, which), want);
    free(t->data);
    *t = keep;
}

static void wrong_types(void **state) { for_every_tensor(state, wrong_type); }

static void unknown_type(files *f, int which, gb_tensor *t)
{
    t->type = 99;
    REFUSED(&f->trunk, drafter_of(f, which), t->name, "99");
}

static void unknown_types(void **state) { for_every_tensor(state, unknown_type); }

static void extra_tensors(void **state)
{
    files *f = *state;
    static const char *const names[] = {"blk.0.attn_q.weight", "mtp.0.attn_q.weight", "blk.1.indexer.attn_q_b.weight"};
    for (int which = 0; which < 3; which++) {
        gb *g = part(f, which);
        gb_add(g, names[which], GB_F32, 8, 4, 0, calloc(32, 4), 128);
        REFUSED(&f->trunk, drafter_of(f, which), names[which], "1 tensor is not part of this model", "F32 [8, 4]");
        gb_add(g, "rope_freqs.weight", GB_F32, 32, 0, 0, calloc(32, 4), 128);
        REFUSED(&f->trunk, drafter_of(f, which), "2 tensors are not part of this model");
        gb_drop(g, "rope_freqs.weight");
        gb_drop(g, names[which]);
    }
}

/* A layer of another kind than the schedule says: its tensors are extra, not silently ignored. */
static void tensors_of_another_layer_kind(void **state)
{
    files *f = *state;
    const int32_t ratios[V4_LAYERS] = {0, 4, 128, 0, 128, 4};
    gb t = v4_trunk();
    gb_ints(&t, "deepseek4.attention.compress_ratios", ratios, V4_LAYERS);
    REFUSED(&t, NULL, "blk.3.attn_compressor_kv.weight");
    gb_free(&t);
    t = v4_trunk();
    gb_u32(&t, "deepseek4.hash_layer_count", 3);
    REFUSED(&t, NULL, "tensor blk.2.ffn_gate_tid2eid.weight is missing");
    gb_free(&t);
    (void)f;
}

static void expert_numbers_in_the_table_are_checked(void **state)
{
    files *f = *state;
    int32_t *ids = (int32_t *)gb_find(&f->trunk, "blk.1.ffn_gate_tid2eid.weight")->data;
    int32_t keep = ids[7];
    const int32_t bad[] = {-1, V4_EXPERTS, INT32_MAX};
    for (int i = 0; i < 3; i++) {
        ids[7] = bad[i];
        REFUSED(&f->trunk, NULL, "blk.1.ffn_gate_tid2eid.weight", "token 3", "0..7");
    }
    ids[7] = keep;
}

/* Newer llama.cpp files give the grouped matrix three dimensions: the same bytes. */
static void grouped_output_in_three_dimensions(void **state)
{
    files *f = *state;
    ds4_err e;
    gb_tensor *t = gb_find(&f->trunk, "blk.0.attn_output_a.weight"), keep = *t;
    t->n_dims = 3;
    t->ne[1] = V4_RANK;
    t->ne[2] = V4_GROUPS;
    rig_check(try_model(&f->trunk, NULL, NULL, NULL, &e), &e);
    *t = keep;
}

/* A snapshot of one model must not load into another: the identity sees weights, shapes and metadata. */
static void identity_tells_models_apart(void **state)
{
    files *f = *state;
    uint64_t id[5];
    for (int i = 0; i < 5; i++) {
        gb_tensor *t = gb_find(&f->trunk, "blk.3.attn_kv.weight");
        uint8_t keep = t->data[5];
        t->data[5] ^= i == 1;
        gb_f32(&f->trunk, "deepseek4.rope.freq_base", i == 2 ? 10001 : 10000);
        if (i == 3)
            gb_str(&f->trunk, "general.name", "another");
        size_t n;
        uint8_t *p = gb_bytes(&f->trunk, &n);
        gguf *g;
        ds4_err e;
        rig_check(gguf_open_mem(&g, p, n, "x", &e), &e);
        id[i] = weights_identity(g);
        gguf_close(g);
        free(p);
        t->data[5] = keep;
        gb_drop_key(&f->trunk, "general.name");
    }
    assert_true(id[0] == id[4]);
    assert_true(id[0] != id[1] && id[0] != id[2] && id[0] != id[3] && id[1] != id[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_tensors),
        cmocka_unit_test(short_tensors),
        cmocka_unit_test(long_tensors),
        cmocka_unit_test(transposed_tensors),
        cmocka_unit_test(wrong_types),
        cmocka_unit_test(unknown_types),
        cmocka_unit_test(extra_tensors),
        cmocka_unit_test(tensors_of_another_layer_kind),
        cmocka_unit_test(expert_numbers_in_the_table_are_checked),
        cmocka_unit_test(grouped_output_in_three_dimensions),
        cmocka_unit_test(identity_tells_models_apart),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
