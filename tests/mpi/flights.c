/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 1 2 3 4 */
/*
 * Messages that are begun now and waited for later: as a pipeline uses them, in random orders, to
 * oneself, and as many as can be. PF_LONG=1 sends one of more than 1 GiB as well.
 */
#include <pf/comm.h>
#include <pf/error.h>
#include <pf/mem.h>

#include <stdlib.h>
#include <string.h>

#include "world.h"

static int size;

static unsigned char byte_of(int from, int to, int tag, size_t i)
{
    return (unsigned char)((size_t)from * 31 + (size_t)to * 17 + (size_t)tag * 7 + i * 13 +
                           i / 251);
}

static void fill(unsigned char *buf, size_t n, int from, int to, int tag)
{
    for (size_t i = 0; i < n; i++) {
        buf[i] = byte_of(from, to, tag, i);
    }
}

static bool holds_message(const unsigned char *buf, size_t n, int from, int to, int tag)
{
    for (size_t i = 0; i < n; i++) {
        if (buf[i] != byte_of(from, to, tag, i)) {
            pf_fail(PF_EDIFFER, "message %d to %d with tag %d: byte %zu", from, to, tag, i);
            return false;
        }
    }
    return true;
}

/* The same numbers on all ranks, or each rank its own. */
static uint64_t common = 1, own;
static int draw(uint64_t *state, int n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int)((*state >> 33) % (uint64_t)n);
}

/* A pipeline: every stage works on m micro-batches, receives each early, and waits for a send only
 * when its buffer is needed again. Stages form a ring, so that one stage is its own neighbour. */
#define N_MICRO 24
#define WIDTH ((size_t)20000) /* more than is sent without its receiver */

static bool run_pipeline(unsigned char in[2][WIDTH], unsigned char out[2][WIDTH])
{
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    struct pf_comm_message receives[2] = {0}, sends[2] = {0};
    bool holds = pf_comm_irecv(world, in[0], WIDTH, before, 0, &receives[0]) == 0;

    for (int m = 0; m < N_MICRO; m++) {
        const int b = m % 2, other = 1 - b;
        if (m + 1 < N_MICRO) {
            holds = pf_comm_irecv(world, in[other], WIDTH, before, m + 1, &receives[other]) == 0 &&
                    holds;
        }
        holds = pf_comm_wait(&sends[b]) == 0 && holds;
        fill(out[b], WIDTH, rank, next, m);
        holds = pf_comm_isend(world, out[b], WIDTH, next, m, &sends[b]) == 0 && holds;
        holds = pf_comm_progress(world) == 0 && holds;
        holds = pf_comm_wait(&receives[b]) == 0 && holds;
        holds = holds_message(in[b], WIDTH, before, rank, m) && holds;
    }
    return pf_comm_wait(&sends[0]) == 0 && pf_comm_wait(&sends[1]) == 0 && holds;
}

static void a_pipeline(void)
{
    static unsigned char in[2][WIDTH], out[2][WIDTH];
    const int64_t allocs = pf_mem_n_allocs();

    const bool holds = run_pipeline(in, out);
    all_ok(holds, "receives begun early, sends waited for when the buffer is needed again");
    all_ok(pf_mem_n_allocs() == allocs && world->n_in_flight == 0,
           "they allocate nothing and none is left");
}

/* Random messages between all pairs, begun in another random order at each rank and waited for in a
 * third, with collectives in between. */
#define N_MESSAGES 60
static const size_t sizes[] = {0, 1, 100, 4095, 5000, 70000};
#define LARGEST ((size_t)70000)

struct job {
    int from, to, tag;
    size_t bytes;
    bool sends; /* this rank's part of it */
    unsigned char *buf;
    struct pf_comm_message message;
};

static void shuffle(struct job *jobs, int n)
{
    for (int i = n - 1; i > 0; i--) {
        const int j = draw(&own, i + 1);
        const struct job swap = jobs[i];
        jobs[i] = jobs[j];
        jobs[j] = swap;
    }
}

/* This rank's parts of the next random messages, in their order. */
static int draw_jobs(struct job *jobs, unsigned char *memory)
{
    int n = 0;

    for (int k = 0; k < N_MESSAGES; k++) {
        struct job job = {.from = draw(&common, size), .to = draw(&common, size), .tag = k};
        job.bytes = sizes[draw(&common, (int)(sizeof sizes / sizeof sizes[0]))];
        for (int sends = 0; sends < 2; sends++) {
            if ((sends ? job.from : job.to) == rank) {
                job.sends = sends;
                job.buf = memory + (size_t)n * LARGEST;
                jobs[n++] = job;
            }
        }
    }
    return n;
}

static bool begin_job(struct job *job)
{
    if (job->sends) {
        fill(job->buf, job->bytes, job->from, job->to, job->tag);
        return pf_comm_isend(world, job->buf, job->bytes, job->to, job->tag, &job->message) == 0;
    }
    return pf_comm_irecv(world, job->buf, job->bytes, job->from, job->tag, &job->message) == 0;
}

static bool random_round(unsigned char *memory)
{
    struct job jobs[2 * N_MESSAGES];
    const int n = draw_jobs(jobs, memory);
    int64_t sum = rank;
    bool holds = true;

    shuffle(jobs, n);
    for (int i = 0; i < n; i++) {
        holds = begin_job(&jobs[i]) && holds;
    }
    holds = pf_comm_all_reduce(world, &sum, 1, PF_COMM_I64, PF_COMM_SUM) == 0 &&
            sum == (int64_t)size * (size - 1) / 2 && holds;
    shuffle(jobs, n);
    for (int i = 0; i < n; i++) {
        const struct job *const job = &jobs[i];
        holds = pf_comm_wait(&jobs[i].message) == 0 && !job->message.comm && holds;
        holds = (job->sends || holds_message(job->buf, job->bytes, job->from, job->to, job->tag)) &&
                holds;
    }
    return holds;
}

static void random_orders(void)
{
    unsigned char *const memory = pf_alloc(2 * N_MESSAGES * LARGEST);
    bool holds = memory != NULL;

    own = 77 + (uint64_t)rank;
    for (int i = 0; i < 25; i++) {
        holds = random_round(memory) && holds;
    }
    all_ok(holds, "messages of all pairs, begun and waited for in random orders");
    pf_free(memory);
}

/* Messages of one pair and tag keep their order, whichever side begins first, beside pf_comm_send. */
static void order_is_kept(void)
{
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    struct pf_comm_message in[6] = {0}, out[6] = {0};
    int got[6] = {0}, sent[6];
    bool holds = true;

    for (int i = 0; i < 6; i++) {
        sent[i] = 100 * rank + i;
    }
    for (int i = 0; i < 3; i++) {
        holds = pf_comm_isend(world, &sent[i], sizeof(int), next, 9, &out[i]) == 0 && holds;
    }
    for (int i = 0; i < 6; i++) {
        holds = pf_comm_irecv(world, &got[i], sizeof(int), before, 9, &in[i]) == 0 && holds;
    }
    for (int i = 3; i < 6; i++) {
        if (i == 4 && size > 1) {
            holds = pf_comm_send(world, &sent[i], sizeof(int), next, 9) == 0 && holds;
        } else {
            holds = pf_comm_isend(world, &sent[i], sizeof(int), next, 9, &out[i]) == 0 && holds;
        }
    }
    for (int i = 5; i >= 0; i--) {
        holds = pf_comm_wait(&in[i]) == 0 && pf_comm_wait(&out[i]) == 0 && holds;
        holds = got[i] == 100 * before + i && holds;
    }
    all_ok(holds, "messages of one pair and tag keep their order");
}

/* As many as can be, to oneself; one more is refused with a sentence, and leaves the others whole. */
static void no_more_than_the_limit(void)
{
    static struct pf_comm_message messages[PF_COMM_MAX_IN_FLIGHT];
    static int got[PF_COMM_MAX_IN_FLIGHT], sent[PF_COMM_MAX_IN_FLIGHT];
    struct pf_comm_message extra = {0};
    const int half = PF_COMM_MAX_IN_FLIGHT / 2;
    bool holds = true;

    for (int i = 0; i < half; i++) {
        sent[i] = 3 * i;
        holds = pf_comm_irecv(world, &got[i], sizeof(int), rank, i, &messages[i]) == 0 && holds;
        holds =
            pf_comm_isend(world, &sent[i], sizeof(int), rank, i, &messages[half + i]) == 0 && holds;
    }
    holds = pf_comm_isend(world, sent, sizeof(int), rank, 1, &extra) == PF_EINVAL && holds;
    holds = strstr(pf_error_message(), "256 messages are under way, of 256 that can be") != NULL &&
            !extra.comm && holds;
    for (int i = 0; i < 2 * half; i++) {
        holds = pf_comm_wait(&messages[i]) == 0 && holds;
    }
    for (int i = 0; i < half; i++) {
        holds = got[i] == 3 * i && holds;
    }
    all_ok(holds && world->n_in_flight == 0, "no more than the documented number");
}

static void refusals(void)
{
    struct pf_comm_message message = {0};
    int x = 0;
    bool holds = pf_comm_wait(&message) == 0;

    holds = pf_comm_isend(world, &x, 4, size, 0, &message) == PF_EINVAL && holds;
    holds = pf_comm_irecv(world, &x, 4, 0, -1, &message) == PF_EINVAL && holds;
    holds = pf_comm_group_start(world) == 0 && holds;
    holds = pf_comm_irecv(world, &x, 4, 0, 0, &message) == PF_EINVAL && holds;
    holds = pf_comm_group_end(world) == 0 && holds;
    holds = pf_comm_isend(world, &x, SIZE_MAX, 0, 0, &message) == PF_EINVAL && holds;
    all_ok(holds && !message.comm && world->n_in_flight == 0,
           "impossible messages are refused; none is no wait");
}

/* The world does not end with a message that nobody waited for; alone, one that has no counterpart
 * is told. */
static void forgotten_messages(void)
{
    struct pf_comm_message in, out;
    int got = 0;

    bool holds = pf_comm_irecv(world, &got, sizeof got, rank, 3, &in) == 0 &&
                 pf_comm_isend(world, &rank, sizeof rank, rank, 3, &out) == 0;
    holds = pf_comm_finalize(world) == PF_EINVAL &&
            strcmp(pf_error_message(), "the world ends with 2 messages under way") == 0 && holds;
    holds = pf_comm_wait(&in) == 0 && pf_comm_wait(&out) == 0 && got == rank && holds;
    if (size == 1) {
        holds = pf_comm_irecv(world, &got, sizeof got, 0, 3, &in) == 0 &&
                pf_comm_wait(&in) == PF_EDISAGREE && holds;
        holds = pf_comm_isend(world, &rank, sizeof rank, 0, 3, &out) == 0 &&
                pf_comm_irecv(world, &got, 1, 0, 3, &in) == 0 &&
                pf_comm_wait(&in) == PF_EDISAGREE && pf_comm_wait(&out) == PF_EDISAGREE && holds;
    }
    all_ok(holds && world->n_in_flight == 0, "messages that nobody waited for, or sent, are told");
}

static void more_than_a_gibibyte(void)
{
    const size_t n = ((size_t)1 << 30) + 5;
    struct pf_comm_message in = {0}, out = {0};

    if (!getenv("PF_LONG") || size > 2) {
        return;
    }
    unsigned char *const buf = rank == 0 || size == 1 ? pf_alloc(n) : NULL;
    unsigned char *const got = rank == size - 1 ? pf_alloc(n) : NULL;
    bool holds = true;
    if (got) {
        holds = pf_comm_irecv(world, got, n, 0, 1, &in) == 0;
    }
    if (buf) {
        fill(buf, n, 0, size - 1, 1);
        holds = pf_comm_isend(world, buf, n, size - 1, 1, &out) == 0 && holds;
    }
    holds = pf_comm_wait(&in) == 0 && pf_comm_wait(&out) == 0 && holds;
    all_ok(holds && (!got || holds_message(got, n, 0, size - 1, 1)), "more than a gibibyte");
    pf_free(buf);
    pf_free(got);
}

int main(int argc, char **argv)
{
    world_begin(argc, argv);
    size = pf_comm_size(world);
    a_pipeline();
    random_orders();
    order_is_kept();
    no_more_than_the_limit();
    refusals();
    forgotten_messages();
    more_than_a_gibibyte();
    return world_end();
}
