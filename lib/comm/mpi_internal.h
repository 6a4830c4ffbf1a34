/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator over MPI. This header alone names mpi.h; it is for lib/comm/mpi*.c.
 *
 * Every operation is made of messages that are begun, then waited for with a deadline: MPI's own
 * collectives can neither time out nor keep a sum in rank order. The tag of a collective's messages
 * holds its kind and number, so that ranks that are at different operations do not exchange data.
 *
 * When a deadline passes, the rank asks all others over a communicator of its own (news) where they
 * are. Ranks that wait for something answer; who does not answer is computing, stopped or dead.
 * From the answers comes one sentence that names who did not arrive, and at what.
 */
#ifndef MPI_INTERNAL_H
#define MPI_INTERNAL_H

#include "comm_internal.h"

#include <mpi.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BROADCAST_CHUNK_BYTES ((size_t)1 << 20) /* so that the levels of the tree overlap */
#define SMALL_BYTES ((size_t)1024)              /* up to here one exchange beats two */
#define LINE 64                                 /* slices start at multiples of a cache line */
#define MIN_STAGING_BYTES_PER_RANK ((size_t)4096)
#define DEFAULT_SPIN_US 200.0
#define SLEEP_MIN_NS 20000
#define SLEEP_MAX_NS 500000
#define ANSWER_S 1.5 /* how long to wait for answers when a deadline has passed */

#define SITE_BYTES 48 /* of a call site in words; a longer one keeps its end */
#define HISTORY 16    /* collectives of a group that a rank remembers */

#define COLLECTIVE_TAG 0x4000 /* MPI promises tags up to 32767 */
#define SEQUENCE_MASK 0x3ff

/* What a rank is waiting for: what it tells others that ask. */
struct place {
    uint64_t uid, sequence;
    int32_t kind;                 /* enum pf_comm_kind */
    int32_t peer, tag;            /* of a send or recv, peer as a world rank */
    unsigned char kinds[HISTORY]; /* of the latest collectives: number s is at s mod HISTORY */
    char group[40];
    /* Where the operation was called, and those of the history: filled in when it is told. */
    char site[SITE_BYTES], sites[HISTORY][SITE_BYTES];
};

struct news {
    struct place place;
    int32_t world_rank;
    int32_t is_question; /* the sender's own deadline has passed */
    int32_t yields;      /* a question had reached the sender before that: it will not speak */
};

/* An answer from each rank, or none yet. */
struct heard {
    bool heard, expired; /* expired: its deadline has passed, and it may speak of it */
    struct place place;
};

struct request_info {
    int peer;     /* world rank */
    int expected; /* bytes of a receive, -1 for a send */
};

/* A part of a message that was begun and not yet waited for. */
struct flight {
    MPI_Request request;
    struct request_info info;
    int32_t kind; /* PF_COMM_SEND or _RECV */
    int peer, tag;
    int next; /* the message's next part, or the next free slot; -1: none */
};

/* The parts that all communicators of a job share. */
struct job {
    MPI_Comm news;
    struct place place;
    const struct mpi *at;     /* the communicator of place */
    struct heard *heard;      /* [world size] */
    bool yields;              /* another rank speaks of the deadline that has passed */
    struct news *outbox;      /* [world size] */
    MPI_Request *outbox_busy; /* [world size] */
    MPI_Request *requests;    /* those of the operation that is under way */
    struct request_info *info;
    MPI_Status *statuses;
    size_t n_requests, capacity;
    struct flight flights[PF_COMM_MAX_IN_FLIGHT];
    int free_flight;      /* the first of the list */
    const void **sources; /* [world size] for pf_comm_reduce_ranks */
    unsigned char *staging;
    size_t staging_bytes;
    double spin_s;
};

struct mpi {
    struct pf_comm base;
    struct job *job;
    MPI_Comm comm;
    unsigned char kinds[HISTORY];
    const char *sites[HISTORY];
};

static inline struct mpi *mpi_of(struct pf_comm *comm)
{
    return (struct mpi *)comm;
}

#define PF_MPI(c, call)                                                                            \
    do {                                                                                           \
        const int pf_mpi_code_ = (call);                                                           \
        if (pf_mpi_code_ != MPI_SUCCESS) {                                                         \
            return pf_mpi_fault((c), pf_mpi_code_, #call);                                         \
        }                                                                                          \
    } while (0)

/* mpi.c: record a fault of MPI's and give its code; the world is broken then. */
int pf_mpi_fault(struct mpi *c, int code, const char *what);

/* mpi_place.c: what this rank waits for from here on (peer: a world rank, or -1); answer those who
 * ask; the deadline has passed: ask all others and record who did not arrive, and at what; a place in
 * words, and this rank's. */
void pf_mpi_set_place(struct mpi *c, enum pf_comm_kind kind, int peer, int tag);
void pf_mpi_listen(struct mpi *c);
int pf_mpi_expire(struct mpi *c);
void pf_mpi_describe(const struct place *place, char *text, size_t text_bytes);
void pf_mpi_describe_own(struct mpi *c, char *text, size_t text_bytes);

/* mpi_exchange.c: forget the requests of the operation before; then wait for all that were begun
 * since. */
int pf_mpi_begin(struct mpi *c, enum pf_comm_kind kind);
int pf_mpi_wait_all(struct mpi *c);

/* mpi_flight.c: no message is under way. */
void pf_mpi_flights_init(struct job *job);

/* mpi_exchange.c and mpi_flight.c: the operations of the table, which comm_ops describes. */
int pf_mpi_all_reduce(struct pf_comm *comm, void *buf, size_t count, enum pf_comm_dtype dtype,
                      enum pf_comm_op op);
int pf_mpi_reduce(struct pf_comm *comm, void *buf, size_t count, enum pf_comm_dtype dtype,
                  enum pf_comm_op op, int root);
int pf_mpi_reduce_scatter(struct pf_comm *comm, const void *send, void *recv, size_t count,
                          enum pf_comm_dtype dtype, enum pf_comm_op op);
int pf_mpi_broadcast(struct pf_comm *comm, void *buf, size_t bytes, int root);
int pf_mpi_all_gather(struct pf_comm *comm, const void *send, void *recv, const size_t *bytes,
                      const size_t *offsets);
int pf_mpi_all_to_all(struct pf_comm *comm, const void *send, const size_t *send_bytes,
                      const size_t *send_offsets, void *recv, const size_t *recv_bytes,
                      const size_t *recv_offsets);
int pf_mpi_barrier(struct pf_comm *comm);
int pf_mpi_send(struct pf_comm *comm, const void *buf, size_t bytes, int peer, int tag);
int pf_mpi_recv(struct pf_comm *comm, void *buf, size_t bytes, int peer, int tag);
int pf_mpi_group_start(struct pf_comm *comm);
int pf_mpi_group_end(struct pf_comm *comm);
int pf_mpi_isend(struct pf_comm *comm, const void *buf, size_t bytes, int peer, int tag,
                 int *slot_out);
int pf_mpi_irecv(struct pf_comm *comm, void *buf, size_t bytes, int peer, int tag, int *slot_out);
int pf_mpi_wait(struct pf_comm *comm, int slot);
int pf_mpi_progress(struct pf_comm *world);

#endif
