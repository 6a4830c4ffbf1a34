/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waits.c - how threads wait for each other where ranks share cores.
 *
 * OpenMP's threads spin for a while before they sleep, which is right where each has a core and takes
 * the core of another rank where not. GNU's runtime reads its policy before main, so the only way to
 * choose is to start again with it set. The policy changes no result.
 */
#include <pf/train.h>

#include "train_internal.h"

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ranks of this job on this host as the launcher tells them before MPI starts; 1 if it does not. */
static long ranks_here(void)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                            "PMI_LOCAL_SIZE"};

    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *const value = getenv(variables[i]);
        const long n = value ? strtol(value, NULL, 10) : 0;
        if (n > 0) {
            return n;
        }
    }
    return 1;
}

static bool shares_cores(const struct pf_config *config)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);

    return config->threads > 1 && online > 0 && config->threads * ranks_here() > online;
}

/* Start this program again with the words it was started with; returns where that cannot be. */
static void start_again(void)
{
    char *text = NULL, **words = NULL;
    size_t len = 0;

    if (pf_file_read_all("/proc/self/cmdline", (size_t)1 << 22, &text, &len) == 0) {
        words = pf_calloc_array(len + 1, sizeof *words);
    }
    for (size_t at = 0, n = 0; words && at < len; at += strlen(text + at) + 1) {
        words[n++] = text + at;
    }
    if (words && words[0]) {
        (void)execv("/proc/self/exe", words);
    }
    pf_error_clear();
    pf_free(words);
    pf_free(text);
}

int pf_trainer_wait_passively(const struct pf_config *config)
{
    if (!shares_cores(config) || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) {
        return 0;
    }
    if (setenv("OMP_WAIT_POLICY", "passive", 1) != 0) {
        return pf_fail(PF_ENOMEM, "cannot set OMP_WAIT_POLICY: %s", strerror(errno));
    }
    start_again();
    return 0;
}
