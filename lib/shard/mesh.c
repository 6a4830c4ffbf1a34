/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/mesh.h>

#include <pf/error.h>

#include <stdint.h>

static const char *const axis_names[PF_AXIS_COUNT] = {
    [PF_AXIS_DP] = "dp", [PF_AXIS_SHARDING] = "sharding", [PF_AXIS_PP] = "pp", [PF_AXIS_CP] = "cp",
    [PF_AXIS_TP] = "tp",
};

static const enum pf_axis sharding_first[PF_AXIS_COUNT] = {
    PF_AXIS_DP, PF_AXIS_SHARDING, PF_AXIS_PP, PF_AXIS_CP, PF_AXIS_TP,
};

static const enum pf_axis pipeline_first[PF_AXIS_COUNT] = {
    PF_AXIS_DP, PF_AXIS_PP, PF_AXIS_SHARDING, PF_AXIS_CP, PF_AXIS_TP,
};

/* The axes from the outermost in. */
static const enum pf_axis *axis_order(const struct pf_mesh *mesh)
{
    return mesh->pp_first ? pipeline_first : sharding_first;
}

const char *pf_axis_name(enum pf_axis axis)
{
    return axis_names[axis];
}

/* Product of all degrees but dp's. It may exceed int: five factors of 2^31 do not fit int64 either,
 * so stop as soon as it is beyond any world. */
static int inner_product(const int degree[PF_AXIS_COUNT], int64_t *product_out)
{
    int64_t product = 1;

    for (int a = PF_AXIS_DP + 1; a < PF_AXIS_COUNT; a++) {
        if (degree[a] < 1) {
            return pf_fail(PF_EINVAL, "degree of '%s' is %d, must be at least 1", axis_names[a],
                           degree[a]);
        }
        if (product <= INT32_MAX) {
            product *= degree[a];
        }
    }
    *product_out = product;
    return 0;
}

static int fail_product(const int degree[PF_AXIS_COUNT], int world)
{
    return pf_fail(PF_EINVAL,
                   "dp %d * sharding %d * pp %d * cp %d * tp %d is not the number of ranks, %d",
                   degree[PF_AXIS_DP], degree[PF_AXIS_SHARDING], degree[PF_AXIS_PP],
                   degree[PF_AXIS_CP], degree[PF_AXIS_TP], world);
}

static int resolve_dp(const int degree[PF_AXIS_COUNT], int world, int *dp_out)
{
    int64_t inner = 1;

    PF_TRY(inner_product(degree, &inner));
    if (degree[PF_AXIS_DP] > 0) {
        if (inner > world || inner * degree[PF_AXIS_DP] != world) {
            return fail_product(degree, world);
        }
        *dp_out = degree[PF_AXIS_DP];
        return 0;
    }
    if (inner > world || world % inner != 0) {
        return pf_fail(
            PF_EINVAL,
            "sharding %d * pp %d * cp %d * tp %d does not divide the number of ranks, %d",
            degree[PF_AXIS_SHARDING], degree[PF_AXIS_PP], degree[PF_AXIS_CP], degree[PF_AXIS_TP],
            world);
    }
    *dp_out = (int)(world / inner);
    return 0;
}

int pf_mesh_init(struct pf_mesh *mesh_out, int world, const int degree[PF_AXIS_COUNT], int ep,
                 bool pp_first)
{
    struct pf_mesh mesh = {.ep = ep, .pp_first = pp_first};

    if (world < 1) {
        return pf_fail(PF_EINVAL, "a job has at least one rank, not %d", world);
    }
    for (int a = 0; a < PF_AXIS_COUNT; a++) {
        mesh.degree[a] = degree[a];
    }
    PF_TRY(resolve_dp(degree, world, &mesh.degree[PF_AXIS_DP]));
    const int plane = mesh.degree[PF_AXIS_SHARDING] * mesh.degree[PF_AXIS_TP];
    if (ep < 1 || plane % ep != 0) {
        return pf_fail(PF_EINVAL, "ep %d does not divide sharding %d * tp %d", ep,
                       mesh.degree[PF_AXIS_SHARDING], mesh.degree[PF_AXIS_TP]);
    }
    *mesh_out = mesh;
    return 0;
}

int pf_mesh_size(const struct pf_mesh *mesh)
{
    int size = 1;

    for (int a = 0; a < PF_AXIS_COUNT; a++) {
        size *= mesh->degree[a];
    }
    return size;
}

void pf_mesh_coords(const struct pf_mesh *mesh, int rank, int coord_out[PF_AXIS_COUNT])
{
    const enum pf_axis *const order = axis_order(mesh);

    for (int i = PF_AXIS_COUNT - 1; i >= 0; i--) {
        coord_out[order[i]] = rank % mesh->degree[order[i]];
        rank /= mesh->degree[order[i]];
    }
}

int pf_mesh_rank(const struct pf_mesh *mesh, const int coord[PF_AXIS_COUNT])
{
    const enum pf_axis *const order = axis_order(mesh);
    int rank = 0;

    for (int i = 0; i < PF_AXIS_COUNT; i++) {
        rank = rank * mesh->degree[order[i]] + coord[order[i]];
    }
    return rank;
}

void pf_mesh_expert_coords(const struct pf_mesh *mesh, const int coord[PF_AXIS_COUNT],
                           int expert_out[2])
{
    const int i = coord[PF_AXIS_SHARDING] * mesh->degree[PF_AXIS_TP] + coord[PF_AXIS_TP];

    expert_out[0] = i % mesh->ep;
    expert_out[1] = i / mesh->ep;
}

int pf_mesh_group(const struct pf_mesh *mesh, int rank, unsigned axes, int *ranks_out)
{
    const int size = pf_mesh_size(mesh);
    int mine[PF_AXIS_COUNT], other[PF_AXIS_COUNT], n = 0;

    pf_mesh_coords(mesh, rank, mine);
    for (int r = 0; r < size; r++) {
        bool same = true;
        pf_mesh_coords(mesh, r, other);
        for (int a = 0; a < PF_AXIS_COUNT; a++) {
            same = same && ((axes >> a & 1u) != 0 || mine[a] == other[a]);
        }
        if (same) {
            ranks_out[n++] = r;
        }
    }
    return n;
}
