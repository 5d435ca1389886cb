/* pretok.h: cuts text into the pieces inside which byte-pair merges may happen.
 *
 * DeepSeek's tokenizer runs three splitters one after the other. Each sees the pieces that the previous one left, one
 * at a time (matches as well as gaps), and cuts each into its own matches and the gaps between them:
 *   1. \p{N}{1,3}
 *   2. [U+4E00-9FA5 U+3040-309F U+30A0-30FF]+
 *   3. a  one ASCII punctuation character + [A-Za-z]+
 *      b  [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
 *      c  " "?[\p{P}\p{S}]+[\r\n]*
 *      d  \s*[\r\n]+        e  \s+(?!\S)        f  \s+
 * Borders of 1 and 2 depend only on the class of a character, so one forward scan with digits and CJK as zones gives
 * the same pieces as three passes, in linear time and without a regular-expression engine's limits. Categories come
 * from PCRE2's Unicode tables, read once when the object is made; \s is White_Space.
 *
 * Bytes that are not well-formed UTF-8 are never lost and never fail: a maximal run of them is a piece of its own, and
 * the text before and after it is split as if it ended or began there. */
#ifndef DS4_TEXT_PRETOK_H
#define DS4_TEXT_PRETOK_H

#include <stddef.h>

#include "base/err.h"

typedef struct pretok pretok; /* immutable once made: any number of threads may share it */

int pretok_new(pretok **out, ds4_err *e); /* about 10 ms: reads the Unicode categories */
void pretok_free(pretok *p);              /* NULL is fine */

/* The end of the piece that begins at `pos` (pos < len). `pos` must be 0 or a value returned before for the same text;
 * the pieces [0,a) [a,b) ... cover every byte. O(1) amortised per byte. */
size_t pretok_next(const pretok *p, const char *text, size_t len, size_t pos);

#endif
