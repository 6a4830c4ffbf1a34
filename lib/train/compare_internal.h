/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of --compare-layout share. */
#ifndef COMPARE_INTERNAL_H
#define COMPARE_INTERNAL_H

#include <pf/compare.h>

/* Losses and norms of two runs' directories. */
int compare_metrics(const char *one, const char *two, struct pf_compare *report);

/* The tensors of two files or directories, in the L2 norm of each; are all bits the same? */
int compare_tensors(const char *one, const char *two, struct pf_compare_row *row,
                    bool *identical_out);

#endif
