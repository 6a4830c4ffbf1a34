/* SPDX-License-Identifier: Apache-2.0 */
/*
 * norm.c - RMSNorm and LayerNorm, forward and backward. A row is read twice, the second time from
 * the first-level cache. (To fetch rows ahead by instruction made it a quarter slower, to work on two rows at once up to twice: the
 * machine's own guess is better.) Sums along a row run in four vectors and their lanes; sums over rows (the weight gradients) are made by each thread for its rows, in
 * scratch, and then added thread by thread.
 */
#include "cpu.h"
#include "pair.h"

/* Four running sums, so that additions overlap. */
struct sums {
    struct pair s[2];
};

V_INLINE float sums_total(const struct sums *x)
{
    return v_sum((x->s[0].a + x->s[1].a) + (x->s[0].b + x->s[1].b));
}

/* Do `statement`, a function of i, n and u in 0..1, along a row of the given width. No index depends
 * on the row's length, or sums [u] would not stay in registers. */
#define ROW_SUM(width, statement)                                                                  \
    do {                                                                                           \
        int64_t i = 0;                                                                             \
        for (; i + 2 * PL <= (width);) {                                                           \
            const int64_t n = PL;                                                                  \
            _Pragma("GCC unroll 2") for (int u = 0; u < 2; u++, i += PL)                           \
            {                                                                                      \
                statement;                                                                         \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 2") for (int u = 0; u < 2; u++, i += PL)                               \
        {                                                                                          \
            if (i < (width)) {                                                                     \
                const int64_t n = (width)-i < PL ? (width)-i : PL;                                 \
                statement;                                                                         \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* Floats of a part's sums for columns, which lie as pair_place says. */
V_INLINE int64_t columns_stride(int64_t width)
{
    return (width + PL - 1) / PL * PL;
}

/* Sums of columns in parts[0..n_parts-1], `stride` apart, added up in order onto out. */
static void add_parts(const float *parts, int n_parts, int64_t stride, int64_t width, float *out)
{
    for (int64_t j = 0; j < width; j++) {
        const float *const at = parts + j / PL * PL + pair_place(j % PL);
        float sum = at[0];
        for (int p = 1; p < n_parts; p++) {
            sum += at[p * stride];
        }
        out[j] += sum;
    }
}

V_INLINE struct pair rmsnorm_square(const elem *x, struct pair sum, int64_t n)
{
    const struct pair at = pair_load(x, n);

    return pair_fma(at, at, sum);
}

V_INLINE void rmsnorm_y(const elem *x, const elem *w, float rstd, elem *y, bool stream, int64_t n)
{
    const struct pair hat = pair_round(pair_scale(pair_load(x, n), rstd));

    pair_put(y, pair_mul(hat, pair_load(w, n)), n, stream);
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
        ROW_SUM(a->width, sq.s[u] = rmsnorm_square(x + i, sq.s[u], n));
        const float rstd = 1.0f / __builtin_sqrtf(sums_total(&sq) / (float)a->width + a->eps);
        a->rstd[r] = rstd;
        P_LOOP(0, a->width, rmsnorm_y(x + i, w + i, rstd, y + i, stream, n));
    }
    e_fence();
}

int PF_CPU(rmsnorm_fwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_rmsnorm_fwd_args *a = args;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->width, rmsnorm_fwd_part);
    return 0;
}

/* Rows of a backward call. */
struct norm_row {
    const elem *x, *w, *dy;
    elem *dx;
};

/* dw += dy * round(x * rstd); returns sum + dy * w * x. */
V_INLINE struct pair rmsnorm_bwd_term(const struct norm_row *r, float rstd, float *dw,
                                      struct pair sum, int64_t i, int64_t n)
{
    const struct pair g = pair_load(r->dy + i, n), at = pair_load(r->x + i, n);

    if (dw) {
        const struct pair hat = pair_round(pair_scale(at, rstd));
        pair_put_beside(dw + i, pair_fma(g, hat, pair_beside(dw + i)));
    }
    return pair_fma(pair_mul(g, at), pair_load(r->w + i, n), sum);
}

/* dx (+)= dy w rstd - x mean */
V_INLINE void rmsnorm_dx(const struct norm_row *r, float rstd, float mean, bool accumulate,
                         bool stream, int64_t i, int64_t n)
{
    const struct pair dy = pair_scale(pair_load(r->dy + i, n), rstd), w = pair_load(r->w + i, n);
    const struct pair x = pair_scale(pair_load(r->x + i, n), -mean), g = pair_fma(dy, w, x);

    pair_put(r->dx + i, accumulate ? pair_add(pair_load(r->dx + i, n), g) : g, n, stream);
}

static void rmsnorm_bwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                             int64_t hi)
{
    const struct pf_rmsnorm_bwd_args *a = args;
    const int64_t columns = columns_stride(a->width);
    float *dw = a->dweight ? (float *)ctx->scratch + part * columns : NULL;
    const bool stream = !a->dx_accumulate && a->dx != a->dy && a->dx != a->x &&
                        cpu_streams(ctx, a->dx, a->n_rows, a->width, a->lddx);

    if (dw) {
        memset(dw, 0, (size_t)columns * sizeof *dw);
    }
    for (int64_t r = lo; r < hi; r++) {
        const struct norm_row row = {(const elem *)a->x + r * a->ldx, a->weight,
                                     (const elem *)a->dy + r * a->lddy,
                                     (elem *)a->dx + r * a->lddx};
        const float rstd = a->rstd[r];
        struct sums dot = {0};
        if (dw) {
            ROW_SUM(a->width, dot.s[u] = rmsnorm_bwd_term(&row, rstd, dw, dot.s[u], i, n));
        } else {
            ROW_SUM(a->width, dot.s[u] = rmsnorm_bwd_term(&row, rstd, NULL, dot.s[u], i, n));
        }
        /* d rstd / dx brings rstd^3 * mean(dy w x) x */
        const float mean = sums_total(&dot) / (float)a->width * rstd * rstd * rstd;
        if (a->dx_accumulate) {
            P_LOOP(0, a->width, rmsnorm_dx(&row, rstd, mean, true, false, i, n));
        } else {
            P_LOOP(0, a->width, rmsnorm_dx(&row, rstd, mean, false, stream, i, n));
        }
    }
    e_fence();
}

int PF_CPU(rmsnorm_bwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_rmsnorm_bwd_args *a = args;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->width, rmsnorm_bwd_part);
    if (a->dweight) {
        add_parts(ctx->scratch, ctx->n_threads, columns_stride(a->width), a->width, a->dweight);
    }
    return 0;
}

V_INLINE struct pair layernorm_sum(const elem *x, struct pair sum, int64_t n)
{
    return pair_add(sum, pair_load(x, n));
}

V_INLINE struct pair pair_minus(struct pair x, float mean)
{
    return (struct pair){x.a - mean, x.b - mean};
}

V_INLINE struct pair squared_distance(const elem *x, float mean, struct pair sum, int64_t n)
{
    /* The lanes beyond a tail hold 0 and must not count as distance mean. */
    const struct pair d = pair_first(pair_minus(pair_load(x, n), mean), n);

    return pair_fma(d, d, sum);
}

V_INLINE struct pair layernorm_hat(const elem *x, float mean, float rstd, int64_t n)
{
    return pair_scale(pair_minus(pair_load(x, n), mean), rstd);
}

V_INLINE void layernorm_y(const elem *x, const elem *w, const elem *b, float mean, float rstd,
                          elem *y, bool stream, int64_t n)
{
    const struct pair hat = layernorm_hat(x, mean, rstd, n), bias = {{0}, {0}};

    pair_put(y, pair_fma(hat, pair_load(w, n), b ? pair_load(b, n) : bias), n, stream);
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
        ROW_SUM(a->width, sum.s[u] = layernorm_sum(x + i, sum.s[u], n));
        const float mean = sums_total(&sum) / (float)a->width;
        ROW_SUM(a->width, sq.s[u] = squared_distance(x + i, mean, sq.s[u], n));
        const float rstd = 1.0f / __builtin_sqrtf(sums_total(&sq) / (float)a->width + a->eps);
        a->mean[r] = mean;
        a->rstd[r] = rstd;
        if (b) {
            P_LOOP(0, a->width, layernorm_y(x + i, w + i, b + i, mean, rstd, y + i, stream, n));
        } else {
            P_LOOP(0, a->width, layernorm_y(x + i, w + i, NULL, mean, rstd, y + i, stream, n));
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

/* dw += dy * hat, db += dy, gh += dy * w * hat; returns sum + dy * w. */
V_INLINE struct pair layernorm_bwd_term(const struct norm_row *r, float mean, float rstd, float *dw,
                                        float *db, struct pair sum, struct pair *gh, int64_t i,
                                        int64_t n)
{
    const struct pair d = pair_load(r->dy + i, n), hat = layernorm_hat(r->x + i, mean, rstd, n);
    const struct pair g = pair_mul(d, pair_load(r->w + i, n));

    if (dw) {
        pair_put_beside(dw + i, pair_fma(d, hat, pair_beside(dw + i)));
    }
    if (db) {
        pair_put_beside(db + i, pair_add(pair_beside(db + i), d));
    }
    *gh = pair_fma(g, hat, *gh);
    return pair_add(sum, g);
}

/* dx (+)= (dy w - mean_g - hat mean_gh) rstd, as dy w rstd - x c1 - c0 */
V_INLINE void layernorm_dx(const struct norm_row *r, float rstd, float c1, float c0,
                           bool accumulate, bool stream, int64_t i, int64_t n)
{
    const struct pair dy = pair_scale(pair_load(r->dy + i, n), rstd), w = pair_load(r->w + i, n);
    const struct pair x = pair_load(r->x + i, n), rest = {v_fma(x.a, v_set(-c1), v_set(-c0)),
                                                          v_fma(x.b, v_set(-c1), v_set(-c0))};
    const struct pair g = pair_fma(dy, w, rest);

    pair_put(r->dx + i, accumulate ? pair_add(pair_load(r->dx + i, n), g) : g, n, stream);
}

/* dw and db are NULL or not by a constant after inlining. */
V_INLINE void layernorm_bwd_row(const struct pf_layernorm_bwd_args *a, const struct norm_row *row,
                                float mean, float rstd, float *dw, float *db, bool stream)
{
    struct sums g = {0}, gh = {0};

    ROW_SUM(a->width, g.s[u] = layernorm_bwd_term(row, mean, rstd, dw, db, g.s[u], &gh.s[u], i, n));
    const float mean_g = sums_total(&g) / (float)a->width;
    const float mean_gh = sums_total(&gh) / (float)a->width;
    const float c1 = mean_gh * rstd * rstd, c0 = mean_g * rstd - c1 * mean;
    if (a->dx_accumulate) {
        P_LOOP(0, a->width, layernorm_dx(row, rstd, c1, c0, true, false, i, n));
    } else {
        P_LOOP(0, a->width, layernorm_dx(row, rstd, c1, c0, false, stream, i, n));
    }
}

static void layernorm_bwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                               int64_t hi)
{
    const struct pf_layernorm_bwd_args *a = args;
    const int64_t columns = columns_stride(a->width);
    float *dw = (float *)ctx->scratch + 2 * part * columns, *db = dw + columns;
    const bool stream = !a->dx_accumulate && a->dx != a->dy && a->dx != a->x &&
                        cpu_streams(ctx, a->dx, a->n_rows, a->width, a->lddx);

    memset(dw, 0, 2 * (size_t)columns * sizeof *dw);
    for (int64_t r = lo; r < hi; r++) {
        const struct norm_row row = {(const elem *)a->x + r * a->ldx, a->weight,
                                     (const elem *)a->dy + r * a->lddy,
                                     (elem *)a->dx + r * a->lddx};
        if (a->dweight && a->dbias) {
            layernorm_bwd_row(a, &row, a->mean[r], a->rstd[r], dw, db, stream);
        } else {
            layernorm_bwd_row(a, &row, a->mean[r], a->rstd[r], a->dweight ? dw : NULL,
                              a->dbias ? db : NULL, stream);
        }
    }
    e_fence();
}

int PF_CPU(layernorm_bwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_layernorm_bwd_args *a = args;
    const int64_t columns = columns_stride(a->width);
    const float *parts = ctx->scratch;

    cpu_run(ctx, a, a->n_rows, 1, a->n_rows * a->width, layernorm_bwd_part);
    if (a->dweight) {
        add_parts(parts, ctx->n_threads, 2 * columns, a->width, a->dweight);
    }
    if (a->dbias) {
        add_parts(parts + columns, ctx->n_threads, 2 * columns, a->width, a->dbias);
    }
    return 0;
}
