#include "convert/slurp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int slurp(char **out, size_t *len, const char *path, size_t max, ds4_err *e)
{
    struct stat sb;
    FILE *f = fopen(path, "rb");
    if (!f)
        return ds4_fail(e, DS4_EIO, "%s: %s", path, strerror(errno));
    if (fstat(fileno(f), &sb) || !S_ISREG(sb.st_mode) || sb.st_size < 0 || (size_t)sb.st_size > max) {
        fclose(f);
        return ds4_fail(e, DS4_EFORMAT, "%s: not a regular file of at most %zu bytes", path, max);
    }
    size_t n = (size_t)sb.st_size;
    char *buf = malloc(n + 1);
    size_t got = buf ? fread(buf, 1, n, f) : 0;
    fclose(f);
    if (!buf || got != n) {
        free(buf);
        return ds4_fail(e, buf ? DS4_EIO : DS4_ENOMEM, "%s: cannot read %zu bytes", path, n);
    }
    buf[n] = 0;
    *out = buf;
    *len = n;
    return 0;
}
