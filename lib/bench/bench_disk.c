/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the disk does at best: blocks past the page cache, several under way at a time, by threads of
 * our own and by fio. Nothing is hashed, nothing looked at. Source: open(2), O_DIRECT; fio(1).
 */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/file.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALIGN ((size_t)4096)
#define BLOCK ((size_t)4 << 20)

enum { DEPTH = 8 };

/* Our own --------------------------------------------------------------------------------------- */

struct stream {
    const char *path;
    int fd;
    bool writes;
    uint64_t bytes, taken;
    pthread_mutex_t lock;
    int err; /* errno */
};

static bool take(struct stream *s, uint64_t *at, size_t *n)
{
    pthread_mutex_lock(&s->lock);
    *at = s->taken;
    const uint64_t left = s->bytes - s->taken;
    *n = s->err ? 0 : left < BLOCK ? (size_t)left : BLOCK;
    s->taken += *n;
    pthread_mutex_unlock(&s->lock);
    return *n > 0;
}

static void *stream_main(void *context)
{
    struct stream *const s = context;
    void *block = NULL;
    uint64_t at;
    size_t n;
    int err = posix_memalign(&block, ALIGN, BLOCK);

    if (!err) {
        memset(block, 0x5a, BLOCK);
    }
    while (!err && take(s, &at, &n)) {
        const ssize_t done =
            s->writes ? pwrite(s->fd, block, n, (off_t)at) : pread(s->fd, block, n, (off_t)at);
        err = done == (ssize_t)n ? 0 : done < 0 ? errno : EIO;
    }
    free(block);
    pthread_mutex_lock(&s->lock);
    s->err = s->err ? s->err : err;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int open_stream(struct stream *s)
{
    const int flags = s->writes ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY;

    s->fd = open(s->path, flags | O_CLOEXEC | O_DIRECT, 0666);
    if (s->fd < 0 && errno == EINVAL) {
        s->fd = open(s->path, flags | O_CLOEXEC, 0666);
    }
    if (s->fd < 0) {
        return pf_fail_errno(PF_EIO, "cannot open '%s'", s->path);
    }
    if (s->writes && fallocate(s->fd, 0, 0, (off_t)s->bytes) != 0 && errno == ENOSPC) {
        return pf_fail_errno(PF_EIO, "cannot write '%s'", s->path);
    }
    return 0;
}

/* Both streams at once, or one; until all is on the disk. */
static int run_streams(struct stream *streams, int n)
{
    pthread_t threads[2 * DEPTH];
    int n_threads = 0, err = 0;

    for (int i = 0; !err && i < n; i++) {
        err = open_stream(&streams[i]);
    }
    for (int i = 0; !err && i < n * DEPTH; i++) {
        if (pthread_create(&threads[i], NULL, stream_main, &streams[i % n]) != 0) {
            err = pf_fail(PF_ENOMEM, "cannot start a thread");
        } else {
            n_threads++;
        }
    }
    for (int i = 0; i < n_threads; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < n; i++) {
        errno = streams[i].err;
        err = err                 ? err
              : streams[i].err    ? pf_fail_errno(PF_EIO, "cannot move '%s'", streams[i].path)
              : streams[i].writes ? pf_fsync(streams[i].fd, streams[i].path)
                                  : 0;
        (void)pf_close(streams[i].fd, NULL);
    }
    return err;
}

int bench_disk(const char *from, const char *to, uint64_t bytes, double *seconds_out)
{
    struct stream streams[2];
    int n = 0;

    if (from) {
        streams[n++] = (struct stream){.path = from, .fd = -1};
    }
    if (to) {
        streams[n++] = (struct stream){.path = to, .fd = -1, .writes = true};
    }
    for (int i = 0; i < n; i++) {
        streams[i].bytes = bytes / ALIGN * ALIGN;
        pthread_mutex_init(&streams[i].lock, NULL);
    }
    const double start = pf_time_monotonic();
    const int err = run_streams(streams, n);
    *seconds_out = pf_time_monotonic() - start;
    for (int i = 0; i < n; i++) {
        pthread_mutex_destroy(&streams[i].lock);
    }
    return err;
}

/* fio ------------------------------------------------------------------------------------------- */

/* Block sizes and queue depths that are tried; the fastest is the rival. */
static const struct bench_fio_way ways[] = {{"1M", "16"}, {"1M", "64"}, {"4M", "8"}, {"4M", "16"}};
enum { N_WAYS = (int)(sizeof ways / sizeof ways[0]) };

/* The longest of its jobs, which ran together. */
static int read_times(const struct pf_str *text, double *seconds_out)
{
    const struct pf_json_options options = {.name = "fio's answer", .error_code = PF_EFORMAT};
    struct pf_json *doc = NULL;
    double longest = 0;

    PF_TRY(pf_json_parse_text_with(text->text, text->len, &options, &doc));
    const struct pf_json *const jobs = pf_json_get(doc, "jobs");
    int err = 0;
    for (size_t i = 0; !err && i < pf_json_n(jobs); i++) {
        static const char *const sides[] = {"read", "write"};
        for (int k = 0; !err && k < 2; k++) {
            double ms = 0;
            const struct pf_json *const side = pf_json_get(pf_json_child(jobs, i), sides[k]);
            err = side ? pf_json_f64(side, "runtime", 0, &ms) : 0;
            longest = ms > longest ? ms : longest;
        }
    }
    pf_json_free(doc);
    *seconds_out = longest / 1e3;
    return err ? err : longest > 0 ? 0 : pf_fail(PF_EFORMAT, "fio's answer has no time");
}

enum { MOST_WORDS = 24 };

int bench_fio(const struct bench_fio *fio, const char *from, const char *to, uint64_t bytes,
              double *seconds_out)
{
    const char *argv[MOST_WORDS] = {"fio", "--output-format=json", "--direct=1",
                                    "--ioengine=libaio", "--end_fsync=1"};
    char *made[10] = {NULL};
    struct pf_str text;
    int n = 5, m = 0, err = 0;

    pf_str_init(&text);
    argv[n++] = made[m++] = pf_asprintf("--size=%llu", (unsigned long long)(bytes / ALIGN * ALIGN));
    for (int k = 0; k < 2; k++) {
        const char *const path = k == 0 ? from : to;
        const struct bench_fio_way *const way = k == 0 ? &fio->read : &fio->write;
        if (path) {
            argv[n++] = k == 0 ? "--name=read" : "--name=write";
            argv[n++] = k == 0 ? "--rw=read" : "--rw=write";
            argv[n++] = made[m++] = pf_asprintf("--filename=%s", path);
            argv[n++] = made[m++] = pf_asprintf("--bs=%s", way->block);
            argv[n++] = made[m++] = pf_asprintf("--iodepth=%s", way->depth);
        }
    }
    for (int i = 0; i < m; i++) {
        err = made[i] ? err : PF_ENOMEM;
    }
    err = err ? err : bench_run(argv, &text);
    err = err ? err : read_times(&text, seconds_out);
    for (int i = 0; i < m; i++) {
        pf_free(made[i]);
    }
    pf_str_release(&text);
    return err;
}

int bench_fio_open(const char *scratch, uint64_t bytes, struct bench_fio *fio_out)
{
    double best[2] = {0, 0};
    struct bench_fio fio;
    int err = 0;

    for (int i = 0; !err && i < N_WAYS; i++) {
        double write = 0, read = 0;
        fio.read = fio.write = ways[i];
        err = bench_fio(&fio, NULL, scratch, bytes, &write);
        err = err ? err : bench_fio(&fio, scratch, NULL, bytes, &read);
        if (!err && (i == 0 || write < best[0])) {
            best[0] = write;
            fio_out->write = ways[i];
        }
        if (!err && (i == 0 || read < best[1])) {
            best[1] = read;
            fio_out->read = ways[i];
        }
        (void)unlink(scratch);
    }
    return err;
}

int bench_fio_describe(const struct bench_fio *fio, char *text, size_t bytes)
{
    const char *const argv[] = {"fio", "--version", NULL};
    struct pf_str version;

    pf_str_init(&version);
    const int err = bench_run(argv, &version);
    if (!err) {
        (void)snprintf(text, bytes, "%.*s direct=1 write bs=%s iodepth=%s, read bs=%s iodepth=%s",
                       (int)strcspn(version.text, "\n"), version.text, fio->write.block,
                       fio->write.depth, fio->read.block, fio->read.depth);
    }
    pf_str_release(&version);
    return err;
}
