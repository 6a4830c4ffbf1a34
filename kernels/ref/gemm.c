/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm.c - matrix product.
 *
 *     c[i,j] = sum_p op(a)[i,p] op(b)[p,j] + (bias[j] | old c[i,j] | 0)
 *
 * Source: the definition; names and transposes of BLAS level 3 (Dongarra et al. 1990), row-major.
 */
#include "ref.h"

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
            ref_store(g->c_dtype, g->c, i * g->ldc + j, sum);
        }
    }
    return 0;
}

REF_KERNEL(gemm);
