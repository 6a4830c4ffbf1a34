/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layernorm.c - layer normalisation of rows of n elements.
 *
 *     mean = sum(x)/n,  rstd = 1 / sqrt(sum((x - mean)^2)/n + eps),  h = (x - mean) * rstd
 *     y = h * w + b
 *
 * With a residual, x is round(x + residual), and sum is that. Backward, with g = dy * w:
 *
 *     dx = rstd * (g - mean(g) - h * mean(g * h)),  dw += sum dy * h,  db += sum dy
 *
 * Source: Ba, Kiros & Hinton 2016, equation 3; the variance is the biased one, as torch has it.
 */
#include "ref.h"

static int layernorm_fwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_layernorm_fwd_args *l = args;
    const double n = (double)l->width;
    const struct ref_rows rows =
        ref_norm_rows(dtype, l->n_rows, l->width, (struct ref_rows){l->x, l->ldx},
                      (struct ref_rows){l->residual, l->ldr}, l->sum, l->lds);

    (void)ctx;
    for (int64_t i = 0; i < l->n_rows; i++) {
        double mean = 0, variance = 0;
        for (int64_t j = 0; j < l->width; j++) {
            mean += ref_load(dtype, rows.x, i * rows.ld + j) / n;
        }
        for (int64_t j = 0; j < l->width; j++) {
            const double off = ref_load(dtype, rows.x, i * rows.ld + j) - mean;
            variance += off * off / n;
        }
        const double rstd = 1 / sqrt(variance + (double)l->eps);
        l->mean[i] = (float)mean;
        l->rstd[i] = (float)rstd;
        for (int64_t j = 0; j < l->width; j++) {
            const double h = (ref_load(dtype, rows.x, i * rows.ld + j) - mean) * rstd;
            const double bias = l->bias ? ref_load(dtype, l->bias, j) : 0;
            ref_store(dtype, l->y, i * l->ldy + j, h * ref_load(dtype, l->weight, j) + bias);
        }
    }
    return 0;
}

static double normalised(enum pf_dtype dtype, const struct pf_layernorm_bwd_args *l, int64_t i,
                         int64_t j)
{
    return (ref_load(dtype, l->x, i * l->ldx + j) - (double)l->mean[i]) * (double)l->rstd[i];
}

/* Before dx, which may be dy. */
static void layernorm_dparams(enum pf_dtype dtype, const struct pf_layernorm_bwd_args *l)
{
    for (int64_t j = 0; j < l->width; j++) {
        double dweight = 0, dbias = 0;
        for (int64_t i = 0; i < l->n_rows; i++) {
            const double dy = ref_load(dtype, l->dy, i * l->lddy + j);
            dweight += dy * normalised(dtype, l, i, j);
            dbias += dy;
        }
        if (l->dweight) {
            ref_accumulate(&l->dweight[j], dweight);
        }
        if (l->dbias) {
            ref_accumulate(&l->dbias[j], dbias);
        }
    }
}

static void layernorm_dx_row(enum pf_dtype dtype, const struct pf_layernorm_bwd_args *l, int64_t i)
{
    const double n = (double)l->width;
    double mean_g = 0, mean_gh = 0;

    for (int64_t j = 0; j < l->width; j++) {
        const double g = ref_load(dtype, l->dy, i * l->lddy + j) * ref_load(dtype, l->weight, j);
        mean_g += g / n;
        mean_gh += g * normalised(dtype, l, i, j) / n;
    }
    for (int64_t j = 0; j < l->width; j++) {
        const double g = ref_load(dtype, l->dy, i * l->lddy + j) * ref_load(dtype, l->weight, j);
        const double h = normalised(dtype, l, i, j);
        const double old = l->dx_accumulate ? ref_load(dtype, l->dx, i * l->lddx + j) : 0;
        ref_store(dtype, l->dx, i * l->lddx + j,
                  old + (double)l->rstd[i] * (g - mean_g - h * mean_gh));
    }
}

static int layernorm_bwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_layernorm_bwd_args *l = args;

    (void)ctx;
    layernorm_dparams(dtype, l);
    for (int64_t i = 0; i < l->n_rows; i++) {
        layernorm_dx_row(dtype, l, i);
    }
    return 0;
}

REF_KERNEL(layernorm_fwd);
REF_KERNEL(layernorm_bwd);
