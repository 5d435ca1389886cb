#include "app/cli_file.h"

#include <string.h>
#include <sys/stat.h>

bool cli_same_file(const char *a, const char *b)
{
    struct stat x, y;
    if (!a || !b)
        return false;
    if (stat(a, &x) || stat(b, &y))
        return !strcmp(a, b);
    return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
