/* SPDX-License-Identifier: Apache-2.0 */
/* diff_internal.h - the comparison of elements, and its buffers. */
#ifndef DIFF_INTERNAL_H
#define DIFF_INTERNAL_H

#include <pf/inspect.h>

/* Elements compared at a time. */
#define DIFF_CHUNK ((size_t)1 << 18)

struct diff_buffers {
    void *raw_a, *raw_b;         /* as stored: DIFF_CHUNK elements of at most 8 bytes */
    double *number_a, *number_b; /* the same as numbers */
};

int diff_buffers_init(struct diff_buffers *buffers_out);
void diff_buffers_release(struct diff_buffers *buffers);

/*
 * Compare the elements of two tensors of one shape, a of ckpt_a and b of ckpt_b, whose dtypes are
 * equal or both floating. *bits_equal_out: did all elements have the same bits, or numbers where the
 * dtypes differ? The progress goes on from *done, which is advanced by the bytes of a.
 */
int diff_values(const struct pf_ckpt *ckpt_a, const struct pf_ckpt_tensor *a,
                const struct pf_ckpt *ckpt_b, const struct pf_ckpt_tensor *b,
                const struct pf_inspect_tolerance *tolerance, const struct diff_buffers *buffers,
                const struct pf_inspect_progress *progress, uint64_t *done, uint64_t total,
                struct pf_inspect_values *values_out, bool *bits_equal_out);

#endif
