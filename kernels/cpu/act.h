/* SPDX-License-Identifier: Apache-2.0 */
/*
 * act.h - activations and their slopes, a vector at a time: for act.c, and for gemm.c, which takes
 * them of a product's elements. Each lane depends on itself alone.
 */
#ifndef PF_CPU_ACT_H
#define PF_CPU_ACT_H

#include <pf/kernel.h>

#include "vec.h"

/* The derivatives are written so that both passes share their transcendental. */
struct act {
    vf y, dy;
};

V_INLINE struct act act_silu(vf x)
{
    const vf s = 1.0f / (v_exp(-x) + 1.0f);

    return (struct act){x * s, s * v_fma(x, 1.0f - s, v_set(1.0f))};
}

V_INLINE struct act act_gelu_tanh(vf x)
{
    const float k = 0.7978845608028654f, c = 0.044715f; /* sqrt(2/pi) */
    /* (1 + tanh u) / 2 is the logistic function of 2u */
    const vf z = x * x, u2 = 2.0f * k * x * v_fma(v_set(c), z, v_set(1.0f));
    const vf s = 1.0f / (v_exp(-u2) + 1.0f),
             du2 = 2.0f * k * v_fma(v_set(3.0f * c), z, v_set(1.0f));

    return (struct act){x * s, v_fma(x * s * (1.0f - s), du2, s)};
}

/*
 * The normal distribution below -|x| is exp(-x^2/2) t p(t) with a = |x|/sqrt(2), t = 1/(1 + 0.4 a),
 * where t p(t) fits exp(a^2) erfc(a) / 2 on [0,10] to 8e-9; its exponential serves the derivative too.
 */
V_INLINE struct act act_gelu_erf(vf x)
{
    const float r = 0.7071067811865476f, k = 0.3989422804014327f; /* 1/sqrt(2), 1/sqrt(2 pi) */
    const vf e = v_exp(-0.5f * x * x), t = 1.0f / v_fma(v_abs(x), v_set(0.4f * r), v_set(1.0f));
    vf p = v_set(-0x1.e4e0dap-7f);

    p = v_fma(p, t, v_set(0x1.9588bap-4f));
    p = v_fma(p, t, v_set(-0x1.fec94ep-3f));
    p = v_fma(p, t, v_set(0x1.184ap-2f));
    p = v_fma(p, t, v_set(-0x1.2331dcp-3f));
    p = v_fma(p, t, v_set(0x1.1698f4p-3f));
    p = v_fma(p, t, v_set(0x1.09953p-4f));
    p = v_fma(p, t, v_set(0x1.b8279p-4f));
    p = v_fma(p, t, v_set(0x1.ccb3a4p-4f));
    p = v_fma(p, t, v_set(0x1.ce3f6cp-4f));
    const vf below = e * t * p, share = v_select(v_lt(x, (vf){0}), below, 1.0f - below);
    return (struct act){x * share, v_fma(x, k * e, share)};
}

V_INLINE struct act act_relu(vf x)
{
    const vm positive = v_lt((vf){0}, x);

    return (struct act){v_select(v_lt(x, (vf){0}), (vf){0}, x),
                        v_select(positive, v_set(1.0f), (vf){0})};
}

/* kind is a constant after inlining. */
V_INLINE struct act act_any(const enum pf_act_kind kind, vf x)
{
    switch (kind) {
    case PF_ACT_SILU:
        return act_silu(x);
    case PF_ACT_GELU_TANH:
        return act_gelu_tanh(x);
    case PF_ACT_GELU_ERF:
        return act_gelu_erf(x);
    case PF_ACT_RELU:
    default:
        return act_relu(x);
    }
}

/* Expand `call(kind)` for the kind at hand. */
#define WITH_KIND(kind, call)                                                                      \
    switch (kind) {                                                                                \
    case PF_ACT_SILU:                                                                              \
        call(PF_ACT_SILU);                                                                         \
        break;                                                                                     \
    case PF_ACT_GELU_TANH:                                                                         \
        call(PF_ACT_GELU_TANH);                                                                    \
        break;                                                                                     \
    case PF_ACT_GELU_ERF:                                                                          \
        call(PF_ACT_GELU_ERF);                                                                     \
        break;                                                                                     \
    case PF_ACT_RELU:                                                                              \
    default:                                                                                       \
        call(PF_ACT_RELU);                                                                         \
        break;                                                                                     \
    }

#endif
