/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exit.h - the exit statuses of every pf program. The same table stands in every man page; a number
 * is never given another meaning.
 */
#ifndef PF_EXIT_H
#define PF_EXIT_H

enum pf_exit {
    PF_EXIT_DONE = 0,
    PF_EXIT_NO = 1,     /* the answer is no: differences found, a threshold missed */
    PF_EXIT_USAGE = 2,  /* options, JSON syntax, unknown key, wrong type; refusal to overwrite */
    PF_EXIT_INPUT = 3,  /* damaged or incomplete file, impossible layout, batch or shape */
    PF_EXIT_SYSTEM = 4, /* open, read, write, space, host memory */
    PF_EXIT_DEVICE = 5, /* device or math library, device memory */
    PF_EXIT_COMM = 6,   /* a rank failed, is missing, or disagrees */
    PF_EXIT_UNSUPPORTED = 7, /* not in this build or not on this machine */
    PF_EXIT_BUG = 8,         /* bug in pf */
    PF_EXIT_NUMERIC = 9,     /* non-finite loss, proven silent corruption */
};

#endif
