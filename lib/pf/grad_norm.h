/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grad_norm.h - the sum of squares of a gradient that lies in parts and copies on many ranks.
 *
 * Which elements a rank counts is read off the placement, so that each element of each trained tensor
 * is counted exactly once over the world: a piece that several ranks hold (copies on dp and cp, rows
 * not cut over tp, shared key heads, experts, the tied weight on two stages) is shared out among its
 * holders, slices of the sharding axis are counted where they are, padding and frozen rows never.
 * Sums are exact (pf/exactsum.h), so layouts whose gradients are bit-equal have bit-equal norms.
 *
 *     struct pf_grad_norm *norm;
 *     PF_TRY(pf_grad_norm_new(place, PF_ROLE_WEIGHT, rank, false, &norm));    at start
 *     PF_TRY(pf_grad_norm_sum(norm, &groups, grads, n_threads, &sum));        in a step
 *     double l2 = sqrt(pf_exactsum_round(&sum));
 *     pf_grad_norm_free(norm);
 *
 * Copies must be bit-equal: call it after gradients are reduced and tied uses folded.
 * Source: the classes of PaddlePaddle's HybridParallelClipGrad (sharded, replicated, expert), here
 * the holders that the placement names.
 */
#ifndef PF_GRAD_NORM_H
#define PF_GRAD_NORM_H

#include <pf/exactsum.h>
#include <pf/groups.h>
#include <pf/placement.h>

#include <stdbool.h>
#include <stdint.h>

struct pf_grad_norm;

/*
 * Plan what a rank counts of a gradient buffer in which rows lie as the placement places `role`:
 * WEIGHT for whole gradients, MOMENT1 for those of the rank's slice. `split` (split_norm_comm): every
 * dp and cp coordinate counts all by itself, and the sum is taken over fewer ranks at a time, along tp,
 * sharding, then pp; otherwise all ranks share the counting, and one reduction goes over the world.
 * The sum is the same. The placement's table says which rows are frozen. Local; the placement is not
 * needed afterwards. 0 or PF_ENOMEM. Free with pf_grad_norm_free.
 */
int pf_grad_norm_new(const struct pf_placement *place, enum pf_role role, int rank, bool split,
                     struct pf_grad_norm **norm_out);
void pf_grad_norm_free(struct pf_grad_norm *norm);

/* Elements that the rank counts. */
int64_t pf_grad_norm_elements(const struct pf_grad_norm *norm);

/* The squares that the rank counts, of grads: [pf_placement_buffer of the role]. Local, allocates
 * nothing; its bits depend on neither the number of threads nor their order. */
void pf_grad_norm_local(const struct pf_grad_norm *norm, const float *grads, int n_threads,
                        struct pf_exactsum *sum_out);

/* The sum over all ranks, the same on each. Collective over the world of groups. */
int pf_grad_norm_sum(const struct pf_grad_norm *norm, const struct pf_groups *groups,
                     const float *grads, int n_threads, struct pf_exactsum *sum_out);

#endif
