/* SPDX-License-Identifier: Apache-2.0 */
/*
 * act.c - activations, elementwise. With s(x) = 1/(1+exp(-x)), N(x) = (1 + erf(x/sqrt 2))/2 and
 * t(x) = tanh(sqrt(2/pi) (x + 0.044715 x^3)):
 *
 *     SILU       x s            slope  s (1 + x (1 - s))
 *     GELU_ERF   x N            slope  N + x exp(-x^2/2) / sqrt(2 pi)
 *     GELU_TANH  x (1 + t)/2    slope  (1 + t)/2 + x (1 - t^2) sqrt(2/pi) (1 + 0.134145 x^2)/2
 *     RELU       max(x, 0)      slope  1 if x > 0, else 0
 *
 * Source: Hendrycks & Gimpel 2016; Elfwing et al. 2017 for SILU.
 */
#include "ref.h"

static const double sqrt_half = 0.70710678118654752440;      /* 1/sqrt(2) */
static const double sqrt_2_over_pi = 0.79788456080286535588; /* sqrt(2/pi) */
static const double inv_sqrt_2_pi = 0.39894228040143267794;  /* 1/sqrt(2 pi) */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu_tanh(double x)
{
    return tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x));
}

double ref_act(enum pf_act_kind act, double x)
{
    switch (act) {
    case PF_ACT_SILU:
        return x * sigmoid(x);
    case PF_ACT_GELU_TANH:
        return 0.5 * x * (1 + gelu_tanh(x));
    case PF_ACT_GELU_ERF:
        return 0.5 * x * (1 + erf(x * sqrt_half));
    default:
        return x > 0 ? x : 0;
    }
}

double ref_act_slope(enum pf_act_kind act, double x)
{
    const double s = sigmoid(x), t = gelu_tanh(x);

    switch (act) {
    case PF_ACT_SILU:
        return s * (1 + x * (1 - s));
    case PF_ACT_GELU_TANH:
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt_2_over_pi * (1 + 3 * 0.044715 * x * x);
    case PF_ACT_GELU_ERF:
        return 0.5 * (1 + erf(x * sqrt_half)) + x * exp(-0.5 * x * x) * inv_sqrt_2_pi;
    default:
        return x > 0 ? 1 : 0;
    }
}

static int act_fwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_act_fwd_args *a = args;

    (void)ctx;
    for (int64_t i = 0; i < a->n; i++) {
        ref_store(dtype, a->y, i, ref_act(a->act, ref_load(dtype, a->x, i)));
    }
    return 0;
}

static int act_bwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_act_bwd_args *a = args;

    (void)ctx;
    for (int64_t i = 0; i < a->n; i++) {
        const double slope = ref_act_slope(a->act, ref_load(dtype, a->x, i));
        ref_store(dtype, a->dx, i, ref_load(dtype, a->dy, i) * slope);
    }
    return 0;
}

REF_KERNEL(act_fwd);
REF_KERNEL(act_bwd);
