/* SPDX-License-Identifier: Apache-2.0 */
/* text.c - .txt and .md files as documents of bytes. */
#include "data_internal.h"

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <fcntl.h>
#include <string.h>

struct document {
    char *path;
    int64_t first; /* bytes of the documents before it */
    int64_t n_bytes;
};

struct text {
    struct pf_bytes bytes;
    struct document *documents;
    int fd; /* of documents[fd_document], kept open; -1 if none */
    int64_t fd_document;
};

static int64_t text_start(const struct pf_bytes *bytes, int64_t d)
{
    const struct text *const text = (const struct text *)bytes;

    return d < bytes->n_documents ? text->documents[d].first
           : d > 0                ? text->documents[d - 1].first + text->documents[d - 1].n_bytes
                                  : 0;
}

/* Only one file is kept open: a folder may hold more than a process may open. */
static int open_document(struct text *text, int64_t d)
{
    if (text->fd >= 0 && text->fd_document == d) {
        return 0;
    }
    (void)pf_close(text->fd, "");
    text->fd = -1;
    PF_TRY(pf_open(text->documents[d].path, O_RDONLY, &text->fd));
    text->fd_document = d;
    return 0;
}

static int text_read(struct pf_bytes *bytes, int64_t d, int64_t offset, size_t n, unsigned char *to)
{
    struct text *const text = (struct text *)bytes;

    PF_TRY(open_document(text, d));
    return pf_pread_full(text->fd, to, n, (uint64_t)offset, text->documents[d].path);
}

static void text_free(struct pf_source *source)
{
    struct text *text = (struct text *)source;

    (void)pf_close(text->fd, "");
    for (int64_t d = 0; d < text->bytes.n_documents; d++) {
        pf_free(text->documents[d].path);
    }
    pf_free(text->documents);
    pf_free(text);
}

static const struct pf_source_ops text_ops = {
    .kind = "text",
    .sequence = pf_source_stream_sequence,
    .tokens = pf_bytes_tokens,
    .document = pf_bytes_document,
    .free = text_free,
};

/* Append a document; path is taken over, also on failure. */
static int add_document(struct text *text, char *path)
{
    struct document *documents, document = {.path = path};
    uint64_t n_bytes;
    int err = path ? 0 : PF_ENOMEM;

    PF_TRY_GOTO(err, out);
    PF_TRY_GOTO(pf_file_size(path, &n_bytes), out);
    PF_TRY_GOTO(pf_u64_to_i64(n_bytes, &document.n_bytes), out);
    document.first = text_start(&text->bytes, text->bytes.n_documents);
    documents = pf_realloc_array(text->documents, (size_t)text->bytes.n_documents + 1,
                                 sizeof *text->documents);
    PF_TRY_GOTO(documents ? 0 : PF_ENOMEM, out);
    text->documents = documents;
    documents[text->bytes.n_documents++] = document;
    path = NULL;
out:
    pf_free(path);
    return err;
}

static int add_folder(struct text *text, const char *folder)
{
    struct pf_str_list names = {0};
    int err = 0;

    PF_TRY(pf_dir_list(folder, &names));
    for (size_t i = 0; i < names.n; i++) {
        const char *name = names.items[i];
        if (!pf_str_ends_with(name, ".txt") && !pf_str_ends_with(name, ".md")) {
            continue;
        }
        char *path = pf_path_join(folder, name);
        if (path && pf_path_is_dir(path)) {
            pf_free(path);
            continue;
        }
        PF_TRY_GOTO(add_document(text, path), out);
    }
    if (text->bytes.n_documents == 0) {
        err = pf_fail(PF_EINVAL, "no .txt or .md file in '%s'", folder);
    }
out:
    pf_str_list_release(&names);
    return err;
}

int pf_text_open(const struct pf_data_options *options, const char *name,
                 struct pf_source **source_out)
{
    struct text *text;
    int err = 0;

    text = pf_alloc(sizeof *text);
    if (!text) {
        return PF_ENOMEM;
    }
    text->fd = -1;
    text->bytes.start = text_start;
    text->bytes.read = text_read;
    PF_TRY_GOTO(pf_bytes_init(&text->bytes, &text_ops, options, name), out);
    if (pf_path_is_dir(name)) {
        PF_TRY_GOTO(add_folder(text, name), out);
    } else {
        PF_TRY_GOTO(add_document(text, pf_strdup(name)), out);
    }
    PF_TRY_GOTO(pf_bytes_set_stream(&text->bytes), out);
    *source_out = &text->bytes.base;
    return 0;
out:
    pf_source_free(&text->bytes.base);
    return err;
}
