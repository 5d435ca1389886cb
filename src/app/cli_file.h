/* cli_file.h: what options say about files. */
#ifndef DS4_APP_CLI_FILE_H
#define DS4_APP_CLI_FILE_H

#include <stdbool.h>

/* Both name one file, by whatever path; of files that do not exist the names count. NULL is no file. */
bool cli_same_file(const char *a, const char *b);

#endif
