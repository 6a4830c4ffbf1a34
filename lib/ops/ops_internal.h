/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_internal.h - what lib/ops expects of the kernel tables.
 *
 * A table is an array of struct pf_kernel_row and its length. Order inside a table does not matter:
 * the registry sorts by preference. Preferences: ref 0, generic 10, avx2 20, avx512 30, avx512bf16
 * 35, dnnl_widen 45, dnnl 50. A
 * library row that is slower than pf's own for some dtype takes a lower number.
 *
 * kernels/cpu is compiled once for each instruction set and element type, with PF_ISA defined as
 * generic, avx2, avx512 or avx512bf16 (that one for bf16 alone) and PF_ELEM as f32, bf16 or f16. kernels/cpu/table.c defines
 * pf_kernels_cpu_<PF_ISA>_<PF_ELEM>[] and its length, the same with _n; its rows carry the
 * instruction set as their variant. Every function that another file of kernels/cpu calls has both
 * in its name (PF_CPU in kernels/cpu/cpu.h).
 *
 * The registry runs a row only where the CPU can: "ref", "generic" always; "avx2" with AVX2, FMA
 * and F16C; "avx512" with F, BW, VL and DQ; "avx512bf16" with that
 * too; "dnnl" where pf_dnnl_open succeeded, whose handle is
 * then ctx->library of that row's calls (NULL for other rows).
 */
#ifndef PF_OPS_INTERNAL_H
#define PF_OPS_INTERNAL_H

#include <pf/kernel.h>

#include <stdbool.h>
#include <stddef.h>

extern const struct pf_kernel_row pf_kernels_ref[];
extern const size_t pf_kernels_ref_n;
/* Matrices between elements and fp32 (kernels/cpu/convert.c). */
typedef void pf_widen_fn(const struct pf_kctx *ctx, const void *from, int64_t ld, int64_t n_rows,
                         int64_t width, float *to);
typedef void pf_narrow_fn(const struct pf_kctx *ctx, const float *from, int64_t n_rows,
                          int64_t width, void *to, int64_t ld);

/* One table for each instruction set and element type. */
#define PF_CPU_TABLE(isa, elem)                                                                    \
    pf_widen_fn pf_cpu_widen_##isa##_##elem;                                                       \
    pf_narrow_fn pf_cpu_narrow_##isa##_##elem;                                                     \
    int pf_cpu_gemm_##isa##_##elem(const struct pf_kctx *ctx, const void *args);                   \
    int pf_cpu_act_fwd_##isa##_##elem(const struct pf_kctx *ctx, const void *args);                \
    extern const struct pf_kernel_row pf_kernels_cpu_##isa##_##elem[];                             \
    extern const size_t pf_kernels_cpu_##isa##_##elem##_n
#define PF_CPU_TABLES(isa)                                                                         \
    PF_CPU_TABLE(isa, f32);                                                                        \
    PF_CPU_TABLE(isa, bf16);                                                                       \
    PF_CPU_TABLE(isa, f16)
PF_CPU_TABLES(generic);
PF_CPU_TABLES(avx2);
PF_CPU_TABLES(avx512);
PF_CPU_TABLE(avx512bf16, bf16);

/* lib/ops/dnnl.c, in the build only where PF_HAVE_DNNL is 1. */
extern const struct pf_kernel_row pf_kernels_dnnl[];
extern const size_t pf_kernels_dnnl_n;

/* Make the library's state for n_threads, with no instruction set above isa ("generic", "avx2",
 * "avx512", "avx512bf16"). Errors: PF_ENOMEM, PF_EDEVICE. */
int pf_dnnl_open(int n_threads, const char *isa, void **library_out);
void pf_dnnl_close(void *library);
/* Can the library run this row of pf_kernels_dnnl here? Its bf16 products need AVX-512. */
bool pf_dnnl_serves(const void *library, const struct pf_kernel_row *row);
/* "oneDNN 2.6.0": of the library that is linked. Static storage. */
const char *pf_dnnl_version(void);

/* The instruction set in force, in oneDNN's words. After pf_dnnl_open: asking fixes it. */
const char *pf_dnnl_isa(void);

/* check.c: PF_EINVAL with a message if args do not fit the op; else 0 and the scratch the kernel
 * may use in *scratch_bytes_out and whether there is anything to do in *empty_out. */
int pf_ops_check(enum pf_op op, enum pf_dtype dtype, const void *args, int n_threads,
                 size_t *scratch_bytes_out, bool *empty_out);

struct pf_ops;

/* Does the environment ask for kernels by table (PF_KERNELS=table), so that none are measured? */
bool pf_ops_by_table(const struct pf_ops *ops);

#endif
