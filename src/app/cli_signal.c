#define _GNU_SOURCE
#include "app/cli_signal.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

/* The one mutable variable of the project: a handler has no other way to tell. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int no)
{
    if (interrupted) {
        signal(no, SIG_DFL);
        raise(no);
    }
    interrupted = 1;
}

void cli_signal_catch(void)
{
    /* No SA_RESTART: a read at the prompt shall return. */
    struct sigaction sa = {.sa_handler = on_interrupt};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
}

bool cli_signal_seen(void) { return interrupted; }
void cli_signal_clear(void) { interrupted = 0; }
