/* fsio.h: whole files. A file is either replaced completely or left as it was. */
#ifndef DS4_BASE_FSIO_H
#define DS4_BASE_FSIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Atomic writing: begin makes a temporary file in the folder of `path` (without a name where the file system can, so
 * that a killed program leaves nothing), put appends, commit syncs and renames it over `path`. Until commit succeeds an
 * existing file is untouched. A symbolic link is followed; anything but a regular file
 * is refused. The new file gets the permissions of the old one, or those of the umask. */
typedef struct fsio_writer {
    int fd;
    bool nameless;     /* the new file has no name yet */
    char *path, *temp; /* owned */
    uint64_t bytes;    /* written so far */
    int rc;            /* first failure; sticky */
} fsio_writer;

int fsio_begin(fsio_writer *w, const char *path, ds4_err *e);
/* After a failed put, further puts and the commit fail with the same code and leave `e` alone. */
int fsio_put(fsio_writer *w, const void *data, size_t n, ds4_err *e);
/* Always releases the writer; on failure the temporary file is gone. */
int fsio_commit(fsio_writer *w, ds4_err *e);
/* Gives up: removes the temporary file and releases the writer. Harmless after commit. */
void fsio_abort(fsio_writer *w);

/* begin, one put, commit. */
int fsio_write(const char *path, const void *data, size_t n, ds4_err *e);

/* Reads a whole file (a pipe too) of at most `limit` bytes into fresh memory that the caller frees; a zero byte follows
 * the data. DS4_EIO if it cannot be read, DS4_EARG if it is longer than the limit. */
int fsio_read(const char *path, size_t limit, char **out, size_t *n, ds4_err *e);

#endif
