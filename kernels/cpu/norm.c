/* SPDX-License-Identifier: Apache-2.0 */
/*
 * norm.c - RMSNorm and LayerNorm, forward and backward. A row is read twice, the second time from
 * the first-level cache; a residual is added each time anew, so that the sum, written in the last pass,
 * can go past the caches. (To fetch rows ahead by instruction made it a quarter slower, to work on two rows at once up to twice: the
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

/* A row of a forward call. residual is NULL or not by a constant after inlining. */
struct norm_in {
    const elem *x, *residual;
    elem *sum;
    bool stream_sum;
};

/* What the norm is of: x, or the rounded sum. */
V_INLINE struct pair norm_load(const struct norm_in *in, int64_t i, int64_t n)
{
    const struct pair x = pair_load(in->x + i, n);

    return in->residual ? pair_round(pair_add(x, pair_load(in->residual + i, n))) : x;
}

/* The same for the last time: the sum is kept. */
V_INLINE struct pair norm_load_last(const struct norm_in *in, int64_t i, int64_t n)
{
    const struct pair x = norm_load(in, i, n);

    if (in->residual) {
        pair_put(in->sum + i, x, n, in->stream_sum);
    }
    return x;
}

/* May sum, and y of a call that may be in place, go past the caches? */
V_INLINE bool norm_streams(const struct pf_kctx *ctx, const void *y, const void *x,
                           const void *residual, int64_t n_rows, int64_t width, int64_t ld)
{
    return y && y != x && y != residual && cpu_streams(ctx, y, n_rows, width, ld);
}

V_INLINE struct pair rmsnorm_square(const struct norm_in *in, struct pair sum, int64_t i, int64_t n)
{
    const struct pair at = norm_load(in, i, n);

    return pair_fma(at, at, sum);
}

V_INLINE void rmsnorm_y(const struct norm_in *in, const elem *w, float rstd, elem *y, bool stream,
                        int64_t i, int64_t n)
{
    const struct pair hat = pair_round(pair_scale(norm_load_last(in, i, n), rstd));

    pair_put(y + i, pair_mul(hat, pair_load(w + i, n)), n, stream);
}

V_INLINE void rmsnorm_fwd_row(const struct pf_rmsnorm_fwd_args *a, const struct norm_in *in,
                              int64_t r, bool stream)
{
    const elem *w = a->weight;
    elem *y = (elem *)a->y + r * a->ldy;
    struct sums sq = {0};

    ROW_SUM(a->width, sq.s[u] = rmsnorm_square(in, sq.s[u], i, n));
    const float rstd = 1.0f / __builtin_sqrtf(sums_total(&sq) / (float)a->width + a->eps);
    a->rstd[r] = rstd;
    P_LOOP(0, a->width, rmsnorm_y(in, w, rstd, y, stream, i, n));
}

static void rmsnorm_fwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                             int64_t hi)
{
    const struct pf_rmsnorm_fwd_args *a = args;
    const bool stream = norm_streams(ctx, a->y, a->x, a->residual, a->n_rows, a->width, a->ldy),
               stream_sum =
                   norm_streams(ctx, a->sum, a->x, a->residual, a->n_rows, a->width, a->lds);

    (void)part;
    for (int64_t r = lo; r < hi; r++) {
        const elem *x = (const elem *)a->x + r * a->ldx;
        if (a->residual) {
            const struct norm_in in = {x, (const elem *)a->residual + r * a->ldr,
                                       (elem *)a->sum + r * a->lds, stream_sum};
            rmsnorm_fwd_row(a, &in, r, stream);
        } else {
            const struct norm_in in = {x, NULL, NULL, false};
            rmsnorm_fwd_row(a, &in, r, stream);
        }
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

V_INLINE struct pair layernorm_sum(const struct norm_in *in, struct pair sum, int64_t i, int64_t n)
{
    return pair_add(sum, norm_load(in, i, n));
}

V_INLINE struct pair pair_minus(struct pair x, float mean)
{
    return (struct pair){x.a - mean, x.b - mean};
}

V_INLINE struct pair squared_distance(const struct norm_in *in, float mean, struct pair sum,
                                      int64_t i, int64_t n)
{
    /* The lanes beyond a tail hold 0 and must not count as distance mean. */
    const struct pair d = pair_first(pair_minus(norm_load(in, i, n), mean), n);

    return pair_fma(d, d, sum);
}

V_INLINE struct pair layernorm_hat(const elem *x, float mean, float rstd, int64_t n)
{
    return pair_scale(pair_minus(pair_load(x, n), mean), rstd);
}

V_INLINE void layernorm_y(const struct norm_in *in, const elem *w, const elem *b, float mean,
                          float rstd, elem *y, bool stream, int64_t i, int64_t n)
{
    const struct pair hat = pair_scale(pair_minus(norm_load_last(in, i, n), mean), rstd);
    const struct pair bias = {{0}, {0}};

    pair_put(y + i, pair_fma(hat, pair_load(w + i, n), b ? pair_load(b + i, n) : bias), n, stream);
}

V_INLINE void layernorm_fwd_row(const struct pf_layernorm_fwd_args *a, const struct norm_in *in,
                                int64_t r, bool stream)
{
    const elem *w = a->weight, *b = a->bias;
    elem *y = (elem *)a->y + r * a->ldy;
    struct sums sum = {0}, sq = {0};

    ROW_SUM(a->width, sum.s[u] = layernorm_sum(in, sum.s[u], i, n));
    const float mean = sums_total(&sum) / (float)a->width;
    ROW_SUM(a->width, sq.s[u] = squared_distance(in, mean, sq.s[u], i, n));
    const float rstd = 1.0f / __builtin_sqrtf(sums_total(&sq) / (float)a->width + a->eps);
    a->mean[r] = mean;
    a->rstd[r] = rstd;
    if (b) {
        P_LOOP(0, a->width, layernorm_y(in, w, b, mean, rstd, y, stream, i, n));
    } else {
        P_LOOP(0, a->width, layernorm_y(in, w, NULL, mean, rstd, y, stream, i, n));
    }
}

static void layernorm_fwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                               int64_t hi)
{
    const struct pf_layernorm_fwd_args *a = args;
    const bool stream = norm_streams(ctx, a->y, a->x, a->residual, a->n_rows, a->width, a->ldy),
               stream_sum =
                   norm_streams(ctx, a->sum, a->x, a->residual, a->n_rows, a->width, a->lds);

    (void)part;
    for (int64_t r = lo; r < hi; r++) {
        const elem *x = (const elem *)a->x + r * a->ldx;
        if (a->residual) {
            const struct norm_in in = {x, (const elem *)a->residual + r * a->ldr,
                                       (elem *)a->sum + r * a->lds, stream_sum};
            layernorm_fwd_row(a, &in, r, stream);
        } else {
            const struct norm_in in = {x, NULL, NULL, false};
            layernorm_fwd_row(a, &in, r, stream);
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
