/* SPDX-License-Identifier: Apache-2.0 */
/* The feed-forward half of a layer: norm, act(gate)*up or act(up), down. */
#include "model_internal.h"

#include <pf/error.h>

#include <string.h>

static enum pf_act_kind act_of(const struct pf_model *model)
{
    static const enum pf_act_kind kinds[] = {
        [PF_SPEC_ACT_SILU] = PF_ACT_SILU,
        [PF_SPEC_ACT_GELU_TANH] = PF_ACT_GELU_TANH,
        [PF_SPEC_ACT_GELU_ERF] = PF_ACT_GELU_ERF,
        [PF_SPEC_ACT_RELU] = PF_ACT_RELU,
    };

    return kinds[model->spec->act];
}

static int glu(struct pf_model *model, struct layer_saved *s)
{
    const int64_t n = model->spec->ffn;

    return pf_op_glu_fwd(model->ops, model->dtype,
                         &(struct pf_glu_fwd_args){.n_rows = model->n_tokens,
                                                   .width = n,
                                                   .ldg = n,
                                                   .ldu = n,
                                                   .ldy = n,
                                                   .act = act_of(model),
                                                   .gate = s->gate,
                                                   .up = s->up,
                                                   .y = s->act});
}

/* From dact: the gradients of gate and up overwrite gate and up, which nothing reads again, or, not
 * gated, that of up overwrites dact. *dup_out tells where the gradient of up stands. */
static int activate_backward(struct pf_model *model, struct layer_saved *s, void *dact,
                             const void **dup_out)
{
    const int64_t n = model->spec->ffn;

    *dup_out = model->spec->gated ? s->up : dact;
    if (model->spec->gated) {
        return pf_op_glu_bwd(model->ops, model->dtype,
                             &(struct pf_glu_bwd_args){.n_rows = model->n_tokens,
                                                       .width = n,
                                                       .ldg = n,
                                                       .ldu = n,
                                                       .lddy = n,
                                                       .act = act_of(model),
                                                       .gate = s->gate,
                                                       .up = s->up,
                                                       .dy = dact,
                                                       .dgate = s->gate,
                                                       .dup = s->up});
    }
    return pf_op_act_bwd(
        model->ops, model->dtype,
        &(struct pf_act_bwd_args){
            .n = model->n_tokens * n, .act = act_of(model), .x = s->up, .dy = dact, .dx = dact});
}

int model_ffn_inner(struct pf_model *model, int64_t layer, struct layer_saved *s)
{
    const struct layer_rows *const rows = &model->rows[layer];
    const int64_t h = model->spec->hidden, n = model->spec->ffn;

    PF_TRY(model_norm(model, rows->norm2, s->x_mid, s->h2, s->mean2, s->rstd2));
    if (model->spec->gated) {
        PF_TRY(model_linear(model, rows->gate, s->h2, h, s->gate, n));
        PF_TRY(model_linear(model, rows->up, s->h2, h, s->up, n));
        return glu(model, s);
    }
    return model_linear_end(
        model, rows->up, s->h2, h, s->act, n,
        (struct linear_end){.activate = true, .act = act_of(model), .pre = s->up});
}

int model_ffn(struct pf_model *model, int64_t layer, struct layer_saved *s,
              const struct pf_model_batch *batch, void *y)
{
    PF_TRY(model_ffn_inner(model, layer, s));
    return model_to_residual(model, model->rows[layer].down, s->act, model->spec->ffn, batch, layer,
                             SITE_FFN_OUT, s->x_mid, y);
}

int model_ffn_backward(struct pf_model *model, int64_t layer, struct layer_saved *s,
                       const struct pf_model_batch *batch)
{
    const struct layer_rows *const rows = &model->rows[layer];
    const int64_t h = model->spec->hidden, n = model->spec->ffn;
    struct work *const w = &model->work;
    const void *dout = w->dx, *dup;

    if (model->spec->residual_dropout > 0 && batch->dropout) {
        memcpy(w->dh, w->dx, (size_t)(model->n_tokens * h) * model->element);
        PF_TRY(model_dropout(model, batch, layer, SITE_FFN_OUT, model->spec->residual_dropout,
                             w->dh, h));
        dout = w->dh;
    }
    PF_TRY(model_linear_backward(model, rows->down, s->act, n, dout, h, w->dact, n, false));
    PF_TRY(activate_backward(model, s, w->dact, &dup));
    PF_TRY(model_linear_backward(model, rows->up, s->h2, h, dup, n, w->dh, h, false));
    if (model->spec->gated) {
        PF_TRY(model_linear_backward(model, rows->gate, s->h2, h, s->gate, n, w->dh, h, true));
    }
    return model_norm_backward(model, rows->norm2, s->x_mid, s->mean2, s->rstd2, w->dh, w->dx,
                               true);
}
