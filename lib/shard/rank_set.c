/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/placement.h>

#include "shard_internal.h"

int64_t pf_rank_set_count(const struct pf_mesh *mesh, const struct pf_rank_set *set)
{
    return (int64_t)mesh->degree[PF_AXIS_DP] * mesh->degree[PF_AXIS_CP] * set->n_stages *
           (set->plane_hi - set->plane_lo) * (set->slice_hi - set->slice_lo);
}

/* Turn a coordinate of the plane and one of the slices into those of sharding and tp. */
static void set_plane(const struct pf_mesh *mesh, const struct pf_rank_set *set, int plane,
                      int slice, int coord[PF_AXIS_COUNT])
{
    const int tp = mesh->degree[PF_AXIS_TP];

    if (set->experts) {
        const int i = slice * mesh->ep + plane;
        coord[PF_AXIS_SHARDING] = i / tp;
        coord[PF_AXIS_TP] = i % tp;
    } else {
        coord[PF_AXIS_SHARDING] = slice;
        coord[PF_AXIS_TP] = plane;
    }
}

/* The next digit of i in base n. */
static int digit(int64_t *i, int n)
{
    const int d = (int)(*i % n);

    *i /= n;
    return d;
}

int pf_rank_set_at(const struct pf_mesh *mesh, const struct pf_rank_set *set, int64_t i)
{
    int coord[PF_AXIS_COUNT];
    const int plane = set->plane_lo + digit(&i, set->plane_hi - set->plane_lo);

    coord[PF_AXIS_CP] = digit(&i, mesh->degree[PF_AXIS_CP]);
    const int slice = set->slice_lo + digit(&i, set->slice_hi - set->slice_lo);
    coord[PF_AXIS_PP] = set->stage[digit(&i, set->n_stages)];
    coord[PF_AXIS_DP] = (int)i;
    set_plane(mesh, set, plane, slice, coord);
    return pf_mesh_rank(mesh, coord);
}

bool pf_rank_set_has(const struct pf_mesh *mesh, const struct pf_rank_set *set, int rank)
{
    int coord[PF_AXIS_COUNT], at[2];

    pf_mesh_coords(mesh, rank, coord);
    at[0] = coord[PF_AXIS_TP];
    at[1] = coord[PF_AXIS_SHARDING];
    if (set->experts) {
        pf_mesh_expert_coords(mesh, coord, at);
    }
    return (coord[PF_AXIS_PP] == set->stage[0] ||
            (set->n_stages > 1 && coord[PF_AXIS_PP] == set->stage[1])) &&
           at[0] >= set->plane_lo && at[0] < set->plane_hi && at[1] >= set->slice_lo &&
           at[1] < set->slice_hi;
}
