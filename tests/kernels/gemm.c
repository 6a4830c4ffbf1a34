/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm.c - what pf's own products promise beside being right: an element's bits depend on k alone,
 * and a fused end gives what ops of their own give.
 */
#include <pf/ops.h>

#include "tap.h"

#include <pf/error.h>
#include <pf/rng.h>

#include <stdlib.h>
#include <string.h>

enum { M = 150, N = 203, K_MOST = 2055, MAX_THREADS = 5 };

static const int64_t ks[] = {1, 2, 31, 700, 1100, K_MOST};
#define N_KS (sizeof ks / sizeof ks[0])

/* All of these are small enough to stay. a and b serve every k, transposed or not. */
static char a[M * K_MOST * 4], b[N * K_MOST * 4], x[M * N * 4], c[M * N * 4], part[M * N * 4],
    pre[M * N * 4], want[M * N * 4];

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

static struct pf_gemm_args product(int64_t k, int trans, enum pf_dtype c_dtype, void *to)
{
    const bool ta = trans & 1, tb = trans & 2;

    return (struct pf_gemm_args){.m = M,
                                 .n = N,
                                 .k = k,
                                 .a = a,
                                 .lda = ta ? M : k,
                                 .trans_a = ta,
                                 .b = b,
                                 .ldb = tb ? k : N,
                                 .trans_b = tb,
                                 .c = to,
                                 .ldc = N,
                                 .c_dtype = c_dtype};
}

/* Rows from i and columns from j on, as a call of its own; *whole changes to that call. */
static void cut(struct pf_gemm_args *g, size_t element, size_t c_element, int64_t i, int64_t j)
{
    g->a = (const char *)g->a + (size_t)(g->trans_a ? i : i * g->lda) * element;
    g->b = (const char *)g->b + (size_t)(g->trans_b ? j * g->ldb : j) * element;
    g->c = (char *)g->c + (size_t)(i * g->ldc + j) * c_element;
    g->m -= i;
    g->n -= j;
}

/* The lower right part of c alone, by another number of threads, into a copy of c. */
static bool part_is_the_same(struct pf_ops *ops, enum pf_dtype dtype, int64_t k, int trans,
                             enum pf_dtype c_dtype)
{
    struct pf_gemm_args g = product(k, trans, c_dtype, part);
    const size_t size = pf_dtype_bytes(c_dtype);

    memcpy(part, c, sizeof c);
    cut(&g, pf_dtype_bytes(dtype), size, 77, 101);
    for (int64_t i = 0; i < g.m; i++) {
        memset((char *)g.c + (size_t)(i * N) * size, 0xff, (size_t)g.n * size);
    }
    must(pf_op_gemm(ops, dtype, &g));
    return memcmp(part, c, (size_t)(M * N) * size) == 0;
}

static void bits_depend_on_k_alone(struct pf_ops *const ops[MAX_THREADS], enum pf_dtype dtype,
                                   const char *variant)
{
    bool same = true;

    for (size_t i = 0; i < N_KS * 8; i++) {
        const int trans = (int)(i % 4);
        const enum pf_dtype c_dtype = i / 4 % 2 ? dtype : PF_DTYPE_F32;
        const struct pf_gemm_args g = product(ks[i / 8], trans, c_dtype, c);
        must(pf_op_gemm(ops[0], dtype, &g));
        for (int t = 0; t < MAX_THREADS; t++) {
            same = same && part_is_the_same(ops[t], dtype, ks[i / 8], trans, c_dtype);
        }
    }
    ok(same, "gemm %s %s: an element's bits depend on k alone", pf_dtype_name(dtype), variant);
}

/* pre is the product as it is without activation, and c what act_fwd makes of it. */
static void activation_is_that_of_act_fwd(struct pf_ops *ops, enum pf_dtype dtype,
                                          const char *variant)
{
    const size_t bytes = M * N * pf_dtype_bytes(dtype);
    bool same = true;

    for (int act = PF_ACT_SILU; act <= PF_ACT_RELU; act++) {
        struct pf_gemm_args g = product(ks[act + 1], 2, dtype, want);
        g.residual = x;
        g.ldr = N;
        must(pf_op_gemm(ops, dtype, &g));
        g.c = c;
        g.activate = true;
        g.act = (enum pf_act_kind)act;
        g.pre = pre;
        g.ldp = N;
        must(pf_op_gemm(ops, dtype, &g));
        same = same && memcmp(pre, want, bytes) == 0;
        must(pf_op_act_fwd(
            ops, dtype, &(struct pf_act_fwd_args){.n = M * N, .act = g.act, .x = pre, .y = want}));
        same = same && memcmp(c, want, bytes) == 0;
    }
    ok(same, "gemm %s %s: a fused activation gives act_fwd's bits", pf_dtype_name(dtype), variant);
}

static void wrong_ends_are_refused(struct pf_ops *ops)
{
    struct pf_gemm_args g = product(3, 0, PF_DTYPE_F32, c);

    g.residual = x;
    g.ldr = N;
    ok(pf_op_gemm(ops, PF_DTYPE_BF16, &g) == PF_EINVAL, "a residual asks for a c of its dtype");
    g.c_dtype = PF_DTYPE_BF16;
    g.accumulate = true;
    ok(pf_op_gemm(ops, PF_DTYPE_BF16, &g) == PF_EINVAL, "accumulate excludes a residual");
    g.accumulate = false;
    g.ldr = N - 1;
    ok(pf_op_gemm(ops, PF_DTYPE_BF16, &g) == PF_EINVAL, "a residual's rows must not overlap");
    g.residual = NULL;
    g.activate = true;
    g.act = (enum pf_act_kind)7;
    ok(pf_op_gemm(ops, PF_DTYPE_BF16, &g) == PF_EINVAL, "an unknown activation is refused");
    pf_error_clear();
}

static bool is_library(const char *variant)
{
    return strncmp(variant, "dnnl", 4) == 0;
}

static void test_variant(struct pf_ops *const ops[MAX_THREADS], enum pf_dtype dtype,
                         const char *variant)
{
    const char *const act = is_library(variant) ? pf_ops_isa(ops[0]) : variant;

    for (int t = 0; t < MAX_THREADS; t++) {
        must(pf_ops_choose(ops[t], PF_OP_GEMM, dtype, variant));
        if (pf_ops_choose(ops[t], PF_OP_ACT_FWD, dtype, act) != 0) {
            pf_error_clear(); /* fp32 and fp16 have no rows of avx512bf16 */
        }
    }
    if (!is_library(variant)) {
        bits_depend_on_k_alone(ops, dtype, variant);
    }
    activation_is_that_of_act_fwd(ops[MAX_THREADS - 1], dtype, variant);
}

int main(void)
{
    static const enum pf_dtype dtypes[] = {PF_DTYPE_F32, PF_DTYPE_BF16, PF_DTYPE_F16};
    struct pf_ops *ops[MAX_THREADS] = {NULL};
    struct pf_ops_row row;

    for (int t = 0; t < MAX_THREADS; t++) {
        must(pf_ops_open(&(struct pf_ops_options){.n_threads = t + 1}, &ops[t]));
    }
    for (int d = 0; d < 3; d++) {
        fill(dtypes[d], 1, sizeof a / 4, a);
        fill(dtypes[d], 2, sizeof b / 4, b);
        fill(dtypes[d], 3, sizeof x / 4, x);
        for (int i = 0; pf_ops_row(ops[0], PF_OP_GEMM, dtypes[d], i, &row); i++) {
            if (row.usable && strcmp(row.kernel->variant, "ref") != 0) {
                test_variant(ops, dtypes[d], row.kernel->variant);
            }
        }
    }
    wrong_ends_are_refused(ops[0]);
    for (int t = 0; t < MAX_THREADS; t++) {
        pf_ops_free(ops[t]);
    }
    return done();
}
