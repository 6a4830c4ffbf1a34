/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_internal.h - who writes what.
 *
 * Every rank describes its live pieces to every other, and from the same descriptions computes the
 * same plan: the logical checkpoint that will be (tensors, pieces, and the file of each), and which
 * pieces this rank writes. No rank moves a byte before all have agreed. A change of layout makes the
 * same plan from the pieces that the ranks of another job would hold.
 */
#ifndef PLAN_INTERNAL_H
#define PLAN_INTERNAL_H

#include "ckpt_internal.h"

#include <pf/placement.h>

/* A piece that a rank holds, or each rank of a set. Pointers lead into what it was made from. */
struct ckpt_item {
    const char *name;
    enum pf_role role;
    enum pf_dtype dtype;
    int n_dims;
    const int64_t *shape;
    const struct pf_box *box;
    int64_t range_lo, range_hi;
    const struct pf_rank_set *set; /* NULL: `rank` alone */
    int rank;                      /* of a set: the lowest */
    int64_t live;                  /* index into that rank's live state */
};

/* Everybody's descriptions, one rank after the other. */
struct ckpt_gathered {
    uint8_t *bytes;
    size_t *n, *offset; /* by rank */
    size_t total;
};

struct ckpt_items {
    struct ckpt_item *all; /* by tensor, piece, rank, live; of one piece either one set or ranks */
    size_t n;
    const struct pf_mesh *mesh; /* of the sets */
    struct ckpt_gathered gathered;
};

/* Collective over comm (NULL: alone): what all ranks hold, sorted. Release also after a failure. */
int ckpt_items_gather(struct pf_comm *comm, const struct pf_ckpt_live *live, int64_t n_live,
                      struct ckpt_items *items_out);
void ckpt_items_sort(struct ckpt_items *items);
void ckpt_items_release(struct ckpt_items *items);

/* Of the order of tensors (role, name), and of pieces of one tensor (box, range). */
int ckpt_compare_tensor(const struct ckpt_item *x, const struct ckpt_item *y);
int ckpt_compare_piece(const struct ckpt_item *x, const struct ckpt_item *y);
bool ckpt_same_shape(const struct ckpt_item *x, const struct ckpt_item *y);

/* A piece to be written. */
struct ckpt_part {
    int64_t tensor, piece; /* of plan->ckpt */
    int64_t live;          /* index into the writer's live state */
};

struct ckpt_plan {
    struct pf_ckpt *ckpt;    /* files have names only, pieces no offset */
    struct ckpt_part *parts; /* of this rank, or of a range of ranks, in the order of tensors */
    int64_t n_parts;
    int *file_rank; /* which rank writes each file */
};

/* Collective over comm (NULL: alone); ranks agree on the outcome. Release also after a failure. */
int ckpt_plan_make(struct pf_comm *comm, const struct pf_ckpt_live *live, int64_t n_live,
                   struct ckpt_plan *plan_out);

/* The plan of sorted items of `size` ranks, with the parts of ranks first_rank up to end_rank. where:
 * for messages. PF_EINVAL if the pieces do not tile their tensors. Local, pure. Release also after a
 * failure. */
int ckpt_plan_of_items(const struct ckpt_items *items, int first_rank, int end_rank, int size,
                       const char *where, struct ckpt_plan *plan_out);

/* Write the parity of all files, which are in dir with their lengths in ckpt, and on rank 0 put it into
 * ckpt. Each rank does a share of it, reading the files of all. Collective over comm (NULL: alone); ranks
 * agree on the outcome. */
int ckpt_parity_write(struct pf_comm *comm, struct pf_ckpt *ckpt, const char *dir);

/* All pieces will be compressed. */
void ckpt_plan_compress(struct ckpt_plan *plan);
void ckpt_plan_release(struct ckpt_plan *plan);

/* Rank, size and agreement where comm may be NULL. */
int ckpt_comm_rank(const struct pf_comm *comm);
int ckpt_comm_size(const struct pf_comm *comm);
int ckpt_agree(struct pf_comm *comm, int err);

/* What of its tensor a live piece holds; 0 0 has become the whole box. PF_EINVAL with a record if
 * the description contradicts itself. */
int ckpt_live_want(const struct pf_ckpt_live *live, struct ckpt_want *want_out);

#endif
