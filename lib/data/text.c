/* SPDX-License-Identifier: Apache-2.0 */
/* text.c - .txt and .md files as token streams; the bytes tokenizer. */
#include "data_internal.h"

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <fcntl.h>
#include <string.h>

#define EOD_TOKEN 256

struct document {
    char *path;
    int64_t first; /* number of its first token in the stream */
    int64_t n_bytes;
};

struct text {
    struct pf_source base;
    struct document *documents;
    size_t n_documents;
    int64_t eod; /* tokens after a document's bytes: 1, or 0 where the vocabulary has no room */
    int fd;      /* of documents[fd_document], kept open; -1 if none */
    size_t fd_document;
};

static int64_t document_end(const struct text *text, size_t d)
{
    return text->documents[d].first + text->documents[d].n_bytes + text->eod;
}

/* The document that holds a token: the first that ends after it. */
static size_t find_document(const struct text *text, int64_t token)
{
    size_t lo = 0, hi = text->n_documents - 1;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (document_end(text, mid) > token) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return lo;
}

/* Only one file is kept open: a folder may hold more than a process may open. */
static int open_document(struct text *text, size_t d)
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

/* Bytes [offset, offset + n) of a document, widened. */
static int read_bytes(struct text *text, size_t d, int64_t offset, int64_t n, int32_t *tokens_out)
{
    unsigned char buffer[4096];

    PF_TRY(open_document(text, d));
    while (n > 0) {
        const int64_t part = n < (int64_t)sizeof buffer ? n : (int64_t)sizeof buffer;
        PF_TRY(pf_pread_full(text->fd, buffer, (size_t)part, (uint64_t)offset,
                             text->documents[d].path));
        for (int64_t i = 0; i < part; i++) {
            tokens_out[i] = buffer[i];
        }
        tokens_out += part;
        offset += part;
        n -= part;
    }
    return 0;
}

static int text_tokens(struct pf_source *source, int64_t first, int64_t n, int32_t *tokens_out)
{
    struct text *text = (struct text *)source;

    for (size_t d = find_document(text, first); n > 0; d++) {
        const int64_t offset = first - text->documents[d].first;
        const int64_t left = text->documents[d].n_bytes - offset;
        const int64_t part = left < n ? left : n;
        if (part > 0) {
            PF_TRY(read_bytes(text, d, offset, part, tokens_out));
        }
        first += part;
        tokens_out += part;
        n -= part;
        if (n > 0 && text->eod) {
            *tokens_out++ = EOD_TOKEN;
            first++;
            n--;
        }
    }
    return 0;
}

static void text_document(const struct pf_source *source, int64_t token, int64_t *first_out,
                          int64_t *end_out)
{
    const struct text *text = (const struct text *)source;
    const size_t d = find_document(text, token);

    *first_out = text->documents[d].first;
    *end_out = document_end(text, d);
}

static void text_free(struct pf_source *source)
{
    struct text *text = (struct text *)source;

    (void)pf_close(text->fd, "");
    for (size_t d = 0; d < text->n_documents; d++) {
        pf_free(text->documents[d].path);
    }
    pf_free(text->documents);
    pf_free(text);
}

static const struct pf_source_ops text_ops = {
    .kind = "text",
    .sequence = pf_source_stream_sequence,
    .tokens = text_tokens,
    .document = text_document,
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
    documents = pf_realloc_array(text->documents, text->n_documents + 1, sizeof *text->documents);
    PF_TRY_GOTO(documents ? 0 : PF_ENOMEM, out);
    text->documents = documents;
    document.first = text->n_documents > 0 ? document_end(text, text->n_documents - 1) : 0;
    documents[text->n_documents++] = document;
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
    if (text->n_documents == 0) {
        err = pf_fail(PF_EINVAL, "no .txt or .md file in '%s'", folder);
    }
out:
    pf_str_list_release(&names);
    return err;
}

static int check_tokenizer(const struct pf_data_options *options, const char *name)
{
    if (!options->tokenizer || !options->tokenizer[0]) {
        return pf_fail(PF_EUSAGE, "'%s' is text, which needs a tokenizer such as \"bytes\"", name);
    }
    if (strcmp(options->tokenizer, "bytes") != 0) {
        return pf_fail(PF_ENOTSUP, "tokenizer '%s' is not in this build, which has \"bytes\" only",
                       options->tokenizer);
    }
    return 0;
}

int pf_text_open(const struct pf_data_options *options, const char *name,
                 struct pf_source **source_out)
{
    struct text *text;
    int err = 0;

    PF_TRY(check_tokenizer(options, name));
    text = pf_alloc(sizeof *text);
    if (!text) {
        return PF_ENOMEM;
    }
    text->fd = -1;
    text->eod = options->vocab_size > EOD_TOKEN;
    PF_TRY_GOTO(pf_source_init(&text->base, &text_ops, options, name), out);
    if (pf_path_is_dir(name)) {
        PF_TRY_GOTO(add_folder(text, name), out);
    } else {
        PF_TRY_GOTO(add_document(text, pf_strdup(name)), out);
    }
    PF_TRY_GOTO(pf_source_set_stream(&text->base, document_end(text, text->n_documents - 1),
                                     (int64_t)text->n_documents),
                out);
    *source_out = &text->base;
    return 0;
out:
    pf_source_free(&text->base);
    return err;
}
