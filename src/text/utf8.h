/* utf8.h: one strict UTF-8 step (Unicode chapter 3, table 3-7: no overlong forms, no surrogates, at most U+10FFFF). */
#ifndef DS4_TEXT_UTF8_H
#define DS4_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Looks at p[0..n), n >= 1, and returns
 *   k > 0   the first k bytes are one well-formed character, *cp is its code point;
 *   0       all n (<= 3) bytes are the beginning of a character that more bytes could complete;
 *   -k < 0  the first k bytes can never become a character (k is the "maximal subpart" that U+FFFD replaces). */
int utf8_step(const uint8_t *p, size_t n, uint32_t *cp);

/* Writes the 1..4 bytes of a code point (not a surrogate, <= 0x10FFFF) and returns their number. */
int utf8_put(uint32_t cp, uint8_t out[4]);

/* Byte offset of the first ill-formed (or, at the end, incomplete) sequence; n if all of it is well-formed. */
size_t utf8_check(const void *p, size_t n);

#endif
