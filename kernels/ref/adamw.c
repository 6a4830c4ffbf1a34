/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adamw.c - one step of AdamW; pf/kernel.h has the formula. What is stored (param, moment1,
 * moment2) is rounded once, and the stored moments are what the step uses.
 *
 * Source: Loshchilov & Hutter 2019, algorithm 2, in the order of torch.optim.AdamW: decay first,
 * eps added after the bias correction of the second moment.
 */
#include "ref.h"

static int adamw(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_adamw_args *a = args;

    (void)ctx;
    for (int64_t i = 0; i < a->n; i++) {
        const double g = (double)a->grad[i] * (double)a->grad_scale;
        const double m = (double)a->moment1[i], v = (double)a->moment2[i];
        a->moment1[i] = (float)(m + (double)a->one_minus_beta1 * (g - m));
        a->moment2[i] = (float)((double)a->beta2 * v + (double)a->one_minus_beta2 * g * g);
        const double root = sqrt((double)a->moment2[i]) * (double)a->inv_sqrt_bias2;
        const double step = (double)a->step_size * (double)a->moment1[i] / (root + (double)a->eps);
        a->param[i] = (float)((double)a->param[i] * (double)a->decay_factor - step);
        if (a->weight_out) {
            ref_store(dtype, a->weight_out, i, (double)a->param[i]);
        }
    }
    return 0;
}

REF_KERNEL(adamw);
