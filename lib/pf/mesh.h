/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh.h - the ranks of a job as a grid of named axes.
 *
 * Order, outer to inner: dp, sharding, pp, cp, tp (PaddleFormers' sharding_first); pp_first swaps
 * sharding and pp. Rank = the row-major index of its coordinates. The expert mesh re-cuts the plane
 * of fixed (dp, pp, cp): with i = sharding*n_tp + tp, the ep coordinate is i mod ep, the
 * expert-sharding coordinate i div ep; n_tp * n_sharding = ep * expert_sharding.
 *
 * Plain values, nothing allocates, all functions local.
 */
#ifndef PF_MESH_H
#define PF_MESH_H

#include <stdbool.h>

enum pf_axis { PF_AXIS_DP, PF_AXIS_SHARDING, PF_AXIS_PP, PF_AXIS_CP, PF_AXIS_TP, PF_AXIS_COUNT };

struct pf_mesh {
    int degree[PF_AXIS_COUNT]; /* >= 1 each */
    int ep;                    /* >= 1, divides degree[SHARDING] * degree[TP] */
    bool pp_first;
};

/* Short name ("dp", "sharding", "pp", "cp", "tp"). */
const char *pf_axis_name(enum pf_axis axis);

/*
 * Make a mesh for world ranks. degree[a] <= 0 for dp means: derive it, world / (product of the
 * others). Fails with PF_EINVAL and the arithmetic when the product does not equal world, a degree
 * does not divide it, or ep does not divide sharding * tp. *mesh_out is set only on success.
 */
int pf_mesh_init(struct pf_mesh *mesh_out, int world, const int degree[PF_AXIS_COUNT], int ep,
                 bool pp_first);

/* Number of ranks. */
int pf_mesh_size(const struct pf_mesh *mesh);

/* Coordinates of a rank, indexed by enum pf_axis whatever the order; and back. */
void pf_mesh_coords(const struct pf_mesh *mesh, int rank, int coord_out[PF_AXIS_COUNT]);
int pf_mesh_rank(const struct pf_mesh *mesh, const int coord[PF_AXIS_COUNT]);

/* The coordinates of the expert mesh that belong to these: ep, then expert sharding. */
void pf_mesh_expert_coords(const struct pf_mesh *mesh, const int coord[PF_AXIS_COUNT],
                           int expert_out[2]);

/*
 * Ranks that differ from rank only in the axes of the set (bit 1u << axis), in rank order: the
 * group that a collective over these axes uses. ranks_out has room for pf_mesh_size. Returns how
 * many.
 */
int pf_mesh_group(const struct pf_mesh *mesh, int rank, unsigned axes, int *ranks_out);

#endif
