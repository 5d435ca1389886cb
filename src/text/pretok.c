#include "text/pretok.h"

#include <stdint.h>
#include <stdlib.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/utf8.h"

enum {
    C_L = 1,    /* \p{L} */
    C_M = 2,    /* \p{M} */
    C_N = 4,    /* \p{N} */
    C_PS = 8,   /* \p{P} or \p{S} */
    C_W = 16,   /* White_Space */
    C_NL = 32,  /* CR, LF */
    C_CJK = 64, /* splitter 2 */
    C_BAD = 128 /* not well-formed UTF-8; in no table */
};
#define N_CP 0x110000u
/* Planes 4 to 13, 15 and 16 hold no letter, mark, number, punctuation or symbol: they are skipped when categories are
 * read. */
#define BLOCK 0x10000u

struct pretok {
    uint8_t cls[N_CP];
};

/* The code points [first, first + BLOCK) without surrogates, as UTF-8. Returns the bytes written. */
static size_t write_block(uint32_t first, uint8_t *out)
{
    size_t n = 0;
    for (uint32_t cp = first; cp < first + BLOCK; cp++)
        if (cp < 0xD800 || cp > 0xDFFF)
            n += (size_t)utf8_put(cp, out + n);
    return n;
}

static void mark_run(pretok *p, const uint8_t *text, size_t from, size_t to, uint8_t cls)
{
    while (from < to) {
        uint32_t cp;
        from += (size_t)utf8_step(text + from, to - from, &cp);
        p->cls[cp] |= cls;
    }
}

/* Marks the runs of letters, marks, numbers and punctuation/symbols that `re` finds in the text (capture group i =
 * class bit i-1). */
static int mark_block(pretok *p, const pcre2_code *re, pcre2_match_data *md, const uint8_t *text, size_t n)
{
    const size_t *ov = pcre2_get_ovector_pointer(md);
    size_t pos = 0;
    while (pos < n) {
        int rc = pcre2_match(re, text, n, pos, PCRE2_NO_UTF_CHECK, md, NULL);
        if (rc == PCRE2_ERROR_NOMATCH)
            return 0;
        if (rc < 2)
            return rc < 0 ? rc : PCRE2_ERROR_INTERNAL;
        mark_run(p, text, ov[0], ov[1], (uint8_t)(1u << (rc - 2)));
        pos = ov[1];
    }
    return 0;
}

static int read_categories(pretok *p, ds4_err *e)
{
    static const char pattern[] = "(\\p{L}+)|(\\p{M}+)|(\\p{N}+)|((?:\\p{P}|\\p{S})+)";
    static const uint8_t planes[] = {0, 1, 2, 3, 14};
    int rc;
    size_t off;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &rc, &off, NULL);
    if (!re)
        return ds4_fail(e, DS4_EARG, "the PCRE2 library cannot compile Unicode properties (error %d); "
                        "install a PCRE2 built with Unicode support", rc);
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* only faster; not available everywhere */
    pcre2_match_data *md = pcre2_match_data_create_from_pattern(re, NULL);
    uint8_t *text = malloc((size_t)BLOCK * 4);
    rc = md && text ? 0 : PCRE2_ERROR_NOMEMORY;
    for (size_t i = 0; !rc && i < sizeof planes; i++)
        rc = mark_block(p, re, md, text, write_block(planes[i] * BLOCK, text));
    free(text);
    pcre2_match_data_free(md);
    pcre2_code_free(re);
    if (rc)
        return ds4_fail(e, rc == PCRE2_ERROR_NOMEMORY ? DS4_ENOMEM : DS4_EARG,
                        "reading Unicode categories from PCRE2 failed (error %d)", rc);
    return 0;
}

static void mark_range(pretok *p, uint32_t a, uint32_t b, uint8_t cls)
{
    for (; a <= b; a++)
        p->cls[a] |= cls;
}

static void mark_fixed(pretok *p)
{
    static const uint32_t white[][2] = {{0x09, 0x0D}, {0x20, 0x20}, {0x85, 0x85}, {0xA0, 0xA0}, {0x1680, 0x1680},
                                        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                        {0x3000, 0x3000}};
    for (size_t i = 0; i < sizeof white / sizeof white[0]; i++)
        mark_range(p, white[i][0], white[i][1], C_W);
    p->cls['\r'] |= C_NL;
    p->cls['\n'] |= C_NL;
    mark_range(p, 0x4E00, 0x9FA5, C_CJK);
    mark_range(p, 0x3040, 0x30FF, C_CJK);
}

int pretok_new(pretok **out, ds4_err *e)
{
    pretok *p = calloc(1, sizeof *p);
    if (!p)
        return ds4_fail(e, DS4_ENOMEM, "out of memory for the Unicode category table");
    int rc = read_categories(p, e);
    if (rc) {
        free(p);
        return rc;
    }
    mark_fixed(p);
    *out = p;
    return 0;
}

void pretok_free(pretok *p) { free(p); }

/* ------------------------------------------------------------------ scan */

/* A walk over the text that splitter 3 sees: `zone` C_CJK = inside a match of splitter 2, C_N = inside one of splitter
 * 1, C_BAD = inside ill-formed bytes, 0 = anywhere else. A character of another zone is the end of that text. */
typedef struct scan {
    const pretok *p;
    const uint8_t *t;
    size_t n;
    uint8_t zone;
} scan;

#define ZONES (C_N | C_CJK | C_BAD)

/* Class of the character at i (i < n) and the position behind it. */
static uint8_t class_at(const scan *s, size_t i, size_t *next)
{
    uint32_t cp;
    int k = utf8_step(s->t + i, s->n - i, &cp);
    if (k > 0) {
        *next = i + (size_t)k;
        return s->p->cls[cp];
    }
    *next = k < 0 ? i + (size_t)-k : s->n;
    return C_BAD;
}

/* The same inside the zone; 0 and *next = i at its end. C_ANY is set in every class so that 0 means the end alone. */
#define C_ANY C_BAD
static uint8_t peek(const scan *s, size_t i, size_t *next)
{
    *next = i;
    if (i >= s->n)
        return 0;
    size_t after;
    uint8_t c = class_at(s, i, &after);
    if ((c & ZONES) != s->zone)
        return 0;
    *next = after;
    return (uint8_t)(c | C_ANY);
}

/* End of the run of characters from i on that have a bit of `want`; at most `max` of them. */
static size_t run(const scan *s, size_t i, uint8_t want, size_t max)
{
    size_t next;
    for (; max && (peek(s, i, &next) & want); i = next)
        max--;
    return i;
}

static size_t run_ascii_letters(const scan *s, size_t i)
{
    while (i < s->n && ((s->t[i] | 32) >= 'a' && (s->t[i] | 32) <= 'z'))
        i++;
    return i;
}

static int ascii_punct(uint8_t c)
{
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
}

#define ALL SIZE_MAX

/* Rules d, e, f at a whitespace character. */
static size_t whitespace(const scan *s, size_t i)
{
    size_t end = i, last_nl = 0, last = i, next;
    uint8_t c;
    while ((c = peek(s, end, &next)) & C_W) {
        if (c & C_NL)
            last_nl = next;
        last = end;
        end = next;
    }
    if (last_nl)
        return last_nl; /* d: up to the last line break of the run */
    if (last == i || !c)
        return end; /* f: a single one; e: nothing follows */
    return last;    /* e: leave one for the word that follows */
}

/* Where a match of splitter 3 that begins at i ends; i if none begins here. c is the class at i, next the position
 * behind. */
static size_t match3(const scan *s, size_t i, uint8_t c, size_t next)
{
    size_t after;
    if (ascii_punct(s->t[i])) {
        size_t end = run_ascii_letters(s, next);
        if (end > next)
            return end; /* a */
    }
    if (c & (C_L | C_M))
        return run(s, i, C_L | C_M, ALL); /* b */
    uint8_t follow = peek(s, next, &after);
    if (!(c & (C_NL | C_PS)) && (follow & (C_L | C_M)))
        return run(s, next, C_L | C_M, ALL); /* b with its optional first character */
    if ((c & C_PS) || (s->t[i] == ' ' && (follow & C_PS)))
        return run(s, run(s, c & C_PS ? i : next, C_PS, ALL), C_NL, ALL); /* c */
    return c & C_W ? whitespace(s, i) : i;
}

size_t pretok_next(const pretok *p, const char *text, size_t len, size_t pos)
{
    scan s = {p, (const uint8_t *)text, len, 0};
    size_t next, end = pos;
    s.zone = class_at(&s, pos, &next) & ZONES;
    if (s.zone & (C_BAD | C_N)) /* splitter 3 has no rule for either: one piece */
        return run(&s, pos, C_ANY, s.zone & C_N ? 3 : ALL);
    /* A gap (characters no rule takes) lasts until a match begins or the zone ends. */
    for (;;) {
        uint8_t c = peek(&s, end, &next);
        if (!c)
            return end;
        size_t m = match3(&s, end, c, next);
        if (m > end)
            return end > pos ? end : m;
        end = next;
    }
}
