/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_internal.h - who writes what in a save.
 *
 * Every rank describes its live pieces to every other, and from the same descriptions computes the
 * same plan: the logical checkpoint that will be (tensors, pieces, and the file of each), and which
 * pieces this rank writes. No rank moves a byte before all have agreed.
 */
#ifndef PLAN_INTERNAL_H
#define PLAN_INTERNAL_H

#include "ckpt_internal.h"

/* A piece that this rank writes. */
struct ckpt_part {
    int64_t tensor, piece; /* of plan->ckpt */
    int64_t live;          /* index into the caller's live state */
};

struct ckpt_plan {
    struct pf_ckpt *ckpt; /* files have names only, pieces no offset */
    struct ckpt_part *parts;
    int64_t n_parts;
    int *file_rank; /* which rank writes each file */
};

/* Collective over comm (NULL: alone); ranks agree on the outcome. Release also after a failure. */
int ckpt_plan_make(struct pf_comm *comm, const struct pf_ckpt_live *live, int64_t n_live,
                   struct ckpt_plan *plan_out);
void ckpt_plan_release(struct ckpt_plan *plan);

/* Rank, size and agreement where comm may be NULL. */
int ckpt_comm_rank(const struct pf_comm *comm);
int ckpt_comm_size(const struct pf_comm *comm);
int ckpt_agree(struct pf_comm *comm, int err);

/* What of its tensor a live piece holds; 0 0 has become the whole box. PF_EINVAL with a record if
 * the description contradicts itself. */
int ckpt_live_want(const struct pf_ckpt_live *live, struct ckpt_want *want_out);

#endif
