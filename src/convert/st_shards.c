#include "convert/st_shards.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_SHARDS = 10000 };

void st_shards_free(st_shards *sh)
{
    for (size_t i = 0; i < sh->n; i++)
        free(sh->path[i]);
    free(sh->path);
    free(sh->index);
    json_decref(sh->map);
    *sh = (st_shards){0};
}

static char *join(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *p = malloc(n);
    if (p)
        snprintf(p, n, "%s/%s", dir, name);
    return p;
}

static int add_path(st_shards *sh, const char *dir, const char *name, ds4_err *e)
{
    char *p = join(dir, name), **grown = realloc(sh->path, (sh->n + 1) * sizeof *grown);
    if (grown)
        sh->path = grown;
    if (!p || !grown) {
        free(p);
        return ds4_fail(e, DS4_ENOMEM, "out of memory listing %s", dir);
    }
    sh->path[sh->n++] = p;
    return 0;
}

/* Files named by the index, each once. A name with a slash would leave the directory and is refused. */
static int from_index(st_shards *sh, const char *dir, ds4_err *e)
{
    json_error_t je;
    json_t *root = json_load_file(sh->index, JSON_REJECT_DUPLICATES, &je), *seen = json_object(), *v;
    const char *name;
    int rc = 0;
    sh->map = json_incref(json_object_get(root, "weight_map"));
    if (!root || !json_is_object(sh->map) || json_object_size(sh->map) == 0)
        rc = ds4_fail(e, DS4_EFORMAT, "%s: no weight_map object: %s", sh->index, root ? "missing or empty" : je.text);
    else json_object_foreach(sh->map, name, v) {
        const char *file = json_string_value(v);
        if (!file || !*file || strchr(file, '/')) {
            rc = ds4_fail(e, DS4_EFORMAT, "%s: %s: expected the name of a file in the same directory", sh->index, name);
            break;
        }
        if (json_object_get(seen, file))
            continue;
        if (sh->n >= MAX_SHARDS || json_object_set_new(seen, file, json_true())) {
            rc = ds4_fail(e, DS4_EFORMAT, "%s: too many shards", sh->index);
            break;
        }
        if ((rc = add_path(sh, dir, file, e)))
            break;
    }
    json_decref(seen);
    json_decref(root);
    return rc;
}

/* N of the "-of-N" of any shard in dir, 0 if there is none. */
static unsigned shard_total(const char *dir)
{
    DIR *d = opendir(dir);
    unsigned total = 0;
    for (struct dirent *it; d && (it = readdir(d));) {
        unsigned no, of;
        int len = 0;
        if (sscanf(it->d_name, "model-%5u-of-%5u.safetensors%n", &no, &of, &len) == 2 && len > 0 && !it->d_name[len])
            total = of;
    }
    if (d)
        closedir(d);
    return total;
}

int st_shards_find(st_shards *out, const char *dir, ds4_err *e)
{
    *out = (st_shards){0};
    int rc = 0;
    char *index = join(dir, "model.safetensors.index.json"), *single = join(dir, "model.safetensors");
    unsigned total = shard_total(dir);
    if (!index || !single) {
        rc = ds4_fail(e, DS4_ENOMEM, "out of memory listing %s", dir);
    } else if (access(index, F_OK) == 0) {
        out->index = index;
        index = NULL;
        rc = from_index(out, dir, e);
    } else if (access(single, F_OK) == 0) {
        rc = add_path(out, dir, "model.safetensors", e);
    } else if (total > 0 && total <= MAX_SHARDS) {
        for (unsigned i = 1; i <= total && !rc; i++) {
            char name[64];
            snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", i, total);
            rc = add_path(out, dir, name, e);
        }
    } else {
        rc = ds4_fail(e, DS4_EIO, "%s: no model.safetensors, no model-00001-of-0000N.safetensors and no "
                      "model.safetensors.index.json found", dir);
    }
    free(index);
    free(single);
    if (rc)
        st_shards_free(out);
    return rc;
}

int st_shards_check(const st_shards *sh, st_set *s, ds4_err *e)
{
    const char *name;
    json_t *v;
    if (!sh->map)
        return 0;
    json_object_foreach(sh->map, name, v) {
        const st_tensor *t = st_find(s, strncmp(name, "model.", 6) ? name : name + 6);
        const char *file = t ? strrchr(st_file(s, t), '/') + 1 : NULL;
        if (!t || strcmp(file, json_string_value(v)))
            return ds4_fail(e, DS4_EMODEL, "%s: tensor %s should be in %s, found %s", sh->index, name,
                            json_string_value(v), t ? file : "nowhere");
    }
    return 0;
}
