/* pyjson.h: JSON as Python's json module reads and prints it, since DeepSeek-V4 was trained on prompts printed by
 * json.dumps.
 *
 * Reading is strict (UTF-8, no NaN, no comments, no trailing text) and bounded. Key order is kept; of a repeated key
 * the last value counts, at the first place. Integers beyond 64 bits survive unchanged: in the tree they are strings
 * that begin with PYJSON_BIG, a Unicode noncharacter that is refused in input, so that nothing else can look like one.
 */
#ifndef DS4_JSON_PYJSON_H
#define DS4_JSON_PYJSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define PYJSON_BIG "\xF2\xBF\xBF\xBE" /* U+BFFFE */
#define PYJSON_MAX_BYTES (64u << 20)
#define PYJSON_MAX_DEPTH 256

/* Parses one JSON value of any kind. Errors (DS4_EFORMAT) say the byte offset and the reason. *out: json_decref when
 * done. */
int pyjson_parse(const char *text, size_t n, json_t **out, ds4_err *e);

/* A real string (not a big integer in disguise). */
bool pyjson_is_text(const json_t *v);

/* Text that grows. Zero-initialise; free(p) releases it. Terminated once anything was written. */
typedef struct pyjson_buf {
    char *p;
    size_t n, cap;
} pyjson_buf;

int pyjson_put(pyjson_buf *b, const char *p, size_t n, ds4_err *e);

/* Appends v as json.dumps(v, ensure_ascii=False) prints it: ", " and ": ", keys in order, shortest floats that read
 * back. */
int pyjson_dump(pyjson_buf *b, const json_t *v, ds4_err *e);

/* Python's repr of a finite double, terminated. */
void pyjson_float(double x, char out[32]);

#endif
