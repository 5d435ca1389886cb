/* err.h: how every room reports failure.
 *
 * A function that can fail takes a `ds4_err *e` last and returns 0 on success or a negative DS4_E* code
 * on failure. On failure it has written ONE line into e->msg that says what, where, and what to do; it has
 * released what it took, and left its outputs unset. `e` may be NULL when the caller does not want the text. */
#ifndef DS4_BASE_ERR_H
#define DS4_BASE_ERR_H

enum {
    DS4_OK = 0,
    DS4_EIO = -1,      /* the operating system refused: open, read, write, map */
    DS4_EFORMAT = -2,  /* a file is malformed, truncated or of an unknown version */
    DS4_EMODEL = -3,   /* a well-formed file that is not the model we need (tensor, shape, type, architecture) */
    DS4_EARG = -4,     /* the caller asked for something impossible (option, range, context) */
    DS4_ENOMEM = -5,   /* allocation failed */
    DS4_EBACKEND = -6, /* device or backend failure; the session is POISONED */
    DS4_ESTATE = -7,   /* call not legal in this state (session not READY, rewind too far) */
    DS4_ECANCEL = -8,  /* the caller's cancel callback said stop */
};

typedef struct ds4_err {
    int code;      /* last code, 0 if none */
    char msg[500]; /* one line, no newline, UTF-8 */
} ds4_err;

/* Writes the formatted line (newlines become spaces, over-long text is cut) and returns `code`, so that
 * `return ds4_fail(e, DS4_EFORMAT, "...", ...)` is the idiom. */
__attribute__((format(printf, 3, 4)))
int ds4_fail(ds4_err *e, int code, const char *fmt, ...);

/* Puts "context: " in front of the message already in e (for example a file name). Returns e's code. */
__attribute__((format(printf, 2, 3)))
int ds4_wrap(ds4_err *e, const char *fmt, ...);

#endif
