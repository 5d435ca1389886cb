/* snapshot.c: a session on disk.
 *
 *   [header 64][section: tokens][section: field 0] ... [section: field n-1 (the taps, if there are any)]
 *   section = [head 32][data]; its CRC-32C covers the head before it and the data. Little endian, floats as they are in
 * memory.
 *
 * Every size follows from the header's token count and from the session's own shapes, so nothing in a file makes us
 * allocate: a file that is not exactly as long as it should be is refused before anything is read. Loading reads the
 * file twice: all of it is checked before the session is touched. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/hash.h"
#include "session/session.h"

enum { VERSION = 1, PIECE = 1 << 16 };
static const char magic[8] = "DS4SNAP";

typedef struct header {
    char magic[8];
    uint32_t version;
    uint32_t sim;   /* enum kv_sim + 256 * enum be_act: which roundings the rows went through */
    uint64_t model; /* identity of the trunk */
    uint64_t taps;  /* hash of the tapped layers, 0 without taps */
    uint32_t pos;   /* tokens */
    uint32_t tap_width;
    uint32_t fields; /* sections behind the tokens */
    uint32_t zero[4];
    uint32_t crc; /* of all before it */
} header;

typedef struct section {
    uint32_t kind; /* 0 tokens, 1 rows of a field */
    uint32_t width, keep, ratio;
    uint64_t rows;
    uint32_t zero;
    uint32_t crc; /* of all before it and the data */
} section;

_Static_assert(sizeof(header) == 64 && sizeof(section) == 32, "layout of the file");

static size_t data_bytes(const section *h) { return (size_t)h->rows * h->width * 4; }

static uint32_t section_crc(const section *h, const void *data)
{
    return hash_crc32c(hash_crc32c(0, h, offsetof(section, crc)), data, data_bytes(h));
}

static section tokens_section(uint32_t pos) { return (section){.kind = 0, .width = 1, .rows = pos}; }

static section field_section(const kv_field *f, uint32_t pos)
{
    return (section){.kind = 1,
                     .width = (uint32_t)f->store.width,
                     .keep = (uint32_t)f->keep,
                     .ratio = (uint32_t)f->ratio,
                     .rows = (uint64_t)kv_field_rows(f, (int)pos)};
}

static header make_header(const session *s)
{
    const model *m = s->m;
    header h = {.version = VERSION,
                .sim = (uint32_t)m->sim + 256u * (uint32_t)m->b->act,
                .model = m->identity,
                .pos = (uint32_t)s->pos,
                .tap_width = (uint32_t)s->k->tap.width,
                .fields = (uint32_t)s->k->fields};
    memcpy(h.magic, magic, sizeof magic);
    if (h.tap_width)
        h.taps = hash64(m->ds.target, (size_t)m->ds.targets * sizeof *m->ds.target, 1);
    h.crc = hash_crc32c(0, &h, offsetof(header, crc));
    return h;
}

/* --- saving --- */

static int put_section(fsio_writer *w, section h, const void *data, ds4_err *e)
{
    h.crc = section_crc(&h, data);
    int rc = fsio_put(w, &h, sizeof h, e);
    return rc ? rc : fsio_put(w, data, data_bytes(&h), e);
}

static int put_field(const session *s, fsio_writer *w, const kv_field *f, ds4_err *e)
{
    section h = field_section(f, (uint32_t)s->pos);
    float *rows = malloc(data_bytes(&h) + 1);
    if (!rows)
        return ds4_fail(e, DS4_ENOMEM, "no memory to save %zu bytes of state", data_bytes(&h));
    kv_field_read(s->k, f, s->slot, s->pos, rows);
    int rc = s->m->b->op->sync(s->m->b, e);
    if (!rc)
        rc = put_section(w, h, rows, e);
    free(rows);
    return rc;
}

int session_save(const session *s, const char *path, ds4_err *e)
{
    if (s->state != SESSION_READY)
        return ds4_fail(e, DS4_ESTATE, "%s: not saved: the session %s", path,
                        s->state == SESSION_EMPTY  ? "is empty"
                        : s->state == SESSION_OPEN ? "is in the middle of a forward"
                                                   : "is poisoned by an earlier backend failure: reset it");
    fsio_writer w;
    header h = make_header(s);
    int rc = fsio_begin(&w, path, e);
    if (rc)
        return rc;
    rc = fsio_put(&w, &h, sizeof h, e);
    if (!rc)
        rc = put_section(&w, tokens_section(h.pos), s->tokens, e);
    for (int i = 0; i < s->k->fields && !rc; i++)
        rc = put_field(s, &w, &s->k->field[i], e);
    if (!rc)
        return fsio_commit(&w, e);
    fsio_abort(&w);
    return rc;
}

/* --- loading --- */

typedef struct reader {
    const char *path;
    int fd;
    uint64_t size;
    header h;
} reader;

/* Exactly n bytes, or an error. */
static int read_all(const reader *r, void *to, size_t n, ds4_err *e)
{
    for (char *p = to; n;) {
        ssize_t k = read(r->fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return ds4_fail(e, DS4_EIO, "%s: cannot read: %s", r->path, strerror(errno));
        if (k == 0)
            return ds4_fail(e, DS4_EFORMAT, "%s: the snapshot became shorter while it was read", r->path);
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int reader_open(reader *r, const char *path, ds4_err *e)
{
    struct stat st;
    *r = (reader){.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (r->fd < 0)
        return ds4_fail(e, DS4_EIO, "%s: cannot open: %s", path, strerror(errno));
    int rc = 0;
    if (fstat(r->fd, &st) || !S_ISREG(st.st_mode))
        rc = ds4_fail(e, DS4_EFORMAT, "%s: not a regular file", path);
    r->size = rc ? 0 : (uint64_t)st.st_size;
    if (!rc && r->size < sizeof r->h)
        rc = ds4_fail(e, DS4_EFORMAT, "%s: not a snapshot: %llu bytes, at least %zu expected", path,
                      (unsigned long long)r->size, sizeof r->h);
    if (!rc)
        rc = read_all(r, &r->h, sizeof r->h, e);
    if (rc)
        close(r->fd);
    return rc;
}

/* The header against the session that is to take the state. */
static int check_header(const reader *r, const session *s, ds4_err *e)
{
    const header *h = &r->h, want = make_header(s);
    if (memcmp(h->magic, magic, sizeof magic))
        return ds4_fail(e, DS4_EFORMAT, "%s: not a ds4 snapshot", r->path);
    if (h->version != VERSION)
        return ds4_fail(e, DS4_EFORMAT, "%s: snapshot format %u, this program reads format %d: make it anew", r->path,
                        h->version, VERSION);
    if (h->crc != hash_crc32c(0, h, offsetof(header, crc)))
        return ds4_fail(e, DS4_EFORMAT, "%s: the snapshot's header is damaged", r->path);
    if (h->model != want.model)
        return ds4_fail(e, DS4_EMODEL, "%s: the snapshot belongs to another model (%016llx, this one is %016llx)",
                        r->path, (unsigned long long)h->model, (unsigned long long)want.model);
    if (h->sim != want.sim)
        return ds4_fail(e, DS4_EMODEL, "%s: the snapshot was made with another --kv-sim or --act setting", r->path);
    if (want.tap_width && (h->tap_width != want.tap_width || h->taps != want.taps))
        return ds4_fail(e, DS4_EMODEL, "%s: the snapshot was made %s: open the session the same way", r->path,
                        h->tap_width ? "with another drafter" : "without a drafter");
    if (h->fields != want.fields + (h->tap_width && !want.tap_width))
        return ds4_fail(e, DS4_EFORMAT, "%s: the snapshot has %u parts, expected %u", r->path, h->fields, want.fields);
    if (h->pos < 1 || h->pos > (uint32_t)s->ctx)
        return ds4_fail(e, DS4_EARG, "%s: the snapshot holds %u tokens, the context %d: use a larger --ctx", r->path,
                        h->pos, s->ctx);
    return 0;
}

/* Section i of the file as it must be: tokens, our fields, and the taps of a file with a drafter that this session
 * lacks. */
static section expected(const reader *r, const session *s, int i)
{
    if (i == 0)
        return tokens_section(r->h.pos);
    if (i <= s->k->fields)
        return field_section(&s->k->field[i - 1], r->h.pos);
    const int window = s->m->s.dims.window;
    kv_field taps = {.store = {.width = (int)r->h.tap_width}, .keep = window};
    return field_section(&taps, r->h.pos);
}

static int check_size(const reader *r, const session *s, ds4_err *e)
{
    uint64_t want = sizeof(header);
    for (int i = 0; i <= (int)r->h.fields; i++) {
        section h = expected(r, s, i);
        want += sizeof h + h.rows * (uint64_t)h.width * 4;
    }
    if (r->size != want)
        return ds4_fail(e, DS4_EFORMAT, "%s: the snapshot is %s: %llu bytes, expected %llu", r->path,
                        r->size < want ? "truncated" : "too long", (unsigned long long)r->size,
                        (unsigned long long)want);
    return 0;
}

static int damaged(const reader *r, int i, ds4_err *e)
{
    return ds4_fail(e, DS4_EFORMAT, "%s: the snapshot is damaged (part %d of %u)", r->path, i, r->h.fields);
}

/* Reads the head of section i and compares it. */
static int section_head(const reader *r, const session *s, int i, section *h, ds4_err *e)
{
    const section want = expected(r, s, i);
    int rc = read_all(r, h, sizeof *h, e);
    return rc ? rc : memcmp(h, &want, offsetof(section, crc)) ? damaged(r, i, e) : 0;
}

static int check_section(const reader *r, const session *s, int i, char *piece, ds4_err *e)
{
    section h;
    int rc = section_head(r, s, i, &h, e);
    uint32_t crc = hash_crc32c(0, &h, offsetof(section, crc));
    for (size_t left = rc ? 0 : data_bytes(&h), n; left && !rc; left -= n) {
        n = left < PIECE ? left : PIECE;
        rc = read_all(r, piece, n, e);
        if (!rc)
            crc = hash_crc32c(crc, piece, n);
        for (size_t k = 0; i == 0 && !rc && k < n / 4; k++) { /* a checksum is no proof of sense: tokens index tables */
            int32_t id;
            memcpy(&id, piece + 4 * k, 4);
            if (id < 0 || id >= s->m->s.dims.vocab)
                rc = damaged(r, i, e);
        }
    }
    return rc ? rc : crc != h.crc ? damaged(r, i, e) : 0;
}

static int check_all(const reader *r, const session *s, ds4_err *e)
{
    char *piece = malloc(PIECE);
    int rc = piece ? 0 : ds4_fail(e, DS4_ENOMEM, "no memory to read a snapshot");
    for (int i = 0; i <= (int)r->h.fields && !rc; i++)
        rc = check_section(r, s, i, piece, e);
    free(piece);
    return rc;
}

/* Second reading: section i into `to`, checked once more since the file may have changed in between. */
static int take_section(const reader *r, const session *s, int i, void *to, ds4_err *e)
{
    section h;
    int rc = section_head(r, s, i, &h, e);
    if (!rc)
        rc = read_all(r, to, data_bytes(&h), e);
    return rc ? rc : section_crc(&h, to) != h.crc ? damaged(r, i, e) : 0;
}

static int take_all(const reader *r, session *s, void *buf, ds4_err *e)
{
    int rc = take_section(r, s, 0, s->tokens, e);
    for (int i = 1; i <= s->k->fields && !rc; i++) {
        rc = take_section(r, s, i, buf, e);
        if (!rc)
            kv_field_write(s->k, &s->k->field[i - 1], s->slot, (int)r->h.pos, buf);
    }
    return rc;
}

static void *largest_section(const reader *r, const session *s)
{
    size_t most = 1;
    for (int i = 0; i <= s->k->fields; i++) {
        section h = expected(r, s, i);
        most = data_bytes(&h) > most ? data_bytes(&h) : most;
    }
    return malloc(most);
}

/* Everything was checked: from here on the old state is gone. */
static int replace_state(const reader *r, session *s, ds4_err *e)
{
    void *buf = largest_section(r, s);
    if (!buf)
        return ds4_fail(e, DS4_ENOMEM, "%s: no memory to load the snapshot", r->path);
    int rc = session_reset(s, e);
    if (!rc && lseek(r->fd, sizeof(header), SEEK_SET) < 0)
        rc = ds4_fail(e, DS4_EIO, "%s: cannot read: %s", r->path, strerror(errno));
    if (!rc)
        rc = take_all(r, s, buf, e);
    free(buf);
    if (rc)
        return rc;
    rc = s->m->b->op->sync(s->m->b, e);
    s->state = rc ? SESSION_POISONED : SESSION_READY;
    if (rc)
        return rc;
    s->pos = s->high = (int)r->h.pos;
    s->low = s->pos - 1;
    return 0;
}

int session_load(session *s, const char *path, ds4_err *e)
{
    reader r;
    if (s->state == SESSION_OPEN || s->state == SESSION_POISONED)
        return ds4_fail(e, DS4_ESTATE, "%s: not loaded: the session %s", path,
                        s->state == SESSION_OPEN ? "is in the middle of a forward"
                                                 : "is poisoned by an earlier backend failure: reset it");
    int rc = reader_open(&r, path, e);
    if (rc)
        return rc;
    rc = check_header(&r, s, e);
    if (!rc)
        rc = check_size(&r, s, e);
    if (!rc)
        rc = check_all(&r, s, e);
    if (!rc)
        rc = replace_state(&r, s, e);
    close(r.fd);
    return rc;
}
