/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults.so - a library for LD_PRELOAD that makes a chosen system call on chosen files fail.
 *
 *   FAULT_PATHS=LIST  count calls on absolute paths that contain one of these texts, separated by
 *                     colons; a text that ends in $ must be the path's end. Of two paths the first
 *                     counts
 *   FAULT_CALLS=LIST  of open write pwrite fsync rename exchange mkdir close (of what was open for
 *                     writing), which count by default, and read pread ftruncate unlink
 *   FAULT_AT=N        the N-th counted call fails, from 1; "some": every other one, from the first
 *   FAULT_HOW=WORD    ENOSPC, EIO, EINTR: the call does nothing and gives this errno; EINVAL: the
 *                     same of an exchange of two names, as on a filesystem that has none; short: a
 *                     read or write does half. For the last three only calls count that such a thing
 *                     happens to
 *   FAULT_MEMORY=N    the N-th allocation from now on gives no memory
 *   FAULT_COUNT=FILE  at exit write into it how many allocations there were
 *   FAULT_RANK=R      only in this rank under mpirun
 *   FAULT_LOG=FILE    append "CALL PATH" of each call that failed; without FAULT_AT of each counted
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long n_counted;

static void note(const char *call, const char *path)
{
    const char *const file = getenv("FAULT_LOG");
    char line[4200];

    if (!file) {
        return;
    }
    const int fd = REAL(open)(file, O_WRONLY | O_CREAT | O_APPEND, 0666);
    const int n = snprintf(line, sizeof line, "%s %s\n", call, path);
    if (fd >= 0) {
        const ssize_t put = REAL(write)(fd, line, (size_t)n);
        (void)put;
        REAL(close)(fd);
    }
}

static bool fits(const char *path, const char *text, size_t n)
{
    const size_t len = strlen(path);

    if (n > 0 && text[n - 1] == '$') {
        return len >= n - 1 && strncmp(path + len - (n - 1), text, n - 1) == 0;
    }
    for (size_t i = 0; i + n <= len; i++) {
        if (strncmp(path + i, text, n) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_chosen(const char *path)
{
    const char *text = getenv("FAULT_PATHS");

    while (text && *text) {
        const size_t n = strcspn(text, ":");
        if (fits(path, text, n)) {
            return true;
        }
        text += n + (text[n] == ':');
    }
    return false;
}

static bool is_rank(void)
{
    const char *const wanted = getenv("FAULT_RANK"), *rank = getenv("OMPI_COMM_WORLD_RANK");

    rank = rank ? rank : getenv("PMIX_RANK");
    return !wanted || !rank || strcmp(wanted, rank) == 0;
}

static int how(void)
{
    const char *const word = getenv("FAULT_HOW");

    return !word                         ? EIO
           : strcmp(word, "ENOSPC") == 0 ? ENOSPC
           : strcmp(word, "EINVAL") == 0 ? EINVAL
           : strcmp(word, "EINTR") == 0  ? EINTR
           : strcmp(word, "short") == 0  ? 0
                                         : EIO;
}

static bool is_counted(const char *call)
{
    const char *const calls = getenv("FAULT_CALLS");

    return strstr(calls ? calls : "open write pwrite fsync rename exchange mkdir close", call);
}

/* Does such a thing happen to this call? */
static bool can_happen(const char *call)
{
    const bool moves = strstr(call, "write") || strstr(call, "read");

    switch (how()) {
    case 0:
        return moves;
    case EINVAL:
        return strcmp(call, "exchange") == 0;
    case EINTR:
        return moves || strcmp(call, "open") == 0 || strcmp(call, "fsync") == 0;
    default:
        return true;
    }
}

/* Count the call; shall it fail? Then errno is set. */
static bool fails(const char *call, const char *given)
{
    const char *const at = getenv("FAULT_AT");
    char path[4096] = "";

    if (given[0] != '/' && getcwd(path, sizeof path / 2)) {
        strcat(path, "/");
    }
    strncat(path, given, sizeof path / 2 - 1);
    if (!is_rank() || !is_counted(call) || !can_happen(call) || !is_chosen(path)) {
        return false;
    }
    const long n = __atomic_add_fetch(&n_counted, 1, __ATOMIC_SEQ_CST);
    const bool chosen = at && (strcmp(at, "some") == 0 ? n % 2 == 1 : strtol(at, NULL, 10) == n);
    if (chosen || !at) {
        note(call, path);
    }
    errno = chosen ? how() : errno;
    return chosen;
}

static bool fails_fd(const char *call, int fd)
{
    const int saved = errno;
    char link[64], path[4096];

    if (fd < 3 || !getenv("FAULT_PATHS")) {
        return false;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (n <= 0) {
        return false;
    }
    path[n] = '\0';
    return fails(call, path);
}

static mode_t mode_of(int flags, va_list args)
{
    return flags & O_CREAT ? va_arg(args, mode_t) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return fails("open", path) ? -1 : REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return fails("open", path) ? -1 : REAL(open64)(path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return fails("open", path) ? -1 : REAL(openat)(dir, path, flags, mode);
}

static bool is_short(void)
{
    return how() == 0;
}

ssize_t write(int fd, const void *buf, size_t n)
{
    if (fails_fd("write", fd)) {
        return is_short() ? REAL(write)(fd, buf, (n + 1) / 2) : -1;
    }
    return REAL(write)(fd, buf, n);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
    if (fails_fd("pwrite", fd)) {
        return is_short() ? REAL(pwrite)(fd, buf, (n + 1) / 2, at) : -1;
    }
    return REAL(pwrite)(fd, buf, n, at);
}

ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t at)
{
    if (fails_fd("pwrite", fd)) {
        return is_short() ? REAL(pwrite64)(fd, buf, (n + 1) / 2, at) : -1;
    }
    return REAL(pwrite64)(fd, buf, n, at);
}

ssize_t read(int fd, void *buf, size_t n)
{
    if (fails_fd("read", fd)) {
        return is_short() ? REAL(read)(fd, buf, (n + 1) / 2) : -1;
    }
    return REAL(read)(fd, buf, n);
}

ssize_t pread(int fd, void *buf, size_t n, off_t at)
{
    if (fails_fd("pread", fd)) {
        return is_short() ? REAL(pread)(fd, buf, (n + 1) / 2, at) : -1;
    }
    return REAL(pread)(fd, buf, n, at);
}

ssize_t pread64(int fd, void *buf, size_t n, off64_t at)
{
    if (fails_fd("pread", fd)) {
        return is_short() ? REAL(pread64)(fd, buf, (n + 1) / 2, at) : -1;
    }
    return REAL(pread64)(fd, buf, n, at);
}

int ftruncate(int fd, off_t length)
{
    return fails_fd("ftruncate", fd) ? -1 : REAL(ftruncate)(fd, length);
}

int unlink(const char *path)
{
    return fails("unlink", path) ? -1 : REAL(unlink)(path);
}

int unlinkat(int dir, const char *name, int flags)
{
    return fails_fd("unlink", dir) ? -1 : REAL(unlinkat)(dir, name, flags);
}

int fsync(int fd)
{
    return fails_fd("fsync", fd) ? -1 : REAL(fsync)(fd);
}

/* Closed all the same, as Linux does. */
int close(int fd)
{
    const bool writable = fd >= 3 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY;
    const bool chosen = writable && fails_fd("close", fd);
    const int saved = errno, result = REAL(close)(fd);

    if (chosen) {
        errno = saved;
        return -1;
    }
    return result;
}

int rename(const char *from, const char *to)
{
    return fails("rename", from) ? -1 : REAL(rename)(from, to);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return fails(flags ? "exchange" : "rename", from)
               ? -1
               : REAL(renameat2)(from_dir, from, to_dir, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    return fails("mkdir", path) ? -1 : REAL(mkdir)(path, mode);
}

/* Memory. glibc has its allocator under names of its own, too, so nothing is looked up meanwhile. */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t each);
extern void *__libc_realloc(void *old, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

static long n_allocated;

static bool is_out(void)
{
    const char *const at = getenv("FAULT_MEMORY");

    if (!at && !getenv("FAULT_COUNT")) {
        return false;
    }
    const long n = __atomic_add_fetch(&n_allocated, 1, __ATOMIC_SEQ_CST);
    if (!at || strtol(at, NULL, 10) != n) {
        return false;
    }
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n)
{
    return is_out() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t each)
{
    return is_out() ? NULL : __libc_calloc(n, each);
}

void *realloc(void *old, size_t n)
{
    return is_out() ? NULL : __libc_realloc(old, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return is_out() ? NULL : __libc_memalign(align, n);
}

int posix_memalign(void **memory_out, size_t align, size_t n)
{
    void *const memory = is_out() ? NULL : __libc_memalign(align, n);

    *memory_out = memory ? memory : *memory_out;
    return memory ? 0 : ENOMEM;
}

__attribute__((destructor)) static void report(void)
{
    const char *const file = getenv("FAULT_COUNT");
    FILE *const f = file ? fopen(file, "w") : NULL;

    if (f) {
        fprintf(f, "%ld\n", n_allocated);
        fclose(f);
    }
}
