/* SPDX-License-Identifier: Apache-2.0 */
/* scale.c - x *= factor, elementwise. Source: the definition. */
#include "ref.h"

static int scale(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_scale_args *s = args;

    (void)ctx;
    for (int64_t i = 0; i < s->n; i++) {
        ref_store(dtype, s->x, i, ref_load(dtype, s->x, i) * (double)s->factor);
    }
    return 0;
}

REF_KERNEL(scale);
