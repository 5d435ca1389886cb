/* chat_turns.h: from messages to turns (merging, reordering, dropping); the first half of chat_render. */
#ifndef DS4_TEXT_CHAT_TURNS_H
#define DS4_TEXT_CHAT_TURNS_H

#include "text/chat.h"

/* A turn covers `n` parts. Only user turns have more than one (user and tool messages). */
typedef struct turn {
    enum chat_role role;          /* never CHAT_TOOL: a turn of tool results is a user turn */
    const chat_msg *const *part;  /* into turns.part */
    size_t n;
    enum chat_task task;
} turn;

typedef struct turns {
    turn *turn;
    size_t n;
    const chat_msg **part;
    bool drop;      /* thoughts of old turns are left out */
    ptrdiff_t last; /* index of the last user or developer turn, -1 if none */
} turns;

/* `dropping` = thinking mode with drop_thinking; a message with tools turns it off. The result points into msg. */
int turns_make(turns *t, const chat_msg *msg, size_t n, bool dropping, ds4_err *e);
void turns_free(turns *t);

#endif
