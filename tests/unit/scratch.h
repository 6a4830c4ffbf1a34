/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.h - a directory for one test program, and the few things tests do to files in it. */
#ifndef SCRATCH_H
#define SCRATCH_H

#include <pf/file.h>
#include <pf/mem.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch_dir[256];

/* Make it; removed by scratch_remove. */
static inline void scratch_make(void)
{
    const char *tmp = getenv("TMPDIR"), *memory = "/dev/shm";

    /* Hundreds of synced saves: in memory where that is possible. */
    tmp = tmp ? tmp : access(memory, W_OK) == 0 ? memory : "/tmp";
    snprintf(scratch_dir, sizeof scratch_dir, "%s/pf-test-XXXXXX", tmp);
    if (!mkdtemp(scratch_dir)) {
        perror("mkdtemp");
        exit(4);
    }
}

static inline void scratch_remove(void)
{
    (void)pf_rmtree(scratch_dir);
}

/* A path below it; good until eight more calls. */
static inline const char *at(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline const char *at(const char *format, ...)
{
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    va_list args;
    int n = snprintf(path, 512, "%s/", scratch_dir);

    va_start(args, format);
    vsnprintf(path + n, 512 - (size_t)n, format, args);
    va_end(args);
    return path;
}

static inline void put(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) {
        perror(path);
        exit(4);
    }
}

static inline void put_text(const char *path, const char *text)
{
    put(path, text, strlen(text));
}

/* The content of a file; NUL-terminated; pf_free. */
static inline char *get(const char *path, size_t *n_out)
{
    char *data = NULL;
    size_t n = 0;

    if (pf_file_read_all(path, 0, &data, &n) != 0) {
        perror(path);
        exit(4);
    }
    if (n_out) {
        *n_out = n;
    }
    return data;
}

/* Copy the regular files of a directory. */
static inline void copy_dir(const char *from, const char *to)
{
    struct pf_str_list names;

    if (pf_mkdirs(to) != 0 || pf_dir_list(from, &names) != 0) {
        perror(from);
        exit(4);
    }
    for (size_t i = 0; i < names.n; i++) {
        char *a = pf_path_join(from, names.items[i]), *b = pf_path_join(to, names.items[i]);
        if (pf_path_is_file(a) && pf_file_copy(a, b) != 0) {
            perror(b);
            exit(4);
        }
        pf_free(a);
        pf_free(b);
    }
    pf_str_list_release(&names);
}

#endif
