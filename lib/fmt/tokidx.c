/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/tokidx.h>

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "MMIDIDX\0\0"
#define MAGIC_BYTES 9
#define HEADER_BYTES 34 /* magic, version, dtype, n, m */

/* The dtype codes, by number; width 0 is not a token. */
static const struct code {
    const char *name;
    int width;
    bool is_signed;
} codes[] = {
    [1] = {"u8", 1, false},   [2] = {"i8", 1, true},   [3] = {"i16", 2, true},
    [4] = {"i32", 4, true},   [5] = {"i64", 8, true},  [6] = {"f64", 0, true},
    [7] = {"f32", 0, true},   [8] = {"u16", 2, false}, [9] = {"u32", 4, false},
    [10] = {"u64", 8, false},
};

struct pf_tokidx {
    char *path; /* of the .bin, for messages */
    int fd;     /* of the .bin; -1: an index alone */
    const struct code *code;
    int64_t n_sequences, n_documents;
    int64_t *starts;    /* n_sequences + 1: the first token of each, and how many there are */
    int64_t *pointers;  /* n_sequences: bytes into the .bin */
    int64_t *documents; /* n_documents + 1 */
};

static uint64_t load_le(const unsigned char *p, int width)
{
    uint64_t value = 0;

    for (int i = width - 1; i >= 0; i--) {
        value = value << 8 | p[i];
    }
    return value;
}

static int64_t load_i64(const unsigned char *p)
{
    return (int64_t)load_le(p, 8);
}

static int check_magic(const unsigned char *p, size_t n, const char *path)
{
    if (n >= 6 && memcmp(p, "TNTIDX", 6) == 0) {
        return pf_fail(PF_ENOTSUP,
                       "'%s' has the older TNTIDX layout: write the data set anew with a "
                       "tool that makes MMIDIDX files",
                       path);
    }
    if (n < MAGIC_BYTES || memcmp(p, MAGIC, MAGIC_BYTES) != 0) {
        return pf_fail(PF_EFORMAT, "'%s' is not a Megatron index: it does not start with MMIDIDX",
                       path);
    }
    if (n < HEADER_BYTES) {
        return pf_fail(PF_EFORMAT, "'%s' is cut short: %zu bytes, its header alone has %d", path, n,
                       HEADER_BYTES);
    }
    if (load_le(p + 9, 8) != 1) {
        return pf_fail(PF_EFORMAT, "'%s' has version %llu, not 1", path,
                       (unsigned long long)load_le(p + 9, 8));
    }
    return 0;
}

static int find_code(struct pf_tokidx *t, unsigned char number, const char *path)
{
    if (number == 0 || number >= sizeof codes / sizeof codes[0]) {
        return pf_fail(PF_EFORMAT, "'%s' has the unknown dtype code %d", path, number);
    }
    if (codes[number].width == 0) {
        return pf_fail(PF_EFORMAT, "'%s' holds %s values, which are not tokens", path,
                       codes[number].name);
    }
    t->code = &codes[number];
    return 0;
}

/* The counts must account for every byte: arrays, and one mode a sequence or none. */
static int check_counts(struct pf_tokidx *t, const unsigned char *p, size_t idx_bytes,
                        const char *path)
{
    const uint64_t n = load_le(p + 18, 8), m = load_le(p + 26, 8), rest = idx_bytes - HEADER_BYTES;

    /* Neither sum overflows: rest is far below 2^63, and n and m are bounded before they are
     * multiplied. */
    if (n > rest / 12 || m > rest / 8 || 12 * n + 8 * m > rest) {
        return pf_fail(PF_EFORMAT,
                       "'%s' is cut short: %llu sequences and %llu document entries in %zu bytes",
                       path, (unsigned long long)n, (unsigned long long)m, idx_bytes);
    }
    const uint64_t extra = rest - 12 * n - 8 * m;
    if (extra != 0 && extra != n) {
        return pf_fail(PF_EFORMAT, "'%s' has %llu bytes after its document entries", path,
                       (unsigned long long)extra);
    }
    if (m == 0) {
        return pf_fail(PF_EFORMAT, "'%s' has no document entries, not even the first", path);
    }
    t->n_sequences = (int64_t)n;
    t->n_documents = (int64_t)m - 1;
    return 0;
}

static int check_sequence(const struct pf_tokidx *t, int64_t i, int64_t length, int64_t pointer,
                          uint64_t bin_bytes, const char *path)
{
    const int width = t->code->width;

    if (length < 0) {
        return pf_fail(PF_EFORMAT, "'%s': sequence %lld has the length %lld", path, (long long)i,
                       (long long)length);
    }
    if (pointer < 0 || pointer % width != 0) {
        return pf_fail(PF_EFORMAT, "'%s': sequence %lld starts at byte %lld, with tokens of %d",
                       path, (long long)i, (long long)pointer, width);
    }
    if ((uint64_t)pointer > bin_bytes ||
        (uint64_t)length * (uint64_t)width > bin_bytes - (uint64_t)pointer) {
        return pf_fail(PF_EFORMAT,
                       "'%s': sequence %lld has %lld tokens from byte %lld of a .bin of %llu bytes",
                       path, (long long)i, (long long)length, (long long)pointer,
                       (unsigned long long)bin_bytes);
    }
    return 0;
}

static int load_sequences(struct pf_tokidx *t, const unsigned char *p, uint64_t bin_bytes,
                          const char *path)
{
    const size_t n = (size_t)t->n_sequences;
    const unsigned char *pointers = p + 4 * n;

    for (size_t i = 0; i < n; i++) {
        const int64_t length = (int32_t)(uint32_t)load_le(p + 4 * i, 4);
        const int64_t pointer = load_i64(pointers + 8 * i);
        PF_TRY(check_sequence(t, (int64_t)i, length, pointer, bin_bytes, path));
        t->pointers[i] = pointer;
        t->starts[i + 1] = t->starts[i] + length; /* below 2^31 times the bytes of the index */
    }
    return 0;
}

static int load_documents(struct pf_tokidx *t, const unsigned char *p, const char *path)
{
    for (int64_t d = 0; d <= t->n_documents; d++) {
        const int64_t entry = load_i64(p + 8 * d), before = d ? t->documents[d - 1] : 0;
        if (entry < before || entry > t->n_sequences || (d == 0 && entry != 0)) {
            return pf_fail(PF_EFORMAT, "'%s': document entry %lld is %lld, after %lld, of %lld",
                           path, (long long)d, (long long)entry, (long long)before,
                           (long long)t->n_sequences);
        }
        t->documents[d] = entry;
    }
    if (t->documents[t->n_documents] != t->n_sequences) {
        return pf_fail(PF_EFORMAT, "'%s': the documents end at sequence %lld of %lld", path,
                       (long long)t->documents[t->n_documents], (long long)t->n_sequences);
    }
    return 0;
}

static int parse_into(struct pf_tokidx *t, const unsigned char *p, size_t idx_bytes,
                      uint64_t bin_bytes, const char *path)
{
    PF_TRY(check_magic(p, idx_bytes, path));
    PF_TRY(find_code(t, p[17], path));
    PF_TRY(check_counts(t, p, idx_bytes, path));
    t->path = pf_strdup(path);
    t->starts = pf_calloc_array((size_t)t->n_sequences + 1, sizeof *t->starts);
    t->pointers = pf_calloc_array((size_t)t->n_sequences, sizeof *t->pointers);
    t->documents = pf_calloc_array((size_t)t->n_documents + 1, sizeof *t->documents);
    if (!t->path || !t->starts || !t->pointers || !t->documents) {
        return PF_ENOMEM;
    }
    PF_TRY(load_sequences(t, p + HEADER_BYTES, bin_bytes, path));
    return load_documents(t, p + HEADER_BYTES + 12 * t->n_sequences, path);
}

int pf_tokidx_parse(const void *bytes, size_t idx_bytes, uint64_t bin_bytes, const char *path,
                    struct pf_tokidx **t_out)
{
    struct pf_tokidx *t = pf_alloc(sizeof *t);
    int err;

    if (!t) {
        return PF_ENOMEM;
    }
    t->fd = -1;
    err = parse_into(t, bytes, idx_bytes, bin_bytes, path);
    if (err) {
        pf_tokidx_close(t);
        return err;
    }
    *t_out = t;
    return 0;
}

static int open_half(const char *path, int *fd_out, uint64_t *bytes_out)
{
    struct stat status;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 && errno == ENOENT) {
        return pf_fail(PF_EINCOMPLETE, "'%s' is missing: a data set is a .bin and an .idx", path);
    }
    if (fd < 0) {
        return pf_fail_errno(PF_EIO, "cannot open '%s'", path);
    }
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(fd);
        return pf_fail(PF_EIO, "'%s' is not a regular file", path);
    }
    *fd_out = fd;
    *bytes_out = (uint64_t)status.st_size;
    return 0;
}

static int read_index(const char *path, uint64_t bin_bytes, struct pf_tokidx **t_out)
{
    uint64_t idx_bytes;
    char *bytes;
    int fd, err = 0;

    PF_TRY(open_half(path, &fd, &idx_bytes));
    bytes = pf_alloc((size_t)idx_bytes);
    if (!bytes) {
        err = PF_ENOMEM;
        goto out;
    }
    PF_TRY_GOTO(pf_pread_full(fd, bytes, (size_t)idx_bytes, 0, path), out);
    PF_TRY_GOTO(pf_tokidx_parse(bytes, (size_t)idx_bytes, bin_bytes, path, t_out), out);
out:
    pf_free(bytes);
    close(fd);
    return err;
}

static int open_pair(const char *idx_path, char *bin_path, struct pf_tokidx **t_out)
{
    struct pf_tokidx *t = NULL;
    uint64_t bin_bytes;
    int fd, err;

    PF_TRY(open_half(bin_path, &fd, &bin_bytes));
    err = read_index(idx_path, bin_bytes, &t);
    if (err) {
        close(fd);
        return err;
    }
    pf_free(t->path);
    t->path = bin_path;
    t->fd = fd;
    *t_out = t;
    return 0;
}

int pf_tokidx_open(const char *path, struct pf_tokidx **t_out)
{
    const bool has_ending = pf_str_ends_with(path, ".bin") || pf_str_ends_with(path, ".idx");
    const int n = (int)(strlen(path) - (has_ending ? 4 : 0));
    char *idx_path = pf_asprintf("%.*s.idx", n, path), *bin_path = pf_asprintf("%.*s.bin", n, path);
    int err = idx_path && bin_path ? 0 : PF_ENOMEM;

    if (!err) {
        err = open_pair(idx_path, bin_path, t_out);
    }
    if (err) {
        pf_free(bin_path);
    }
    pf_free(idx_path);
    return err;
}

void pf_tokidx_close(struct pf_tokidx *t)
{
    const int saved_errno = errno;

    if (!t) {
        return;
    }
    if (t->fd >= 0) {
        close(t->fd);
    }
    pf_free(t->documents);
    pf_free(t->pointers);
    pf_free(t->starts);
    pf_free(t->path);
    pf_free(t);
    errno = saved_errno;
}

int64_t pf_tokidx_n_sequences(const struct pf_tokidx *t)
{
    return t->n_sequences;
}

int64_t pf_tokidx_n_documents(const struct pf_tokidx *t)
{
    return t->n_documents;
}

int64_t pf_tokidx_n_tokens(const struct pf_tokidx *t)
{
    return t->starts[t->n_sequences];
}

int pf_tokidx_token_bytes(const struct pf_tokidx *t)
{
    return t->code->width;
}

int64_t pf_tokidx_sequence_start(const struct pf_tokidx *t, int64_t i)
{
    PF_ASSERT(i >= 0 && i <= t->n_sequences);
    return t->starts[i];
}

void pf_tokidx_document(const struct pf_tokidx *t, int64_t d, int64_t *first_out, int64_t *end_out)
{
    PF_ASSERT(d >= 0 && d < t->n_documents);
    *first_out = t->documents[d];
    *end_out = t->documents[d + 1];
}

/* The last sequence that starts at or before the token: of several that start there, all but the
 * last are empty. */
int64_t pf_tokidx_sequence_of(const struct pf_tokidx *t, int64_t token)
{
    int64_t low = 0, high = t->n_sequences;

    PF_ASSERT(token >= 0 && token < pf_tokidx_n_tokens(t));
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (t->starts[middle] <= token) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Where tokens go: one of the two is set. */
struct sink {
    int64_t *wide;
    int32_t *narrow;
};

static int store_token(const struct pf_tokidx *t, const unsigned char *p, const struct sink *sink,
                       int64_t at)
{
    const int width = t->code->width, unused = 64 - 8 * width;
    const uint64_t bits = load_le(p, width);
    const int64_t value = t->code->is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;

    if ((!t->code->is_signed && value < 0) ||
        (sink->narrow && (value < INT32_MIN || value > INT32_MAX))) {
        return pf_fail(PF_EFORMAT, "'%s': a token of value 0x%llx does not fit %d bits", t->path,
                       (unsigned long long)bits, sink->narrow ? 32 : 63);
    }
    if (sink->narrow) {
        sink->narrow[at] = (int32_t)value;
    } else {
        sink->wide[at] = value;
    }
    return 0;
}

/* Tokens that lie together in the .bin, a buffer at a time. */
static int read_run(const struct pf_tokidx *t, int64_t byte, int64_t n, const struct sink *sink,
                    int64_t at)
{
    unsigned char buffer[16384];
    const int64_t width = t->code->width, most = (int64_t)sizeof buffer / width;

    while (n > 0) {
        const int64_t n_now = n < most ? n : most;
        PF_TRY(pf_pread_full(t->fd, buffer, (size_t)(n_now * width), (uint64_t)byte, t->path));
        for (int64_t i = 0; i < n_now; i++) {
            PF_TRY(store_token(t, buffer + i * width, sink, at + i));
        }
        n -= n_now;
        at += n_now;
        byte += n_now * width;
    }
    return 0;
}

/* From a token in sequence i, how many tokens up to `end` lie together: sequences written by the
 * usual builder touch each other. Moves *i to the sequence after them. */
static int64_t run_length(const struct pf_tokidx *t, int64_t first, int64_t end, int64_t *i)
{
    int64_t next = *i + 1;

    while (next < t->n_sequences && t->starts[next] < end &&
           t->pointers[next] ==
               t->pointers[next - 1] + (t->starts[next] - t->starts[next - 1]) * t->code->width) {
        next++;
    }
    *i = next;
    return (t->starts[next] < end ? t->starts[next] : end) - first;
}

static int read_tokens(const struct pf_tokidx *t, int64_t first, int64_t end,
                       const struct sink *sink)
{
    const int64_t n_tokens = pf_tokidx_n_tokens(t), begin = first;

    if (t->fd < 0) {
        return pf_fail(PF_EINVAL, "'%s' is an index only", t->path);
    }
    if (first < 0 || first > end || end > n_tokens) {
        return pf_fail(PF_EINVAL, "'%s': tokens %lld to %lld of %lld", t->path, (long long)first,
                       (long long)end, (long long)n_tokens);
    }
    int64_t i = first < end ? pf_tokidx_sequence_of(t, first) : 0;
    while (first < end) {
        const int64_t byte = t->pointers[i] + (first - t->starts[i]) * t->code->width;
        const int64_t n = run_length(t, first, end, &i);
        PF_TRY(read_run(t, byte, n, sink, first - begin));
        first += n;
    }
    return 0;
}

int pf_tokidx_read(const struct pf_tokidx *t, int64_t first, int64_t end, int64_t *tokens_out)
{
    return read_tokens(t, first, end, &(struct sink){.wide = tokens_out});
}

int pf_tokidx_read_i32(const struct pf_tokidx *t, int64_t first, int64_t end, int32_t *tokens_out)
{
    return read_tokens(t, first, end, &(struct sink){.narrow = tokens_out});
}
