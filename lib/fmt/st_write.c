/* SPDX-License-Identifier: Apache-2.0 */
/* Writing safetensors files. */
#include "st_internal.h"

#include "json_scan.h"

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct item {
    char *name;
    enum pf_dtype dtype;
    int n_dims;
    uint64_t *shape;
    uint64_t n_bytes, begin; /* begin: relative to the data; after the layout */
    _Atomic uint64_t n_written;
};

struct pair {
    char *key, *value;
};

struct pf_st_writer {
    struct item *items; /* in the order of adding */
    size_t n_items;
    struct pair *pairs;
    size_t n_pairs;
    bool is_laid_out;
    char *header; /* JSON and padding */
    size_t header_bytes;
    uint64_t data_bytes;
    int fd;
    bool owns_fd;
    char *path;
};

int pf_st_writer_new(struct pf_st_writer **w_out)
{
    struct pf_st_writer *w = pf_alloc(sizeof *w);

    if (!w) {
        return PF_ENOMEM;
    }
    w->fd = -1;
    *w_out = w;
    return 0;
}

void pf_st_writer_free(struct pf_st_writer *w)
{
    const int saved_errno = errno;

    if (!w) {
        return;
    }
    if (w->owns_fd && w->fd >= 0) {
        close(w->fd);
    }
    for (size_t i = 0; i < w->n_items; i++) {
        pf_free(w->items[i].name);
        pf_free(w->items[i].shape);
    }
    for (size_t i = 0; i < w->n_pairs; i++) {
        pf_free(w->pairs[i].key);
        pf_free(w->pairs[i].value);
    }
    pf_free(w->items);
    pf_free(w->pairs);
    pf_free(w->header);
    pf_free(w->path);
    pf_free(w);
    errno = saved_errno;
}

/* Room for one more; lists double at powers of two. */
static int grow(void **list, size_t n, size_t size)
{
    if (n != 0 && (n & (n - 1)) != 0) {
        return 0;
    }
    void *grown = pf_realloc_array(*list, n ? 2 * n : 1, size);
    if (!grown) {
        return PF_ENOMEM;
    }
    *list = grown;
    return 0;
}

static int check_addable(const struct pf_st_writer *w, const char *what, const char *text)
{
    const size_t n = strlen(text);

    if (w->is_laid_out) {
        return pf_fail(PF_EINVAL, "%s '%.200s' comes after the layout", what, text);
    }
    if (pf_scan_utf8(text, n) != n) {
        return pf_fail(PF_EINVAL, "%s '%.200s' is not valid UTF-8", what, text);
    }
    return 0;
}

int pf_st_writer_add_metadata(struct pf_st_writer *w, const char *key, const char *value)
{
    void *list = w->pairs;
    struct pair pair;

    PF_TRY(check_addable(w, "metadata key", key));
    PF_TRY(check_addable(w, "metadata value", value));
    PF_TRY(grow(&list, w->n_pairs, sizeof pair));
    w->pairs = list;
    pair = (struct pair){pf_strdup(key), pf_strdup(value)};
    if (!pair.key || !pair.value) {
        pf_free(pair.key);
        pf_free(pair.value);
        return PF_ENOMEM;
    }
    w->pairs[w->n_pairs++] = pair;
    return 0;
}

int pf_st_writer_add_tensor(struct pf_st_writer *w, const char *name, enum pf_dtype dtype,
                            int n_dims, const uint64_t *shape, size_t *i_out)
{
    void *list = w->items;
    uint64_t n_bytes;
    const char *fault;

    PF_TRY(check_addable(w, "tensor", name));
    fault = strcmp(name, "__metadata__") == 0 ? "has a reserved name"
                                              : pf_st_tensor_size(dtype, n_dims, shape, &n_bytes);
    if (fault) {
        return pf_fail(PF_EINVAL, "tensor '%.200s' %s", name, fault);
    }
    PF_TRY(grow(&list, w->n_items, sizeof *w->items));
    w->items = list;
    struct item *item = &w->items[w->n_items];
    *item = (struct item){.dtype = dtype, .n_dims = n_dims, .n_bytes = n_bytes};
    item->name = pf_strdup(name);
    item->shape = pf_calloc_array((size_t)n_dims, sizeof *shape);
    if (!item->name || !item->shape) {
        pf_free(item->name);
        pf_free(item->shape);
        return PF_ENOMEM;
    }
    for (int d = 0; d < n_dims; d++) {
        item->shape[d] = shape[d];
    }
    if (i_out) {
        *i_out = w->n_items;
    }
    w->n_items++;
    return 0;
}

static int compare_pairs(const void *a, const void *b)
{
    return strcmp(((const struct pair *)a)->key, ((const struct pair *)b)->key);
}

static int compare_names(const void *a, const void *b)
{
    const struct item *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static int compare_items(const void *a, const void *b)
{
    const struct item *const *x = a, *const *y = b;

    if ((*x)->dtype != (*y)->dtype) {
        return (*x)->dtype > (*y)->dtype ? -1 : 1;
    }
    return compare_names(a, b);
}

static int sort_pairs(struct pf_st_writer *w)
{
    if (w->n_pairs > 1) {
        qsort(w->pairs, w->n_pairs, sizeof *w->pairs, compare_pairs);
    }
    for (size_t i = 1; i < w->n_pairs; i++) {
        if (compare_pairs(&w->pairs[i - 1], &w->pairs[i]) == 0) {
            return pf_fail(PF_EINVAL, "two metadata entries are called '%.200s'", w->pairs[i].key);
        }
    }
    return 0;
}

/* Put pointers to the items into the order of the file. */
static int sort_items(struct pf_st_writer *w, struct item **order)
{
    for (size_t i = 0; i < w->n_items; i++) {
        order[i] = &w->items[i];
    }
    qsort(order, w->n_items, sizeof *order, compare_names);
    for (size_t i = 1; i < w->n_items; i++) {
        if (compare_names(&order[i - 1], &order[i]) == 0) {
            return pf_fail(PF_EINVAL, "two tensors are called '%.200s'", order[i]->name);
        }
    }
    qsort(order, w->n_items, sizeof *order, compare_items);
    return 0;
}

static int place_items(struct pf_st_writer *w, struct item *const *order)
{
    uint64_t at = 0;

    for (size_t i = 0; i < w->n_items; i++) {
        order[i]->begin = at;
        if (__builtin_add_overflow(at, order[i]->n_bytes, &at) ||
            at > (uint64_t)INT64_MAX - PF_ST_HEADER_MAX_BYTES - 8) {
            return pf_fail(PF_EINVAL, "tensor '%.200s' ends beyond 2^63 bytes", order[i]->name);
        }
    }
    w->data_bytes = at;
    return 0;
}

/* The escapes are those of the reference: short ones where JSON has them, else lower-case \u00xx.
 * Failures are remembered in s. */
static void append_quoted(struct pf_str *s, const char *text)
{
    static const char specials[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";

    pf_str_append_char(s, '"');
    for (const char *p = text; *p; p++) {
        const char *special = strchr(specials, *p);
        size_t n_plain = 0;
        while ((unsigned char)p[n_plain] >= 0x20 && p[n_plain] != '"' && p[n_plain] != '\\') {
            n_plain++;
        }
        if (n_plain > 0) {
            pf_str_append_bytes(s, p, n_plain);
            p += n_plain - 1;
        } else if (special) {
            pf_str_append_char(s, '\\');
            pf_str_append_char(s, letters[special - specials]);
        } else {
            pf_str_appendf(s, "\\u%04x", (unsigned)*p);
        }
    }
    pf_str_append_char(s, '"');
}

static void append_metadata(struct pf_str *s, const struct pf_st_writer *w)
{
    if (w->n_pairs == 0) {
        return;
    }
    pf_str_append(s, "\"__metadata__\":{");
    for (size_t i = 0; i < w->n_pairs; i++) {
        if (i > 0) {
            pf_str_append_char(s, ',');
        }
        append_quoted(s, w->pairs[i].key);
        pf_str_append_char(s, ':');
        append_quoted(s, w->pairs[i].value);
    }
    pf_str_append(s, w->n_items > 0 ? "}," : "}");
}

static void append_item(struct pf_str *s, const struct item *item)
{
    append_quoted(s, item->name);
    pf_str_appendf(s, ":{\"dtype\":\"%s\",\"shape\":[", pf_dtype_name(item->dtype));
    for (int d = 0; d < item->n_dims; d++) {
        pf_str_appendf(s, d ? ",%llu" : "%llu", (unsigned long long)item->shape[d]);
    }
    pf_str_appendf(s, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)item->begin,
                   (unsigned long long)(item->begin + item->n_bytes));
}

/* Stops early where the header is too long anyway. */
static int render_header(struct pf_st_writer *w, struct item *const *order)
{
    struct pf_str s;
    int err = 0;

    pf_str_init(&s);
    pf_str_append_char(&s, '{');
    append_metadata(&s, w);
    for (size_t i = 0; i < w->n_items && s.len <= PF_ST_HEADER_MAX_BYTES; i++) {
        append_item(&s, order[i]);
        pf_str_append_char(&s, i + 1 < w->n_items ? ',' : '}');
    }
    if (w->n_items == 0) {
        pf_str_append_char(&s, '}');
    }
    while (s.len % 8 != 0 && pf_str_error(&s) == 0) {
        pf_str_append_char(&s, ' ');
    }
    if (s.len > PF_ST_HEADER_MAX_BYTES) {
        err = pf_fail(PF_EINVAL,
                      "%zu tensors need a header of more than %d bytes: no reader takes "
                      "such a file",
                      w->n_items, PF_ST_HEADER_MAX_BYTES);
        goto out;
    }
    PF_TRY_GOTO(pf_str_error(&s), out);
    w->header_bytes = s.len;
    w->header = pf_str_steal(&s);
    err = w->header ? 0 : PF_ENOMEM;
out:
    pf_str_release(&s);
    return err;
}

static int lay_out(struct pf_st_writer *w)
{
    struct item **order;
    int err = 0;

    if (w->is_laid_out) {
        return 0;
    }
    order = pf_calloc_array(w->n_items, sizeof(struct item *));
    if (!order) {
        return PF_ENOMEM;
    }
    PF_TRY_GOTO(sort_pairs(w), out);
    PF_TRY_GOTO(sort_items(w, order), out);
    PF_TRY_GOTO(place_items(w, order), out);
    PF_TRY_GOTO(render_header(w, order), out);
    w->is_laid_out = true;
out:
    pf_free(order);
    return err;
}

int pf_st_writer_file_bytes(struct pf_st_writer *w, uint64_t *file_bytes_out)
{
    PF_TRY(lay_out(w));
    *file_bytes_out = 8 + w->header_bytes + w->data_bytes;
    return 0;
}

static void put_length(const struct pf_st_writer *w, uint8_t length_out[8])
{
    for (int i = 0; i < 8; i++) {
        length_out[i] = (uint8_t)((uint64_t)w->header_bytes >> 8 * i);
    }
}

int pf_st_writer_head(struct pf_st_writer *w, uint8_t **head_out, size_t *bytes_out)
{
    uint8_t *head;

    PF_TRY(lay_out(w));
    head = pf_alloc(8 + w->header_bytes);
    if (!head) {
        return PF_ENOMEM;
    }
    put_length(w, head);
    memcpy(head + 8, w->header, w->header_bytes);
    *head_out = head;
    *bytes_out = 8 + w->header_bytes;
    return 0;
}

int pf_st_writer_begin_fd(struct pf_st_writer *w, int fd, const char *path)
{
    uint64_t file_bytes;
    int result;

    if (w->fd >= 0) {
        return pf_fail(PF_EINVAL, "'%s': this writer has begun '%s' already", path, w->path);
    }
    PF_TRY(pf_st_writer_file_bytes(w, &file_bytes));
    do {
        result = ftruncate(fd, (off_t)file_bytes);
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
        return pf_fail_errno(PF_EIO, "cannot make '%s' %llu bytes long", path,
                             (unsigned long long)file_bytes);
    }
    PF_TRY(pf_pwrite_full(fd, w->header, w->header_bytes, 8, path));
    pf_free(w->path);
    w->path = pf_strdup(path);
    if (!w->path) {
        return PF_ENOMEM;
    }
    w->fd = fd;
    return 0;
}

int pf_st_writer_begin(struct pf_st_writer *w, const char *path)
{
    int fd, err;

    PF_TRY(lay_out(w));
    do {
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return pf_fail_errno(errno == EEXIST ? PF_EREFUSED : PF_EIO, "cannot create '%s'", path);
    }
    err = pf_st_writer_begin_fd(w, fd, path);
    if (err) {
        close(fd);
        unlink(path);
        return err;
    }
    w->owns_fd = true;
    return 0;
}

uint64_t pf_st_writer_offset(const struct pf_st_writer *w, size_t i)
{
    PF_ASSERT(w->is_laid_out && i < w->n_items);
    return 8 + w->header_bytes + w->items[i].begin;
}

uint64_t pf_st_writer_tensor_bytes(const struct pf_st_writer *w, size_t i)
{
    PF_ASSERT(i < w->n_items);
    return w->items[i].n_bytes;
}

int pf_st_writer_write(struct pf_st_writer *w, size_t i, uint64_t offset_bytes, const void *data,
                       uint64_t n_bytes)
{
    if (w->fd < 0 || i >= w->n_items) {
        return pf_fail(PF_EINVAL, "no tensor %zu in a file being written", i);
    }
    struct item *item = &w->items[i];
    if (offset_bytes > item->n_bytes || n_bytes > item->n_bytes - offset_bytes) {
        return pf_fail(PF_EINVAL, "'%s': bytes %llu + %llu of tensor '%.200s', which has %llu",
                       w->path, (unsigned long long)offset_bytes, (unsigned long long)n_bytes,
                       item->name, (unsigned long long)item->n_bytes);
    }
    if (n_bytes == 0) {
        return 0;
    }
    PF_TRY(pf_pwrite_full(w->fd, data, (size_t)n_bytes, pf_st_writer_offset(w, i) + offset_bytes,
                          w->path));
    atomic_fetch_add(&item->n_written, n_bytes);
    return 0;
}

static int check_complete(const struct pf_st_writer *w)
{
    for (size_t i = 0; i < w->n_items; i++) {
        const uint64_t n_written = atomic_load(&w->items[i].n_written);
        if (n_written != w->items[i].n_bytes) {
            return pf_fail(PF_EBUG,
                           "'%s': %llu bytes were written of tensor '%.200s', which has %llu",
                           w->path, (unsigned long long)n_written, w->items[i].name,
                           (unsigned long long)w->items[i].n_bytes);
        }
    }
    return 0;
}

int pf_st_writer_finish(struct pf_st_writer *w, bool sync)
{
    uint8_t length[8];
    const int fd = w->fd;

    if (fd < 0) {
        return pf_fail(PF_EINVAL, "a safetensors writer was finished before it began");
    }
    PF_TRY(check_complete(w));
    put_length(w, length);
    PF_TRY(pf_pwrite_full(fd, length, sizeof length, 0, w->path));
    if (sync) {
        PF_TRY(pf_fsync(fd, w->path));
    }
    w->fd = -1;
    return w->owns_fd ? pf_close(fd, w->path) : 0;
}

static int write_sources(struct pf_st_writer *w, const struct pf_st_source *tensors,
                         size_t n_tensors)
{
    for (size_t i = 0; i < n_tensors; i++) {
        PF_TRY(pf_st_writer_write(w, i, 0, tensors[i].data, w->items[i].n_bytes));
    }
    return pf_st_writer_finish(w, true);
}

/* Add everything and write it to `aside`, which is removed again on failure. */
static int save_aside(struct pf_st_writer *w, const char *aside,
                      const struct pf_st_metadata *metadata, size_t n_metadata,
                      const struct pf_st_source *tensors, size_t n_tensors)
{
    int err;

    for (size_t i = 0; i < n_metadata; i++) {
        PF_TRY(pf_st_writer_add_metadata(w, metadata[i].key, metadata[i].value));
    }
    for (size_t i = 0; i < n_tensors; i++) {
        const struct pf_st_source *t = &tensors[i];
        PF_TRY(pf_st_writer_add_tensor(w, t->name, t->dtype, t->n_dims, t->shape, NULL));
    }
    PF_TRY(pf_st_writer_begin(w, aside));
    err = write_sources(w, tensors, n_tensors);
    if (err) {
        unlink(aside);
    }
    return err;
}

int pf_st_save(const char *path, const struct pf_st_metadata *metadata, size_t n_metadata,
               const struct pf_st_source *tensors, size_t n_tensors)
{
    static _Atomic unsigned n_saves;
    struct pf_st_writer *w;
    char *aside = NULL;
    int err = 0;

    PF_TRY(pf_st_writer_new(&w));
    aside = pf_asprintf("%s.tmp-%ld-%u", path, (long)getpid(), atomic_fetch_add(&n_saves, 1U));
    if (!aside) {
        err = PF_ENOMEM;
        goto out;
    }
    unlink(aside); /* left by a dead process that had this number */
    PF_TRY_GOTO(save_aside(w, aside, metadata, n_metadata, tensors, n_tensors), out);
    err = pf_rename_durable(aside, path);
    if (err) {
        unlink(aside);
    }
out:
    pf_free(aside);
    pf_st_writer_free(w);
    return err;
}
