/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups.h - every group of ranks that training uses, made from the mesh at start.
 *
 * All ranks make all groups, eagerly and in one fixed order, before the first of them is used: a group
 * made when it is first needed hangs where ranks need it in different orders. Groups that have the
 * same ranks are one communicator (its name is that of the first), and groups of one rank are the
 * `self` communicator of that rank, with nothing of MPI's behind it; so code uses g->tp and the like
 * without asking for degrees.
 *
 *     struct pf_groups groups;
 *     PF_TRY(pf_groups_new(world, &config->mesh, &groups));
 *     PF_TRY(pf_comm_all_reduce(groups.tp, y, n, PF_COMM_F32, PF_COMM_SUM));
 *     PF_TRY(pf_comm_send(groups.pp, x, bytes, groups.next_stage, tag));
 *
 * Communicators belong to the world, which keeps them to its end: making the groups of a mesh again
 * makes none and finds the same ones. So there is nothing to free here; forget the struct.
 *
 * Ranks of every group stand in the order of the world, and that of the axes of one dimension also in
 * the order of the coordinate: pf_comm_rank(g->tp) is the tp coordinate, pf_comm_rank(g->pp) the
 * pipeline stage, pf_comm_rank(g->ep) the ep coordinate.
 */
#ifndef PF_GROUPS_H
#define PF_GROUPS_H

#include <pf/comm.h>
#include <pf/mesh.h>

#include <stdint.h>

struct pf_groups {
    struct pf_comm *world;

    /* Along one axis: ranks that differ in this coordinate alone. Order of the mesh (pf/mesh.h). */
    struct pf_comm *dp, *sharding, *pp, *cp, *tp;
    /* Along an axis of the expert mesh, which re-cuts sharding x tp. Expert e of E is with ep
     * coordinate e * ep / E; ranks of expert_sharding hold the same experts. */
    struct pf_comm *ep, *expert_sharding;

    /* dp x sharding: ranks whose samples differ. Rank and size of the data loader. */
    struct pf_comm *data;
    /* dp x cp: ranks that hold the same of everything, slices of the sharding axis included. */
    struct pf_comm *replicas;
    /* dp x sharding x cp: over which a gradient that is no expert's is summed. */
    struct pf_comm *dense_grads;
    /* dp x cp x expert_sharding: over which an expert's gradient is summed. */
    struct pf_comm *expert_grads;
    /* dp x sharding x pp x cp: over which the loss of a step and its tokens are summed, and after
     * which every rank knows them. Only the last stage has any; other stages bring zero. */
    struct pf_comm *loss;
    /* pp x tp: ranks that together hold one model, where sharding is not counted. */
    struct pf_comm *model;
    /* sharding x pp x tp (and so ep x expert_sharding x pp): ranks that together hold one state of
     * the optimizer, each slice of it at least once: found-inf, and the norm of a gradient. */
    struct pf_comm *state;
    /* The first and the last stage (alone where pp is 1), which share a tied weight; NULL on the
     * stages between. */
    struct pf_comm *ends;

    int coord[PF_AXIS_COUNT];            /* of this rank, by enum pf_axis */
    int ep_coord, expert_sharding_coord; /* of this rank on the expert mesh */
    int stage, n_stages;                 /* = pp coordinate and degree */
    int next_stage, previous_stage;      /* ranks of pp, in a ring: of the last the first */
    uint64_t order_hash;                 /* of the groups, equal on all ranks */
};

/*
 * Make, or find, all groups of a mesh over the ranks of the world. Collective over the world, with
 * the same mesh; allocates where it makes something. The order in which groups were made is compared
 * over the ranks at the end.
 * Errors: PF_EINVAL if the mesh has another number of ranks than the world; PF_EDISAGREE, on every
 * rank, where the meshes or the order of groups differ; PF_ECOMM, PF_ETIMEOUT, PF_ENOMEM.
 */
int pf_groups_new(struct pf_comm *world, const struct pf_mesh *mesh, struct pf_groups *groups_out);

#endif
