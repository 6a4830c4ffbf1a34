/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glu.c - gated linear units.
 *
 *     y = act(gate) * up;   dgate = dy * up * act'(gate),  dup = dy * act(gate)
 *
 * Source: Shazeer 2020, equation 5 (SwiGLU is act = SILU, GEGLU is GELU).
 */
#include "ref.h"

static int glu_fwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_glu_fwd_args *g = args;

    (void)ctx;
    for (int64_t i = 0; i < g->n_rows; i++) {
        for (int64_t j = 0; j < g->width; j++) {
            const double gate = ref_load(dtype, g->gate, i * g->ldg + j);
            const double up = ref_load(dtype, g->up, i * g->ldu + j);
            ref_store(dtype, g->y, i * g->ldy + j, ref_act(g->act, gate) * up);
        }
    }
    return 0;
}

static int glu_bwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_glu_bwd_args *g = args;

    (void)ctx;
    for (int64_t i = 0; i < g->n_rows; i++) {
        for (int64_t j = 0; j < g->width; j++) {
            const double gate = ref_load(dtype, g->gate, i * g->ldg + j);
            const double up = ref_load(dtype, g->up, i * g->ldu + j);
            const double dy = ref_load(dtype, g->dy, i * g->lddy + j);
            ref_store(dtype, g->dgate, i * g->ldg + j, dy * up * ref_act_slope(g->act, gate));
            ref_store(dtype, g->dup, i * g->ldu + j, dy * ref_act(g->act, gate));
        }
    }
    return 0;
}

REF_KERNEL(glu_fwd);
REF_KERNEL(glu_bwd);
