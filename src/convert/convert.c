#include "convert/convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/imatrix.h"
#include "convert/slice.h"
#include "file/quant.h"

struct conv {
    conv_options o;
    hf_config cfg;
    st_set *st;
    imatrix *im;
    plan p;
    uint32_t stages;
    size_t n_other;
    char tokenizer[4096]; /* path, "" if there is none */
};

const plan *conv_plan(const conv *c) { return &c->p; }
const hf_config *conv_config(const conv *c) { return &c->cfg; }
bool conv_has_tokenizer(const conv *c) { return c->tokenizer[0] != 0; }
size_t conv_n_other(const conv *c) { return c->n_other; }

void conv_close(conv *c)
{
    if (!c)
        return;
    plan_free(&c->p);
    st_close(c->st);
    imatrix_close(c->im);
    free(c);
}

static bool is_mtp(const char *name) { return !strncmp(name, "mtp.", 4); }

/* Highest N of mtp.N. plus one. */
static uint32_t count_stages(st_set *st)
{
    uint32_t n = 0;
    for (size_t i = 0; i < st_count(st); i++) {
        unsigned k;
        if (sscanf(st_at(st, i)->name, "mtp.%4u.", &k) == 1 && k + 1 > n)
            n = k + 1;
    }
    return n;
}

static int check_drafter(const conv *c, ds4_err *e)
{
    uint32_t listed = c->cfg.n_ratios - c->cfg.num_hidden_layers;
    const char *dir = c->o.hf_dir;
    if (c->stages == 0)
        return ds4_fail(e, DS4_EMODEL, "%s: no mtp.N tensors: the checkpoint holds no drafter", dir);
    if (st_find(c->st, "mtp.0.e_proj.weight"))
        return ds4_fail(e, DS4_EMODEL,
                        "%s: mtp.0.e_proj.weight found: this is the MTP block of the preview release, not a "
                        "DSpark drafter", dir);
    if (!c->cfg.has_dspark)
        return ds4_fail(e, DS4_EMODEL,
                        "%s/config.json: key dspark_block_size is missing, it is needed for --dspark-support",
                        dir);
    if (listed && listed != c->stages)
        return ds4_fail(e, DS4_EMODEL, "%s: compress_ratios tells of %u draft stages, the tensors mtp.N of %u", dir,
                        listed, c->stages);
    if (c->stages > 8)
        return ds4_fail(e, DS4_EMODEL, "%s: %u draft stages, at most 8 are supported", dir, c->stages);
    return 0;
}

/* Finds one slice's source, with its dtype class checked against the plan. */
static int find_source(const conv *c, const plan_tensor *t, uint32_t slice, hf_weight *w, ds4_err *e)
{
    char name[160];
    int rc = hf_find_weight(w, c->st, plan_src(t, slice, name, sizeof name), t->rows, t->cols, e);
    if (rc)
        return rc;
    if ((w->coding == HF_IDS) != (t->cls == PC_IDS))
        return ds4_fail(e, DS4_EMODEL, "%s: tensor %s: expected %s, found dtype %s", st_file(c->st, w->t), name,
                        t->cls == PC_IDS ? "integer ids" : "a weight", st_dtype_name(w->t->dtype));
    return 0;
}

/* Every planned source must exist in its shape; every tensor of this output must be planned. */
static int resolve(conv *c, ds4_err *e)
{
    hf_weight w;
    for (size_t i = 0; i < c->p.n; i++)
        for (uint32_t s = 0; s < c->p.t[i].slices; s++) {
            int rc = find_source(c, &c->p.t[i], s, &w, e);
            if (rc)
                return rc;
        }
    for (size_t i = 0; i < st_count(c->st); i++) {
        const st_tensor *t = st_at(c->st, i);
        char have[96];
        if (t->used)
            continue;
        if (is_mtp(t->name) == c->o.drafter)
            return ds4_fail(e, DS4_EMODEL, "%s: tensor %s %s %s has no place in a %s file; nothing was written",
                            st_file(c->st, t), t->name, st_dtype_name(t->dtype), st_shape_str(t, have, sizeof have),
                            c->o.drafter ? "DSpark support" : "deepseek4");
        c->n_other++;
    }
    return 0;
}

static bool is_file(const struct stat *want, const char *path)
{
    struct stat st;
    return path && *path && !stat(path, &st) && st.st_dev == want->st_dev && st.st_ino == want->st_ino;
}

/* The new file replaces whatever has its name: it must not be a part of the checkpoint. */
static int check_out(const conv *c, ds4_err *e)
{
    struct stat out;
    const char *last = NULL;
    if (!c->o.out || stat(c->o.out, &out))
        return 0;
    bool input = is_file(&out, c->tokenizer) || is_file(&out, c->o.imatrix);
    for (size_t i = 0; i < st_count(c->st) && !input; i++) {
        const char *path = st_file(c->st, st_at(c->st, i));
        input = path != last && is_file(&out, path);
        last = path;
    }
    return input ? ds4_fail(e, DS4_EARG, "%s is an input of this conversion: choose another name for --out", c->o.out)
                 : 0;
}

static int open_all(conv *c, ds4_err *e)
{
    char path[4096];
    int rc, n = snprintf(path, sizeof path, "%s/config.json", c->o.hf_dir);
    if (n < 0 || n >= (int)sizeof path)
        return ds4_fail(e, DS4_EARG, "directory name is too long: %s", c->o.hf_dir);
    if ((rc = hf_read_config(&c->cfg, path, e)) || (rc = st_open_dir(&c->st, c->o.hf_dir, e)))
        return rc;
    if (c->o.imatrix && (rc = imatrix_open(&c->im, c->o.imatrix, e)))
        return rc;
    n = snprintf(c->tokenizer, sizeof c->tokenizer, "%s/tokenizer.json", c->o.hf_dir);
    if (n < 0 || n >= (int)sizeof c->tokenizer || access(c->tokenizer, F_OK))
        c->tokenizer[0] = 0;
    c->stages = count_stages(c->st);
    if (c->o.drafter)
        rc = check_drafter(c, e);
    if (!rc)
        rc = c->o.drafter ? plan_drafter(&c->p, &c->cfg, c->stages, &c->o.plan, e)
                          : plan_trunk(&c->p, &c->cfg, &c->o.plan, e);
    if (!rc)
        rc = check_out(c, e);
    return rc ? rc : resolve(c, e);
}

int conv_open(conv **out, const conv_options *o, ds4_err *e)
{
    conv *c = calloc(1, sizeof *c);
    if (!c)
        return ds4_fail(e, DS4_ENOMEM, "out of memory");
    c->o = *o;
    int rc = open_all(c, e);
    if (rc) {
        conv_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

static int write_meta(conv *c, ggufw *w, ds4_err *e)
{
    const char *name = c->o.name;
    if (c->o.drafter) {
        plan_meta_drafter(w, &c->cfg, c->stages, &c->o.plan, name ? name : "DeepSeek V4 Flash DSpark support");
    } else {
        plan_meta_trunk(w, &c->cfg, &c->o.plan, name ? name : "DeepSeek V4 Flash");
        if (c->im) {
            const char *base = strrchr(c->o.imatrix, '/');
            ggufw_kv_str(w, "quantize.imatrix.file", base ? base + 1 : c->o.imatrix);
            ggufw_kv_str(w, "quantize.imatrix.dataset", imatrix_dataset(c->im));
            ggufw_kv_u32(w, "quantize.imatrix.entries_count", (uint32_t)imatrix_count(c->im));
            ggufw_kv_u32(w, "quantize.imatrix.chunks_count", imatrix_chunks(c->im));
        }
    }
    int rc = 0;
    if (!c->o.drafter && conv_has_tokenizer(c))
        rc = hf_write_tokenizer(w, c->tokenizer, &c->cfg, e);
    for (size_t i = 0; i < c->p.n; i++)
        ggufw_tensor(w, c->p.t[i].name, c->p.t[i].n_dims, c->p.t[i].ne, c->p.t[i].type);
    return rc ? rc : ggufw_begin(w, e);
}

static int write_ids(const conv *c, const plan_tensor *t, ggufw *w, ds4_err *e)
{
    hf_weight src;
    int rc = find_source(c, t, 0, &src, e);
    if (rc)
        return rc;
    int32_t *ids = malloc(t->nbytes);
    rc = ids ? hf_decode_ids(&src, c->st, ids, c->cfg.n_routed_experts, e)
             : ds4_fail(e, DS4_ENOMEM, "out of memory for tensor %s", t->name);
    if (!rc)
        rc = ggufw_data(w, ids, t->nbytes, e);
    free(ids);
    return rc;
}

/* All slices of one weight tensor; *missed counts those without an entry in a given importance matrix. */
static int write_weight(const conv *c, const plan_tensor *t, slice_work *work, ggufw *w, uint32_t *missed, ds4_err *e)
{
    for (uint32_t s = 0; s < t->slices; s++) {
        hf_weight src;
        const float *imp = NULL;
        int rc = find_source(c, t, s, &src, e);
        if (!rc && c->im && enc_wants_importance(t->type)) {
            rc = imatrix_find(c->im, t->name, s, t->slices, t->cols, &imp, e);
            *missed += imp == NULL;
        }
        if (!rc)
            rc = slice_write(work, c->st, &src, t->type, imp, w, e);
        if (rc)
            return rc;
    }
    return 0;
}

static int write_tensors(conv *c, slice_work *work, ggufw *w, ds4_err *e)
{
    for (size_t i = 0; i < c->p.n; i++) {
        const plan_tensor *t = &c->p.t[i];
        uint32_t missed = 0;
        char remark[96] = "";
        slice_reset_loss(work);
        int rc = t->cls == PC_IDS ? write_ids(c, t, w, e) : write_weight(c, t, work, w, &missed, e);
        if (rc)
            return rc;
        if (missed)
            snprintf(remark, sizeof remark, "no importance entry for %u of %u: column sums used", missed, t->slices);
        enc_loss loss = slice_loss(work);
        if (c->o.progress)
            c->o.progress(c->o.ctx, &c->p, i, &loss, remark);
    }
    return 0;
}

int conv_run(conv *c, uint64_t *bytes, ds4_err *e)
{
    ggufw *w;
    slice_work *work;
    int rc = slice_open(&work, c->o.threads, e);
    if (rc)
        return rc;
    if ((rc = ggufw_open(&w, c->o.out, e))) {
        slice_close(work);
        return rc;
    }
    rc = write_meta(c, w, e);
    if (!rc)
        rc = write_tensors(c, work, w, e);
    slice_close(work);
    if (rc) {
        ggufw_abort(w);
        return rc;
    }
    return ggufw_close(w, bytes, e);
}
