/* cli_signal.h: Ctrl-C as a request to stop what is going on. */
#ifndef DS4_APP_CLI_SIGNAL_H
#define DS4_APP_CLI_SIGNAL_H

#include <stdbool.h>

/* From now on SIGINT sets a flag; a second one, while the flag is still set, ends the program as usual. */
void cli_signal_catch(void);
bool cli_signal_seen(void);
void cli_signal_clear(void);

#endif
