/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator of one rank: a world without mpirun, and every group of one in any world. */
#include "comm_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A message to oneself is begun inside a group and finished at its end. */
struct note {
    bool is_send;
    const void *from; /* of a send */
    void *to;         /* of a receive */
    size_t bytes;
    int tag;
    bool taken;
};

/* A message to oneself that was begun and not yet waited for: the later of the two calls moves it. */
struct flight {
    enum { FREE, SEND, RECV, MOVED, CROOKED } state;
    void *buf; /* of a send only read */
    size_t bytes;
    int tag;
    uint64_t number; /* in the order in which they were begun */
};

struct self {
    struct pf_comm base;
    struct flight flights[PF_COMM_MAX_IN_FLIGHT];
    uint64_t n_begun;
    struct note *notes;
    size_t n_notes, capacity;
};

static bool self_probe(void)
{
    return true;
}

int pf_comm_self_new(struct pf_comm *world, const char *name, int world_rank,
                     struct pf_comm **comm_out)
{
    struct self *self = pf_alloc(sizeof *self);

    if (!self) {
        return PF_ENOMEM;
    }
    const int err =
        pf_comm_base_init(&self->base, &pf_comm_ops_self, world, name, 0, 1, &world_rank);
    if (err) {
        pf_free(self);
        return err;
    }
    *comm_out = &self->base;
    return 0;
}

static int self_init(int *argc, char ***argv, const struct pf_comm_options *options,
                     struct pf_comm **world_out)
{
    (void)argc;
    (void)argv;
    (void)options; /* nobody to wait for, nothing to stage */
    return pf_comm_self_new(NULL, "world", 0, world_out);
}

static int self_all_reduce(struct pf_comm *comm, void *buf, size_t count, enum pf_comm_dtype dtype,
                           enum pf_comm_op op)
{
    const void *only = buf;

    (void)comm;
    /* The same path as with peers, so that BF16 is treated alike. */
    pf_comm_reduce_ranks(buf, &only, 1, count, dtype, op);
    return 0;
}

static int self_broadcast(struct pf_comm *comm, void *buf, size_t bytes, int root)
{
    (void)comm;
    (void)buf;
    (void)bytes;
    (void)root;
    return 0;
}

static int self_reduce(struct pf_comm *comm, void *buf, size_t count, enum pf_comm_dtype dtype,
                       enum pf_comm_op op, int root)
{
    (void)root;
    return self_all_reduce(comm, buf, count, dtype, op);
}

static int self_all_gather(struct pf_comm *comm, const void *send, void *recv, const size_t *bytes,
                           const size_t *offsets)
{
    (void)comm;
    if (bytes[0] > 0) {
        memmove((char *)recv + offsets[0], send, bytes[0]);
    }
    return 0;
}

static int self_reduce_scatter(struct pf_comm *comm, const void *send, void *recv, size_t count,
                               enum pf_comm_dtype dtype, enum pf_comm_op op)
{
    (void)comm;
    pf_comm_reduce_ranks(recv, &send, 1, count, dtype, op);
    return 0;
}

static int self_all_to_all(struct pf_comm *comm, const void *send, const size_t *send_bytes,
                           const size_t *send_offsets, void *recv, const size_t *recv_bytes,
                           const size_t *recv_offsets)
{
    if (send_bytes[0] != recv_bytes[0]) {
        return pf_fail(PF_EDISAGREE, "rank %d sends itself %zu bytes and expects %zu",
                       comm->world_ranks[0], send_bytes[0], recv_bytes[0]);
    }
    if (send_bytes[0] > 0) {
        memcpy((char *)recv + recv_offsets[0], (const char *)send + send_offsets[0], send_bytes[0]);
    }
    return 0;
}

static int add_note(struct pf_comm *comm, struct note note)
{
    struct self *self = (struct self *)comm;

    if (self->n_notes == self->capacity) {
        const size_t capacity = self->capacity ? 2 * self->capacity : 16;
        struct note *notes = pf_realloc_array(self->notes, capacity, sizeof *notes);
        if (!notes) {
            return PF_ENOMEM;
        }
        self->notes = notes;
        self->capacity = capacity;
    }
    self->notes[self->n_notes++] = note;
    return 0;
}

static int self_send(struct pf_comm *comm, const void *buf, size_t bytes, int peer, int tag)
{
    (void)peer;
    return add_note(comm, (struct note){.is_send = true, .from = buf, .bytes = bytes, .tag = tag});
}

static int self_recv(struct pf_comm *comm, void *buf, size_t bytes, int peer, int tag)
{
    (void)peer;
    return add_note(comm, (struct note){.to = buf, .bytes = bytes, .tag = tag});
}

static int self_group_start(struct pf_comm *comm)
{
    ((struct self *)comm)->n_notes = 0;
    return 0;
}

/* The first send of the tag that is not yet taken. */
static struct note *find_send(struct self *self, int tag)
{
    for (size_t i = 0; i < self->n_notes; i++) {
        struct note *note = &self->notes[i];
        if (note->is_send && note->tag == tag && !note->taken) {
            return note;
        }
    }
    return NULL;
}

static int self_group_end(struct pf_comm *comm)
{
    struct self *self = (struct self *)comm;
    size_t n_sends = 0, n_recvs = 0;

    for (size_t i = 0; i < self->n_notes; i++) {
        const struct note *recv = &self->notes[i];
        if (recv->is_send) {
            n_sends++;
            continue;
        }
        struct note *send = find_send(self, recv->tag);
        n_recvs++;
        if (!send) {
            break;
        }
        if (send->bytes != recv->bytes) {
            return pf_fail(PF_EDISAGREE, "rank %d sends itself %zu bytes and expects %zu (tag %d)",
                           comm->world_ranks[0], send->bytes, recv->bytes, recv->tag);
        }
        if (send->bytes > 0) {
            memcpy(recv->to, send->from, send->bytes);
        }
        send->taken = true;
    }
    if (n_sends != n_recvs) {
        return pf_fail(PF_EDISAGREE, "rank %d sends itself %zu messages and expects %zu",
                       comm->world_ranks[0], n_sends, n_recvs);
    }
    return 0;
}

/* The first message of the tag that waits for its counterpart in this state; -1: none. */
static int find_flight(const struct self *self, int state, int tag)
{
    int first = -1;

    for (int i = 0; i < PF_COMM_MAX_IN_FLIGHT; i++) {
        const struct flight *f = &self->flights[i];
        if ((int)f->state == state && (state == FREE || f->tag == tag) &&
            (first < 0 || f->number < self->flights[first].number)) {
            first = i;
        }
    }
    return first;
}

static void meet(struct flight *recv, struct flight *send)
{
    const bool fits = recv->bytes == send->bytes;

    if (fits && send->bytes > 0) {
        memmove(recv->buf, send->buf, send->bytes);
    }
    recv->state = fits ? MOVED : CROOKED;
    send->state = recv->state;
}

static int begin_flight(struct pf_comm *comm, bool is_send, void *buf, size_t bytes, int tag,
                        int *slot_out)
{
    struct self *self = (struct self *)comm;
    const int slot = find_flight(self, FREE, 0);
    const int other = find_flight(self, is_send ? RECV : SEND, tag);
    struct flight *mine = &self->flights[slot];

    *mine = (struct flight){.state = is_send ? SEND : RECV,
                            .buf = buf,
                            .bytes = bytes,
                            .tag = tag,
                            .number = ++self->n_begun};
    comm->world->n_in_flight++;
    if (other >= 0) {
        struct flight *theirs = &self->flights[other];
        meet(is_send ? theirs : mine, is_send ? mine : theirs);
    }
    *slot_out = slot;
    return 0;
}

static int self_isend(struct pf_comm *comm, const void *buf, size_t bytes, int peer, int tag,
                      int *slot_out)
{
    (void)peer;
    return begin_flight(comm, true, (void *)buf, bytes, tag, slot_out);
}

static int self_irecv(struct pf_comm *comm, void *buf, size_t bytes, int peer, int tag,
                      int *slot_out)
{
    (void)peer;
    return begin_flight(comm, false, buf, bytes, tag, slot_out);
}

static int self_wait(struct pf_comm *comm, int slot)
{
    struct flight *f = &((struct self *)comm)->flights[slot];
    const struct flight was = *f;

    f->state = FREE;
    comm->world->n_in_flight--;
    if (was.state == MOVED) {
        return 0;
    }
    if (was.state == CROOKED) {
        return pf_fail(PF_EDISAGREE, "rank %d sends itself another size than it expects (tag %d)",
                       comm->world_ranks[0], was.tag);
    }
    return pf_fail(PF_EDISAGREE,
                   "rank %d waits for a message %s itself that it does not %s "
                   "(tag %d)",
                   comm->world_ranks[0], was.state == SEND ? "to" : "from",
                   was.state == SEND ? "receive" : "send", was.tag);
}

static int self_progress(struct pf_comm *world)
{
    (void)world;
    return 0;
}

static int self_barrier(struct pf_comm *comm)
{
    (void)comm;
    return 0;
}

static int self_split(struct pf_comm *parent, const int *ranks, int n, int largest,
                      const char *name, struct pf_comm **group_out)
{
    (void)n;
    (void)ranks; /* checked: it is rank 0 alone */
    (void)largest;
    return pf_comm_self_new(parent->world, name, parent->world_ranks[0], group_out);
}

static int self_reserve(struct pf_comm *comm, size_t bytes)
{
    (void)comm;
    (void)bytes; /* nothing is staged */
    return 0;
}

static int self_free(struct pf_comm *comm)
{
    struct self *self = (struct self *)comm;

    pf_free(self->notes);
    pf_comm_base_release(comm);
    pf_free(self);
    return 0;
}

static void self_abort(struct pf_comm *comm, int exit_status)
{
    (void)comm;
    _exit(exit_status);
}

static void self_version(char *text_out, size_t text_bytes)
{
    snprintf(text_out, text_bytes, "%s", "");
}

const struct pf_comm_ops pf_comm_ops_self = {
    .name = "self",
    .probe = self_probe,
    .init = self_init,
    .all_reduce = self_all_reduce,
    .broadcast = self_broadcast,
    .reduce = self_reduce,
    .all_gather = self_all_gather,
    .reduce_scatter = self_reduce_scatter,
    .all_to_all = self_all_to_all,
    .send = self_send,
    .recv = self_recv,
    .group_start = self_group_start,
    .group_end = self_group_end,
    .isend = self_isend,
    .irecv = self_irecv,
    .wait = self_wait,
    .progress = self_progress,
    .barrier = self_barrier,
    .split = self_split,
    .reserve = self_reserve,
    .free = self_free,
    .abort = self_abort,
    .version = self_version,
};
