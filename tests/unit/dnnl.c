/* SPDX-License-Identifier: Apache-2.0 */
/* oneDNN behind the registry: what it allocates, and what it does when its process is bound. */
#include <config.h>
#include <pf/error.h>
#include <pf/mem.h>
#include <pf/ops.h>

#include "tap.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if PF_HAVE_DNNL

#define N 48

static float a[N * N], b[N * N], c[N * N];

static int multiply(struct pf_ops *ops, int64_t m, bool accumulate)
{
    return pf_op_gemm(ops, PF_DTYPE_F32,
                      &(struct pf_gemm_args){.m = m,
                                             .n = N,
                                             .k = N,
                                             .a = a,
                                             .lda = N,
                                             .b = b,
                                             .ldb = N,
                                             .c = c,
                                             .ldc = N,
                                             .c_dtype = PF_DTYPE_F32,
                                             .accumulate = accumulate});
}

static const char *gemm_variant(const struct pf_ops *ops)
{
    return pf_ops_chosen(ops, PF_OP_GEMM, PF_DTYPE_F32)->variant;
}

static void shapes_are_prepared_once(struct pf_ops *ops)
{
    ok(multiply(ops, N, false) == 0 && multiply(ops, N, true) == 0 && multiply(ops, 5, false) == 0,
       "three products run: %s", pf_error_message());
    const int64_t before = pf_mem_n_allocs();
    for (int step = 0; step < 3; step++) {
        (void)multiply(ops, N, false);
        (void)multiply(ops, N, true);
        (void)multiply(ops, 5, false);
    }
    ok(pf_mem_n_allocs() == before, "products of known shapes allocate nothing");
}

static void another_isa_gets_no_library(void)
{
    struct pf_ops *generic = NULL;

    ok(pf_ops_open(&(struct pf_ops_options){.n_threads = 1, .isa = "generic"}, &generic) == 0,
       "a second registry opens for another instruction set");
    ok(strcmp(gemm_variant(generic), "generic") == 0, "the library, bound already, does not serve");
    ok(multiply(generic, N, false) == 0 && c[N + 1] == (float)N * 2, "its products are right");
    ok(pf_ops_choose(generic, PF_OP_GEMM, PF_DTYPE_F32, "dnnl") == PF_ENOTSUP,
       "asking for the library is refused");
    pf_ops_free(generic);
}

/* In a process of its own, since the library is bound once. oneDNN has no such product there. */
static void bf16_is_multiplied_without_avx512(void)
{
    const pid_t child = fork();

    if (child == 0) {
        uint16_t one[4] = {0x3f80, 0x3f80, 0x3f80, 0x3f80};
        float sum[4] = {0};
        struct pf_ops *ops = NULL;
        const int opened =
            pf_ops_open(&(struct pf_ops_options){.n_threads = 1, .isa = "avx2"}, &ops);
        const struct pf_gemm_args args = {.m = 2,
                                          .n = 2,
                                          .k = 2,
                                          .a = one,
                                          .lda = 2,
                                          .b = one,
                                          .ldb = 2,
                                          .c = sum,
                                          .ldc = 2,
                                          .c_dtype = PF_DTYPE_F32};
        _exit(opened == 0 && pf_op_gemm(ops, PF_DTYPE_BF16, &args) == 0 && sum[3] == 2 ? 0 : 1);
    }
    int status = -1;
    (void)waitpid(child, &status, 0);
    ok(status == 0, "a CPU without AVX-512 multiplies BF16 too");
}

int main(void)
{
    struct pf_ops *ops = NULL;

    for (int i = 0; i < N * N; i++) {
        a[i] = 1;
        b[i] = 2;
    }
    if (strcmp(pf_ops_best_isa(), "generic") == 0) {
        skip("oneDNN behind the registry", "this CPU has one instruction set only");
        return done();
    }
    bf16_is_multiplied_without_avx512();
    ok(pf_ops_open(NULL, &ops) == 0 && strcmp(gemm_variant(ops), "dnnl") == 0,
       "oneDNN serves products by default");
    shapes_are_prepared_once(ops);
    another_isa_gets_no_library();
    pf_ops_free(ops);
    return done();
}

#else

int main(void)
{
    skip("oneDNN behind the registry", "this build has no oneDNN");
    return done();
}

#endif
