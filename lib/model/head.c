/* SPDX-License-Identifier: Apache-2.0 */
/* Final norm, language-model head and loss, in chunks of tokens. */
#include "model_internal.h"

#include <pf/error.h>

int model_logits_chunk(struct pf_model *model, const void *final_h, int64_t first, int64_t n,
                       void *logits)
{
    const int64_t h = model->spec->hidden, v = model->spec->vocab_size;

    return pf_op_gemm(model->ops, model->dtype,
                      &(struct pf_gemm_args){.m = n,
                                             .n = v,
                                             .k = h,
                                             .a = model_at(model, final_h, first * h),
                                             .lda = h,
                                             .b = model_param(model, model->head.w),
                                             .ldb = h,
                                             .trans_b = true,
                                             .c = logits,
                                             .ldc = model_logits_stride(model->spec),
                                             .c_dtype = model->dtype,
                                             .bias = model_param(model, model->head.b)});
}

/* From dlogits [n,V]: dfinal_h [n,H] overwritten, head gradients added. */
static int chunk_backward(struct pf_model *model, struct live_saved *live, int64_t first, int64_t n,
                          const void *dlogits)
{
    const int64_t h = model->spec->hidden, v = model->spec->vocab_size;
    float *const dw = model_grad(model, model->head.w), *const db =
                                                            model_grad(model, model->head.b);

    PF_TRY(pf_op_gemm(model->ops, model->dtype,
                      &(struct pf_gemm_args){.m = n,
                                             .n = h,
                                             .k = v,
                                             .a = dlogits,
                                             .lda = model_logits_stride(model->spec),
                                             .b = model_param(model, model->head.w),
                                             .ldb = h,
                                             .c = model_at(model, live->dfinal_h, first * h),
                                             .ldc = h,
                                             .c_dtype = model->dtype}));
    if (dw) {
        PF_TRY(pf_op_gemm(model->ops, model->dtype,
                          &(struct pf_gemm_args){.m = v,
                                                 .n = h,
                                                 .k = n,
                                                 .a = dlogits,
                                                 .lda = model_logits_stride(model->spec),
                                                 .trans_a = true,
                                                 .b = model_at(model, live->final_h, first * h),
                                                 .ldb = h,
                                                 .c = dw,
                                                 .ldc = h,
                                                 .c_dtype = PF_DTYPE_F32,
                                                 .accumulate = true}));
    }
    if (db) {
        PF_TRY(pf_op_bias_grad(model->ops, model->dtype,
                               &(struct pf_bias_grad_args){.n_rows = n,
                                                           .width = v,
                                                           .lddy = model_logits_stride(model->spec),
                                                           .dy = dlogits,
                                                           .dbias = db}));
    }
    return 0;
}

int model_head(struct pf_model *model, struct live_saved *live, const struct pf_model_batch *batch,
               bool with_grad, float *token_loss)
{
    const int64_t chunk = model_loss_chunk(model->spec, &model->options),
                  v = model->spec->vocab_size;
    void *const logits = model->work.logits;

    PF_TRY(model_norm(model, model->final_norm, live->x_out, live->final_h, live->final_mean,
                      live->final_rstd));
    for (int64_t first = 0; first < model->n_tokens; first += chunk) {
        const int64_t left = model->n_tokens - first, n = left < chunk ? left : chunk;
        PF_TRY(model_logits_chunk(model, live->final_h, first, n, logits));
        PF_TRY(pf_op_cross_entropy(
            model->ops, model->dtype,
            &(struct pf_cross_entropy_args){.n_rows = n,
                                            .vocab = v,
                                            .ld = model_logits_stride(model->spec),
                                            .targets = batch->targets + first,
                                            .logits = logits,
                                            .loss = token_loss + first,
                                            .with_grad = with_grad,
                                            .grad_scale = batch->grad_scale}));
        if (with_grad) {
            PF_TRY(chunk_backward(model, live, first, n, logits));
        }
    }
    return 0;
}

int model_head_backward(struct pf_model *model, struct live_saved *live)
{
    return model_norm_backward(model, model->final_norm, live->x_out, live->final_mean,
                               live->final_rstd, live->dfinal_h, model->work.dx, false);
}
