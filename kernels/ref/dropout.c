/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dropout.c - inverted dropout: y[i] = x[i]/(1-p) where element first+i of the key's mask is kept,
 * else 0. The mask is a pure function of key and index (pf/rng.h), so it needs no storage and no
 * layout changes it.
 * Source: Srivastava et al. 2014; scaling in training as in torch.nn.Dropout.
 */
#include "ref.h"

#include <pf/rng.h>

static int dropout(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_dropout_args *d = args;

    (void)ctx;
    for (int64_t i = 0; i < d->n; i++) {
        const bool keep = pf_dropout_keep(d->key, d->first + (uint64_t)i, d->p);
        const double x = ref_load(dtype, d->x, i);
        ref_store(dtype, d->y, i, keep ? x / (1 - (double)d->p) : 0);
    }
    return 0;
}

REF_KERNEL(dropout);
