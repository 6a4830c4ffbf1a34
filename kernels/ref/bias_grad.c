/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bias_grad.c - the gradient of a bias that was added to every row: dbias[j] += sum_i dy[i,j].
 * Source: the definition.
 */
#include "ref.h"

static int bias_grad(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_bias_grad_args *b = args;

    (void)ctx;
    for (int64_t j = 0; j < b->width; j++) {
        double sum = 0;
        for (int64_t i = 0; i < b->n_rows; i++) {
            sum += ref_load(dtype, b->dy, i * b->lddy + j);
        }
        ref_accumulate(&b->dbias[j], sum);
    }
    return 0;
}

REF_KERNEL(bias_grad);
