/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens to the residual stream, by tables whose rows tensor-parallel ranks share. */
#include "model_internal.h"

#include <pf/error.h>

#include <string.h>

/* Each rank looks its rows up, the first one the positions too: a token's row is one rank's, so that
 * the sum rounds as the whole table's look-up does. */
int model_embed(struct pf_model *model, const struct pf_model_batch *batch, void *x)
{
    const struct dims *const n = &model->dims;
    const size_t bytes = (size_t)(n->n_rows * model->spec->hidden) * model->element;
    void *const y = model_shares_rows(model) ? model->work.full : x;
    void *sum;

    PF_TRY(pf_op_embed_fwd(
        model->ops, model->dtype,
        &(struct pf_embed_fwd_args){
            .n_tokens = model->n_tokens,
            .width = model->spec->hidden,
            .n_rows = n->vocab,
            .first_row = n->first_vocab,
            .n_vocab = model->spec->vocab_size,
            .n_positions = model->spec->max_positions,
            .seq = model->options.seq,
            .ids = batch->ids,
            .positions = batch->positions,
            .table = model_param(model, model->embed),
            .pos_table = model_is_first(model) ? model_param(model, model->pos_embed) : NULL,
            .y = y}));
    PF_TRY(model_sum(model, y, &sum));
    if (sum != x) {
        memcpy(x, sum, bytes);
    }
    return model_dropout(model, batch, -1, SITE_EMBED, model->spec->embed_dropout, x);
}

int model_embed_backward(struct pf_model *model, const struct pf_model_batch *batch, void *dx)
{
    float *const dtable = model_grad(model, model->embed);
    float *const dpos = model_grad(model, model->pos_embed);
    const void *dy;

    if (!dtable && !dpos) {
        return 0;
    }
    PF_TRY(model_dropout(model, batch, -1, SITE_EMBED, model->spec->embed_dropout, dx));
    PF_TRY(model_share(model, dx, &dy));
    return pf_op_embed_bwd(
        model->ops, model->dtype,
        &(struct pf_embed_bwd_args){
            .n_tokens = model->n_tokens,
            .width = model->spec->hidden,
            .n_rows = model->dims.vocab,
            .first_row = model->dims.first_vocab,
            .n_vocab = model->spec->vocab_size,
            .n_positions = model->spec->max_positions,
            .seq = model->options.seq,
            .ids = batch->ids,
            .positions = batch->positions,
            .skip_id = model->options.padding_row_gets_gradient ? -1 : model->spec->padding_id,
            .dy = dy,
            .dtable = dtable,
            .dpos_table = dpos});
}
