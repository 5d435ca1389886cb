/* Files are replaced completely or not at all. */
#include "util/unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fsio.h"

typedef struct room {
    char dir[64], file[96];
} room;

static int make_room(void **state)
{
    room *r = calloc(1, sizeof *r);
    strcpy(r->dir, "/tmp/ds4-fsio-XXXXXX");
    if (!mkdtemp(r->dir))
        return -1;
    snprintf(r->file, sizeof r->file, "%s/state.bin", r->dir);
    *state = r;
    return 0;
}

static int count_files(const room *r)
{
    DIR *d = opendir(r->dir);
    int n = 0;
    for (struct dirent *ent; (ent = readdir(d));)
        n += ent->d_name[0] != '.';
    closedir(d);
    return n;
}

static int drop_room(void **state)
{
    room *r = *state;
    chmod(r->dir, 0700);
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

static void assert_content(const char *path, const char *want, size_t n)
{
    char *got;
    size_t len;
    ds4_err e = {0};
    if (fsio_read(path, 1 << 20, &got, &len, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(len, n);
    assert_memory_equal(got, want, n);
    assert_int_equal(got[len], 0);
    free(got);
}

static void what_is_written_is_read_back(void **state)
{
    room *r = *state;
    ds4_err e = {0};
    assert_int_equal(fsio_write(r->file, "first", 5, &e), 0);
    assert_content(r->file, "first", 5);
    assert_int_equal(fsio_write(r->file, "", 0, &e), 0);
    assert_content(r->file, "", 0);
    assert_int_equal(count_files(r), 1);
}

static void an_abandoned_write_leaves_the_old_file(void **state)
{
    room *r = *state;
    ds4_err e = {0};
    assert_int_equal(fsio_write(r->file, "old", 3, &e), 0);
    fsio_writer w;
    assert_int_equal(fsio_begin(&w, r->file, &e), 0);
    assert_int_equal(fsio_put(&w, "new content", 11, &e), 0);
    assert_content(r->file, "old", 3);
    assert_int_equal(count_files(r), w.nameless ? 1 : 2);
    fsio_abort(&w);
    fsio_abort(&w);
    assert_content(r->file, "old", 3);
    assert_int_equal(count_files(r), 1);
}

/* Ctrl-C, kill -9, the kernel out of memory: no half file stays. */
static void a_killed_program_leaves_nothing(void **state)
{
    room *r = *state;
    ds4_err e = {0};
    fsio_writer w;
    assert_int_equal(fsio_write(r->file, "old", 3, &e), 0);
    assert_int_equal(fsio_begin(&w, r->file, &e), 0);
    bool nameless = w.nameless;
    fsio_abort(&w);
    if (!nameless) {
        print_message("skipped (the file system has no nameless files)\n");
        skip();
    }
    pid_t child = fork();
    if (child == 0) {
        if (!fsio_begin(&w, r->file, &e) && !fsio_put(&w, "new", 3, &e))
            raise(SIGKILL);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(count_files(r), 1);
    assert_content(r->file, "old", 3);
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    room *r = *state;
    ds4_err e = {0};
    char *big = calloc(1, 1 << 20);
    assert_int_equal(fsio_write(r->file, "old", 3, &e), 0);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 1 << 16;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    int rc = fsio_write(r->file, big, 1 << 20, &e);
    setrlimit(RLIMIT_FSIZE, &old);
    free(big);
    assert_int_equal(rc, DS4_EIO);
    assert_has(e.msg, "state.bin: cannot write: ");
    assert_content(r->file, "old", 3);
    assert_int_equal(count_files(r), 1);
}

static void a_missing_or_closed_folder_is_an_error(void **state)
{
    room *r = *state;
    ds4_err e = {0};
    char path[160];
    snprintf(path, sizeof path, "%s/none/state.bin", r->dir);
    assert_int_equal(fsio_write(path, "x", 1, &e), DS4_EIO);
    assert_has(e.msg, "cannot create");
    assert_int_equal(fsio_write("", "x", 1, &e), DS4_EARG);
    assert_int_equal(fsio_write(r->dir, "x", 1, &e), DS4_EARG);
    assert_has(e.msg, "is a folder");
    assert_int_equal(count_files(r), 0);
}

static void permissions_and_links_survive(void **state)
{
    room *r = *state;
    ds4_err e = {0};
    char link[160];
    struct stat st;
    snprintf(link, sizeof link, "%s/link", r->dir);
    assert_int_equal(fsio_write(r->file, "1", 1, &e), 0);
    chmod(r->file, 0666);
    assert_int_equal(symlink(r->file, link), 0);
    assert_int_equal(fsio_write(link, "22", 2, &e), 0);
    assert_content(r->file, "22", 2);
    stat(r->file, &st);
    assert_int_equal(st.st_mode & 0777, 0666);
    lstat(link, &st);
    assert_true(S_ISLNK(st.st_mode));
}

static void a_file_over_the_limit_is_refused(void **state)
{
    room *r = *state;
    ds4_err e = {0};
    char *got = NULL, big[40000];
    size_t n;
    memset(big, 'x', sizeof big);
    assert_int_equal(fsio_write(r->file, big, sizeof big, &e), 0);
    assert_int_equal(fsio_read(r->file, sizeof big - 1, &got, &n, &e), DS4_EARG);
    assert_has(e.msg, "longer than 39999 bytes");
    assert_int_equal(fsio_read(r->file, sizeof big, &got, &n, &e), 0);
    assert_int_equal(n, sizeof big);
    free(got);
    assert_int_equal(fsio_read("/dev/zero", 100000, &got, &n, &e), DS4_EARG);
    assert_int_equal(fsio_read(r->dir, 100, &got, &n, &e), DS4_EIO);
    assert_has(e.msg, "cannot read");
    strcat(r->file, "x");
    assert_int_equal(fsio_read(r->file, 100, &got, &n, &e), DS4_EIO);
    assert_has(e.msg, "cannot open");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, make_room, drop_room)
    const struct CMUnitTest tests[] = {
        T(what_is_written_is_read_back),
        T(an_abandoned_write_leaves_the_old_file),
        T(a_killed_program_leaves_nothing),
        T(a_full_disk_leaves_the_old_file),
        T(a_missing_or_closed_folder_is_an_error),
        T(permissions_and_links_survive),
        T(a_file_over_the_limit_is_refused),
    };
    return cmocka_run_group_tests_name("base/fsio", tests, NULL, NULL);
}
