/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that are begun, the wait for them, and the operations that are made of them. */
#include "mpi_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int make_room(struct job *job)
{
    if (job->n_requests < job->capacity) {
        return 0;
    }
    const size_t capacity = 2 * job->capacity;
    MPI_Request *requests = pf_realloc_array(job->requests, capacity, sizeof *requests);
    if (!requests) {
        return PF_ENOMEM;
    }
    job->requests = requests;
    struct request_info *info = pf_realloc_array(job->info, capacity, sizeof *info);
    if (!info) {
        return PF_ENOMEM;
    }
    job->info = info;
    MPI_Status *statuses = pf_realloc_array(job->statuses, capacity, sizeof *statuses);
    if (!statuses) {
        return PF_ENOMEM;
    }
    job->statuses = statuses;
    job->capacity = capacity;
    return 0;
}

static int collective_tag(const struct mpi *c, enum pf_comm_kind kind)
{
    return COLLECTIVE_TAG | (int)kind << 10 | (int)(c->base.sequence & SEQUENCE_MASK);
}

static int post_send(struct mpi *c, const void *buf, size_t bytes, int peer, int tag)
{
    struct job *job = c->job;
    int count;

    PF_TRY(make_room(job));
    PF_TRY(pf_to_int((int64_t)bytes, &count));
    PF_MPI(c, MPI_Isend(buf, count, MPI_BYTE, peer, tag, c->comm, &job->requests[job->n_requests]));
    job->info[job->n_requests++] = (struct request_info){c->base.world_ranks[peer], -1};
    return 0;
}

static int post_recv(struct mpi *c, void *buf, size_t bytes, int peer, int tag)
{
    struct job *job = c->job;
    int count;

    PF_TRY(make_room(job));
    PF_TRY(pf_to_int((int64_t)bytes, &count));
    PF_MPI(c, MPI_Irecv(buf, count, MPI_BYTE, peer, tag, c->comm, &job->requests[job->n_requests]));
    job->info[job->n_requests++] = (struct request_info){c->base.world_ranks[peer], count};
    return 0;
}

/* Which of the requests failed, and how. */
static int request_fault(struct mpi *c, int code)
{
    const struct job *job = c->job;
    char what[192];

    for (size_t i = 0; code == MPI_ERR_IN_STATUS && i < job->n_requests; i++) {
        if (job->statuses[i].MPI_ERROR != MPI_SUCCESS &&
            job->statuses[i].MPI_ERROR != MPI_ERR_PENDING) {
            code = job->statuses[i].MPI_ERROR;
        }
    }
    pf_mpi_describe_own(c, what, sizeof what);
    return pf_mpi_fault(c, code, what);
}

/* A message shorter than the receiver expects is a disagreement that MPI does not report. */
static int check_lengths(struct mpi *c)
{
    const struct job *job = c->job;
    char what[192];

    for (size_t i = 0; i < job->n_requests; i++) {
        int count;
        if (job->info[i].expected < 0) {
            continue;
        }
        PF_MPI(c, MPI_Get_count(&job->statuses[i], MPI_BYTE, &count));
        if (count != job->info[i].expected) {
            c->base.world->broken = true;
            pf_mpi_describe_own(c, what, sizeof what);
            return pf_fail(PF_EDISAGREE, "rank %d expects %d bytes from rank %d at %s and got %d",
                           c->base.world->rank, job->info[i].expected, job->info[i].peer, what,
                           count);
        }
    }
    return 0;
}

/*
 * Wait for all requests, then forget them. Polls without pause at first, as a peer on another core
 * is often microseconds behind; then sleeps between polls, ever longer, so that ranks that share a
 * core can run, and listens for questions.
 */
int pf_mpi_wait_all(struct mpi *c)
{
    struct job *job = c->job;
    const double start = pf_time_monotonic(), timeout_s = c->base.world->timeout_s;
    long sleep_ns = SLEEP_MIN_NS;
    int done = 0;

    for (;;) {
        const int code = MPI_Testall((int)job->n_requests, job->requests, &done, job->statuses);
        if (code != MPI_SUCCESS) {
            return request_fault(c, code);
        }
        if (done) {
            break;
        }
        const double waited = pf_time_monotonic() - start;
        if (waited > timeout_s) {
            return pf_mpi_expire(c);
        }
        if (waited < job->spin_s) {
            sched_yield();
            continue;
        }
        pf_mpi_listen(c);
        nanosleep(&(struct timespec){.tv_nsec = sleep_ns}, NULL);
        sleep_ns = sleep_ns < SLEEP_MAX_NS / 2 ? 2 * sleep_ns : SLEEP_MAX_NS;
    }
    PF_TRY(check_lengths(c));
    job->n_requests = 0;
    return 0;
}

int pf_mpi_begin(struct mpi *c, enum pf_comm_kind kind)
{
    if (c->base.world->broken) {
        return pf_fail(PF_ECOMM, "%s in group '%s' after a failed exchange",
                       pf_comm_kind_name(kind), c->base.name);
    }
    pf_mpi_set_place(c, kind, -1, 0);
    c->job->n_requests = 0;
    return 0;
}

/* Reductions --------------------------------------------------------------------------------------
 */

/* Bytes of staging that each rank's part may take. */
static size_t slot_bytes(const struct mpi *c)
{
    return c->job->staging_bytes / (size_t)c->base.size / LINE * LINE;
}

static unsigned char *slot(const struct mpi *c, int rank)
{
    return c->job->staging + (size_t)rank * slot_bytes(c);
}

/* The part of [0, n) that rank reduces: equal parts of whole cache lines, the last ones shorter. */
struct slice {
    size_t at, n;
};

static struct slice slice_of(const struct mpi *c, size_t n, size_t width, int rank)
{
    const size_t line = LINE / width, size = (size_t)c->base.size;
    const size_t part = ((n + size - 1) / size + line - 1) / line * line;
    const size_t at = part * (size_t)rank < n ? part * (size_t)rank : n;

    return (struct slice){at, n - at < part ? n - at : part};
}

/* dst = the reduction, in rank order, of `own` and the other ranks' parts in the staging slots. */
static void reduce_slots(struct mpi *c, void *dst, const void *own, size_t n,
                         enum pf_comm_dtype dtype, enum pf_comm_op op)
{
    for (int r = 0; r < c->base.size; r++) {
        c->job->sources[r] = r == c->base.rank ? own : slot(c, r);
    }
    pf_comm_reduce_ranks(dst, c->job->sources, c->base.size, n, dtype, op);
}

/* Everybody sends everything to everybody and reduces for itself. */
static int all_reduce_small(struct mpi *c, void *buf, size_t count, enum pf_comm_dtype dtype,
                            enum pf_comm_op op, int tag)
{
    const size_t bytes = count * pf_comm_dtype_bytes(dtype);

    for (int r = 0; r < c->base.size; r++) {
        if (r != c->base.rank) {
            PF_TRY(post_recv(c, slot(c, r), bytes, r, tag));
            PF_TRY(post_send(c, buf, bytes, r, tag));
        }
    }
    PF_TRY(pf_mpi_wait_all(c));
    reduce_slots(c, buf, buf, count, dtype, op);
    return 0;
}

/* Slice r of everybody goes to rank r; *mine_out is this rank's, reduced in place. */
static int exchange_and_reduce(struct mpi *c, unsigned char *buf, size_t n,
                               enum pf_comm_dtype dtype, enum pf_comm_op op, int tag)
{
    const size_t width = pf_comm_dtype_bytes(dtype);
    const struct slice mine = slice_of(c, n, width, c->base.rank);

    for (int r = 0; r < c->base.size; r++) {
        const struct slice theirs = slice_of(c, n, width, r);
        if (r == c->base.rank) {
            continue;
        }
        if (mine.n > 0) {
            PF_TRY(post_recv(c, slot(c, r), mine.n * width, r, tag));
        }
        if (theirs.n > 0) {
            PF_TRY(post_send(c, buf + theirs.at * width, theirs.n * width, r, tag));
        }
    }
    PF_TRY(pf_mpi_wait_all(c));
    reduce_slots(c, buf + mine.at * width, buf + mine.at * width, mine.n, dtype, op);
    return 0;
}

/* The reduced slices, each held by its rank, to everybody. */
static int gather_slices(struct mpi *c, unsigned char *buf, size_t n, size_t width, int tag)
{
    const struct slice mine = slice_of(c, n, width, c->base.rank);

    for (int r = 0; r < c->base.size; r++) {
        const struct slice theirs = slice_of(c, n, width, r);
        if (r == c->base.rank) {
            continue;
        }
        if (theirs.n > 0) {
            PF_TRY(post_recv(c, buf + theirs.at * width, theirs.n * width, r, tag));
        }
        if (mine.n > 0) {
            PF_TRY(post_send(c, buf + mine.at * width, mine.n * width, r, tag));
        }
    }
    return pf_mpi_wait_all(c);
}

int pf_mpi_all_reduce(struct pf_comm *comm, void *buf, size_t count, enum pf_comm_dtype dtype,
                      enum pf_comm_op op)
{
    struct mpi *c = mpi_of(comm);
    const size_t width = pf_comm_dtype_bytes(dtype);
    const size_t window = slot_bytes(c) / width * (size_t)comm->size;
    const int tag = collective_tag(c, PF_COMM_ALL_REDUCE);

    PF_TRY(pf_mpi_begin(c, PF_COMM_ALL_REDUCE));
    if (count * width <= SMALL_BYTES) {
        return all_reduce_small(c, buf, count, dtype, op, tag);
    }
    for (size_t at = 0; at < count; at += window) {
        unsigned char *part = (unsigned char *)buf + at * width;
        const size_t n = count - at < window ? count - at : window;
        PF_TRY(exchange_and_reduce(c, part, n, dtype, op, tag));
        PF_TRY(gather_slices(c, part, n, width, tag));
    }
    return 0;
}

int pf_mpi_reduce(struct pf_comm *comm, void *buf, size_t count, enum pf_comm_dtype dtype,
                  enum pf_comm_op op, int root)
{
    struct mpi *c = mpi_of(comm);
    const size_t width = pf_comm_dtype_bytes(dtype), window = slot_bytes(c) / width;
    const int tag = collective_tag(c, PF_COMM_REDUCE);

    PF_TRY(pf_mpi_begin(c, PF_COMM_REDUCE));
    for (size_t at = 0; at < count; at += window) {
        unsigned char *part = (unsigned char *)buf + at * width;
        const size_t n = count - at < window ? count - at : window;
        if (comm->rank != root) {
            PF_TRY(post_send(c, part, n * width, root, tag));
            PF_TRY(pf_mpi_wait_all(c));
            continue;
        }
        for (int r = 0; r < comm->size; r++) {
            if (r != root) {
                PF_TRY(post_recv(c, slot(c, r), n * width, r, tag));
            }
        }
        PF_TRY(pf_mpi_wait_all(c));
        reduce_slots(c, part, part, n, dtype, op);
    }
    return 0;
}

int pf_mpi_reduce_scatter(struct pf_comm *comm, const void *send, void *recv, size_t count,
                          enum pf_comm_dtype dtype, enum pf_comm_op op)
{
    struct mpi *c = mpi_of(comm);
    const size_t width = pf_comm_dtype_bytes(dtype), window = slot_bytes(c) / width;
    const unsigned char *rows = send;
    const int tag = collective_tag(c, PF_COMM_REDUCE_SCATTER);

    PF_TRY(pf_mpi_begin(c, PF_COMM_REDUCE_SCATTER));
    for (size_t at = 0; at < count; at += window) {
        const size_t n = count - at < window ? count - at : window;
        for (int r = 0; r < comm->size; r++) {
            if (r != comm->rank) {
                PF_TRY(post_recv(c, slot(c, r), n * width, r, tag));
                PF_TRY(post_send(c, rows + ((size_t)r * count + at) * width, n * width, r, tag));
            }
        }
        PF_TRY(pf_mpi_wait_all(c));
        reduce_slots(c, (unsigned char *)recv + at * width,
                     rows + ((size_t)comm->rank * count + at) * width, n, dtype, op);
    }
    return 0;
}

/* Movement ----------------------------------------------------------------------------------------
 */

/* Binomial tree over ranks counted from root: a node is reached through its lowest set bit. */
static int broadcast_chunk(struct mpi *c, void *buf, size_t bytes, int root, int tag)
{
    const int size = c->base.size, place = (c->base.rank - root + size) % size;
    int bit = 1;

    while (bit < size && !(place & bit)) {
        bit <<= 1;
    }
    if (place != 0) {
        PF_TRY(post_recv(c, buf, bytes, (place - bit + root) % size, tag));
        PF_TRY(pf_mpi_wait_all(c));
    }
    for (bit >>= 1; bit > 0; bit >>= 1) {
        if (place + bit < size) {
            PF_TRY(post_send(c, buf, bytes, (place + bit + root) % size, tag));
        }
    }
    return pf_mpi_wait_all(c);
}

int pf_mpi_broadcast(struct pf_comm *comm, void *buf, size_t bytes, int root)
{
    struct mpi *c = mpi_of(comm);
    const int tag = collective_tag(c, PF_COMM_BROADCAST);

    PF_TRY(pf_mpi_begin(c, PF_COMM_BROADCAST));
    for (size_t at = 0; at < bytes; at += BROADCAST_CHUNK_BYTES) {
        const size_t n = bytes - at < BROADCAST_CHUNK_BYTES ? bytes - at : BROADCAST_CHUNK_BYTES;
        PF_TRY(broadcast_chunk(c, (unsigned char *)buf + at, n, root, tag));
    }
    return 0;
}

/* The part of a block of `bytes` that round `at` moves. */
static size_t chunk_at(size_t bytes, size_t at)
{
    if (at >= bytes) {
        return 0;
    }
    return bytes - at < MESSAGE_MAX_BYTES ? bytes - at : MESSAGE_MAX_BYTES;
}

static size_t largest(const size_t *bytes, int n)
{
    size_t max = 0;

    for (int i = 0; i < n; i++) {
        max = bytes[i] > max ? bytes[i] : max;
    }
    return max;
}

int pf_mpi_all_gather(struct pf_comm *comm, const void *send, void *recv, const size_t *bytes,
                      const size_t *offsets)
{
    struct mpi *c = mpi_of(comm);
    const int tag = collective_tag(c, PF_COMM_ALL_GATHER);
    const size_t most = largest(bytes, comm->size);
    unsigned char *to = recv;

    PF_TRY(pf_mpi_begin(c, PF_COMM_ALL_GATHER));
    for (size_t at = 0; at < most; at += MESSAGE_MAX_BYTES) {
        const size_t mine = chunk_at(bytes[comm->rank], at);
        for (int r = 0; r < comm->size; r++) {
            const size_t theirs = chunk_at(bytes[r], at);
            if (r != comm->rank && theirs > 0) {
                PF_TRY(post_recv(c, to + offsets[r] + at, theirs, r, tag));
            }
            if (r != comm->rank && mine > 0) {
                PF_TRY(post_send(c, (const unsigned char *)send + at, mine, r, tag));
            }
        }
        PF_TRY(pf_mpi_wait_all(c));
    }
    if (bytes[comm->rank] > 0) {
        memmove(to + offsets[comm->rank], send, bytes[comm->rank]);
    }
    return 0;
}

/* A block of zero bytes is sent too: a pair that disagrees is then found at once. */
int pf_mpi_all_to_all(struct pf_comm *comm, const void *send, const size_t *send_bytes,
                      const size_t *send_offsets, void *recv, const size_t *recv_bytes,
                      const size_t *recv_offsets)
{
    struct mpi *c = mpi_of(comm);
    const int tag = collective_tag(c, PF_COMM_ALL_TO_ALL), me = comm->rank;
    const size_t most_sent = largest(send_bytes, comm->size);
    const size_t most_received = largest(recv_bytes, comm->size);
    const size_t most = most_sent > most_received ? most_sent : most_received;
    const unsigned char *from = send;
    unsigned char *to = recv;
    size_t at = 0;

    PF_TRY(pf_mpi_begin(c, PF_COMM_ALL_TO_ALL));
    if (send_bytes[me] != recv_bytes[me]) {
        return pf_fail(PF_EDISAGREE, "rank %d sends itself %zu bytes and expects %zu",
                       comm->world_ranks[me], send_bytes[me], recv_bytes[me]);
    }
    do {
        for (int r = 0; r < comm->size; r++) {
            const size_t in = chunk_at(recv_bytes[r], at), out = chunk_at(send_bytes[r], at);
            if (r != me && (in > 0 || at == 0)) {
                PF_TRY(post_recv(c, in ? to + recv_offsets[r] + at : to, in, r, tag));
            }
            if (r != me && (out > 0 || at == 0)) {
                PF_TRY(post_send(c, out ? from + send_offsets[r] + at : from, out, r, tag));
            }
        }
        PF_TRY(pf_mpi_wait_all(c));
        at += MESSAGE_MAX_BYTES;
    } while (at < most);
    if (send_bytes[me] > 0) {
        memcpy(to + recv_offsets[me], from + send_offsets[me], send_bytes[me]);
    }
    return 0;
}

/* In round k everybody hears from the rank 2^k below: after log2(size) rounds from all. */
int pf_mpi_barrier(struct pf_comm *comm)
{
    struct mpi *c = mpi_of(comm);
    const int tag = collective_tag(c, PF_COMM_BARRIER), size = comm->size;

    PF_TRY(pf_mpi_begin(c, PF_COMM_BARRIER));
    for (int step = 1; step < size; step *= 2) {
        PF_TRY(post_recv(c, NULL, 0, (comm->rank - step + size) % size, tag));
        PF_TRY(post_send(c, NULL, 0, (comm->rank + step) % size, tag));
        PF_TRY(pf_mpi_wait_all(c));
    }
    return 0;
}

/* A message of any length, at least one MPI message. Outside a group each is waited for. */
static int move(struct mpi *c, enum pf_comm_kind kind, unsigned char *buf, size_t bytes, int peer,
                int tag)
{
    const bool is_alone = !c->base.world->open_group;
    size_t at = 0;

    if (is_alone) {
        PF_TRY(pf_mpi_begin(c, kind));
        pf_mpi_set_place(c, kind, peer, tag);
    }
    do {
        const size_t n = chunk_at(bytes, at);
        PF_TRY(kind == PF_COMM_SEND ? post_send(c, n ? buf + at : NULL, n, peer, tag)
                                    : post_recv(c, n ? buf + at : NULL, n, peer, tag));
        if (is_alone) {
            PF_TRY(pf_mpi_wait_all(c));
        }
        at += MESSAGE_MAX_BYTES;
    } while (at < bytes);
    return 0;
}

int pf_mpi_send(struct pf_comm *comm, const void *buf, size_t bytes, int peer, int tag)
{
    return move(mpi_of(comm), PF_COMM_SEND, (unsigned char *)buf, bytes, peer, tag);
}

int pf_mpi_recv(struct pf_comm *comm, void *buf, size_t bytes, int peer, int tag)
{
    return move(mpi_of(comm), PF_COMM_RECV, buf, bytes, peer, tag);
}

int pf_mpi_group_start(struct pf_comm *comm)
{
    return pf_mpi_begin(mpi_of(comm), PF_COMM_GROUP);
}

int pf_mpi_group_end(struct pf_comm *comm)
{
    return pf_mpi_wait_all(mpi_of(comm));
}
