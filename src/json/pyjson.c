#include "json/pyjson.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BIG_LEN 4
/* What wrapping an integer as "U+BFFFE digits" adds to the text: two quotes and the mark. */
#define BIG_EXTRA (BIG_LEN + 2)

/* The text with its big integers wrapped, and where they are in it (to translate offsets back). */
typedef struct wrapped {
    pyjson_buf b;
    size_t *at; /* offsets in b */
    size_t n, cap;
    size_t copied; /* bytes of the original that b holds already */
} wrapped;

int pyjson_put(pyjson_buf *b, const char *p, size_t n, ds4_err *e)
{
    if (n >= SIZE_MAX / 2 - b->n)
        return ds4_fail(e, DS4_ENOMEM, "out of memory for %zu bytes of text", n);
    if (b->n + n + 1 > b->cap) {
        size_t cap = (b->n + n + 1) * 2;
        char *q = realloc(b->p, cap);
        if (!q)
            return ds4_fail(e, DS4_ENOMEM, "out of memory for %zu bytes of text", cap);
        b->p = q;
        b->cap = cap;
    }
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
    b->p[b->n] = 0;
    return 0;
}

/* ------------------------------------------------------------------ reading */

/* Behind the string that begins at text[i] == '"'; n if it does not end. */
static size_t skip_string(const char *text, size_t n, size_t i)
{
    for (i++; i < n && text[i] != '"'; i++)
        if (text[i] == '\\')
            i++;
    return i < n ? i + 1 : n;
}

static bool is_number_char(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* Is text[a..b) an integer that JSON allows and 64 bits do not hold? */
static bool is_big(const char *text, size_t a, size_t b)
{
    static const char most[] = "9223372036854775807", least[] = "9223372036854775808";
    bool minus = text[a] == '-';
    size_t d = a + minus, len = b - d;
    if (len < 19 || text[d] == '0')
        return false;
    for (size_t i = d; i < b; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return len > 19 || memcmp(text + d, minus ? least : most, 19) > 0;
}

static int wrap(wrapped *w, const char *text, size_t a, size_t b, ds4_err *e)
{
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 16, *q = realloc(w->at, cap * sizeof *q);
        if (!q)
            return ds4_fail(e, DS4_ENOMEM, "out of memory for JSON integers");
        w->at = q;
        w->cap = cap;
    }
    int rc = pyjson_put(&w->b, text + w->copied, a - w->copied, e);
    w->at[w->n++] = w->b.n;
    rc = rc ? rc : pyjson_put(&w->b, "\"" PYJSON_BIG, 1 + BIG_LEN, e);
    rc = rc ? rc : pyjson_put(&w->b, text + a, b - a, e);
    w->copied = b;
    return rc ? rc : pyjson_put(&w->b, "\"", 1, e);
}

/* Does the string text[a..b) contain U+BFFFE, plain or as \uDABF\uDFFE? Returns its offset, or b. */
static size_t find_mark(const char *text, size_t a, size_t b)
{
    for (size_t i = a; i + BIG_LEN <= b; i++) {
        if (!memcmp(text + i, PYJSON_BIG, BIG_LEN))
            return i;
        if (text[i] == '\\' && i + 12 <= b && !strncasecmp(text + i, "\\udabf\\udffe", 12))
            return i;
    }
    return b;
}

/* Does a colon follow (so that the value before it stands where a key must)? */
static bool is_key(const char *text, size_t n, size_t i)
{
    while (i < n && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r'))
        i++;
    return i < n && text[i] == ':';
}

/* One pass before the parser: depth limit, the reserved character, big integers. */
static int scan(wrapped *w, const char *text, size_t n, ds4_err *e)
{
    int depth = 0, rc = 0;
    for (size_t i = 0, end; !rc && i < n; i = end) {
        char c = text[i];
        end = i + 1;
        if (c == '"') {
            end = skip_string(text, n, i);
            size_t mark = find_mark(text, i, end);
            if (mark < end)
                rc = ds4_fail(e, DS4_EFORMAT, "byte %zu: the noncharacter U+BFFFE is not accepted", mark);
        } else if ((c == '[' || c == '{') && ++depth > PYJSON_MAX_DEPTH) {
            rc = ds4_fail(e, DS4_EFORMAT, "byte %zu: nested deeper than %d levels", i, PYJSON_MAX_DEPTH);
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (is_number_char(c)) {
            while (end < n && is_number_char(text[end]))
                end++;
            if (is_big(text, i, end))
                rc = is_key(text, n, end) ? ds4_fail(e, DS4_EFORMAT, "byte %zu: an object key must be a string", i)
                                          : wrap(w, text, i, end, e);
        }
    }
    return !rc && w->n ? pyjson_put(&w->b, text + w->copied, n - w->copied, e) : rc;
}

static size_t original_offset(const wrapped *w, size_t at)
{
    size_t k = 0;
    while (k < w->n && w->at[k] < at)
        k++;
    return at - k * BIG_EXTRA < at ? at - k * BIG_EXTRA : at;
}

int pyjson_parse(const char *text, size_t n, json_t **out, ds4_err *e)
{
    if (n > PYJSON_MAX_BYTES)
        return ds4_fail(e, DS4_EFORMAT, "%zu bytes of JSON, the limit is %u", n, PYJSON_MAX_BYTES);
    wrapped w = {0};
    json_error_t je = {0};
    int rc = scan(&w, text, n, e);
    if (!rc) {
        *out = json_loadb(w.n ? w.b.p : text, w.n ? w.b.n : n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
        size_t at = je.position < 0 ? 0 : (size_t)je.position;
        if (!*out && json_error_code(&je) == json_error_out_of_memory)
            rc = ds4_fail(e, DS4_ENOMEM, "out of memory for %zu bytes of JSON", n);
        else if (!*out)
            rc = ds4_fail(e, DS4_EFORMAT, "byte %zu: %s", original_offset(&w, at), je.text);
    }
    free(w.b.p);
    free(w.at);
    return rc;
}

static bool is_wrapped(const json_t *v)
{
    return json_string_length(v) > BIG_LEN && !memcmp(json_string_value(v), PYJSON_BIG, BIG_LEN);
}

bool pyjson_is_text(const json_t *v) { return json_is_string(v) && !is_wrapped(v); }

/* ------------------------------------------------------------------ printing */

/* The digits (one before an imagined point) and decimal exponent of "d.ddde+xx". Returns the number of digits. */
static int split_digits(const char *s, char *digits, int *exp10)
{
    int n = 0;
    for (; *s && *s != 'e'; s++) /* skips the point, whatever the locale writes */
        if (*s >= '0' && *s <= '9')
            digits[n++] = *s;
    *exp10 = atoi(s + 1);
    return n;
}

/* Adds one unit in the last digit of "d.ddde+xx"; false if that would carry out of the first digit. */
static bool step_up(char *s)
{
    char *p = strchr(s, 'e');
    while (p-- > s) {
        if (*p < '0' || *p > '9')
            continue;
        if (*p != '9') {
            ++*p;
            return true;
        }
        *p = '0';
    }
    return false;
}

/* Shortest digits that read back as x > 0. The nearest decimal of a length may miss the narrower half-gap below a power
 * of two while the next one up hits the wider gap above, so both are tried. */
static int shortest(double x, char *digits, int *exp10)
{
    char s[40];
    for (int prec = 0; prec < 17; prec++) {
        snprintf(s, sizeof s, "%.*e", prec, x);
        if (strtod(s, NULL) == x || (step_up(s) && strtod(s, NULL) == x))
            break;
    }
    int n = split_digits(s, digits, exp10);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    return n;
}

static char *put_digits(char *o, const char *d, int n)
{
    memcpy(o, d, (size_t)n);
    return o + n;
}

static char *put_zeros(char *o, int n)
{
    memset(o, '0', (size_t)n);
    return o + n;
}

void pyjson_float(double x, char out[32])
{
    char d[20] = "0", *o = out;
    int exp10 = 0, n = 1;
    if (x < 0 || (x == 0 && 1 / x < 0))
        *o++ = '-';
    if (x != 0)
        n = shortest(x < 0 ? -x : x, d, &exp10);
    int point = exp10 + 1; /* digits before the decimal point */
    if (exp10 < -4 || exp10 >= 16) {
        *o++ = d[0];
        if (n > 1)
            *o++ = '.';
        o = put_digits(o, d + 1, n - 1);
        snprintf(o, 6, "e%c%02u", exp10 < 0 ? '-' : '+', (unsigned)(exp10 < 0 ? -exp10 : exp10) % 1000);
        return;
    }
    if (point <= 0) {
        o = put_digits(o, "0.", 2);
        o = put_digits(put_zeros(o, -point), d, n);
    } else if (n <= point) { /* an integer value keeps one decimal */
        o = put_zeros(put_digits(o, d, n), point - n);
        o = put_digits(o, ".0", 2);
    } else {
        o = put_digits(o, d, point);
        *o++ = '.';
        o = put_digits(o, d + point, n - point);
    }
    *o = 0;
}

static int dump_string(pyjson_buf *b, const char *p, size_t n, ds4_err *e)
{
    int rc = pyjson_put(b, "\"", 1, e);
    size_t from = 0;
    for (size_t i = 0; !rc && i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        static const char named[] = "\bb\ff\nn\rr\tt\"\"\\\\";
        char esc[8];
        const char *m = c ? strchr(named, c) : NULL;
        /* `named` holds pairs: character, letter of its escape; letters themselves never get here. */
        int len = m ? snprintf(esc, sizeof esc, "\\%c", m[1]) : snprintf(esc, sizeof esc, "\\u%04x", c);
        rc = pyjson_put(b, p + from, i - from, e);
        rc = rc ? rc : pyjson_put(b, esc, (size_t)len, e);
        from = i + 1;
    }
    rc = rc ? rc : pyjson_put(b, p + from, n - from, e);
    return rc ? rc : pyjson_put(b, "\"", 1, e);
}

static int put_text(pyjson_buf *b, const char *s, ds4_err *e) { return pyjson_put(b, s, strlen(s), e); }

static int dump(pyjson_buf *b, const json_t *v, int depth, ds4_err *e);

static int dump_array(pyjson_buf *b, const json_t *v, int depth, ds4_err *e)
{
    int rc = put_text(b, "[", e);
    for (size_t i = 0; !rc && i < json_array_size(v); i++) {
        rc = i ? put_text(b, ", ", e) : 0;
        rc = rc ? rc : dump(b, json_array_get(v, i), depth, e);
    }
    return rc ? rc : put_text(b, "]", e);
}

static int dump_object(pyjson_buf *b, const json_t *v, int depth, ds4_err *e)
{
    int rc = put_text(b, "{", e);
    json_t *obj = (json_t *)v; /* jansson's iterators take no const; nothing is changed */
    bool first = true;
    for (void *it = json_object_iter(obj); !rc && it; it = json_object_iter_next(obj, it), first = false) {
        const char *key = json_object_iter_key(it);
        rc = first ? 0 : put_text(b, ", ", e);
        rc = rc ? rc : dump_string(b, key, strlen(key), e);
        rc = rc ? rc : put_text(b, ": ", e);
        rc = rc ? rc : dump(b, json_object_iter_value(it), depth, e);
    }
    return rc ? rc : put_text(b, "}", e);
}

static int dump(pyjson_buf *b, const json_t *v, int depth, ds4_err *e)
{
    char num[40];
    if (depth > PYJSON_MAX_DEPTH)
        return ds4_fail(e, DS4_EFORMAT, "JSON nested deeper than %d levels", PYJSON_MAX_DEPTH);
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return dump_object(b, v, depth + 1, e);
    case JSON_ARRAY:
        return dump_array(b, v, depth + 1, e);
    case JSON_STRING:
        if (is_wrapped(v))
            return pyjson_put(b, json_string_value(v) + BIG_LEN, json_string_length(v) - BIG_LEN, e);
        return dump_string(b, json_string_value(v), json_string_length(v), e);
    case JSON_INTEGER:
        snprintf(num, sizeof num, "%lld", (long long)json_integer_value(v));
        return put_text(b, num, e);
    case JSON_REAL:
        pyjson_float(json_real_value(v), num);
        return put_text(b, num, e);
    case JSON_TRUE:
        return put_text(b, "true", e);
    case JSON_FALSE:
        return put_text(b, "false", e);
    default:
        return put_text(b, "null", e);
    }
}

int pyjson_dump(pyjson_buf *b, const json_t *v, ds4_err *e) { return dump(b, v, 0, e); }
