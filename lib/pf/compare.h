/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare.h - does a layout train what one process trains? A config is run twice, by one process and by
 * the ranks of a layout, and the two runs are compared: losses and gradient norms of all steps, every
 * gradient of the first, all weights after the last. For pf-train --compare-layout.
 *
 *     struct pf_compare report;
 *     PF_TRY(pf_compare_layout(&(struct pf_compare_options){.config = "config.json",
 *                                                           .layout = "tp=2,pp=2"}, &report));
 *     if (!report.within) ...
 *
 * Both are runs of pf-train as a user starts them, with the same samples, kernels and seed, in a
 * temporary directory that is removed. What the config says of its layout, of saving, sampling,
 * evaluating and resuming does not count.
 */
#ifndef PF_COMPARE_H
#define PF_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

struct pf_compare_options {
    const char *config;       /* path */
    const char *const *words; /* [n_words] key=value, over the config */
    int n_words;
    const char *layout; /* as pf_parallel_parse reads it */
    const char *launch; /* the command that starts the ranks, split at blanks; NULL: mpirun */
    int64_t steps;      /* 0: ten, or as many as the config has */
    double tolerance;   /* relative; 0: 1e-5 in float32, 1e-2 else */
    bool quiet;         /* say nothing of the runs themselves but errors */
};

#define PF_COMPARE_NAME_MAX 128

/* The largest difference of one kind, and where it is. */
struct pf_compare_row {
    const char *what;                /* "loss", ... static */
    double difference;               /* relative; of tensors in the L2 norm */
    double tolerance;                /* what is allowed; 0: not judged */
    char where[PF_COMPARE_NAME_MAX]; /* "step 3", the name of a tensor; "" without a difference */
};

enum {
    PF_COMPARE_FIRST_LOSS,
    PF_COMPARE_LOSS,
    PF_COMPARE_NORM,
    PF_COMPARE_ALL_GRADIENTS, /* as one vector */
    PF_COMPARE_GRADIENTS,     /* each by itself */
    PF_COMPARE_WEIGHTS,
    PF_COMPARE_N_ROWS
};

struct pf_compare {
    int n_ranks;
    int64_t steps;
    struct pf_compare_row rows[PF_COMPARE_N_ROWS];
    bool identical; /* all weights, to the bit */
    bool within;    /* every row that is judged is within its tolerance */
};

/*
 * What is judged: losses, norms and all gradients together by the tolerance; in float32 each gradient by
 * twice the tolerance. In narrower dtypes a tensor may have a gradient that rounding alone makes (a bias
 * of keys, whose sum is nearly zero), so single ones are shown there. Weights are shown always: AdamW
 * makes whole steps of the last bits of small gradients.
 *
 * Run and compare. Errors: those of reading the config and of the layout; that of a run which
 * fails, after it has said why on stderr; PF_EIO. Local, and not for ranks of mpirun.
 */
int pf_compare_layout(const struct pf_compare_options *options, struct pf_compare *report_out);

/*
 * Compare two runs that were made: output directories with the gradients of step 1 under dump/ and an
 * export hf/. tolerance as above, not 0; float32: the dtype of both. report->n_ranks is 0. PF_EINVAL where they logged other steps,
 * or hold other tensors; errors of reading. Local.
 */
int pf_compare_runs(const char *one, const char *two, double tolerance, bool float32,
                    struct pf_compare *report_out);

#endif
