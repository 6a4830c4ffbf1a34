/* SPDX-License-Identifier: Apache-2.0 */
/*
 * norm.c - RMSNorm and LayerNorm, forward and backward. A row is read twice, the second time from
 * the first-level cache. Sums along a row run in four vectors and their lanes; sums over rows (the
 * weight gradients) are made by each thread for its rows, in scratch, and then added thread by
 * thread.
 */
#include "cpu.h"

/* Four running sums, so that additions overlap. */
struct sums {
    vf s[4];
};

V_INLINE float sums_total(const struct sums *x)
{
    return v_sum((x->s[0] + x->s[1]) + (x->s[2] + x->s[3]));
}

/* Add `term`, a function of i, n and u, over a row of the given width. No index depends on the row's
 * length, or the sums would not stay in registers. */
#define ROW_SUM(width, sums, term)                                                                 \
    do {                                                                                           \
        int64_t i = 0;                                                                             \
        for (; i + 4 * VL <= (width);) {                                                           \
            const int64_t n = VL;                                                                  \
            _Pragma("GCC unroll 4") for (int u = 0; u < 4; u++, i += VL)                           \
            {                                                                                      \
                (sums).s[u] = (term) + (sums).s[u];                                                \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 4") for (int u = 0; u < 4; u++, i += VL)                               \
        {                                                                                          \
            if (i < (width)) {                                                                     \
                const int64_t n = (width)-i < VL ? (width)-i : VL;                                 \
                (sums).s[u] = (term) + (sums).s[u];                                                \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* parts[0..n_parts-1][width] added up in order onto out. */
static void add_parts(const float *parts, int n_parts, int64_t stride, int64_t width, float *out)
{
    for (int64_t j = 0; j < width; j++) {
        float sum = parts[j];
        for (int p = 1; p < n_parts; p++) {
            sum += parts[p * stride + j];
        }
        out[j] += sum;
    }
}

static void rmsnorm_fwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                             int64_t hi)
{
    const struct pf_rmsnorm_fwd_args *a = args;
    const elem *w = a->weight;
    const bool stream = a->y != a->x && cpu_streams(ctx, a->y, a->n_rows, a->width, a->ldy);

    (void)part;
    for (int64_t r = lo; r < hi; r++) {
        const elem *x = (const elem *)a->x + r * a->ldx;
        elem *y = (elem *)a->y + r * a->ldy;
        struct sums sq = {0};
        ROW_SUM(a->width, sq, e_load_n(x + i, n) * e_load_n(x + i, n));
        const float rstd = 1.0f / __builtin_sqrtf(sums_total(&sq) / (float)a->width + a->eps);
        a->rstd[r] = rstd;
        V_LOOP(0, a->width,
               e_put_n(y + i, e_round(e_load_n(x + i, n) * rstd) * e_load_n(w + i, n), n, stream));
    }
    e_fence();
}

int PF_CPU(rmsnorm_fwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_rmsnorm_fwd_args *a = args;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->width, rmsnorm_fwd_part);
    return 0;
}

/* dw += dy * round(x * rstd) along a row; returns dy * w * x there. */
V_INLINE vf rmsnorm_bwd_term(const elem *x, const elem *w, const elem *dy, float rstd, float *dw,
                             int64_t n)
{
    const vf g = e_load_n(dy, n), at = e_load_n(x, n);

    if (dw) {
        v_store_n(dw, v_fma(g, e_round(at * rstd), v_load_n(dw, n)), n);
    }
    return g * at * e_load_n(w, n);
}

V_INLINE void rmsnorm_dx(const elem *x, const elem *w, const elem *dy, float rstd, float mean,
                         elem *dx, bool accumulate, bool stream, int64_t n)
{
    const vf g = e_load_n(dy, n) * e_load_n(w, n) * rstd - e_load_n(x, n) * mean;

    e_put_n(dx, accumulate ? e_load_n(dx, n) + g : g, n, stream);
}

static void rmsnorm_bwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                             int64_t hi)
{
    const struct pf_rmsnorm_bwd_args *a = args;
    const elem *w = a->weight;
    float *dw = a->dweight ? (float *)ctx->scratch + part * a->width : NULL;
    const bool stream =
        a->dx != a->dy && a->dx != a->x && cpu_streams(ctx, a->dx, a->n_rows, a->width, a->lddx);

    if (dw) {
        memset(dw, 0, (size_t)a->width * sizeof *dw);
    }
    for (int64_t r = lo; r < hi; r++) {
        const elem *x = (const elem *)a->x + r * a->ldx;
        const elem *dy = (const elem *)a->dy + r * a->lddy;
        elem *dx = (elem *)a->dx + r * a->lddx;
        const float rstd = a->rstd[r];
        struct sums dot = {0};
        if (dw) {
            ROW_SUM(a->width, dot, rmsnorm_bwd_term(x + i, w + i, dy + i, rstd, dw + i, n));
        } else {
            ROW_SUM(a->width, dot, rmsnorm_bwd_term(x + i, w + i, dy + i, rstd, NULL, n));
        }
        /* d rstd / dx brings rstd^3 * mean(dy w x) x */
        const float mean = sums_total(&dot) / (float)a->width * rstd * rstd * rstd;
        if (a->dx_accumulate) {
            V_LOOP(0, a->width,
                   rmsnorm_dx(x + i, w + i, dy + i, rstd, mean, dx + i, true, false, n));
        } else {
            V_LOOP(0, a->width,
                   rmsnorm_dx(x + i, w + i, dy + i, rstd, mean, dx + i, false, stream, n));
        }
    }
    e_fence();
}

int PF_CPU(rmsnorm_bwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_rmsnorm_bwd_args *a = args;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->width, rmsnorm_bwd_part);
    if (a->dweight) {
        add_parts(ctx->scratch, ctx->n_threads, a->width, a->width, a->dweight);
    }
    return 0;
}

V_INLINE vf squared_distance(const elem *x, float mean, int64_t n)
{
    /* The lanes beyond a tail hold 0 and must not count as distance mean. */
    vf d = e_load_n(x, n) - mean;

    if (n < VL) {
        d = v_select(vi_gt(vi_set((int32_t)n), vi_iota()), d, (vf){0});
    }
    return d * d;
}

V_INLINE void layernorm_y(const elem *x, const elem *w, const elem *b, float mean, float rstd,
                          elem *y, bool stream, int64_t n)
{
    const vf hat = (e_load_n(x, n) - mean) * rstd;

    e_put_n(y, v_fma(hat, e_load_n(w, n), b ? e_load_n(b, n) : (vf){0}), n, stream);
}

static void layernorm_fwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                               int64_t hi)
{
    const struct pf_layernorm_fwd_args *a = args;
    const elem *w = a->weight, *b = a->bias;
    const bool stream = a->y != a->x && cpu_streams(ctx, a->y, a->n_rows, a->width, a->ldy);

    (void)part;
    for (int64_t r = lo; r < hi; r++) {
        const elem *x = (const elem *)a->x + r * a->ldx;
        elem *y = (elem *)a->y + r * a->ldy;
        struct sums sum = {0}, sq = {0};
        ROW_SUM(a->width, sum, e_load_n(x + i, n));
        const float mean = sums_total(&sum) / (float)a->width;
        ROW_SUM(a->width, sq, squared_distance(x + i, mean, n));
        const float rstd = 1.0f / __builtin_sqrtf(sums_total(&sq) / (float)a->width + a->eps);
        a->mean[r] = mean;
        a->rstd[r] = rstd;
        if (b) {
            V_LOOP(0, a->width, layernorm_y(x + i, w + i, b + i, mean, rstd, y + i, stream, n));
        } else {
            V_LOOP(0, a->width, layernorm_y(x + i, w + i, NULL, mean, rstd, y + i, stream, n));
        }
    }
    e_fence();
}

int PF_CPU(layernorm_fwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_layernorm_fwd_args *a = args;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->width, layernorm_fwd_part);
    return 0;
}

V_INLINE vf layernorm_hat(const elem *x, float mean, float rstd, int64_t n)
{
    return (e_load_n(x, n) - mean) * rstd;
}

/* dw += dy * hat, db += dy along a row, gh += dy * w * hat; returns dy * w. */
V_INLINE vf layernorm_bwd_term(const elem *x, const elem *w, const elem *dy, float mean, float rstd,
                               float *dw, float *db, vf *gh, int64_t n)
{
    const vf d = e_load_n(dy, n), hat = layernorm_hat(x, mean, rstd, n), g = d * e_load_n(w, n);

    if (dw) {
        v_store_n(dw, v_fma(d, hat, v_load_n(dw, n)), n);
    }
    if (db) {
        v_store_n(db, v_load_n(db, n) + d, n);
    }
    *gh = v_fma(g, hat, *gh);
    return g;
}

V_INLINE void layernorm_dx(const elem *x, const elem *w, const elem *dy, float mean, float rstd,
                           float mean_g, float mean_gh, elem *dx, bool accumulate, bool stream,
                           int64_t n)
{
    const vf hat = layernorm_hat(x, mean, rstd, n);
    const vf g = (e_load_n(dy, n) * e_load_n(w, n) - mean_g - hat * mean_gh) * rstd;

    e_put_n(dx, accumulate ? e_load_n(dx, n) + g : g, n, stream);
}

/* dw and db are NULL or not by a constant after inlining. */
V_INLINE void layernorm_bwd_row(const struct pf_layernorm_bwd_args *a, int64_t r, float *dw,
                                float *db, bool stream)
{
    const elem *w = a->weight, *x = (const elem *)a->x + r * a->ldx;
    const elem *dy = (const elem *)a->dy + r * a->lddy;
    elem *dx = (elem *)a->dx + r * a->lddx;
    const float mean = a->mean[r], rstd = a->rstd[r];
    struct sums g = {0}, gh = {0};

    ROW_SUM(a->width, g,
            layernorm_bwd_term(x + i, w + i, dy + i, mean, rstd, dw ? dw + i : NULL,
                               db ? db + i : NULL, &gh.s[u], n));
    const float mean_g = sums_total(&g) / (float)a->width;
    const float mean_gh = sums_total(&gh) / (float)a->width;
    if (a->dx_accumulate) {
        V_LOOP(0, a->width,
               layernorm_dx(x + i, w + i, dy + i, mean, rstd, mean_g, mean_gh, dx + i, true, false,
                            n));
    } else {
        V_LOOP(0, a->width,
               layernorm_dx(x + i, w + i, dy + i, mean, rstd, mean_g, mean_gh, dx + i, false,
                            stream, n));
    }
}

static void layernorm_bwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                               int64_t hi)
{
    const struct pf_layernorm_bwd_args *a = args;
    float *dw = (float *)ctx->scratch + 2 * part * a->width, *db = dw + a->width;
    const bool stream =
        a->dx != a->dy && a->dx != a->x && cpu_streams(ctx, a->dx, a->n_rows, a->width, a->lddx);

    memset(dw, 0, 2 * (size_t)a->width * sizeof *dw);
    for (int64_t r = lo; r < hi; r++) {
        if (a->dweight && a->dbias) {
            layernorm_bwd_row(a, r, dw, db, stream);
        } else {
            layernorm_bwd_row(a, r, a->dweight ? dw : NULL, a->dbias ? db : NULL, stream);
        }
    }
    e_fence();
}

int PF_CPU(layernorm_bwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_layernorm_bwd_args *a = args;
    const float *parts = ctx->scratch;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->width, layernorm_bwd_part);
    if (a->dweight) {
        add_parts(parts, ctx->n_threads, 2 * a->width, a->width, a->dweight);
    }
    if (a->dbias) {
        add_parts(parts + a->width, ctx->n_threads, 2 * a->width, a->width, a->dbias);
    }
    return 0;
}
