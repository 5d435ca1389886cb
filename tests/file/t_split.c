/* Files on disk: mapping, and models split into several files. */
#include "util/unit.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/gguf_ahead.h"
#include "file/quant.h"
#include "util_gguf.h"

typedef struct room {
    char dir[64], path[128];
} room;

static int make_room(void **state)
{
    room *r = calloc(1, sizeof *r);
    strcpy(r->dir, "/tmp/ds4-gguf-XXXXXX");
    if (!mkdtemp(r->dir))
        return -1;
    *state = r;
    return 0;
}

static int drop_room(void **state)
{
    room *r = *state;
    DIR *d = opendir(r->dir);
    char path[400];
    for (struct dirent *ent; (ent = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", r->dir, ent->d_name);
        unlink(path);
    }
    closedir(d);
    rmdir(r->dir);
    free(r);
    return 0;
}

static const char *in_room(room *r, const char *name)
{
    snprintf(r->path, sizeof r->path, "%s/%s", r->dir, name);
    return r->path;
}

static const char *part_path(room *r, int no, int count)
{
    char name[40];
    snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", no + 1, count);
    return in_room(r, name);
}

/* A part with one tensor "wN" of one float N + 0.5; part 0 also has the model's name. */
static void write_part(const char *path, int no, int count, int tensors, const char *tensor)
{
    bytes b = {0};
    put_header(&b, 1, no ? 3 : 4);
    put_kv_int(&b, "split.no", GGUF_U16, (uint64_t)no);
    put_kv_int(&b, "split.count", GGUF_U16, (uint64_t)count);
    put_kv_int(&b, "split.tensors.count", GGUF_I32, (uint64_t)tensors);
    if (!no)
        put_kv_str(&b, "general.name", "three files");
    put_tensor(&b, tensor, 1, (uint64_t[]){1}, Q_F32, 0);
    put_pad(&b, 32);
    put(&b, &(float){(float)no + 0.5f}, 4);
    save(path, b);
    free(b.p);
}

static void write_set(room *r)
{
    write_part(part_path(r, 0, 3), 0, 3, 3, "w0");
    write_part(part_path(r, 1, 3), 1, 3, 3, "w1");
    write_part(part_path(r, 2, 3), 2, 3, 3, "w2");
}

static void refuse(const char *path, int code, const char *part1, const char *part2)
{
    gguf *g = NULL;
    ds4_err e = {0};
    assert_int_equal(gguf_open(&g, path, &e), code);
    assert_null(g);
    assert_has(e.msg, part1);
    assert_has(e.msg, part2);
}

static void a_file_on_disk_is_mapped(void **state)
{
    room *r = *state;
    bytes b = good_file();
    save(in_room(r, "model.gguf"), b);
    gguf *g = NULL;
    ds4_err e = {0};
    if (gguf_open(&g, r->path, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(gguf_file_bytes(g), b.n);
    assert_int_equal((uintptr_t)gguf_find_tensor(g, "exps")->data % 64, 0);
    unlink(r->path); /* the map outlives the name */
    (void)use_everything(g);
    gguf_close(g);
    free(b.p);
}

/* Reading ahead and giving pages back must not change what is read, neither of the tensor nor of its neighbours. */
static void hints_about_pages_change_nothing(void **state)
{
    enum { N = 5000, TENSORS = 3 };
    room *r = *state;
    bytes b = {0};
    gguf *g = NULL;
    ds4_err e = {0};
    put_header(&b, TENSORS, 0);
    for (uint64_t i = 0; i < TENSORS; i++)
        put_tensor(&b, (const char *[]){"a", "b", "c"}[i], 1, (uint64_t[]){N}, Q_F32, i * N * 4);
    put_pad(&b, 32);
    for (int i = 0; i < TENSORS * N; i++)
        put(&b, &(float){(float)i}, 4);
    save(in_room(r, "model.gguf"), b);
    for (int way = 0; way < 4; way++) { /* cached pages kept or not; the list walked or left early */
        if (gguf_open(&g, r->path, &e))
            fail_msg("%s", e.msg);
        const gguf_tensor *list[] = {gguf_tensor_at(g, 2), gguf_tensor_at(g, 0), gguf_tensor_at(g, 1)};
        gguf_ahead *a = gguf_ahead_start(g, list, TENSORS);
        assert_non_null(a);
        for (size_t i = 0; i < (way < 2 ? TENSORS : 0); i++) {
            gguf_ahead_passed(a, (uint64_t)i * N * 4);
            gguf_give_back(g, list[i], way % 2);
            for (int k = 0; k < TENSORS * N; k++)
                assert_true(((const float *)gguf_tensor_at(g, (size_t)(k / N))->data)[k % N] == (float)k);
        }
        gguf_ahead_stop(a);
        gguf_close(g);
    }
    if (gguf_open_mem(&g, b.p, b.n, "memory", &e))
        fail_msg("%s", e.msg);
    const gguf_tensor *t = gguf_tensor_at(g, 0);
    assert_null(gguf_ahead_start(g, &t, 1));
    gguf_give_back(g, t, true);
    assert_true(((const float *)t->data)[N - 1] == (float)(N - 1));
    gguf_close(g);
    free(b.p);
}

static void what_is_no_file_is_refused(void **state)
{
    room *r = *state;
    refuse(in_room(r, "none.gguf"), DS4_EIO, "none.gguf: cannot open", "No such file");
    refuse(r->dir, DS4_EIO, "is a folder", r->dir);
    save(in_room(r, "empty.gguf"), (bytes){0});
    refuse(r->path, DS4_EFORMAT, "empty.gguf: the file is empty", "download");
    assert_int_equal(mkfifo(in_room(r, "fifo"), 0600), 0);
    refuse(r->path, DS4_EIO, "not a regular file", "fifo");
    char longer[4000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    refuse(longer, DS4_EIO, "xxx: cannot open: File name too long", "...xxx");
}

static void any_part_opens_the_whole_set(void **state)
{
    room *r = *state;
    write_set(r);
    for (int no = 0; no < 3; no++) {
        gguf *g = NULL;
        ds4_err e = {0};
        if (gguf_open(&g, part_path(r, no, 3), &e))
            fail_msg("%s", e.msg);
        assert_int_equal(gguf_n_tensors(g), 3);
        assert_int_equal(gguf_n_kv(g), 4);
        assert_string_equal(gguf_path(g), part_path(r, 0, 3));
        gguf_str s;
        assert_int_equal(gguf_get_str(g, "general.name", true, &s, &e), 0);
        for (int k = 0; k < 3; k++) {
            const gguf_tensor *t = gguf_tensor_at(g, (size_t)k);
            assert_int_equal(t->part, k);
            assert_true(t->name.n == 2 && t->name.p[1] == '0' + k);
            assert_true(*(const float *)t->data == (float)k + 0.5f);
        }
        (void)use_everything(g);
        gguf_close(g);
    }
}

static void a_missing_part_is_named(void **state)
{
    room *r = *state;
    write_set(r);
    unlink(part_path(r, 1, 3));
    refuse(part_path(r, 2, 3), DS4_EIO, "part 2 of 3 is missing or unreadable", "m-00002-of-00003.gguf: cannot open");
}

static void a_damaged_part_is_named(void **state)
{
    room *r = *state;
    write_set(r);
    assert_int_equal(truncate(part_path(r, 2, 3), 150), 0);
    refuse(part_path(r, 0, 3), DS4_EFORMAT, "m-00003-of-00003.gguf: ", "truncated");
}

static void a_renamed_part_is_refused(void **state)
{
    room *r = *state;
    write_part(in_room(r, "model.gguf"), 1, 3, 3, "w1");
    refuse(r->path, DS4_EFORMAT, "is part 2 of 3 of a split model", "-00002-of-00003.gguf");
    write_part(in_room(r, "x"), 1, 3, 3, "w1");
    refuse(r->path, DS4_EFORMAT, "is part 2 of 3 of a split model", "names back");
}

static void parts_of_other_sets_are_refused(void **state)
{
    room *r = *state;
    write_set(r);
    write_part(part_path(r, 1, 3), 2, 3, 3, "w1");
    refuse(part_path(r, 0, 3), DS4_EFORMAT, "00002-of-00003.gguf: says it is part 3 of 3", "expected part 2 of 3");
    write_part(part_path(r, 1, 3), 1, 4, 3, "w1");
    refuse(part_path(r, 0, 3), DS4_EFORMAT, "says it is part 2 of 4", "expected part 2 of 3");
    write_part(part_path(r, 1, 3), 1, 3, 4, "w1");
    refuse(part_path(r, 0, 3), DS4_EFORMAT, "key 'split.tensors.count' is 4, another part says 3", "different sets");
    bytes plain = good_file();
    save(part_path(r, 1, 3), plain);
    free(plain.p);
    refuse(part_path(r, 0, 3), DS4_EFORMAT, "00002-of-00003.gguf: says it is part 1 of 1", "expected part 2 of 3");
}

static void the_number_of_tensors_is_checked(void **state)
{
    room *r = *state;
    for (int no = 0; no < 2; no++)
        write_part(part_path(r, no, 2), no, 2, 3, no ? "w1" : "w0");
    refuse(part_path(r, 0, 2), DS4_EFORMAT, "the 2 parts hold 2 tensors", "'split.tensors.count' says 3");
}

static void a_tensor_in_two_parts_is_refused(void **state)
{
    room *r = *state;
    write_set(r);
    write_part(part_path(r, 2, 3), 2, 3, 3, "w0");
    refuse(part_path(r, 0, 3), DS4_EFORMAT, "00003-of-00003.gguf: tensor 'w0' occurs twice", "");
}

static void split_keys_out_of_range_are_refused(void **state)
{
    room *r = *state;
    write_part(part_path(r, 0, 3), 3, 3, 3, "w0");
    refuse(part_path(r, 0, 3), DS4_EFORMAT, "key 'split.no' is 3, expected 0 to 2", "");
    bytes b = {0};
    put_header(&b, 0, 1);
    put_kv_str(&b, "split.count", "3");
    save(in_room(r, "a.gguf"), b);
    free(b.p);
    refuse(r->path, DS4_EFORMAT, "key 'split.count' has type string, expected an integer", "");
    b = (bytes){0};
    put_header(&b, 0, 1);
    put_kv_int(&b, "split.count", GGUF_U64, UINT64_MAX);
    save(in_room(r, "a.gguf"), b);
    free(b.p);
    refuse(r->path, DS4_EFORMAT, "key 'split.count' is ", "expected 0 to 99999");
}

static void a_set_of_one_is_a_plain_file(void **state)
{
    room *r = *state;
    write_part(in_room(r, "any-name.gguf"), 0, 1, 1, "w0");
    gguf *g = NULL;
    ds4_err e = {0};
    assert_int_equal(gguf_open(&g, r->path, &e), 0);
    assert_int_equal(gguf_n_tensors(g), 1);
    gguf_close(g);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, make_room, drop_room)
    const struct CMUnitTest tests[] = {
        T(a_file_on_disk_is_mapped),
        T(hints_about_pages_change_nothing),
        T(what_is_no_file_is_refused),
        T(any_part_opens_the_whole_set),
        T(a_missing_part_is_named),
        T(a_damaged_part_is_named),
        T(a_renamed_part_is_refused),
        T(parts_of_other_sets_are_refused),
        T(the_number_of_tensors_is_checked),
        T(a_tensor_in_two_parts_is_refused),
        T(split_keys_out_of_range_are_refused),
        T(a_set_of_one_is_a_plain_file),
    };
    return cmocka_run_group_tests_name("file/split", tests, NULL, NULL);
}
