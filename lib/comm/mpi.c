/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator over MPI, the only file that names mpi.h.
 *
 * Every operation is made of messages that are begun, then waited for with a deadline: MPI's own
 * collectives can neither time out nor keep a sum in rank order. The tag of a collective's messages
 * holds its kind and number, so that ranks that are at different operations do not exchange data.
 *
 * When a deadline passes, the rank asks all others over a communicator of its own (news) where they
 * are. Ranks that wait for something answer; who does not answer is computing, stopped or dead.
 * From the answers comes one sentence that names who did not arrive, and at what.
 */
#include "comm_internal.h"

#include <pf/digest.h>
#include <pf/error.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <mpi.h>

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_MAX_BYTES ((size_t)1 << 30)     /* one MPI message: its count is an int */
#define BROADCAST_CHUNK_BYTES ((size_t)1 << 20) /* so that the levels of the tree overlap */
#define SMALL_BYTES ((size_t)1024)              /* up to here one exchange beats two */
#define LINE 64                                 /* slices start at multiples of a cache line */
#define MIN_STAGING_BYTES_PER_RANK ((size_t)4096)
#define DEFAULT_SPIN_US 200.0
#define SLEEP_MIN_NS 20000
#define SLEEP_MAX_NS 500000
#define ANSWER_S 1.5 /* how long to wait for answers when a deadline has passed */

#define HISTORY 16 /* collectives of a group that a rank remembers */

#define COLLECTIVE_TAG 0x4000 /* MPI promises tags up to 32767 */
#define SEQUENCE_MASK 0x3ff

/* What a rank is waiting for: what it tells others that ask. */
struct place {
    uint64_t uid, sequence;
    int32_t kind;                 /* enum pf_comm_kind */
    int32_t peer, tag;            /* of a send or recv, peer as a world rank */
    unsigned char kinds[HISTORY]; /* of the latest collectives: number s is at s mod HISTORY */
    char group[40];
};

struct news {
    struct place place;
    int32_t world_rank;
    int32_t is_question; /* the sender's own deadline has passed */
};

/* An answer from each rank, or none yet. */
struct heard {
    bool heard, expired;
    struct place place;
};

struct request_info {
    int peer;     /* world rank */
    int expected; /* bytes of a receive, -1 for a send */
};

/* The parts that all communicators of a job share. */
struct job {
    MPI_Comm news;
    struct place place;
    struct heard *heard;      /* [world size] */
    struct news *outbox;      /* [world size] */
    MPI_Request *outbox_busy; /* [world size] */
    MPI_Request *requests;    /* those of the operation that is under way */
    struct request_info *info;
    MPI_Status *statuses;
    size_t n_requests, capacity;
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
};

static struct mpi *mpi_of(struct pf_comm *comm)
{
    return (struct mpi *)comm;
}

static int mpi_fault(struct mpi *c, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0, class = 0;

    c->base.world->broken = true;
    MPI_Error_string(code, text, &n);
    MPI_Error_class(code, &class);
    if (class == MPI_ERR_TRUNCATE) {
        return pf_fail(PF_EDISAGREE, "ranks disagree on the size of %s in group '%s'", what,
                       c->base.name);
    }
    return pf_fail(PF_ECOMM, "%s in group '%s': %s", what, c->base.name, text);
}

#define PF_MPI(c, call)                                                                            \
    do {                                                                                           \
        const int pf_mpi_code_ = (call);                                                           \
        if (pf_mpi_code_ != MPI_SUCCESS) {                                                         \
            return mpi_fault((c), pf_mpi_code_, #call);                                            \
        }                                                                                          \
    } while (0)

/* Where ranks are ---------------------------------------------------------------------------------
 */

/* Is the operation between some ranks of the group, so that its number means nothing to others? */
static bool is_messages(int32_t kind)
{
    return kind == PF_COMM_SEND || kind == PF_COMM_RECV || kind == PF_COMM_GROUP;
}

static void set_place(struct mpi *c, enum pf_comm_kind kind, int peer, int tag)
{
    struct place *place = &c->job->place;

    *place = (struct place){
        .uid = c->base.uid,
        .sequence = c->base.sequence,
        .kind = kind,
        .peer = peer < 0 ? -1 : c->base.world_ranks[peer],
        .tag = tag,
    };
    if (!is_messages(kind)) {
        c->kinds[c->base.sequence % HISTORY] = (unsigned char)kind;
    }
    memcpy(place->kinds, c->kinds, sizeof place->kinds);
    snprintf(place->group, sizeof place->group, "%s", c->base.name);
}

static void tell(struct mpi *c, int to_world_rank, bool is_question)
{
    struct job *job = c->job;
    struct news *news = &job->outbox[to_world_rank];
    MPI_Request *busy = &job->outbox_busy[to_world_rank];
    int done = 1;

    if (*busy != MPI_REQUEST_NULL) {
        MPI_Test(busy, &done, MPI_STATUS_IGNORE);
    }
    if (!done) {
        return; /* the one on its way says the same, or its reader is gone */
    }
    *news = (struct news){
        .place = job->place,
        .world_rank = c->base.world->rank,
        .is_question = is_question,
    };
    MPI_Isend(news, (int)sizeof *news, MPI_BYTE, to_world_rank, 0, job->news, busy);
}

/* Take in what other ranks say, answer those that ask. */
static void listen(struct mpi *c)
{
    struct job *job = c->job;
    const int size = c->base.world->size;
    int arrived = 0;

    while (MPI_Iprobe(MPI_ANY_SOURCE, 0, job->news, &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
           arrived) {
        struct news news;
        if (MPI_Recv(&news, (int)sizeof news, MPI_BYTE, MPI_ANY_SOURCE, 0, job->news,
                     MPI_STATUS_IGNORE) != MPI_SUCCESS ||
            news.world_rank < 0 || news.world_rank >= size) {
            return;
        }
        struct heard *heard = &job->heard[news.world_rank];
        heard->heard = true;
        heard->expired = heard->expired || news.is_question;
        heard->place = news.place;
        if (news.is_question) {
            tell(c, news.world_rank, false);
        }
    }
}

static bool all_heard(const struct mpi *c)
{
    for (int r = 0; r < c->base.world->size; r++) {
        if (r != c->base.world->rank && !c->job->heard[r].heard) {
            return false;
        }
    }
    return true;
}

static void ask_all(struct mpi *c)
{
    const int size = c->base.world->size;
    const double until = pf_time_monotonic() + ANSWER_S;

    for (int r = 0; r < size; r++) {
        if (r != c->base.world->rank) {
            tell(c, r, true);
        }
    }
    while (!all_heard(c) && pf_time_monotonic() < until) {
        listen(c);
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_MAX_NS}, NULL);
    }
    listen(c);
}

/* "all_reduce number 17 of group 'world'" */
static void describe(const struct place *place, char *text, size_t text_bytes)
{
    const char *kind = pf_comm_kind_name((enum pf_comm_kind)place->kind);

    if (place->kind == PF_COMM_SEND || place->kind == PF_COMM_RECV) {
        snprintf(text, text_bytes, "%s %s rank %d with tag %d in group '%s'", kind,
                 place->kind == PF_COMM_SEND ? "to" : "from", place->peer, place->tag,
                 place->group);
    } else if (place->kind == PF_COMM_GROUP) {
        snprintf(text, text_bytes, "%s of group '%s'", kind, place->group);
    } else {
        snprintf(text, text_bytes, "%s number %" PRIu64 " of group '%s'", kind, place->sequence,
                 place->group);
    }
}

/* Does this rank wait for that one? In a collective for all that are not past it; otherwise for the
 * peers of requests that are still open. */
static bool awaits(const struct mpi *c, int world_rank)
{
    const struct job *job = c->job;

    if (!is_messages(job->place.kind)) {
        for (int i = 0; i < c->base.size; i++) {
            if (c->base.world_ranks[i] == world_rank) {
                return world_rank != c->base.world->rank;
            }
        }
        return false;
    }
    for (size_t i = 0; i < job->n_requests; i++) {
        if (job->requests[i] != MPI_REQUEST_NULL && job->info[i].peer == world_rank) {
            return true;
        }
    }
    return false;
}

static bool is_at(const struct place *theirs, const struct place *mine)
{
    return theirs->uid == mine->uid && theirs->sequence >= mine->sequence;
}

/* Do two ranks remember the latest collective that both have begun as different ones? Its number is
 * *number_out. */
static bool contradicts(const struct place *theirs, const struct place *mine, uint64_t *number_out)
{
    const uint64_t n = theirs->sequence < mine->sequence ? theirs->sequence : mine->sequence;

    *number_out = n;
    return theirs->uid == mine->uid && n > 0 && theirs->sequence - n < HISTORY &&
           mine->sequence - n < HISTORY && theirs->kinds[n % HISTORY] != mine->kinds[n % HISTORY];
}

/* "rank 2", "ranks 2, 3 and 7", at most eight by name. Counts only those for which `silent` says
 * how they answered; awaited restricts to the ranks that this one waits for. */
static int list_silent(const struct mpi *c, bool awaited, char *text, size_t text_bytes)
{
    const int size = c->base.world->size;
    size_t used = 0;
    int n = 0;

    text[0] = '\0';
    for (int r = 0; r < size; r++) {
        if (r == c->base.world->rank || c->job->heard[r].heard || (awaited && !awaits(c, r))) {
            continue;
        }
        if (n < 8 && used + 16 < text_bytes) {
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%d", n ? ", " : "", r);
        }
        n++;
    }
    if (n > 8 && used + 24 < text_bytes) {
        snprintf(text + used, text_bytes - used, " and %d more", n - 8);
    }
    return n;
}

static int blame_contradiction(const struct mpi *c, int other, uint64_t number)
{
    const struct place *mine = &c->job->place, *theirs = &c->job->heard[other].place;
    const int me = c->base.world->rank;
    const char *my_kind = pf_comm_kind_name(mine->kinds[number % HISTORY]);
    const char *their_kind = pf_comm_kind_name(theirs->kinds[number % HISTORY]);
    const bool is_lower = me < other;

    return pf_fail(PF_EDISAGREE,
                   "ranks disagree: number %" PRIu64 " of group '%s' is %s on rank %d, %s on "
                   "rank %d",
                   number, mine->group, is_lower ? my_kind : their_kind, is_lower ? me : other,
                   is_lower ? their_kind : my_kind, is_lower ? other : me);
}

/* `other` answers, but from elsewhere; it may itself be waiting for a rank that is silent. */
static int blame_elsewhere(const struct mpi *c, int other)
{
    char mine_text[128], their_text[128], silent[96], tail[128] = "";

    describe(&c->job->place, mine_text, sizeof mine_text);
    describe(&c->job->heard[other].place, their_text, sizeof their_text);
    const int n_silent = list_silent(c, false, silent, sizeof silent);
    if (n_silent > 0) {
        snprintf(tail, sizeof tail, "; no answer from rank%s %s", n_silent > 1 ? "s" : "", silent);
    }
    return pf_fail(PF_ETIMEOUT, "rank %d did not arrive at %s within %g s: it waits at %s%s", other,
                   mine_text, c->base.world->timeout_s, their_text, tail);
}

static int blame(const struct mpi *c)
{
    const struct job *job = c->job;
    char mine_text[128], silent[96];
    uint64_t number;
    int elsewhere = -1;

    for (int r = 0; r < c->base.world->size; r++) {
        const struct heard *heard = &job->heard[r];
        if (!heard->heard || !awaits(c, r)) {
            continue;
        }
        if (contradicts(&heard->place, &job->place, &number)) {
            return blame_contradiction(c, r, number);
        }
        if (elsewhere < 0 && (is_messages(job->place.kind) || !is_at(&heard->place, &job->place))) {
            elsewhere = r;
        }
    }
    describe(&job->place, mine_text, sizeof mine_text);
    const int n_silent = list_silent(c, true, silent, sizeof silent);
    if (n_silent > 0) {
        return pf_fail(PF_ETIMEOUT, "rank%s %s did not arrive at %s within %g s",
                       n_silent > 1 ? "s" : "", silent, mine_text, c->base.world->timeout_s);
    }
    if (elsewhere >= 0) {
        return blame_elsewhere(c, elsewhere);
    }
    return pf_fail(PF_ETIMEOUT, "all ranks arrived at %s but it did not end within %g s", mine_text,
                   c->base.world->timeout_s);
}

/* Several ranks may find out at the same time: the lowest of them speaks. */
static int expire(struct mpi *c)
{
    struct job *job = c->job;

    ask_all(c);
    for (size_t i = 0; i < job->n_requests; i++) {
        int done; /* MPI_Testall leaves all as they are until the last is done */
        MPI_Test(&job->requests[i], &done, MPI_STATUS_IGNORE);
    }
    const int err = blame(c);
    bool speaks = true;

    for (int r = 0; r < c->base.world->rank; r++) {
        speaks = speaks && !job->heard[r].expired;
    }
    c->base.world->broken = true;
    pf_comm_shared_fault(speaks);
    return err;
}

/* Messages that are begun, and the wait for them --------------------------------------------------
 */

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
    char what[128];

    for (size_t i = 0; code == MPI_ERR_IN_STATUS && i < job->n_requests; i++) {
        if (job->statuses[i].MPI_ERROR != MPI_SUCCESS &&
            job->statuses[i].MPI_ERROR != MPI_ERR_PENDING) {
            code = job->statuses[i].MPI_ERROR;
        }
    }
    describe(&job->place, what, sizeof what);
    return mpi_fault(c, code, what);
}

/* A message shorter than the receiver expects is a disagreement that MPI does not report. */
static int check_lengths(struct mpi *c)
{
    const struct job *job = c->job;
    char what[128];

    for (size_t i = 0; i < job->n_requests; i++) {
        int count;
        if (job->info[i].expected < 0) {
            continue;
        }
        PF_MPI(c, MPI_Get_count(&job->statuses[i], MPI_BYTE, &count));
        if (count != job->info[i].expected) {
            c->base.world->broken = true;
            describe(&job->place, what, sizeof what);
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
static int wait_all(struct mpi *c)
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
            return expire(c);
        }
        if (waited < job->spin_s) {
            sched_yield();
            continue;
        }
        listen(c);
        nanosleep(&(struct timespec){.tv_nsec = sleep_ns}, NULL);
        sleep_ns = sleep_ns < SLEEP_MAX_NS / 2 ? 2 * sleep_ns : SLEEP_MAX_NS;
    }
    PF_TRY(check_lengths(c));
    job->n_requests = 0;
    return 0;
}

static int begin(struct mpi *c, enum pf_comm_kind kind)
{
    if (c->base.world->broken) {
        return pf_fail(PF_ECOMM, "%s in group '%s' after a failed exchange",
                       pf_comm_kind_name(kind), c->base.name);
    }
    set_place(c, kind, -1, 0);
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
    PF_TRY(wait_all(c));
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
    PF_TRY(wait_all(c));
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
    return wait_all(c);
}

static int mpi_all_reduce(struct pf_comm *comm, void *buf, size_t count, enum pf_comm_dtype dtype,
                          enum pf_comm_op op)
{
    struct mpi *c = mpi_of(comm);
    const size_t width = pf_comm_dtype_bytes(dtype);
    const size_t window = slot_bytes(c) / width * (size_t)comm->size;
    const int tag = collective_tag(c, PF_COMM_ALL_REDUCE);

    PF_TRY(begin(c, PF_COMM_ALL_REDUCE));
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

static int mpi_reduce(struct pf_comm *comm, void *buf, size_t count, enum pf_comm_dtype dtype,
                      enum pf_comm_op op, int root)
{
    struct mpi *c = mpi_of(comm);
    const size_t width = pf_comm_dtype_bytes(dtype), window = slot_bytes(c) / width;
    const int tag = collective_tag(c, PF_COMM_REDUCE);

    PF_TRY(begin(c, PF_COMM_REDUCE));
    for (size_t at = 0; at < count; at += window) {
        unsigned char *part = (unsigned char *)buf + at * width;
        const size_t n = count - at < window ? count - at : window;
        if (comm->rank != root) {
            PF_TRY(post_send(c, part, n * width, root, tag));
            PF_TRY(wait_all(c));
            continue;
        }
        for (int r = 0; r < comm->size; r++) {
            if (r != root) {
                PF_TRY(post_recv(c, slot(c, r), n * width, r, tag));
            }
        }
        PF_TRY(wait_all(c));
        reduce_slots(c, part, part, n, dtype, op);
    }
    return 0;
}

static int mpi_reduce_scatter(struct pf_comm *comm, const void *send, void *recv, size_t count,
                              enum pf_comm_dtype dtype, enum pf_comm_op op)
{
    struct mpi *c = mpi_of(comm);
    const size_t width = pf_comm_dtype_bytes(dtype), window = slot_bytes(c) / width;
    const unsigned char *rows = send;
    const int tag = collective_tag(c, PF_COMM_REDUCE_SCATTER);

    PF_TRY(begin(c, PF_COMM_REDUCE_SCATTER));
    for (size_t at = 0; at < count; at += window) {
        const size_t n = count - at < window ? count - at : window;
        for (int r = 0; r < comm->size; r++) {
            if (r != comm->rank) {
                PF_TRY(post_recv(c, slot(c, r), n * width, r, tag));
                PF_TRY(post_send(c, rows + ((size_t)r * count + at) * width, n * width, r, tag));
            }
        }
        PF_TRY(wait_all(c));
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
        PF_TRY(wait_all(c));
    }
    for (bit >>= 1; bit > 0; bit >>= 1) {
        if (place + bit < size) {
            PF_TRY(post_send(c, buf, bytes, (place + bit + root) % size, tag));
        }
    }
    return wait_all(c);
}

static int mpi_broadcast(struct pf_comm *comm, void *buf, size_t bytes, int root)
{
    struct mpi *c = mpi_of(comm);
    const int tag = collective_tag(c, PF_COMM_BROADCAST);

    PF_TRY(begin(c, PF_COMM_BROADCAST));
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

static int mpi_all_gather(struct pf_comm *comm, const void *send, void *recv, const size_t *bytes,
                          const size_t *offsets)
{
    struct mpi *c = mpi_of(comm);
    const int tag = collective_tag(c, PF_COMM_ALL_GATHER);
    const size_t most = largest(bytes, comm->size);
    unsigned char *to = recv;

    PF_TRY(begin(c, PF_COMM_ALL_GATHER));
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
        PF_TRY(wait_all(c));
    }
    if (bytes[comm->rank] > 0) {
        memmove(to + offsets[comm->rank], send, bytes[comm->rank]);
    }
    return 0;
}

/* A block of zero bytes is sent too: a pair that disagrees is then found at once. */
static int mpi_all_to_all(struct pf_comm *comm, const void *send, const size_t *send_bytes,
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

    PF_TRY(begin(c, PF_COMM_ALL_TO_ALL));
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
        PF_TRY(wait_all(c));
        at += MESSAGE_MAX_BYTES;
    } while (at < most);
    if (send_bytes[me] > 0) {
        memcpy(to + recv_offsets[me], from + send_offsets[me], send_bytes[me]);
    }
    return 0;
}

/* In round k everybody hears from the rank 2^k below: after log2(size) rounds from all. */
static int mpi_barrier(struct pf_comm *comm)
{
    struct mpi *c = mpi_of(comm);
    const int tag = collective_tag(c, PF_COMM_BARRIER), size = comm->size;

    PF_TRY(begin(c, PF_COMM_BARRIER));
    for (int step = 1; step < size; step *= 2) {
        PF_TRY(post_recv(c, NULL, 0, (comm->rank - step + size) % size, tag));
        PF_TRY(post_send(c, NULL, 0, (comm->rank + step) % size, tag));
        PF_TRY(wait_all(c));
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
        PF_TRY(begin(c, kind));
        set_place(c, kind, peer, tag);
    }
    do {
        const size_t n = chunk_at(bytes, at);
        PF_TRY(kind == PF_COMM_SEND ? post_send(c, n ? buf + at : NULL, n, peer, tag)
                                    : post_recv(c, n ? buf + at : NULL, n, peer, tag));
        if (is_alone) {
            PF_TRY(wait_all(c));
        }
        at += MESSAGE_MAX_BYTES;
    } while (at < bytes);
    return 0;
}

static int mpi_send(struct pf_comm *comm, const void *buf, size_t bytes, int peer, int tag)
{
    return move(mpi_of(comm), PF_COMM_SEND, (unsigned char *)buf, bytes, peer, tag);
}

static int mpi_recv(struct pf_comm *comm, void *buf, size_t bytes, int peer, int tag)
{
    return move(mpi_of(comm), PF_COMM_RECV, buf, bytes, peer, tag);
}

static int mpi_group_start(struct pf_comm *comm)
{
    return begin(mpi_of(comm), PF_COMM_GROUP);
}

static int mpi_group_end(struct pf_comm *comm)
{
    return wait_all(mpi_of(comm));
}

/* Life --------------------------------------------------------------------------------------------
 */

static bool mpi_probe(void)
{
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};

    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        if (getenv(signs[i])) {
            return true;
        }
    }
    return false;
}

static int mpi_reserve(struct pf_comm *comm, size_t bytes)
{
    struct job *job = mpi_of(comm)->job;
    const size_t least = MIN_STAGING_BYTES_PER_RANK * (size_t)comm->world->size;

    if (bytes < least) {
        bytes = least;
    }
    if (bytes <= job->staging_bytes) {
        return 0;
    }
    unsigned char *staging = pf_alloc(bytes);
    if (!staging) {
        return PF_ENOMEM;
    }
    pf_free(job->staging);
    job->staging = staging;
    job->staging_bytes = bytes;
    return 0;
}

static int allocate_job(struct job *job, int size)
{
    const size_t n = (size_t)size;

    job->capacity = 2 * n + 64;
    job->heard = pf_calloc_array(n, sizeof *job->heard);
    job->outbox = pf_calloc_array(n, sizeof *job->outbox);
    job->outbox_busy = pf_calloc_array(n, sizeof *job->outbox_busy);
    job->requests = pf_calloc_array(job->capacity, sizeof *job->requests);
    job->info = pf_calloc_array(job->capacity, sizeof *job->info);
    job->statuses = pf_calloc_array(job->capacity, sizeof *job->statuses);
    job->sources = pf_calloc_array(n, sizeof *job->sources);
    if (!job->heard || !job->outbox || !job->outbox_busy || !job->requests || !job->info ||
        !job->statuses || !job->sources) {
        return PF_ENOMEM;
    }
    for (size_t r = 0; r < n; r++) {
        job->outbox_busy[r] = MPI_REQUEST_NULL;
    }
    return 0;
}

static void free_job(struct job *job)
{
    pf_free(job->heard);
    pf_free(job->outbox);
    pf_free(job->outbox_busy);
    pf_free(job->requests);
    pf_free(job->info);
    pf_free(job->statuses);
    pf_free(job->sources);
    pf_free(job->staging);
    pf_free(job);
}

static int new_instance(struct pf_comm *world, struct job *job, const char *name, int rank,
                        int size, const int *world_ranks, struct mpi **c_out)
{
    struct mpi *c = pf_alloc(sizeof *c);

    if (!c) {
        return PF_ENOMEM;
    }
    const int err =
        pf_comm_base_init(&c->base, &pf_comm_ops_mpi, world, name, rank, size, world_ranks);
    if (err) {
        pf_free(c);
        return err;
    }
    c->job = job;
    c->comm = MPI_COMM_NULL;
    *c_out = c;
    return 0;
}

static int new_world(struct mpi **c_out)
{
    int rank, size;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *ranks = pf_calloc_array((size_t)size, sizeof *ranks);
    struct job *job = pf_alloc(sizeof *job);
    int err = ranks && job ? allocate_job(job, size) : PF_ENOMEM;
    for (int r = 0; !err && r < size; r++) {
        ranks[r] = r;
    }
    if (!err) {
        err = new_instance(NULL, job, "world", rank, size, ranks, c_out);
    }
    if (err && job) {
        free_job(job);
    }
    pf_free(ranks);
    return err;
}

/* How many ranks of the job are on this host, and which of them is this one. */
static int find_local(struct mpi *c)
{
    MPI_Comm local;

    PF_MPI(c, MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, c->base.rank, MPI_INFO_NULL,
                                  &local));
    MPI_Comm_rank(local, &c->base.local_rank);
    MPI_Comm_size(local, &c->base.local_size);
    PF_MPI(c, MPI_Comm_free(&local));
    return 0;
}

static int open_world(struct mpi *c, const struct pf_comm_options *options)
{
    PF_MPI(c, MPI_Comm_dup(MPI_COMM_WORLD, &c->comm));
    PF_MPI(c, MPI_Comm_dup(MPI_COMM_WORLD, &c->job->news));
    PF_TRY(find_local(c));
    c->job->spin_s = (options->spin_us > 0 ? options->spin_us : DEFAULT_SPIN_US) * 1e-6;
    return mpi_reserve(&c->base, options->staging_bytes > 0 ? options->staging_bytes
                                                            : COMM_DEFAULT_STAGING_BYTES);
}

/*
 * Until the world is there MPI waits for all ranks without end, and cannot be asked to give up. A
 * thread that makes no call of MPI looks at the clock, and ends this process if the start takes longer
 * than any other wait may; mpirun then ends the others.
 */
struct start_watch {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    double timeout_s;
    bool up, running;
};

/* This rank as the launcher numbers it; 0 where it does not say. */
static long launcher_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *const text = getenv(names[i]);
        if (text) {
            return strtol(text, NULL, 10);
        }
    }
    return 0;
}

static void *watch_start(void *arg)
{
    struct start_watch *const w = arg;
    const long rank = launcher_rank();
    /* One after the other, so that only the first one speaks. */
    const double end = pf_time_wall() + w->timeout_s +
                       0.5 * (double)(rank < 0    ? 0
                                      : rank < 20 ? rank
                                                  : 20);
    const struct timespec until = {.tv_sec = (time_t)end,
                                   .tv_nsec = (long)((end - (double)(time_t)end) * 1e9)};
    int code = 0;

    pthread_mutex_lock(&w->mutex);
    while (!w->up && code == 0) {
        code = pthread_cond_timedwait(&w->changed, &w->mutex, &until);
    }
    const bool late = !w->up;
    pthread_mutex_unlock(&w->mutex);
    if (late) {
        /* Who sees it much too late was stopped himself; the others have told of it. */
        if (pf_time_wall() - end < 0.4) {
            pf_log_error(NULL, "not all ranks have started within %g s", w->timeout_s);
        }
        _exit(pf_error_exit_status(PF_ETIMEOUT));
    }
    return NULL;
}

static void watch_begin(struct start_watch *w, double timeout_s)
{
    *w = (struct start_watch){.timeout_s = timeout_s > 0 ? timeout_s : COMM_DEFAULT_TIMEOUT_S};
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    /* Beyond a year (or where there are no threads) nobody waits to see it. */
    w->running = w->timeout_s < 3e7 && pthread_create(&w->thread, NULL, watch_start, w) == 0;
}

static void watch_end(struct start_watch *w)
{
    pthread_mutex_lock(&w->mutex);
    w->up = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    if (w->running) {
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
}

static int start_mpi(int *argc, char ***argv, const struct pf_comm_options *options,
                     struct mpi **c_out)
{
    int provided = 0;
    struct mpi *c;
    const int code = MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);

    if (code != MPI_SUCCESS || provided < MPI_THREAD_FUNNELED) {
        return pf_fail(PF_ECOMM, "MPI does not start (code %d, thread level %d)", code, provided);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    PF_TRY(new_world(&c));
    PF_TRY(open_world(c, options));
    *c_out = c;
    return 0;
}

static int mpi_init(int *argc, char ***argv, const struct pf_comm_options *options,
                    struct pf_comm **world_out)
{
    struct start_watch watch;
    struct mpi *c = NULL;
    int is_up = 0;

    MPI_Initialized(&is_up);
    if (is_up) {
        return pf_fail(PF_EINVAL, "MPI can be started only once in a process");
    }
    watch_begin(&watch, options->timeout_s);
    const int err = start_mpi(argc, argv, options, &c);
    watch_end(&watch);
    PF_TRY(err);
    *world_out = &c->base;
    return 0;
}

/* The MPI part of a group; ranks outside it get MPI_COMM_NULL. */
static int create(struct mpi *parent, const int *ranks, int n, MPI_Comm *comm_out)
{
    MPI_Group all, some;

    PF_MPI(parent, MPI_Comm_group(parent->comm, &all));
    PF_MPI(parent, MPI_Group_incl(all, n, ranks, &some));
    PF_MPI(parent, MPI_Comm_create(parent->comm, some, comm_out));
    PF_MPI(parent, MPI_Group_free(&some));
    PF_MPI(parent, MPI_Group_free(&all));
    return 0;
}

static int mpi_split(struct pf_comm *parent, const int *ranks, int n, const char *name,
                     struct pf_comm **group_out)
{
    struct mpi *p = mpi_of(parent), *c = NULL;
    int mine = -1, err;

    for (int i = 0; i < n; i++) {
        mine = ranks[i] == parent->rank ? i : mine;
    }
    if (n == 1) {
        *group_out = NULL;
        return mine < 0 ? 0
                        : pf_comm_self_new(parent->world, name, parent->world_ranks[parent->rank],
                                           group_out);
    }
    int *world_ranks = pf_calloc_array((size_t)n, sizeof *world_ranks);
    if (!world_ranks) {
        return PF_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        world_ranks[i] = parent->world_ranks[ranks[i]];
    }
    MPI_Comm comm = MPI_COMM_NULL;
    PF_TRY_GOTO(create(p, ranks, n, &comm), out);
    if (mine >= 0) {
        PF_TRY_GOTO(new_instance(parent->world, p->job, name, mine, n, world_ranks, &c), out);
        c->comm = comm;
    }
    *group_out = c ? &c->base : NULL;
out:
    pf_free(world_ranks);
    return err;
}

static int close_world(struct mpi *c)
{
    for (int r = 0; r < c->base.size; r++) {
        if (c->job->outbox_busy[r] != MPI_REQUEST_NULL) {
            MPI_Request_free(&c->job->outbox_busy[r]);
        }
    }
    PF_MPI(c, MPI_Comm_free(&c->job->news));
    PF_MPI(c, MPI_Comm_free(&c->comm));
    PF_MPI(c, MPI_Finalize());
    free_job(c->job);
    return 0;
}

static int mpi_free(struct pf_comm *comm)
{
    struct mpi *c = mpi_of(comm);

    if (comm->world == comm) {
        PF_TRY(close_world(c));
    } else {
        PF_MPI(c, MPI_Comm_free(&c->comm));
    }
    pf_comm_base_release(comm);
    pf_free(c);
    return 0;
}

static void mpi_abort(struct pf_comm *comm, int exit_status)
{
    (void)comm;
    MPI_Abort(MPI_COMM_WORLD, exit_status);
    _exit(exit_status);
}

static void mpi_version(char *text_out, size_t text_bytes)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;

    MPI_Get_library_version(text, &n);
    text[strcspn(text, ",\n")] = '\0'; /* the rest is who built it */
    snprintf(text_out, text_bytes, "%s", text);
}

const struct pf_comm_ops pf_comm_ops_mpi = {
    .name = "mpi",
    .probe = mpi_probe,
    .init = mpi_init,
    .all_reduce = mpi_all_reduce,
    .broadcast = mpi_broadcast,
    .reduce = mpi_reduce,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .all_to_all = mpi_all_to_all,
    .send = mpi_send,
    .recv = mpi_recv,
    .group_start = mpi_group_start,
    .group_end = mpi_group_end,
    .barrier = mpi_barrier,
    .split = mpi_split,
    .reserve = mpi_reserve,
    .free = mpi_free,
    .abort = mpi_abort,
    .version = mpi_version,
};
