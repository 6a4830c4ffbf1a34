/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loss.c - softmax cross-entropy. A row is read for its maximum, then replaced by exponentials (of
 * fp32), then scaled: the exponential costs more than the passes, which find the row in the second-level cache.
 * While exponentials are computed the next row is fetched, so that its first pass need not wait.
 */
#include "cpu.h"

/* Vectors at a time, so that one's latency hides behind the others. */
#define WAYS 4

static float row_max(const elem *x, int64_t width)
{
    vf max[WAYS];
    int64_t i = 0;

    for (int u = 0; u < WAYS; u++) {
        max[u] = v_set(-__builtin_inff());
    }
    for (; i + WAYS * VL <= width; i += WAYS * VL) {
#pragma GCC unroll 4
        for (int u = 0; u < WAYS; u++) {
            max[u] = v_max(max[u], e_load_n(x + i + u * VL, VL));
        }
    }
    float best = v_max_lane(v_max(v_max(max[0], max[1]), v_max(max[2], max[3])));
    for (; i < width; i++) {
        const float at = e_get(x + i);
        best = at > best ? at : best;
    }
    return best;
}

/* exp(x - max) of n elements, 0 in the other lanes; kept in x where keep. */
V_INLINE vf exp_at(elem *x, float max, bool keep, int64_t n)
{
    vf e = v_exp(e_load_n(x, n) - max);

    if (n < VL) {
        e = v_select(vi_gt(vi_set((int32_t)n), vi_iota()), e, (vf){0});
    }
    if (keep) {
        e_store_n(x, e, n);
    }
    return e;
}

/* The row's exponentials and their sum; next is the row to fetch meanwhile, or NULL. */
V_INLINE float row_exp(elem *x, int64_t width, float max, bool keep, const elem *next)
{
    vf sum[WAYS] = {{0}};
    int64_t i = 0;

    for (; i + WAYS * VL <= width; i += WAYS * VL) {
#pragma GCC unroll 4
        for (int u = 0; u < WAYS; u++) {
            sum[u] += exp_at(x + i + u * VL, max, keep, VL);
        }
        for (int64_t line = 0; next && line < WAYS * VL; line += 64 / (int64_t)sizeof *x) {
            __builtin_prefetch(next + i + line, 0, 2);
        }
    }
#pragma GCC unroll 4
    for (int u = 0; u < WAYS; u++, i += VL) { /* no index may depend on the length: norm.c */
        if (i < width) {
            sum[u] += exp_at(x + i, max, keep, width - i < VL ? width - i : VL);
        }
    }
    return v_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/*
 * x = (what row_exp left) * factor: exponentials, or logits where elements are too narrow to hold
 * exponentials without a second rounding; then they are computed again.
 */
V_INLINE void softmax_at(elem *x, float max, float factor, int64_t n)
{
    const vf at = e_load_n(x, n);

    e_store_n(x, (ELEM_IS_F32 ? at : v_exp(at - max)) * factor, n);
}

static void row_with_grad(const struct pf_cross_entropy_args *a, int64_t r, const elem *next)
{
    elem *x = (elem *)a->logits + r * a->ld;
    const int32_t target = a->targets[r];

    if (target < 0) {
        a->loss[r] = 0.0f;
        memset(x, 0, (size_t)a->vocab * sizeof *x);
        return;
    }
    const float max = row_max(x, a->vocab), logit = e_get(x + target);
    const float sum = row_exp(x, a->vocab, max, ELEM_IS_F32, next), factor = a->grad_scale / sum;
    const float p = v_exp(v_set(logit - max))[0] / sum;

    a->loss[r] = s_log(sum) + (max - logit);
    V_LOOP(0, a->vocab, softmax_at(x + i, max, factor, n));
    e_put(x + target, (p - 1.0f) * a->grad_scale);
}

static void row_loss(const struct pf_cross_entropy_args *a, int64_t r, const elem *next)
{
    elem *x = (elem *)a->logits + r * a->ld;
    const int32_t target = a->targets[r];

    if (target < 0) {
        a->loss[r] = 0.0f;
        return;
    }
    const float max = row_max(x, a->vocab);
    a->loss[r] = s_log(row_exp(x, a->vocab, max, false, next)) + (max - e_get(x + target));
}

static void cross_entropy_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                               int64_t hi)
{
    const struct pf_cross_entropy_args *a = args;

    (void)ctx;
    (void)part;
    for (int64_t r = lo; r < hi; r++) {
        const elem *next = r + 1 < hi ? (const elem *)a->logits + (r + 1) * a->ld : NULL;
        if (a->with_grad) {
            row_with_grad(a, r, next);
        } else {
            row_loss(a, r, next);
        }
    }
}

int PF_CPU(cross_entropy)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_cross_entropy_args *a = args;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->vocab, cross_entropy_part);
    return 0;
}
