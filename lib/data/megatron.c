/* SPDX-License-Identifier: Apache-2.0 */
/* megatron.c - Megatron .bin/.idx pairs as token streams. */
#include "data_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/tokidx.h>

struct megatron {
    struct pf_source base;
    struct pf_tokidx *index;
};

static int megatron_tokens(struct pf_source *source, int64_t first, int64_t n, int32_t *tokens_out)
{
    const struct megatron *megatron = (const struct megatron *)source;

    return pf_tokidx_read_i32(megatron->index, first, first + n, tokens_out);
}

static void megatron_document(const struct pf_source *source, int64_t d, int64_t *first_out,
                              int64_t *end_out)
{
    const struct pf_tokidx *const index = ((const struct megatron *)source)->index;
    int64_t first, end;

    pf_tokidx_document(index, d, &first, &end);
    *first_out = pf_tokidx_sequence_start(index, first);
    *end_out = pf_tokidx_sequence_start(index, end);
}

static void megatron_free(struct pf_source *source)
{
    struct megatron *megatron = (struct megatron *)source;

    pf_tokidx_close(megatron->index);
    pf_free(megatron);
}

static const struct pf_source_ops megatron_ops = {
    .kind = "megatron",
    .sequence = pf_source_stream_sequence,
    .tokens = megatron_tokens,
    .document = megatron_document,
    .free = megatron_free,
};

int pf_megatron_open(const struct pf_data_options *options, const char *name,
                     struct pf_source **source_out)
{
    struct megatron *megatron = pf_alloc(sizeof *megatron);
    int err = 0;

    if (!megatron) {
        return PF_ENOMEM;
    }
    PF_TRY_GOTO(pf_source_init(&megatron->base, &megatron_ops, options, name), out);
    PF_TRY_GOTO(pf_tokidx_open(name, &megatron->index), out);
    PF_TRY_GOTO(pf_source_set_stream(&megatron->base, pf_tokidx_n_tokens(megatron->index),
                                     pf_tokidx_n_documents(megatron->index)),
                out);
    *source_out = &megatron->base;
    return 0;
out:
    pf_source_free(&megatron->base);
    return err;
}
