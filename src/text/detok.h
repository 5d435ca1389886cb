/* detok.h: tokens back to text, one at a time, always whole UTF-8 characters.
 *
 * A character may be spread over several tokens; its first bytes (at most 3) are held back until it is complete. Bytes
 * that can never become a character leave as U+FFFD, one per maximal subpart (the practice that Unicode recommends), as
 * soon as that is certain; an unfinished character at the end leaves as one U+FFFD with detok_flush. */
#ifndef DS4_TEXT_DETOK_H
#define DS4_TEXT_DETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "text/vocab.h"

typedef struct detok {
    const vocab *v;
    bool show_added; /* added tokens (role markers, think tags, DSML): printed literally, or left out */
    uint8_t held[4];
    size_t n_held; /* 0..3 */
    char *buf;     /* text handed out last; reused */
    size_t cap;
} detok;

void detok_init(detok *d, const vocab *v, bool show_added);
void detok_free(detok *d);

/* Adds one token. *text (length *n, may be 0, terminated) is what became certain; valid until the next call on d.
 * A character that an added token interrupts is flushed first, also when the token itself is left out.
 * Errors: DS4_EARG for an id outside the vocabulary, DS4_ENOMEM. */
int detok_push(detok *d, int32_t id, const char **text, size_t *n, ds4_err *e);
/* The same for raw bytes (for callers that have no token). */
int detok_bytes(detok *d, const char *p, size_t len, const char **text, size_t *n, ds4_err *e);
/* End of the text: hands out U+FFFD if a character was left unfinished. d is then as new. */
int detok_flush(detok *d, const char **text, size_t *n, ds4_err *e);

#endif
