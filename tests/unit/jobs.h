/* SPDX-License-Identifier: Apache-2.0 */
/* jobs.h - tests of many ranks: one line of TAP for all, a directory that all share, and jobs of fewer
 * ranks within the world. */
#ifndef JOBS_H
#define JOBS_H

#include <pf/comm.h>
#include <pf/error.h>

#include "scratch.h"
#include "world.h"

/* Join the others, and make a scratch directory for all. */
static inline void jobs_begin(int argc, char **argv)
{
    world_begin(argc, argv);
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
