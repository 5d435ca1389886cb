#include "model/shape.h"

#include <stdio.h>
#include <string.h>

/* The published drafters spell their keys in three ways; the first present wins. */
static const gguf_kv *find_key(const gguf *g, const char *name, char *key, size_t room)
{
    static const char *const prefix[] = {"deepseek4.dspark.", "deepseek4.dspark_", "dspark."};
    const gguf_kv *kv = NULL;
    for (int i = 0; i < 3 && !kv; i++) {
        snprintf(key, room, "%s%s", prefix[i], name);
        kv = gguf_find_kv(g, key);
    }
    return kv;
}

static int get_int(const gguf *g, const char *name, uint32_t lo, uint32_t hi, int *out, ds4_err *e)
{
    char key[96];
    uint32_t v = 0;
    find_key(g, name, key, sizeof key);
    int rc = gguf_get_u32(g, key, true, lo, hi, &v, e);
    *out = (int)v;
    return rc;
}

static int read_targets(drafter_shape *s, const shape *trunk, const gguf *g, const char *key, int minus, ds4_err *e)
{
    const gguf_kv *kv = gguf_find_kv(g, key);
    if (!kv || kv->type != GGUF_ARR || kv->elem == GGUF_STR || kv->elem == GGUF_F32 || kv->elem == GGUF_F64)
        return ds4_fail(e, DS4_EMODEL, "%s: %s must be an array of integers (the tapped layers)", gguf_path(g), key);
    if (kv->count < 1 || kv->count > SHAPE_MAX_TARGETS)
        return ds4_fail(e, DS4_EMODEL, "%s: %s has %llu entries, expected 1 to %d", gguf_path(g), key,
                        (unsigned long long)kv->count, SHAPE_MAX_TARGETS);
    s->targets = (int)kv->count;
    for (int i = 0; i < s->targets; i++) {
        int64_t v = gguf_arr_int(kv, (uint64_t)i) - minus;
        if (v < 0 || v >= trunk->layers || (i && v <= s->target[i - 1]))
            return ds4_fail(e, DS4_EMODEL,
                            "%s: %s[%d] is layer %lld; the trunk has layers 0..%d and the list must ascend",
                            gguf_path(g), key, i, (long long)v, trunk->layers - 1);
        s->target[i] = (int)v;
    }
    return 0;
}

static int read_sidecar(drafter_shape *s, const shape *trunk, const gguf *g, ds4_err *e)
{
    char key[96];
    int noise = 0;
    int rc = get_int(g, "block_size", 1, SHAPE_MAX_BLOCK, &s->block, e);
    if (!rc)
        rc = get_int(g, "markov_rank", 1, 65536, &s->rank, e);
    if (!rc)
        rc = get_int(g, "noise_token_id", 0, (uint32_t)trunk->dims.vocab - 1, &noise, e);
    s->noise = noise;
    if (rc)
        return rc;
    find_key(g, "target_layer_ids", key, sizeof key);
    return read_targets(s, trunk, g, key, 0, e);
}

/* llama.cpp counts "input of the next layer", one more than the layer whose output is tapped. */
static int read_dflash(drafter_shape *s, const shape *trunk, const gguf *g, ds4_err *e)
{
    uint32_t block = 0, noise = 0;
    bool from_anchor = true;
    const gguf_tensor *w1 = gguf_find_tensor(g, "markov_w1.weight");
    if (!w1)
        return ds4_fail(
            e, DS4_EMODEL,
            "%s: tensor markov_w1.weight is missing: a dflash file without Markov head is not a DSpark drafter",
            gguf_path(g));
    if (gguf_find_tensor(g, "d2t") || gguf_find_tensor(g, "token_embd.weight") || gguf_find_tensor(g, "output.weight"))
        return ds4_fail(e, DS4_EMODEL,
                        "%s: drafters with their own vocabulary (d2t, token_embd, output) are not supported",
                        gguf_path(g));
    s->rank = w1->ne[0] <= 65536 ? (int)w1->ne[0] : 0;
    int rc = gguf_get_u32(g, "dflash.block_size", true, 1, SHAPE_MAX_BLOCK, &block, e);
    if (!rc)
        rc = gguf_get_u32(g, "tokenizer.ggml.mask_token_id", true, 0, (uint32_t)trunk->dims.vocab - 1, &noise, e);
    if (!rc)
        rc = gguf_get_bool(g, "dflash.sample_from_anchor", false, &from_anchor, e);
    if (!rc && !from_anchor)
        rc = ds4_fail(e, DS4_EMODEL, "%s: dflash.sample_from_anchor is false, expected true", gguf_path(g));
    s->block = (int)block;
    s->noise = (int32_t)noise;
    return rc ? rc : read_targets(s, trunk, g, "dflash.target_layers", 1, e);
}

/* 1 + the highest stage number among tensor names `prefix`N. */
static int count_stages(const gguf *g, const char *prefix)
{
    int top = -1;
    size_t plen = strlen(prefix);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        gguf_str n = gguf_tensor_at(g, i)->name;
        if (n.n < plen + 2 || memcmp(n.p, prefix, plen))
            continue;
        int k = 0;
        size_t j = plen;
        for (; j < n.n && n.p[j] >= '0' && n.p[j] <= '9' && k < 10000; j++)
            k = 10 * k + (n.p[j] - '0');
        if (j > plen && j < n.n && n.p[j] == '.' && k > top)
            top = k;
    }
    return top + 1;
}

int shape_read_drafter(drafter_shape *s, const shape *trunk, const gguf *g, ds4_err *e)
{
    memset(s, 0, sizeof *s);
    gguf_str arch = {"", 0};
    int rc = gguf_get_str(g, "general.architecture", false, &arch, e);
    if (rc)
        return rc;
    s->llama_names = arch.n == 6 && !memcmp(arch.p, "dflash", 6);
    if (!s->llama_names && gguf_find_tensor(g, "mtp.0.e_proj.weight"))
        return ds4_fail(e, DS4_EMODEL, "%s: this is an MTP sidecar (preview release), not a DSpark drafter",
                        gguf_path(g));
    if (!s->llama_names && !gguf_find_tensor(g, "mtp.0.main_proj.weight"))
        return ds4_fail(e, DS4_EMODEL,
                        "%s: not a DSpark drafter: tensor mtp.0.main_proj.weight is missing (architecture '%.*s')",
                        gguf_path(g), (int)arch.n, arch.p);
    s->stages = count_stages(g, s->llama_names ? "blk." : "mtp.");
    if (s->stages < 1 || s->stages > SHAPE_MAX_STAGES)
        return ds4_fail(e, DS4_EMODEL, "%s: %d drafter stages, expected 1 to %d", gguf_path(g), s->stages,
                        SHAPE_MAX_STAGES);
    return s->llama_names ? read_dflash(s, trunk, g, e) : read_sidecar(s, trunk, g, e);
}
