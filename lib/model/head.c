/* SPDX-License-Identifier: Apache-2.0 */
/* Final norm, language-model head and loss, in chunks of tokens; of a cut vocabulary each rank has its
 * columns of the logits. */
#include "model_internal.h"

#include <pf/error.h>

#include <string.h>

int model_logits_chunk(struct pf_model *model, const void *final_h, int64_t first, int64_t n,
                       void *logits)
{
    const int64_t h = model->spec->hidden;

    return pf_op_gemm(model->ops, model->dtype,
                      &(struct pf_gemm_args){.m = n,
                                             .n = model->dims.vocab,
                                             .k = h,
                                             .a = model_at(model, final_h, first * h),
                                             .lda = h,
                                             .b = model_param(model, model->head.w),
                                             .ldb = h,
                                             .trans_b = true,
                                             .c = logits,
                                             .ldc = model_logits_stride(&model->dims),
                                             .c_dtype = model->dtype,
                                             .bias = model_param(model, model->head.b)});
}

/* From dlogits [n,V here]: dfinal_h [n,H] overwritten with this rank's part, head gradients added. */
static int chunk_backward(struct pf_model *model, const void *final_h, void *dfinal_h,
                          int64_t first, int64_t n, const void *dlogits)
{
    const int64_t h = model->spec->hidden, v = model->dims.vocab,
                  stride = model_logits_stride(&model->dims);
    float *const dw = model_grad(model, model->head.w), *const db =
                                                            model_grad(model, model->head.b);

    PF_TRY(pf_op_gemm(model->ops, model->dtype,
                      &(struct pf_gemm_args){.m = n,
                                             .n = h,
                                             .k = v,
                                             .a = dlogits,
                                             .lda = stride,
                                             .b = model_param(model, model->head.w),
                                             .ldb = h,
                                             .c = model_at(model, dfinal_h, first * h),
                                             .ldc = h,
                                             .c_dtype = model->dtype}));
    if (dw) {
        PF_TRY(pf_op_gemm(model->ops, model->dtype,
                          &(struct pf_gemm_args){.m = v,
                                                 .n = h,
                                                 .k = n,
                                                 .a = dlogits,
                                                 .lda = stride,
                                                 .trans_a = true,
                                                 .b = model_at(model, final_h, first * h),
                                                 .ldb = h,
                                                 .c = dw,
                                                 .ldc = h,
                                                 .c_dtype = PF_DTYPE_F32,
                                                 .accumulate = true}));
    }
    if (db) {
        PF_TRY(pf_op_bias_grad(
            model->ops, model->dtype,
            &(struct pf_bias_grad_args){
                .n_rows = n, .width = v, .lddy = stride, .dy = dlogits, .dbias = db}));
    }
    return 0;
}

/* A loss on columns: the ranks exchange three numbers a token. */
static int cut_loss(struct pf_model *model, const struct pf_model_batch *batch, int64_t first,
                    int64_t n, bool with_grad, float *token_loss)
{
    const int32_t *const targets = batch->targets + first;
    float *const mine = model->work.stats, *const all = mine + 3 * n, *const whole = mine;

    PF_TRY(
        pf_op_vocab_ce_fwd(model->ops, model->dtype,
                           &(struct pf_vocab_ce_fwd_args){.n_rows = n,
                                                          .vocab = model->dims.vocab,
                                                          .ld = model_logits_stride(&model->dims),
                                                          .first_vocab = model->dims.first_vocab,
                                                          .n_vocab = model->spec->vocab_size,
                                                          .targets = targets,
                                                          .logits = model->work.logits,
                                                          .stats = mine}));
    PF_TRY(pf_comm_all_gather(model->options.tp, mine, all, (size_t)(3 * n) * sizeof *mine));
    pf_vocab_ce_combine(all, model->options.n_tp, n, targets, whole, token_loss + first);
    if (!with_grad) {
        return 0;
    }
    return pf_op_vocab_ce_bwd(
        model->ops, model->dtype,
        &(struct pf_vocab_ce_bwd_args){.n_rows = n,
                                       .vocab = model->dims.vocab,
                                       .ld = model_logits_stride(&model->dims),
                                       .first_vocab = model->dims.first_vocab,
                                       .n_vocab = model->spec->vocab_size,
                                       .targets = targets,
                                       .logits = model->work.logits,
                                       .whole = whole,
                                       .grad_scale = batch->grad_scale});
}

static int chunk_loss(struct pf_model *model, const struct pf_model_batch *batch, int64_t first,
                      int64_t n, bool with_grad, float *token_loss)
{
    if (model->options.n_tp > 1) {
        return cut_loss(model, batch, first, n, with_grad, token_loss);
    }
    return pf_op_cross_entropy(
        model->ops, model->dtype,
        &(struct pf_cross_entropy_args){.n_rows = n,
                                        .vocab = model->dims.vocab,
                                        .ld = model_logits_stride(&model->dims),
                                        .targets = batch->targets + first,
                                        .logits = model->work.logits,
                                        .loss = token_loss + first,
                                        .with_grad = with_grad,
                                        .grad_scale = batch->grad_scale});
}

int model_head(struct pf_model *model, struct live_saved *live, const struct pf_model_batch *batch,
               bool with_grad, float *token_loss)
{
    const int64_t chunk = model_loss_chunk(model->spec, &model->options);
    void *const dfinal_h = model_shares_rows(model) ? model->work.dh : live->dfinal_h;
    const size_t bytes = (size_t)(model->dims.n_rows * model->spec->hidden) * model->element;
    const void *final_h;
    void *sum;

    PF_TRY(model_norm(model, &model->final_norm, live->x_out, live->final_h, live->final_mean,
                      live->final_rstd));
    PF_TRY(model_share(model, live->final_h, &final_h));
    for (int64_t first = 0; first < model->n_tokens; first += chunk) {
        const int64_t left = model->n_tokens - first, n = left < chunk ? left : chunk;
        PF_TRY(model_logits_chunk(model, final_h, first, n, model->work.logits));
        PF_TRY(chunk_loss(model, batch, first, n, with_grad, token_loss));
        if (with_grad) {
            PF_TRY(chunk_backward(model, final_h, dfinal_h, first, n, model->work.logits));
        }
    }
    if (!with_grad) {
        return 0;
    }
    PF_TRY(model_sum(model, dfinal_h, &sum));
    if (sum != live->dfinal_h) {
        memcpy(live->dfinal_h, sum, bytes);
    }
    return 0;
}

int model_head_backward(struct pf_model *model, struct live_saved *live)
{
    return model_norm_backward(model, &model->final_norm, live->x_out, live->final_mean,
                               live->final_rstd, live->dfinal_h, model->work.dx, false);
}

/* Rows [n, V] as floats, from the columns that ranks have in work.logits. */
static int whole_rows(struct pf_model *model, int64_t n, float *logits)
{
    const int64_t v = model->spec->vocab_size, stride = model_logits_stride(&model->dims);
    const enum pf_dtype dtype = model->dtype;
    struct pf_comm *const tp = model->options.tp;

    for (int64_t i = 0; i < n; i++) {
        float *const row = logits + i * v;
        memset(row, 0, (size_t)v * sizeof *row);
        PF_TRY(pf_dtype_convert(dtype, model_at(model, model->work.logits, i * stride),
                                PF_DTYPE_F32, row + model->dims.first_vocab,
                                (size_t)model->dims.vocab));
    }
    /* Every column is one rank's: a sum with zeros. */
    return tp ? pf_comm_all_reduce(tp, logits, (size_t)(n * v), PF_COMM_F32, PF_COMM_SUM) : 0;
}

int pf_model_logits(struct pf_model *model, int live, float *logits)
{
    const int64_t chunk = model_loss_chunk(model->spec, &model->options),
                  v = model->spec->vocab_size;
    const void *final_h;

    PF_TRY(model_share(model, model->live[live].final_h, &final_h));
    for (int64_t first = 0; first < model->n_tokens; first += chunk) {
        const int64_t left = model->n_tokens - first, n = left < chunk ? left : chunk;
        PF_TRY(model_logits_chunk(model, final_h, first, n, model->work.logits));
        PF_TRY(whole_rows(model, n, logits + first * v));
    }
    return 0;
}

int pf_model_token_logits(struct pf_model *model, int live, int64_t token, float *logits)
{
    const void *final_h;

    PF_TRY(model_share(model, model->live[live].final_h, &final_h));
    PF_TRY(model_logits_chunk(model, final_h, token, 1, model->work.logits));
    return whole_rows(model, 1, logits);
}
