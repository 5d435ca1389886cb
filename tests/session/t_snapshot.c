/* Snapshots: what is restored continues as if nothing had happened; whatever is wrong with a file is refused and left
 * alone. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "util_session.h"

typedef struct place {
    char dir[64], file[96];
} place;

static int setup(void **state)
{
    static place p;
    strcpy(p.dir, "/tmp/ds4-snapshot-XXXXXX");
    if (!mkdtemp(p.dir))
        return -1;
    snprintf(p.file, sizeof p.file, "%s/session.kv", p.dir);
    *state = &p;
    return 0;
}

static int teardown(void **state)
{
    place *p = *state;
    unlink(p->file);
    return rmdir(p->dir);
}

static uint8_t *slurp(const char *path, size_t *n)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && !fstat(fd, &st));
    uint8_t *p = malloc((size_t)st.st_size + 1);
    *n = (size_t)st.st_size;
    assert_true(read(fd, p, *n) == st.st_size);
    close(fd);
    return p;
}

static void spill(const char *path, const void *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    close(fd);
}

static int files_in(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.' || strlen(e->d_name) > 2;
    closedir(d);
    return n;
}

static void save(timeline *l, const char *path)
{
    ds4_err e = {0};
    rig_check(session_save(&l->s, path, &e), &e);
}

static void load(timeline *l, const char *path)
{
    ds4_err e = {0};
    rig_check(session_load(&l->s, path, &e), &e);
    assert_true(session_assert(&l->s));
}

/* Both continue with more tokens, drafts on the way: everything must stay equal. */
static void expect_same_future(timeline *a, timeline *b, int from)
{
    const int more[] = {1, 2, 7, 40};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        float la[V4_VOCAB], lb[V4_VOCAB];
        rig_drafts da = timeline_draft(a, 5), db = timeline_draft(b, 5);
        if (memcmp(&da, &db, sizeof da))
            fail_msg("%d tokens restored, drafts differ after %d", from, a->s.pos);
        timeline_sync(a, from + more[i]);
        timeline_sync(b, from + more[i]);
        timeline_logits(a, la);
        timeline_logits(b, lb);
        if (memcmp(la, lb, sizeof la) || timeline_hash(a) != timeline_hash(b))
            fail_msg("%d tokens restored, differs after %d", from, a->s.pos);
    }
}

static void a_restored_session_continues_bit_identically(void **state)
{
    place *p = *state;
    timeline a, b;
    timeline_open(&a, 512);
    timeline_open(&b, 512);
    const int at[] = {1, 2, 3, 4, 5, 8, 100, 127, 128, 129, 131, 250, 256};
    timeline_sync(&b, 333); /* another state to be replaced */
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        timeline_sync(&a, at[i]);
        save(&a, p->file);
        load(&b, p->file);
        assert_int_equal(b.s.pos, at[i]);
        assert_true(timeline_hash(&a) == timeline_hash(&b));
        expect_same_future(&a, &b, at[i]);
    }
    timeline_close(&a);
    timeline_close(&b);
}

/* There are no logits in the file: the same prompt costs one token. Further back needs rows that were not saved. */
static void logits_come_back_for_one_token(void **state)
{
    place *p = *state;
    timeline a, b;
    float la[V4_VOCAB], lb[V4_VOCAB];
    timeline_open(&a, 512);
    timeline_open(&b, 512);
    timeline_sync(&a, 200);
    timeline_logits(&a, la);
    save(&a, p->file);
    load(&b, p->file);
    assert_int_equal(b.s.logits_row, -1);
    REFUSES(session_rewind(&b.s, 198, e), DS4_ESTATE, "198");
    assert_int_equal(timeline_sync(&b, 200), 1);
    timeline_logits(&b, lb);
    assert_memory_equal(la, lb, sizeof la);
    assert_true(timeline_hash(&a) == timeline_hash(&b));
    assert_int_equal(timeline_sync(&b, 190), 190); /* from the start: still right */
    assert_int_equal(timeline_sync(&a, 190), 1);
    assert_true(timeline_hash(&a) == timeline_hash(&b));
    timeline_close(&a);
    timeline_close(&b);
}

/* Loading must fail and leave the session as it was. */
static void expect_refused(timeline *l, const char *path, const char *what, size_t at)
{
    ds4_err e = {0};
    int pos = l->s.pos, rc = session_load(&l->s, path, &e);
    if (!rc || !*e.msg || strchr(e.msg, '\n') || l->s.pos != pos || l->s.state != SESSION_READY)
        fail_msg("%s at byte %zu: code %d, '%s'", what, at, rc, e.msg);
}

static void every_truncated_length_is_refused(void **state)
{
    place *p = *state;
    timeline a;
    timeline_open(&a, 64);
    timeline_sync(&a, 5);
    uint64_t before = timeline_hash(&a);
    save(&a, p->file);
    size_t n;
    free(slurp(p->file, &n));
    for (size_t len = n; len-- > 0;) {
        assert_int_equal(truncate(p->file, (off_t)len), 0);
        expect_refused(&a, p->file, "truncated", len);
    }
    assert_true(timeline_hash(&a) == before);
    timeline_close(&a);
}

static void every_flipped_byte_is_refused(void **state)
{
    place *p = *state;
    timeline a;
    timeline_open(&a, 64);
    timeline_sync(&a, 2);
    uint64_t before = timeline_hash(&a);
    save(&a, p->file);
    size_t n, m;
    uint8_t *bytes = slurp(p->file, &n);
    int fd = open(p->file, O_RDWR);
    for (size_t i = 0; i < n; i += i < 4096 ? 1 : 3) {
        uint8_t bad = bytes[i] ^ (uint8_t)(1u << i % 8);
        assert_true(pwrite(fd, &bad, 1, (off_t)i) == 1);
        expect_refused(&a, p->file, "flipped bit", i);
        assert_true(pwrite(fd, &bytes[i], 1, (off_t)i) == 1);
    }
    close(fd);
    assert_true(timeline_hash(&a) == before);
    load(&a, p->file); /* whole again */
    assert_true(timeline_hash(&a) == before);
    uint8_t *after = slurp(p->file, &m);
    assert_true(m == n && !memcmp(bytes, after, n)); /* loading and refusing wrote nothing */
    bytes = realloc(bytes, n + 1);
    bytes[n] = 0;
    spill(p->file, bytes, n + 1);
    expect_refused(&a, p->file, "one byte too many", n);
    free(bytes);
    free(after);
    timeline_close(&a);
}

static void things_that_are_no_snapshots(void **state)
{
    place *p = *state;
    timeline a;
    timeline_open(&a, 64);
    timeline_sync(&a, 2);
    REFUSES(session_load(&a.s, "/nonexistent/x", e), DS4_EIO, "/nonexistent/x");
    REFUSES(session_load(&a.s, p->dir, e), DS4_EFORMAT, "not a regular file");
    REFUSES(session_load(&a.s, "/dev/zero", e), DS4_EFORMAT, "not a regular file");
    unlink(p->file);
    assert_int_equal(mkfifo(p->file, 0600), 0);
    REFUSES(session_load(&a.s, p->file, e), DS4_EFORMAT, "not a regular file"); /* and does not wait for a writer */
    unlink(p->file);
    char text[5000];
    memset(text, 'x', sizeof text);
    spill(p->file, text, sizeof text);
    REFUSES(session_load(&a.s, p->file, e), DS4_EFORMAT, "not a ds4 snapshot");
    spill(p->file, "", 0);
    REFUSES(session_load(&a.s, p->file, e), DS4_EFORMAT, "not a snapshot: 0 bytes");
    assert_int_equal(a.s.pos, 2);
    timeline_close(&a);
}

/* Opens a session on a changed model. */
typedef struct other {
    rig r;
    uint8_t *a, *b;
    session s;
} other;

static void other_open(other *o, bool drafter, float rope, enum kv_sim sim, int ctx)
{
    ds4_err e = {0};
    gb t = v4_trunk(), d = v4_drafter(false);
    gb_f32(&t, "deepseek4.rope.freq_base", rope);
    gguf *trunk = v4_open_file(&t, &o->a, "other"), *side = v4_open_file(&d, &o->b, "other drafter");
    if (!drafter) {
        gguf_close(side);
        side = NULL;
    }
    rig_open(&o->r, trunk, side, (rig_options){.act = BE_ACT_Q8, .sim = sim, .ctx = ctx});
    rig_check(session_open(&o->s, &o->r.m, &o->r.k, 0, &e), &e);
}

static void other_close(other *o)
{
    session_close(&o->s);
    rig_close(&o->r);
    free(o->a);
    free(o->b);
}

static void foreign_snapshots_are_refused(void **state)
{
    place *p = *state;
    timeline a;
    other o;
    timeline_open(&a, 128);
    timeline_sync(&a, 100);
    save(&a, p->file);
    other_open(&o, true, 10001, KV_SIM_FULL, 128);
    REFUSES(session_load(&o.s, p->file, e), DS4_EMODEL, "another model");
    other_close(&o);
    other_open(&o, true, 10000, KV_SIM_OFF, 128);
    REFUSES(session_load(&o.s, p->file, e), DS4_EMODEL, "--kv-sim");
    other_close(&o);
    other_open(&o, true, 10000, KV_SIM_FULL, 128);
    o.s.m->b->act = o.s.m->b->act == BE_ACT_Q8 ? BE_ACT_FLOAT : BE_ACT_Q8; /* as if opened with the other precision */
    REFUSES(session_load(&o.s, p->file, e), DS4_EMODEL, "--act");
    other_close(&o);
    other_open(&o, true, 10000, KV_SIM_FULL, 99);
    REFUSES(session_load(&o.s, p->file, e), DS4_EARG, "holds 100 tokens, the context 99");
    other_close(&o);
    other_open(&o, true, 10000, KV_SIM_FULL, 100);
    ds4_err e = {0};
    rig_check(session_load(&o.s, p->file, &e), &e);
    assert_int_equal(o.s.pos, 100);
    other_close(&o);
    timeline_close(&a);
}

/* Taps are dropped by a session without drafter; they cannot be invented for one with a drafter. */
static void with_and_without_a_drafter(void **state)
{
    place *p = *state;
    timeline a;
    other o;
    ds4_err e = {0};
    uint64_t h;
    timeline_open(&a, 256);
    timeline_sync(&a, 150);
    save(&a, p->file);
    other_open(&o, false, 10000, KV_SIM_FULL, 256);
    rig_check(session_load(&o.s, p->file, &e), &e);
    assert_int_equal(o.s.pos, 150);
    rig_check(session_sync(&o.s, a.ids, 151, NULL, NULL, NULL, &e), &e);
    rig_check(session_hash(&o.s, &h, &e), &e);
    float la[V4_VOCAB];
    timeline_sync(&a, 151);
    timeline_logits(&a, la);
    assert_memory_equal(la, o.r.m.sc.logits, sizeof la);
    rig_check(session_save(&o.s, p->file, &e), &e);
    REFUSES(session_load(&a.s, p->file, e), DS4_EMODEL, "without a drafter");
    other_close(&o);
    timeline_close(&a);
}

/* A header of another format version, with a right checksum. */
static void other_versions_are_refused(void **state)
{
    place *p = *state;
    timeline a;
    timeline_open(&a, 64);
    timeline_sync(&a, 2);
    save(&a, p->file);
    size_t n;
    uint8_t *bytes = slurp(p->file, &n);
    bytes[8] = 2;
    spill(p->file, bytes, n);
    REFUSES(session_load(&a.s, p->file, e), DS4_EFORMAT, "format 2");
    free(bytes);
    timeline_close(&a);
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    place *p = *state;
    timeline a;
    timeline_open(&a, 256);
    timeline_sync(&a, 130);
    spill(p->file, "precious", 8);
    struct rlimit keep, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &keep), 0);
    void (*old)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 400000; limit += 49999) {
        small = (struct rlimit){limit, keep.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        ds4_err e = {0};
        int rc = session_save(&a.s, p->file, &e);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &keep), 0);
        if (rc != DS4_EIO || !strstr(e.msg, "session.kv"))
            fail_msg("limit %llu: code %d, '%s'", (unsigned long long)limit, rc, e.msg);
        size_t n;
        uint8_t *bytes = slurp(p->file, &n);
        assert_true(n == 8 && !memcmp(bytes, "precious", 8));
        free(bytes);
        assert_int_equal(files_in(p->dir), 1);
    }
    signal(SIGXFSZ, old);
    ds4_err e = {0};
    assert_true(session_save(&a.s, "/dev/full", &e) < 0);
    assert_true(session_save(&a.s, "/nonexistent/dir/x", &e) < 0);
    save(&a, p->file);
    assert_int_equal(files_in(p->dir), 1);
    timeline_close(&a);
}

static void only_a_ready_session_is_saved(void **state)
{
    place *p = *state;
    timeline a;
    ds4_err err = {0};
    timeline_open(&a, 64);
    unlink(p->file);
    REFUSES(session_save(&a.s, p->file, e), DS4_ESTATE, "empty");
    rig_check(session_begin(&a.s, a.ids, 3, 3, &err), &err);
    REFUSES(session_save(&a.s, p->file, e), DS4_ESTATE, "middle of a forward");
    REFUSES(session_load(&a.s, p->file, e), DS4_ESTATE, "middle of a forward");
    assert_int_equal(files_in(p->dir), 0);
    session_commit(&a.s, 0, -1);
    timeline_close(&a);
}

static void a_failing_device_writes_no_file(void **state)
{
    place *p = *state;
    for (int k = 1; k < 40; k++) {
        timeline a;
        ds4_err e = {0};
        timeline_open(&a, 64);
        timeline_sync(&a, 6);
        unlink(p->file);
        backend_fault_after(a.t.r.b, k);
        int rc = session_save(&a.s, p->file, &e);
        assert_int_equal(files_in(p->dir), rc ? 0 : 1);
        assert_true(rc == 0 || rc == DS4_EBACKEND);
        timeline_close(&a);
        if (!rc)
            return;
    }
    fail_msg("saving synchronises more than 40 times");
}

static void a_failing_device_poisons_a_load(void **state)
{
    place *p = *state;
    int poisoned = 0;
    for (int k = 1; k < 20; k++) {
        timeline a;
        ds4_err e = {0};
        timeline_open(&a, 64);
        timeline_sync(&a, 6);
        save(&a, p->file);
        backend_fault_after(a.t.r.b, k);
        int rc = session_load(&a.s, p->file, &e);
        assert_true(session_assert(&a.s));
        if (rc) {
            assert_int_equal(rc, DS4_EBACKEND);
            assert_int_equal(a.s.state, SESSION_POISONED);
            poisoned++;
        }
        timeline_close(&a);
        if (!rc)
            break;
    }
    assert_true(poisoned > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restored_session_continues_bit_identically),
        cmocka_unit_test(logits_come_back_for_one_token),
        cmocka_unit_test(every_truncated_length_is_refused),
        cmocka_unit_test(every_flipped_byte_is_refused),
        cmocka_unit_test(things_that_are_no_snapshots),
        cmocka_unit_test(foreign_snapshots_are_refused),
        cmocka_unit_test(with_and_without_a_drafter),
        cmocka_unit_test(other_versions_are_refused),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(only_a_ready_session_is_saved),
        cmocka_unit_test(a_failing_device_writes_no_file),
        cmocka_unit_test(a_failing_device_poisons_a_load),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
