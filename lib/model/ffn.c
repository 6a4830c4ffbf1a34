/* SPDX-License-Identifier: Apache-2.0 */
/* The feed-forward half of a layer: norm, act(gate)*up or act(up), down. */
#include "model_internal.h"

#include <pf/error.h>

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
    const int64_t n = model->dims.ffn;

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
    const int64_t n = model->dims.ffn;

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
    const struct layer_weights *const weights = &model->weights[layer];
    const int64_t h = model->spec->hidden, n = model->dims.ffn;
    const void *x;

    PF_TRY(model_norm(model, &weights->norm2, s->x_mid, s->h2, s->mean2, s->rstd2));
    PF_TRY(model_share(model, s->h2, &x));
    if (model->spec->gated) {
        PF_TRY(model_linear(model, &weights->gate, x, h, s->gate, n));
        PF_TRY(model_linear(model, &weights->up, x, h, s->up, n));
        return glu(model, s);
    }
    return model_linear_end(
        model, &weights->up, x, h, s->act, n,
        (struct linear_end){.activate = true, .act = act_of(model), .pre = s->up});
}

int model_ffn(struct pf_model *model, int64_t layer, struct layer_saved *s,
              const struct pf_model_batch *batch, void *y)
{
    PF_TRY(model_ffn_inner(model, layer, s));
    return model_to_residual(model, &model->weights[layer].down, s->act, model->dims.ffn, batch,
                             layer, SITE_FFN_OUT, s->x_mid, y);
}

/* The gradients of gate and up, from the normed rows of all ranks. */
static int input_weights(struct pf_model *model, const struct layer_weights *weights,
                         const struct layer_saved *s)
{
    const int64_t h = model->spec->hidden, n = model->dims.ffn;
    const void *x;

    PF_TRY(model_share(model, s->h2, &x));
    PF_TRY(model_linear_dw(model, &weights->up, x, h, model->spec->gated ? s->up : s->dact, n));
    return model->spec->gated ? model_linear_dw(model, &weights->gate, x, h, s->gate, n) : 0;
}

int model_ffn_backward(struct pf_model *model, int64_t layer, struct layer_saved *s,
                       const struct pf_model_batch *batch, bool split)
{
    const struct layer_weights *const weights = &model->weights[layer];
    const int64_t h = model->spec->hidden, n = model->dims.ffn;
    struct work *const w = &model->work;
    const void *dy, *dup;
    void *sum;

    PF_TRY(
        model_residual_gradient(model, batch, layer, SITE_FFN_OUT, split ? s->dffn_y : NULL, &dy));
    PF_TRY(split ? 0 : model_linear_dw(model, &weights->down, s->act, n, dy, h));
    PF_TRY(model_linear_dx(model, &weights->down, dy, h, s->dact, n, false));
    PF_TRY(activate_backward(model, s, s->dact, &dup));
    PF_TRY(model_linear_dx(model, &weights->up, dup, n, w->dh, h, false));
    if (model->spec->gated) {
        PF_TRY(model_linear_dx(model, &weights->gate, s->gate, n, w->dh, h, true));
    }
    PF_TRY(model_sum_begin(model, w->dh));
    PF_TRY(split ? 0 : input_weights(model, weights, s));
    PF_TRY(model_sum_end(model, w->dh, &sum));
    return model_norm_backward(model, &weights->norm2, s->x_mid, s->mean2, s->rstd2, sum, w->dx,
                               true);
}

int model_ffn_weights(struct pf_model *model, int64_t layer, struct layer_saved *s)
{
    const struct layer_weights *const weights = &model->weights[layer];
    const void *dy;

    PF_TRY(model_share(model, s->dffn_y, &dy));
    PF_TRY(
        model_linear_dw(model, &weights->down, s->act, model->dims.ffn, dy, model->spec->hidden));
    return input_weights(model, weights, s);
}
