/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.c - documents of bytes as a token stream: the bytes tokenizer. */
#include "data_internal.h"

#include <pf/error.h>

#include <string.h>

#define EOD_TOKEN 256

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

int pf_bytes_init(struct pf_bytes *bytes, const struct pf_source_ops *ops,
                  const struct pf_data_options *options, const char *name)
{
    bytes->eod = options->vocab_size > EOD_TOKEN;
    PF_TRY(pf_source_init(&bytes->base, ops, options, name));
    return check_tokenizer(options, name);
}

/* Number of a document's first token. */
static int64_t first_token(const struct pf_bytes *bytes, int64_t d)
{
    return bytes->start(bytes, d) + d * bytes->eod;
}

int pf_bytes_set_stream(struct pf_bytes *bytes)
{
    return pf_source_set_stream(&bytes->base, first_token(bytes, bytes->n_documents),
                                bytes->n_documents);
}

void pf_bytes_document(const struct pf_source *source, int64_t d, int64_t *first_out,
                       int64_t *end_out)
{
    const struct pf_bytes *const bytes = (const struct pf_bytes *)source;

    *first_out = first_token(bytes, d);
    *end_out = first_token(bytes, d + 1);
}

/* The document that holds a token: the first that ends after it. */
static int64_t find_document(const struct pf_bytes *bytes, int64_t token)
{
    int64_t lo = 0, hi = bytes->n_documents - 1;

    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (first_token(bytes, mid + 1) > token) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return lo;
}

/* Bytes [offset, offset + n) of a document, widened. */
static int widen(struct pf_bytes *bytes, int64_t d, int64_t offset, int64_t n, int32_t *tokens_out)
{
    unsigned char buffer[4096];

    while (n > 0) {
        const int64_t part = n < (int64_t)sizeof buffer ? n : (int64_t)sizeof buffer;
        PF_TRY(bytes->read(bytes, d, offset, (size_t)part, buffer));
        for (int64_t i = 0; i < part; i++) {
            tokens_out[i] = buffer[i];
        }
        tokens_out += part;
        offset += part;
        n -= part;
    }
    return 0;
}

int pf_bytes_tokens(struct pf_source *source, int64_t first, int64_t n, int32_t *tokens_out)
{
    struct pf_bytes *const bytes = (struct pf_bytes *)source;

    for (int64_t d = find_document(bytes, first); n > 0; d++) {
        const int64_t offset = first - first_token(bytes, d);
        const int64_t left = bytes->start(bytes, d + 1) - bytes->start(bytes, d) - offset;
        const int64_t part = left < n ? left : n;
        if (part > 0) {
            PF_TRY(widen(bytes, d, offset, part, tokens_out));
        }
        first += part;
        tokens_out += part;
        n -= part;
        if (n > 0 && bytes->eod) {
            *tokens_out++ = EOD_TOKEN;
            first++;
            n--;
        }
    }
    return 0;
}
