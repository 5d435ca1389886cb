/* ds4_once.h: the commands of ds4 that end by themselves. Each returns an exit status and has printed its error. */
#ifndef DS4_APP_DS4_ONCE_H
#define DS4_APP_DS4_ONCE_H

#include "app/ds4_opts.h"

int ds4_once_answer(const ds4_opts *o);      /* --prompt, --prompt-file, --token-ids, --load, and --dump-logits */
int ds4_once_dump_tokens(const ds4_opts *o); /* also for a file that holds only a vocabulary */
int ds4_once_render(const ds4_opts *o);
int ds4_once_inspect(const ds4_opts *o);

#endif
