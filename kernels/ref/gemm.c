/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm.c - matrix product.
 *
 *     c[i,j] = sum_p op(a)[i,p] op(b)[p,j] + (bias[j] | old c[i,j] | 0) + (residual[i,j] | 0)
 *
 * or, with activate, the activation of that once rounded, which goes to pre.
 *
 * Source: the definition; names and transposes of BLAS level 3 (Dongarra et al. 1990), row-major.
 */
#include "ref.h"

/* The sum is rounded by way of c, and stored. */
static double activated(enum pf_dtype dtype, const struct pf_gemm_args *g, int64_t i, int64_t j,
                        double sum)
{
    ref_store(dtype, g->c, i * g->ldc + j, sum);
    sum = ref_load(dtype, g->c, i * g->ldc + j);
    if (g->pre) {
        ref_store(dtype, g->pre, i * g->ldp + j, sum);
    }
    return ref_act(g->act, sum);
}

static int gemm(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_gemm_args *g = args;

    (void)ctx;
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0;
            for (int64_t p = 0; p < g->k; p++) {
                sum += ref_load(dtype, g->a, g->trans_a ? p * g->lda + i : i * g->lda + p) *
                       ref_load(dtype, g->b, g->trans_b ? j * g->ldb + p : p * g->ldb + j);
            }
            if (g->bias) {
                sum += ref_load(dtype, g->bias, j);
            }
            if (g->accumulate) {
                sum += ref_load(g->c_dtype, g->c, i * g->ldc + j);
            }
            if (g->residual) {
                sum += ref_load(dtype, g->residual, i * g->ldr + j);
            }
            if (g->activate) {
                sum = activated(dtype, g, i, j, sum);
            }
            ref_store(g->c_dtype, g->c, i * g->ldc + j, sum);
        }
    }
    return 0;
}

REF_KERNEL(gemm);
