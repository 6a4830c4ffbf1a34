/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers, norms and dropout of a decoder, read off the tensor table. */
#include "model_internal.h"

#include <pf/error.h>
#include <pf/rng.h>

static int64_t row_index(const struct pf_model *model, const struct pf_tensor_row *row)
{
    return row - model->table->rows;
}

const void *model_param(const struct pf_model *model, const struct pf_tensor_row *row)
{
    return row ? model_at(model, model->params, model->layout->param_at[row_index(model, row)])
               : NULL;
}

float *model_grad(const struct pf_model *model, const struct pf_tensor_row *row)
{
    if (!row || !model->grads || model->layout->grad_at[row_index(model, row)] < 0) {
        return NULL;
    }
    return model->grads + model->layout->grad_at[row_index(model, row)];
}

int model_linear(struct pf_model *model, struct weight_pair weight, const void *x, int64_t ldx,
                 void *y, int64_t ldy)
{
    return model_linear_end(model, weight, x, ldx, y, ldy, (struct linear_end){.residual = NULL});
}

int model_linear_end(struct pf_model *model, struct weight_pair weight, const void *x, int64_t ldx,
                     void *y, int64_t ldy, struct linear_end end)
{
    const struct pf_tensor_row *const w = weight.w;
    const int64_t n_in = w->in_out ? w->shape[0] : w->shape[1];
    const int64_t n_out = w->in_out ? w->shape[1] : w->shape[0];

    return pf_op_gemm(model->ops, model->dtype,
                      &(struct pf_gemm_args){.m = model->n_tokens,
                                             .n = n_out,
                                             .k = n_in,
                                             .a = x,
                                             .lda = ldx,
                                             .b = model_param(model, w),
                                             .ldb = w->shape[1],
                                             .trans_b = !w->in_out,
                                             .c = y,
                                             .ldc = ldy,
                                             .c_dtype = model->dtype,
                                             .bias = model_param(model, weight.b),
                                             .residual = end.residual,
                                             .ldr = ldy,
                                             .activate = end.activate,
                                             .act = end.act,
                                             .pre = end.pre,
                                             .ldp = ldy});
}

/* dW += x^T dy for [in, out], dy^T x for [out, in]. */
static int weight_gradient(struct pf_model *model, const struct pf_tensor_row *w, const void *x,
                           int64_t ldx, const void *dy, int64_t lddy, float *dw)
{
    return pf_op_gemm(model->ops, model->dtype,
                      &(struct pf_gemm_args){.m = w->shape[0],
                                             .n = w->shape[1],
                                             .k = model->n_tokens,
                                             .a = w->in_out ? x : dy,
                                             .lda = w->in_out ? ldx : lddy,
                                             .trans_a = true,
                                             .b = w->in_out ? dy : x,
                                             .ldb = w->in_out ? lddy : ldx,
                                             .c = dw,
                                             .ldc = w->shape[1],
                                             .c_dtype = PF_DTYPE_F32,
                                             .accumulate = true});
}

int model_linear_backward(struct pf_model *model, struct weight_pair weight, const void *x,
                          int64_t ldx, const void *dy, int64_t lddy, void *dx, int64_t lddx,
                          bool dx_accumulate)
{
    const struct pf_tensor_row *const w = weight.w;
    const int64_t n_in = w->in_out ? w->shape[0] : w->shape[1];
    const int64_t n_out = w->in_out ? w->shape[1] : w->shape[0];
    float *const dw = model_grad(model, w), *const db = model_grad(model, weight.b);

    if (dw) {
        PF_TRY(weight_gradient(model, w, x, ldx, dy, lddy, dw));
    }
    if (db) {
        PF_TRY(pf_op_bias_grad(
            model->ops, model->dtype,
            &(struct pf_bias_grad_args){
                .n_rows = model->n_tokens, .width = n_out, .lddy = lddy, .dy = dy, .dbias = db}));
    }
    if (!dx) {
        return 0;
    }
    return pf_op_gemm(model->ops, model->dtype,
                      &(struct pf_gemm_args){.m = model->n_tokens,
                                             .n = n_in,
                                             .k = n_out,
                                             .a = dy,
                                             .lda = lddy,
                                             .b = model_param(model, w),
                                             .ldb = w->shape[1],
                                             .trans_b = w->in_out,
                                             .c = dx,
                                             .ldc = lddx,
                                             .c_dtype = model->dtype,
                                             .accumulate = dx_accumulate});
}

int model_norm(struct pf_model *model, struct weight_pair weight, const void *x, void *y,
               float *mean, float *rstd)
{
    const int64_t h = model->spec->hidden;
    const float eps = (float)model->spec->norm_eps;

    if (model->spec->norm == PF_NORM_RMS) {
        return pf_op_rmsnorm_fwd(
            model->ops, model->dtype,
            &(struct pf_rmsnorm_fwd_args){.n_rows = model->n_tokens,
                                          .width = h,
                                          .ldx = h,
                                          .ldy = h,
                                          .x = x,
                                          .weight = model_param(model, weight.w),
                                          .eps = eps,
                                          .y = y,
                                          .rstd = rstd});
    }
    return pf_op_layernorm_fwd(
        model->ops, model->dtype,
        &(struct pf_layernorm_fwd_args){.n_rows = model->n_tokens,
                                        .width = h,
                                        .ldx = h,
                                        .ldy = h,
                                        .x = x,
                                        .weight = model_param(model, weight.w),
                                        .bias = model_param(model, weight.b),
                                        .eps = eps,
                                        .y = y,
                                        .mean = mean,
                                        .rstd = rstd});
}

int model_norm_backward(struct pf_model *model, struct weight_pair weight, const void *x,
                        const float *mean, const float *rstd, const void *dy, void *dx,
                        bool dx_accumulate)
{
    const int64_t h = model->spec->hidden;

    if (model->spec->norm == PF_NORM_RMS) {
        return pf_op_rmsnorm_bwd(
            model->ops, model->dtype,
            &(struct pf_rmsnorm_bwd_args){.n_rows = model->n_tokens,
                                          .width = h,
                                          .ldx = h,
                                          .lddy = h,
                                          .lddx = h,
                                          .x = x,
                                          .weight = model_param(model, weight.w),
                                          .dy = dy,
                                          .rstd = rstd,
                                          .dx = dx,
                                          .dx_accumulate = dx_accumulate,
                                          .dweight = model_grad(model, weight.w)});
    }
    return pf_op_layernorm_bwd(
        model->ops, model->dtype,
        &(struct pf_layernorm_bwd_args){.n_rows = model->n_tokens,
                                        .width = h,
                                        .ldx = h,
                                        .lddy = h,
                                        .lddx = h,
                                        .x = x,
                                        .weight = model_param(model, weight.w),
                                        .dy = dy,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .dx = dx,
                                        .dx_accumulate = dx_accumulate,
                                        .dweight = model_grad(model, weight.w),
                                        .dbias = model_grad(model, weight.b)});
}

uint64_t model_dropout_key(const struct pf_model *model, int64_t layer, enum dropout_site site)
{
    return pf_rng_derive(model->dropout_key, (uint64_t)(layer + 1) * SITE_COUNT + (uint64_t)site);
}

int model_to_residual(struct pf_model *model, struct weight_pair weight, const void *x, int64_t ldx,
                      const struct pf_model_batch *batch, int64_t layer, enum dropout_site site,
                      const void *residual, void *y)
{
    const int64_t h = model->spec->hidden;
    const double p = model->spec->residual_dropout;
    void *const out = model->work.dh;

    if (p <= 0 || !batch->dropout) {
        return model_linear_end(model, weight, x, ldx, y, h,
                                (struct linear_end){.residual = residual});
    }
    PF_TRY(model_linear(model, weight, x, ldx, out, h));
    PF_TRY(model_dropout(model, batch, layer, site, p, out, h));
    return pf_op_add(
        model->ops, model->dtype,
        &(struct pf_add_args){.n = model->n_tokens * h, .a = residual, .b = out, .y = y});
}

int model_dropout(struct pf_model *model, const struct pf_model_batch *batch, int64_t layer,
                  enum dropout_site site, double p, void *x, int64_t width)
{
    if (p <= 0 || !batch->dropout) {
        return 0;
    }
    /* By global position, so that the mask does not depend on who computes it. */
    const int64_t first = batch->first_sequence * model->options.seq * width;
    return pf_op_dropout(model->ops, model->dtype,
                         &(struct pf_dropout_args){.n = model->n_tokens * width,
                                                   .p = (float)p,
                                                   .key = model_dropout_key(model, layer, site),
                                                   .first = (uint64_t)first,
                                                   .x = x,
                                                   .y = x});
}
