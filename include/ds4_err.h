/* ds4_err.h: error codes and the one line of text that goes with them; shared by the public header and all rooms. */
#ifndef DS4_ERR_H
#define DS4_ERR_H

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

#endif
