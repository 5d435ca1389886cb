/* ds4_line.h: lines that somebody types: with editing and history on a terminal, plain ones otherwise. */
#ifndef DS4_APP_DS4_LINE_H
#define DS4_APP_DS4_LINE_H

#include <stdbool.h>

#include "base/err.h"

typedef struct line_reader line_reader;

/* history: file of earlier lines, NULL for .ds4_history in the home folder. Trouble with it is no error. */
int line_open(line_reader **out, const char *program, const char *history, ds4_err *e);
/* The next line without its newline, valid until the next call; NULL at the end (Ctrl-D). *interrupted: Ctrl-C was
 * typed instead; the line is then empty. */
const char *line_read(line_reader *l, bool *interrupted);
bool line_terminal(const line_reader *l);
void line_close(line_reader *l); /* saves the history */

#endif
