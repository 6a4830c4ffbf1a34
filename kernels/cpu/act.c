/* SPDX-License-Identifier: Apache-2.0 */
/* act.c - activations and gated units, forward and backward; elementwise. */
#include "cpu.h"

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

V_INLINE void fwd_at(const enum pf_act_kind kind, const elem *x, elem *y, bool stream, int64_t n)
{
    e_put_n(y, act_any(kind, e_load_n(x, n)).y, n, stream);
}

V_INLINE void bwd_at(const enum pf_act_kind kind, const elem *x, const elem *dy, elem *dx,
                     bool stream, int64_t n)
{
    e_put_n(dx, e_load_n(dy, n) * act_any(kind, e_load_n(x, n)).dy, n, stream);
}

static void act_fwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                         int64_t hi)
{
    const struct pf_act_fwd_args *a = args;
    const elem *x = a->x;
    elem *y = a->y;
    const bool stream = y != x && cpu_streams(ctx, y, 1, a->n, a->n);

    (void)part;
#define CALL(kind) V_LOOP(lo, hi, fwd_at(kind, x + i, y + i, stream, n))
    WITH_KIND(a->act, CALL)
#undef CALL
    e_fence();
}

int PF_CPU(act_fwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_act_fwd_args *a = args;

    cpu_run(ctx, a, a->n, VL, a->n, act_fwd_part);
    return 0;
}

static void act_bwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                         int64_t hi)
{
    const struct pf_act_bwd_args *a = args;
    const elem *x = a->x, *dy = a->dy;
    elem *dx = a->dx;
    const bool stream = dx != dy && dx != x && cpu_streams(ctx, dx, 1, a->n, a->n);

    (void)part;
#define CALL(kind) V_LOOP(lo, hi, bwd_at(kind, x + i, dy + i, dx + i, stream, n))
    WITH_KIND(a->act, CALL)
#undef CALL
    e_fence();
}

int PF_CPU(act_bwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_act_bwd_args *a = args;

    cpu_run(ctx, a, a->n, VL, a->n, act_bwd_part);
    return 0;
}

V_INLINE void glu_fwd_at(const enum pf_act_kind kind, const elem *gate, const elem *up, elem *y,
                         bool stream, int64_t n)
{
    e_put_n(y, act_any(kind, e_load_n(gate, n)).y * e_load_n(up, n), n, stream);
}

static void glu_fwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                         int64_t hi)
{
    const struct pf_glu_fwd_args *a = args;
    const bool stream =
        a->y != a->gate && a->y != a->up && cpu_streams(ctx, a->y, a->n_rows, a->width, a->ldy);

    (void)part;
    for (int64_t r = lo; r < hi; r++) {
        const elem *gate = (const elem *)a->gate + r * a->ldg;
        const elem *up = (const elem *)a->up + r * a->ldu;
        elem *y = (elem *)a->y + r * a->ldy;
#define CALL(kind) V_LOOP(0, a->width, glu_fwd_at(kind, gate + i, up + i, y + i, stream, n))
        WITH_KIND(a->act, CALL)
#undef CALL
    }
    e_fence();
}

int PF_CPU(glu_fwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_glu_fwd_args *a = args;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->width, glu_fwd_part);
    return 0;
}

/* Reads all before it writes: dgate may be gate, and dup may be up. */
V_INLINE void glu_bwd_at(const enum pf_act_kind kind, const elem *gate, const elem *up,
                         const elem *dy, elem *dgate, elem *dup, bool stream, int64_t n)
{
    const struct act act = act_any(kind, e_load_n(gate, n));
    const vf u = e_load_n(up, n), d = e_load_n(dy, n);

    e_put_n(dgate, d * u * act.dy, n, stream);
    e_put_n(dup, d * act.y, n, stream);
}

static void glu_bwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                         int64_t hi)
{
    const struct pf_glu_bwd_args *a = args;
    const bool stream = a->dgate != a->gate && a->dup != a->up &&
                        cpu_streams(ctx, a->dgate, a->n_rows, a->width, a->ldg) &&
                        cpu_streams(ctx, a->dup, a->n_rows, a->width, a->ldu);

    (void)part;
    for (int64_t r = lo; r < hi; r++) {
        const elem *gate = (const elem *)a->gate + r * a->ldg;
        const elem *up = (const elem *)a->up + r * a->ldu;
        const elem *dy = (const elem *)a->dy + r * a->lddy;
        elem *dgate = (elem *)a->dgate + r * a->ldg, *dup = (elem *)a->dup + r * a->ldu;
#define CALL(kind)                                                                                 \
    V_LOOP(0, a->width, glu_bwd_at(kind, gate + i, up + i, dy + i, dgate + i, dup + i, stream, n))
        WITH_KIND(a->act, CALL)
#undef CALL
    }
    e_fence();
}

int PF_CPU(glu_bwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_glu_bwd_args *a = args;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->width, glu_bwd_part);
    return 0;
}
