/* err.h: how every room reports failure.
 *
 * A function that can fail takes a `ds4_err *e` last and returns 0 on success or a negative DS4_E* code
 * on failure. On failure it has written ONE line into e->msg that says what, where, and what to do; it has
 * released what it took, and left its outputs unset. `e` may be NULL when the caller does not want the text. */
#ifndef DS4_BASE_ERR_H
#define DS4_BASE_ERR_H

#include "ds4_err.h"

/* Writes the formatted line (newlines become spaces, over-long text is cut) and returns `code`, so that
 * `return ds4_fail(e, DS4_EFORMAT, "...", ...)` is the idiom. */
__attribute__((format(printf, 3, 4)))
int ds4_fail(ds4_err *e, int code, const char *fmt, ...);

/* Puts "context: " in front of the message already in e (for example a file name). Returns e's code. */
__attribute__((format(printf, 2, 3)))
int ds4_wrap(ds4_err *e, const char *fmt, ...);

#endif
