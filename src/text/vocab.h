/* vocab.h: the vocabulary of a model file: token bytes, merges, special tokens.
 *
 * In a GGUF file ordinary tokens and merges are written in GPT-2's printable alphabet (every byte is one visible
 * character); special and user-defined tokens are literal text; tokenizer.ggml.token_type tells which is which. Here
 * all tokens are raw bytes. A vocab owns its memory (the gguf may be closed) and never changes after loading: threads
 * may share it. */
#ifndef DS4_TEXT_VOCAB_H
#define DS4_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "file/gguf.h"
#include "text/pretok.h"

/* Protocol tokens of DeepSeek-V4, found by their text, never by number. */
enum vocab_special {
    SP_BOS, SP_EOS, SP_USER, SP_ASSISTANT, SP_THINK, SP_THINK_END, SP_DSML,
    SP_REQUIRED, /* a file without one of the above is refused; those below may be missing */
    SP_REMINDER = SP_REQUIRED,
    SP_ACTION, SP_QUERY, SP_AUTHORITY, SP_DOMAIN, SP_TITLE, SP_READ_URL, SP_EXTRACTED_URL,
    SP_COUNT
};

/* The GGUF token types that we accept. */
enum vocab_type { VOCAB_NORMAL = 1, VOCAB_CONTROL = 3, VOCAB_USER = 4, VOCAB_UNUSED = 5 };

typedef struct vocab vocab;

/* Reads and checks the tokenizer.ggml.* keys: model must be gpt2, every token and merge well-formed and unique, all 256
 * bytes and the required specials present, bos/eos ids those of the texts. `want` > 0: the number of rows the model
 * has; another token count is an error. Errors name the file, the key and the entry. */
int vocab_load(vocab **out, const gguf *g, uint32_t want, ds4_err *e);
void vocab_free(vocab *v); /* NULL is fine */

uint32_t vocab_size(const vocab *v);
int32_t vocab_bos(const vocab *v); /* SP_BOS */
int32_t vocab_eos(const vocab *v); /* SP_EOS: ends an assistant turn */

/* Raw bytes of a token, not terminated, owned by v; id must be in [0, vocab_size). */
const char *vocab_bytes(const vocab *v, int32_t id, size_t *n);
enum vocab_type vocab_type_of(const vocab *v, int32_t id);
/* True for control and user-defined (added) tokens: those that only a template may write. */
bool vocab_is_added(const vocab *v, int32_t id);

/* Id of the added token / of the ordinary token with exactly these bytes, or -1. */
int32_t vocab_find_added(const vocab *v, const char *text, size_t n);
int32_t vocab_find_plain(const vocab *v, const char *text, size_t n);
/* Id of a protocol token, -1 if this file lacks it. */
int32_t vocab_special(const vocab *v, enum vocab_special which);
/* Its canonical text, terminated; does not need a vocabulary. */
const char *vocab_special_text(enum vocab_special which);

/* Longest added token that begins at text[0]; *id = its id; returns its length, 0 if none. */
size_t vocab_match_added(const vocab *v, const char *text, size_t n, int32_t *id);

/* Merge of two neighbouring tokens: its rank (low merges first) and the merged token; -1 if they do not merge. */
int32_t vocab_merge(const vocab *v, int32_t left, int32_t right, int32_t *merged);
/* The token of a single byte. */
int32_t vocab_byte(const vocab *v, uint8_t b);

const pretok *vocab_pretok(const vocab *v);

#endif
