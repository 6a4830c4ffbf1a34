/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl.c - the lines of a .jsonl file as documents of bytes. */
#include "data_internal.h"

#include <pf/error.h>
#include <pf/jsonl.h>
#include <pf/mem.h>

struct lines {
    struct pf_bytes bytes;
    struct pf_jsonl *file;
};

static int64_t lines_start(const struct pf_bytes *bytes, int64_t d)
{
    return pf_jsonl_start(((const struct lines *)bytes)->file, d);
}

static int lines_read(struct pf_bytes *bytes, int64_t d, int64_t offset, size_t n,
                      unsigned char *to)
{
    return pf_jsonl_read(((const struct lines *)bytes)->file, d, offset, n, to);
}

static void lines_free(struct pf_source *source)
{
    struct lines *const lines = (struct lines *)source;

    pf_jsonl_close(lines->file);
    pf_free(lines);
}

static const struct pf_source_ops lines_ops = {
    .kind = "jsonl",
    .sequence = pf_source_stream_sequence,
    .tokens = pf_bytes_tokens,
    .document = pf_bytes_document,
    .free = lines_free,
};

int pf_jsonl_source_open(const struct pf_data_options *options, const char *name,
                         struct pf_source **source_out)
{
    struct lines *const lines = pf_alloc(sizeof *lines);
    int err = 0;

    if (!lines) {
        return PF_ENOMEM;
    }
    lines->bytes.start = lines_start;
    lines->bytes.read = lines_read;
    PF_TRY_GOTO(pf_bytes_init(&lines->bytes, &lines_ops, options, name), out);
    PF_TRY_GOTO(pf_jsonl_open(name, &lines->file), out);
    lines->bytes.n_documents = pf_jsonl_n_documents(lines->file);
    PF_TRY_GOTO(pf_bytes_set_stream(&lines->bytes), out);
    *source_out = &lines->bytes.base;
    return 0;
out:
    pf_source_free(&lines->bytes.base);
    return err;
}
