/* Metadata: every number comes from the file after a range check, and whatever is wrong is named. */
#include <math.h>
#include <stdio.h>

#include "util_refuse.h"

#define A "deepseek4."

static const char *const required[] = {A "block_count",
                                       A "embedding_length",
                                       A "attention.head_count",
                                       A "attention.head_count_kv",
                                       A "attention.key_length",
                                       A "attention.value_length",
                                       A "rope.dimension_count",
                                       A "attention.q_lora_rank",
                                       A "attention.output_lora_rank",
                                       A "attention.output_group_count",
                                       A "attention.sliding_window",
                                       A "attention.indexer.head_count",
                                       A "attention.indexer.key_length",
                                       A "attention.indexer.top_k",
                                       A "hyper_connection.count",
                                       A "hyper_connection.sinkhorn_iterations",
                                       A "hash_layer_count",
                                       A "expert_count",
                                       A "expert_used_count",
                                       A "expert_shared_count",
                                       A "expert_feed_forward_length",
                                       A "attention.layer_norm_rms_epsilon",
                                       A "hyper_connection.epsilon",
                                       A "rope.freq_base",
                                       A "attention.compress_rope_freq_base",
                                       A "rope.scaling.factor",
                                       A "rope.scaling.yarn_beta_fast",
                                       A "rope.scaling.yarn_beta_slow",
                                       A "expert_weights_scale",
                                       A "rope.scaling.original_context_length",
                                       A "context_length",
                                       A "expert_weights_norm",
                                       A "attention.compress_ratios",
                                       A "swiglu_clamp_exp",
                                       "general.architecture"};

static void the_unchanged_model_opens(void **s)
{
    (void)s;
    gb t = v4_trunk(), d = v4_drafter(false), l = v4_drafter(true);
    shape sh;
    drafter_shape ds;
    ds4_err e;
    rig_check(try_model(&t, NULL, &sh, NULL, &e), &e);
    assert_int_equal(sh.layers, V4_LAYERS);
    assert_int_equal(sh.dims.vocab, V4_VOCAB);
    assert_int_equal(sh.ratio[2], 128);
    for (int i = 0; i < 2; i++) {
        rig_check(try_model(&t, i ? &l : &d, &sh, &ds, &e), &e);
        assert_int_equal(ds.stages, V4_STAGES);
        assert_int_equal(ds.block, V4_BLOCK);
        assert_int_equal(ds.rank, V4_MARKOV);
        assert_int_equal(ds.noise, V4_NOISE);
        assert_int_equal(ds.target[0], 3);
        assert_int_equal(ds.target[2], 5);
        assert_int_equal(ds.llama_names, i);
    }
    gb_free(&t);
    gb_free(&d);
    gb_free(&l);
}

static void missing_keys_are_named(void **s)
{
    (void)s;
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        gb t = v4_trunk();
        gb_drop_key(&t, required[i]);
        REFUSED(&t, NULL, required[i], "trunk.gguf");
        gb_free(&t);
    }
}

static void wrong_value_types_are_named(void **s)
{
    (void)s;
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        gb t = v4_trunk();
        if (strcmp(required[i], "general.architecture"))
            gb_str(&t, required[i], "text");
        else
            gb_u32(&t, required[i], 4);
        REFUSED(&t, NULL, required[i]);
        gb_free(&t);
    }
}

static void numbers_out_of_range_are_named(void **s)
{
    (void)s;
    static const struct {
        const char *key;
        uint32_t v;
    } bad[] = {{A "block_count", 0},
               {A "block_count", 100000},
               {A "embedding_length", 0},
               {A "attention.head_count", 0},
               {A "attention.head_count_kv", 2},
               {A "attention.key_length", 1u << 31},
               {A "attention.sliding_window", 0},
               {A "attention.indexer.top_k", 0},
               {A "hyper_connection.count", 0},
               {A "hyper_connection.count", 4000000000u},
               {A "hyper_connection.sinkhorn_iterations", 0},
               {A "expert_count", 0},
               {A "expert_used_count", 0},
               {A "expert_shared_count", 2},
               {A "rope.dimension_count", 0},
               {A "expert_gating_func", 2},
               {A "context_length", 0},
               {A "attention.output_group_count", 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char found[16];
        gb t = v4_trunk();
        gb_u32(&t, bad[i].key, bad[i].v);
        snprintf(found, sizeof found, "%u", bad[i].v);
        REFUSED(&t, NULL, bad[i].key, found);
        gb_free(&t);
    }
}

static void floats_out_of_range_are_named(void **s)
{
    (void)s;
    static const char *const keys[] = {
        A "attention.layer_norm_rms_epsilon",  A "hyper_connection.epsilon", A "rope.freq_base",
        A "attention.compress_rope_freq_base", A "rope.scaling.factor",      A "expert_weights_scale"};
    const float bad[] = {-1, NAN, INFINITY};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        for (int j = 0; j < 3; j++) {
            gb t = v4_trunk();
            gb_f32(&t, keys[i], bad[j]);
            REFUSED(&t, NULL, keys[i]);
            gb_free(&t);
        }
}

static void numbers_that_do_not_fit_together(void **s)
{
    (void)s;
    static const struct {
        const char *key;
        uint32_t v;
        const char *word;
    } bad[] = {{A "attention.value_length", 256, "value_length"},
               {A "attention.output_group_count", 3, "groups"},
               {A "expert_used_count", 9, "expert_used_count"},
               {A "rope.dimension_count", 63, "rotary"},
               {A "attention.indexer.key_length", 96, "indexer.key_length"},
               {A "block_count", 12, "compress_ratios"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gb t = v4_trunk();
        gb_u32(&t, bad[i].key, bad[i].v);
        REFUSED(&t, NULL, bad[i].word);
        gb_free(&t);
    }
}

static void arrays_are_checked(void **s)
{
    (void)s;
    const int32_t ratios[V4_LAYERS] = {0, 4, 128, 8, 128, 4};
    const float clamps[V4_LAYERS] = {10, 10, 0, 10, 10, 10};
    gb t = v4_trunk();
    gb_ints(&t, A "attention.compress_ratios", ratios, V4_LAYERS);
    REFUSED(&t, NULL, "compress_ratios[3]", "8", "0, 4 or 128");
    gb_free(&t);
    t = v4_trunk();
    gb_floats(&t, A "swiglu_clamp_exp", clamps, V4_LAYERS);
    REFUSED(&t, NULL, "swiglu_clamp_exp[2]");
    gb_floats(&t, A "swiglu_clamp_exp", clamps, 2);
    REFUSED(&t, NULL, "swiglu_clamp_exp", "6");
    gb_free(&t);
}

/* The trap of Vision-Exp files: an epsilon so small that a test against a tolerance takes it for zero or for the
 * default. */
static void epsilon_is_taken_from_the_file(void **s)
{
    (void)s;
    gb t = v4_trunk();
    shape sh;
    ds4_err e;
    gb_f32(&t, A "attention.layer_norm_rms_epsilon", 1e-20f);
    rig_check(try_model(&t, NULL, &sh, NULL, &e), &e);
    assert_true(sh.dims.rms_eps == 1e-20f);
    assert_true(sh.dims.hc_eps == 1e-6f);
    gb_free(&t);
}

static void scalar_and_shared_clamps(void **s)
{
    (void)s;
    gb t = v4_trunk();
    shape sh;
    ds4_err e;
    gb_f32(&t, A "swiglu_clamp_exp", 7);
    gb_f32(&t, A "swiglu_clamp_shexp", 5);
    rig_check(try_model(&t, NULL, &sh, NULL, &e), &e);
    assert_true(sh.clamp[5] == 7 && sh.sclamp[5] == 5);
    gb_drop_key(&t, A "swiglu_clamp_shexp");
    rig_check(try_model(&t, NULL, &sh, NULL, &e), &e);
    assert_true(sh.sclamp[0] == 7);
    gb_free(&t);
}

static void other_kinds_of_file_are_refused_by_name(void **s)
{
    (void)s;
    gb t = v4_trunk(), d = v4_drafter(false), l = v4_drafter(true);
    REFUSED(&d, NULL, "drafter", "--mtp");
    REFUSED(&l, NULL, "drafter", "--mtp");
    REFUSED(&t, &t, "drafter.gguf", "main_proj");
    gb_str(&t, "general.architecture", "deepseek41");
    REFUSED(&t, NULL, "deepseek41", "deepseek4");
    gb_str(&t, "general.architecture", "llama");
    REFUSED(&t, NULL, "llama", "deepseek4");
    gb_str(&t, "general.architecture", "deepseek4");
    snprintf(gb_find(&d, "mtp.0.main_proj.weight")->name, 80, "mtp.0.e_proj.weight");
    REFUSED(&t, &d, "MTP sidecar");
    gb_str(&d, "general.architecture", "deepseek4");
    REFUSED(&d, NULL, "MTP sidecar");
    gb_free(&t);
    gb_free(&d);
    gb_free(&l);
}

/* llama.cpp's trunks may carry the preview's MTP block as their last layer. It is left unread. */
static void an_mtp_block_inside_is_left_unread(void **s)
{
    (void)s;
    gb t = v4_trunk();
    shape sh;
    ds4_err e;
    gb_u32(&t, A "block_count", V4_LAYERS + 1);
    const float clamp[V4_LAYERS + 1] = {10, 10, 10, 10, 10, 10, 10};
    gb_floats(&t, A "swiglu_clamp_exp", clamp, V4_LAYERS + 1);
    REFUSED(&t, NULL, "blk.6.");
    gb_add(&t, "blk.6.nextn.eh_proj.weight", GB_F32, 8, 8, 0, calloc(64, 4), 256);
    gb_add(&t, "blk.6.attn_kv.weight", GB_F32, 8, 8, 0, calloc(64, 4), 256);
    rig_check(try_model(&t, NULL, &sh, NULL, &e), &e);
    assert_int_equal(sh.layers, V4_LAYERS);
    assert_int_equal(sh.mtp_layer, V4_LAYERS);
    gb_free(&t);
}

static void drafter_keys_are_checked(void **s)
{
    (void)s;
    static const char *const keys[2][4] = {
        {"dspark.block_size", "dspark.markov_rank", "dspark.noise_token_id", "dspark.target_layer_ids"},
        {"dflash.block_size", "dflash.target_layers", "tokenizer.ggml.mask_token_id", NULL}};
    const int32_t down[3] = {5, 4, 3}, high[3] = {3, 4, 99};
    gb t = v4_trunk();
    for (int llama = 0; llama < 2; llama++) {
        for (int i = 0; i < 4 && keys[llama][i]; i++) {
            gb d = v4_drafter(llama);
            gb_drop_key(&d, keys[llama][i]);
            const char *last = strrchr(keys[llama][i], '.') + 1;
            REFUSED(&t, &d, "drafter.gguf", last);
            gb_free(&d);
        }
        gb d = v4_drafter(llama);
        const char *targets = llama ? "dflash.target_layers" : "dspark.target_layer_ids";
        gb_ints(&d, targets, down, 3);
        REFUSED(&t, &d, targets, "ascend");
        gb_ints(&d, targets, high, 3);
        REFUSED(&t, &d, targets, llama ? "98" : "99");
        gb_free(&d);
        d = v4_drafter(llama);
        gb_u32(&d, llama ? "dflash.block_size" : "dspark.block_size", 16);
        REFUSED(&t, &d, "block_size", "16");
        gb_free(&d);
        d = v4_drafter(llama);
        gb_u32(&d, llama ? "tokenizer.ggml.mask_token_id" : "dspark.noise_token_id", V4_VOCAB);
        REFUSED(&t, &d, "320");
        gb_free(&d);
    }
    gb_free(&t);
}

/* Published drafters spell their keys in three ways. */
static void alternate_drafter_spellings(void **s)
{
    (void)s;
    gb t = v4_trunk(), d = v4_drafter(false);
    drafter_shape ds;
    ds4_err e;
    gb_drop_key(&d, "dspark.block_size");
    gb_u32(&d, "deepseek4.dspark_block_size", 4);
    gb_drop_key(&d, "dspark.noise_token_id");
    gb_u32(&d, "deepseek4.dspark.noise_token_id", 7);
    rig_check(try_model(&t, &d, NULL, &ds, &e), &e);
    assert_int_equal(ds.block, 4);
    assert_int_equal(ds.noise, 7);
    gb_free(&t);
    gb_free(&d);
}

/* Check values of the two rotary tables at Flash's numbers. */
static void rotary_tables(void **s)
{
    (void)s;
    static const struct {
        int i;
        double plain, comp;
    } want[] = {{0, 1, 1},
                {1, 7.498942093e-01, 6.876560219e-01},
                {8, 1.000000000e-01, 5.000000000e-02},
                {15, 1.333521432e-02, 3.635538584e-03},
                {16, 1.000000000e-02, 2.265625000e-03},
                {20, 3.162277660e-03, 2.969777783e-04},
                {24, 1.000000000e-03, 1.953125000e-05},
                {25, 7.498942093e-04, 5.372312671e-06},
                {31, 1.333521432e-04, 5.680529037e-07}};
    shape sh = {.dims.rope_dim = 64,
                .rope_base = 10000,
                .comp_rope_base = 160000,
                .yarn_factor = 16,
                .yarn_fast = 32,
                .yarn_slow = 1,
                .yarn_orig = 65536};
    float plain[32], comp[32];
    shape_rope_freqs(&sh, false, plain);
    shape_rope_freqs(&sh, true, comp);
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        assert_true(fabs(plain[want[k].i] / want[k].plain - 1) < 1e-6);
        assert_true(fabs(comp[want[k].i] / want[k].comp - 1) < 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_unchanged_model_opens),
        cmocka_unit_test(missing_keys_are_named),
        cmocka_unit_test(wrong_value_types_are_named),
        cmocka_unit_test(numbers_out_of_range_are_named),
        cmocka_unit_test(floats_out_of_range_are_named),
        cmocka_unit_test(numbers_that_do_not_fit_together),
        cmocka_unit_test(arrays_are_checked),
        cmocka_unit_test(epsilon_is_taken_from_the_file),
        cmocka_unit_test(scalar_and_shared_clamps),
        cmocka_unit_test(other_kinds_of_file_are_refused_by_name),
        cmocka_unit_test(an_mtp_block_inside_is_left_unread),
        cmocka_unit_test(drafter_keys_are_checked),
        cmocka_unit_test(alternate_drafter_spellings),
        cmocka_unit_test(rotary_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
