/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu.h - what the files of kernels/cpu share: names, the cut of work into parts, the kernels.
 *
 * Each file is compiled once for each instruction set and element type (elem.h), so every external
 * name goes through PF_CPU(name), which appends both. Work is cut into ctx->n_threads parts that depend on nothing but
 * the size and that number; OpenMP may run them on fewer threads without changing a bit.
 */
#ifndef PF_CPU_H
#define PF_CPU_H

#include <pf/kernel.h>

#include "elem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PF_CPU_GLUE2(a, b) a##_##b
#define PF_CPU_GLUE(a, b) PF_CPU_GLUE2(a, b)
#define PF_CPU(name) PF_CPU_GLUE(PF_CPU_GLUE(pf_cpu_##name, PF_ISA), PF_ELEM)

/* Below this many elements a second thread costs more than it saves. */
#define PF_CPU_PARALLEL_ABOVE 8192

/* Part `part` of n things cut into n_parts, boundaries at multiples of grain: [*lo_out, *hi_out). */
V_INLINE void cpu_part(int64_t n, int64_t grain, int n_parts, int part, int64_t *lo_out,
                       int64_t *hi_out)
{
    const int64_t n_grains = (n + grain - 1) / grain;
    const int64_t lo = n_grains * part / n_parts * grain;
    const int64_t hi = n_grains * (part + 1) / n_parts * grain;

    *lo_out = lo < n ? lo : n;
    *hi_out = hi < n ? hi : n;
}

/*
 * Shall y, n_rows rows of width elements, be written past the caches? From a quarter of the last one on:
 * inputs of the same size go through it too, and of what is left little waits for the next op, while
 * an ordinary store reads each line before it is written. Call e_fence at the end of a part.
 */
V_INLINE bool cpu_streams(const struct pf_kctx *ctx, const void *y, int64_t n_rows, int64_t width,
                          int64_t ld)
{
    const size_t line = 64, bytes = (size_t)(n_rows * width) * sizeof(elem);

    return ctx->cache_bytes > 0 && bytes >= ctx->cache_bytes / 4 && (uintptr_t)y % line == 0 &&
           (n_rows == 1 || (size_t)ld * sizeof(elem) % line == 0);
}

/* Things [lo, hi) of an op, as part `part`. */
typedef void (*cpu_part_fn)(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                            int64_t hi);

/* Run fn over [0, n) in ctx->n_threads parts; work is the number of elements touched. */
V_INLINE void cpu_run(const struct pf_kctx *ctx, const void *args, int64_t n, int64_t grain,
                      int64_t work, cpu_part_fn fn)
{
    const int n_parts = ctx->n_threads;

#pragma omp parallel for schedule(static, 1)                                                       \
    num_threads(n_parts) if (n_parts > 1 && work > PF_CPU_PARALLEL_ABOVE)
    for (int part = 0; part < n_parts; part++) {
        int64_t lo, hi;
        cpu_part(n, grain, n_parts, part, &lo, &hi);
        fn(ctx, args, part, lo, hi);
    }
}

/* The kernels; each as pf/kernel.h says. */
int PF_CPU(gemm)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(embed_fwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(embed_bwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(rmsnorm_fwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(rmsnorm_bwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(layernorm_fwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(layernorm_bwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(rope)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(attention_fwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(attention_bwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(glu_fwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(glu_bwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(act_fwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(act_bwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(bias_grad)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(add)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(scale)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(dropout)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(cross_entropy)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(vocab_ce_fwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(vocab_ce_bwd)(const struct pf_kctx *ctx, const void *args);
int PF_CPU(adamw)(const struct pf_kctx *ctx, const void *args);

/* n_rows rows of width elements at distance ld to fp32 rows at distance width, and back. */
void PF_CPU(widen)(const struct pf_kctx *ctx, const void *from, int64_t ld, int64_t n_rows,
                   int64_t width, float *to);
void PF_CPU(narrow)(const struct pf_kctx *ctx, const float *from, int64_t n_rows, int64_t width,
                    void *to, int64_t ld);

#endif
