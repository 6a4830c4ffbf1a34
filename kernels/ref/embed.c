/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embed.c - token embedding, with learned positions where the model has them.
 *
 *     y[t] = table[ids[t]] + pos_table[position(t)]
 *
 * Backward: each row of dtable is the sum of dy over the tokens that chose it, added one by one in
 * token order in fp32, since that order is part of the op's definition. skip_id is nn.Embedding's
 * padding_idx: the forward pass is unchanged, the row gets no gradient. Of a part of the table, which
 * begins with row first_row, table[id] is 0 where the id's row is not in it.
 *
 * Source: Radford et al. 2019 (learned positions are added); torch.nn.Embedding (padding_idx).
 */
#include "ref.h"

/* Where the row of an id begins in the table's part of n_rows rows, or -1. */
static int64_t row_at(int32_t id, int64_t first_row, int64_t n_rows, int64_t width)
{
    return id >= first_row && id - first_row < n_rows ? (id - first_row) * width : -1;
}

static int embed_fwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_embed_fwd_args *e = args;

    (void)ctx;
    for (int64_t t = 0; t < e->n_tokens; t++) {
        const int64_t row = row_at(e->ids[t], e->first_row, e->n_rows, e->width);
        const int64_t pos = e->pos_table ? ref_position(e->positions, t, e->seq) * e->width : 0;
        for (int64_t j = 0; j < e->width; j++) {
            double y = row >= 0 ? ref_load(dtype, e->table, row + j) : 0;
            if (e->pos_table) {
                y += ref_load(dtype, e->pos_table, pos + j);
            }
            ref_store(dtype, e->y, t * e->width + j, y);
        }
    }
    return 0;
}

static int embed_bwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_embed_bwd_args *e = args;

    (void)ctx;
    for (int64_t t = 0; t < e->n_tokens; t++) {
        const int64_t row = row_at(e->ids[t], e->first_row, e->n_rows, e->width);
        const int64_t pos = e->dpos_table ? ref_position(e->positions, t, e->seq) * e->width : 0;
        for (int64_t j = 0; j < e->width; j++) {
            const double dy = ref_load(dtype, e->dy, t * e->width + j);
            if (e->dtable && row >= 0 && e->ids[t] != e->skip_id) {
                ref_accumulate(&e->dtable[row + j], dy);
            }
            if (e->dpos_table) {
                ref_accumulate(&e->dpos_table[pos + j], dy);
            }
        }
    }
    return 0;
}

REF_KERNEL(embed_fwd);
REF_KERNEL(embed_bwd);
