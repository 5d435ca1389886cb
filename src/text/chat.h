/* chat.h: messages to prompt text and prompt tokens, in the layout that DeepSeek-V4 was trained on.
 *
 *   BOS [effort prefix] [system text] { turns }
 *   user turn       <User> parts joined by an empty line; a tool result is a part in <tool_result> tags
 *   behind it       <Assistant>, then <think> if the model shall think, else (also in an old turn whose thoughts were
 *                   dropped) </think>
 *   assistant turn  [reasoning </think>] content [tool calls] EOS
 *
 * Neighbouring user and tool messages are one turn; its tool results follow the order of the calls they answer.
 * In thinking mode with drop_thinking, and if no message carries tools, the reasoning of assistant turns before the
 * last user turn is left out and developer messages before it vanish.
 *
 * Safety: every byte of the result is known to be template or client text, and only template text may become an
 * added token: role markers, think tags or DSML written by a client stay ordinary text. */
#ifndef DS4_TEXT_CHAT_H
#define DS4_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "file/gguf.h"
#include "text/bpe.h"
#include "text/protocol.h"
#include "text/vocab.h"

typedef struct chat_str { /* not terminated; p may be NULL if n is 0; may hold NUL */
    const char *p;
    size_t n;
} chat_str;

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_REMINDER, CHAT_DEVELOPER };
/* Classification tasks: the reply is one label. In the order of the special tokens. */
enum chat_task { CHAT_NO_TASK, CHAT_ACTION, CHAT_QUERY, CHAT_AUTHORITY, CHAT_DOMAIN, CHAT_TITLE, CHAT_READ_URL };
enum chat_effort { CHAT_EFFORT_DEFAULT, CHAT_EFFORT_OFF, CHAT_EFFORT_LOW, CHAT_EFFORT_HIGH, CHAT_EFFORT_MAX };
enum chat_release { CHAT_PREVIEW, CHAT_0731 }; /* the two published weights have different effort ladders */

typedef struct chat_param {
    chat_str name;
    chat_str value; /* the raw string if is_string, else JSON text */
    bool is_string;
} chat_param;

typedef struct chat_call {
    chat_str id, name;
    const chat_param *param;
    size_t n_params;
} chat_call;

typedef struct chat_msg {
    enum chat_role role;
    chat_str content;
    chat_str reasoning;   /* assistant */
    const chat_call *call; /* assistant: tool calls after the content */
    size_t n_calls;
    chat_str call_id;     /* tool: the id of the call that this result answers */
    const chat_str *tool; /* system, developer: JSON of each function (name, description, parameters), ready to print */
    size_t n_tools;
    chat_str response_format; /* system, developer: JSON schema; n = 0: none */
    enum chat_task task;
    bool wo_eos; /* assistant: leave the turn open, so that the model continues it */
} chat_msg;

typedef struct chat_opts {
    bool thinking;      /* effort OFF turns it off */
    bool drop_thinking; /* the usual choice is true */
    enum chat_effort effort;
    enum chat_release release;
    const protocol *proto;
} chat_opts;

/* A rendered prompt: text with the origin of each stretch. Zero-initialise; release with chat_text_free. */
typedef struct chat_text {
    char *p; /* terminated */
    size_t n, cap;
    bpe_span *span;
    size_t n_spans, cap_spans;
    uint32_t uses; /* bit i: vocab_special i was written */
} chat_text;

/* Renders n messages. The messages and what they point to are only read. On failure out is empty.
 * Errors: DS4_EARG for an empty list or tools / response_format / calls on a message that cannot carry them;
 * DS4_ENOMEM. */
int chat_render(const chat_msg *msg, size_t n, const chat_opts *opts, chat_text *out, ds4_err *e);
void chat_text_free(chat_text *t);

/* Appends the prompt's tokens. DS4_EMODEL if the vocabulary lacks a protocol token that the prompt needs. */
int chat_encode(const vocab *v, const chat_text *t, bpe_ids *out, ds4_err *e);

/* Names, all terminated strings. An unknown name is DS4_EARG with the list of known ones.
 *   effort   none off disabled minimal 0 -> OFF; low medium default 1..59 -> LOW; high 60..89 -> HIGH;
 *            max xhigh 90..100 -> MAX (numbers: the 1-100 scale of later releases; LOW has no prefix in either release)
 *   release  preview, 0731
 *   role     system user assistant tool latest_reminder developer
 *   task     action query authority domain title read_url */
int chat_effort_parse(const char *name, enum chat_effort *out, ds4_err *e);
int chat_release_parse(const char *name, enum chat_release *out, ds4_err *e);
int chat_role_parse(const char *name, enum chat_role *out, ds4_err *e);
int chat_task_parse(const char *name, enum chat_task *out, ds4_err *e);

/* The release that a model file claims: CHAT_0731 if its file name, name or base-model keys contain "0731", else
 * CHAT_PREVIEW. */
enum chat_release chat_release_guess(const gguf *g);

/* The effort prefix that opts lead to: the part of the protocol, or PROTO_COUNT for none. */
enum protocol_part chat_effort_text(const chat_opts *opts);

#endif
