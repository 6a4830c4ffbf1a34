/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing past the page cache: what it needs of sizes and offsets, and whether it is worth it here.
 * Source: open(2), O_DIRECT.
 */
#include "job_internal.h"

#include <pf/file.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROBE_BLOCK ((size_t)4 << 20)
#define PROBE_BLOCKS 4
#define PROBE_ROUNDS 2

int ckpt_direct_open(const char *path, int flags, bool *direct_inout, int *fd_out)
{
    if (*direct_inout) {
        int fd;
        do {
            fd = open(path, flags | O_CLOEXEC | O_DIRECT, 0666);
        } while (fd < 0 && errno == EINTR);
        if (fd >= 0 || errno != EINVAL) {
            *fd_out = fd;
            return fd >= 0
                       ? 0
                       : pf_fail_errno(PF_EIO,
                                       flags & O_CREAT ? "cannot create '%s'" : "cannot open '%s'",
                                       path);
        }
        *direct_inout = false; /* a filesystem that has no such thing; some have made the file */
        if (flags & O_EXCL) {
            (void)unlink(path);
        }
    }
    return pf_open(path, flags, fd_out);
}

int ckpt_direct_write(int fd, uint8_t *bytes, size_t n, uint64_t offset, const char *path)
{
    const size_t padded = (n + CKPT_WINDOW_ALIGN - 1) / CKPT_WINDOW_ALIGN * CKPT_WINDOW_ALIGN;
    ssize_t put;

    memset(bytes + n, 0, padded - n);
    do {
        put = pwrite(fd, bytes, padded, (off_t)offset);
    } while (put < 0 && errno == EINTR);
    if (put < 0 && errno != EINVAL) {
        return pf_fail_errno(PF_EIO, "cannot write '%s'", path);
    }
    if (put == (ssize_t)padded) {
        return 0;
    }
    /* A write that was cut short, or a device that asks for more than this alignment: the rest goes the
     * usual way. Other threads that write to fd meanwhile may do either. */
    const size_t done = put > 0 ? (size_t)put : 0;
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_DIRECT) != 0) {
        return pf_fail_errno(PF_EIO, "cannot write '%s'", path);
    }
    return pf_pwrite_full(fd, bytes + done, padded - done, offset + done, path);
}

/* Seconds to write and sync a file of the blocks; it is removed. Negative: it cannot be done so. */
static double time_writing(const char *path, uint8_t *block, bool direct)
{
    bool is_direct = direct;
    int fd = -1, err;
    const double start = pf_time_monotonic();

    err = ckpt_direct_open(path, O_WRONLY | O_CREAT | O_EXCL, &is_direct, &fd);
    for (uint64_t i = 0; !err && is_direct == direct && i < PROBE_BLOCKS; i++) {
        err = direct ? ckpt_direct_write(fd, block, PROBE_BLOCK, i * PROBE_BLOCK, path)
                     : pf_pwrite_full(fd, block, PROBE_BLOCK, i * PROBE_BLOCK, path);
    }
    err = err ? err : pf_fsync(fd, path);
    const double seconds = pf_time_monotonic() - start;
    (void)pf_close(fd, NULL);
    (void)unlink(path);
    pf_error_clear();
    return err || is_direct != direct ? -1 : seconds;
}

/* Both ways by turns. What fails here fails again, and is told then. */
static bool is_faster(const char *path, uint8_t *block)
{
    double direct = 0, cached = 0;

    for (int i = 0; i < PROBE_ROUNDS; i++) {
        const double d = time_writing(path, block, true);
        const double c = d < 0 ? -1 : time_writing(path, block, false);
        if (d < 0 || c < 0) {
            return false;
        }
        direct += d;
        cached += c;
    }
    return direct < cached;
}

/* What was found on the device that was asked about last: a run saves to one again and again. */
static struct {
    pthread_mutex_t lock;
    bool known, better;
    dev_t device;
} found = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool recall(dev_t device, bool *better_out)
{
    pthread_mutex_lock(&found.lock);
    const bool known = found.known && found.device == device;
    *better_out = found.better;
    pthread_mutex_unlock(&found.lock);
    return known;
}

static void remember(dev_t device, bool better)
{
    pthread_mutex_lock(&found.lock);
    found.known = true;
    found.better = better;
    found.device = device;
    pthread_mutex_unlock(&found.lock);
}

bool ckpt_direct_is_better(const char *dir, const char *name, uint64_t bytes)
{
    const char *const asked = getenv("PF_DIRECT_IO");

    if (asked && (strcmp(asked, "0") == 0 || strcmp(asked, "1") == 0)) {
        return asked[0] == '1';
    }
    struct stat st;
    bool better = false;
    if (bytes < CKPT_DIRECT_LEAST || stat(dir, &st) != 0) {
        return false;
    }
    if (recall(st.st_dev, &better)) {
        return better;
    }
    uint8_t *const memory = pf_alloc(PROBE_BLOCK + CKPT_WINDOW_ALIGN);
    char *const path = pf_asprintf("%s/.probe-%s", dir, name);
    better = false;
    if (memory && path) {
        better =
            is_faster(path, memory + (CKPT_WINDOW_ALIGN - (uintptr_t)memory % CKPT_WINDOW_ALIGN));
    }
    pf_free(memory);
    pf_free(path);
    remember(st.st_dev, better);
    return better;
}
