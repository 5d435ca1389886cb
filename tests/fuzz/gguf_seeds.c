/* Writes the seed corpus of fuzz_gguf: usage gguf_seeds DIR */
#include <stdio.h>
#include <stdlib.h>

#include "../file/util_gguf.h"
#include "file/quant.h"

static void seed(const char *dir, const char *name, bytes b)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    save(path, b);
    free(b.p);
}

static bytes one_value(uint32_t type)
{
    bytes b = {0};
    put_header(&b, 0, 1);
    if (type == GGUF_STR) {
        put_kv_str(&b, "k", "text");
    } else if (type == GGUF_ARR) {
        put_kv_arr(&b, "k", GGUF_STR, 2);
        put_str(&b, "a");
        put_str(&b, "bc");
    } else {
        put_kv_int(&b, "k", type, 1);
    }
    return b;
}

static bytes one_tensor(const quant_info *q)
{
    bytes b = {0};
    put_header(&b, 1, 1);
    put_kv_u32(&b, "general.alignment", 8);
    put_tensor(&b, "w", 2, (uint64_t[]){q->block, 2}, q->type, 0);
    put_pad(&b, 8);
    put_zeros(&b, 2 * q->bytes);
    return b;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    char name[40];
    seed(argv[1], "good", good_file());
    for (uint32_t type = 0; type < 13; type++) {
        snprintf(name, sizeof name, "value-%u", type);
        seed(argv[1], name, one_value(type));
    }
    for (uint32_t type = 0; type < 64; type++) {
        snprintf(name, sizeof name, "tensor-%u", type);
        if (quant_type_info(type))
            seed(argv[1], name, one_tensor(quant_type_info(type)));
    }
    return 0;
}
