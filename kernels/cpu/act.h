/* SPDX-License-Identifier: Apache-2.0 */
/*
 * act.h - activations and their slopes, a vector at a time: for act.c, and for gemm.c, which takes
 * them of a product's elements. Each lane depends on itself alone. What they compute costs more than
 * what they move, so bf16, which rounds at 2^-9, has shorter formulas.
 */
#ifndef PF_CPU_ACT_H
#define PF_CPU_ACT_H

#include <pf/kernel.h>

#include "vec.h"

/* The derivatives are written so that both passes share their transcendental. */
struct act {
    vf y, dy;
};

#if defined(__AVX512F__)

#if defined(PF_ELEM_bf16)

/* 2^z to 3e-6 of itself: z's fraction in [0,1) through a polynomial that is 1 at 0. No limits are
 * needed: 0 and infinity come by themselves, NaN stays. */
V_INLINE vf act_exp2(vf z)
{
    const vf f = _mm512_reduce_ps(z, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = v_fma(v_set(0x1.b7f748p-7f), f, v_set(0x1.abf86p-5f));

    p = v_fma(p, f, v_set(0x1.ee2452p-3f));
    p = v_fma(p, f, v_set(0x1.62d6c6p-1f));
    return _mm512_scalef_ps(v_fma(p, f, v_set(1.0f)), z);
}

#else

V_INLINE vf act_exp2(vf z)
{
    return v_exp2(z);
}

#endif

/* The logistic function of u, of which z is -u / ln 2; 7e-5 (bf16) or 2e-7 of it off. An estimate of
 * the inverse, for bf16 as it is, costs a fraction of a division. */
V_INLINE vf logistic(vf z)
{
    const vf d = act_exp2(z) + 1.0f;
#if defined(PF_ELEM_bf16)
    return _mm512_rcp14_ps(d);
#else
    const vf bounded = v_min(v_set(0x1p126f), d), r = _mm512_rcp14_ps(bounded);
    return v_fma(r, v_fma(-bounded, r, v_set(1.0f)), r);
#endif
}

#define INV_LN2 1.4426950408889634f

V_INLINE struct act act_silu(vf x)
{
    const vf s = logistic(x * -INV_LN2), y = x * s;

    return (struct act){y, v_fma(y, 1.0f - s, s)};
}

V_INLINE struct act act_gelu_tanh(vf x)
{
    const float k2 = 2 * 0.7978845608028654f, c = 0.044715f; /* 2 sqrt(2/pi) */
    const vf q = x * x;
    /* (1 + tanh u) / 2 is the logistic function of 2u = k2 (x + c x^3) */
    const vf s = logistic(x * v_fma(v_set(-INV_LN2 * k2 * c), q, v_set(-INV_LN2 * k2))), y = x * s;

    return (struct act){y, v_fma(y * (1.0f - s), v_fma(v_set(3 * k2 * c), q, v_set(k2)), s)};
}

#else

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

#endif

#if defined(PF_ELEM_bf16) && defined(__AVX512F__)

/*
 * The normal distribution as the logistic function of x Q(x^2): Q fits log(P/(1-P)) / x on [-5,5] so
 * that P is right to 4e-4 of itself and the gelu's derivative to 2e-4. Beyond 5 P stays where it is,
 * 3e-7 from its end, and so does y below -5.
 */
V_INLINE struct act act_gelu_erf(vf x)
{
    static const float q[6] = {0x1.267b0ep+1f,   0x1.b5c084p-4f,  -0x1.bc8f86p-11f,
                               -0x1.49cb84p-15f, 0x1.13893ap-19f, -0x1.f28eb6p-26f};
    const float ln2 = 0.6931471805599453f;
    const vf above = v_max(v_set(-5.0f), x), at = v_min(v_set(5.0f), above), z = at * at;
    vf p = v_set(-q[5]), d = v_set(11 * ln2 * q[5]);

    for (int i = 4; i >= 0; i--) {
        p = v_fma(p, z, v_set(-q[i]));
        d = v_fma(d, z, v_set((float)(2 * i + 1) * ln2 * q[i]));
    }
    const vf s = logistic(at * p);
    return (struct act){above * s, v_fma(at * s * (1.0f - s), d, s)};
}

#else

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

#endif

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
