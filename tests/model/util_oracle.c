#include "util_oracle.h"

#include <stdio.h>
#include <unistd.h>

#include "util_golden.h"

static const char *const parts[] = {"trunk_f32", "drafter_f32", "trunk_q8", "drafter_q8"};

static char *given(void) { return getenv("DS4_TEST_ORACLE_A"); }

/* The converter: named by DS4_QUANTIZE, of this build (BUILD/bin beside BUILD/tests/model), or in the repository's
 * root. */
static const char *find_program(char *buf, size_t room)
{
    const char *named = getenv("DS4_QUANTIZE");
    if (named)
        return access(named, X_OK) ? NULL : named;
    ssize_t n = readlink("/proc/self/exe", buf, room - 1);
    buf[n > 0 ? n : 0] = 0;
    for (int up = 0; up < 3 && strrchr(buf, '/'); up++)
        *strrchr(buf, '/') = 0;
    size_t at = strlen(buf);
    snprintf(buf + at, room - at, "/bin/ds4-quantize");
    if (!access(buf, X_OK))
        return buf;
    return access("./ds4-quantize", X_OK) ? NULL : "./ds4-quantize";
}

static char *convert(const char *dir)
{
    char room[4096];
    if (given())
        return strdup(given());
    const char *program = find_program(room, sizeof room);
    if (!program)
        return NULL;
    char *files = strdup("/tmp/ds4-oracle-XXXXXX"), cmd[9000];
    assert_non_null(mkdtemp(files));
    for (int i = 0; i < 4; i++) {
        snprintf(cmd, sizeof cmd, "%s --hf '%s' --out '%s/%s.gguf' --recipe %s --experts mxfp4%s >/dev/null", program,
                 dir, files, parts[i], i < 2 ? "f32" : "q8", i % 2 ? " --dspark-support" : "");
        if (system(cmd))
            fail_msg("failed: %s", cmd);
    }
    return files;
}

static void remove_files(char *files)
{
    if (files && !given()) {
        char path[4096];
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s/%s.gguf", files, parts[i]);
            unlink(path);
        }
        rmdir(files);
    }
    free(files);
}

int oracle_setup(void **state)
{
    oracle *o = calloc(1, sizeof *o);
    assert_non_null(o);
    *state = o;
    o->dir = golden_set("oracle_a");
    o->files = o->dir ? convert(o->dir) : NULL;
    if (o->files)
        return 0;
    print_message(o->dir ? "skipped (ds4-quantize is not built)\n" : "skipped (no golden data)\n");
    free(o->dir);
    o->dir = NULL;
    return 0;
}

int oracle_teardown(void **state)
{
    oracle *o = *state;
    remove_files(o->files);
    free(o->dir);
    free(o);
    return 0;
}

static gguf *open_part(const char *files, const char *part, const char *variant)
{
    char path[4096];
    ds4_err e = {0};
    gguf *g = NULL;
    snprintf(path, sizeof path, "%s/%s_%s.gguf", files, part, variant);
    rig_check(gguf_open(&g, path, &e), &e);
    return g;
}

static void open_both(rig *r, const char *files, const char *variant, rig_options o)
{
    o.act = BE_ACT_FLOAT;
    o.threads = 2;
    rig_open(r, open_part(files, "trunk", variant), open_part(files, "drafter", variant), o);
}

void oracle_open(rig *r, const char *files, const char *variant, enum kv_sim sim, int ctx)
{
    open_both(r, files, variant, (rig_options){.sim = sim, .ctx = ctx});
}

void oracle_open_composed(rig *r, const char *files, const char *variant, enum kv_sim sim, int ctx)
{
    open_both(r, files, variant, (rig_options){.sim = sim, .ctx = ctx, .composed = true});
}
