/* ds4_talk.h: a conversation at the command line and its prompt tokens. */
#ifndef DS4_APP_DS4_TALK_H
#define DS4_APP_DS4_TALK_H

#include "app/ds4_opts.h"
#include "text/bpe.h"
#include "text/chat.h"

typedef struct talk {
    chat_msg *msg; /* contents are owned */
    size_t n, cap;
    chat_opts opts;
    protocol proto; /* opts.proto points here: a talk is not moved */
} talk;

/* Loads the protocol texts, settles thinking, effort and release, and adds the system message if there is one. A text
 * that the options lead to and that is not DeepSeek's own is mentioned on stderr. */
int talk_open(talk *t, const ds4_opts *o, ds4_err *e);
void talk_close(talk *t);

/* Copies the texts. */
int talk_add(talk *t, enum chat_role role, const char *content, size_t n, const char *reasoning, size_t n_reasoning,
             ds4_err *e);
/* Removes the last message. */
void talk_drop(talk *t);
/* Back to the system message alone. */
void talk_reset(talk *t);

/* The prompt up to where the assistant begins; replaces what `out` held. */
int talk_encode(const talk *t, const vocab *v, bpe_ids *out, ds4_err *e);

#endif
