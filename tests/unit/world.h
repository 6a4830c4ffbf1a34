/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - tests of many ranks: one line of TAP for all. */
#ifndef WORLD_H
#define WORLD_H

#include <pf/comm.h>
#include <pf/error.h>

#include "tap.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

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

static inline void world_begin(int argc, char **argv)
{
    const struct pf_comm_options options = {.timeout_s = 60};

    if (pf_comm_init(&argc, &argv, &options, &world) != 0) {
        fprintf(stderr, "%s\n", pf_error_message());
        exit(6);
    }
    rank = pf_comm_rank(world);
}

/* Returns the status for main. */
static inline int world_end(void)
{
    const int err = pf_comm_finalize(world);

    if (rank == 0) {
        ok(err == 0, "the world ends");
        return done();
    }
    return err != 0;
}

#endif
