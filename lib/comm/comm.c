/* SPDX-License-Identifier: Apache-2.0 */
/* The front end: checks, counts and times each call, then asks the backend's table. */
#include "comm_internal.h"

#include <pf/digest.h>
#include <pf/error.h>
#include <pf/mem.h>
#include <pf/str.h>
#include <pf/time.h>

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* In order of preference; NULL for what is not in this build. */
static const struct {
    const char *name;
    const struct pf_comm_ops *ops;
} backends[] = {
#if PF_HAVE_MPI
    {"mpi", &pf_comm_ops_mpi},
#else
    {"mpi", NULL},
#endif
    {"self", &pf_comm_ops_self},
};
#define N_BACKENDS (sizeof backends / sizeof backends[0])

/* The world that a failed PF_ASSERT ends, and the thread that may talk to its transport. */
static struct pf_comm *job_world;
static pthread_t job_thread;

/* The last fault that several ranks know of, and whether this rank is the one to print it. */
static struct {
    char message[1024];
    bool speaks;
} shared_fault;

static const char *const kind_names[PF_COMM_KIND_COUNT] = {
    [PF_COMM_NOTHING] = "nothing",
    [PF_COMM_ALL_REDUCE] = "all_reduce",
    [PF_COMM_BROADCAST] = "broadcast",
    [PF_COMM_REDUCE] = "reduce",
    [PF_COMM_ALL_GATHER] = "all_gather",
    [PF_COMM_REDUCE_SCATTER] = "reduce_scatter",
    [PF_COMM_ALL_TO_ALL] = "all_to_all",
    [PF_COMM_BARRIER] = "barrier",
    [PF_COMM_SEND] = "send",
    [PF_COMM_RECV] = "recv",
    [PF_COMM_GROUP] = "a group of sends and receives",
    [PF_COMM_WAIT] = "wait for a message",
};

/* Instances -------------------------------------------------------------------------------------
 */

int pf_comm_base_init(struct pf_comm *comm, const struct pf_comm_ops *ops, struct pf_comm *world,
                      const char *name, int rank, int size, const int *world_ranks)
{
    int *ranks = pf_calloc_array((size_t)size, sizeof *ranks);
    size_t *even = pf_calloc_array(2 * (size_t)size, sizeof *even);
    int *parts = pf_calloc_array(2 * (size_t)size + 1, sizeof *parts);
    char *name_copy = pf_strdup(name);

    if (!ranks || !even || !parts || !name_copy) {
        pf_free(ranks);
        pf_free(even);
        pf_free(parts);
        pf_free(name_copy);
        return PF_ENOMEM;
    }
    memcpy(ranks, world_ranks, (size_t)size * sizeof *ranks);
    *comm = (struct pf_comm){
        .ops = ops,
        .rank = rank,
        .size = size,
        .local_rank = world ? world->local_rank : 0,
        .local_size = world ? world->local_size : 1,
        .world = world ? world : comm,
        .world_ranks = ranks,
        .even = even,
        .parts = parts,
        .name = name_copy,
        .timeout_s = world ? world->timeout_s : COMM_DEFAULT_TIMEOUT_S,
    };
    return 0;
}

void pf_comm_base_release(struct pf_comm *comm)
{
    pf_free((void *)comm->world_ranks);
    pf_free(comm->even);
    pf_free(comm->parts);
    pf_free(comm->name);
}

/* Life ------------------------------------------------------------------------------------------
 */

static int choose_backend(const char *name, const struct pf_comm_ops **ops_out)
{
    for (size_t i = 0; i < N_BACKENDS; i++) {
        if (name && strcmp(name, backends[i].name) == 0) {
            *ops_out = backends[i].ops;
            return *ops_out ? 0 : pf_fail(PF_ENOTSUP, "this build has no '%s' backend", name);
        }
        if (!name && backends[i].ops && backends[i].ops->probe()) {
            *ops_out = backends[i].ops;
            return 0;
        }
    }
    return pf_fail(PF_EUSAGE, "unknown communication backend '%s'", name ? name : "");
}

/* Without MPI in the build, each process that mpirun starts would take itself for the world. */
static int check_not_alone(const struct pf_comm_ops *ops)
{
    const char *text = getenv("OMPI_COMM_WORLD_SIZE");
    const long n = text ? strtol(text, NULL, 10) : 1;

    if (!PF_HAVE_MPI && ops == &pf_comm_ops_self && n > 1) {
        return pf_fail(PF_ENOTSUP, "started as one of %ld ranks, but this build has no MPI", n);
    }
    return 0;
}

static void abort_job(int exit_status)
{
    if (job_world && pthread_equal(pthread_self(), job_thread)) {
        job_world->ops->abort(job_world, exit_status);
    }
    /* Another thread must not enter the transport: mpirun ends the job when a process leaves. */
    _exit(exit_status);
}

int pf_comm_init(int *argc, char ***argv, const struct pf_comm_options *options,
                 struct pf_comm **world_out)
{
    const struct pf_comm_ops *ops;
    struct pf_comm *world;

    PF_TRY(choose_backend(options->backend, &ops));
    if (!options->backend) {
        PF_TRY(check_not_alone(ops));
    }
    struct pf_comm_groups *groups = pf_comm_groups_new();
    if (!groups) {
        return PF_ENOMEM;
    }
    const int err = ops->init(argc, argv, options, &world);
    if (err) {
        pf_comm_groups_free(groups);
        return err;
    }
    world->groups = groups;
    world->uid = pf_hash_string("world");
    if (options->timeout_s > 0) {
        world->timeout_s = options->timeout_s;
    }
    job_world = world;
    job_thread = pthread_self();
    pf_error_set_abort(abort_job);
    *world_out = world;
    return 0;
}

int pf_comm_finalize_at(const char *at, struct pf_comm *world)
{
    if (!world) {
        return 0;
    }
    if (world->n_in_flight > 0) {
        return pf_fail(PF_EINVAL, "the world ends with %d messages under way", world->n_in_flight);
    }
    PF_TRY(pf_comm_barrier_at(at, world));
    if (job_world == world) {
        job_world = NULL;
        pf_error_set_abort(NULL);
    }
    const int first = pf_comm_groups_free(world->groups);
    const int err = world->ops->free(world);
    return first ? first : err;
}

void pf_comm_abort(struct pf_comm *comm, int exit_status)
{
    struct pf_comm *world = comm->world;

    fflush(NULL);
    if (pthread_equal(pthread_self(), job_thread)) {
        world->ops->abort(world, exit_status);
    }
    _exit(exit_status);
}

void pf_comm_shared_fault(bool speaks)
{
    snprintf(shared_fault.message, sizeof shared_fault.message, "%s", pf_error_message());
    shared_fault.speaks = speaks;
}

bool pf_comm_is_shared(const struct pf_comm *comm)
{
    (void)comm;
    return shared_fault.message[0] && strcmp(shared_fault.message, pf_error_message()) == 0;
}

bool pf_comm_speaks(const struct pf_comm *comm)
{
    return !pf_comm_is_shared(comm) || shared_fault.speaks;
}

void pf_comm_fail(struct pf_comm *comm, int err)
{
    const double patience_s = 3;

    if (!pf_comm_speaks(comm)) {
        fflush(NULL);
        pf_time_sleep(patience_s);
    }
    pf_comm_abort(comm, pf_error_exit_status(err));
}

/* Facts -----------------------------------------------------------------------------------------
 */

int pf_comm_launched_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    int64_t rank;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *const text = getenv(names[i]);
        if (text && pf_parse_i64(text, &rank) == 0 && rank >= 0 && rank <= INT32_MAX) {
            return (int)rank;
        }
    }
    return 0;
}

int pf_comm_rank(const struct pf_comm *comm)
{
    return comm->rank;
}

int pf_comm_size(const struct pf_comm *comm)
{
    return comm->size;
}

int pf_comm_local_rank(const struct pf_comm *comm)
{
    return comm->local_rank;
}

int pf_comm_local_size(const struct pf_comm *comm)
{
    return comm->local_size;
}

const char *pf_comm_name(const struct pf_comm *comm)
{
    return comm->name;
}

const char *pf_comm_backend(const struct pf_comm *comm)
{
    return comm->ops->name;
}

void pf_comm_stats(const struct pf_comm *comm, struct pf_comm_stats *stats_out)
{
    *stats_out = comm->stats;
}

void pf_comm_observe(struct pf_comm *comm, pf_comm_observer *observer, void *context)
{
    comm->world->observer = observer;
    comm->world->observer_context = context;
}

uint64_t pf_comm_sent_bytes(enum pf_comm_kind kind, uint64_t bytes, int size)
{
    const uint64_t n = (uint64_t)size, others = n - 1;

    switch (kind) {
    case PF_COMM_ALL_REDUCE:
        return 2 * others * bytes / n;
    case PF_COMM_REDUCE_SCATTER:
    case PF_COMM_ALL_TO_ALL:
    case PF_COMM_BROADCAST:
    case PF_COMM_REDUCE:
        return others * bytes / n;
    case PF_COMM_ALL_GATHER:
        return others * bytes;
    case PF_COMM_SEND:
        return bytes;
    default:
        return 0;
    }
}

const char *pf_comm_kind_name(enum pf_comm_kind kind)
{
    return kind_names[kind];
}

void pf_comm_version(char *text_out, size_t text_bytes)
{
    size_t used = 0;

    text_out[0] = '\0';
    for (size_t i = 0; i < N_BACKENDS; i++) {
        char detail[128] = "";
        if (!backends[i].ops) {
            continue;
        }
        backends[i].ops->version(detail, sizeof detail);
        const int n =
            snprintf(text_out + used, text_bytes - used, "%s%s%s%s%s", used ? ", " : "",
                     backends[i].name, detail[0] ? " (" : "", detail, detail[0] ? ")" : "");
        if (n < 0 || (size_t)n >= text_bytes - used) {
            return;
        }
        used += (size_t)n;
    }
}

int pf_comm_reserve(struct pf_comm *comm, size_t bytes)
{
    return comm->world->ops->reserve(comm->world, bytes);
}

/* Collectives -----------------------------------------------------------------------------------
 */

/* What a call is, from its start to its end. */
struct call {
    struct pf_comm *comm;
    enum pf_comm_kind kind;
    const char *at;
    size_t bytes;
    int peer;
    double start;
};

static struct call begin(const char *at, struct pf_comm *comm, enum pf_comm_kind kind, size_t bytes)
{
    comm->site = at;
    comm->sequence++;
    comm->stats.calls[kind]++;
    comm->stats.bytes[kind] += bytes;
    return (struct call){comm, kind, at, bytes, -1, pf_time_monotonic()};
}

static int end(struct call call, int err)
{
    const struct pf_comm *const world = call.comm->world;
    const double now = pf_time_monotonic();

    call.comm->stats.seconds[call.kind] += now - call.start;
    if (world->observer) {
        world->observer(world->observer_context,
                        &(struct pf_comm_call){call.comm, call.kind, call.bytes, call.peer, call.at,
                                               call.start, now});
    }
    return err;
}

/* Open groups and collectives do not mix. */
static int check_closed(const struct pf_comm *comm, enum pf_comm_kind kind)
{
    if (comm->world->open_group) {
        return pf_fail(PF_EINVAL, "%s inside a group of sends and receives of '%s'",
                       kind_names[kind], comm->world->open_group->name);
    }
    return 0;
}

static int check_root(const struct pf_comm *comm, int root)
{
    if (root < 0 || root >= comm->size) {
        return pf_fail(PF_EINVAL, "rank %d of group '%s', which has %d", root, comm->name,
                       comm->size);
    }
    return 0;
}

static int check_reduction(const struct pf_comm *comm, enum pf_comm_kind kind, size_t count,
                           enum pf_comm_dtype dtype, enum pf_comm_op op, size_t *bytes_out)
{
    if ((unsigned)dtype >= PF_COMM_DTYPE_COUNT || (unsigned)op >= PF_COMM_OP_COUNT ||
        !pf_comm_op_applies(dtype, op)) {
        return pf_fail(PF_EINVAL, "%s cannot apply operation %d to dtype %d", kind_names[kind],
                       (int)op, (int)dtype);
    }
    if (!pf_mul_size(count, pf_comm_dtype_bytes(dtype), bytes_out)) {
        return pf_fail(PF_EINVAL, "%s of %zu elements overflows", kind_names[kind], count);
    }
    return check_closed(comm, kind);
}

int pf_comm_all_reduce_at(const char *at, struct pf_comm *comm, void *buf, size_t count,
                          enum pf_comm_dtype dtype, enum pf_comm_op op)
{
    size_t bytes;

    PF_TRY(check_reduction(comm, PF_COMM_ALL_REDUCE, count, dtype, op, &bytes));
    const struct call call = begin(at, comm, PF_COMM_ALL_REDUCE, bytes);
    return end(call, comm->ops->all_reduce(comm, buf, count, dtype, op));
}

int pf_comm_reduce_at(const char *at, struct pf_comm *comm, void *buf, size_t count,
                      enum pf_comm_dtype dtype, enum pf_comm_op op, int root)
{
    size_t bytes;

    PF_TRY(check_reduction(comm, PF_COMM_REDUCE, count, dtype, op, &bytes));
    PF_TRY(check_root(comm, root));
    const struct call call = begin(at, comm, PF_COMM_REDUCE, bytes);
    return end(call, comm->ops->reduce(comm, buf, count, dtype, op, root));
}

int pf_comm_reduce_scatter_at(const char *at, struct pf_comm *comm, const void *send, void *recv,
                              size_t count, enum pf_comm_dtype dtype, enum pf_comm_op op)
{
    size_t bytes, all;

    PF_TRY(check_reduction(comm, PF_COMM_REDUCE_SCATTER, count, dtype, op, &bytes));
    if (!pf_mul_size(bytes, (size_t)comm->size, &all)) {
        return pf_fail(PF_EINVAL, "reduce_scatter of %zu elements a rank overflows", count);
    }
    const struct call call = begin(at, comm, PF_COMM_REDUCE_SCATTER, all);
    return end(call, comm->ops->reduce_scatter(comm, send, recv, count, dtype, op));
}

int pf_comm_all_gather_v_at(const char *at, struct pf_comm *comm, const void *send, void *recv,
                            const size_t *bytes, const size_t *offsets)
{
    PF_TRY(check_closed(comm, PF_COMM_ALL_GATHER));
    const struct call call = begin(at, comm, PF_COMM_ALL_GATHER, bytes[comm->rank]);
    return end(call, comm->ops->all_gather(comm, send, recv, bytes, offsets));
}

/* Sizes and offsets of rows of equal length: bytes at even[r], offsets at even[size + r]. */
static int set_even(struct pf_comm *comm, enum pf_comm_kind kind, size_t bytes)
{
    size_t all;

    if (!pf_mul_size(bytes, (size_t)comm->size, &all)) {
        return pf_fail(PF_EINVAL, "%s of %zu bytes a rank overflows", kind_names[kind], bytes);
    }
    for (int r = 0; r < comm->size; r++) {
        comm->even[r] = bytes;
        comm->even[comm->size + r] = (size_t)r * bytes;
    }
    return 0;
}

int pf_comm_all_gather_at(const char *at, struct pf_comm *comm, const void *send, void *recv,
                          size_t bytes)
{
    PF_TRY(set_even(comm, PF_COMM_ALL_GATHER, bytes));
    return pf_comm_all_gather_v_at(at, comm, send, recv, comm->even, comm->even + comm->size);
}

int pf_comm_broadcast_at(const char *at, struct pf_comm *comm, void *buf, size_t bytes, int root)
{
    PF_TRY(check_closed(comm, PF_COMM_BROADCAST));
    PF_TRY(check_root(comm, root));
    const struct call call = begin(at, comm, PF_COMM_BROADCAST, bytes);
    return end(call, comm->ops->broadcast(comm, buf, bytes, root));
}

int pf_comm_all_to_all_v_at(const char *at, struct pf_comm *comm, const void *send,
                            const size_t *send_bytes, const size_t *send_offsets, void *recv,
                            const size_t *recv_bytes, const size_t *recv_offsets)
{
    size_t bytes = 0;

    PF_TRY(check_closed(comm, PF_COMM_ALL_TO_ALL));
    for (int r = 0; r < comm->size; r++) {
        bytes += send_bytes[r];
    }
    const struct call call = begin(at, comm, PF_COMM_ALL_TO_ALL, bytes);
    return end(call, comm->ops->all_to_all(comm, send, send_bytes, send_offsets, recv, recv_bytes,
                                           recv_offsets));
}

int pf_comm_all_to_all_at(const char *at, struct pf_comm *comm, const void *send, void *recv,
                          size_t bytes)
{
    const size_t *even = comm->even;

    PF_TRY(set_even(comm, PF_COMM_ALL_TO_ALL, bytes));
    return pf_comm_all_to_all_v_at(at, comm, send, even, even + comm->size, recv, even,
                                   even + comm->size);
}

int pf_comm_barrier_at(const char *at, struct pf_comm *comm)
{
    PF_TRY(check_closed(comm, PF_COMM_BARRIER));
    const struct call call = begin(at, comm, PF_COMM_BARRIER, 0);
    return end(call, comm->ops->barrier(comm));
}

/* Point to point --------------------------------------------------------------------------------
 */

static int check_address(const struct pf_comm *comm, enum pf_comm_kind kind, int peer, int tag)
{
    PF_TRY(check_root(comm, peer));
    if (tag < 0 || tag > PF_COMM_MAX_TAG) {
        return pf_fail(PF_EINVAL, "%s with tag %d, allowed are 0 to %d", kind_names[kind], tag,
                       PF_COMM_MAX_TAG);
    }
    return 0;
}

static int check_message(const struct pf_comm *comm, enum pf_comm_kind kind, int peer, int tag)
{
    const struct pf_comm *open_group = comm->world->open_group;

    PF_TRY(check_address(comm, kind, peer, tag));
    if (open_group && open_group != comm) {
        return pf_fail(PF_EINVAL, "%s in '%s' inside a group of '%s'", kind_names[kind], comm->name,
                       open_group->name);
    }
    if (peer == comm->rank && open_group != comm) {
        return pf_fail(PF_EINVAL, "%s of rank %d with itself would wait for ever", kind_names[kind],
                       comm->world_ranks[peer]);
    }
    return 0;
}

/* Messages between two ranks are not counted in the sequence, which all ranks share. */
static struct call begin_message(const char *at, struct pf_comm *comm, enum pf_comm_kind kind,
                                 size_t bytes, int peer)
{
    comm->site = at;
    comm->stats.calls[kind]++;
    comm->stats.bytes[kind] += bytes;
    return (struct call){comm, kind, at, bytes, peer, pf_time_monotonic()};
}

int pf_comm_send_at(const char *at, struct pf_comm *comm, const void *buf, size_t bytes, int peer,
                    int tag)
{
    PF_TRY(check_message(comm, PF_COMM_SEND, peer, tag));
    const struct call call = begin_message(at, comm, PF_COMM_SEND, bytes, peer);
    return end(call, comm->ops->send(comm, buf, bytes, peer, tag));
}

int pf_comm_recv_at(const char *at, struct pf_comm *comm, void *buf, size_t bytes, int peer,
                    int tag)
{
    PF_TRY(check_message(comm, PF_COMM_RECV, peer, tag));
    const struct call call = begin_message(at, comm, PF_COMM_RECV, bytes, peer);
    return end(call, comm->ops->recv(comm, buf, bytes, peer, tag));
}

int pf_comm_group_start(struct pf_comm *comm)
{
    PF_TRY(check_closed(comm, PF_COMM_GROUP));
    PF_TRY(comm->ops->group_start(comm));
    comm->world->open_group = comm;
    return 0;
}

int pf_comm_group_end_at(const char *at, struct pf_comm *comm)
{
    if (comm->world->open_group != comm) {
        return pf_fail(PF_EINVAL, "the end of a group of '%s' that was not begun", comm->name);
    }
    const struct call call = begin_message(at, comm, PF_COMM_GROUP, 0, -1);
    comm->world->open_group = NULL;
    return end(call, comm->ops->group_end(comm));
}

/* A message that is begun needs room, and no group around it. */
static int check_flight(const struct pf_comm *comm, enum pf_comm_kind kind, size_t bytes, int peer,
                        int tag)
{
    const size_t n = pf_comm_n_parts(bytes);

    PF_TRY(check_closed(comm, kind));
    PF_TRY(check_address(comm, kind, peer, tag));
    if (n > (size_t)(PF_COMM_MAX_IN_FLIGHT - comm->world->n_in_flight)) {
        return pf_fail(PF_EINVAL,
                       "%s %s rank %d with tag %d in group '%s': %d messages are under way, "
                       "of %d that can be",
                       kind_names[kind], kind == PF_COMM_SEND ? "to" : "from",
                       comm->world_ranks[peer], tag, comm->name, comm->world->n_in_flight,
                       PF_COMM_MAX_IN_FLIGHT);
    }
    return 0;
}

int pf_comm_isend_at(const char *at, struct pf_comm *comm, const void *buf, size_t bytes, int peer,
                     int tag, struct pf_comm_message *message_out)
{
    int slot;

    PF_TRY(check_flight(comm, PF_COMM_SEND, bytes, peer, tag));
    const struct call call = begin_message(at, comm, PF_COMM_SEND, bytes, peer);
    PF_TRY(end(call, comm->ops->isend(comm, buf, bytes, peer, tag, &slot)));
    *message_out = (struct pf_comm_message){comm, slot};
    return 0;
}

int pf_comm_irecv_at(const char *at, struct pf_comm *comm, void *buf, size_t bytes, int peer,
                     int tag, struct pf_comm_message *message_out)
{
    int slot;

    PF_TRY(check_flight(comm, PF_COMM_RECV, bytes, peer, tag));
    const struct call call = begin_message(at, comm, PF_COMM_RECV, bytes, peer);
    PF_TRY(end(call, comm->ops->irecv(comm, buf, bytes, peer, tag, &slot)));
    *message_out = (struct pf_comm_message){comm, slot};
    return 0;
}

int pf_comm_wait_at(const char *at, struct pf_comm_message *message)
{
    struct pf_comm *const comm = message->comm;

    if (!comm) {
        return 0;
    }
    PF_TRY(check_closed(comm, PF_COMM_WAIT));
    comm->site = at;
    comm->stats.calls[PF_COMM_WAIT]++;
    const struct call call = {comm, PF_COMM_WAIT, at, 0, -1, pf_time_monotonic()};
    const int slot = message->slot;
    *message = (struct pf_comm_message){0};
    return end(call, comm->ops->wait(comm, slot));
}

int pf_comm_progress(struct pf_comm *comm)
{
    return comm->world->ops->progress(comm->world);
}

/* Agreement -------------------------------------------------------------------------------------
 */

/* The lowest rank for which `holds`, or -1. */
static int lowest_rank(const char *at, struct pf_comm *comm, bool holds, int *lowest_out)
{
    int64_t lowest = holds ? comm->rank : INT64_MAX;

    PF_TRY(pf_comm_all_reduce_at(at, comm, &lowest, 1, PF_COMM_I64, PF_COMM_MIN));
    *lowest_out = lowest == INT64_MAX ? -1 : (int)lowest;
    return 0;
}

/* Everybody takes over the record of `failed`; returns its code, or that of a failing exchange. */
static int take_over(const char *at, struct pf_comm *comm, int err, int failed)
{
    struct {
        int32_t code;
        char message[1020];
    } record = {.code = err};
    int other;

    snprintf(record.message, sizeof record.message, "%s", pf_error_message());
    PF_TRY(pf_comm_broadcast_at(at, comm, &record, sizeof record, failed));
    record.message[sizeof record.message - 1] = '\0';
    PF_TRY(lowest_rank(at, comm, err != record.code, &other));
    if (other < 0) { /* all alike: nobody's own fault */
        pf_fail(record.code, "%s", record.message);
    } else {
        pf_fail(record.code, "rank %d: %s", comm->world_ranks[failed], record.message);
    }
    pf_comm_shared_fault(comm->rank == 0);
    return record.code;
}

int pf_comm_all_agree_at(const char *at, struct pf_comm *comm, int err, int *rank_out)
{
    int failed;

    if (err && comm->world->broken) {
        return err;
    }
    PF_TRY(lowest_rank(at, comm, err != 0, &failed));
    if (rank_out) {
        *rank_out = failed;
    }
    return failed < 0 ? 0 : take_over(at, comm, err, failed);
}

int pf_comm_same_at(const char *at, struct pf_comm *comm, const void *bytes, size_t n,
                    const char *what)
{
    struct {
        uint64_t n;
        struct pf_digest digest;
    } mine = {.n = n, .digest = pf_digest_of(bytes, n)}, first = mine;
    int differs;

    PF_TRY(pf_comm_broadcast_at(at, comm, &first, sizeof first, 0));
    const bool equal = first.n == mine.n && pf_digest_equal(&first.digest, &mine.digest);
    PF_TRY(lowest_rank(at, comm, !equal, &differs));
    if (differs < 0) {
        return 0;
    }
    pf_fail(PF_EDISAGREE, "%s differs between rank %d and rank %d", what, comm->world_ranks[0],
            comm->world_ranks[differs]);
    pf_comm_shared_fault(comm->rank == 0);
    return PF_EDISAGREE;
}
