/* SPDX-License-Identifier: Apache-2.0 */
/* comm_internal.h - what the files of lib/comm share. */
#ifndef COMM_INTERNAL_H
#define COMM_INTERNAL_H

#include <pf/comm.h>

#define COMM_DEFAULT_TIMEOUT_S 300.0

extern const struct pf_comm_ops pf_comm_ops_self;
extern const struct pf_comm_ops pf_comm_ops_mpi;

/*
 * Set up the base of an instance: name and rank list are copied, world is `world` or, if that is
 * NULL, the instance itself. Rank and size are this rank's in the group. PF_ENOMEM.
 */
int pf_comm_base_init(struct pf_comm *comm, const struct pf_comm_ops *ops, struct pf_comm *world,
                      const char *name, int rank, int size, const int *world_ranks);
void pf_comm_base_release(struct pf_comm *comm);

/* A group of one: the `self` backend inside any world. */
int pf_comm_self_new(struct pf_comm *world, const char *name, int world_rank,
                     struct pf_comm **comm_out);

#define MESSAGE_MAX_BYTES ((size_t)1 << 30) /* one message of a transport: MPI's count is an int */

/* How many of these a message of any length is, at least one. */
static inline size_t pf_comm_n_parts(size_t bytes)
{
    return bytes > 0 ? (bytes - 1) / MESSAGE_MAX_BYTES + 1 : 1;
}

/* split.c: the world's cache of groups; freeing it frees them, the latest first, and gives the first
 * error. NULL where memory is short. */
struct pf_comm_groups *pf_comm_groups_new(void);
int pf_comm_groups_free(struct pf_comm_groups *groups);

/* The current record is a fault that several ranks know; `speaks` on the one that is to print it.
 */
void pf_comm_shared_fault(bool speaks);

/*
 * dst[i] = src[0][i] op src[1][i] op ... in this order, for count elements. dst may be one of the
 * sources, otherwise they do not overlap. Each element depends on its own inputs alone.
 */
void pf_comm_reduce_ranks(void *dst, const void *const *src, int n, size_t count,
                          enum pf_comm_dtype dtype, enum pf_comm_op op);

/* Is there a meaning: BOR of a float has none. */
bool pf_comm_op_applies(enum pf_comm_dtype dtype, enum pf_comm_op op);

#endif
