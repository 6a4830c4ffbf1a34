/* SPDX-License-Identifier: Apache-2.0 */
/* The best rate of large products: what a training step is held against. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/time.h>

enum { ROUNDS = 4 };

/* One square that fits a cache, one that does not. */
static const int64_t sides[] = {512, 1024};

static int measure(struct pf_ops *ops, enum pf_dtype dtype, int64_t side, double *flops)
{
    const struct bench_op *const op = bench_op_find(PF_OP_GEMM);
    const struct bench_shape shape = {.d = {side, side, side}, .trans_b = true};
    const double work = 2.0 * (double)side * (double)side * (double)side;
    struct bench_call call;
    int err = bench_call_build(op, ops, dtype, &shape, &call);

    for (int i = 0; !err && i < ROUNDS; i++) {
        const double started = pf_time_monotonic();
        err = op->call(ops, &call);
        const double rate = work / (pf_time_monotonic() - started);
        *flops = !err && rate > *flops ? rate : *flops;
        if (rate < *flops / 4) {
            break; /* a kernel that never comes near need not be waited for */
        }
    }
    bench_call_release(&call);
    return err;
}

/* Every kernel that is fit to serve, not only the one that does. */
int bench_measure_gemm(const struct pf_ops *like, enum pf_dtype dtype, double *flops_inout)
{
    const struct pf_ops_options options = {.n_threads = pf_ops_threads(like),
                                           .isa = pf_ops_isa(like)};
    const struct pf_kernel_row *const serving = pf_ops_chosen(like, PF_OP_GEMM, dtype);
    struct pf_ops *ops;
    struct pf_ops_row row;
    int err = 0;

    PF_TRY(pf_ops_open(&options, &ops));
    for (int i = 0; pf_ops_row(ops, PF_OP_GEMM, dtype, i, &row); i++) {
        if (!row.usable || (row.kernel->preference <= 10 && row.kernel != serving)) {
            continue; /* neither the reference nor plain C, unless it is what there is */
        }
        PF_TRY_GOTO(pf_ops_choose(ops, PF_OP_GEMM, dtype, row.kernel->variant), out);
        for (size_t s = 0; s < sizeof sides / sizeof sides[0]; s++) {
            PF_TRY_GOTO(measure(ops, dtype, sides[s], flops_inout), out);
        }
    }
out:
    pf_ops_free(ops);
    return err;
}
