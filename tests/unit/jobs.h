/* SPDX-License-Identifier: Apache-2.0 */
/* jobs.h - tests of many ranks: one line of TAP for all, a directory that all share, and jobs of fewer
 * ranks within the world. */
#ifndef JOBS_H
#define JOBS_H

#include <pf/comm.h>
#include <pf/error.h>

#include "scratch.h"
#include "tap.h"

static struct pf_comm *world;
static int rank;

/* One line of TAP for all ranks: it holds if it holds on each. */
static inline void all_ok(bool holds, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static inline void all_ok(bool holds, const char *format, ...)
{
    const int err =
        pf_comm_all_agree(world, holds ? 0 : pf_fail(PF_EDIFFER, "%s", pf_error_message()), NULL);
    char claim[256];
    va_list args;

    va_start(args, format);
    vsnprintf(claim, sizeof claim, format, args);
    va_end(args);
    if (rank == 0) {
        ok(err == 0, "%s", claim);
        if (err) {
            printf("# %s\n", pf_error_message());
        }
    }
}

/* Join the others, and make a scratch directory for all. */
static inline void jobs_begin(int argc, char **argv)
{
    const struct pf_comm_options options = {.timeout_s = 60};

    if (pf_comm_init(&argc, &argv, &options, &world) != 0) {
        fprintf(stderr, "%s\n", pf_error_message());
        exit(6);
    }
    rank = pf_comm_rank(world);
    if (rank == 0) {
        scratch_make();
    }
    if (pf_comm_broadcast(world, scratch_dir, sizeof scratch_dir, 0) != 0) {
        exit(6);
    }
}

/* Returns the status for main. */
static inline int jobs_end(void)
{
    int status = 0;

    (void)pf_comm_barrier(world);
    if (rank == 0) {
        scratch_remove();
        status = done();
    }
    return pf_comm_finalize(world) != 0 ? 6 : status;
}

/* The first n ranks as a job of their own, at most 8; NULL on the others. */
static inline struct pf_comm *job_of(int n)
{
    static const int ranks[] = {0, 1, 2, 3, 4, 5, 6, 7};
    char name[16];
    struct pf_comm *job = NULL;

    snprintf(name, sizeof name, "job of %d", n);
    if (pf_comm_split(world, ranks, n, name, &job) != 0) {
        fprintf(stderr, "%s\n", pf_error_message());
        exit(6);
    }
    return job;
}

#endif
