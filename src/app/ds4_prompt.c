#include "app/ds4_prompt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app/ds4_talk.h"
#include "base/fsio.h"

enum { MOST_BYTES = 256 << 20 };
static const char between_ids[] = " \t\r\n,[]"; /* blanks, and the array of --dump-tokens */

int prompt_text(const ds4_opts *o, char **out, size_t *n, ds4_err *e)
{
    if (o->prompt_file)
        return fsio_read(strcmp(o->prompt_file, "-") ? o->prompt_file : "/dev/stdin", MOST_BYTES, out, n, e);
    *out = strdup(o->prompt);
    *n = strlen(o->prompt);
    return *out ? 0 : ds4_fail(e, DS4_ENOMEM, "no memory for the prompt");
}

static int read_ids(const char *path, const vocab *v, bpe_ids *out, ds4_err *e)
{
    char *text, *end;
    size_t n;
    int rc = fsio_read(path, MOST_BYTES, &text, &n, e);
    if (rc)
        return rc;
    for (char *s = text + strspn(text, between_ids); !rc && s < text + n; s = end + strspn(end, between_ids)) {
        errno = 0;
        long id = strtol(s, &end, 10);
        if (errno || end == s || (*end && !strchr(between_ids, *end)) || id < 0 || id >= (long)vocab_size(v))
            rc = ds4_fail(e, DS4_EFORMAT, "%s: '%.*s' at byte %zu is no token id, expected 0 to %u", path,
                          (int)strcspn(s, between_ids), s, (size_t)(s - text), vocab_size(v) - 1);
        else
            rc = bpe_ids_push(out, (int32_t)id, e);
    }
    if (!rc && !out->n)
        rc = ds4_fail(e, DS4_EFORMAT, "%s: holds no token id", path);
    free(text);
    return rc;
}

static int raw_ids(const ds4_opts *o, const vocab *v, const char *text, size_t n, bpe_ids *out, ds4_err *e)
{
    int rc = bpe_encode(v, text, n, o->parse_special, out, e);
    if (!rc && (out->n == 0 || out->id[0] != vocab_bos(v))) {
        rc = bpe_ids_push(out, 0, e);
        if (!rc) {
            memmove(out->id + 1, out->id, (out->n - 1) * sizeof *out->id);
            out->id[0] = vocab_bos(v);
        }
    }
    return rc;
}

static int chat_ids(const ds4_opts *o, const vocab *v, const char *text, size_t n, bpe_ids *out, bool *thinking,
                    ds4_err *e)
{
    talk t;
    int rc = talk_open(&t, o, e);
    if (rc)
        return rc;
    *thinking = t.opts.thinking;
    rc = talk_add(&t, CHAT_USER, text, n, NULL, 0, e);
    if (!rc)
        rc = talk_encode(&t, v, out, e);
    talk_close(&t);
    return rc;
}

int prompt_ids(const ds4_opts *o, const vocab *v, bpe_ids *out, bool *thinking, ds4_err *e)
{
    char *text;
    size_t n;
    *thinking = false;
    if (o->token_ids)
        return read_ids(o->token_ids, v, out, e);
    int rc = prompt_text(o, &text, &n, e);
    if (rc)
        return rc;
    rc = o->raw ? raw_ids(o, v, text, n, out, e) : chat_ids(o, v, text, n, out, thinking, e);
    free(text);
    return rc;
}
