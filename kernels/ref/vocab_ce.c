/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vocab_ce.c - softmax cross-entropy of a vocabulary cut by columns: of columns x[j] here
 *
 *     forward:   m = max_j x[j],  s = sum_j exp(x[j] - m),  and x[t] if column t is here
 *     backward:  dx[j] = (exp(x[j] - M)/S - (j == t)) * grad_scale
 *
 * with M and S of the whole row.
 *
 * Source: Shoeybi et al. 2019, section 3.
 */
#include "ref.h"

static void forward_row(enum pf_dtype dtype, const struct pf_vocab_ce_fwd_args *a, int64_t i)
{
    const int64_t at = i * a->ld, target = a->targets[i] - a->first_vocab;
    float *const stats = a->stats + 3 * i;
    double largest = -INFINITY, sum = 0;

    for (int64_t j = 0; j < a->vocab; j++) {
        largest = fmax(largest, ref_load(dtype, a->logits, at + j));
    }
    for (int64_t j = 0; j < a->vocab; j++) {
        sum +=
            exp(ref_load(dtype, a->logits, at + j) - (isinf(largest) && largest < 0 ? 0 : largest));
    }
    const bool is_here = target >= 0 && target < a->vocab;
    stats[0] = (float)largest;
    stats[1] = (float)sum;
    stats[2] = is_here ? (float)ref_load(dtype, a->logits, at + target) : 0;
}

static int vocab_ce_fwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_vocab_ce_fwd_args *a = args;

    (void)ctx;
    for (int64_t i = 0; i < a->n_rows; i++) {
        if (a->targets[i] >= 0) {
            forward_row(dtype, a, i);
        } else {
            a->stats[3 * i] = a->stats[3 * i + 2] = 0;
            a->stats[3 * i + 1] = 1;
        }
    }
    return 0;
}

static int vocab_ce_bwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_vocab_ce_bwd_args *a = args;

    (void)ctx;
    for (int64_t i = 0; i < a->n_rows; i++) {
        const int64_t at = i * a->ld, target = a->targets[i] - a->first_vocab;
        const double m = (double)a->whole[2 * i], s = (double)a->whole[2 * i + 1];
        for (int64_t j = 0; j < a->vocab; j++) {
            const double softmax = exp(ref_load(dtype, a->logits, at + j) - m) / s;
            const double dx = (softmax - (j == target)) * (double)a->grad_scale;
            ref_store(dtype, a->logits, at + j, a->targets[i] >= 0 ? dx : 0);
        }
    }
    return 0;
}

REF_KERNEL(vocab_ce_fwd);
REF_KERNEL(vocab_ce_bwd);
