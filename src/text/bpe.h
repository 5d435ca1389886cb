/* bpe.h: byte-level byte-pair encoding.
 *
 * Text is cut by pretok.h; inside a piece the neighbouring pair with the lowest merge rank is joined (the leftmost
 * among equals) until none is left. A heap of candidate pairs makes a piece of n bytes cost O(n log n), so a megabyte
 * of one letter is no attack. Encoding never fails on content: every byte has a token. */
#ifndef DS4_TEXT_BPE_H
#define DS4_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "text/vocab.h"

/* A growing array of token ids. Zero-initialise; release with bpe_ids_free. */
typedef struct bpe_ids {
    int32_t *id;
    size_t n, cap;
} bpe_ids;

int bpe_ids_push(bpe_ids *a, int32_t id, ds4_err *e);
void bpe_ids_free(bpe_ids *a); /* leaves it empty and usable */

/* Appends the tokens of text[0..len) to out. parse_special: added tokens written in the text become themselves
 * (leftmost, longest first): only for text that a template or the operator wrote. Otherwise no added token can come
 * out. Errors: DS4_ENOMEM, DS4_EARG for 2 GiB or more; `out` then has what it had. */
int bpe_encode(const vocab *v, const char *text, size_t len, bool parse_special, bpe_ids *out, ds4_err *e);

/* A stretch of text by origin. */
typedef struct bpe_span {
    size_t end;    /* offset behind it; it begins where the span before it ends */
    bool template; /* true: added tokens inside it match; false: client text, none ever does */
} bpe_span;

/* The same for text made of spans (ends ascending, the last one == len). An added token matches only if it lies wholly
 * inside one template span. Ordinary text is encoded as if there were no spans, so that neighbours merge exactly as in
 * the reference tokenizer, which sees one string. */
int bpe_encode_spans(const vocab *v, const char *text, const bpe_span *span, size_t n_spans, bpe_ids *out, ds4_err *e);

#endif
