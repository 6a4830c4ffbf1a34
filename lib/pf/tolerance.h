/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tolerance.h - how far a kernel's results may be from the reference's, for its tests and for what
 * measures it.
 *
 * The error of an element x against the reference r is |x - r| / (|r| + root mean square of r), and
 * the worst element counts. Above `warn` it is told, above `pass` the kernel is wrong. `half` is for
 * BF16 and F16 results, whose last bit is 2^-9 (BF16) of the value; fp32 results of half inputs use
 * the fp32 columns.
 */
#ifndef PF_TOLERANCE_H
#define PF_TOLERANCE_H

#include <pf/kernel.h>

struct pf_tolerance {
    double warn, pass, half_warn, half_pass;
};

extern const struct pf_tolerance pf_tolerances[PF_OP_COUNT];

#endif
