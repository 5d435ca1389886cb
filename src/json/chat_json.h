/* chat_json.h: conversations written in JSON (OpenAI style) to the messages of text/chat.h.
 *
 * A document is a list of messages, or an object:
 *   messages          list; each {"role", "content", ...}, see below
 *   tools             list of {"type": "function", "function": {...}} (or the inner object alone)
 *   response_format   {"type": "json_schema", "json_schema": {"schema": S}}, {"type": "json_object"},
 *                     {"type": "text"} or a schema
 *   thinking_mode     "thinking" | "chat"
 *   drop_thinking     bool
 *   reasoning_effort  name, number 0..100, or number in a string (see chat_effort_parse)
 *   release           "preview" | "0731"
 * tools and response_format at the top go to the first message if that is a system message, else to an empty one put
 * before it. A message may have
 *   content           string, null, or a list of strings and {"type": "text", "text": T}: joined by empty lines; an
 *                     item of another type becomes "[Unsupported TYPE]"
 *   reasoning_content (or reasoning), tool_call_id, tools, response_format, task, wo_eos
 *   tool_calls        list of {"id", "function": {"name", "arguments": string or object}}
 * Other members are ignored. Arguments that are not a JSON object become one parameter `arguments` with the raw
 * string. */
#ifndef DS4_JSON_CHAT_JSON_H
#define DS4_JSON_CHAT_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "base/err.h"
#include "text/chat.h"

typedef struct chat_doc {
    chat_msg *msg;
    size_t n;
    chat_opts opts; /* the caller's defaults with what the document says on top */
    void **owned;   /* allocations that msg points into */
    size_t n_owned, cap_owned;
    json_t **held; /* JSON trees that msg points into */
    size_t n_held, cap_held;
} chat_doc;

/* Reads text[0..n). On success the doc owns all that its messages point to; release with chat_doc_free. Errors are one
 * line with the byte offset (syntax: DS4_EFORMAT) or the path of the member, such as messages[2].content (DS4_EARG). */
int chat_json_parse(const char *text, size_t n, const chat_opts *defaults, chat_doc *out, ds4_err *e);
/* The same from a tree that the caller parsed with pyjson_parse; takes a reference of its own. */
int chat_json_read(json_t *root, const chat_opts *defaults, chat_doc *out, ds4_err *e);
void chat_doc_free(chat_doc *d);

/* `ds4 --render FILE`: reads a document and renders it with the given defaults. *out is the prompt (terminated, *n
 * bytes; the caller frees). Errors name the file. */
int chat_render_json_file(const char *path, const chat_opts *defaults, char **out, size_t *n, ds4_err *e);

#endif
