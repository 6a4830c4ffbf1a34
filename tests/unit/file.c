/* SPDX-License-Identifier: Apache-2.0 */
/* Files: whole, replaced, removed, listed, appended; and names that come from data. */
#include <pf/digest.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>

#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64] = "/tmp/pf-file-XXXXXX";
static char paths[4][256];

/* A path below the scratch directory, valid until four more calls. */
static const char *in_root(const char *name)
{
    static int next;
    char *const path = paths[next++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static bool holds(const char *path, const char *want)
{
    char *data = NULL;
    size_t len = 0;
    const bool same = pf_file_read_all(path, 0, &data, &len) == 0 && len == strlen(want) &&
                      memcmp(data, want, len + 1) == 0;

    pf_free(data);
    return same;
}

static size_t n_in_root(void)
{
    struct pf_str_list list = {0};

    pf_dir_list(root, &list);
    const size_t n = list.n;
    pf_str_list_release(&list);
    return n;
}

static void replacing(void)
{
    const size_t before = n_in_root();
    struct stat st;

    ok(pf_file_write_atomic(in_root("a"), "one", 3) == 0 && holds(in_root("a"), "one"), "made");
    ok(pf_file_write_atomic(in_root("a"), "", 0) == 0 && holds(in_root("a"), ""), "replaced");
    ok(n_in_root() == before + 1, "nothing is left aside");
    pf_file_write_atomic(in_root("a.tmp.17.0"), "half", 4);
    pf_file_write_atomic(in_root("ab.tmp.17.0"), "other", 5);
    ok(pf_file_clean_aside(in_root("a")) == 0 && !pf_path_exists(in_root("a.tmp.17.0")) &&
           pf_path_exists(in_root("ab.tmp.17.0")) && holds(in_root("a"), ""),
       "what a killed process left aside is removed, and nothing else");
    (void)unlink(in_root("ab.tmp.17.0"));
    const mode_t mask = umask(027);
    pf_file_write_atomic(in_root("b"), "x", 1);
    umask(mask);
    ok(stat(in_root("b"), &st) == 0 && (st.st_mode & 0777) == 0640, "the umask decides the mode");
    ok(pf_mkdirs(in_root("dir")) == 0 && pf_file_write_atomic(in_root("dir"), "x", 1) == PF_EIO &&
           n_in_root() == before + 3,
       "a failure leaves nothing aside: %s", pf_error_message());
    ok(pf_file_write_atomic(in_root("no/such"), "x", 1) == PF_EIO, "%s", pf_error_message());
}

static void reading(void)
{
    char *data = NULL;
    size_t len = 77;
    uint64_t bytes;

    ok(pf_file_read_all(in_root("b"), 1, &data, &len) == 0 && len == 1, "as long as the limit");
    pf_free(data);
    data = NULL;
    pf_file_write_atomic(in_root("b"), "xy", 2);
    ok(pf_file_read_all(in_root("b"), 1, &data, &len) == PF_EINVAL && !data && len == 1,
       "longer than the limit: %s", pf_error_message());
    ok(pf_file_read_all(root, 0, &data, &len) == PF_EIO, "a directory: %s", pf_error_message());
    ok(pf_file_read_all(in_root("none"), 0, &data, &len) == PF_EIO, "%s", pf_error_message());
    ok(pf_file_read_all("/proc/self/maps", 0, &data, &len) == 0 && len > 0 && strlen(data) == len,
       "a file that claims to be empty is read to its end");
    pf_free(data);
    ok(pf_file_size(in_root("b"), &bytes) == 0 && bytes == 2 &&
           pf_file_size(root, &bytes) == PF_EIO,
       "sizes of regular files only");
}

static void ranges(void)
{
    char buf[4] = "";
    int fd;

    ok(pf_open(in_root("r"), O_RDWR | O_CREAT, &fd) == 0 &&
           pf_pwrite_full(fd, "abc", 3, 2, "r") == 0 && pf_pread_full(fd, buf, 3, 1, "r") == 0 &&
           memcmp(buf, "\0ab", 3) == 0,
       "written and read at offsets");
    ok(pf_pread_full(fd, buf, 3, 3, "r") == PF_EFORMAT, "a short file: %s", pf_error_message());
    ok(pf_close(fd, "r") == 0 && pf_close(-1, "r") == 0 && pf_close(fd, "r") == PF_EIO,
       "closing twice is told: %s", pf_error_message());
}

static void exchanging(void)
{
    pf_mkdirs(in_root("left"));
    pf_mkdirs(in_root("right"));
    pf_file_write_atomic(in_root("left/one"), "1", 1);
    pf_file_write_atomic(in_root("right/two"), "2", 1);
    errno = 0;
    const int err = pf_rename_exchange(in_root("left"), in_root("right"));
    if (err && (errno == EINVAL || errno == ENOSYS)) {
        skip("two directories trade places", "this file system cannot exchange names");
    } else {
        ok(err == 0 && holds(in_root("left/two"), "2") && holds(in_root("right/one"), "1"),
           "two directories trade places");
    }
    ok(pf_rename_exchange(in_root("left"), in_root("none")) == PF_EIO &&
           pf_path_is_dir(in_root("left")),
       "with nothing there is no trade: %s", pf_error_message());
    pf_rmtree(in_root("left"));
    pf_rmtree(in_root("right"));
}

static void copying(void)
{
    ok(pf_file_copy(in_root("b"), in_root("copy")) == 0 && holds(in_root("copy"), "xy"), "copied");
    ok(pf_file_copy(in_root("a"), in_root("copy")) == PF_EREFUSED && holds(in_root("copy"), "xy"),
       "never over a file: %s", pf_error_message());
    ok(pf_file_copy(root, in_root("copy2")) == PF_EIO && !pf_path_exists(in_root("copy2")),
       "only regular files");
    ok(pf_rename_durable(in_root("copy"), in_root("moved")) == 0 && holds(in_root("moved"), "xy"),
       "moved");
}

static void digests(void)
{
    struct pf_digest d, e;
    struct pf_digest_state *state = NULL;
    char hex[PF_DIGEST_HEX_BYTES];

    d = pf_digest_of("", 0);
    ok(strcmp(pf_digest_hex(&d, hex), "99aa06d3014798d86001c324468d497f") == 0,
       "the digest of nothing is the published one");
    ok(pf_digest_file(in_root("b"), &d) == 0 && pf_digest_new(&state) == 0, "of a file");
    pf_digest_update(state, "x", 1);
    pf_digest_update(state, NULL, 0);
    pf_digest_update(state, "y", 1);
    e = pf_digest_result(state);
    ok(pf_digest_equal(&d, &e), "in pieces, the same");
    pf_digest_free(state);
    pf_digest_free(NULL);
    ok(pf_digest_parse(pf_digest_hex(&d, hex), &e) == 0 && pf_digest_equal(&d, &e), "parsed back");
    hex[5] = 'g';
    ok(pf_digest_parse(hex, &e) == PF_EINVAL && pf_digest_parse("12", &e) == PF_EINVAL,
       "what is no digest is refused");
}

static void removing(void)
{
    pf_mkdirs(in_root("out/keep"));
    pf_file_write_atomic(in_root("out/keep/file"), "1", 1);
    pf_mkdirs(in_root("tree/x/y/z"));
    pf_file_write_atomic(in_root("tree/x/f"), "1", 1);
    ok(symlink(in_root("out/keep"), in_root("tree/x/link")) == 0, "a tree with a link out of it");
    ok(pf_rmtree(in_root("tree/")) == 0 && !pf_path_exists(in_root("tree")), "is removed");
    ok(holds(in_root("out/keep/file"), "1"), "what the link led to is not");
    ok(pf_rmtree(in_root("tree")) == 0, "a missing tree is fine");
    ok(symlink(in_root("out"), in_root("alias")) == 0 && pf_rmtree(in_root("alias")) == PF_EINVAL &&
           pf_path_exists(in_root("alias")),
       "a link is not a tree: %s", pf_error_message());
    ok(pf_rmtree("/") == PF_EINVAL && pf_rmtree(".") == PF_EINVAL && pf_rmtree("") == PF_EINVAL &&
           pf_rmtree(in_root("out/..")) == PF_EINVAL && pf_rmtree("//") == PF_EINVAL &&
           pf_rmtree(in_root("out/keep/file")) == PF_EINVAL,
       "roots, here, above and files are refused: %s", pf_error_message());
}

static void names_from_data(void)
{
    static const char *const unsafe[] = {
        "",      "/etc/x", "../x", "a/../b", "x/../../y", ".",       "./a",   "a/.",  "a//b",
        "a/",    "..",     "a\\b", "C:\\x",  "c:x",       "a\nb",    "\x7f",  "a/..", "\\",
        "a\\..", "/",      "//x",  "a/./b",  "..\\x",     "x\x1b[m", "a/../", "C:",   "a/b/..",
    };
    static const char *const safe[] = {"a",   "a.safetensors", "dir/b",   "..a",  "a..",
                                       "...", "a/..b",         ".hidden", "ab:c", "\xc3\xa4"};
    char long_name[5000];
    int bad = 0;

    for (size_t i = 0; i < sizeof unsafe / sizeof unsafe[0]; i++) {
        bad += pf_path_is_safe_member(unsafe[i]);
    }
    ok(bad == 0, "names that leave the directory are unsafe");
    for (size_t i = 0; i < sizeof safe / sizeof safe[0]; i++) {
        bad += !pf_path_is_safe_member(safe[i]);
    }
    memset(long_name, 'a', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    ok(bad == 0 && !pf_path_is_safe_member(long_name), "others are safe, up to a length");
}

static bool joins(const char *dir, const char *name, const char *want)
{
    char *const path = pf_path_join(dir, name);
    const bool same = strcmp(path, want) == 0;

    pf_free(path);
    return same;
}

static bool has_dir(const char *path, const char *want)
{
    char *const dir = pf_path_dir(path);
    const bool same = strcmp(dir, want) == 0;

    pf_free(dir);
    return same;
}

static void joining(void)
{
    ok(joins("a", "b", "a/b") && joins("a/", "b", "a/b") && joins("", "b", "b") &&
           joins(".", "b", "b") && joins("/", "b", "/b"),
       "joined");
    ok(has_dir("a/b", "a") && has_dir("b", ".") && has_dir("/b", "/") && has_dir("a/b/c", "a/b") &&
           strcmp(pf_path_base("a/b"), "b") == 0 && strcmp(pf_path_base("b"), "b") == 0,
       "taken apart");
}

static void listing(void)
{
    struct pf_str_list list;

    pf_mkdirs(in_root("list/sub"));
    pf_file_write_atomic(in_root("list/b"), "", 0);
    pf_file_write_atomic(in_root("list/B"), "", 0);
    pf_file_write_atomic(in_root("list/.a"), "", 0);
    ok(pf_dir_list(in_root("list"), &list) == 0 && list.n == 4 &&
           strcmp(list.items[0], ".a") == 0 && strcmp(list.items[1], "B") == 0 &&
           strcmp(list.items[2], "b") == 0 && strcmp(list.items[3], "sub") == 0,
       "sorted by bytes");
    pf_str_list_release(&list);
    ok(pf_dir_list(in_root("none"), &list) == PF_EIO, "%s", pf_error_message());
    ok(pf_mkdirs(in_root("list/sub/")) == 0 && pf_mkdirs(in_root("list/b/c")) == PF_EIO, "%s",
       pf_error_message());
}

static void lines(void)
{
    struct pf_line_file f = {0};

    ok(pf_line_file_close(&f) == 0, "closing nothing");
    ok(pf_line_file_open(in_root("m"), UINT64_MAX, &f) == 0 && f.bytes == 0, "made");
    pf_line_file_add(&f, "{\"step\":1}");
    pf_line_file_add(&f, "{\"step\":2}\n");
    ok(holds(in_root("m"), "{\"step\":1}\n{\"step\":2}\n") && f.bytes == 22,
       "each line is there at once");
    ok(pf_line_file_sync(&f) == 0 && pf_line_file_close(&f) == 0, "closed");
    ok(pf_line_file_open(in_root("m"), 11, &f) == 0 && f.bytes == 11 &&
           pf_line_file_add(&f, "x") == 0 && holds(in_root("m"), "{\"step\":1}\nx\n"),
       "cut off after a byte, then continued");
    pf_line_file_close(&f);
    ok(pf_line_file_open(in_root("m"), 99, &f) == PF_EINVAL &&
           holds(in_root("m"), "{\"step\":1}\nx\n"),
       "fewer bytes than were to be kept: %s", pf_error_message());
}

static void locking(void)
{
    enum pf_lock_state state = PF_LOCK_UNKNOWN;
    int fd = -1;

    ok(pf_mkdirs(in_root("held")) == 0 && pf_dir_lock_state(in_root("held"), &state) == 0 &&
           state == PF_LOCK_FREE,
       "a directory that nobody holds");
    ok(pf_dir_lock(in_root("held"), 0, &fd) == 0 &&
           pf_dir_lock_state(in_root("held"), &state) == 0 && state == PF_LOCK_HELD,
       "one that is held, also by this process");
    pf_close(fd, NULL);
    ok(pf_dir_lock_state(in_root("held"), &state) == 0 && state == PF_LOCK_FREE, "given back");
    ok(pf_dir_lock_state(in_root("no"), &state) == PF_EIO, "%s", pf_error_message());
}

int main(void)
{
    if (!mkdtemp(root)) {
        skip("files", "no scratch directory");
        return done();
    }
    replacing();
    reading();
    ranges();
    exchanging();
    copying();
    digests();
    removing();
    names_from_data();
    joining();
    listing();
    lines();
    locking();
    ok(pf_rmtree(root) == 0 && !pf_path_exists(root), "the scratch directory goes");
    return done();
}
