/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c - a norm with a residual gives the bits of add, then norm, by every variant. */
#include <pf/ops.h>

#include "tap.h"

#include <pf/error.h>
#include <pf/rng.h>

#include <stdlib.h>
#include <string.h>

enum { ROWS = 9, MOST = 1031, N = ROWS * MOST };

static const int64_t widths[] = {1, 7, 16, 33, 64, 257, 1024, MOST};
#define N_WIDTHS (sizeof widths / sizeof widths[0])

/* Room for fp32; narrow elements take half of it. */
static char x[N * 4], residual[N * 4], weight[MOST * 4], bias[MOST * 4];

/* What a call writes. Aligned, so that it can go past the caches. */
struct result {
    _Alignas(64) char y[N * 4];
    _Alignas(64) char sum[N * 4];
    float mean[ROWS], rstd[ROWS];
};
static struct result want, got;

static void fill(enum pf_dtype dtype, uint64_t stream, size_t n, void *to)
{
    for (size_t i = 0; i < n; i++) {
        const float value = pf_rng_uniform_f32(7, stream, i) * 4 - 2;
        if (dtype == PF_DTYPE_F32) {
            ((float *)to)[i] = value;
        } else {
            ((uint16_t *)to)[i] =
                dtype == PF_DTYPE_BF16 ? pf_bf16_from_f32(value) : pf_f16_from_f32(value);
        }
    }
}

static void must(int err)
{
    if (err) {
        printf("Bail out! %s\n", pf_error_message());
        exit(1);
    }
}

/* The norm of `from`, or of it and an addend. */
static void norm(struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype, int64_t w,
                 const void *from, const void *addend, struct result *to)
{
    void *const sum = addend ? to->sum : NULL;

    if (op == PF_OP_RMSNORM_FWD) {
        must(pf_op_rmsnorm_fwd(ops, dtype,
                               &(struct pf_rmsnorm_fwd_args){.n_rows = ROWS,
                                                             .width = w,
                                                             .ldx = w,
                                                             .ldy = w,
                                                             .x = from,
                                                             .weight = weight,
                                                             .eps = 1e-5f,
                                                             .y = to->y,
                                                             .rstd = to->rstd,
                                                             .residual = addend,
                                                             .sum = sum,
                                                             .ldr = w,
                                                             .lds = w}));
        return;
    }
    must(pf_op_layernorm_fwd(ops, dtype,
                             &(struct pf_layernorm_fwd_args){.n_rows = ROWS,
                                                             .width = w,
                                                             .ldx = w,
                                                             .ldy = w,
                                                             .x = from,
                                                             .weight = weight,
                                                             .bias = bias,
                                                             .eps = 1e-5f,
                                                             .y = to->y,
                                                             .mean = to->mean,
                                                             .rstd = to->rstd,
                                                             .residual = addend,
                                                             .sum = sum,
                                                             .ldr = w,
                                                             .lds = w}));
}

static bool is_add_then_norm(struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype, int64_t w)
{
    memset(&want, 0, sizeof want);
    memset(&got, 0, sizeof got);
    must(pf_op_add(ops, dtype,
                   &(struct pf_add_args){.n = ROWS * w, .a = x, .b = residual, .y = want.sum}));
    norm(ops, op, dtype, w, want.sum, NULL, &want);
    norm(ops, op, dtype, w, x, residual, &got);
    return memcmp(&want, &got, sizeof want) == 0;
}

static void test_variants(struct pf_ops *const ops[2], enum pf_op op, enum pf_dtype dtype)
{
    struct pf_ops_row row;

    for (int i = 0; pf_ops_row(ops[0], op, dtype, i, &row); i++) {
        bool same = true;
        for (size_t w = 0; row.usable && w < 2 * N_WIDTHS; w++) {
            struct pf_ops *const o = ops[w % 2];
            must(pf_ops_choose(o, op, dtype, row.kernel->variant));
            same = same && is_add_then_norm(o, op, dtype, widths[w / 2]);
        }
        if (row.usable) {
            ok(same, "%s %s %s with a residual gives the bits of add, then norm", pf_op_name(op),
               pf_dtype_name(dtype), row.kernel->variant);
        }
    }
}

static void a_sum_needs_its_residual(struct pf_ops *ops)
{
    struct pf_rmsnorm_fwd_args args = {.n_rows = 1,
                                       .width = 3,
                                       .ldx = 3,
                                       .ldy = 3,
                                       .x = x,
                                       .weight = weight,
                                       .y = got.y,
                                       .rstd = got.rstd,
                                       .sum = got.sum,
                                       .lds = 3};

    ok(pf_op_rmsnorm_fwd(ops, PF_DTYPE_F32, &args) == PF_EINVAL, "a sum without residual fails");
    args.residual = x;
    args.ldr = 3;
    args.sum = NULL;
    ok(pf_op_rmsnorm_fwd(ops, PF_DTYPE_F32, &args) == PF_EINVAL, "a residual without sum fails");
}

int main(void)
{
    static const enum pf_dtype dtypes[] = {PF_DTYPE_F32, PF_DTYPE_BF16, PF_DTYPE_F16};
    struct pf_ops *ops[2] = {NULL};

    /* The second writes past the caches, with two threads. */
    for (int i = 0; i < 2; i++) {
        must(pf_ops_open(&(struct pf_ops_options){.n_threads = i + 1, .cache_bytes = i}, &ops[i]));
    }
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        fill(dtypes[d], 0, N, x);
        fill(dtypes[d], 1, N, residual);
        fill(dtypes[d], 2, MOST, weight);
        fill(dtypes[d], 3, MOST, bias);
        test_variants(ops, PF_OP_RMSNORM_FWD, dtypes[d]);
        test_variants(ops, PF_OP_LAYERNORM_FWD, dtypes[d]);
    }
    a_sum_needs_its_residual(ops[0]);
    for (int i = 0; i < 2; i++) {
        pf_ops_free(ops[i]);
    }
    return done();
}
