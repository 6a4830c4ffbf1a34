/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recorder.so - a library for LD_PRELOAD that writes down what a process does to a directory: every
 * call that makes, changes, renames, removes or syncs something in it, with all data. A call is written
 * down when it is done and before it returns, in one piece, so that of many processes what happened
 * before something else stands before it.
 *
 *   RECORD_ROOT=DIR   an absolute path without links; what is not below it is not recorded
 *   RECORD_LOG=FILE   outside of DIR; records (recorded.h) are appended
 * Both are read at every call: nothing is recorded while one is not set.
 */
#include "recorded.h"

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
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The path counted from the root, which is "" itself; NULL: not below it. */
static const char *below_root(const char *path)
{
    const char *const root = getenv("RECORD_ROOT");
    const size_t n = root ? strlen(root) : 0;

    return n > 0 && strncmp(path, root, n) == 0 && (path[n] == '/' || !path[n]) ? path + n : NULL;
}

static void record(enum recorded_call call, const char *path, const char *other, uint64_t offset,
                   const void *data, size_t n)
{
    const char *const log = getenv("RECORD_LOG");
    const int saved = errno;

    path = log && path ? below_root(path) : NULL;
    other = path && other ? below_root(other) : "";
    if (!path || !other) {
        return;
    }
    struct recorded_head head = {.call = call,
                                 .path_bytes = (uint32_t)strlen(path),
                                 .other_bytes = (uint32_t)strlen(other),
                                 .offset = offset,
                                 .data_bytes = n};
    const struct iovec parts[] = {{&head, sizeof head},
                                  {(void *)(uintptr_t)path, head.path_bytes},
                                  {(void *)(uintptr_t)other, head.other_bytes},
                                  {(void *)(uintptr_t)data, n}};
    const int fd = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0 || writev(fd, parts, 4) < (ssize_t)sizeof head) {
        perror(log);
        _exit(99);
    }
    REAL(close)(fd);
    errno = saved;
}

/* The path of an open file; NULL: it has none. */
static const char *path_of(int fd, char path[4096])
{
    char link[64];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, 4095);
    path[n > 0 ? n : 0] = '\0';
    return n > 0 ? path : NULL;
}

static void record_fd(enum recorded_call call, int fd, uint64_t offset, const void *data, size_t n)
{
    const int saved = errno;
    char path[4096];

    record(call, path_of(fd, path), NULL, offset, data, n);
    errno = saved;
}

static int opened(const char *path, int flags, mode_t mode, bool is_64)
{
    const bool there = access(path, F_OK) == 0;
    const int fd = is_64 ? REAL(open64)(path, flags, mode) : REAL(open)(path, flags, mode);

    if (fd >= 0 && (flags & O_CREAT) && !there) {
        record(RECORDED_CREATE, path, NULL, 0, NULL, 0);
    } else if (fd >= 0 && (flags & O_TRUNC)) {
        record(RECORDED_TRUNCATE, path, NULL, 0, NULL, 0);
    }
    return fd;
}

int open(const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return opened(path, flags, mode, false);
}

int open64(const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return opened(path, flags, mode, true);
}

ssize_t write(int fd, const void *buf, size_t n)
{
    const off_t at = lseek(fd, 0, SEEK_CUR);
    const ssize_t put = REAL(write)(fd, buf, n);

    if (put > 0 && at >= 0) {
        record_fd(RECORDED_WRITE, fd, (uint64_t)at, buf, (size_t)put);
    }
    return put;
}

static ssize_t written(int fd, const void *buf, ssize_t put, off_t at)
{
    if (put > 0) {
        record_fd(RECORDED_WRITE, fd, (uint64_t)at, buf, (size_t)put);
    }
    return put;
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
    return written(fd, buf, REAL(pwrite)(fd, buf, n, at), at);
}

ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t at)
{
    return written(fd, buf, REAL(pwrite64)(fd, buf, n, at), at);
}

/* What succeeded is recorded. */
static int changed(int result, int fd, enum recorded_call call, off_t length)
{
    if (result == 0) {
        record_fd(call, fd, (uint64_t)length, NULL, 0);
    }
    return result;
}

int ftruncate(int fd, off_t length)
{
    return changed(REAL(ftruncate)(fd, length), fd, RECORDED_TRUNCATE, length);
}

int ftruncate64(int fd, off64_t length)
{
    return changed(REAL(ftruncate64)(fd, length), fd, RECORDED_TRUNCATE, length);
}

int fsync(int fd)
{
    return changed(REAL(fsync)(fd), fd, RECORDED_SYNC, 0);
}

int fdatasync(int fd)
{
    return changed(REAL(fdatasync)(fd), fd, RECORDED_SYNC, 0);
}

static int named(int result, enum recorded_call call, const char *path, const char *other)
{
    if (result == 0) {
        record(call, path, other, 0, NULL, 0);
    }
    return result;
}

int rename(const char *from, const char *to)
{
    return named(REAL(rename)(from, to), RECORDED_RENAME, from, to);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return named(REAL(renameat2)(from_dir, from, to_dir, to, flags),
                 flags ? RECORDED_EXCHANGE : RECORDED_RENAME, from, to);
}

int link(const char *from, const char *to)
{
    return named(REAL(link)(from, to), RECORDED_LINK, from, to);
}

int unlink(const char *path)
{
    return named(REAL(unlink)(path), RECORDED_UNLINK, path, NULL);
}

int rmdir(const char *path)
{
    return named(REAL(rmdir)(path), RECORDED_UNLINK, path, NULL);
}

int unlinkat(int dir, const char *name, int flags)
{
    char path[4096] = "";

    if (name[0] != '/' && dir != AT_FDCWD && path_of(dir, path)) {
        strncat(path, "/", sizeof path - strlen(path) - 1);
    }
    strncat(path, name, sizeof path - strlen(path) - 1);
    return named(REAL(unlinkat)(dir, name, flags), RECORDED_UNLINK, path, NULL);
}

int mkdir(const char *path, mode_t mode)
{
    return named(REAL(mkdir)(path, mode), RECORDED_MKDIR, path, NULL);
}
