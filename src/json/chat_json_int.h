/* chat_json_int.h: the parts of chat_json that read single messages. */
#ifndef DS4_JSON_CHAT_JSON_INT_H
#define DS4_JSON_CHAT_JSON_INT_H

#include "json/chat_json.h"

int doc_no_memory(ds4_err *e);
/* Gives an allocation / a tree reference to the doc. On failure it is released. p == NULL is out of memory. */
int doc_own(chat_doc *d, void *p, ds4_err *e);
int doc_hold(chat_doc *d, json_t *v, ds4_err *e);
/* Python-style text of v, owned by the doc. */
int doc_dump(chat_doc *d, const json_t *v, chat_str *out, ds4_err *e);

/* Fills m->tool from a list of tools; `where` is its path for messages. */
int doc_read_tools(chat_doc *d, const json_t *tools, chat_msg *m, const char *where, ds4_err *e);
int doc_read_message(chat_doc *d, const json_t *v, chat_msg *m, ds4_err *e);

#endif
