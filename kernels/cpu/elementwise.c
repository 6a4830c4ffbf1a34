/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c - addition, scaling, dropout, AdamW, and the bias gradient (a sum over rows). */
#include "cpu.h"
#include "mask.h"
#include "pair.h"

static void add_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo, int64_t hi)
{
    const struct pf_add_args *g = args;
    const elem *a = g->a, *b = g->b;
    elem *y = g->y;
    const bool stream = y != a && y != b && cpu_streams(ctx, y, 1, g->n, g->n);

    (void)part;
    P_LOOP(lo, hi, pair_put(y + i, pair_add(pair_load(a + i, n), pair_load(b + i, n)), n, stream));
    e_fence();
}

int PF_CPU(add)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_add_args *a = args;

    cpu_run(ctx, a, a->n, PL, a->n, add_part);
    return 0;
}

static void scale_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                       int64_t hi)
{
    const struct pf_scale_args *a = args;
    elem *x = a->x;

    (void)ctx;
    (void)part;
    P_LOOP(lo, hi, pair_put(x + i, pair_scale(pair_load(x + i, n), a->factor), n, false));
}

int PF_CPU(scale)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_scale_args *a = args;

    cpu_run(ctx, a, a->n, PL, a->n, scale_part);
    return 0;
}

/* A mask is drawn four elements at a time, this many blocks in a go. */
#define DROPOUT_BLOCKS 64

/* The words stand for unsigned numbers; turning the top bit makes signed ones in the same order. */
V_INLINE void dropout_at(const uint32_t *words, uint32_t threshold, float keep_share, const elem *x,
                         elem *y, int64_t n)
{
    const vi word = vi_load_n((const int32_t *)words, n) ^ INT32_MIN;
    const vm dropped = vi_gt(vi_set((int32_t)(threshold ^ 0x80000000u)), word);

    e_store_n(y, v_select(dropped, (vf){0}, e_load_n(x, n) / keep_share), n);
}

static void dropout_words(const uint32_t *words, uint32_t threshold, float keep_share,
                          const elem *x, elem *y, int64_t width)
{
    V_LOOP(0, width, dropout_at(words + i, threshold, keep_share, x + i, y + i, n));
}

static void dropout_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                         int64_t hi)
{
    const struct pf_dropout_args *a = args;
    const elem *x = a->x;
    elem *y = a->y;
    const float keep_share = 1.0f - a->p;
    const uint32_t threshold = pf_dropout_threshold(a->p);
    uint32_t words[4 * DROPOUT_BLOCKS];

    (void)ctx;
    (void)part;
    for (int64_t at = lo; at < hi;) {
        const uint64_t index = a->first + (uint64_t)at, block = index / 4;
        const int64_t skip = (int64_t)(index % 4), room = 4 * DROPOUT_BLOCKS - skip;
        const int64_t n = hi - at < room ? hi - at : room;
        mask_words(a->key, block, DROPOUT_BLOCKS, words);
        dropout_words(words + skip, threshold, keep_share, x + at, y + at, n);
        at += n;
    }
}

int PF_CPU(dropout)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_dropout_args *a = args;

    cpu_run(ctx, a, a->n, 4 * DROPOUT_BLOCKS, a->n, dropout_part);
    return 0;
}

V_INLINE void adamw_at(const struct pf_adamw_args *a, bool stream, int64_t i, int64_t n)
{
    const vf g = v_load_n(a->grad + i, n) * a->grad_scale;
    vf m = v_load_n(a->moment1 + i, n), v = v_load_n(a->moment2 + i, n);

    m = v_fma(v_set(a->one_minus_beta1), g - m, m);
    v = v_fma(a->one_minus_beta2 * g, g, v * a->beta2);
    const vf denominator = v_fma(v_sqrt(v), v_set(a->inv_sqrt_bias2), v_set(a->eps));
    const vf p = v_load_n(a->param + i, n) * a->decay_factor - a->step_size * m / denominator;

    v_store_n(a->moment1 + i, m, n);
    v_store_n(a->moment2 + i, v, n);
    v_store_n(a->param + i, p, n);
    if (a->weight_out) {
        e_put_n((elem *)a->weight_out + i, p, n, stream);
    }
}

static void adamw_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                       int64_t hi)
{
    const struct pf_adamw_args *a = args;
    const bool stream = a->weight_out && cpu_streams(ctx, a->weight_out, 1, a->n, a->n);

    (void)part;
    V_LOOP(lo, hi, adamw_at(a, stream, i, n));
    e_fence();
}

int PF_CPU(adamw)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_adamw_args *a = args;

    cpu_run(ctx, a, a->n, VL, a->n, adamw_part);
    return 0;
}

/* Rows are summed in blocks, and the blocks' sums in order, which keeps the rounding error of long
 * sums small. A thread owns columns, so the order does not depend on their number. */
#define BIAS_ROWS 8

/* to += the sum of n_rows rows, at n columns, in the order of pair_place. */
V_INLINE void add_rows(const elem *rows, int64_t ld, int64_t n_rows, float *to, int64_t n)
{
    struct pair sum = pair_load(rows, n);

    for (int64_t r = 1; r < n_rows; r++) {
        sum = pair_add(sum, pair_load(rows + r * ld, n));
    }
    pair_put_beside(to, pair_add(pair_beside(to), sum));
}

static void bias_grad_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                           int64_t hi)
{
    const struct pf_bias_grad_args *a = args;
    float *total = (float *)ctx->scratch;

    (void)part;
    P_LOOP(lo, hi, pair_put_beside(total + i, (struct pair){{0}, {0}}); (void)n);
    for (int64_t r = 0; r < a->n_rows; r += BIAS_ROWS) {
        const int64_t n_rows = a->n_rows - r < BIAS_ROWS ? a->n_rows - r : BIAS_ROWS;
        const elem *rows = (const elem *)a->dy + r * a->lddy;
        P_LOOP(lo, hi, add_rows(rows + i, a->lddy, n_rows, total + i, n));
    }
    for (int64_t j = lo; j < hi; j++) {
        a->dbias[j] += total[j / PL * PL + pair_place(j % PL)];
    }
}

int PF_CPU(bias_grad)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_bias_grad_args *a = args;

    cpu_run(ctx, a, a->width, PL, a->n_rows * a->width, bias_grad_part);
    return 0;
}
