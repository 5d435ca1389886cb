/* ds4_prompt.h: the prompt that the options describe. */
#ifndef DS4_APP_DS4_PROMPT_H
#define DS4_APP_DS4_PROMPT_H

#include "app/ds4_opts.h"
#include "text/bpe.h"
#include "text/vocab.h"

/* The text of --prompt or --prompt-file; the caller frees *out. */
int prompt_text(const ds4_opts *o, char **out, size_t *n, ds4_err *e);

/* Its tokens: --token-ids as they are, --raw-prompt behind BOS, else rendered as a conversation. *thinking: the answer
 * begins inside a thought. */
int prompt_ids(const ds4_opts *o, const vocab *v, bpe_ids *out, bool *thinking, ds4_err *e);

#endif
