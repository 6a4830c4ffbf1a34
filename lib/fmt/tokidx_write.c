/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/tokidx.h>

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

struct pf_tokidx_writer {
    char *bin_path, *idx_path;
    int fd; /* of the .bin */
    int width;
    int64_t n_bytes;                            /* of the .bin so far */
    struct pf_str lengths, pointers, documents; /* the arrays of the index, as they are stored */
    uint64_t n_sequences, n_documents;
    uint64_t n_in_documents; /* sequences that belong to a document that has ended */
};

/* Failures are remembered in s. */
static void append_le(struct pf_str *s, uint64_t value, int width)
{
    unsigned char bytes[8];

    for (int i = 0; i < width; i++) {
        bytes[i] = (unsigned char)(value >> 8 * i);
    }
    pf_str_append_bytes(s, bytes, (size_t)width);
}

static int create(const char *path, int *fd_out)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

    if (fd < 0) {
        return pf_fail_errno(errno == EEXIST ? PF_EREFUSED : PF_EIO, "cannot create '%s'", path);
    }
    *fd_out = fd;
    return 0;
}

int pf_tokidx_writer_new(const char *prefix, int token_bytes, struct pf_tokidx_writer **w_out)
{
    struct pf_tokidx_writer *w;
    int err = 0;

    if (token_bytes != 2 && token_bytes != 4) {
        return pf_fail(PF_EINVAL, "tokens of %d bytes: 2 or 4 are possible", token_bytes);
    }
    w = pf_alloc(sizeof *w);
    if (!w) {
        return PF_ENOMEM;
    }
    w->fd = -1;
    w->width = token_bytes;
    pf_str_init(&w->lengths);
    pf_str_init(&w->pointers);
    pf_str_init(&w->documents);
    append_le(&w->documents, 0, 8);
    w->bin_path = pf_asprintf("%s.bin", prefix);
    w->idx_path = pf_asprintf("%s.idx", prefix);
    err = w->bin_path && w->idx_path ? pf_str_error(&w->documents) : PF_ENOMEM;
    if (!err && pf_path_exists(w->idx_path)) {
        err = pf_fail(PF_EREFUSED, "'%s' exists", w->idx_path);
    }
    if (!err) {
        err = create(w->bin_path, &w->fd);
    }
    if (err) {
        pf_tokidx_writer_free(w);
        return err;
    }
    *w_out = w;
    return 0;
}

void pf_tokidx_writer_free(struct pf_tokidx_writer *w)
{
    const int saved_errno = errno;

    if (!w) {
        return;
    }
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->bin_path);
    }
    pf_str_release(&w->lengths);
    pf_str_release(&w->pointers);
    pf_str_release(&w->documents);
    pf_free(w->bin_path);
    pf_free(w->idx_path);
    pf_free(w);
    errno = saved_errno;
}

static int check_tokens(const struct pf_tokidx_writer *w, const int64_t *tokens, size_t n_tokens)
{
    const int64_t low = w->width == 2 ? 0 : INT32_MIN,
                  high = w->width == 2 ? UINT16_MAX : INT32_MAX;

    if (n_tokens > INT32_MAX) {
        return pf_fail(PF_EINVAL, "'%s': a sequence of %zu tokens; 2^31 - 1 are possible",
                       w->bin_path, n_tokens);
    }
    for (size_t i = 0; i < n_tokens; i++) {
        if (tokens[i] < low || tokens[i] > high) {
            return pf_fail(PF_EINVAL, "'%s': token %lld does not fit %d bytes", w->bin_path,
                           (long long)tokens[i], w->width);
        }
    }
    return 0;
}

static int write_tokens(struct pf_tokidx_writer *w, const int64_t *tokens, size_t n_tokens)
{
    unsigned char buffer[16384];
    const size_t width = (size_t)w->width, most = sizeof buffer / width;

    for (size_t done = 0, n_now; done < n_tokens; done += n_now) {
        n_now = n_tokens - done < most ? n_tokens - done : most;
        for (size_t i = 0; i < n_now * width; i++) {
            buffer[i] = (unsigned char)((uint64_t)tokens[done + i / width] >> 8 * (i % width));
        }
        PF_TRY(pf_pwrite_full(w->fd, buffer, n_now * width, (uint64_t)w->n_bytes + done * width,
                              w->bin_path));
    }
    return 0;
}

int pf_tokidx_writer_add(struct pf_tokidx_writer *w, const int64_t *tokens, size_t n_tokens)
{
    if (w->fd < 0) {
        return pf_fail(PF_EINVAL, "'%s' is finished", w->bin_path);
    }
    PF_TRY(check_tokens(w, tokens, n_tokens));
    PF_TRY(write_tokens(w, tokens, n_tokens));
    append_le(&w->lengths, n_tokens, 4);
    append_le(&w->pointers, (uint64_t)w->n_bytes, 8);
    w->n_bytes += (int64_t)n_tokens * w->width;
    w->n_sequences++;
    return pf_str_error(&w->lengths) ? pf_str_error(&w->lengths) : pf_str_error(&w->pointers);
}

int pf_tokidx_writer_end_document(struct pf_tokidx_writer *w)
{
    append_le(&w->documents, w->n_sequences, 8);
    w->n_in_documents = w->n_sequences;
    w->n_documents++;
    return pf_str_error(&w->documents);
}

static int render_index(struct pf_tokidx_writer *w, struct pf_str *s)
{
    pf_str_append_bytes(s, "MMIDIDX\0\0", 9);
    append_le(s, 1, 8);
    append_le(s, w->width == 2 ? 8 : 4, 1);
    append_le(s, w->n_sequences, 8);
    append_le(s, w->n_documents + 1, 8);
    pf_str_append_bytes(s, w->lengths.text, w->lengths.len);
    pf_str_append_bytes(s, w->pointers.text, w->pointers.len);
    pf_str_append_bytes(s, w->documents.text, w->documents.len);
    PF_TRY(pf_str_error(&w->lengths));
    PF_TRY(pf_str_error(&w->pointers));
    PF_TRY(pf_str_error(&w->documents));
    return pf_str_error(s);
}

int pf_tokidx_writer_finish(struct pf_tokidx_writer *w)
{
    struct pf_str s;
    int err = 0;

    if (w->fd < 0 || w->n_in_documents != w->n_sequences) {
        return pf_fail(PF_EINVAL, "'%s': finished twice, or with sequences after the last document",
                       w->bin_path);
    }
    PF_TRY(pf_fsync(w->fd, w->bin_path));
    pf_str_init(&s);
    PF_TRY_GOTO(render_index(w, &s), out);
    PF_TRY_GOTO(pf_file_write_atomic(w->idx_path, s.text, s.len), out);
    const int fd = w->fd;
    w->fd = -1;
    err = pf_close(fd, w->bin_path);
out:
    pf_str_release(&s);
    return err;
}
