#include "util_oracle.h"

#include <stdio.h>
#include <unistd.h>

static const char *const parts[] = {"trunk_f32", "drafter_f32", "trunk_q8", "drafter_q8"};

static char *given(void) { return getenv("DS4_TEST_ORACLE_A"); }

char *oracle_convert(const char *dir)
{
    if (given())
        return strdup(given());
    const char *program = getenv("DS4_QUANTIZE");
    program = program ? program : "./ds4-quantize";
    if (access(program, X_OK))
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

void oracle_remove(char *files)
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

static gguf *open_part(const char *files, const char *part, const char *variant)
{
    char path[4096];
    ds4_err e = {0};
    gguf *g = NULL;
    snprintf(path, sizeof path, "%s/%s_%s.gguf", files, part, variant);
    rig_check(gguf_open(&g, path, &e), &e);
    return g;
}

void oracle_open(rig *r, const char *files, const char *variant, enum kv_sim sim, int ctx)
{
    rig_open(r, open_part(files, "trunk", variant), open_part(files, "drafter", variant),
             (rig_options){.act = BE_ACT_FLOAT, .sim = sim, .threads = 2, .ctx = ctx});
}
