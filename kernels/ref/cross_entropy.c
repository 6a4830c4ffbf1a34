/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cross_entropy.c - softmax cross-entropy of rows of logits x with target t.
 *
 *     lse = log sum_j exp(x[j]),  loss = lse - x[t]
 *     dx[j] = (exp(x[j] - lse) - (j == t)) * grad_scale
 *
 * A row with target -1 has loss 0 and gradient 0.
 *
 * Source: the definition; the largest logit is taken out of the exponentials so that none overflows.
 */
#include "ref.h"

static double log_sum_exp(enum pf_dtype dtype, const void *x, int64_t at, int64_t n)
{
    double largest = -INFINITY, sum = 0;

    for (int64_t j = 0; j < n; j++) {
        largest = fmax(largest, ref_load(dtype, x, at + j));
    }
    for (int64_t j = 0; j < n; j++) {
        sum += exp(ref_load(dtype, x, at + j) - largest);
    }
    /* sum is at least 1, from the largest itself. */
    /* cppcheck-suppress invalidFunctionArg */
    return largest + log(sum);
}

static int cross_entropy(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_cross_entropy_args *c = args;

    (void)ctx;
    for (int64_t i = 0; i < c->n_rows; i++) {
        const int64_t at = i * c->ld, target = c->targets[i];
        const bool counts = target >= 0;
        const double lse = log_sum_exp(dtype, c->logits, at, c->vocab);
        c->loss[i] = counts ? (float)(lse - ref_load(dtype, c->logits, at + target)) : 0;
        for (int64_t j = 0; c->with_grad && j < c->vocab; j++) {
            const double softmax = exp(ref_load(dtype, c->logits, at + j) - lse);
            const double dx = (softmax - (j == target)) * (double)c->grad_scale;
            ref_store(dtype, c->logits, at + j, counts ? dx : 0);
        }
    }
    return 0;
}

REF_KERNEL(cross_entropy);
