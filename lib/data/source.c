/* SPDX-License-Identifier: Apache-2.0 */
/* source.c - what source kinds have in common. */
#include "data_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

int pf_source_init(struct pf_source *source, const struct pf_source_ops *ops,
                   const struct pf_data_options *options, const char *name)
{
    size_t n_scratch;

    source->ops = ops;
    source->seq = options->seq;
    source->vocab_size = options->vocab_size;
    source->group = 1;
    source->packs = options->packing && ops->document;
    source->entropy = -1.0;
    PF_TRY(pf_to_size(options->seq + 1, &n_scratch));
    source->name = pf_strdup(name);
    source->scratch = pf_calloc_array(n_scratch, sizeof *source->scratch);
    return source->name && source->scratch ? 0 : PF_ENOMEM;
}

void pf_source_free(struct pf_source *source)
{
    if (!source) {
        return;
    }
    pf_free(source->name);
    pf_free(source->summary);
    pf_free(source->scratch);
    source->ops->free(source);
}

int pf_source_set_stream(struct pf_source *source, int64_t n_tokens, int64_t n_documents)
{
    source->n_tokens = n_tokens;
    source->n_documents = n_documents;
    source->n_windows = n_tokens > 0 ? (n_tokens - 1) / source->seq : 0;
    if (source->n_windows == 0 && !source->packs) {
        return pf_fail(PF_EINVAL, "'%s' holds %lld tokens, but one sequence needs %lld",
                       source->name, (long long)n_tokens, (long long)source->seq + 1);
    }
    return 0;
}

/* The last document that starts at or before the token: empty ones start where their successor does,
 * so it is the one that holds the token. */
void pf_source_document_at(const struct pf_source *source, int64_t token, int64_t *first_out,
                           int64_t *end_out)
{
    int64_t lo = 0, hi = source->n_documents - 1, first, end;

    while (lo < hi) {
        const int64_t mid = lo + (hi - lo + 1) / 2;
        source->ops->document(source, mid, &first, &end);
        if (first <= token) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    source->ops->document(source, lo, first_out, end_out);
}

int pf_source_check_id(const struct pf_source *source, int64_t id, int64_t position)
{
    if (id < 0) {
        return pf_fail(PF_EINVAL, "token id %lld at position %lld of '%s' is negative",
                       (long long)id, (long long)position, source->name);
    }
    if (id >= source->vocab_size) {
        return pf_fail(
            PF_EINVAL, "token id %lld at position %lld of '%s' is not below vocab_size %lld",
            (long long)id, (long long)position, source->name, (long long)source->vocab_size);
    }
    return 0;
}

int pf_source_stream_sequence(struct pf_source *source, int64_t i, int32_t *ids, int32_t *targets)
{
    const int64_t seq = source->seq, first = i * seq;

    PF_TRY(source->ops->tokens(source, first, seq + 1, source->scratch));
    for (int64_t s = 0; s <= seq; s++) {
        PF_TRY(pf_source_check_id(source, source->scratch[s], first + s));
    }
    for (int64_t s = 0; s < seq; s++) {
        ids[s] = source->scratch[s];
        targets[s] = source->scratch[s + 1];
    }
    return 0;
}
