/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h - the op registry: for each (op, dtype) the kernel that serves; one typed function an op.
 *
 * pf/kernel.h says what each op computes and what its argument struct means; this header says how
 * an op is called. A struct pf_ops holds the choice of kernels, the thread count and scratch
 * memory. It is opened once per thread of control (it is not locked: two threads need two). Kernels
 * of every table of this build are known; those that the CPU cannot run are listed but never serve.
 *
 *     struct pf_ops *ops;
 *     PF_TRY(pf_ops_open(&(struct pf_ops_options){.n_threads = 2}, &ops));
 *     PF_TRY(pf_op_add(ops, PF_DTYPE_F32, &(struct pf_add_args){.n = n, .a = a, .b = b, .y = y}));
 *     pf_ops_free(ops);
 *
 * Choice: among usable rows of an (op, dtype) the one with the highest preference, until
 * pf_ops_choose says otherwise. A result depends, to the bit, on the choice and on n_threads and on
 * nothing else; so both are recorded with a run (pf_ops_n_choices, pf_ops_choices_digest), compared
 * between ranks, and used again on resume.
 *
 * All functions are local (not collective) and blocking.
 */
#ifndef PF_OPS_H
#define PF_OPS_H

#include <pf/kernel.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pf_ops;

struct pf_ops_options {
    int n_threads; /* 0: as many as the process may use CPUs */
    /* "generic", "avx2", "avx512" or "avx512bf16" (AVX-512 with its bf16 instructions): nothing above
     * it serves. NULL: the best of this CPU. */
    const char *isa;
    bool ref_only; /* only the reference serves; so does the environment PF_KERNELS=ref */
    /* Of the last-level cache: outputs of a quarter of it and more are written past the caches, with
     * the same bits. 0: as pf_limits_cache_bytes says. */
    size_t cache_bytes;
};

/*
 * Make a registry and choose a kernel for each (op, dtype). options may be NULL (all defaults).
 * Errors: PF_EUSAGE for an unknown isa or a PF_KERNELS other than "ref" and "table", PF_ENOTSUP for an isa that
 * this CPU lacks, PF_EINVAL for a negative thread count, PF_ENOMEM, PF_EDEVICE from oneDNN.
 * The caller frees *ops_out.
 */
int pf_ops_open(const struct pf_ops_options *options, struct pf_ops **ops_out);

/* Release; NULL is allowed. */
void pf_ops_free(struct pf_ops *ops);

/* The thread count in force (at least 1), and the name of the instruction set. */
int pf_ops_threads(const struct pf_ops *ops);
const char *pf_ops_isa(const struct pf_ops *ops);

/* The best instruction set of this CPU: "generic", "avx2", "avx512" or "avx512bf16". */
const char *pf_ops_best_isa(void);

/* The version of the math library behind the "dnnl" rows, such as "oneDNN 2.6.0", or "" without. */
const char *pf_ops_library(const struct pf_ops *ops);

/* The instruction set that the library will use, in its own words ("avx512_core_bf16"): the CPU's, or
 * what a variable such as DNNL_MAX_CPU_ISA leaves of it. "" without a library. */
const char *pf_ops_library_isa(const struct pf_ops *ops);

/* The registry --------------------------------------------------------------------------------- */

/* The name of an op as it stands in files ("rmsnorm_fwd"), and back: PF_EINVAL for an unknown one.
 */
const char *pf_op_name(enum pf_op op);
int pf_op_from_name(const char *name, enum pf_op *op_out);

/* One candidate for an (op, dtype). */
struct pf_ops_row {
    const struct pf_kernel_row *kernel;
    bool usable, chosen;
    const char
        *why; /* "highest preference", "fallback", "chosen by caller", "CPU lacks avx512" ... */
};

/* Candidate i of (op, dtype), counted from 0 in falling preference (the fallback order); false when
 * there are no more. Strings live as long as ops. */
bool pf_ops_row(const struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype, int i,
                struct pf_ops_row *row_out);

/* The row that serves (op, dtype), or NULL if the pair is not built. */
const struct pf_kernel_row *pf_ops_chosen(const struct pf_ops *ops, enum pf_op op,
                                          enum pf_dtype dtype);

/* Make the row named variant serve. PF_ENOTSUP if there is none, or this CPU cannot run it. */
int pf_ops_choose(struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype, const char *variant);

/*
 * Kinds of products, each of which may be served by a row of its own: what is best for one is not for
 * the other. A kind follows from how the factors lie and from k and n, which no number of tokens
 * changes: bits do not depend on how a batch is cut. pf_ops_choose(PF_OP_GEMM) sets all kinds,
 * pf_ops_choose_product one alone.
 */
enum pf_ops_product {
    PF_OPS_PRODUCT_OTHER, /* b transposed: of a layer, forward; and whatever is none of these */
    PF_OPS_PRODUCT_LONG,  /* the same with k at least 2 n: long sums into few columns */
    PF_OPS_PRODUCT_INPUT, /* neither transposed: the gradient of an input */
    PF_OPS_PRODUCT_INPUT_LONG, /* the same with k at least 2 n */
    PF_OPS_PRODUCT_GRADIENT,   /* of a weight: a transposed, added to fp32 */
    PF_OPS_PRODUCT_COUNT
};

/* "", "long", "input", "input_long", "gradient": as records have it. */
const char *pf_ops_product_name(enum pf_ops_product product);

/* Of such a name. PF_EINVAL. */
int pf_ops_product_from_name(const char *name, enum pf_ops_product *product_out);

/* The kind of a call. */
enum pf_ops_product pf_ops_product_of(const struct pf_gemm_args *args);

int pf_ops_choose_product(struct pf_ops *ops, enum pf_dtype dtype, enum pf_ops_product product,
                          const char *variant);
const struct pf_kernel_row *pf_ops_chosen_product(const struct pf_ops *ops, enum pf_dtype dtype,
                                                  enum pf_ops_product product);

/*
 * Choose, for each dtype and kind of product, the kernel of gemm that is fastest on this machine: which that is differs between CPUs (some multiply bf16 at
 * half the rate of fp32, some at twice). The rows of libraries and pf's own best are timed in turn,
 * and one that is preferred less must take less than 0.97 of the time to be chosen. Times that
 * scatter, since others use the machine, choose nothing and are not kept. Takes
 * PF_OPS_MEASURE_SECONDS and one product at most, for the first time: results are kept in
 * $XDG_CACHE_HOME/pf (or ~/.cache/pf), one file for each CPU model, instruction set, thread count
 * and library; a file that cannot be read, or names what cannot serve here, is measured anew, and
 * one that cannot be written is not an error.
 *
 * Times differ from machine to machine and run to run: one rank measures and all follow.
 * Errors: PF_ENOMEM, PF_EDEVICE; dtypes that were not measured then keep their choice.
 */
#define PF_OPS_MEASURE_SECONDS 0.25
int pf_ops_measure(struct pf_ops *ops);

/* The same by another clock than pf_time_monotonic. */
int pf_ops_measure_by(struct pf_ops *ops, double (*clock)(void));

struct pf_ops_choice {
    enum pf_op op;
    enum pf_dtype dtype;
    enum pf_ops_product product; /* of gemm; a kind without an entry is served as OTHER */
    const char *variant;
};

/* The choices in force: how many, and choice i, 0 <= i < n, in order of op and dtype: one for each
 * pair that is served, and behind it one for each kind of product that has another. What a manifest
 * stores; feed it back in this order through pf_ops_choose, or pf_ops_choose_product. */
int pf_ops_n_choices(const struct pf_ops *ops);
struct pf_ops_choice pf_ops_choice_at(const struct pf_ops *ops, int i);

/* Who serves the (op, dtype) pairs of this machine. */
struct pf_ops_reuse {
    int n_pairs;     /* served */
    int n_own;       /* by a kernel written for this device: a row of kernels/cpu */
    int n_library;   /* by a library behind the registry: oneDNN */
    int n_reference; /* by the reference, which every device falls back to */
};

/* Count them. What is not n_own is reused: the device has no kernel of its own there, and the rate
 * of reuse is (n_library + n_reference) / n_pairs. */
struct pf_ops_reuse pf_ops_count_reuse(const struct pf_ops *ops);

/* The row of --version -v: "avx512, 2 threads, oneDNN 2.6.0; 17 of 20 ops own, ...". */
void pf_ops_version(char *text_out, size_t text_bytes);

/* A digest of the choices, thread count, instruction set and library: equal on ranks that will give
 * equal bits. Source: FNV-1a, 64 bits, over "op dtype variant\n" lines. */
uint64_t pf_ops_choices_digest(const struct pf_ops *ops);

/* Bytes of scratch that ops holds now; it only grows. After one step it no longer changes. */
size_t pf_ops_scratch_bytes(const struct pf_ops *ops);

/* Watching ------------------------------------------------------------------------------------- */

/* What an op must do at least: flop, of products alone (a multiply-add is two, causal attention half
 * of its square; 0 for the other ops), and bytes of its arrays, each counted once for each direction
 * that the op needs, whatever a kernel really moves. args must have passed the op's checks. */
struct pf_op_work {
    double flop, bytes;
};
struct pf_op_work pf_op_work(enum pf_op op, enum pf_dtype dtype, const void *args);

/* One call that has been made. Times are pf_time_monotonic's. */
struct pf_ops_call {
    enum pf_op op;
    enum pf_dtype dtype;
    const struct pf_kernel_row *kernel;
    const void *args; /* good during the observer's call only; `void *` arrays may be overwritten */
    double started, ended;
};
typedef void pf_ops_observer(void *context, const struct pf_ops_call *call);

/* Tell an observer of each call from now on, on the caller's thread; NULL: nobody, and no clock is
 * read. Results do not change. */
void pf_ops_observe(struct pf_ops *ops, pf_ops_observer *observer, void *context);

/* The ops -------------------------------------------------------------------------------------- */
/*
 * Each checks its arguments, reserves scratch and calls the chosen kernel; args is as pf/kernel.h
 * says, and nothing of it is kept. dtype is that of the `void *` arrays.
 *
 * Errors: PF_EINVAL for a negative or overflowing shape, a NULL that must not be, a leading
 * dimension below its row, a token, position or target out of range; PF_ENOTSUP if no kernel serves
 * (op, dtype); PF_ENOMEM for scratch; PF_EDEVICE from a library. Outputs are untouched after
 * PF_EINVAL, PF_ENOTSUP and PF_ENOMEM. Empty shapes succeed and do nothing.
 */
int pf_op_gemm(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_gemm_args *args);
int pf_op_embed_fwd(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_embed_fwd_args *args);
int pf_op_embed_bwd(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_embed_bwd_args *args);
int pf_op_rmsnorm_fwd(struct pf_ops *ops, enum pf_dtype dtype,
                      const struct pf_rmsnorm_fwd_args *args);
int pf_op_rmsnorm_bwd(struct pf_ops *ops, enum pf_dtype dtype,
                      const struct pf_rmsnorm_bwd_args *args);
int pf_op_layernorm_fwd(struct pf_ops *ops, enum pf_dtype dtype,
                        const struct pf_layernorm_fwd_args *args);
int pf_op_layernorm_bwd(struct pf_ops *ops, enum pf_dtype dtype,
                        const struct pf_layernorm_bwd_args *args);
int pf_op_rope(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_rope_args *args);
int pf_op_attention_fwd(struct pf_ops *ops, enum pf_dtype dtype,
                        const struct pf_attention_fwd_args *args);
int pf_op_attention_bwd(struct pf_ops *ops, enum pf_dtype dtype,
                        const struct pf_attention_bwd_args *args);
int pf_op_glu_fwd(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_glu_fwd_args *args);
int pf_op_glu_bwd(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_glu_bwd_args *args);
int pf_op_act_fwd(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_act_fwd_args *args);
int pf_op_act_bwd(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_act_bwd_args *args);
int pf_op_bias_grad(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_bias_grad_args *args);
int pf_op_add(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_add_args *args);
int pf_op_scale(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_scale_args *args);
int pf_op_dropout(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_dropout_args *args);
int pf_op_cross_entropy(struct pf_ops *ops, enum pf_dtype dtype,
                        const struct pf_cross_entropy_args *args);
int pf_op_vocab_ce_fwd(struct pf_ops *ops, enum pf_dtype dtype,
                       const struct pf_vocab_ce_fwd_args *args);
int pf_op_vocab_ce_bwd(struct pf_ops *ops, enum pf_dtype dtype,
                       const struct pf_vocab_ce_bwd_args *args);
int pf_op_adamw(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_adamw_args *args);

/*
 * What the whole vocabulary's cross-entropy is, from n_parts parts' stats [n_parts, n_rows, 3] as
 * vocab_ce_fwd leaves them and an all-gather lays them out: of each row
 *
 *     m = max m_p,  s = sum_p s_p exp(m_p - m),  loss = log s + m - sum_p target_p
 *
 * summed in the order of parts, in double, so that all ranks find the same bits. Overwrites
 * whole [n_rows, 2] with m and s, which vocab_ce_bwd wants, and loss [n_rows]; a row with target -1 has
 * m = 0, s = 1, loss 0. whole and loss must not overlap stats. Cannot fail; NaN stays NaN.
 * log(sum exp) of a row is m + log s.
 */
void pf_vocab_ce_combine(const float *stats, int n_parts, int64_t n_rows, const int32_t *targets,
                         float *whole, float *loss);

#endif
