/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar of a safetensors header: JSON text to lists of tensors and metadata. */
#include "st_internal.h"

#include "json_scan.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <string.h>

static bool text_is(const struct pf_scan_text *text, const char *word)
{
    return text->n_bytes == strlen(word) && memcmp(text->at, word, text->n_bytes) == 0;
}

/* Make room for one more item; a list doubles when it is full, that is at powers of two. */
static void *grow(void *list, size_t n, size_t size)
{
    if (n < 16 ? n != 0 : (n & (n - 1)) != 0) {
        return list;
    }
    return pf_realloc_array(list, n < 16 ? 16 : 2 * n, size);
}

static int parse_dtype(struct pf_scan *s, struct pf_st_tensor *t)
{
    struct pf_scan_text text;

    PF_TRY(pf_scan_string(s, &text));
    if (strlen(text.at) != text.n_bytes || pf_dtype_parse(text.at, &t->dtype) != 0) {
        return pf_fail(PF_EFORMAT, "'%s': tensor '%.200s' has the unknown dtype '%.40s'", s->path,
                       t->name, text.at);
    }
    return 0;
}

static int parse_shape(struct pf_scan *s, struct pf_st_tensor *t, uint64_t *shape_out)
{
    size_t n_dims = 0;
    bool more;

    PF_TRY(pf_scan_enter(s, '['));
    for (;;) {
        PF_TRY(pf_scan_item(s, '[', &n_dims, &more));
        if (!more) {
            t->n_dims = (int)n_dims; /* a dimension takes a byte of the header at least */
            t->shape = shape_out;
            return 0;
        }
        PF_TRY(pf_scan_u64(s, &shape_out[n_dims - 1]));
    }
}

static int parse_offsets(struct pf_scan *s, struct pf_st_tensor *t)
{
    size_t n_items = 0;
    bool more;

    PF_TRY(pf_scan_enter(s, '['));
    for (;;) {
        PF_TRY(pf_scan_item(s, '[', &n_items, &more));
        if (!more || n_items > 2) {
            break;
        }
        PF_TRY(pf_scan_u64(s, n_items == 1 ? &t->begin : &t->end));
    }
    return n_items == 2 ? 0 : PF_SCAN_FAIL(s, "expected two data_offsets");
}

enum field {
    FIELD_DTYPE = 1,
    FIELD_SHAPE = 2,
    FIELD_OFFSETS = 4,
    FIELD_ALL = 7,
};

static enum field field_of(const struct pf_scan_text *key)
{
    return text_is(key, "dtype")          ? FIELD_DTYPE
           : text_is(key, "shape")        ? FIELD_SHAPE
           : text_is(key, "data_offsets") ? FIELD_OFFSETS
                                          : 0;
}

static int parse_field(struct pf_scan *s, struct pf_st_tensor *t, uint64_t *shape_out,
                       unsigned *seen)
{
    const size_t n_strings = s->n_strings;
    struct pf_scan_text key;

    PF_TRY(pf_scan_key(s, &key));
    const enum field field = field_of(&key);
    if (*seen & field) {
        return pf_fail(PF_EFORMAT, "'%s': tensor '%.200s' has two fields '%s'", s->path, t->name,
                       key.at);
    }
    *seen |= field;
    PF_TRY(field == FIELD_DTYPE     ? parse_dtype(s, t)
           : field == FIELD_SHAPE   ? parse_shape(s, t, shape_out)
           : field == FIELD_OFFSETS ? parse_offsets(s, t)
                                    : pf_scan_skip(s));
    s->n_strings = n_strings;
    return 0;
}

static int parse_tensor(struct pf_scan *s, const struct pf_scan_text *name, uint64_t *shape_out,
                        struct pf_st_tensor *t_out)
{
    struct pf_st_tensor t = {.name = name->at, .name_bytes = name->n_bytes};
    size_t n_fields = 0;
    unsigned seen = 0;
    bool more;

    PF_TRY(pf_scan_enter(s, '{'));
    for (;;) {
        PF_TRY(pf_scan_item(s, '{', &n_fields, &more));
        if (!more) {
            break;
        }
        PF_TRY(parse_field(s, &t, shape_out, &seen));
    }
    if (seen != FIELD_ALL) {
        return pf_fail(PF_EFORMAT, "'%s': tensor '%.200s' has no %s", s->path, t.name,
                       !(seen & FIELD_DTYPE)   ? "dtype"
                       : !(seen & FIELD_SHAPE) ? "shape"
                                               : "data_offsets");
    }
    *t_out = t;
    return 0;
}

static int parse_metadata(struct pf_scan *s, struct pf_st *st)
{
    struct pf_scan_text key, value;
    bool more;

    if (pf_scan_sees(s, 'n')) { /* null, or an error */
        return pf_scan_skip(s);
    }
    PF_TRY(pf_scan_enter(s, '{'));
    for (;;) {
        PF_TRY(pf_scan_item(s, '{', &st->n_metadata, &more));
        if (!more) {
            return 0;
        }
        PF_TRY(pf_scan_key(s, &key));
        PF_TRY(pf_scan_string(s, &value));
        void *grown = grow(st->metadata, st->n_metadata - 1, sizeof *st->metadata);
        if (!grown) {
            return PF_ENOMEM;
        }
        st->metadata = grown;
        st->metadata[st->n_metadata - 1] =
            (struct pf_st_metadata){key.at, value.at, key.n_bytes, value.n_bytes};
    }
}

static int parse_tensor_entry(struct pf_scan *s, struct pf_st *st, const struct pf_scan_text *name,
                              size_t *n_shapes)
{
    void *grown = grow(st->tensors, st->n_tensors, sizeof *st->tensors);

    if (!grown) {
        return PF_ENOMEM;
    }
    st->tensors = grown;
    struct pf_st_tensor *t = &st->tensors[st->n_tensors];
    PF_TRY(parse_tensor(s, name, st->shapes + *n_shapes, t));
    *n_shapes += (size_t)t->n_dims;
    st->n_tensors++;
    return 0;
}

static int parse_header(struct pf_scan *s, struct pf_st *st)
{
    struct pf_scan_text key;
    size_t n_items = 0, n_shapes = 0;
    bool more, has_metadata = false;

    PF_TRY(pf_scan_enter(s, '{'));
    for (;;) {
        PF_TRY(pf_scan_item(s, '{', &n_items, &more));
        if (!more) {
            return pf_scan_finish(s);
        }
        PF_TRY(pf_scan_key(s, &key));
        if (!text_is(&key, "__metadata__")) {
            PF_TRY(parse_tensor_entry(s, st, &key, &n_shapes));
        } else if (has_metadata) {
            return PF_SCAN_FAIL(s, "'__metadata__' stands twice");
        } else {
            PF_TRY(parse_metadata(s, st));
            has_metadata = true;
        }
    }
}

/* Strings never outgrow the header. Neither do dimensions outgrow half of it: each but the last of
 * a shape is followed by a comma, the last by a bracket. */
static int parse_into(struct pf_st *st, const void *bytes, size_t header_bytes)
{
    struct pf_scan scan;

    st->strings = pf_alloc(header_bytes + 1);
    st->shapes = pf_calloc_array(header_bytes / 2 + 1, sizeof *st->shapes);
    if (!st->path || !st->strings || !st->shapes) {
        return PF_ENOMEM;
    }
    PF_TRY(pf_scan_init(&scan, st->path, "header", bytes, header_bytes, st->strings));
    PF_TRY(parse_header(&scan, st));
    return pf_st_check(st);
}

int pf_st_parse(const void *bytes, size_t header_bytes, uint64_t file_bytes, const char *path,
                struct pf_st **st_out)
{
    struct pf_st *st;
    int err;

    if (header_bytes > PF_ST_HEADER_MAX_BYTES || file_bytes < 8 + (uint64_t)header_bytes) {
        return pf_fail(PF_EFORMAT, "'%s': a header of %zu bytes in a file of %llu", path,
                       header_bytes, (unsigned long long)file_bytes);
    }
    st = pf_alloc(sizeof *st);
    if (!st) {
        return PF_ENOMEM;
    }
    st->path = pf_strdup(path);
    st->fd = -1;
    st->file_bytes = file_bytes;
    st->data_offset = 8 + (uint64_t)header_bytes;
    err = parse_into(st, bytes, header_bytes);
    if (err) {
        pf_st_close(st);
        return err;
    }
    *st_out = st;
    return 0;
}
