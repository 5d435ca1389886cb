#include "text/protocol.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/sha256.h"
#include "text/utf8.h"

#define MAX_TEXT (64u << 10)

typedef struct part {
    const char *file, *sha256, *own;
} part;

#define D "｜DSML｜"

/* Hashes: SHA-256 of the texts in DeepSeek's release. The wording in the last column is ours. */
static const part parts[PROTO_COUNT] = {
    [PROTO_TOOLS_PREFIX] = {"tools_prefix.txt", "c7c9042638154a237b5d1bd48be772374a35a4d24c5cacfd1ffbd92703da329c",
                            "## Tools\n\nThe functions listed below can be called. To call some, end the reply with "
                            "one block of this shape:\n\n"
                            "<" D "tool_calls>\n"
                            "<" D "invoke name=\"FUNCTION\">\n"
                            "<" D "parameter name=\"ARGUMENT\" string=\"true|false\">VALUE</" D "parameter>\n"
                            "</" D "invoke>\n"
                            "</" D "tool_calls>\n\n"
                            "Write one invoke element per call. A text argument has string=\"true\" and its value as "
                            "it is, without quotes or "
                            "escapes; any other argument has string=\"false\" and its value in JSON. If you think "
                            "first, close it with </think> "
                            "before the block.\n\nOne JSON schema per function:\n\n"},
    [PROTO_TOOLS_SUFFIX] = {"tools_suffix.txt", "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7",
                            "\n\nCall only these functions, with arguments that fit their schemas.\n"},
    [PROTO_EFFORT_LOW] = {"effort_low.txt", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", ""},
    [PROTO_EFFORT_HIGH] = {"effort_high.txt", "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7",
                           "Think long and carefully: split the problem into parts, try alternatives, and check each "
                           "step and edge case before "
                           "answering.\n\n"},
    [PROTO_EFFORT_MAX] =
        {"effort_max.txt", "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c",
         "Think as long as it takes: split the problem into its smallest parts, follow every alternative to its end, "
         "confirm the "
         "result in at least two independent ways, and look for mistakes until none is left before answering.\n\n"},
    [PROTO_RESPONSE] = {"response_format_heading.txt",
                        "5200f58413f49f3957c43beddbc97bead023232cb5934fad0c1997c30c139112",
                        "## Response Format\n\nReply with JSON that fits this schema and nothing else:\n"},
};

const char *protocol_file(enum protocol_part which) { return parts[which].file; }

void protocol_free(protocol *p)
{
    for (int i = 0; i < PROTO_COUNT; i++)
        free(p->text[i]);
    free(p->dir);
    *p = (protocol){0};
}

static int is_dir(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* Reads a regular file of at most MAX_TEXT bytes into *text (terminated). 1 = there is no such file. */
static int read_text(const char *path, char **text, size_t *n, ds4_err *e)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f)
        return errno == ENOENT ? 1 : ds4_fail(e, DS4_EIO, "%s: cannot open: %s", path, strerror(errno));
    char *buf = malloc(MAX_TEXT + 2);
    int rc = 0;
    if (!buf)
        rc = ds4_fail(e, DS4_ENOMEM, "%s: out of memory", path);
    else if (fstat(fileno(f), &st) || !S_ISREG(st.st_mode))
        rc = ds4_fail(e, DS4_EIO, "%s: not a regular file", path);
    else if ((*n = fread(buf, 1, MAX_TEXT + 1, f)), ferror(f))
        rc = ds4_fail(e, DS4_EIO, "%s: cannot read: %s", path, strerror(errno));
    else if (*n > MAX_TEXT)
        rc = ds4_fail(e, DS4_EFORMAT, "%s: over %u KiB, not a protocol text", path, MAX_TEXT >> 10);
    else if (utf8_check(buf, *n) < *n || memchr(buf, 0, *n))
        rc = ds4_fail(e, DS4_EFORMAT, "%s: not UTF-8 text (byte %zu)", path, utf8_check(buf, *n));
    fclose(f);
    if (rc) {
        free(buf);
        return rc;
    }
    buf[*n] = 0;
    *text = buf;
    return 0;
}

static int load_part(protocol *p, int i, ds4_err *e)
{
    int missing = 1;
    if (p->dir) {
        char path[4096];
        if (snprintf(path, sizeof path, "%s/%s", p->dir, parts[i].file) >= (int)sizeof path)
            return ds4_fail(e, DS4_EARG, "protocol folder: path too long");
        missing = read_text(path, &p->text[i], &p->n[i], e);
        if (missing < 0)
            return missing;
    }
    if (missing) {
        p->text[i] = strdup(parts[i].own);
        p->origin[i] = PROTO_OWN;
        if (!p->text[i])
            return ds4_fail(e, DS4_ENOMEM, "out of memory for the protocol texts");
        p->n[i] = strlen(p->text[i]);
        return 0;
    }
    char hex[65];
    sha256_hex(p->text[i], p->n[i], hex);
    p->origin[i] = strcmp(hex, parts[i].sha256) ? PROTO_DIFFERS : PROTO_OFFICIAL;
    return 0;
}

/* The folder to read into p->dir, NULL if there is none. */
static int choose_dir(protocol *p, const char *dir, const char *model_path, ds4_err *e)
{
    char path[4096];
    if (dir) {
        if (!is_dir(dir))
            return ds4_fail(e, DS4_EIO, "%s: not a folder (it should hold the protocol texts, e.g. %s)", dir,
                            parts[0].file);
    } else if (model_path) {
        const char *slash = strrchr(model_path, '/');
        int k = snprintf(path, sizeof path, "%.*sprotocol", slash ? (int)(slash - model_path + 1) : 0, model_path);
        if (k >= 0 && k < (int)sizeof path && is_dir(path))
            dir = path;
    }
    if (dir && !(p->dir = strdup(dir)))
        return ds4_fail(e, DS4_ENOMEM, "out of memory for the protocol texts");
    return 0;
}

int protocol_load(protocol *p, const char *dir, const char *model_path, ds4_err *e)
{
    *p = (protocol){0};
    int rc = choose_dir(p, dir, model_path, e);
    for (int i = 0; !rc && i < PROTO_COUNT; i++)
        rc = load_part(p, i, e);
    if (rc)
        protocol_free(p);
    return rc;
}

/* Appends ", name" for every part of this origin. An effort_low.txt that is absent says nothing: its official text is
 * empty. */
static int list(const protocol *p, enum protocol_origin origin, char *out, size_t size)
{
    size_t n = 0;
    int count = 0;
    out[0] = 0;
    for (int i = 0; i < PROTO_COUNT; i++) {
        if (p->origin[i] != origin || (origin == PROTO_OWN && i == PROTO_EFFORT_LOW))
            continue;
        int k = snprintf(out + n, size - n, "%s%s", count++ ? ", " : "", parts[i].file);
        n = k < 0 || (size_t)k >= size - n ? size - 1 : n + (size_t)k;
    }
    return count;
}

bool protocol_notice(const protocol *p, char *out, size_t size)
{
    char own[200], differ[200];
    int n_own = list(p, PROTO_OWN, own, sizeof own), n_differ = list(p, PROTO_DIFFERS, differ, sizeof differ);
    out[0] = 0;
    if (!p->dir)
        snprintf(out, size, "no protocol folder: tools, effort and response formats use our own short wording "
                 "(put DeepSeek's texts into protocol/ beside the model, or give --protocol DIR)");
    else if (n_own || n_differ)
        snprintf(out, size, "%s:%s%s%s%s%s", p->dir, n_differ ? " not DeepSeek's official text: " : "", differ,
                 n_own && n_differ ? ";" : "", n_own ? " missing, our own wording is used: " : "", own);
    return out[0] != 0;
}
