/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 1 4 6 8 */
/*
 * The groups of a mesh, for every mesh that this number of ranks can be: who is in each, against the
 * coordinates; that equal groups are one; that they work; and SYSTEMS row 17, that making them again
 * makes nothing. PF_LONG=1 (scripts/check-long) goes through 10,000 cycles of the latter.
 */
#include <pf/comm.h>
#include <pf/error.h>
#include <pf/groups.h>
#include <pf/mem.h>

#include <stdlib.h>
#include <string.h>

#include "world.h"

static int size;

static bool fails(const struct pf_mesh *mesh, const char *what)
{
    pf_fail(PF_EDIFFER, "%s, mesh dp%d sharding%d pp%d cp%d tp%d ep%d%s", what,
            mesh->degree[PF_AXIS_DP], mesh->degree[PF_AXIS_SHARDING], mesh->degree[PF_AXIS_PP],
            mesh->degree[PF_AXIS_CP], mesh->degree[PF_AXIS_TP], mesh->ep,
            mesh->pp_first ? " pp_first" : "");
    return false;
}

/* Coordinates by the definition of pf/mesh.h, those of the expert mesh behind the others. */
enum { EP = PF_AXIS_COUNT, EXPERT_SHARDING, N_COORDS };
static void coords(const struct pf_mesh *mesh, int r, int out[N_COORDS])
{
    pf_mesh_coords(mesh, r, out);
    const int i = out[PF_AXIS_SHARDING] * mesh->degree[PF_AXIS_TP] + out[PF_AXIS_TP];
    out[EP] = i % mesh->ep;
    out[EXPERT_SHARDING] = i / mesh->ep;
}

#define MAX_RANKS 8

/* Has the group exactly the ranks that agree with this one in all coordinates of `fixed`, in order? */
static bool is_group(const struct pf_mesh *mesh, const struct pf_comm *group, const char *fixed)
{
    static const char letters[] = "dspctex"; /* dp sharding pp cp tp ep expert_sharding */
    int mine[N_COORDS], theirs[N_COORDS], n = 0;

    coords(mesh, rank, mine);
    for (int r = 0; r < size; r++) {
        bool same = true;
        coords(mesh, r, theirs);
        for (const char *c = fixed; *c; c++) {
            const int a = (int)(strchr(letters, *c) - letters);
            same = same && mine[a] == theirs[a];
        }
        if (same && (n >= group->size || group->world_ranks[n] != r)) {
            return false;
        }
        n += same;
    }
    return n == group->size && group->world_ranks[group->rank] == rank;
}

static bool right_ends(const struct pf_mesh *mesh, const struct pf_groups *g)
{
    const int pp = mesh->degree[PF_AXIS_PP];

    if (g->stage > 0 && g->stage < pp - 1) {
        return !g->ends;
    }
    return g->ends && g->ends->size == (pp > 1 ? 2 : 1) &&
           g->ends->world_ranks[0] == g->pp->world_ranks[0] &&
           g->ends->world_ranks[g->ends->size - 1] == g->pp->world_ranks[pp - 1];
}

static bool right_groups(const struct pf_mesh *mesh, const struct pf_groups *g)
{
    const struct {
        const char *name, *fixed;
        const struct pf_comm *group;
    } all[] = {
        {"dp", "spct", g->dp},
        {"sharding", "dpct", g->sharding},
        {"pp", "dsct", g->pp},
        {"cp", "dspt", g->cp},
        {"tp", "dspc", g->tp},
        {"ep", "dpcx", g->ep},
        {"expert_sharding", "dpce", g->expert_sharding},
        {"data", "pct", g->data},
        {"replicas", "spt", g->replicas},
        {"dense_grads", "pt", g->dense_grads},
        {"expert_grads", "pe", g->expert_grads},
        {"loss", "t", g->loss},
        {"model", "dsc", g->model},
        {"state", "dc", g->state},
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!is_group(mesh, all[i].group, all[i].fixed)) {
            return fails(mesh, all[i].name);
        }
    }
    return right_ends(mesh, g) || fails(mesh, "ends");
}

static bool right_coords(const struct pf_mesh *mesh, const struct pf_groups *g)
{
    int mine[N_COORDS];

    coords(mesh, rank, mine);
    return (memcmp(g->coord, mine, sizeof g->coord) == 0 && g->ep_coord == mine[EP] &&
            g->expert_sharding_coord == mine[EXPERT_SHARDING] &&
            pf_comm_rank(g->tp) == mine[PF_AXIS_TP] && pf_comm_rank(g->pp) == mine[PF_AXIS_PP] &&
            pf_comm_rank(g->ep) == mine[EP] && g->stage == mine[PF_AXIS_PP] &&
            g->next_stage == (g->stage + 1) % g->n_stages &&
            (g->previous_stage + 1) % g->n_stages == g->stage) ||
           fails(mesh, "coordinates");
}

/* Groups of equal lists are one communicator, and those of one rank need no MPI. */
static bool are_shared(const struct pf_groups *g)
{
    struct pf_comm *const all[] = {g->dp,       g->sharding,    g->pp,           g->cp,
                                   g->tp,       g->ep,          g->data,         g->expert_sharding,
                                   g->replicas, g->dense_grads, g->expert_grads, g->loss,
                                   g->model,    g->state};
    const size_t n = sizeof all / sizeof all[0];

    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            const bool same =
                all[i]->size == all[j]->size && memcmp(all[i]->world_ranks, all[j]->world_ranks,
                                                       (size_t)all[i]->size * sizeof(int)) == 0;
            if (same != (all[i] == all[j])) {
                return false;
            }
        }
        if (all[i]->size == 1 && strcmp(pf_comm_backend(all[i]), "self") != 0) {
            return false;
        }
    }
    return true;
}

/* The sum of the world ranks over the group. */
static bool works(struct pf_comm *group)
{
    int64_t sum = rank, want = 0;

    for (int i = 0; i < group->size; i++) {
        want += group->world_ranks[i];
    }
    return pf_comm_all_reduce(group, &sum, 1, PF_COMM_I64, PF_COMM_SUM) == 0 && sum == want;
}

static bool all_work(const struct pf_groups *g)
{
    return works(g->tp) && works(g->cp) && works(g->pp) && works(g->sharding) && works(g->dp) &&
           works(g->ep) && works(g->expert_sharding) && works(g->data) && works(g->replicas) &&
           works(g->dense_grads) && works(g->expert_grads) && works(g->loss) && works(g->model) &&
           works(g->state) && (!g->ends || works(g->ends));
}

/* Every mesh of this many ranks; a rank that failed goes on, so that the others need not wait. */
static void for_each_mesh(bool (*check)(const struct pf_mesh *mesh), bool *holds_out)
{
    *holds_out = true;
    for (int code = 0; code < 4096; code++) {
        int degree[PF_AXIS_COUNT];
        for (int a = 0; a < PF_AXIS_COUNT - 1; a++) {
            degree[a + 1] = 1 + (code >> (3 * a) & 7);
        }
        degree[PF_AXIS_DP] = 0;
        const int plane = degree[PF_AXIS_SHARDING] * degree[PF_AXIS_TP];
        for (int ep = 1; ep <= plane; ep++) {
            struct pf_mesh mesh;
            if (pf_mesh_init(&mesh, size, degree, ep, false) != 0) {
                continue;
            }
            *holds_out = check(&mesh) && *holds_out;
            if (degree[PF_AXIS_PP] > 1 && degree[PF_AXIS_SHARDING] > 1) {
                mesh.pp_first = true;
                *holds_out = check(&mesh) && *holds_out;
            }
        }
    }
}

static bool check_mesh(const struct pf_mesh *mesh)
{
    struct pf_groups g;

    if (pf_groups_new(world, mesh, &g) != 0) {
        return false;
    }
    const bool holds = right_groups(mesh, &g) && right_coords(mesh, &g) &&
                       (are_shared(&g) || fails(mesh, "sharing"));
    return (all_work(&g) || fails(mesh, "a sum")) && holds;
}

static bool new_mesh_makes_nothing(const struct pf_mesh *mesh)
{
    const int count = pf_comm_count(world);
    const uint64_t hash = pf_comm_order_hash(world);
    struct pf_groups g;

    return pf_groups_new(world, mesh, &g) == 0 && pf_comm_count(world) == count &&
           pf_comm_order_hash(world) == hash && g.order_hash == hash;
}

static void r17_groups_of_every_mesh(void)
{
    bool holds;

    for_each_mesh(check_mesh, &holds);
    all_ok(holds, "r17_groups_of_every_mesh: the ranks that the axes say, shared where equal");
    for_each_mesh(new_mesh_makes_nothing, &holds);
    all_ok(holds, "the groups of a mesh that was there before are found again");
}

/* Create, use, forget. */
static void r17_cycles_of_groups_keep_their_number(void)
{
    const int n_cycles = getenv("PF_LONG") ? 10000 : 300;
    const int degree[PF_AXIS_COUNT] = {[PF_AXIS_DP] = size % 2 == 0 ? size / 2 : size,
                                       [PF_AXIS_SHARDING] = 1,
                                       [PF_AXIS_PP] = 1,
                                       [PF_AXIS_CP] = 1,
                                       [PF_AXIS_TP] = size % 2 == 0 ? 2 : 1};
    struct pf_mesh mesh;
    struct pf_groups first, g;

    bool holds = pf_mesh_init(&mesh, size, degree, 1, false) == 0 &&
                 pf_groups_new(world, &mesh, &first) == 0;
    const int count = pf_comm_count(world);
    const int64_t allocs = pf_mem_n_allocs();
    for (int i = 0; i < n_cycles && holds; i++) {
        holds = pf_groups_new(world, &mesh, &g) == 0 && memcmp(&g, &first, sizeof g) == 0 &&
                works(g.tp) && works(g.dp) && works(g.model);
    }
    /* What a cycle allocates is one list, freed again. */
    holds = holds && pf_comm_count(world) == count && pf_mem_n_allocs() == allocs + n_cycles;
    all_ok(holds, "r17_cycles_of_groups_keep_their_number of communicators");
}

static void another_number_of_ranks_is_refused(void)
{
    const int degree[PF_AXIS_COUNT] = {size + 1, 1, 1, 1, 1};
    struct pf_mesh mesh;
    struct pf_groups g;
    const bool holds = pf_mesh_init(&mesh, size + 1, degree, 1, false) == 0 &&
                       pf_groups_new(world, &mesh, &g) == PF_EINVAL;

    all_ok(holds, "a mesh of another number of ranks is refused");
}

/* Before any group is made, on every rank. */
static void differences_are_found(void)
{
    const int degree[PF_AXIS_COUNT] = {size, 1, 1, 1, 1}, other[PF_AXIS_COUNT] = {1, size, 1, 1, 1};
    struct pf_comm *group;
    struct pf_groups g;
    struct pf_mesh mesh;
    int part[MAX_RANKS];

    if (size < 4) {
        return;
    }
    const int count = pf_comm_count(world);
    bool holds = pf_mesh_init(&mesh, size, rank == 2 ? other : degree, 1, false) == 0 &&
                 pf_groups_new(world, &mesh, &g) == PF_EDISAGREE;
    all_ok(holds && strcmp(pf_error_message(), "the mesh differs between rank 0 and rank 2") == 0,
           "ranks with different meshes are told");
    for (int r = 0; r < size; r++) {
        const bool in = r == 0 || r == size - 1 || r == (rank == 2 ? 2 : 1); /* in no mesh */
        part[r] = in ? 0 : -1;
    }
    const int err = pf_comm_partition(world, part, "some", &group);
    all_ok(err == PF_EDISAGREE && strstr(pf_error_message(), "'some'") &&
               pf_comm_count(world) == count,
           "ranks that cut a communicator differently are told the group's name");
}

static void partitions(void)
{
    struct pf_comm *group = NULL, *again = NULL, *whole = NULL;
    int part[MAX_RANKS], list[MAX_RANKS];

    for (int r = 0; r < size; r++) {
        part[r] = r == 0 ? -1 : size - 1;
        list[r] = r + 1;
    }
    bool holds =
        pf_comm_partition(world, part, "but one", &group) == 0 && (group != NULL) == (rank > 0);
    holds = holds && (!group || (group->size == size - 1 && works(group)));
    holds = holds && (size == 1 || (pf_comm_split(world, list, size - 1, "split", &again) == 0 &&
                                    again == group));
    part[size - 1] = size;
    holds = holds && pf_comm_partition(world, part, "beyond", &whole) == PF_EINVAL && !whole;
    all_ok(holds, "a partition leaves ranks out, and shares lists with pf_comm_split");
}

int main(int argc, char **argv)
{
    world_begin(argc, argv);
    size = pf_comm_size(world);
    partitions();
    r17_groups_of_every_mesh();
    r17_cycles_of_groups_keep_their_number();
    another_number_of_ranks_is_refused();
    differences_are_found();
    return world_end();
}
