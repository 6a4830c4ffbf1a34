/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref.h - what the reference kernels share.
 *
 * The reference is written to be read and believed, not to be fast: one thread, no tricks, sums in
 * double, and each result rounded once, to fp32 and from there to the dtype of its array. Where an
 * op's definition rounds in the middle, the source says so.
 *
 * A kernel body takes the dtype as its first argument; REF_KERNEL makes the three functions that
 * the table names. They are flattened, so that the compiler sees each dtype as a constant.
 */
#ifndef PF_REF_H
#define PF_REF_H

#include <pf/kernel.h>

#include <math.h>

/* Element i of an array of dtype F32, BF16 or F16. */
static inline double ref_load(enum pf_dtype dtype, const void *x, int64_t i)
{
    switch (dtype) {
    case PF_DTYPE_BF16:
        return (double)pf_f32_from_bf16(((const uint16_t *)x)[i]);
    case PF_DTYPE_F16:
        return (double)pf_f32_from_f16(((const uint16_t *)x)[i]);
    default:
        return (double)((const float *)x)[i];
    }
}

static inline void ref_store(enum pf_dtype dtype, void *x, int64_t i, double value)
{
    switch (dtype) {
    case PF_DTYPE_BF16:
        ((uint16_t *)x)[i] = pf_bf16_from_f32((float)value);
        break;
    case PF_DTYPE_F16:
        ((uint16_t *)x)[i] = pf_f16_from_f32((float)value);
        break;
    default:
        ((float *)x)[i] = (float)value;
    }
}

/* The value that storing and loading would give. */
static inline double ref_round(enum pf_dtype dtype, double value)
{
    float slot = 0;

    ref_store(dtype, &slot, 0, value);
    return ref_load(dtype, &slot, 0);
}

/* *sum += value, rounded once. */
static inline void ref_accumulate(float *sum, double value)
{
    *sum = (float)((double)*sum + value);
}

/* Rows of elements at distance ld. */
struct ref_rows {
    const void *x;
    int64_t ld;
};

/* The rows that a norm is of: x, or x + residual, written to sum. */
static inline struct ref_rows ref_norm_rows(enum pf_dtype dtype, int64_t n_rows, int64_t width,
                                            struct ref_rows x, struct ref_rows residual, void *sum,
                                            int64_t lds)
{
    if (!residual.x) {
        return x;
    }
    for (int64_t i = 0; i < n_rows; i++) {
        for (int64_t j = 0; j < width; j++) {
            ref_store(dtype, sum, i * lds + j,
                      ref_load(dtype, x.x, i * x.ld + j) +
                          ref_load(dtype, residual.x, i * residual.ld + j));
        }
    }
    return (struct ref_rows){sum, lds};
}

/* The position of token t. */
static inline int64_t ref_position(const int32_t *positions, int64_t t, int64_t seq)
{
    return positions ? positions[t] : t % seq;
}

/* act(x) and its derivative: act.c. */
double ref_act(enum pf_act_kind act, double x);
double ref_act_slope(enum pf_act_kind act, double x);

#define REF_DECLARE(name)                                                                          \
    int pf_ref_##name##_f32(const struct pf_kctx *ctx, const void *args);                          \
    int pf_ref_##name##_bf16(const struct pf_kctx *ctx, const void *args);                         \
    int pf_ref_##name##_f16(const struct pf_kctx *ctx, const void *args)

#define REF_KERNEL(name)                                                                           \
    __attribute__((flatten)) int pf_ref_##name##_f32(const struct pf_kctx *ctx, const void *args)  \
    {                                                                                              \
        return name(PF_DTYPE_F32, ctx, args);                                                      \
    }                                                                                              \
    __attribute__((flatten)) int pf_ref_##name##_bf16(const struct pf_kctx *ctx, const void *args) \
    {                                                                                              \
        return name(PF_DTYPE_BF16, ctx, args);                                                     \
    }                                                                                              \
    __attribute__((flatten)) int pf_ref_##name##_f16(const struct pf_kctx *ctx, const void *args)  \
    {                                                                                              \
        return name(PF_DTYPE_F16, ctx, args);                                                      \
    }                                                                                              \
    _Static_assert(1, "takes the semicolon")

REF_DECLARE(gemm);
REF_DECLARE(embed_fwd);
REF_DECLARE(embed_bwd);
REF_DECLARE(rmsnorm_fwd);
REF_DECLARE(rmsnorm_bwd);
REF_DECLARE(layernorm_fwd);
REF_DECLARE(layernorm_bwd);
REF_DECLARE(rope);
REF_DECLARE(attention_fwd);
REF_DECLARE(attention_bwd);
REF_DECLARE(glu_fwd);
REF_DECLARE(glu_bwd);
REF_DECLARE(act_fwd);
REF_DECLARE(act_bwd);
REF_DECLARE(bias_grad);
REF_DECLARE(add);
REF_DECLARE(scale);
REF_DECLARE(dropout);
REF_DECLARE(cross_entropy);
REF_DECLARE(vocab_ce_fwd);
REF_DECLARE(vocab_ce_bwd);
REF_DECLARE(adamw);

#endif
