/* SPDX-License-Identifier: Apache-2.0 */
/* add.c - y = a + b, elementwise. Source: the definition. */
#include "ref.h"

static int add(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_add_args *a = args;

    (void)ctx;
    for (int64_t i = 0; i < a->n; i++) {
        ref_store(dtype, a->y, i, ref_load(dtype, a->a, i) + ref_load(dtype, a->b, i));
    }
    return 0;
}

REF_KERNEL(add);
