/* SPDX-License-Identifier: Apache-2.0 */
/*
 * toucher.so - a library for LD_PRELOAD that changes a file while a process works: before its first
 * pwrite the file TOUCH_FILE gets its last byte written again, and so another time of change.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);

static void touch(const char *path)
{
    const int fd = open(path, O_RDWR);
    struct stat st;
    char last;

    if (fd < 0 || fstat(fd, &st) != 0 || pread(fd, &last, 1, st.st_size - 1) != 1 ||
        real_pwrite(fd, &last, 1, st.st_size - 1) != 1) {
        perror(path);
        _exit(99);
    }
    close(fd);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t offset)
{
    const char *const path = getenv("TOUCH_FILE");

    if (!real_pwrite) {
        real_pwrite = (__typeof__(real_pwrite))dlsym(RTLD_NEXT, "pwrite");
        if (path) {
            touch(path);
        }
    }
    return real_pwrite(fd, buf, n, offset);
}
