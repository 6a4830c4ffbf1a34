/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers, norms and dropout of a decoder, read off the tensor table. */
#include "model_internal.h"

#include <pf/error.h>
#include <pf/rng.h>

#include <string.h>

int model_linear(struct pf_model *model, const struct linear *linear, const void *x, int64_t ldx,
                 void *y, int64_t ldy)
{
    return model_linear_end(model, linear, x, ldx, y, ldy, (struct linear_end){.residual = NULL});
}

/* Elements between rows of a stored weight. */
static int64_t stride_of(const struct linear *linear)
{
    return linear->in_out ? linear->n_out : linear->n_in;
}

int model_linear_end(struct pf_model *model, const struct linear *linear, const void *x,
                     int64_t ldx, void *y, int64_t ldy, struct linear_end end)
{
    const bool adds = !linear->row_cut || model_is_first(model);

    return pf_op_gemm(model->ops, model->dtype,
                      &(struct pf_gemm_args){.m = model->n_tokens,
                                             .n = linear->n_out,
                                             .k = linear->n_in,
                                             .a = x,
                                             .lda = ldx,
                                             .b = model_param(model, linear->w),
                                             .ldb = stride_of(linear),
                                             .trans_b = !linear->in_out,
                                             .c = y,
                                             .ldc = ldy,
                                             .c_dtype = model->dtype,
                                             .bias = adds ? model_param(model, linear->b) : NULL,
                                             .residual = end.residual,
                                             .ldr = ldy,
                                             .activate = end.activate,
                                             .act = end.act,
                                             .pre = end.pre,
                                             .ldp = ldy});
}

/* dW += x^T dy for [in, out], dy^T x for [out, in]. */
static int weight_gradient(struct pf_model *model, const struct linear *linear, const void *x,
                           int64_t ldx, const void *dy, int64_t lddy, float *dw)
{
    const bool in_out = linear->in_out;

    return pf_op_gemm(model->ops, model->dtype,
                      &(struct pf_gemm_args){.m = in_out ? linear->n_in : linear->n_out,
                                             .n = stride_of(linear),
                                             .k = model->n_tokens,
                                             .a = in_out ? x : dy,
                                             .lda = in_out ? ldx : lddy,
                                             .trans_a = true,
                                             .b = in_out ? dy : x,
                                             .ldb = in_out ? lddy : ldx,
                                             .c = dw,
                                             .ldc = stride_of(linear),
                                             .c_dtype = PF_DTYPE_F32,
                                             .accumulate = true});
}

int model_linear_dw(struct pf_model *model, const struct linear *linear, const void *x, int64_t ldx,
                    const void *dy, int64_t lddy)
{
    float *const dw = model_grad(model, linear->w), *const db = model_grad(model, linear->b);

    if (dw) {
        PF_TRY(weight_gradient(model, linear, x, ldx, dy, lddy, dw));
    }
    if (!db) {
        return 0;
    }
    return pf_op_bias_grad(model->ops, model->dtype,
                           &(struct pf_bias_grad_args){.n_rows = model->n_tokens,
                                                       .width = linear->n_out,
                                                       .lddy = lddy,
                                                       .dy = dy,
                                                       .dbias = db});
}

int model_linear_dx(struct pf_model *model, const struct linear *linear, const void *dy,
                    int64_t lddy, void *dx, int64_t lddx, bool dx_accumulate)
{
    return pf_op_gemm(model->ops, model->dtype,
                      &(struct pf_gemm_args){.m = model->n_tokens,
                                             .n = linear->n_in,
                                             .k = linear->n_out,
                                             .a = dy,
                                             .lda = lddy,
                                             .b = model_param(model, linear->w),
                                             .ldb = stride_of(linear),
                                             .trans_b = linear->in_out,
                                             .c = dx,
                                             .ldc = lddx,
                                             .c_dtype = model->dtype,
                                             .accumulate = dx_accumulate});
}

int model_norm(struct pf_model *model, const struct norm *norm, const void *x, void *y, float *mean,
               float *rstd)
{
    const int64_t h = model->spec->hidden;
    const float eps = (float)model->spec->norm_eps;

    if (model->spec->norm == PF_NORM_RMS) {
        return pf_op_rmsnorm_fwd(
            model->ops, model->dtype,
            &(struct pf_rmsnorm_fwd_args){.n_rows = model->dims.n_rows,
                                          .width = h,
                                          .ldx = h,
                                          .ldy = h,
                                          .x = x,
                                          .weight = model_param(model, norm->w),
                                          .eps = eps,
                                          .y = y,
                                          .rstd = rstd});
    }
    return pf_op_layernorm_fwd(
        model->ops, model->dtype,
        &(struct pf_layernorm_fwd_args){.n_rows = model->dims.n_rows,
                                        .width = h,
                                        .ldx = h,
                                        .ldy = h,
                                        .x = x,
                                        .weight = model_param(model, norm->w),
                                        .bias = model_param(model, norm->b),
                                        .eps = eps,
                                        .y = y,
                                        .mean = mean,
                                        .rstd = rstd});
}

int model_norm_backward(struct pf_model *model, const struct norm *norm, const void *x,
                        const float *mean, const float *rstd, const void *dy, void *dx,
                        bool dx_accumulate)
{
    const int64_t h = model->spec->hidden;

    if (model->spec->norm == PF_NORM_RMS) {
        return pf_op_rmsnorm_bwd(
            model->ops, model->dtype,
            &(struct pf_rmsnorm_bwd_args){.n_rows = model->dims.n_rows,
                                          .width = h,
                                          .ldx = h,
                                          .lddy = h,
                                          .lddx = h,
                                          .x = x,
                                          .weight = model_param(model, norm->w),
                                          .dy = dy,
                                          .rstd = rstd,
                                          .dx = dx,
                                          .dx_accumulate = dx_accumulate,
                                          .dweight = model_grad(model, norm->w)});
    }
    return pf_op_layernorm_bwd(
        model->ops, model->dtype,
        &(struct pf_layernorm_bwd_args){.n_rows = model->dims.n_rows,
                                        .width = h,
                                        .ldx = h,
                                        .lddy = h,
                                        .lddx = h,
                                        .x = x,
                                        .weight = model_param(model, norm->w),
                                        .dy = dy,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .dx = dx,
                                        .dx_accumulate = dx_accumulate,
                                        .dweight = model_grad(model, norm->w),
                                        .dbias = model_grad(model, norm->b)});
}

uint64_t model_dropout_key(const struct pf_model *model, int64_t layer, enum dropout_site site)
{
    return pf_rng_derive(model->dropout_key, (uint64_t)(layer + 1) * SITE_COUNT + (uint64_t)site);
}

static int add_rows(struct pf_model *model, const void *a, const void *b, void *y)
{
    return pf_op_add(model->ops, model->dtype,
                     &(struct pf_add_args){
                         .n = model->dims.n_rows * model->spec->hidden, .a = a, .b = b, .y = y});
}

int model_to_residual(struct pf_model *model, const struct linear *linear, const void *x,
                      int64_t ldx, const struct pf_model_batch *batch, int64_t layer,
                      enum dropout_site site, const void *residual, void *y)
{
    const int64_t h = model->spec->hidden;
    const double p = model->spec->residual_dropout;
    const bool drops = p > 0 && batch->dropout;
    const struct linear_end end = {.residual = model_is_first(model) ? residual : NULL};
    void *sum = model->work.dh;

    /* A narrow sum of parts is rounded more than once: then not at the size of the residual, too. */
    const bool in_product = model->options.n_tp == 1 || model->dtype == PF_DTYPE_F32;
    if (!drops && !model_shares_rows(model) && in_product) {
        PF_TRY(model_linear_end(model, linear, x, ldx, y, h, end));
        return model_sum(model, y, &sum);
    }
    PF_TRY(model_linear(model, linear, x, ldx, sum, h));
    PF_TRY(model_sum(model, sum, &sum));
    PF_TRY(model_dropout(model, batch, layer, site, p, sum));
    return add_rows(model, residual, sum, y);
}

int model_residual_gradient(struct pf_model *model, const struct pf_model_batch *batch,
                            int64_t layer, enum dropout_site site, void *keep, const void **dy_out)
{
    const double p = model->spec->residual_dropout;
    const bool drops = p > 0 && batch->dropout;
    const size_t bytes = (size_t)(model->dims.n_rows * model->spec->hidden) * model->element;
    void *const dy = keep ? keep : drops ? model->work.dh : model->work.dx;

    if (dy != model->work.dx) {
        memcpy(dy, model->work.dx, bytes);
        PF_TRY(model_dropout(model, batch, layer, site, p, dy));
    }
    return model_share(model, dy, dy_out);
}

int model_dropout(struct pf_model *model, const struct pf_model_batch *batch, int64_t layer,
                  enum dropout_site site, double p, void *x)
{
    const int64_t h = model->spec->hidden;

    if (p <= 0 || !batch->dropout) {
        return 0;
    }
    /* By global position, so that the mask does not depend on who computes it. */
    const int64_t first = batch->first_sequence * model->options.seq + model->dims.first_row;
    return pf_op_dropout(model->ops, model->dtype,
                         &(struct pf_dropout_args){.n = model->dims.n_rows * h,
                                                   .p = (float)p,
                                                   .key = model_dropout_key(model, layer, site),
                                                   .first = (uint64_t)(first * h),
                                                   .x = x,
                                                   .y = x});
}
