/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a job that ends badly, in the way its argument says: job_ends.sh runs it under mpirun and
 * looks at the status, the message and the time. It behaves as a pf tool does: who may speak prints
 * one line, then the rank ends the job.
 */
#include <pf/comm.h>
#include <pf/error.h>
#include <pf/exit.h>
#include <pf/time.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct pf_comm *world;
static int rank, size;
static char data[64];

static int sum(struct pf_comm *comm)
{
    float x = 1;

    return pf_comm_all_reduce(comm, &x, 1, PF_COMM_F32, PF_COMM_SUM);
}

/* The last rank stops, its neighbour comes late, the others wait. */
static int stopped_rank(void)
{
    if (rank == size - 1) {
        raise(SIGSTOP);
    }
    if (rank == size - 2 && size > 2) {
        pf_time_sleep(0.7);
    }
    return sum(world);
}

/* Rank 3 stops; rank 2 waits for it in a group of two, ranks 0 and 1 wait for rank 2. */
static int stopped_behind_a_group(void)
{
    struct pf_comm *low, *high;

    PF_TRY(pf_comm_split(world, (int[]){0, 1}, 2, "low", &low));
    PF_TRY(pf_comm_split(world, (int[]){2, 3}, 2, "high", &high));
    if (rank == 3) {
        raise(SIGSTOP);
    }
    if (rank == 2) {
        pf_time_sleep(0.5);
        PF_TRY(sum(high));
    }
    return pf_comm_barrier(world);
}

/* Rank 0's deadline passes well before the others', so it is the one that speaks. */
static void let_rank_0_begin(void)
{
    if (rank != 0) {
        pf_time_sleep(0.5);
    }
}

/* Rank 0 is in groups with 1 and with 2, and has another order than they. */
static int one_of_two_groups(void)
{
    struct pf_comm *low, *high;

    PF_TRY(pf_comm_split(world, (int[]){0, 1}, 2, "low", &low));
    PF_TRY(pf_comm_split(world, (int[]){0, 2}, 2, "high", &high));
    let_rank_0_begin();
    if (rank == 1) {
        return pf_comm_barrier(world);
    }
    return pf_comm_barrier(rank == 0 ? low : high);
}

static int late_rank(void)
{
    if (rank == 1) {
        pf_time_sleep(1.5);
    }
    PF_TRY(sum(world));
    return pf_comm_barrier(world);
}

static int other_collective(void)
{
    return rank == 0 ? pf_comm_broadcast(world, data, sizeof data, 0) : pf_comm_barrier(world);
}

/* Rank 0 sends without waiting and goes on to what is another operation for rank 1. */
static int other_order(void)
{
    if (rank == 0) {
        PF_TRY(pf_comm_broadcast(world, data, sizeof data, 0));
        return sum(world);
    }
    PF_TRY(sum(world));
    return pf_comm_broadcast(world, data, sizeof data, 0);
}

static int other_size(void)
{
    return pf_comm_broadcast(world, data, rank == 0 ? 10 : 20, 0);
}

static int other_larger_size(void)
{
    return pf_comm_broadcast(world, data, rank == 0 ? 20 : 10, 0);
}

static int missing_message(void)
{
    let_rank_0_begin();
    if (rank == 0) {
        return pf_comm_recv(world, data, 8, 1, 5);
    }
    return pf_comm_barrier(world);
}

/* Rank 0 began to receive early, and waits for what never comes. */
static int missing_early_message(void)
{
    struct pf_comm_message early;

    PF_TRY(pf_comm_irecv(world, data, 8, 1, 5, &early));
    PF_TRY(sum(world));
    let_rank_0_begin();
    return rank == 0 ? pf_comm_wait(&early) : pf_comm_barrier(world);
}

static int sleeping_sender(void)
{
    struct pf_comm_message early = {0};

    if (rank == 1) {
        pf_time_sleep(30);
    }
    PF_TRY(pf_comm_irecv(world, data, 8, 1, 5, &early));
    return pf_comm_wait(&early);
}

static int short_early_message(void)
{
    struct pf_comm_message early;

    PF_TRY(rank == 0 ? pf_comm_irecv(world, data, 8, 1, 5, &early)
                     : pf_comm_isend(world, data, 4, 0, 5, &early));
    PF_TRY(pf_comm_wait(&early));
    return pf_comm_barrier(world);
}

/* Rank 1 leaves out a collective and goes on: to another one, to one of the same kind, to no other
 * (it sleeps), or to the end. job_ends.sh finds the lines by their marks. */
static int skip_first(void)
{
    float x = 1;

    return rank == 1 ? 0 : pf_comm_all_reduce(world, &x, 1, PF_COMM_F32, PF_COMM_SUM); /* SKIPPED */
}

static int skip_to_other(void)
{
    PF_TRY(skip_first());
    return pf_comm_broadcast(world, data, sizeof data, 0); /* OTHER */
}

static int skip_to_same(void)
{
    float x = 1;

    PF_TRY(skip_first());
    PF_TRY(pf_comm_all_reduce(world, &x, 1, PF_COMM_F32, PF_COMM_SUM)); /* SAME */
    return pf_comm_barrier(world);                                      /* BARRIER */
}

static int skip_to_sleep(void)
{
    PF_TRY(skip_first());
    pf_time_sleep(30);
    return 0;
}

static int skip_to_end(void)
{
    return skip_first();
}

/* The group of all has the same numbers on all ranks, but rank 1 waits elsewhere. */
static int skip_to_group(void)
{
    struct pf_comm *low;

    PF_TRY(pf_comm_split(world, (int[]){0, 1}, 2, "low", &low));
    let_rank_0_begin();
    PF_TRY(skip_first());
    return pf_comm_barrier(low); /* GROUP */
}

static int own_fault(void)
{
    if (rank == 1) {
        return pf_fail(PF_EFORMAT, "cannot read 'x'");
    }
    return pf_comm_barrier(world);
}

static int agreed_fault(void)
{
    const int err = rank == 1 ? pf_fail(PF_EFORMAT, "cannot read 'x'") : 0;

    return pf_comm_all_agree(world, err, NULL);
}

static int killed_rank(void)
{
    if (rank == 1) {
        raise(SIGKILL);
    }
    return pf_comm_barrier(world);
}

static int failed_assertion(void)
{
    if (rank == 1) {
        PF_ASSERT(rank == 0);
    }
    return pf_comm_barrier(world);
}

static void *fail_in_thread(void *unused)
{
    (void)unused;
    PF_ASSERT(rank == 0);
    return NULL;
}

static int failed_assertion_of_a_thread(void)
{
    pthread_t thread;

    if (rank == 1 && pthread_create(&thread, NULL, fail_in_thread, NULL) == 0) {
        pthread_join(thread, NULL);
    }
    return pf_comm_barrier(world);
}

static int differing_config(void)
{
    const char *config = rank == 1 ? "{\"a\":1}" : "{\"a\":2}";

    return pf_comm_same(world, config, strlen(config), "the configuration");
}

static const struct {
    const char *name;
    int (*run)(void);
} ways[] = {
    {"stopped", stopped_rank},
    {"stopped-behind-group", stopped_behind_a_group},
    {"one-of-two-groups", one_of_two_groups},
    {"late", late_rank},
    {"other-collective", other_collective},
    {"other-order", other_order},
    {"other-size", other_size},
    {"other-larger-size", other_larger_size},
    {"missing-message", missing_message},
    {"missing-early-message", missing_early_message},
    {"sleeping-sender", sleeping_sender},
    {"short-early-message", short_early_message},
    {"skip-to-other", skip_to_other},
    {"skip-to-same", skip_to_same},
    {"skip-to-sleep", skip_to_sleep},
    {"skip-to-end", skip_to_end},
    {"skip-to-group", skip_to_group},
    {"own-fault", own_fault},
    {"agreed-fault", agreed_fault},
    {"killed", killed_rank},
    {"assertion", failed_assertion},
    {"assertion-of-thread", failed_assertion_of_a_thread},
    {"config", differing_config},
};

static int (*find_way(const char *name))(void)
{
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (strcmp(name, ways[i].name) == 0) {
            return ways[i].run;
        }
    }
    fprintf(stderr, "job_end: no way called '%s'\n", name);
    exit(PF_EXIT_USAGE);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        printf("1..0 # SKIP run by job_ends.sh\n");
        return 0;
    }
    int (*const run)(void) = find_way(argv[1]);
    const struct pf_comm_options options = {.timeout_s = strtod(argv[2], NULL)};
    int err = pf_comm_init(&argc, &argv, &options, &world);

    if (err) {
        fprintf(stderr, "job_end: %s\n", pf_error_message());
        return pf_error_exit_status(err);
    }
    rank = pf_comm_rank(world);
    size = pf_comm_size(world);
    err = run();
    err = err ? err : pf_comm_finalize(world); /* END */
    if (err) {
        if (pf_comm_speaks(world)) {
            fprintf(stderr, "job_end: %s\n", pf_error_message());
        }
        pf_comm_fail(world, err);
    }
    return 0;
}
