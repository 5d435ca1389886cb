/* ds4_emit.h: tokens of an answer to standard output, as they come.
 *
 * Thoughts are dimmed on a terminal; elsewhere they stand between <think> and </think>. On a terminal control
 * characters that a model might write (escape sequences) are shown as U+FFFD instead of being obeyed. */
#ifndef DS4_APP_DS4_EMIT_H
#define DS4_APP_DS4_EMIT_H

#include <stdbool.h>
#include <stdio.h>

#include "json/pyjson.h"
#include "text/detok.h"

typedef struct emit {
    FILE *out;
    bool terminal, thinking, raw;
    detok d;
    int32_t think, think_end;
    pyjson_buf reasoning, content; /* what was written, by kind */
    char last;                     /* last byte written; 0 at first */
} emit;

/* thinking: the answer begins inside a thought. raw: think tags are ordinary text. */
void emit_open(emit *m, const vocab *v, FILE *out, bool thinking, bool raw);
int emit_token(emit *m, int32_t id, ds4_err *e);
/* Ends the answer: the last character, colours, a newline. */
int emit_end(emit *m, ds4_err *e);
void emit_close(emit *m);

#endif
