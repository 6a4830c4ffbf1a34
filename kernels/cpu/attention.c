/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.c - causal attention in tiles of 64 queries by 64 keys.
 *
 * Everything stands with queries along the lanes: the scores of a tile are S^T [keys, queries] =
 * K Q^T, so the softmax works down columns without ever summing across lanes, and K and V are
 * broadcast from where they lie (tile.h). Only Q and dO are transposed, once for each query tile.
 *
 * Forward: the unit of work is a query tile of one head. Running maximum m and sum l of each query
 * follow the key tiles; the output is rescaled when m grows (Dao et al. 2022, algorithm 1).
 * Backward: the unit is a key head of one sequence, whose dk and dv are summed over the query heads
 * of its group and their query tiles in ascending order; scores are computed again from lse.
 */
#include "cpu.h"
#include "tile.h"

#include <pf/rng.h>

#define T PF_ATTENTION_TILE
#define TV (T / VL) /* vectors along the queries of a tile */

/* One query tile of one head: where its rows are, and which queries they belong to. */
struct query_tile {
    const struct pf_attention_fwd_args *a;
    int64_t b, h, kv_head;
    int64_t i0, n; /* queries i0 .. i0+n-1 */
    int64_t first; /* no query here sees a key below */
    bool first_matters;
    int32_t first_key[T];
};

V_INLINE int64_t at_least_zero(int64_t x)
{
    return x > 0 ? x : 0;
}

static void query_tile_init(const struct pf_attention_fwd_args *a, int64_t b, int64_t h, int64_t i0,
                            struct query_tile *t)
{
    t->a = a;
    t->b = b;
    t->h = h;
    t->kv_head = h / (a->n_heads / a->n_kv_heads);
    t->i0 = i0;
    t->n = a->seq - i0 < T ? a->seq - i0 : T;
    t->first = 0;
    t->first_matters = false;
    memset(t->first_key, 0, sizeof t->first_key);
    if (!a->first_key) {
        return;
    }
    t->first = i0 + t->n;
    for (int64_t i = 0; i < t->n; i++) {
        t->first_key[i] = a->first_key[b * a->seq + i0 + i];
        t->first = t->first_key[i] < t->first ? t->first_key[i] : t->first;
        t->first_matters |= t->first_key[i] > 0;
    }
    t->first = at_least_zero(t->first);
}

/* The first key tile that any query here sees. */
V_INLINE int64_t first_tile(const struct query_tile *t)
{
    return t->first / T * T;
}

V_INLINE int64_t token_row(const struct query_tile *t)
{
    return t->b * t->a->seq + t->i0;
}

V_INLINE int64_t stat_at(const struct query_tile *t)
{
    return (t->b * t->a->n_heads + t->h) * t->a->seq + t->i0;
}

/* to[d*T + i] = factor * from[i*ld + d]; columns n..T-1 are 0. */
static void transpose_in(const float *from, int64_t ld, int64_t n, int64_t d_n, float factor,
                         float *to)
{
    for (int64_t d = 0; d < d_n; d++) {
        memset(to + d * T + n, 0, (size_t)(T - n) * sizeof *to);
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t d = 0; d < d_n; d++) {
            to[d * T + i] = factor * from[i * ld + d];
        }
    }
}

/* to[i*ld + d] = factor[i] * from[d*T + i]. */
static void transpose_out(const float *from, int64_t n, int64_t d_n, const float *factor, float *to,
                          int64_t ld)
{
    for (int64_t i = 0; i < n; i++) {
        for (int64_t d = 0; d < d_n; d++) {
            to[i * ld + d] = factor[i] * from[d * T + i];
        }
    }
}

/* Does the tile of keys from j0 on need a mask? */
V_INLINE bool needs_mask(const struct query_tile *t, int64_t j0, int64_t nj)
{
    return j0 + nj - 1 > t->i0 || t->first_matters;
}

/* Lanes of vector v whose query does not see key j. */
V_INLINE vm hidden(const struct query_tile *t, int v, int64_t j)
{
    const vi query = vi_iota() + (int32_t)(t->i0 + v * VL), key = vi_set((int32_t)j);

    return vm_or(vi_gt(key, query), vi_gt(vi_load_n(t->first_key + v * VL, VL), key));
}

/* st[j][i] = 0 where the mask drops (i, j), else divided by the share kept. */
static void drop(const struct query_tile *t, int64_t j0, int64_t nj, float *st)
{
    const struct pf_attention_fwd_args *a = t->a;
    const float factor = 1.0f / (1.0f - a->dropout_p);
    const uint32_t threshold = pf_dropout_threshold(a->dropout_p);
    const uint64_t row0 = ((a->first_sequence + (uint64_t)t->b) * (uint64_t)a->n_heads +
                           (uint64_t)t->h) *
                              (uint64_t)a->seq +
                          (uint64_t)t->i0;

    for (int64_t i = 0; i < t->n; i++) {
        const uint64_t index = (row0 + (uint64_t)i) * (uint64_t)a->seq + (uint64_t)j0;
        const int64_t skip = (int64_t)(index % 4), n_blocks = (skip + nj + 3) / 4;
        uint32_t words[T + 8];
#pragma omp simd
        for (int64_t w = 0; w < n_blocks; w++) {
            pf_dropout_words(a->dropout_key, index / 4 + (uint64_t)w, words + 4 * w);
        }
        for (int64_t j = 0; j < nj; j++) {
            st[j * T + i] = words[skip + j] >= threshold ? st[j * T + i] * factor : 0.0f;
        }
    }
}

V_INLINE const float *key_rows(const struct query_tile *t, int64_t j0)
{
    const struct pf_attention_fwd_args *a = t->a;

    return (const float *)a->k + (t->b * a->seq + j0) * a->ldk + t->kv_head * a->head_dim;
}

V_INLINE const float *value_rows(const struct query_tile *t, int64_t j0)
{
    const struct pf_attention_fwd_args *a = t->a;

    return (const float *)a->v + (t->b * a->seq + j0) * a->ldv + t->kv_head * a->v_head_dim;
}

/* Elements of a head that are summed in one chain: longer ones lose digits of the scores. */
#define CHAIN 32

/* st[j][i] = rows[j] . xt[:, i] for nj rows of d_n elements. */
V_INLINE void scores(const float *rows, int64_t ld, int64_t nj, int64_t d_n, const float *xt,
                     float *st)
{
    for (int64_t d = 0; d < d_n; d += CHAIN) {
        const struct tile mul = {.k = d_n - d < CHAIN ? d_n - d : CHAIN,
                                 .a = rows + d,
                                 .a_row = ld,
                                 .a_col = 1,
                                 .b = xt + d * T,
                                 .ldb = T,
                                 .c = st,
                                 .ldc = T,
                                 .accumulate = d > 0};
        tile_mul(nj, T, &mul);
    }
}

/* yt[d][i] (+)= sum_j rows[j][d] st[j][i]. */
V_INLINE void weighted(const float *rows, int64_t ld, int64_t nj, int64_t d_n, const float *st,
                       bool accumulate, float *yt)
{
    const struct tile mul = {.k = nj,
                             .a = rows,
                             .a_row = 1,
                             .a_col = ld,
                             .b = st,
                             .ldb = T,
                             .c = yt,
                             .ldc = T,
                             .accumulate = accumulate};

    tile_mul(d_n, T, &mul);
}

/* Forward -------------------------------------------------------------------------------------- */

/* Turn vector v of scores into exp(s - m); update m and l, and return exp(m_old - m). */
V_INLINE vf softmax_lanes(const struct query_tile *t, int64_t j0, int64_t nj, bool masked, int v,
                          float *st, float *m, float *l)
{
    const vf none = v_set(-__builtin_inff()), m_old = v_load(m + v * VL);
    vf max = m_old, sum = {0};

    for (int64_t j = 0; j < nj; j++) {
        vf s = v_load(st + j * T + v * VL);
        if (masked) {
            s = v_select(hidden(t, v, j0 + j), none, s);
            v_store(st + j * T + v * VL, s);
        }
        max = v_max(max, s);
    }
    /* A query that has seen nothing yet has no maximum: exp(-inf - 0) is 0. */
    const vf shift = v_select(v_lt(none, max), max, (vf){0});
    for (int64_t j = 0; j < nj; j++) {
        const vf p = v_exp(v_load(st + j * T + v * VL) - shift);
        sum += p;
        v_store(st + j * T + v * VL, p);
    }
    const vf shrink = v_exp(m_old - shift);
    v_store(l + v * VL, v_fma(v_load(l + v * VL), shrink, sum));
    v_store(m + v * VL, max);
    return shrink;
}

static void rescale(int64_t d_n, const float *shrink, float *ot)
{
    for (int64_t d = 0; d < d_n; d++) {
        for (int v = 0; v < TV; v++) {
            v_store(ot + d * T + v * VL, v_load(ot + d * T + v * VL) * v_load(shrink + v * VL));
        }
    }
}

/* One key tile: scores, softmax, output. */
static void forward_tile(const struct query_tile *t, int64_t j0, const float *qt, float *st,
                         float *ot, float *m, float *l)
{
    const struct pf_attention_fwd_args *a = t->a;
    const int64_t nj = t->i0 + t->n - j0 < T ? t->i0 + t->n - j0 : T;
    const bool fresh = j0 == first_tile(t), masked = needs_mask(t, j0, nj);
    float shrink[T];

    scores(key_rows(t, j0), a->ldk, nj, a->head_dim, qt, st);
    for (int v = 0; v < TV; v++) {
        v_store(shrink + v * VL, masked ? softmax_lanes(t, j0, nj, true, v, st, m, l)
                                        : softmax_lanes(t, j0, nj, false, v, st, m, l));
    }
    if (a->dropout_p > 0.0f) {
        drop(t, j0, nj, st);
    }
    if (!fresh) {
        rescale(a->v_head_dim, shrink, ot);
    }
    weighted(value_rows(t, j0), a->ldv, nj, a->v_head_dim, st, !fresh, ot);
}

/* out = ot / l and lse = m + log l; a query that sees no key gets 0 and -inf. */
static void forward_finish(const struct query_tile *t, const float *ot, const float *m,
                           const float *l)
{
    const struct pf_attention_fwd_args *a = t->a;
    float inverse[T], *lse = a->lse + stat_at(t);
    float *out = (float *)a->out + token_row(t) * a->ldo + t->h * a->v_head_dim;

    for (int64_t i = 0; i < t->n; i++) {
        const bool any = l[i] != 0.0f;
        inverse[i] = any ? 1.0f / l[i] : 0.0f;
        lse[i] = any ? m[i] + s_log(l[i]) : -__builtin_inff();
    }
    transpose_out(ot, t->n, a->v_head_dim, inverse, out, a->ldo);
}

V_INLINE float *scratch_of(const struct pf_kctx *ctx, const struct pf_attention_fwd_args *a,
                           int part)
{
    return (float *)ctx->scratch +
           (size_t)part * PF_ATTENTION_SCRATCH_FLOATS(a->head_dim, a->v_head_dim);
}

static void forward_unit(const struct pf_attention_fwd_args *a, int64_t b, int64_t h, int64_t i0,
                         float *scratch)
{
    float *qt = scratch, *ot = qt + a->head_dim * T, *st = ot + a->v_head_dim * T;
    float m[T], l[T] = {0};
    struct query_tile t;

    query_tile_init(a, b, h, i0, &t);
    for (int i = 0; i < T; i++) {
        m[i] = -__builtin_inff();
    }
    transpose_in((const float *)a->q + token_row(&t) * a->ldq + h * a->head_dim, a->ldq, t.n,
                 a->head_dim, a->scale, qt);
    if (first_tile(&t) >= i0 + t.n) { /* no query of this tile sees a key */
        memset(ot, 0, (size_t)(a->v_head_dim * T) * sizeof *ot);
    }
    for (int64_t j0 = first_tile(&t); j0 < i0 + t.n; j0 += T) {
        forward_tile(&t, j0, qt, st, ot, m, l);
    }
    forward_finish(&t, ot, m, l);
}

/* Query tiles of a head in the order 0, last, 1, last-1, ...: neighbours cost the same together, so
 * that equal cuts are equal work. */
V_INLINE int64_t folded(int64_t x, int64_t n)
{
    return x % 2 == 0 ? x / 2 : n - 1 - x / 2;
}

static void forward_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                         int64_t hi)
{
    const struct pf_attention_fwd_args *a = args;
    const int64_t n_tiles = (a->seq + T - 1) / T;

    for (int64_t u = lo; u < hi; u++) {
        const int64_t head = u / n_tiles, tile = folded(u % n_tiles, n_tiles);
        forward_unit(a, head / a->n_heads, head % a->n_heads, tile * T, scratch_of(ctx, a, part));
    }
}

V_INLINE int64_t work_of(const struct pf_attention_fwd_args *a)
{
    return a->batch * a->n_heads * a->seq * a->seq / 2 * (a->head_dim + a->v_head_dim);
}

int PF_CPU(attention_fwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_attention_fwd_args *a = args;

    cpu_run(ctx, a, a->batch * a->n_heads * ((a->seq + T - 1) / T), 1, work_of(a), forward_part);
    return 0;
}

/* Backward ------------------------------------------------------------------------------------- */

struct backward {
    const struct pf_attention_bwd_args *g;
    struct query_tile t;
    float *qt, *dot, *dqt; /* [D,T] scaled, [Dv,T], [D,T] */
    float *pt, *dst;       /* [T,T]: probabilities, and gradients of scores */
    float lse[T], delta[T];
};

V_INLINE const float *dout_rows(const struct backward *w)
{
    return (const float *)w->g->dout + token_row(&w->t) * w->g->lddo +
           w->t.h * w->t.a->v_head_dim;
}

/* delta = dout . out of each query */
static void fill_delta(struct backward *w)
{
    const struct pf_attention_fwd_args *a = w->t.a;
    const float *out = (const float *)a->out + token_row(&w->t) * a->ldo + w->t.h * a->v_head_dim;
    const float *dout = dout_rows(w);

    memset(w->delta, 0, sizeof w->delta);
    for (int64_t r = 0; r < w->t.n; r++) {
        const float *x = out + r * a->ldo, *y = dout + r * w->g->lddo;
        vf sum = {0};
        V_LOOP(0, a->v_head_dim, sum = v_fma(v_load_n(x + i, n), v_load_n(y + i, n), sum));
        w->delta[r] = v_sum(sum);
    }
    memcpy(w->g->delta + stat_at(&w->t), w->delta, (size_t)w->t.n * sizeof(float));
}

/* p = exp(s - lse) and ds = scale p (dp - delta) in place, for vector v of one tile. */
V_INLINE void gradient_lanes(const struct backward *w, int64_t j0, int64_t nj, bool masked, int v)
{
    const vf lse = v_load(w->lse + v * VL), delta = v_load(w->delta + v * VL);

    for (int64_t j = 0; j < nj; j++) {
        float *p_at = w->pt + j * T + v * VL, *ds_at = w->dst + j * T + v * VL;
        vf p = v_exp(v_load(p_at) - lse);
        if (masked) {
            p = v_select(hidden(&w->t, v, j0 + j), (vf){0}, p);
        }
        v_store(p_at, p);
        v_store(ds_at, p * (v_load(ds_at) - delta) * w->t.a->scale);
    }
}

/* dk or dv rows += st x, where x are nq rows of d_n elements. */
V_INLINE void add_to_rows(const float *st, int64_t nj, int64_t nq, const float *x, int64_t ldx,
                          int64_t d_n, float *rows, int64_t ld)
{
    const struct tile mul = {.k = nq,
                             .a = st,
                             .a_row = T,
                             .a_col = 1,
                             .b = x,
                             .ldb = ldx,
                             .c = rows,
                             .ldc = ld,
                             .accumulate = true};

    tile_mul(nj, d_n, &mul);
}

/* One key tile of a query tile: adds to dqt and to rows of dk and dv. */
static void backward_tile(struct backward *w, int64_t j0)
{
    const struct query_tile *t = &w->t;
    const struct pf_attention_fwd_args *a = t->a;
    const int64_t nj = t->i0 + t->n - j0 < T ? t->i0 + t->n - j0 : T, row = t->b * a->seq + j0;
    const bool masked = needs_mask(t, j0, nj);
    const float *q = (const float *)a->q + token_row(t) * a->ldq + t->h * a->head_dim;

    scores(key_rows(t, j0), a->ldk, nj, a->head_dim, w->qt, w->pt);
    scores(value_rows(t, j0), a->ldv, nj, a->v_head_dim, w->dot, w->dst);
    if (a->dropout_p > 0.0f) {
        drop(t, j0, nj, w->dst);
    }
    for (int v = 0; v < TV; v++) {
        if (masked) {
            gradient_lanes(w, j0, nj, true, v);
        } else {
            gradient_lanes(w, j0, nj, false, v);
        }
    }
    if (a->dropout_p > 0.0f) {
        drop(t, j0, nj, w->pt);
    }
    add_to_rows(w->pt, nj, t->n, dout_rows(w), w->g->lddo, a->v_head_dim,
                (float *)w->g->dv + row * a->ldv + t->kv_head * a->v_head_dim, a->ldv);
    add_to_rows(w->dst, nj, t->n, q, a->ldq, a->head_dim,
                (float *)w->g->dk + row * a->ldk + t->kv_head * a->head_dim, a->ldk);
    weighted(key_rows(t, j0), a->ldk, nj, a->head_dim, w->dst, j0 != first_tile(t), w->dqt);
}

static void backward_queries(struct backward *w, int64_t b, int64_t h, int64_t i0)
{
    const struct pf_attention_fwd_args *a = &w->g->fwd;
    float ones[T];

    query_tile_init(a, b, h, i0, &w->t);
    for (int i = 0; i < T; i++) {
        ones[i] = 1.0f;
    }
    transpose_in((const float *)a->q + token_row(&w->t) * a->ldq + h * a->head_dim, a->ldq, w->t.n,
                 a->head_dim, a->scale, w->qt);
    transpose_in(dout_rows(w), w->g->lddo, w->t.n, a->v_head_dim, 1.0f, w->dot);
    memset(w->lse, 0, sizeof w->lse);
    memcpy(w->lse, a->lse + stat_at(&w->t), (size_t)w->t.n * sizeof(float));
    fill_delta(w);
    if (first_tile(&w->t) >= i0 + w->t.n) { /* no query of this tile sees a key */
        memset(w->dqt, 0, (size_t)(a->head_dim * T) * sizeof(float));
    }
    for (int64_t j0 = first_tile(&w->t); j0 < i0 + w->t.n; j0 += T) {
        backward_tile(w, j0);
    }
    transpose_out(w->dqt, w->t.n, a->head_dim, ones,
                  (float *)w->g->dq + token_row(&w->t) * a->ldq + h * a->head_dim, a->ldq);
}

static void clear_rows(float *x, int64_t n_rows, int64_t width, int64_t ld)
{
    for (int64_t r = 0; r < n_rows; r++) {
        memset(x + r * ld, 0, (size_t)width * sizeof *x);
    }
}

static void backward_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                          int64_t hi)
{
    const struct pf_attention_bwd_args *g = args;
    const struct pf_attention_fwd_args *a = &g->fwd;
    const int64_t group = a->n_heads / a->n_kv_heads;
    struct backward w = {.g = g, .qt = scratch_of(ctx, a, part)};

    w.dot = w.qt + a->head_dim * T;
    w.dqt = w.dot + a->v_head_dim * T;
    w.pt = w.dqt + a->head_dim * T;
    w.dst = w.pt + T * T;
    for (int64_t u = lo; u < hi; u++) {
        const int64_t b = u / a->n_kv_heads, kv = u % a->n_kv_heads, row = b * a->seq;
        clear_rows((float *)g->dk + row * a->ldk + kv * a->head_dim, a->seq, a->head_dim, a->ldk);
        clear_rows((float *)g->dv + row * a->ldv + kv * a->v_head_dim, a->seq, a->v_head_dim,
                   a->ldv);
        for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
            for (int64_t i0 = 0; i0 < a->seq; i0 += T) {
                backward_queries(&w, b, h, i0);
            }
        }
    }
}

int PF_CPU(attention_bwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_attention_bwd_args *g = args;

    cpu_run(ctx, g, g->fwd.batch * g->fwd.n_kv_heads, 1, work_of(&g->fwd), backward_part);
    return 0;
}
