/* libFuzzer target: any bytes are either read, and then everything in them can be touched, or refused with one line.
 * Built and run by tests/fuzz/run.sh. */
#include <stdlib.h>
#include <string.h>

#include "../file/util_gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    gguf *g = NULL;
    ds4_err e = {0};
    /* an exact copy at an aligned address, as a map would be */
    bytes b = copy_of((bytes){(uint8_t *)data, size}, size);
    int rc = gguf_open_mem(&g, b.p, b.n, "fuzz", &e);
    if (rc) {
        if (g || e.code != rc || !e.msg[0] || strchr(e.msg, '\n'))
            abort();
    } else {
        (void)use_everything(g);
        gguf_close(g);
    }
    free(b.p);
    return 0;
}
