/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - where the rows of a tensor table lie in one rank's fused buffers, in elements from their
 * start.
 *
 * Parameters lie as pf/placement.h places weights that are not cut over the sharding axis: the tied
 * weight first, then the others in table order, frozen ones last, each from a multiple of
 * PF_LAYOUT_ALIGN elements; the gaps, and the padding of a cut vocabulary, stay zero. Gradients lie
 * at the same offsets. Behind them are the accumulators of tied rows.
 *
 *     struct pf_layout *layout;
 *     PF_TRY(pf_layout_new(place, rank, &layout));
 *     float *dw = grads + layout->grad_at[row];      if grad_at[row] >= 0
 *     pf_layout_free(layout);
 *
 * Local, plain values.
 */
#ifndef PF_LAYOUT_H
#define PF_LAYOUT_H

#include <pf/placement.h>

#include <stdint.h>

/*
 * A tied head uses its owner's storage. Where the rank has both uses its row has an accumulator of its
 * own, which is folded into the owner's before anything reads the sum; where the embedding is another
 * pipeline stage's it accumulates where the owner's gradient lies here, and the two stages add.
 */
struct pf_layout {
    int rank;
    int64_t n_rows;
    int64_t *param_at;      /* [n_rows]; -1: not on this rank */
    int64_t *grad_at;       /* [n_rows]; -1: frozen, or not on this rank */
    int64_t *count;         /* [n_rows] local elements without padding; 0: not on this rank */
    int64_t param_elements; /* whole buffer, padding included */
    int64_t grad_elements;
    int64_t grad_reduced_elements; /* the leading part that is reduced and stepped */
};

/* Lay out what `rank` of the placement's mesh holds. 0 or PF_ENOMEM. Free with pf_layout_free. */
int pf_layout_new(const struct pf_placement *place, int rank, struct pf_layout **layout_out);
void pf_layout_free(struct pf_layout *layout);

#endif
