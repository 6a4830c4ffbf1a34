/* SPDX-License-Identifier: Apache-2.0 */
/* What tensor-parallel ranks bring to each other's collectives, counted without running: the walk of
 * decoder.c with the calls of tensor.c alone. */
#include "model_internal.h"

#include <pf/error.h>

struct counter {
    const struct pf_model_spec *spec;
    const struct pf_model_options *options;
    int64_t n_layers; /* of the chunk */
    uint64_t whole;   /* bytes of [T,H] */
    uint64_t n_tp;
    bool shares_rows, overlaps;
    uint64_t *bytes; /* [PF_COMM_KIND_COUNT] */
};

static void sum(struct counter *c)
{
    c->bytes[c->shares_rows ? PF_COMM_REDUCE_SCATTER : PF_COMM_ALL_REDUCE] += c->whole;
}

/* In two parts: by messages where the rank computes between them. */
static void sum_in_parts(struct counter *c)
{
    const uint64_t slice = c->whole / c->n_tp;

    if (!c->overlaps) {
        sum(c);
        return;
    }
    c->bytes[PF_COMM_SEND] += (c->n_tp - 1) * slice;
    c->bytes[PF_COMM_ALL_GATHER] += c->shares_rows ? 0 : slice;
}

static void share(struct counter *c)
{
    c->bytes[PF_COMM_ALL_GATHER] += c->shares_rows ? c->whole / c->n_tp : 0;
}

static void forward_layer(struct counter *c)
{
    for (int block = 0; block < 2; block++) { /* attention, feed-forward */
        share(c);
        sum(c);
    }
}

/* head: three numbers a token, and backward of the head in one with its forward. */
static void forward(struct counter *c, const struct pf_model_chunk *chunk)
{
    if (chunk->embed) {
        sum(c);
    }
    for (int64_t i = 0; i < c->n_layers; i++) {
        forward_layer(c);
    }
    if (chunk->head) {
        share(c);
        c->bytes[PF_COMM_ALL_GATHER] +=
            (uint64_t)(c->options->batch * c->options->seq) * 3 * sizeof(float);
        sum(c);
    }
}

/* Of a group of n layers. */
static void recompute(struct counter *c, int64_t n)
{
    switch (c->options->recompute) {
    case PF_RECOMPUTE_FULL_ATTN:
        share(c);
        break;
    case PF_RECOMPUTE_FULL:
        for (int64_t i = 0; i + 1 < n; i++) {
            forward_layer(c);
        }
        share(c);
        sum(c);
        share(c);
        break;
    case PF_RECOMPUTE_CORE_ATTN:
    case PF_RECOMPUTE_NONE:
        break;
    }
}

static void backward(struct counter *c, bool trains_embedding)
{
    const int64_t group = model_group_size(c->spec, c->options);

    for (int64_t end = c->n_layers; end > 0;) {
        const int64_t first = (end - 1) / group * group;
        if (model_recomputes(c->spec, c->options, first)) {
            recompute(c, end - first);
        }
        for (; end > first; end--) {
            for (int block = 0; block < 2; block++) {
                share(c); /* of what comes in */
                sum_in_parts(c);
                if (!c->options->split_backward) {
                    share(c); /* of what the weights were multiplied with */
                }
            }
        }
    }
    if (trains_embedding) {
        share(c);
    }
}

static void backward_weights(struct counter *c)
{
    for (int64_t i = 0; i < 4 * c->n_layers; i++) {
        share(c);
    }
}

static bool is_trained(const struct pf_table *table, enum pf_slot slot)
{
    const struct pf_tensor_row *const row = pf_table_find(table, -1, slot);

    return row && !row->frozen;
}

void pf_model_traffic(const struct pf_model_spec *spec, const struct pf_table *table,
                      const struct pf_model_options *options, int chunk, enum pf_model_pass pass,
                      uint64_t bytes[PF_COMM_KIND_COUNT])
{
    const struct pf_model_chunk part = model_chunk(spec, options, chunk);
    struct counter c = {.spec = spec,
                        .options = options,
                        .n_layers = part.end_layer - part.first_layer,
                        .whole = (uint64_t)(options->batch * options->seq * spec->hidden) *
                                 pf_dtype_bytes(options->dtype),
                        .n_tp = (uint64_t)options->n_tp,
                        .shares_rows = options->sequence_parallel,
                        .overlaps = model_sums_overlap(spec, options),
                        .bytes = bytes};

    if (options->n_tp <= 1) {
        return;
    }
    switch (pass) {
    case PF_MODEL_FORWARD:
        forward(&c, &part);
        break;
    case PF_MODEL_BACKWARD:
        backward(&c, part.embed && (is_trained(table, PF_SLOT_EMBED) ||
                                    is_trained(table, PF_SLOT_POS_EMBED)));
        break;
    case PF_MODEL_BACKWARD_WEIGHTS:
        backward_weights(&c);
        break;
    }
}
