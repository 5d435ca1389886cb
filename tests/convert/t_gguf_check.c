/* Files we write, read by the public Python package `gguf`: directory and de-quantised values must agree with ours.
 * PYTHON names the interpreter (default python3); without the package the test is skipped. */
#include "convert/util_convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "convert/convert.h"
#include "file/gguf.h"
#include "file/quant.h"

static void dump_values(const char *path, const tmpdir *d, const char *name)
{
    gguf *g;
    ds4_err e = {0};
    char out[512];
    if (gguf_open(&g, path, &e))
        fail_msg("%s", e.msg);
    FILE *f = fopen(tmp_path(d, name, out), "wb");
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        if (!quant_type_info(t->type)->is_float_like)
            continue;
        uint64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        float *x = malloc(n * sizeof *x);
        quant_decode(t->type, t->data, x, n);
        assert_int_equal(fwrite(x, sizeof *x, n, f), n);
        free(x);
    }
    fclose(f);
    gguf_close(g);
}

static void public_package_reads_the_same_values(void **state)
{
    static const struct { const char *recipe; int64_t experts, dense; bool drafter; } runs[] = {
        {"q2", -1, -1, false}, {"q4", -1, Q_BF16, true}, {"mxfp4", -1, Q_Q2_K, false}, {"f16", -1, -1, true},
        {"f32", Q_Q4_K, Q_IQ2_XXS, false},
    };
    const char *python = getenv("PYTHON");
    char path[512], cmd[1600];
    tmpdir d;
    (void)state;
    tmp_make(&d);
    tiny_checkpoint(&d, STORE_OFFICIAL);
    write_file(&d, "tokenizer.json", tiny_tokenizer, strlen(tiny_tokenizer));
    int rc = 0;
    for (int i = 0; i < 5 && !rc; i++) {
        ds4_err e = {0};
        conv *c;
        conv_options o = {.hf_dir = d.path, .out = tmp_path(&d, "x.gguf", path), .threads = 2,
            .drafter = runs[i].drafter};
        o.plan = (plan_options){.recipe = plan_find_recipe(runs[i].recipe), .experts = runs[i].experts,
                                .dense = runs[i].dense};
        if (conv_open(&c, &o, &e) || conv_run(c, NULL, &e))
            fail_msg("%s", e.msg);
        conv_close(c);
        dump_values(path, &d, "x.f32");
        snprintf(cmd, sizeof cmd, "'%s' tests/convert/gguf_check.py '%s' '%s/x.f32'", python ? python : "python3", path,
                 d.path);
        rc = system(cmd);
    }
    tmp_remove(&d);
    if (rc == -1 || !WIFEXITED(rc) || WEXITSTATUS(rc) == 77 || WEXITSTATUS(rc) == 127)
        skip();
    assert_int_equal(WEXITSTATUS(rc), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(public_package_reads_the_same_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
