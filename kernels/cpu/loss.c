/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loss.c - softmax cross-entropy, of whole rows and of parts. A row is read for its maximum, then its exponentials are computed
 * once and kept in fp32, in place or (halves) in scratch, and then scaled: the exponential costs more
 * than the passes, which find the row in the second-level cache. While exponentials are computed the
 * next row is fetched, so that its first pass need not wait. Of a part of a row the exponentials must
 * be computed again: what they are divided by is known only when all parts are.
 */
#include "cpu.h"
#include "pair.h"

V_INLINE struct pair pair_max(struct pair a, struct pair b)
{
    return (struct pair){v_max(a.a, b.a), v_max(a.b, b.b)};
}

static float row_max(const elem *x, int64_t width)
{
    const vf least = v_set(-__builtin_inff());
    struct pair max[2] = {{least, least}, {least, least}};
    int64_t i = 0;

    for (; i + 2 * PL <= width; i += 2 * PL) {
        max[0] = pair_max(max[0], pair_load(x + i, PL));
        max[1] = pair_max(max[1], pair_load(x + i + PL, PL));
    }
    const struct pair both = pair_max(max[0], max[1]);
    float best = v_max_lane(v_max(both.a, both.b));
    for (; i < width; i++) {
        const float at = e_get(x + i);
        best = at > best ? at : best;
    }
    return best;
}

/* exp(x - max) of n elements, 0 in the other lanes. */
V_INLINE struct pair exp_at(const elem *x, float max, int64_t n)
{
    const struct pair at = pair_load(x, n);

    return pair_first((struct pair){v_exp_below(at.a - max), v_exp_below(at.b - max)}, n);
}

/* Where a row's exponentials are kept: the row itself or, for halves, scratch. */
V_INLINE float *exp_place(elem *row, float *scratch)
{
    return ELEM_IS_F32 ? (float *)(void *)row : scratch;
}

V_INLINE void exp_keep(float *kept, struct pair e, int64_t n)
{
    if (ELEM_IS_F32) {
        pair_put((elem *)(void *)kept, e, n, false);
    } else {
        pair_put_beside(kept, e);
    }
}

/* The sum of the row's exponentials; they are kept where keep (a constant). next is the row to fetch
 * meanwhile, or NULL. */
V_INLINE float row_exp(const elem *x, int64_t width, float max, bool keep, float *kept,
                       const elem *next)
{
    struct pair sum[2] = {{{0}, {0}}, {{0}, {0}}};
    int64_t i = 0;

    for (; i + 2 * PL <= width; i += 2 * PL) {
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++) {
            const struct pair e = exp_at(x + i + u * PL, max, PL);
            if (keep) {
                exp_keep(kept + i + u * PL, e, PL);
            }
            sum[u] = pair_add(sum[u], e);
        }
        for (int64_t line = 0; next && line < 2 * PL; line += 64 / (int64_t)sizeof *x) {
            __builtin_prefetch(next + i + line, 0, 2);
        }
    }
    for (; i < width; i += PL) {
        const int64_t n = width - i < PL ? width - i : PL;
        const struct pair e = exp_at(x + i, max, n);
        if (keep) {
            exp_keep(kept + i, e, n);
        }
        sum[0] = pair_add(sum[0], e);
    }
    return v_sum((sum[0].a + sum[1].a) + (sum[0].b + sum[1].b));
}

/* x = (what row_exp kept) * factor */
V_INLINE void softmax_at(elem *x, const float *kept, float factor, int64_t n)
{
    const struct pair e = ELEM_IS_F32 ? pair_load(x, n) : pair_beside(kept);

    pair_put(x, pair_scale(e, factor), n, false);
}

static void row_with_grad(const struct pf_cross_entropy_args *a, int64_t r, float *kept,
                          const elem *next)
{
    elem *x = (elem *)a->logits + r * a->ld;
    const int32_t target = a->targets[r];

    if (target < 0) {
        a->loss[r] = 0.0f;
        memset(x, 0, (size_t)a->vocab * sizeof *x);
        return;
    }
    const float max = row_max(x, a->vocab), logit = e_get(x + target);
    const float sum = row_exp(x, a->vocab, max, true, exp_place(x, kept), next),
                factor = a->grad_scale / sum;
    const float p = v_exp(v_set(logit - max))[0] / sum;

    a->loss[r] = s_log(sum) + (max - logit);
    P_LOOP(0, a->vocab, softmax_at(x + i, kept + i, factor, n));
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
    a->loss[r] = s_log(row_exp(x, a->vocab, max, false, NULL, next)) + (max - e_get(x + target));
}

static void cross_entropy_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                               int64_t hi)
{
    const struct pf_cross_entropy_args *a = args;
    float *kept = (float *)ctx->scratch + part * ((a->vocab + PL - 1) / PL * PL);

    for (int64_t r = lo; r < hi; r++) {
        const elem *next = r + 1 < hi ? (const elem *)a->logits + (r + 1) * a->ld : NULL;
        if (a->with_grad) {
            row_with_grad(a, r, kept, next);
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

/* Is the target, counted from the first column here, one of n? */
V_INLINE bool is_here(int64_t target, int64_t n)
{
    return target >= 0 && target < n;
}

static void part_stats(const struct pf_vocab_ce_fwd_args *a, int64_t r, const elem *next)
{
    const elem *x = (const elem *)a->logits + r * a->ld;
    const int64_t target = a->targets[r] - a->first_vocab;
    float *stats = a->stats + 3 * r;

    if (a->targets[r] < 0) {
        stats[0] = stats[2] = 0.0f;
        stats[1] = 1.0f;
        return;
    }
    const float max = row_max(x, a->vocab);
    /* Less itself, minus infinity would be NaN; less 0 it is still nothing, and NaN still NaN. */
    const float shift = max == -__builtin_inff() ? 0.0f : max;
    stats[0] = max;
    stats[1] = row_exp(x, a->vocab, shift, false, NULL, next);
    stats[2] = is_here(target, a->vocab) ? e_get(x + target) : 0.0f;
}

static void vocab_ce_fwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                              int64_t hi)
{
    const struct pf_vocab_ce_fwd_args *a = args;

    (void)ctx;
    (void)part;
    for (int64_t r = lo; r < hi; r++) {
        part_stats(a, r, r + 1 < hi ? (const elem *)a->logits + (r + 1) * a->ld : NULL);
    }
}

int PF_CPU(vocab_ce_fwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_vocab_ce_fwd_args *a = args;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->vocab, vocab_ce_fwd_part);
    return 0;
}

static void part_gradient(const struct pf_vocab_ce_bwd_args *a, int64_t r)
{
    elem *x = (elem *)a->logits + r * a->ld;
    const int64_t target = a->targets[r] - a->first_vocab;
    const float max = a->whole[2 * r], sum = a->whole[2 * r + 1], factor = a->grad_scale / sum;

    if (a->targets[r] < 0) {
        memset(x, 0, (size_t)a->vocab * sizeof *x);
        return;
    }
    const bool here = is_here(target, a->vocab);
    const float p = here ? v_exp(v_set(e_get(x + target) - max))[0] / sum : 0.0f;
    P_LOOP(0, a->vocab, pair_put(x + i, pair_scale(exp_at(x + i, max, n), factor), n, false));
    if (here) {
        e_put(x + target, (p - 1.0f) * a->grad_scale);
    }
}

static void vocab_ce_bwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                              int64_t hi)
{
    (void)ctx;
    (void)part;
    for (int64_t r = lo; r < hi; r++) {
        part_gradient(args, r);
    }
}

int PF_CPU(vocab_ce_bwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_vocab_ce_bwd_args *a = args;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->vocab, vocab_ce_bwd_part);
    return 0;
}
