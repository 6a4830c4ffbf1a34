/* SPDX-License-Identifier: Apache-2.0 */
/* act.c - activations and gated units, forward and backward; elementwise. */
#include "act.h"
#include "cpu.h"
#include "pair.h"

struct act_pair {
    struct pair y, dy;
};

V_INLINE struct act_pair act_both(const enum pf_act_kind kind, struct pair x)
{
    const struct act a = act_any(kind, x.a), b = act_any(kind, x.b);

    return (struct act_pair){{a.y, b.y}, {a.dy, b.dy}};
}

V_INLINE void fwd_at(const enum pf_act_kind kind, const elem *x, elem *y, bool stream, int64_t n)
{
    pair_put(y, act_both(kind, pair_load(x, n)).y, n, stream);
}

V_INLINE void bwd_at(const enum pf_act_kind kind, const elem *x, const elem *dy, elem *dx,
                     bool stream, int64_t n)
{
    pair_put(dx, pair_mul(pair_load(dy, n), act_both(kind, pair_load(x, n)).dy), n, stream);
}

static void act_fwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                         int64_t hi)
{
    const struct pf_act_fwd_args *a = args;
    const elem *x = a->x;
    elem *y = a->y;
    const bool stream = y != x && cpu_streams(ctx, y, 1, a->n, a->n);

    (void)part;
#define CALL(kind) P_LOOP(lo, hi, fwd_at(kind, x + i, y + i, stream, n))
    WITH_KIND(a->act, CALL)
#undef CALL
    e_fence();
}

int PF_CPU(act_fwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_act_fwd_args *a = args;

    cpu_run(ctx, a, a->n, PL, a->n, act_fwd_part);
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
#define CALL(kind) P_LOOP(lo, hi, bwd_at(kind, x + i, dy + i, dx + i, stream, n))
    WITH_KIND(a->act, CALL)
#undef CALL
    e_fence();
}

int PF_CPU(act_bwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_act_bwd_args *a = args;

    cpu_run(ctx, a, a->n, PL, a->n, act_bwd_part);
    return 0;
}

V_INLINE void glu_fwd_at(const enum pf_act_kind kind, const elem *gate, const elem *up, elem *y,
                         bool stream, int64_t n)
{
    pair_put(y, pair_mul(act_both(kind, pair_load(gate, n)).y, pair_load(up, n)), n, stream);
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
#define CALL(kind) P_LOOP(0, a->width, glu_fwd_at(kind, gate + i, up + i, y + i, stream, n))
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
    const struct act_pair act = act_both(kind, pair_load(gate, n));
    const struct pair u = pair_load(up, n), d = pair_load(dy, n);

    pair_put(dgate, pair_mul(pair_mul(d, u), act.dy), n, stream);
    pair_put(dup, pair_mul(d, act.y), n, stream);
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
    P_LOOP(0, a->width, glu_bwd_at(kind, gate + i, up + i, dy + i, dgate + i, dup + i, stream, n))
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
