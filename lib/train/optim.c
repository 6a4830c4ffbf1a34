/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of the gradient, and AdamW over the fused buffers. */
#include "train_internal.h"

#include <pf/error.h>

#include <math.h>

int train_grad_norm(struct pf_trainer *t, double scale, double *norm_out)
{
    struct pf_exactsum sum;

    PF_TRY(pf_grad_norm_sum(t->norm, &t->groups, t->grads, pf_ops_threads(t->ops), &sum));
    *norm_out = sqrt(pf_exactsum_round(&sum)) * scale;
    return 0;
}

int train_update(struct pf_trainer *t, double lr, double grad_scale)
{
    const struct pf_config *const c = t->config;
    const double step = (double)t->updates; /* this one counted, from 1 */
    const double bias1 = 1 - pow(c->adam_beta1, step), bias2 = 1 - pow(c->adam_beta2, step);

    for (int64_t i = 0; i < t->table->n_rows; i++) {
        const struct pf_tensor_row *const row = &t->table->rows[i];
        const int64_t p = t->layout->param_at[i], g = t->layout->grad_at[i];
        if (row->tied_to >= 0 || g < 0) {
            continue;
        }
        const double decay = row->no_decay ? 0 : c->weight_decay;
        const struct pf_adamw_args args = {.n = t->layout->count[i],
                                           .grad_scale = (float)grad_scale,
                                           .decay_factor = (float)(1 - lr * decay),
                                           .beta2 = (float)c->adam_beta2,
                                           .one_minus_beta1 = (float)(1 - c->adam_beta1),
                                           .one_minus_beta2 = (float)(1 - c->adam_beta2),
                                           .eps = (float)c->adam_epsilon,
                                           .step_size = (float)(lr / bias1),
                                           .inv_sqrt_bias2 = (float)(1 / sqrt(bias2)),
                                           .grad = t->grads + g,
                                           .param = t->master + p,
                                           .moment1 = t->moment1 + g,
                                           .moment2 = t->moment2 + g,
                                           .weight_out = t->narrow ? t->narrow + p : NULL};
        PF_TRY(pf_op_adamw(t->ops, c->dtype, &args));
    }
    return 0;
}
