/* st_shards.h: which files a checkpoint directory consists of (used by safetensors.c alone). */
#ifndef DS4_CONVERT_ST_SHARDS_H
#define DS4_CONVERT_ST_SHARDS_H

#include <jansson.h>

#include "convert/safetensors.h"

typedef struct st_shards {
    char **path;
    size_t n;
    json_t *map; /* the index file's weight_map (name -> file name), NULL without an index */
    char *index; /* path of the index file, NULL without one */
} st_shards;

/* Order of preference: model.safetensors.index.json, model.safetensors, model-00001-of-0000N.safetensors (all N). */
int st_shards_find(st_shards *out, const char *dir, ds4_err *e);
/* With an index: every name it lists must be present, in the file it says. */
int st_shards_check(const st_shards *sh, st_set *s, ds4_err *e);
void st_shards_free(st_shards *sh);

#endif
