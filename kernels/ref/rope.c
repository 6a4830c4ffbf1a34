/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope.c - rotary position embedding: each pair (u, v) of elements turns by the angle of its
 * position,
 *
 *     u' = u cos - v sin,  v' = v cos + u sin
 *
 * and by minus that angle for the inverse, which is also the gradient, since a rotation's transpose
 * is its inverse (and a factor on cos and sin, as yarn has, stays a factor).
 *
 * Source: Su et al. 2021, equation 34; pairs_adjacent is the paper's order, the other GPT-NeoX's.
 */
#include "ref.h"

static void turn(enum pf_dtype dtype, void *x, int64_t u_at, int64_t v_at, double c, double s)
{
    const double u = ref_load(dtype, x, u_at), v = ref_load(dtype, x, v_at);

    ref_store(dtype, x, u_at, u * c - v * s);
    ref_store(dtype, x, v_at, v * c + u * s);
}

static int rope(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_rope_args *r = args;
    const int64_t stride = r->pairs_adjacent ? 2 : 1, apart = r->pairs_adjacent ? 1 : r->n_pairs;

    (void)ctx;
    for (int64_t t = 0; t < r->n_tokens; t++) {
        const int64_t angles = ref_position(r->positions, t, r->seq) * r->n_pairs;
        for (int64_t h = 0; h < r->n_heads; h++) {
            const int64_t head = t * r->ldx + h * r->head_dim + r->first;
            for (int64_t i = 0; i < r->n_pairs; i++) {
                const double c = (double)r->cos_table[angles + i];
                const double s = (double)r->sin_table[angles + i];
                turn(dtype, r->x, head + i * stride, head + i * stride + apart, c,
                     r->inverse ? -s : s);
            }
        }
    }
    return 0;
}

REF_KERNEL(rope);
