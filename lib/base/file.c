/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/file.h>

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- bytes --- */

int pf_open(const char *path, int flags, int *fd_out)
{
    int fd;

    do {
        fd = open(path, flags | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return pf_fail_errno(PF_EIO, flags & O_CREAT ? "cannot create '%s'" : "cannot open '%s'",
                             path);
    }
    *fd_out = fd;
    return 0;
}

int pf_close(int fd, const char *path)
{
    /* After EINTR Linux has closed it all the same; a second close could hit another file. */
    if (fd >= 0 && close(fd) != 0 && errno != EINTR && path) {
        return pf_fail_errno(PF_EIO, "cannot close '%s'", path);
    }
    return 0;
}

int pf_read_some(int fd, void *buf, size_t n, const char *path, size_t *n_out)
{
    ssize_t got;

    do {
        got = read(fd, buf, n);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return pf_fail_errno(PF_EIO, "cannot read '%s'", path);
    }
    *n_out = (size_t)got;
    return 0;
}

int pf_pread_full(int fd, void *buf, size_t n, uint64_t offset, const char *path)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = pread(fd, (char *)buf + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno != EINTR) {
            return pf_fail_errno(PF_EIO, "cannot read '%s'", path);
        }
        if (got == 0) {
            return pf_fail(PF_EFORMAT, "'%s' ends at byte %llu, %zu bytes early", path,
                           (unsigned long long)(offset + done), n - done);
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

int pf_pwrite_full(int fd, const void *buf, size_t n, uint64_t offset, const char *path)
{
    for (size_t done = 0; done < n;) {
        const ssize_t put = pwrite(fd, (const char *)buf + done, n - done, (off_t)(offset + done));
        if (put < 0 && errno != EINTR) {
            return pf_fail_errno(PF_EIO, "cannot write '%s'", path);
        }
        done += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

int pf_write_full(int fd, const void *buf, size_t n, const char *path)
{
    for (size_t done = 0; done < n;) {
        const ssize_t put = write(fd, (const char *)buf + done, n - done);
        if (put < 0 && errno != EINTR) {
            return pf_fail_errno(PF_EIO, "cannot write '%s'", path);
        }
        done += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

/* What to read first: the length of a regular file and one byte more, to meet its end at once. */
static int first_capacity(int fd, const char *path, size_t *capacity_out)
{
    struct stat st;

    if (fstat(fd, &st) != 0) {
        return pf_fail_errno(PF_EIO, "cannot read '%s'", path);
    }
    *capacity_out =
        S_ISREG(st.st_mode) && st.st_size > 0 ? (size_t)st.st_size + 1 : (size_t)1 << 16;
    return 0;
}

static int read_to_end(int fd, const char *path, size_t max_bytes, char **data, size_t *len_out)
{
    size_t capacity = 0, len = 0, n;

    PF_TRY(first_capacity(fd, path, &capacity));
    if (max_bytes > 0 && capacity > max_bytes + 1) {
        capacity = max_bytes + 1; /* what is longer is refused below */
    }
    do {
        if (!*data || len == capacity) {
            capacity = *data ? 2 * capacity : capacity;
            char *const grown = pf_realloc_array(*data, capacity + 1, 1);
            if (!grown) {
                return PF_ENOMEM;
            }
            *data = grown;
        }
        PF_TRY(pf_read_some(fd, *data + len, capacity - len, path, &n));
        len += n;
        if (max_bytes > 0 && len > max_bytes) {
            return pf_fail(PF_EINVAL, "'%s' is longer than %zu bytes", path, max_bytes);
        }
    } while (n > 0);
    (*data)[len] = '\0';
    *len_out = len;
    return 0;
}

/* Names of what the process has open already. */
static bool is_descriptor(const char *path)
{
    return strcmp(path, "/dev/stdin") == 0 || pf_str_starts_with(path, "/dev/fd/") ||
           pf_str_starts_with(path, "/proc/self/fd/");
}

/* Opening a FIFO waits for a writer, and a device may have no end: neither is opened to be read, but
 * where a shell has put one in place of a file. */
static int open_whole(const char *path, int *fd_out)
{
    struct stat st;
    int fd;

    if (is_descriptor(path)) {
        return pf_open(path, O_RDONLY, fd_out);
    }
    PF_TRY(pf_open(path, O_RDONLY | O_NONBLOCK, &fd));
    if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        (void)pf_close(fd, NULL);
        return pf_fail(PF_EIO, "'%s' is not a regular file", path);
    }
    *fd_out = fd;
    return 0;
}

int pf_file_read_all(const char *path, size_t max_bytes, char **data_out, size_t *len_out)
{
    char *data = NULL;
    int fd;

    PF_TRY(open_whole(path, &fd));
    const int err = read_to_end(fd, path, max_bytes, &data, len_out);
    (void)pf_close(fd, NULL);
    if (err) {
        pf_free(data);
        return err;
    }
    *data_out = data;
    return 0;
}

int pf_file_size(const char *path, uint64_t *bytes_out)
{
    struct stat st;

    if (stat(path, &st) != 0) {
        return pf_fail_errno(PF_EIO, "cannot open '%s'", path);
    }
    if (!S_ISREG(st.st_mode)) {
        return pf_fail(PF_EIO, "'%s' is not a regular file", path);
    }
    *bytes_out = (uint64_t)st.st_size;
    return 0;
}

bool pf_path_exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

bool pf_path_is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool pf_path_is_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* --- directories and durability --- */

int pf_fsync(int fd, const char *path)
{
    int result;

    do {
        result = fsync(fd);
    } while (result != 0 && errno == EINTR);
    /* Some file systems have nothing to sync for a directory and say so with EINVAL. */
    if (result != 0 && errno != EINVAL) {
        return pf_fail_errno(PF_EIO, "cannot sync '%s'", path);
    }
    return 0;
}

int pf_fsync_path(const char *path)
{
    int fd;

    PF_TRY(pf_open(path, O_RDONLY, &fd));
    const int err = pf_fsync(fd, path);
    (void)pf_close(fd, NULL);
    return err;
}

static int fsync_parent(const char *path)
{
    char *const dir = pf_path_dir(path);

    if (!dir) {
        return PF_ENOMEM;
    }
    const int err = pf_fsync_path(dir);
    pf_free(dir);
    return err;
}

static int make_dir(const char *path)
{
    if (mkdir(path, 0777) == 0) {
        return fsync_parent(path);
    }
    const int why = errno;
    if (pf_path_is_dir(path)) {
        return 0;
    }
    errno = why == EEXIST ? ENOTDIR : why;
    return pf_fail_errno(PF_EIO, "cannot create directory '%s'", path);
}

int pf_mkdirs(const char *path)
{
    char *const prefix = pf_strdup(path);
    int err = 0;

    if (!prefix) {
        return PF_ENOMEM;
    }
    for (char *slash = strchr(prefix + (*prefix == '/'), '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        PF_TRY_GOTO(make_dir(prefix), out);
        *slash = '/';
    }
    err = make_dir(prefix);
out:
    pf_free(prefix);
    return err;
}

/* A new file beside path, of a name that nothing else has. */
static int create_aside(const char *path, char **aside_out, int *fd_out)
{
    static atomic_uint counter;

    for (;;) {
        char *const aside =
            pf_asprintf("%s.tmp.%ld.%u", path, (long)getpid(), atomic_fetch_add(&counter, 1));
        if (!aside) {
            return PF_ENOMEM;
        }
        const int fd = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) {
            *aside_out = aside;
            *fd_out = fd;
            return 0;
        }
        const int err = errno == EEXIST || errno == EINTR
                            ? 0
                            : pf_fail_errno(PF_EIO, "cannot create '%s'", aside);
        pf_free(aside);
        PF_TRY(err);
    }
}

static int fill_and_sync(int fd, const char *aside, const void *data, size_t len)
{
    int err = pf_write_full(fd, data, len, aside);

    if (!err) {
        err = pf_fsync(fd, aside);
    }
    if (err) {
        (void)pf_close(fd, NULL);
        return err;
    }
    return pf_close(fd, aside);
}

int pf_file_write_atomic(const char *path, const void *data, size_t len)
{
    char *aside = NULL;
    int fd, err = 0;

    PF_TRY(create_aside(path, &aside, &fd));
    PF_TRY_GOTO(fill_and_sync(fd, aside, data, len), out);
    if (rename(aside, path) != 0) {
        err = pf_fail_errno(PF_EIO, "cannot rename '%s' to '%s'", aside, path);
        goto out;
    }
    err = fsync_parent(path);
    pf_free(aside);
    return err;
out:
    unlink(aside);
    pf_free(aside);
    return err;
}

static int remove_asides(const char *dir, const char *prefix)
{
    struct pf_str_list names = {0};
    int err = 0;

    PF_TRY(pf_dir_list(dir, &names));
    for (size_t i = 0; !err && i < names.n; i++) {
        if (strncmp(names.items[i], prefix, strlen(prefix)) != 0) {
            continue;
        }
        char *const path = pf_path_join(dir, names.items[i]);
        err = path ? 0 : PF_ENOMEM;
        if (!err && unlink(path) != 0 && errno != ENOENT) {
            err = pf_fail_errno(PF_EIO, "cannot remove '%s'", path);
        }
        pf_free(path);
    }
    pf_str_list_release(&names);
    return err;
}

int pf_file_clean_aside(const char *path)
{
    char *const dir = pf_path_dir(path), *const prefix = pf_asprintf("%s.tmp.", pf_path_base(path));
    const int err = dir && prefix ? remove_asides(dir, prefix) : PF_ENOMEM;

    pf_free(dir);
    pf_free(prefix);
    return err;
}

int pf_rename_durable(const char *from, const char *to)
{
    char *const dir = pf_path_dir(to); /* before, so that nothing but the sync can fail after it */
    int err;

    if (!dir) {
        return PF_ENOMEM;
    }
    err = rename(from, to) == 0 ? pf_fsync_path(dir)
                                : pf_fail_errno(PF_EIO, "cannot rename '%s' to '%s'", from, to);
    pf_free(dir);
    return err;
}

int pf_rename_exchange(const char *a, const char *b)
{
    if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) != 0) {
        return errno == EINVAL || errno == ENOSYS
                   ? pf_fail(PF_EIO,
                             "cannot replace '%s': its file system cannot exchange two directories "
                             "in one step; move it away first",
                             b)
                   : pf_fail_errno(PF_EIO, "cannot exchange '%s' and '%s'", a, b);
    }
    return 0;
}

#define COPY_BYTES ((size_t)1 << 20)

static int copy_bytes(int in, const char *from, int out, const char *to)
{
    char *const chunk = pf_alloc(COPY_BYTES);
    size_t n = 0;
    int err = chunk ? 0 : PF_ENOMEM;

    while (!err) {
        PF_TRY_GOTO(pf_read_some(in, chunk, COPY_BYTES, from, &n), out);
        if (n == 0) {
            break;
        }
        err = pf_write_full(out, chunk, n, to);
    }
out:
    pf_free(chunk);
    return err;
}

int pf_file_copy(const char *from, const char *to)
{
    uint64_t bytes;
    int in, out, err = 0;

    PF_TRY(pf_file_size(from, &bytes)); /* refuses what is not a regular file */
    PF_TRY(pf_open(from, O_RDONLY, &in));
    do {
        out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (out < 0 && errno == EINTR);
    if (out < 0) {
        err = errno == EEXIST ? pf_fail(PF_EREFUSED, "'%s' exists already", to)
                              : pf_fail_errno(PF_EIO, "cannot create '%s'", to);
        (void)pf_close(in, NULL);
        return err;
    }
    err = copy_bytes(in, from, out, to);
    (void)pf_close(in, NULL);
    const int close_err = pf_close(out, err ? NULL : to);
    err = err ? err : close_err;
    if (err) {
        unlink(to);
    }
    return err;
}

/* --- removal --- */

static int empty_dir(int fd, dev_t device, const char *path);

/* A directory that is no link, by its name in another; -1: see errno. */
static int open_dir_at(int dir_fd, const char *name)
{
    int fd;

    do {
        fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

/* Remove one entry of the directory dir_fd; `path` names the tree in messages. */
static int remove_entry(int dir_fd, const char *name, dev_t device, const char *path)
{
    struct stat st;

    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT ? 0 : pf_fail_errno(PF_EIO, "cannot remove '%s/.../%s'", path, name);
    }
    if (!S_ISDIR(st.st_mode)) {
        if (unlinkat(dir_fd, name, 0) != 0 && errno != ENOENT) {
            return pf_fail_errno(PF_EIO, "cannot remove '%s/.../%s'", path, name);
        }
        return 0;
    }
    if (st.st_dev != device) {
        return pf_fail(PF_EIO, "cannot remove '%s': '%s' in it is a mount point", path, name);
    }
    const int fd = open_dir_at(dir_fd, name);
    if (fd < 0) {
        return pf_fail_errno(PF_EIO, "cannot open '%s/.../%s'", path, name);
    }
    PF_TRY(empty_dir(fd, device, path));
    if (unlinkat(dir_fd, name, AT_REMOVEDIR) != 0 && errno != ENOENT) {
        return pf_fail_errno(PF_EIO, "cannot remove '%s/.../%s'", path, name);
    }
    return 0;
}

static bool is_dot_name(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Takes fd over. */
static int empty_dir(int fd, dev_t device, const char *path)
{
    DIR *const dir = fdopendir(fd);
    int err = 0;

    if (!dir) {
        err = pf_fail_errno(PF_EIO, "cannot read directory '%s'", path);
        (void)pf_close(fd, NULL);
        return err;
    }
    while (!err) {
        errno = 0;
        const struct dirent *const entry = readdir(dir);
        if (!entry) {
            err = errno ? pf_fail_errno(PF_EIO, "cannot read directory '%s'", path) : 0;
            break;
        }
        if (!is_dot_name(entry->d_name)) {
            err = remove_entry(dirfd(dir), entry->d_name, device, path);
        }
    }
    closedir(dir);
    return err;
}

/* Only a tree with a name of its own is removed: not the root, not "here", not "above". */
static bool is_removable(const char *path)
{
    const char *end = path + strlen(path);

    while (end > path && end[-1] == '/') {
        end--;
    }
    const char *base = end;
    while (base > path && base[-1] != '/') {
        base--;
    }
    const size_t len = (size_t)(end - base);
    return len > 0 && !(len == 1 && base[0] == '.') && !(len == 2 && memcmp(base, "..", 2) == 0);
}

int pf_rmtree(const char *path)
{
    struct stat st;

    if (!is_removable(path)) {
        return pf_fail(PF_EINVAL, "refusing to remove '%s'", path);
    }
    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? 0 : pf_fail_errno(PF_EIO, "cannot remove '%s'", path);
    }
    if (!S_ISDIR(st.st_mode)) {
        return pf_fail(PF_EINVAL, "cannot remove '%s': not a directory", path);
    }
    const int fd = open_dir_at(AT_FDCWD, path);
    if (fd < 0) {
        return pf_fail_errno(PF_EIO, "cannot open '%s'", path);
    }
    PF_TRY(empty_dir(fd, st.st_dev, path));
    if (rmdir(path) != 0 && errno != ENOENT) {
        return pf_fail_errno(PF_EIO, "cannot remove '%s'", path);
    }
    return 0;
}

int pf_dir_lock(const char *path, double wait_s, int *fd_out)
{
    const double end = pf_time_monotonic() + wait_s;
    int fd;

    PF_TRY(pf_open(path, O_RDONLY | O_DIRECTORY, &fd));
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            break; /* no locks here */
        }
        if (pf_time_monotonic() > end) {
            (void)pf_close(fd, NULL);
            return pf_fail(PF_EREFUSED, "'%s' is in use by another run", path);
        }
        pf_time_sleep(0.02);
    }
    *fd_out = fd;
    return 0;
}

int pf_dir_lock_state(const char *path, enum pf_lock_state *state_out)
{
    int fd;

    PF_TRY(pf_open(path, O_RDONLY | O_DIRECTORY, &fd));
    const int result = flock(fd, LOCK_SH | LOCK_NB); /* two that ask do not see each other */
    *state_out = result == 0 ? PF_LOCK_FREE : errno == EWOULDBLOCK ? PF_LOCK_HELD : PF_LOCK_UNKNOWN;
    return pf_close(fd, NULL);
}

/* --- paths --- */

char *pf_path_join(const char *dir, const char *name)
{
    const size_t len = strlen(dir);

    if (len == 0 || strcmp(dir, ".") == 0) {
        return pf_strdup(name);
    }
    return pf_asprintf("%s%s%s", dir, dir[len - 1] == '/' ? "" : "/", name);
}

const char *pf_path_base(const char *path)
{
    const char *const slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

char *pf_path_dir(const char *path)
{
    const char *const slash = strrchr(path, '/');

    if (!slash) {
        return pf_strdup(".");
    }
    return slash == path ? pf_strdup("/") : pf_strndup(path, (size_t)(slash - path));
}

bool pf_path_is_safe_member(const char *name)
{
    const size_t len = strnlen(name, 4097);

    if (len == 0 || len > 4096 || (name[1] == ':' && name[0] != '/')) {
        return false;
    }
    for (const char *part = name;; part++) {
        const size_t part_len = strcspn(part, "/");
        for (size_t i = 0; i < part_len; i++) {
            const unsigned char c = (unsigned char)part[i];
            if (c < 0x20 || c == 0x7f || c == '\\') {
                return false;
            }
        }
        if (part_len == 0 || (part_len == 1 && part[0] == '.') ||
            (part_len == 2 && part[0] == '.' && part[1] == '.')) {
            return false;
        }
        part += part_len;
        if (*part == '\0') {
            return true;
        }
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int collect_names(DIR *dir, const char *path, struct pf_str_list *list)
{
    for (;;) {
        errno = 0;
        const struct dirent *const entry = readdir(dir);
        if (!entry) {
            return errno ? pf_fail_errno(PF_EIO, "cannot read directory '%s'", path) : 0;
        }
        if (!is_dot_name(entry->d_name)) {
            PF_TRY(pf_str_list_append(list, entry->d_name));
        }
    }
}

int pf_dir_list(const char *path, struct pf_str_list *list_out)
{
    struct pf_str_list list = {0};
    DIR *const dir = opendir(path);

    if (!dir) {
        return pf_fail_errno(PF_EIO, "cannot open directory '%s'", path);
    }
    const int err = collect_names(dir, path, &list);
    closedir(dir);
    if (err) {
        pf_str_list_release(&list);
        return err;
    }
    if (list.n > 1) {
        qsort(list.items, list.n, sizeof *list.items, compare_names);
    }
    *list_out = list;
    return 0;
}

/* --- files of lines --- */

static int cut_after(int fd, const char *path, uint64_t keep_bytes, uint64_t *bytes_out)
{
    struct stat st;

    if (fstat(fd, &st) != 0) {
        return pf_fail_errno(PF_EIO, "cannot open '%s'", path);
    }
    const uint64_t bytes = (uint64_t)st.st_size;
    if (keep_bytes != UINT64_MAX && keep_bytes > bytes) {
        return pf_fail(PF_EINVAL, "'%s' has %llu bytes, fewer than the %llu to keep", path,
                       (unsigned long long)bytes, (unsigned long long)keep_bytes);
    }
    if (keep_bytes < bytes && ftruncate(fd, (off_t)keep_bytes) != 0) {
        return pf_fail_errno(PF_EIO, "cannot truncate '%s'", path);
    }
    *bytes_out = keep_bytes < bytes ? keep_bytes : bytes;
    return 0;
}

int pf_line_file_open(const char *path, uint64_t keep_bytes, struct pf_line_file *file_out)
{
    struct pf_line_file file = {.fd = -1};
    int err = 0;

    PF_TRY(pf_open(path, O_WRONLY | O_CREAT | O_APPEND, &file.fd));
    PF_TRY_GOTO(cut_after(file.fd, path, keep_bytes, &file.bytes), out);
    file.path = pf_strdup(path);
    if (!file.path) {
        err = PF_ENOMEM;
        goto out;
    }
    *file_out = file;
    return 0;
out:
    (void)pf_close(file.fd, NULL);
    return err;
}

int pf_line_file_add(struct pf_line_file *file, const char *text)
{
    const size_t len = strlen(text);
    const bool is_ended = len > 0 && text[len - 1] == '\n';
    char *const line = is_ended ? NULL : pf_asprintf("%s\n", text);

    if (!is_ended && !line) {
        return PF_ENOMEM;
    }
    const size_t bytes = len + !is_ended;
    const int err = pf_write_full(file->fd, line ? line : text, bytes, file->path);
    pf_free(line);
    if (err) {
        /* A disk that is full must not leave half a line for the next one to be glued to. */
        const int cut = ftruncate(file->fd, (off_t)file->bytes);
        (void)cut; /* the first failure is the one to tell */
        return err;
    }
    file->bytes += bytes;
    return 0;
}

int pf_line_file_sync(struct pf_line_file *file)
{
    return pf_fsync(file->fd, file->path);
}

int pf_line_file_close(struct pf_line_file *file)
{
    int err = 0;

    if (file->path) {
        err = pf_close(file->fd, file->path);
        pf_free(file->path);
    }
    *file = (struct pf_line_file){.fd = -1};
    return err;
}
