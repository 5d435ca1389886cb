/* cli_term.h: what a program tells its user on stderr: progress and one-line messages. */
#ifndef DS4_APP_CLI_TERM_H
#define DS4_APP_CLI_TERM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Progress of one thing after the other. On a terminal a bar that is redrawn and removed at the end; otherwise a plain
 * line every few seconds, so that short work leaves nothing in a log. */
typedef struct cli_progress {
    FILE *out;
    bool terminal;
    const char *program; /* begins plain lines */
    bool shown;          /* a bar stands on the screen */
    double start, next;  /* seconds; start 0: nothing begun */
    uint64_t last;       /* done at the last call; a smaller number begins anew */
} cli_progress;

void cli_progress_init(cli_progress *p, FILE *out, const char *program);
/* `what` is "load" (bytes) or anything else (counted things). done == total ends it. */
void cli_progress_step(cli_progress *p, const char *what, uint64_t done, uint64_t total);
/* Removes a bar that stands, before something else is printed. */
void cli_progress_clear(cli_progress *p);

/* Size in the unit that suits: "37.2 MB". */
const char *cli_bytes(uint64_t n, char *buf, size_t cap);

/* Opens what is closed of standard input, output and error, so that no file of ours gets their numbers and with them
 * text that is not for it. Writing to such an output still fails. Call first. */
void cli_hold_standard_files(void);

/* "PROGRAM: line" on stderr; control bytes (names may hold any) become spaces. */
__attribute__((format(printf, 2, 3)))
void cli_say(const char *program, const char *fmt, ...);

#endif
