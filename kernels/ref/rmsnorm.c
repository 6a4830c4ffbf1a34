/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rmsnorm.c - root mean square normalisation of rows of n elements.
 *
 *     rstd = 1 / sqrt(mean(x^2) + eps),  h = round(x * rstd),  y = h * w
 *
 * round is to the dtype of x, before the weight multiplies. With a residual, x is round(x + residual),
 * and sum is that. Backward, with g = dy * w:
 *
 *     dx = rstd * (g - x*rstd * mean(g * x*rstd)),  dw += sum over rows of dy * h
 *
 * Source: Zhang & Sennrich 2019, equation 4; the rounding is transformers' LlamaRMSNorm.
 */
#include "ref.h"

static int rmsnorm_fwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_rmsnorm_fwd_args *r = args;
    const int64_t n = r->width;
    const struct ref_rows rows =
        ref_norm_rows(dtype, r->n_rows, n, (struct ref_rows){r->x, r->ldx},
                      (struct ref_rows){r->residual, r->ldr}, r->sum, r->lds);

    (void)ctx;
    for (int64_t i = 0; i < r->n_rows; i++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) {
            const double x = ref_load(dtype, rows.x, i * rows.ld + j);
            sum += x * x;
        }
        const double rstd = 1 / sqrt(sum / (double)n + (double)r->eps);
        r->rstd[i] = (float)rstd;
        for (int64_t j = 0; j < n; j++) {
            const double h = ref_round(dtype, ref_load(dtype, rows.x, i * rows.ld + j) * rstd);
            ref_store(dtype, r->y, i * r->ldy + j, h * ref_load(dtype, r->weight, j));
        }
    }
    return 0;
}

/* Before dx, which may be dy. */
static void rmsnorm_dweight(enum pf_dtype dtype, const struct pf_rmsnorm_bwd_args *r)
{
    for (int64_t j = 0; j < r->width; j++) {
        double sum = 0;
        for (int64_t i = 0; i < r->n_rows; i++) {
            const double x = ref_load(dtype, r->x, i * r->ldx + j);
            sum +=
                ref_load(dtype, r->dy, i * r->lddy + j) * ref_round(dtype, x * (double)r->rstd[i]);
        }
        ref_accumulate(&r->dweight[j], sum);
    }
}

static void rmsnorm_dx_row(enum pf_dtype dtype, const struct pf_rmsnorm_bwd_args *r, int64_t i)
{
    const double rstd = (double)r->rstd[i];
    double mean = 0;

    for (int64_t j = 0; j < r->width; j++) {
        const double g = ref_load(dtype, r->dy, i * r->lddy + j) * ref_load(dtype, r->weight, j);
        mean += g * ref_load(dtype, r->x, i * r->ldx + j) * rstd;
    }
    mean /= (double)r->width;
    for (int64_t j = 0; j < r->width; j++) {
        const double g = ref_load(dtype, r->dy, i * r->lddy + j) * ref_load(dtype, r->weight, j);
        const double h = ref_load(dtype, r->x, i * r->ldx + j) * rstd;
        const double old = r->dx_accumulate ? ref_load(dtype, r->dx, i * r->lddx + j) : 0;
        ref_store(dtype, r->dx, i * r->lddx + j, old + rstd * (g - h * mean));
    }
}

static int rmsnorm_bwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_rmsnorm_bwd_args *r = args;

    (void)ctx;
    if (r->dweight) {
        rmsnorm_dweight(dtype, r);
    }
    for (int64_t i = 0; i < r->n_rows; i++) {
        rmsnorm_dx_row(dtype, r, i);
    }
    return 0;
}

REF_KERNEL(rmsnorm_fwd);
REF_KERNEL(rmsnorm_bwd);
