/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that are begun now and waited for later. */
#include "mpi_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

void pf_mpi_flights_init(struct job *job)
{
    for (int i = 0; i < PF_COMM_MAX_IN_FLIGHT; i++) {
        job->flights[i].next = i + 1 < PF_COMM_MAX_IN_FLIGHT ? i + 1 : -1;
    }
    job->free_flight = 0;
}

/* Begin one part; the front end has seen that a slot is free. */
static int begin_part(struct mpi *c, enum pf_comm_kind kind, void *buf, size_t bytes, int peer,
                      int tag, int *slot_out)
{
    struct job *const job = c->job;
    const int slot = job->free_flight;
    struct flight *const f = &job->flights[slot];
    int count;

    PF_TRY(pf_to_int((int64_t)bytes, &count));
    if (kind == PF_COMM_SEND) {
        PF_MPI(c, MPI_Isend(buf, count, MPI_BYTE, peer, tag, c->comm, &f->request));
    } else {
        PF_MPI(c, MPI_Irecv(buf, count, MPI_BYTE, peer, tag, c->comm, &f->request));
    }
    job->free_flight = f->next;
    c->base.world->n_in_flight++;
    f->info = (struct request_info){c->base.world_ranks[peer], kind == PF_COMM_SEND ? -1 : count};
    f->kind = (int32_t)kind;
    f->peer = peer;
    f->tag = tag;
    f->next = -1;
    *slot_out = slot;
    return 0;
}

/* The parts of a message hang together in the order in which they were begun. */
static int begin_message(struct mpi *c, enum pf_comm_kind kind, void *buf, size_t bytes, int peer,
                         int tag, int *slot_out)
{
    int first = -1, last = -1;

    if (c->base.world->broken) {
        return pf_fail(PF_ECOMM, "%s in group '%s' after a failed exchange",
                       pf_comm_kind_name(kind), c->base.name);
    }
    for (size_t i = 0, n = pf_comm_n_parts(bytes); i < n; i++) {
        const size_t at = i * MESSAGE_MAX_BYTES, left = bytes - at;
        int slot = -1;
        PF_TRY(begin_part(c, kind, bytes > 0 ? (char *)buf + at : NULL,
                          left < MESSAGE_MAX_BYTES ? left : MESSAGE_MAX_BYTES, peer, tag, &slot));
        if (first < 0) {
            first = slot;
        } else {
            c->job->flights[last].next = slot;
        }
        last = slot;
    }
    *slot_out = first;
    return 0;
}

int pf_mpi_isend(struct pf_comm *comm, const void *buf, size_t bytes, int peer, int tag,
                 int *slot_out)
{
    return begin_message(mpi_of(comm), PF_COMM_SEND, (void *)buf, bytes, peer, tag, slot_out);
}

int pf_mpi_irecv(struct pf_comm *comm, void *buf, size_t bytes, int peer, int tag, int *slot_out)
{
    return begin_message(mpi_of(comm), PF_COMM_RECV, buf, bytes, peer, tag, slot_out);
}

/* The message's requests become those of the operation under way, so that a wait is like that of a
 * send or a receive, and told alike when it does not end. */
int pf_mpi_wait(struct pf_comm *comm, int slot)
{
    struct mpi *const c = mpi_of(comm);
    struct job *const job = c->job;
    const enum pf_comm_kind kind = (enum pf_comm_kind)job->flights[slot].kind;

    PF_TRY(pf_mpi_begin(c, kind));
    pf_mpi_set_place(c, kind, job->flights[slot].peer, job->flights[slot].tag);
    while (slot >= 0) {
        struct flight *const f = &job->flights[slot];
        job->requests[job->n_requests] = f->request;
        job->info[job->n_requests++] = f->info;
        const int next = f->next;
        f->next = job->free_flight;
        job->free_flight = slot;
        comm->world->n_in_flight--;
        slot = next;
    }
    return pf_mpi_wait_all(c);
}

/* Any look into MPI moves all messages on. */
int pf_mpi_progress(struct pf_comm *world)
{
    struct mpi *const c = mpi_of(world);
    int arrived;

    PF_MPI(c, MPI_Iprobe(MPI_ANY_SOURCE, 0, c->job->news, &arrived, MPI_STATUS_IGNORE));
    return 0;
}
