/* SPDX-License-Identifier: Apache-2.0 */
/* A reduction that goes on while its ranks compute. */
#include "comm_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

/* Of its own, so that no message of a caller's is taken for a part of a sum. */
#define OVERLAP_TAG PF_COMM_MAX_TAG

static const char *row(const void *rows, size_t bytes, int r)
{
    return (const char *)rows + (size_t)r * bytes;
}

/* Where the part of rank r is received. */
static char *staged(const struct pf_comm_sum *sum, int r)
{
    const int i = r < sum->comm->rank ? r : r - 1;

    return (char *)sum->staging + (size_t)i * sum->bytes;
}

int pf_comm_reduce_scatter_begin(struct pf_comm *comm, const void *send, void *staging,
                                 size_t count, enum pf_comm_dtype dtype,
                                 struct pf_comm_sum *sum_out)
{
    const int n = comm->size, rank = comm->rank;
    struct pf_comm_sum *const sum = sum_out;

    *sum = (struct pf_comm_sum){
        .comm = comm, .send = send, .staging = staging, .count = count, .dtype = dtype};
    if (n > PF_COMM_SUM_RANKS || !pf_mul_size(count, pf_comm_dtype_bytes(dtype), &sum->bytes)) {
        return pf_fail(PF_EINVAL, "a reduction that is begun has at most %d ranks, not %d",
                       PF_COMM_SUM_RANKS, n);
    }
    /* Each rank begins with its neighbour, so that they do not all send to one. */
    for (int i = 1; i < n; i++) {
        const int from = (rank + n - i) % n, to = (rank + i) % n;
        PF_TRY(
            pf_comm_irecv(comm, staged(sum, from), sum->bytes, from, OVERLAP_TAG, &sum->in[from]));
        PF_TRY(pf_comm_isend(comm, row(send, sum->bytes, to), sum->bytes, to, OVERLAP_TAG,
                             &sum->out[to]));
    }
    return 0;
}

int pf_comm_reduce_scatter_end(struct pf_comm_sum *sum, void *recv)
{
    const void *parts[PF_COMM_SUM_RANKS];
    const int n = sum->comm->size;

    for (int r = 0; r < n; r++) {
        PF_TRY(pf_comm_wait(&sum->in[r]));
        parts[r] =
            r == sum->comm->rank ? (const void *)row(sum->send, sum->bytes, r) : staged(sum, r);
    }
    for (int r = 0; r < n; r++) {
        PF_TRY(pf_comm_wait(&sum->out[r]));
    }
    pf_comm_reduce_ranks(recv, parts, n, sum->count, sum->dtype, PF_COMM_SUM);
    return 0;
}
