/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h - how the ranks of a job talk to each other, and how the job ends.
 *
 * A communicator is an ordered set of ranks. The world is made once, by pf_comm_init; groups are
 * cut from it by pf_comm_split, eagerly at start and in the same order on every rank, and are
 * cached: asking again for the same list gives the same communicator. The world owns its groups;
 * pf_comm_finalize frees them all.
 *
 * Backends are tables (struct pf_comm_ops): `self`, one rank, complete, needs nothing; `mpi`.
 * Without mpirun a program gets `self`, and the same code path runs.
 *
 * Promises, of every backend:
 *  - Reductions sum each element in rank order 0, 1, .. n-1, whatever its offset, the length of the
 *    call or the size of the staging buffer, and give every rank the same bits.
 *  - Nothing is allocated here by a collective, send or recv: what they need was reserved when the
 *    world and its groups were made (pf_comm_reserve for more staging).
 *  - Nothing waits longer than the world's timeout. After that PF_ETIMEOUT names who did not arrive
 *    and at what; ranks that are at different operations are named as PF_EDISAGREE.
 *  - A transport that fails gives PF_ECOMM with the transport's own text.
 *
 *     struct pf_comm *world, *dp;
 *     PF_TRY(pf_comm_init(&argc, &argv, &(struct pf_comm_options){.timeout_s = 300}, &world));
 *     PF_TRY(pf_comm_split(world, ranks, n, "dp", &dp));
 *     err = load(...);
 *     err = pf_comm_all_agree(world, err, NULL);       at a phase boundary
 *     PF_TRY(pf_comm_all_reduce(dp, grads, n_grads, PF_COMM_F32, PF_COMM_SUM));
 *     ...
 *     if (err) {
 *         if (pf_comm_speaks(world)) fprintf(stderr, "pf-x: %s\n", pf_error_message());
 *         pf_comm_fail(world, err);                    ends all ranks with err's exit status
 *     }
 *     return pf_error_exit_status(pf_comm_finalize(world));
 *
 * After PF_ECOMM, PF_ETIMEOUT or PF_EDISAGREE from an exchange the communicators are good for
 * pf_comm_fail and pf_comm_abort only.
 *
 * Only the thread that called pf_comm_init may call what is marked collective, pf_comm_send, _recv,
 * _group_*; "collective" means by every rank of the communicator, in the same order, with the same
 * arguments except the data. They are called without the `_at` and its argument (pf_comm_barrier(world)),
 * by macros at the end that say where the call stands; a deadline that passes names the call sites of
 * those who are at odds. A collective blocks until this rank's part is done. All arguments
 * named `bytes` are size_t and have no limit of 2^31.
 */
#ifndef PF_COMM_H
#define PF_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Element types of a reduction. BF16 and F16 add in fp32, in rank order, and round once, to nearest
 * even. */
enum pf_comm_dtype {
    PF_COMM_F32,
    PF_COMM_F64,
    PF_COMM_I64,
    PF_COMM_U64,
    PF_COMM_I32,
    PF_COMM_U8,
    PF_COMM_BF16,
    PF_COMM_F16,
    PF_COMM_DTYPE_COUNT
};

/* SUM wraps for integers. MAX and MIN of floats are NaN where a rank has NaN (the lowest such
 * rank's bits). BOR, bitwise or, is for integers only. */
enum pf_comm_op { PF_COMM_SUM, PF_COMM_MAX, PF_COMM_MIN, PF_COMM_BOR, PF_COMM_OP_COUNT };

/* What a rank is doing, in messages and statistics. */
enum pf_comm_kind {
    PF_COMM_NOTHING,
    PF_COMM_ALL_REDUCE,
    PF_COMM_BROADCAST,
    PF_COMM_REDUCE,
    PF_COMM_ALL_GATHER,
    PF_COMM_REDUCE_SCATTER,
    PF_COMM_ALL_TO_ALL,
    PF_COMM_BARRIER,
    PF_COMM_SEND,
    PF_COMM_RECV,
    PF_COMM_GROUP, /* sends and receives between pf_comm_group_start and _end */
    PF_COMM_WAIT,  /* for a message that was begun, whose calls and bytes count as SEND or RECV */
    PF_COMM_KIND_COUNT
};

#define PF_COMM_MAX_TAG 16383

/* What the world of a transport reserves for reductions unless it is told another size. */
#define PF_COMM_STAGING_BYTES ((size_t)4 << 20)

/* Messages of a process that pf_comm_isend and _irecv have begun and pf_comm_wait has not ended. One
 * of more than 1 GiB counts once for each GiB that it has begun. */
#define PF_COMM_MAX_IN_FLIGHT 256

struct pf_comm;

/* A message under way. All zero: none. */
struct pf_comm_message {
    struct pf_comm *comm;
    int slot; /* the backend's */
};

struct pf_comm_options {
    double timeout_s;     /* longest wait for a peer; 0: 300 */
    const char *backend;  /* "self", "mpi"; NULL: mpi if started by mpirun or srun, else self */
    double spin_us;       /* how long a wait polls before it sleeps between polls; 0: default */
    size_t staging_bytes; /* first size of the staging buffer; 0: 4 MiB */
};

/* One call that has been made. Times are pf_time_monotonic's. */
struct pf_comm_call {
    const struct pf_comm *comm;
    enum pf_comm_kind kind;
    uint64_t bytes; /* as pf_comm_stats counts them */
    int peer;       /* of a message, in comm; -1: none */
    const char *at; /* where it stands: "lib/x.c:12" */
    double started, ended;
};
typedef void pf_comm_observer(void *context, const struct pf_comm_call *call);

/* Counters since the communicator was made; bytes are those of the arguments on this rank. */
struct pf_comm_stats {
    uint64_t calls[PF_COMM_KIND_COUNT];
    uint64_t bytes[PF_COMM_KIND_COUNT];
    double seconds[PF_COMM_KIND_COUNT];
};

/*
 * The backend's table: shaped like NCCL's API so that NCCL, MPI and a plug-in fit alike. The front
 * end (lib/comm/comm.c) has checked arguments, counted the sequence number and takes the time; a
 * slot only moves data. All slots are required. Semantics as the front-end function of the same
 * name.
 */
struct pf_comm_ops {
    const char *name;
    /* Is this process started so that the backend applies? Local, before init. */
    bool (*probe)(void);
    /* Make the world. */
    int (*init)(int *argc, char ***argv, const struct pf_comm_options *options,
                struct pf_comm **world_out);
    int (*all_reduce)(struct pf_comm *comm, void *buf, size_t count, enum pf_comm_dtype dtype,
                      enum pf_comm_op op);
    int (*broadcast)(struct pf_comm *comm, void *buf, size_t bytes, int root);
    int (*reduce)(struct pf_comm *comm, void *buf, size_t count, enum pf_comm_dtype dtype,
                  enum pf_comm_op op, int root);
    /* bytes[r], offsets[r]: what rank r gives and where it goes in recv. */
    int (*all_gather)(struct pf_comm *comm, const void *send, void *recv, const size_t *bytes,
                      const size_t *offsets);
    int (*reduce_scatter)(struct pf_comm *comm, const void *send, void *recv, size_t count,
                          enum pf_comm_dtype dtype, enum pf_comm_op op);
    int (*all_to_all)(struct pf_comm *comm, const void *send, const size_t *send_bytes,
                      const size_t *send_offsets, void *recv, const size_t *recv_bytes,
                      const size_t *recv_offsets);
    int (*send)(struct pf_comm *comm, const void *buf, size_t bytes, int peer, int tag);
    int (*recv)(struct pf_comm *comm, void *buf, size_t bytes, int peer, int tag);
    int (*group_start)(struct pf_comm *comm);
    int (*group_end)(struct pf_comm *comm);
    /* Begin a message; *slot_out is what wait is given. */
    int (*isend)(struct pf_comm *comm, const void *buf, size_t bytes, int peer, int tag,
                 int *slot_out);
    int (*irecv)(struct pf_comm *comm, void *buf, size_t bytes, int peer, int tag, int *slot_out);
    int (*wait)(struct pf_comm *comm, int slot);
    /* Called on the world. */
    int (*progress)(struct pf_comm *world);
    int (*barrier)(struct pf_comm *comm);
    /* Called by all of parent, each with the list of the new group that it is in (n 0: none, and
     * *group_out is NULL); the lists of different groups have no rank in common. `largest` is the
     * number of ranks of the largest of them, the same everywhere. */
    int (*split)(struct pf_comm *parent, const int *ranks, int n, int largest, const char *name,
                 struct pf_comm **group_out);
    /* Grow the staging buffer, shared by all communicators of the world. Local. */
    int (*reserve)(struct pf_comm *comm, size_t bytes);
    /* Give back the backend's parts and the instance. For the world: leave the transport. */
    int (*free)(struct pf_comm *comm);
    /* End every rank of the job with a status. Does not return. */
    void (*abort)(struct pf_comm *comm, int exit_status);
    /* "Open MPI v4.1.4", "" for self. */
    void (*version)(char *text_out, size_t text_bytes);
};

/* The base of an instance: backends put it first in their own struct. Read it through the functions
 * below; only lib/comm writes it. */
struct pf_comm {
    const struct pf_comm_ops *ops;
    int rank, size;
    int local_rank, local_size;
    uint64_t uid;           /* the same on all its ranks, different from every other group's */
    uint64_t sequence;      /* collectives begun; names them in messages, first is 1 */
    const char *site;       /* "lib/x.c:12": where the latest exchange was called */
    uint64_t order_hash;    /* of the groups cut from this one */
    struct pf_comm *world;  /* itself for the world */
    const int *world_ranks; /* [size] ranks in the world, which is what messages name */
    size_t *even;           /* [2*size] sizes and offsets of the calls where all give alike */
    int *parts;             /* [2*size+1] where pf_comm_partition sorts */
    char *name;
    double timeout_s;
    struct pf_comm *open_group; /* of the world: the one between group_start and group_end */
    bool broken;     /* of the world: an exchange failed, only the end of the job is left */
    int n_in_flight; /* of the world: messages that nobody has waited for yet */
    pf_comm_observer *observer; /* of the world; NULL: nobody */
    void *observer_context;
    struct pf_comm_stats stats;
    struct pf_comm_groups *groups; /* the world's cache; NULL in groups */
};

/* Life -------------------------------------------------------------------------------------------
 */

/*
 * Make the world. Collective over the job. argc and argv may be NULL. Parse --help and --version
 * before calling this. Installs the hook through which a failed PF_ASSERT ends all ranks.
 * Errors: PF_EUSAGE for an unknown backend, PF_ENOTSUP if it is not in this build, PF_ECOMM.
 */
int pf_comm_init(int *argc, char ***argv, const struct pf_comm_options *options,
                 struct pf_comm **world_out);

/*
 * Wait for all ranks (within the timeout), free the groups, leave the transport, free the world.
 * Collective. If ranks are missing it returns the error and leaves the world for pf_comm_fail. NULL
 * is allowed and gives 0.
 */
int pf_comm_finalize_at(const char *at, struct pf_comm *world);

/*
 * End every rank of the job now: mpirun returns exit_status within seconds. Local, prints nothing
 * itself, flushes stdio first, does not return. With `self` the process ends with that status. Any
 * thread may call it.
 */
void pf_comm_abort(struct pf_comm *comm, int exit_status) __attribute__((noreturn));

/*
 * May this rank print the thread's error record? True on exactly one rank where ranks share a fault
 * (an agreed outcome, a difference, a timeout), true on the failing rank for a fault of its own.
 * Local.
 */
bool pf_comm_speaks(const struct pf_comm *comm);

/* Is the thread's error record a fault that ranks share (see pf_comm_speaks)? Its message then names
 * the rank that it is about, where there is one. Local. */
bool pf_comm_is_shared(const struct pf_comm *comm);

/* As pf_comm_abort with the exit status of err; a rank that does not speak first leaves the one
 * that does a few seconds to print and to end the job. Prints nothing. Local, does not return. */
void pf_comm_fail(struct pf_comm *comm, int err) __attribute__((noreturn));

/* The rank that a launcher (mpirun) gave this process, 0 where there is none: for a program that talks
 * to no other rank and is to speak once. Needs no world. Local. */
int pf_comm_launched_rank(void);

/* Facts, all local -------------------------------------------------------------------------------
 */

int pf_comm_rank(const struct pf_comm *comm);
int pf_comm_size(const struct pf_comm *comm);
int pf_comm_local_rank(const struct pf_comm *comm); /* among the job's ranks of this host */
int pf_comm_local_size(const struct pf_comm *comm);
const char *pf_comm_name(const struct pf_comm *comm);
const char *pf_comm_backend(const struct pf_comm *comm);
void pf_comm_stats(const struct pf_comm *comm, struct pf_comm_stats *stats_out);

/* Tell an observer of each call on any communicator of this process's world from now on, on the caller's
 * thread; NULL: nobody. It may not communicate. A message that is begun is one call, waiting for it
 * another. Local. */
void pf_comm_observe(struct pf_comm *comm, pf_comm_observer *observer, void *context);

/* The least that a rank of `size` must send, on average over the ranks, where `bytes` are what
 * pf_comm_stats counts of such calls: a ring's share of collectives. The mpi backend sends as much,
 * more only in short reductions. 0 for receives and waits. */
uint64_t pf_comm_sent_bytes(enum pf_comm_kind kind, uint64_t bytes, int size);

/* "all_reduce", "recv"... */
const char *pf_comm_kind_name(enum pf_comm_kind kind);

size_t pf_comm_dtype_bytes(enum pf_comm_dtype dtype);

/* The row of --version -v: backends of this build, and the MPI library's version. Needs no init. */
void pf_comm_version(char *text_out, size_t text_bytes);

/* Groups -----------------------------------------------------------------------------------------
 */

/*
 * The group of the given ranks of parent, numbered in the order of the list. Every rank of parent
 * calls it with the same list and name, members or not; *group_out is NULL on a rank outside the
 * list. A list that was asked for before costs nothing, is local, and gives the same communicator
 * (name included). Owned by the world.
 * Errors: PF_EINVAL for an empty list, a rank out of range or twice; PF_EDISAGREE if ranks give
 * different lists.
 */
int pf_comm_split_at(const char *at, struct pf_comm *parent, const int *ranks, int n,
                     const char *name, struct pf_comm **group_out);

/*
 * Many groups at once, of which no two have a rank in common: part[r], for each rank r of parent,
 * says which group r is in, as a number in [0, size), or -1: none. Ranks of equal number are a group,
 * numbered in the order of parent. Every rank of parent calls it with the same array and name;
 * *group_out is this rank's group, or NULL. It takes the time of making one group.
 * Lists are cached as by pf_comm_split, and shared with it: those asked for before keep their
 * communicator and name, and where all were, the call is local and allocates nothing.
 * Errors: PF_EINVAL for a number out of range; PF_EDISAGREE if ranks give different arrays.
 */
int pf_comm_partition_at(const char *at, struct pf_comm *parent, const int *part, const char *name,
                         struct pf_comm **group_out);

/* Live communicators of this process's world, the world included. Local. */
int pf_comm_count(const struct pf_comm *comm);

/* A digest of the groups cut from parent so far, in order: equal on all its ranks. Local. */
uint64_t pf_comm_order_hash(const struct pf_comm *parent);

/* Make the staging buffer at least that large: a longer one means fewer rounds in a reduction,
 * never other bits. Local, allocates, PF_ENOMEM. Call it at start. */
int pf_comm_reserve(struct pf_comm *comm, size_t bytes);

/* Collectives ------------------------------------------------------------------------------------
 */

/* buf[i] = op over ranks of buf[i], for count elements, in place. PF_EINVAL: BOR of floats. */
int pf_comm_all_reduce_at(const char *at, struct pf_comm *comm, void *buf, size_t count,
                          enum pf_comm_dtype dtype, enum pf_comm_op op);

/* The same on root alone; the buffers of other ranks are only read. */
int pf_comm_reduce_at(const char *at, struct pf_comm *comm, void *buf, size_t count,
                      enum pf_comm_dtype dtype, enum pf_comm_op op, int root);

/* send: [size, count]; recv: [count], overwritten with the reduction of row `rank`. recv may be
 * that row of send, otherwise they must not overlap. */
int pf_comm_reduce_scatter_at(const char *at, struct pf_comm *comm, const void *send, void *recv,
                              size_t count, enum pf_comm_dtype dtype, enum pf_comm_op op);

/* recv: [size, bytes], overwritten; send may be its row `rank`, otherwise they must not overlap. */
int pf_comm_all_gather_at(const char *at, struct pf_comm *comm, const void *send, void *recv,
                          size_t bytes);

/* Rank r gives bytes[r], which lands at recv + offsets[r] everywhere. Same arrays on all ranks. */
int pf_comm_all_gather_v_at(const char *at, struct pf_comm *comm, const void *send, void *recv,
                            const size_t *bytes, const size_t *offsets);

/* buf of root to all. */
int pf_comm_broadcast_at(const char *at, struct pf_comm *comm, void *buf, size_t bytes, int root);

/* send, recv: [size, bytes]; row j of send goes to row `rank` of rank j's recv. No overlap. */
int pf_comm_all_to_all_at(const char *at, struct pf_comm *comm, const void *send, void *recv,
                          size_t bytes);

/* The same with send_bytes[j] at send + send_offsets[j] for rank j, which expects exactly that many
 * from this rank. */
int pf_comm_all_to_all_v_at(const char *at, struct pf_comm *comm, const void *send,
                            const size_t *send_bytes, const size_t *send_offsets, void *recv,
                            const size_t *recv_bytes, const size_t *recv_offsets);

int pf_comm_barrier_at(const char *at, struct pf_comm *comm);

/* Point to point ---------------------------------------------------------------------------------
 */

/*
 * Blocking, between two ranks of comm; tag in [0, PF_COMM_MAX_TAG]. The receiver expects exactly
 * the bytes that are sent, which is checked (PF_EDISAGREE). Messages of one pair and tag keep their
 * order. A rank can send to itself only inside a group.
 */
int pf_comm_send_at(const char *at, struct pf_comm *comm, const void *buf, size_t bytes, int peer,
                    int tag);
int pf_comm_recv_at(const char *at, struct pf_comm *comm, void *buf, size_t bytes, int peer,
                    int tag);

/* Between start and end, sends and receives are only begun; end waits for all of them, so opposite
 * transfers cannot deadlock. Buffers belong to the transfer until then. No collective in between.
 */
int pf_comm_group_start(struct pf_comm *comm);
int pf_comm_group_end_at(const char *at, struct pf_comm *comm);

/*
 * Messages that are begun here and waited for later, in any order, with anything in between: other
 * messages, collectives of any group, computing. The buffer belongs to the message until
 * pf_comm_wait has returned. Everything else as pf_comm_send and _recv, with whose messages these
 * share pairs, tags and order; a rank may send to itself. Not inside a group of sends and receives.
 *
 *     struct pf_comm_message in, out = {0};
 *     PF_TRY(pf_comm_irecv(pp, x[0], bytes, previous, tag, &in));     early
 *     ...
 *     PF_TRY(pf_comm_wait(&in));                                      x[0] is here
 *     PF_TRY(pf_comm_wait(&out));                                     y may be written again
 *     compute(x[0], y);
 *     PF_TRY(pf_comm_isend(pp, y, bytes, next, tag, &out));
 *
 * A send need not end before its receive has begun, so wait for receives that the peer's next send
 * depends on before waiting for a send to it. At most PF_COMM_MAX_IN_FLIGHT are under way in a
 * process; one more is PF_EINVAL, as is the end of the world with one that was never waited for.
 * Nothing is allocated. *message_out is set on success.
 */
int pf_comm_isend_at(const char *at, struct pf_comm *comm, const void *buf, size_t bytes, int peer,
                     int tag, struct pf_comm_message *message_out);
int pf_comm_irecv_at(const char *at, struct pf_comm *comm, void *buf, size_t bytes, int peer,
                     int tag, struct pf_comm_message *message_out);

/*
 * Wait until a message has been sent or received, then make *message none; a message that is none
 * is no wait. Errors as of send and recv: PF_ETIMEOUT names the peer, counted from the beginning of
 * this wait; PF_EDISAGREE, where the sizes differ. A message of a rank to itself that has no
 * counterpart is PF_EDISAGREE with `self`, and a timeout elsewhere.
 */
int pf_comm_wait_at(const char *at, struct pf_comm_message *message);

/* Let messages under way go on while this rank computes: large ones stand still where neither side
 * calls anything of this header. Any communicator of the world. Local, does not block. */
int pf_comm_progress(struct pf_comm *comm);

/* A sum that goes on while its ranks compute -----------------------------------------------------
 */

#define PF_COMM_SUM_RANKS 64

/* One under way. */
struct pf_comm_sum {
    struct pf_comm *comm;
    const void *send;
    void *staging;
    size_t count, bytes;
    enum pf_comm_dtype dtype;
    struct pf_comm_message in[PF_COMM_SUM_RANKS], out[PF_COMM_SUM_RANKS];
};

/*
 * pf_comm_reduce_scatter with PF_COMM_SUM in two parts, with the same bits: send [size, count] is not
 * written, and staging [size - 1, count] not touched, until the end has returned; recv [count] may be
 * row `rank` of send. Anything may lie between the two: computing, collectives, messages; but no
 * other sum of this communicator. At most PF_COMM_SUM_RANKS ranks (PF_EINVAL).
 */
int pf_comm_reduce_scatter_begin(struct pf_comm *comm, const void *send, void *staging,
                                 size_t count, enum pf_comm_dtype dtype,
                                 struct pf_comm_sum *sum_out);
int pf_comm_reduce_scatter_end(struct pf_comm_sum *sum, void *recv);

/* Agreement --------------------------------------------------------------------------------------
 */

/*
 * Ranks agree on an outcome at a phase boundary: each brings 0 or a code, with its record set. If
 * any failed, every rank gets the code and the message of the lowest failing rank ("rank 3: ..."
 * unless all failed alike) in its own record, and *rank_out, where not NULL, that rank; otherwise 0
 * and -1. Rank 0 of comm speaks. A failing exchange gives its own code. Collective.
 */
int pf_comm_all_agree_at(const char *at, struct pf_comm *comm, int err, int *rank_out);

/* Do all ranks hold the same n bytes? Lengths and XXH3-128 digests are compared with rank
 * 0's. PF_EDISAGREE on every rank if not, naming `what` and the lowest rank that differs. n may
 * differ too. `what` starts the sentence: "the configuration". Collective. */
int pf_comm_same_at(const char *at, struct pf_comm *comm, const void *bytes, size_t n,
                    const char *what);

/* Call sites ------------------------------------------------------------------------------------
 */

/* What takes part in an exchange takes, as its first argument, where it is called; these give it. */
#define PF_COMM_TEXT_OF(line) #line
#define PF_COMM_LINE(line) PF_COMM_TEXT_OF(line)
#define PF_COMM_HERE __FILE__ ":" PF_COMM_LINE(__LINE__)
#define pf_comm_all_reduce(...) pf_comm_all_reduce_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_reduce(...) pf_comm_reduce_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_reduce_scatter(...) pf_comm_reduce_scatter_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_all_gather(...) pf_comm_all_gather_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_all_gather_v(...) pf_comm_all_gather_v_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_broadcast(...) pf_comm_broadcast_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_all_to_all(...) pf_comm_all_to_all_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_all_to_all_v(...) pf_comm_all_to_all_v_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_barrier(...) pf_comm_barrier_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_send(...) pf_comm_send_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_recv(...) pf_comm_recv_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_group_end(...) pf_comm_group_end_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_isend(...) pf_comm_isend_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_irecv(...) pf_comm_irecv_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_wait(...) pf_comm_wait_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_all_agree(...) pf_comm_all_agree_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_same(...) pf_comm_same_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_split(...) pf_comm_split_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_partition(...) pf_comm_partition_at(PF_COMM_HERE, __VA_ARGS__)
#define pf_comm_finalize(...) pf_comm_finalize_at(PF_COMM_HERE, __VA_ARGS__)

#endif
