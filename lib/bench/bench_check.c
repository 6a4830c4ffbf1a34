/* SPDX-License-Identifier: Apache-2.0 */
/* Is a result right? Slices of one call of the whole shape against the reference. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/tolerance.h>

#include <math.h>
#include <string.h>

enum { MAX_SLICES = 3 };

static double load(const struct bench_buf *b, int64_t i)
{
    return b->dtype == PF_DTYPE_F32    ? (double)((const float *)b->data)[i]
           : b->dtype == PF_DTYPE_BF16 ? (double)pf_f32_from_bf16(((const uint16_t *)b->data)[i])
                                       : (double)pf_f32_from_f16(((const uint16_t *)b->data)[i]);
}

/* All arrays of a small call from the whole one's: outputs that are added to as well, and inputs
 * that another op has made, so that both start from the same bits. */
static void copy_slice(const struct bench_call *whole, const struct bench_slice *slice,
                       struct bench_call *small)
{
    for (int i = 0; i < small->n_bufs; i++) {
        const struct bench_buf *const from = &whole->bufs[i], *const to = &small->bufs[i];
        const size_t element = pf_dtype_bytes(to->dtype), bytes = (size_t)to->width * element;
        for (int64_t r = 0; r < to->rows; r++) {
            const size_t at = (size_t)((slice->row[i] + r) * from->width + slice->column[i]);
            memcpy((char *)to->data + (size_t)r * bytes, (const char *)from->data + at * element,
                   bytes);
        }
    }
}

/* The worst |x - r| / (|r| + root mean square of r), infinite where x is not finite. */
static double worst_error(const struct bench_buf *got, const struct bench_buf *want, int64_t row,
                          int64_t column)
{
    const int64_t n = want->rows * want->width;
    double sum = 0, worst = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += load(want, i) * load(want, i);
    }
    const double size = sqrt(sum / (double)n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = (row + i / want->width) * got->width + column + i % want->width;
        const double x = load(got, at), r = load(want, i);
        const double error = x == r ? 0 : fabs(x - r) / (fabs(r) + size);
        worst = error <= worst ? worst : isfinite(error) ? error : INFINITY;
    }
    return worst;
}

/* Sums of the tests are up to 520 long; the rounding of longer ones grows with the root. */
static double sum_factor(const struct bench_op *op, const struct bench_shape *shape)
{
    const double n = op->sum_length ? (double)op->sum_length(shape) : 0;

    return n > 520 ? sqrt(n / 520) : 1;
}

static void weigh(const struct bench_op *op, double factor, const struct bench_call *got,
                  const struct bench_call *want, const struct bench_slice *slice,
                  struct bench_outcome *outcome)
{
    const struct pf_tolerance *const allowed = &pf_tolerances[op->op];

    for (int i = 0; i < want->n_bufs; i++) {
        const struct bench_buf *const b = &want->bufs[i];
        if (!b->is_output) {
            continue;
        }
        const double tolerance =
            b->dtype == PF_DTYPE_F32 ? allowed->pass * factor : allowed->half_pass;
        const double error = worst_error(&got->bufs[i], b, slice->row[i], slice->column[i]);
        if (error / tolerance > outcome->error / outcome->tolerance) {
            outcome->error = error;
            outcome->tolerance = tolerance;
        }
        outcome->right &= error <= tolerance;
    }
}

static bool take_slice(const struct bench_op *op, const struct bench_shape *shape, int i,
                       struct bench_slice *slice)
{
    if (op->slice) {
        return op->slice(shape, i, slice);
    }
    *slice = (struct bench_slice){.narrow = *shape};
    return i == 0;
}

int bench_check(const struct bench_op *op, enum pf_dtype dtype, const struct bench_shape *shape,
                struct pf_ops *ops, struct pf_ops *reference,
                const struct bench_contestant *contestant, struct bench_outcome *outcome_out)
{
    struct bench_call got = {.n_bufs = 0}, want[MAX_SLICES] = {{.n_bufs = 0}};
    struct bench_slice slices[MAX_SLICES];
    const double factor = sum_factor(op, shape);
    struct bench_outcome outcome = {true, 0, pf_tolerances[op->op].pass * factor};
    int n = 0, err = 0;

    PF_TRY_GOTO(bench_call_build(op, ops, dtype, shape, &got), out);
    while (n < MAX_SLICES && take_slice(op, shape, n, &slices[n])) {
        want[n] = (struct bench_call){.op = op->op, .dtype = dtype};
        op->build(&want[n], &slices[n].narrow);
        n++;
        PF_TRY_GOTO(want[n - 1].err, out);
        if (op->isolate) {
            op->isolate(&got, &slices[n - 1]);
        }
        copy_slice(&got, &slices[n - 1], &want[n - 1]);
    }
    PF_TRY_GOTO(contestant->run(contestant->state, op, &got), out);
    for (int i = 0; i < n; i++) {
        PF_TRY_GOTO(op->call(reference, &want[i]), out);
        weigh(op, factor, &got, &want[i], &slices[i], &outcome);
    }
    *outcome_out = outcome;
out:
    for (int i = 0; i < MAX_SLICES; i++) {
        bench_call_release(&want[i]);
    }
    bench_call_release(&got);
    return err;
}
