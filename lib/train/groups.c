/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/groups.h>

#include <pf/error.h>
#include <pf/mem.h>

#include <string.h>

#define DP (1u << PF_AXIS_DP)
#define SHARDING (1u << PF_AXIS_SHARDING)
#define PP (1u << PF_AXIS_PP)
#define CP (1u << PF_AXIS_CP)
#define TP (1u << PF_AXIS_TP)
#define EP (1u << PF_AXIS_COUNT)
#define EXPERT_SHARDING (1u << (PF_AXIS_COUNT + 1))

/*
 * All groups, in the order in which they are made: this table is that order. A group holds the ranks
 * that differ in its axes alone. No axis: every rank by itself, first, so that all groups of one
 * rank are found there.
 */
static const struct {
    const char *name;
    unsigned axes;
    size_t field; /* offset in struct pf_groups */
} kinds[] = {
    {"tp", TP, offsetof(struct pf_groups, tp)},
    {"cp", CP, offsetof(struct pf_groups, cp)},
    {"pp", PP, offsetof(struct pf_groups, pp)},
    {"sharding", SHARDING, offsetof(struct pf_groups, sharding)},
    {"dp", DP, offsetof(struct pf_groups, dp)},
    {"ep", EP, offsetof(struct pf_groups, ep)},
    {"expert_sharding", EXPERT_SHARDING, offsetof(struct pf_groups, expert_sharding)},
    {"data", DP | SHARDING, offsetof(struct pf_groups, data)},
    {"replicas", DP | CP, offsetof(struct pf_groups, replicas)},
    {"dense_grads", DP | SHARDING | CP, offsetof(struct pf_groups, dense_grads)},
    {"expert_grads", DP | CP | EXPERT_SHARDING, offsetof(struct pf_groups, expert_grads)},
    {"loss", DP | SHARDING | PP | CP, offsetof(struct pf_groups, loss)},
    {"model", PP | TP, offsetof(struct pf_groups, model)},
    {"state", SHARDING | PP | TP, offsetof(struct pf_groups, state)},
};

/* The lowest rank of the group of axes that `rank` is in, which names the group. */
static int lowest_of(const struct pf_mesh *mesh, int rank, unsigned axes)
{
    int coord[PF_AXIS_COUNT];

    pf_mesh_coords(mesh, rank, coord);
    for (int a = 0; a < PF_AXIS_COUNT; a++) {
        if (axes >> a & 1u) {
            coord[a] = 0;
        }
    }
    if (axes & (EP | EXPERT_SHARDING)) {
        int expert[2];
        pf_mesh_expert_coords(mesh, coord, expert);
        const int ep = axes & EP ? 0 : expert[0], slice = axes & EXPERT_SHARDING ? 0 : expert[1];
        const int i = slice * mesh->ep + ep, tp = mesh->degree[PF_AXIS_TP];
        coord[PF_AXIS_SHARDING] = i / tp;
        coord[PF_AXIS_TP] = i % tp;
    }
    return pf_mesh_rank(mesh, coord);
}

static int partition(struct pf_comm *world, const struct pf_mesh *mesh, const char *name,
                     unsigned axes, int *part, struct pf_comm **group_out)
{
    for (int r = 0; r < pf_comm_size(world); r++) {
        part[r] = lowest_of(mesh, r, axes);
    }
    return pf_comm_partition(world, part, name, group_out);
}

/* First and last stage; those between are in no such group. */
static int pair_ends(struct pf_comm *world, const struct pf_mesh *mesh, int *part,
                     struct pf_comm **group_out)
{
    for (int r = 0; r < pf_comm_size(world); r++) {
        int coord[PF_AXIS_COUNT];
        pf_mesh_coords(mesh, r, coord);
        const int stage = coord[PF_AXIS_PP];
        const bool is_end = stage == 0 || stage == mesh->degree[PF_AXIS_PP] - 1;
        part[r] = is_end ? lowest_of(mesh, r, PP) : -1;
    }
    return pf_comm_partition(world, part, "ends", group_out);
}

/* A list that is known is found without asking others, so ranks with different meshes must be told
 * before. */
static int check_same_mesh(struct pf_comm *world, const struct pf_mesh *mesh)
{
    int facts[PF_AXIS_COUNT + 2];

    memcpy(facts, mesh->degree, sizeof mesh->degree);
    facts[PF_AXIS_COUNT] = mesh->ep;
    facts[PF_AXIS_COUNT + 1] = mesh->pp_first;
    return pf_comm_same(world, facts, sizeof facts, "the mesh");
}

static int make_all(struct pf_comm *world, const struct pf_mesh *mesh, int *part,
                    struct pf_groups *g)
{
    struct pf_comm *alone;

    PF_TRY(check_same_mesh(world, mesh));
    PF_TRY(partition(world, mesh, "alone", 0, part, &alone));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct pf_comm *group;
        PF_TRY(partition(world, mesh, kinds[i].name, kinds[i].axes, part, &group));
        memcpy((char *)g + kinds[i].field, &group, sizeof(struct pf_comm *));
    }
    PF_TRY(pair_ends(world, mesh, part, &g->ends));
    g->order_hash = pf_comm_order_hash(world);
    return pf_comm_same(world, &g->order_hash, sizeof g->order_hash,
                        "the order in which groups were made");
}

static void set_coords(const struct pf_mesh *mesh, struct pf_groups *g)
{
    int expert[2];

    pf_mesh_coords(mesh, pf_comm_rank(g->world), g->coord);
    pf_mesh_expert_coords(mesh, g->coord, expert);
    g->ep_coord = expert[0];
    g->expert_sharding_coord = expert[1];
    g->stage = g->coord[PF_AXIS_PP];
    g->n_stages = mesh->degree[PF_AXIS_PP];
    g->next_stage = (g->stage + 1) % g->n_stages;
    g->previous_stage = (g->stage + g->n_stages - 1) % g->n_stages;
}

int pf_groups_new(struct pf_comm *world, const struct pf_mesh *mesh, struct pf_groups *groups_out)
{
    const int size = pf_comm_size(world);
    struct pf_groups g = {.world = world};

    if (pf_mesh_size(mesh) != size) {
        return pf_fail(PF_EINVAL, "a mesh of %d ranks in a job of %d", pf_mesh_size(mesh), size);
    }
    int *const part = pf_calloc_array((size_t)size, sizeof *part);
    int err = pf_comm_all_agree(world, part ? 0 : PF_ENOMEM, NULL);
    err = err ? err : make_all(world, mesh, part, &g);
    pf_free(part);
    PF_TRY(err);
    set_coords(mesh, &g);
    *groups_out = g;
    return 0;
}
