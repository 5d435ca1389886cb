/* ds4_chat.h: the interactive prompt. */
#ifndef DS4_APP_DS4_CHAT_H
#define DS4_APP_DS4_CHAT_H

#include "app/ds4_opts.h"

/* Reads lines until /quit or the end of input. Returns an exit status and has printed its errors. An answer that fails
 * is reported and the conversation goes on; input that is no terminal ends there with status 1. */
int ds4_chat(const ds4_opts *o);

#endif
