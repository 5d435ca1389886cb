/* protocol.h: the fixed texts that DeepSeek-V4 was trained to see around tools, reasoning effort and response formats.
 *
 * They are not part of this program. They are read from a folder: files tools_prefix.txt, tools_suffix.txt,
 * effort_low.txt, effort_high.txt, effort_max.txt, response_format_heading.txt. Each is compared with the SHA-256 of
 * the official text. A text that is missing is replaced by a short wording of our own with the same function; the model
 * follows it, but was not trained on it. */
#ifndef DS4_TEXT_PROTOCOL_H
#define DS4_TEXT_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum protocol_part { /* in the order of the files above */
    PROTO_TOOLS_PREFIX, /* before the tool schemas; ends with an empty line */
    PROTO_TOOLS_SUFFIX, /* after them; begins with an empty line, ends with one newline */
    PROTO_EFFORT_LOW,   /* 0731: empty */
    PROTO_EFFORT_HIGH,  /* 0731: high; preview: max */
    PROTO_EFFORT_MAX,   /* 0731: max */
    PROTO_RESPONSE,     /* before a response schema */
    PROTO_COUNT
};

enum protocol_origin {
    PROTO_OFFICIAL, /* the hash is that of the official text */
    PROTO_DIFFERS,  /* read from the folder, other content */
    PROTO_OWN       /* our own wording: no such file */
};

typedef struct protocol {
    char *text[PROTO_COUNT]; /* terminated, valid UTF-8 */
    size_t n[PROTO_COUNT];
    enum protocol_origin origin[PROTO_COUNT];
    char *dir; /* the folder that was read; NULL if none was found */
} protocol;

/* Loads the texts. dir != NULL: that folder, and it is an error if it is none. Else the folder `protocol` beside
 * model_path, if model_path is given and the folder exists; else our own wording. A file that is unreadable, over 64
 * KiB or not UTF-8 is an error (DS4_EIO, DS4_EFORMAT); a missing file is not. */
int protocol_load(protocol *p, const char *dir, const char *model_path, ds4_err *e);
void protocol_free(protocol *p);

/* One line for the caller to print once, in out (terminated, cut at size); returns false (and an empty line) if every
 * text is official and there is nothing to say. */
bool protocol_notice(const protocol *p, char *out, size_t size);

/* File name of a part, e.g. "tools_prefix.txt". */
const char *protocol_file(enum protocol_part part);

#endif
