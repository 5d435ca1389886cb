#define _GNU_SOURCE
#include "base/fsio.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

static int fail_errno(ds4_err *e, const char *path, const char *doing)
{
    int code = errno == ENOMEM ? DS4_ENOMEM : DS4_EIO;
    return ds4_fail(e, code, "%s: cannot %s: %s", path, doing, strerror(errno));
}

/* The file that `path` stands for: links resolved if it exists. NULL with errno set. */
static char *resolve(const char *path, struct stat *st, int *exists)
{
    *exists = !stat(path, st);
    return *exists ? realpath(path, NULL) : strdup(path);
}

/* The n-th name beside w->path that is tried for the new file. */
static void name_temp(fsio_writer *w, size_t room, int n)
{
    unsigned long tick = (unsigned long)(clock_now() * 1e6) + (unsigned)n;
    snprintf(w->temp, room, "%s.%lx.%lx.tmp", w->path, (unsigned long)getpid(), tick & 0xffffffffu);
}

static size_t temp_room(const fsio_writer *w) { return strlen(w->path) + 48; }

/* A file without a name in the folder of w->path: whatever ends this program, nothing is left behind. Not every file
 * system has such files, and giving it a name at the end needs /proc. */
static bool create_nameless(fsio_writer *w, mode_t mode)
{
    char *copy = strdup(w->path);
    if (copy && !access("/proc/self/fd", X_OK))
        w->fd = open(dirname(copy), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
    free(copy);
    return w->fd >= 0;
}

/* Creates a file beside w->path, without a name where that is possible, else under one that is not in use. */
static int create_temp(fsio_writer *w, mode_t mode, ds4_err *e)
{
    w->temp = malloc(temp_room(w));
    if (!w->temp)
        return ds4_fail(e, DS4_ENOMEM, "%s: no memory for a file name", w->path);
    w->nameless = create_nameless(w, mode);
    for (int i = 0; i < 100 && w->fd < 0; i++) {
        name_temp(w, temp_room(w), i);
        w->fd = open(w->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (w->fd < 0 && errno != EEXIST)
            break;
    }
    return w->fd >= 0 ? 0 : fail_errno(e, w->path, "create a file in its folder");
}

/* Gives a nameless file a name. */
static int link_temp(fsio_writer *w, ds4_err *e)
{
    char self[40];
    if (!w->nameless)
        return 0;
    snprintf(self, sizeof self, "/proc/self/fd/%d", w->fd);
    for (int i = 0; i < 100; i++) {
        name_temp(w, temp_room(w), i);
        if (!linkat(AT_FDCWD, self, AT_FDCWD, w->temp, AT_SYMLINK_FOLLOW)) {
            w->nameless = false;
            return 0;
        }
        if (errno != EEXIST)
            break;
    }
    return fail_errno(e, w->path, "name the new file");
}

static void release(fsio_writer *w)
{
    free(w->path);
    free(w->temp);
    *w = (fsio_writer){.fd = -1};
}

int fsio_begin(fsio_writer *w, const char *path, ds4_err *e)
{
    struct stat st;
    int exists;
    *w = (fsio_writer){.fd = -1};
    if (!*path)
        return ds4_fail(e, DS4_EARG, "the name of the file to write is empty");
    w->path = resolve(path, &st, &exists);
    if (!w->path)
        return fail_errno(e, path, "resolve the name");
    int rc = 0;
    if (exists && !S_ISREG(st.st_mode))
        rc = ds4_fail(e, DS4_EARG, "%s: is %s, expected a regular file or a new name", path,
                      S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    if (!rc)
        rc = create_temp(w, exists ? st.st_mode & 0777 : 0666, e);
    if (!rc && exists && fchmod(w->fd, st.st_mode & 0777))
        rc = fail_errno(e, w->temp, "set permissions");
    if (rc)
        fsio_abort(w);
    return rc;
}

int fsio_put(fsio_writer *w, const void *data, size_t n, ds4_err *e)
{
    const char *p = data;
    while (!w->rc && n) {
        ssize_t k = write(w->fd, p, n < (1u << 30) ? n : 1u << 30);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0) {
            w->rc = fail_errno(e, w->path, "write");
            break;
        }
        p += k;
        n -= (size_t)k;
        w->bytes += (uint64_t)k;
    }
    return w->rc;
}

static void remove_temp(const fsio_writer *w)
{
    if (!w->nameless)
        unlink(w->temp);
}

/* Makes the rename itself durable. Some file systems cannot sync a folder; the data is safe all the same. */
static void sync_folder(char *path)
{
    int fd = open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

int fsio_commit(fsio_writer *w, ds4_err *e)
{
    int rc = w->rc;
    if (!rc && fsync(w->fd))
        rc = fail_errno(e, w->path, "write to disk");
    if (!rc)
        rc = link_temp(w, e);
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) && !rc)
        rc = fail_errno(e, w->path, "close");
    if (!rc && rename(w->temp, w->path))
        rc = fail_errno(e, w->path, "replace");
    if (rc) {
        remove_temp(w);
    } else {
        sync_folder(w->path);
    }
    release(w);
    return rc;
}

void fsio_abort(fsio_writer *w)
{
    if (w->fd >= 0) {
        close(w->fd);
        remove_temp(w);
    }
    release(w);
}

int fsio_write(const char *path, const void *data, size_t n, ds4_err *e)
{
    fsio_writer w;
    int rc = fsio_begin(&w, path, e);
    if (rc)
        return rc;
    fsio_put(&w, data, n, e);
    return fsio_commit(&w, e);
}

/* Reads until the end or until the limit is passed. *buf may move. */
static int read_all(int fd, const char *path, size_t limit, char **buf, size_t *n, ds4_err *e)
{
    size_t room = 0;
    for (*n = 0;;) {
        if (room - *n < 2) { /* one byte past the limit, and the zero */
            room = room ? 2 * room : 16384;
            char *grown = realloc(*buf, room);
            if (!grown)
                return ds4_fail(e, DS4_ENOMEM, "%s: no memory for %zu bytes", path, room);
            *buf = grown;
        }
        ssize_t k = read(fd, *buf + *n, room - *n - 1);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return fail_errno(e, path, "read");
        if (k == 0)
            break;
        *n += (size_t)k;
        if (*n > limit)
            return ds4_fail(e, DS4_EARG, "%s: is longer than %zu bytes, the most that is accepted here", path, limit);
    }
    (*buf)[*n] = 0;
    return 0;
}

int fsio_read(const char *path, size_t limit, char **out, size_t *n, ds4_err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(e, path, "open");
    char *buf = NULL;
    size_t len = 0;
    int rc = read_all(fd, path, limit, &buf, &len, e);
    close(fd);
    if (rc) {
        free(buf);
        return rc;
    }
    *out = buf;
    *n = len;
    return 0;
}
