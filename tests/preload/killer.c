/* SPDX-License-Identifier: Apache-2.0 */
/*
 * killer.so - a library for LD_PRELOAD that ends a process with SIGKILL at a chosen system call.
 *
 *   KILL_PATH=TEXT    count calls on paths that contain TEXT (of rename: the old name; an exchange
 *                     of two names counts as a rename)
 *   KILL_AT=N         die just before the N-th counted call (from 1)
 *   KILL_CALLS=LIST   which calls count: words of write pwrite fsync rename (default: all four),
 *                     and unlink: the removal of something in a directory on such a path
 *   KILL_LOG=FILE     append "CALL PATH" of the call that was not made
 *   KILL_COUNT=FILE   instead of dying: at exit write how many calls were counted
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static long n_counted;

static void note(const char *file, const char *call, const char *path)
{
    const int fd = open(file, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd >= 0) {
        dprintf(fd, "%s %s\n", call, path);
        close(fd);
    }
}

static void counted(const char *call, const char *path)
{
    const char *const wanted = getenv("KILL_PATH"), *const calls = getenv("KILL_CALLS");
    const char *const at = getenv("KILL_AT"), *const log = getenv("KILL_LOG");

    if (!wanted || !strstr(path, wanted) || (calls && !strstr(calls, call))) {
        return;
    }
    const long n = __atomic_add_fetch(&n_counted, 1, __ATOMIC_SEQ_CST);
    if (at && strtol(at, NULL, 10) == n) {
        if (log) {
            note(log, call, path);
        }
        kill(getpid(), SIGKILL);
    }
}

static void counted_fd(const char *call, int fd)
{
    char link[64], path[4096];

    if (fd < 3 || !getenv("KILL_PATH")) {
        return;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    if (n > 0) {
        path[n] = '\0';
        counted(call, path);
    }
}

__attribute__((destructor)) static void report(void)
{
    const char *const file = getenv("KILL_COUNT");
    char text[32];

    if (file && n_counted > 0) {
        snprintf(text, sizeof text, "%ld", n_counted);
        note(file, "counted", text);
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *buf, size_t n)
{
    counted_fd("write", fd);
    return REAL(write)(fd, buf, n);
}
ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
    counted_fd("pwrite", fd);
    return REAL(pwrite)(fd, buf, n, at);
}
ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t at)
{
    counted_fd("pwrite", fd);
    return REAL(pwrite64)(fd, buf, n, at);
}
int fsync(int fd)
{
    counted_fd("fsync", fd);
    return REAL(fsync)(fd);
}
int rename(const char *from, const char *to)
{
    counted("rename", from);
    return REAL(rename)(from, to);
}
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    counted("rename", from);
    return REAL(renameat2)(from_dir, from, to_dir, to, flags);
}
int unlinkat(int dir, const char *name, int flags)
{
    const char *const calls = getenv("KILL_CALLS");

    if (calls && strstr(calls, "unlink")) {
        counted_fd("unlink", dir);
    }
    return REAL(unlinkat)(dir, name, flags);
}
