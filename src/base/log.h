/* log.h: messages for the user of the library. Nothing is printed here: lines go to a sink that the program gave. */
#ifndef DS4_BASE_LOG_H
#define DS4_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Receives one finished line without newline. May be called from any thread that logs. */
typedef void (*log_sink)(void *user, enum log_level level, const char *line);

/* A logger is a value: whoever opens the engine fills it, rooms pass a const pointer on. A NULL logger or sink is
 * silent. */
typedef struct logger {
    enum log_level level; /* the most detailed level that is passed on */
    log_sink sink;
    void *user;
} logger;

bool log_wants(const logger *l, enum log_level level);

/* Formats one line (control bytes become spaces, cut at 1000 bytes) and hands it to the sink. */
__attribute__((format(printf, 3, 4)))
void log_write(const logger *l, enum log_level level, const char *fmt, ...);

/* Lets a repeated message through at most once per `every` seconds. {.every = 5} is ready to use. Not shared by
 * threads. */
typedef struct log_rate {
    double every; /* seconds */
    double next;  /* time from which the next one passes; 0: at once */
    unsigned held; /* suppressed since the last one that passed */
} log_rate;

/* `now` from clock_now. True if the message may be written; *suppressed (may be NULL) is then the number held back
 * before it. */
bool log_allow(log_rate *r, double now, unsigned *suppressed);

#endif
