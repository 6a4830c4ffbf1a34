/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and reading safetensors files. */
#include "st_internal.h"

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX_BYTES 64

/* What people pass instead. Asked only where the length makes no sense, as a true length may well
 * start with one of these. */
static const struct kind {
    const char *name;
    size_t n;
    const char *start;
} kinds[] = {
    {"a zip archive (perhaps a PyTorch checkpoint)", 4, "PK\3\4"},
    {"a zip archive without entries", 4, "PK\5\6"},
    {"a GGUF file", 4, "GGUF"},
    {"a git-lfs pointer: the file itself was not fetched", 23, "version https://git-lfs"},
    {"an HTML page: the download went wrong", 9, "<!doctype"},
    {"an HTML page: the download went wrong", 5, "<html"},
    {"XML: the download may have gone wrong", 5, "<?xml"},
    {"a Python pickle (perhaps an old PyTorch checkpoint)", 2, "\x80\2"},
    {"a Python pickle (perhaps an old PyTorch checkpoint)", 2, "\x80\3"},
    {"a Python pickle", 2, "\x80\4"},
    {"a Python pickle", 2, "\x80\5"},
    {"an HDF5 file", 4, "\x89HDF"},
    {"a NumPy array", 6, "\x93NUMPY"},
    {"gzip data", 2, "\x1f\x8b"},
    {"zstd data", 4, "\x28\xb5\x2f\xfd"},
    {"an ELF program", 4,
     "\x7f"
     "ELF"},
    {"JSON text", 1, "{"},
    {"JSON text", 1, "["},
};

static unsigned char lower(unsigned char c)
{
    return c >= 'A' && c <= 'Z' ? (unsigned char)(c + 32) : c;
}

/* HTML in either case; nothing else is harmed by being compared so. */
static bool starts_with(const unsigned char *bytes, size_t n, const struct kind *kind)
{
    if (n < kind->n) {
        return false;
    }
    for (size_t i = 0; i < kind->n; i++) {
        if (lower(bytes[i]) != lower((unsigned char)kind->start[i])) {
            return false;
        }
    }
    return true;
}

static const char *sniff(const unsigned char *bytes, size_t n)
{
    while (n > 0 && (*bytes == ' ' || *bytes == '\t' || *bytes == '\r' || *bytes == '\n')) {
        bytes++;
        n--;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (starts_with(bytes, n, &kinds[i])) {
            return kinds[i].name;
        }
    }
    return NULL;
}

static uint64_t load_u64(const unsigned char *p)
{
    uint64_t value = 0;

    for (int i = 7; i >= 0; i--) {
        value = value << 8 | p[i];
    }
    return value;
}

int pf_st_check_prefix(const void *prefix, size_t n_prefix, uint64_t file_bytes, const char *path,
                       size_t *header_bytes_out)
{
    const char *kind = sniff(prefix, n_prefix);
    const uint64_t n = n_prefix < 8 ? 0 : load_u64(prefix);

    if (n_prefix >= 8 && n <= PF_ST_HEADER_MAX_BYTES && n <= file_bytes - 8) {
        *header_bytes_out = (size_t)n;
        return 0;
    }
    if (kind) {
        return pf_fail(PF_EFORMAT, "'%s' is not a safetensors file but %s", path, kind);
    }
    if (n_prefix < 8) {
        return pf_fail(PF_EFORMAT, "'%s' has %llu bytes, a safetensors file has at least 10", path,
                       (unsigned long long)file_bytes);
    }
    if (n > PF_ST_HEADER_MAX_BYTES) {
        return pf_fail(
            PF_EFORMAT,
            "'%s' is not a safetensors file: its header would have %llu bytes, more than %d", path,
            (unsigned long long)n, PF_ST_HEADER_MAX_BYTES);
    }
    return pf_fail(PF_EFORMAT, "'%s' is cut short: a header of %llu bytes, but %llu bytes in all",
                   path, (unsigned long long)n, (unsigned long long)file_bytes);
}

static int open_regular(const char *path, int *fd_out, uint64_t *file_bytes_out)
{
    struct stat status;
    int fd, err = 0;

    PF_TRY(pf_open(path, O_RDONLY | O_NONBLOCK, &fd)); /* not waiting for a pipe's other end */
    if (fstat(fd, &status) != 0) {
        err = pf_fail_errno(PF_EIO, "cannot stat '%s'", path);
    } else if (!S_ISREG(status.st_mode)) {
        err = pf_fail(PF_EIO, "'%s' is not a regular file", path);
    }
    if (err) {
        close(fd); /* keeping the record */
        return err;
    }
    *fd_out = fd;
    *file_bytes_out = (uint64_t)status.st_size;
    return 0;
}

static int read_header(int fd, const char *path, uint64_t file_bytes, struct pf_st **st_out)
{
    unsigned char prefix[PREFIX_BYTES];
    const size_t n_prefix = file_bytes < PREFIX_BYTES ? (size_t)file_bytes : PREFIX_BYTES;
    size_t header_bytes;
    char *header;
    int err = 0;

    PF_TRY(pf_pread_full(fd, prefix, n_prefix, 0, path));
    PF_TRY(pf_st_check_prefix(prefix, n_prefix, file_bytes, path, &header_bytes));
    header = pf_alloc(header_bytes);
    if (!header) {
        return PF_ENOMEM;
    }
    PF_TRY_GOTO(pf_pread_full(fd, header, header_bytes, 8, path), out);
    PF_TRY_GOTO(pf_st_parse(header, header_bytes, file_bytes, path, st_out), out);
out:
    pf_free(header);
    return err;
}

int pf_st_open(const char *path, struct pf_st **st_out)
{
    struct pf_st *st = NULL;
    uint64_t file_bytes;
    int fd, err;

    PF_TRY(open_regular(path, &fd, &file_bytes));
    err = read_header(fd, path, file_bytes, &st);
    if (err) {
        close(fd); /* keeping the record */
        return err;
    }
    st->fd = fd;
    *st_out = st;
    return 0;
}

void pf_st_close(struct pf_st *st)
{
    if (!st) {
        return;
    }
    if (st->fd >= 0) {
        close(st->fd);
    }
    pf_free(st->slots);
    pf_free(st->shapes);
    pf_free(st->strings);
    pf_free(st->metadata);
    pf_free(st->tensors);
    pf_free(st->path);
    pf_free(st);
}

uint64_t pf_st_data_offset(const struct pf_st *st)
{
    return st->data_offset;
}

uint64_t pf_st_file_bytes(const struct pf_st *st)
{
    return st->file_bytes;
}

const char *pf_st_path(const struct pf_st *st)
{
    return st->path;
}

int pf_st_read(const struct pf_st *st, const struct pf_st_tensor *t, uint64_t offset_bytes,
               uint64_t n_bytes, void *dst)
{
    const uint64_t tensor_bytes = t->end - t->begin;

    if (st->fd < 0) {
        return pf_fail(PF_EINVAL, "'%s' is a header only", st->path);
    }
    if (offset_bytes > tensor_bytes || n_bytes > tensor_bytes - offset_bytes) {
        return pf_fail(PF_EINVAL, "'%s': bytes %llu + %llu of tensor '%.200s', which has %llu",
                       st->path, (unsigned long long)offset_bytes, (unsigned long long)n_bytes,
                       t->name, (unsigned long long)tensor_bytes);
    }
    if (n_bytes == 0) {
        return 0;
    }
    return pf_pread_full(st->fd, dst, (size_t)n_bytes, st->data_offset + t->begin + offset_bytes,
                         st->path);
}
