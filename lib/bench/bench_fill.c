/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for arrays: quick to make, and never zeros, on which some units are faster. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

/* Source: the multiplications and shifts of Wellons's hash prospector ("lowbias32"). */
static uint32_t scramble(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

void bench_fill(enum pf_dtype dtype, void *to, int64_t n, uint32_t stream, float lo, float hi)
{
    enum { CHUNK = 4096 };
    const uint32_t key = scramble(stream + 1);
    const size_t element = pf_dtype_bytes(dtype);
    const float scale = (hi - lo) * 0x1p-24f;
    float part[CHUNK];

    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t left = n - at < CHUNK ? n - at : CHUNK;
        for (int64_t i = 0; i < left; i++) {
            part[i] = lo + scale * (float)(scramble((uint32_t)(at + i) ^ key) >> 8);
        }
        (void)pf_dtype_convert(PF_DTYPE_F32, part, dtype, (char *)to + (size_t)at * element,
                               (size_t)left);
    }
}

void bench_fill_indices(int32_t *to, int64_t n, uint32_t stream, int64_t lo, int64_t hi)
{
    const uint32_t key = scramble(stream + 1);

    for (int64_t i = 0; i < n; i++) {
        const uint64_t word = scramble((uint32_t)i ^ key);
        to[i] = (int32_t)(lo + (int64_t)((word * (uint64_t)(hi - lo)) >> 32));
    }
}

void bench_call_release(struct bench_call *call)
{
    for (int i = 0; i < call->n_bufs; i++) {
        pf_free(call->bufs[i].data);
    }
    call->n_bufs = 0;
}

double bench_call_bytes(const struct bench_call *call)
{
    double bytes = 0;

    for (int i = 0; i < call->n_bufs; i++) {
        const struct bench_buf *const b = &call->bufs[i];
        bytes += (double)b->rows * (double)b->width * (double)pf_dtype_bytes(b->dtype);
    }
    return bytes;
}
