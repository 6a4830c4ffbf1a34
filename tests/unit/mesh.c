/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh: the arithmetic of degrees, the order of ranks, the groups of collectives. */
#include <pf/error.h>
#include <pf/mesh.h>

#include "tap.h"

#include <limits.h>
#include <string.h>

static struct pf_mesh mesh_of(int world, int dp, int sharding, int pp, int cp, int tp,
                              bool pp_first)
{
    struct pf_mesh mesh = {.ep = 0};

    ok(pf_mesh_init(&mesh, world, (int[]){dp, sharding, pp, cp, tp}, 1, pp_first) == 0,
       "%d ranks are dp %d sharding %d pp %d cp %d tp %d", world, dp, sharding, pp, cp, tp);
    return mesh;
}

static void degrees_are_checked(void)
{
    struct pf_mesh mesh = {.ep = 77};

    ok(pf_mesh_init(&mesh, 8, (int[]){2, 1, 1, 1, 3}, 1, false) == PF_EINVAL &&
           strcmp(pf_error_message(), "dp 2 * sharding 1 * pp 1 * cp 1 * tp 3 is not the number "
                                      "of ranks, 8") == 0,
       "a wrong product is refused with its arithmetic");
    ok(pf_mesh_init(&mesh, 8, (int[]){0, 1, 1, 1, 3}, 1, false) == PF_EINVAL &&
           strstr(pf_error_message(), "does not divide the number of ranks, 8"),
       "what does not divide the ranks leaves no dp");
    ok(pf_mesh_init(&mesh, 8, (int[]){8, 1, 0, 1, 1}, 1, false) == PF_EINVAL &&
           strstr(pf_error_message(), "'pp' is 0"),
       "only dp may be left open");
    ok(pf_mesh_init(&mesh, 1, (int[]){1, INT_MAX, INT_MAX, INT_MAX, INT_MAX}, 1, false) ==
           PF_EINVAL,
       "degrees that overflow are refused");
    ok(pf_mesh_init(&mesh, 0, (int[]){1, 1, 1, 1, 1}, 1, false) == PF_EINVAL,
       "a job without ranks is refused");
    ok(pf_mesh_init(&mesh, 4, (int[]){1, 2, 1, 1, 2}, 3, false) == PF_EINVAL &&
           strstr(pf_error_message(), "ep 3 does not divide sharding 2 * tp 2"),
       "ep must divide the plane that it re-cuts");
    ok(mesh.ep == 77, "a refused mesh is left alone");
    ok(pf_mesh_init(&mesh, 12, (int[]){0, 1, 2, 1, 3}, 3, false) == 0 &&
           mesh.degree[PF_AXIS_DP] == 2 && mesh.ep == 3,
       "dp is what is left of the ranks");
}

static void order_of_ranks(void)
{
    const struct pf_mesh mesh = mesh_of(48, 2, 2, 3, 2, 2, false);
    const struct pf_mesh swapped = mesh_of(48, 2, 2, 3, 2, 2, true);
    int at[PF_AXIS_COUNT], wrong = 0;

    for (int rank = 0; rank < 48; rank++) {
        pf_mesh_coords(&mesh, rank, at);
        wrong += pf_mesh_rank(&mesh, at) != rank;
        wrong += (((at[0] * 2 + at[1]) * 3 + at[2]) * 2 + at[3]) * 2 + at[4] != rank;
        pf_mesh_coords(&swapped, rank, at);
        wrong += pf_mesh_rank(&swapped, at) != rank;
        wrong += (((at[0] * 3 + at[2]) * 2 + at[1]) * 2 + at[3]) * 2 + at[4] != rank;
    }
    ok(wrong == 0, "ranks are dp, sharding, pp, cp, tp in row-major order, or pp before sharding");
    ok(pf_mesh_size(&mesh) == 48, "the size is the product");
    ok(strcmp(pf_axis_name(PF_AXIS_SHARDING), "sharding") == 0 &&
           strcmp(pf_axis_name(PF_AXIS_TP), "tp") == 0,
       "axes have names");
}

static void groups(void)
{
    const struct pf_mesh mesh = mesh_of(12, 3, 1, 2, 1, 2, false);
    int ranks[12];

    ok(pf_mesh_group(&mesh, 5, 1u << PF_AXIS_TP, ranks) == 2 && ranks[0] == 4 && ranks[1] == 5,
       "a tp group is neighbours");
    ok(pf_mesh_group(&mesh, 5, 1u << PF_AXIS_DP, ranks) == 3 && ranks[0] == 1 && ranks[1] == 5 &&
           ranks[2] == 9,
       "a dp group strides over the rest, in rank order");
    ok(pf_mesh_group(&mesh, 5, 0, ranks) == 1 && ranks[0] == 5, "no axis: the rank alone");
    ok(pf_mesh_group(&mesh, 5, (1u << PF_AXIS_COUNT) - 1, ranks) == 12 && ranks[11] == 11,
       "all axes: everybody");
    ok(pf_mesh_group(&mesh, 6, 1u << PF_AXIS_DP | 1u << PF_AXIS_TP, ranks) == 6 && ranks[0] == 2 &&
           ranks[1] == 3 && ranks[2] == 6 && ranks[5] == 11,
       "two axes together");
}

int main(void)
{
    degrees_are_checked();
    order_of_ranks();
    groups();
    return done();
}
