/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.c - causal attention in tiles of 64 queries by 64 keys.
 *
 * Everything stands with queries along the lanes: the scores of a tile are S^T [keys, queries] =
 * K Q^T, so the softmax works down columns without ever summing across lanes, and K and V are
 * broadcast from where they lie (tile.h). Only Q and dO are transposed, once for each query tile.
 *
 * Narrow elements are widened once for each tile, into scratch; all arithmetic is fp32.
 *
 * Forward: the unit of work is a query tile of one head. Running maximum m and sum l of each query
 * follow the key tiles; the output is rescaled when m grows (Dao et al. 2022, algorithm 1).
 * Backward: the unit is a key head of one sequence, whose dk and dv are summed, in scratch, over the
 * query heads of its group and their query tiles in ascending order; scores are computed again from
 * lse. Where there are fewer key heads than threads, several units share one: each sums a part of its
 * query tiles, and the parts are added in order.
 */
#include "cpu.h"
#include "mask.h"
#include "tile.h"

#define T PF_ATTENTION_TILE
#define TV (T / VL) /* vectors along the queries of a tile */

/* One query tile of one head: where its rows are, and which queries they belong to. */
struct query_tile {
    const struct pf_attention_fwd_args *a;
    int64_t b, h, kv_head;
    int64_t i0, n;      /* queries i0 .. i0+n-1 */
    int64_t first;      /* no query here sees a key below */
    int64_t last_first; /* every query here sees the keys from this one on, up to itself */
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
    t->last_first = 0;
    memset(t->first_key, 0, sizeof t->first_key);
    if (!a->first_key) {
        return;
    }
    t->first = i0 + t->n;
    for (int64_t i = 0; i < t->n; i++) {
        t->first_key[i] = a->first_key[b * a->seq + i0 + i];
        t->first = t->first_key[i] < t->first ? t->first_key[i] : t->first;
        t->last_first = t->first_key[i] > t->last_first ? t->first_key[i] : t->last_first;
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

V_INLINE const elem *query_rows(const struct query_tile *t)
{
    return (const elem *)t->a->q + token_row(t) * t->a->ldq + t->h * t->a->head_dim;
}

V_INLINE int64_t stat_at(const struct query_tile *t)
{
    return (t->b * t->a->n_heads + t->h) * t->a->seq + t->i0;
}

/* Rows of fp32. */
struct rows {
    const float *x;
    int64_t ld;
};

/* n rows of elements as fp32: where they lie, or widened into room [n, width]. */
V_INLINE struct rows rows_of(const elem *from, int64_t ld, int64_t n, int64_t width, float *room)
{
#if ELEM_IS_F32
    (void)n;
    (void)width;
    (void)room;
    return (struct rows){from, ld};
#else
    for (int64_t i = 0; i < n; i++) {
        e_widen(from + i * ld, width, room + i * width);
    }
    return (struct rows){room, width};
#endif
}

/* x[0..VL-1] as a matrix, transposed: halves of growing distance change places. */
V_INLINE void transpose(vf x[VL])
{
#pragma GCC unroll 4
    for (int s = VL / 2; s > 0; s /= 2) {
        const vi lane = vi_iota(), right = (lane & s) != 0;
        const vi upper = (right & (lane - s + VL)) | (~right & lane);
        const vi lower = (right & (lane + VL)) | (~right & (lane + s));
#pragma GCC unroll 16
        for (int i = 0; i < VL; i++) {
            if ((i & s) == 0) {
                const vf a = x[i], b = x[i + s];
                x[i] = __builtin_shuffle(a, b, upper);
                x[i + s] = __builtin_shuffle(a, b, lower);
            }
        }
    }
}

/* to[d*T + i] = factor * from[i][d]; columns n..T-1 are 0. */
static void transpose_in(struct rows from, int64_t n, int64_t d_n, float factor, float *to)
{
    vf x[VL];

    for (int64_t d = 0; d < d_n; d += VL) {
        const int64_t width = d_n - d < VL ? d_n - d : VL;
        for (int64_t i = 0; i < T; i += VL) {
#pragma GCC unroll 16
            for (int r = 0; r < VL; r++) {
                x[r] =
                    i + r < n ? factor * v_load_n(from.x + (i + r) * from.ld + d, width) : (vf){0};
            }
            transpose(x);
#pragma GCC unroll 16
            for (int r = 0; r < VL; r++) {
                if (r < width) {
                    v_store(to + (d + r) * T + i, x[r]);
                }
            }
        }
    }
}

/* to[i*ld + d] = factor[i] * from[d*T + i]. */
static void transpose_out(const float *from, int64_t n, int64_t d_n, const float *factor, elem *to,
                          int64_t ld)
{
    vf x[VL];

    for (int64_t i = 0; i < n; i += VL) {
        const vf f = v_load(factor + i);
        for (int64_t d = 0; d < d_n; d += VL) {
            const int64_t width = d_n - d < VL ? d_n - d : VL;
#pragma GCC unroll 16
            for (int r = 0; r < VL; r++) {
                x[r] = r < width ? f * v_load(from + (d + r) * T + i) : (vf){0};
            }
            transpose(x);
#pragma GCC unroll 16
            for (int r = 0; r < VL; r++) {
                if (i + r < n) {
                    e_store_n(to + (i + r) * ld + d, x[r], width);
                }
            }
        }
    }
}

/* Lanes of vector v whose query does not see key j. */
V_INLINE vm hidden(const struct query_tile *t, int v, int64_t j)
{
    const vi query = vi_iota() + (int32_t)(t->i0 + v * VL), key = vi_set((int32_t)j);

    return vm_or(vi_gt(key, query), vi_gt(vi_load_n(t->first_key + v * VL, VL), key));
}

/*
 * The tile on the diagonal is cut once each way, and of its four quarters the one that no query sees
 * is neither computed nor read: keys from HALF on meet only queries from HALF on.
 */
#define HALF (T / 2)

struct key_tile {
    int64_t j0, n; /* keys j0 .. j0+n-1 */
    bool diagonal, masked;
    struct rows k, v;
};

/* The tile that starts at a multiple of T, less the keys that come before those that any query sees. Key rows
 * come to, or are widened into, room [T,D+Dv]. */
static struct key_tile key_tile_at(const struct query_tile *t, int64_t tile, float *room)
{
    const struct pf_attention_fwd_args *a = t->a;
    const int64_t j0 = tile < t->i0 && tile < t->first ? t->first : tile;
    const int64_t end = t->i0 + t->n < tile + T ? t->i0 + t->n : tile + T, n = end - j0;
    const int64_t row = t->b * a->seq + j0;
    const elem *k = (const elem *)a->k + row * a->ldk + t->kv_head * a->head_dim;
    const elem *v = (const elem *)a->v + row * a->ldv + t->kv_head * a->v_head_dim;

    return (struct key_tile){.j0 = j0,
                             .n = n,
                             .diagonal = j0 == t->i0,
                             .masked = j0 == t->i0 || j0 < t->last_first,
                             .k = rows_of(k, a->ldk, n, a->head_dim, room),
                             .v = rows_of(v, a->ldv, n, a->v_head_dim, room + T * a->head_dim)};
}

/* How many keys of the tile meet the queries of vector v. */
V_INLINE int64_t keys_of_vector(const struct key_tile *k, int v)
{
    const int64_t n = (v * VL / HALF + 1) * HALF;

    return k->diagonal && n < k->n ? n : k->n;
}

/* zt[j][i] = 0 where dropout drops (i, j), else what a kept probability is multiplied by. */
static void fill_kept(const struct query_tile *t, const struct key_tile *k, float *zt)
{
    const struct pf_attention_fwd_args *a = t->a;
    const float factor = 1.0f / (1.0f - a->dropout_p);
    const uint32_t threshold = pf_dropout_threshold(a->dropout_p);
    const uint64_t sequence = a->first_sequence + (uint64_t)t->b;
    const uint64_t row0 =
        (sequence * (uint64_t)a->n_heads + (uint64_t)t->h) * (uint64_t)a->seq + (uint64_t)t->i0;

    for (int i = 0; i < T; i++) {
        const uint64_t index = (row0 + (uint64_t)i) * (uint64_t)a->seq + (uint64_t)k->j0;
        const int64_t skip = (int64_t)(index % 4), n = keys_of_vector(k, i / VL);
        uint32_t words[T + 4 * (MASK_LANES + 1)];
        mask_words(a->dropout_key, index / 4, (skip + n + 3) / 4, words);
        for (int64_t j = 0; j < n; j++) {
            zt[j * T + i] = words[skip + j] >= threshold ? factor : 0.0f;
        }
    }
}

/* Elements of a head that are summed in one chain: longer ones lose digits of the scores. */
#define CHAIN 32

/* st[j][i] = rows[j] . xt[:, i] for the keys' rows of d_n elements. */
V_INLINE void scores(const struct key_tile *k, struct rows rows, int64_t d_n, const float *xt,
                     float *st)
{
    const int64_t step = k->diagonal ? HALF : T;

    for (int64_t j = 0; j < k->n; j += step) {
        const int64_t m = k->n - j < step ? k->n - j : step, lane = k->diagonal ? j : 0;
        for (int64_t d = 0; d < d_n; d += CHAIN) {
            const struct tile mul = {.k = d_n - d < CHAIN ? d_n - d : CHAIN,
                                     .a = rows.x + j * rows.ld + d,
                                     .a_row = rows.ld,
                                     .a_col = 1,
                                     .b = xt + d * T + lane,
                                     .ldb = T,
                                     .c = st + j * T + lane,
                                     .ldc = T,
                                     .accumulate = d > 0};
            tile_mul(m, T - lane, &mul);
        }
    }
}

/* yt[d][i] (+)= sum_j rows[j][d] st[j][i]. */
V_INLINE void weighted(const struct key_tile *k, struct rows rows, int64_t d_n, const float *st,
                       bool accumulate, float *yt)
{
    const int64_t step = k->diagonal ? HALF : T;

    for (int64_t lane = 0; lane < T; lane += step) {
        const struct tile mul = {.k = k->diagonal && lane + step < k->n ? lane + step : k->n,
                                 .a = rows.x,
                                 .a_row = 1,
                                 .a_col = rows.ld,
                                 .b = st + lane,
                                 .ldb = T,
                                 .c = yt + lane,
                                 .ldc = T,
                                 .accumulate = accumulate};
        tile_mul(d_n, step, &mul);
    }
}

/* Forward -------------------------------------------------------------------------------------- */

/* Turn vector v of scores into exp(s - m), times zt if not NULL; update m and l, and return
 * exp(m_old - m). */
V_INLINE vf softmax_lanes(const struct query_tile *t, const struct key_tile *k, bool masked, int v,
                          const float *zt, float *st, float *m, float *l)
{
    const vf none = v_set(-__builtin_inff()), m_old = v_load(m + v * VL);
    const int64_t nj = keys_of_vector(k, v);
    vf max = m_old, sum = {0};

    for (int64_t j = 0; j < nj; j++) {
        vf s = v_load(st + j * T + v * VL);
        if (masked) {
            s = v_select(hidden(t, v, k->j0 + j), none, s);
            v_store(st + j * T + v * VL, s);
        }
        max = v_max(max, s);
    }
    /* A query that has seen nothing yet has no maximum: exp(-inf - 0) is 0. */
    const vf shift = v_select(v_lt(none, max), max, (vf){0});
    for (int64_t j = 0; j < nj; j++) {
        const vf p = v_exp(v_load(st + j * T + v * VL) - shift);
        sum += p;
        v_store(st + j * T + v * VL, zt ? p * v_load(zt + j * T + v * VL) : p);
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

/* Where a thread works on a query tile. */
struct forward {
    struct query_tile t;
    float *qt, *ot, *st, *zt; /* [D,T] scaled, [Dv,T], [T,T], [T,T] */
    float *kv;                /* [T,D+Dv]: room for widened keys and values */
    float m[T], l[T];
};

/* One key tile: scores, softmax, output. */
static void forward_tile(struct forward *w, int64_t j0)
{
    const struct pf_attention_fwd_args *a = w->t.a;
    const struct key_tile k = key_tile_at(&w->t, j0, w->kv);
    const bool fresh = j0 == first_tile(&w->t);
    float shrink[T], *zt = a->dropout_p > 0.0f ? w->zt : NULL;

    scores(&k, k.k, a->head_dim, w->qt, w->st);
    if (zt) {
        fill_kept(&w->t, &k, zt);
    }
    for (int v = 0; v < TV; v++) {
        const vf s = zt || k.masked ? softmax_lanes(&w->t, &k, true, v, zt, w->st, w->m, w->l)
                                    : softmax_lanes(&w->t, &k, false, v, NULL, w->st, w->m, w->l);
        v_store(shrink + v * VL, s);
    }
    if (!fresh) {
        rescale(a->v_head_dim, shrink, w->ot);
    }
    weighted(&k, k.v, a->v_head_dim, w->st, !fresh, w->ot);
}

/* out = ot / l and lse = m + log l; a query that sees no key gets 0 and -inf. */
static void forward_finish(const struct query_tile *t, const float *ot, const float *m,
                           const float *l)
{
    const struct pf_attention_fwd_args *a = t->a;
    float inverse[T] = {0}, *lse = a->lse + stat_at(t);
    elem *out = (elem *)a->out + token_row(t) * a->ldo + t->h * a->v_head_dim;

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
    struct forward w = {.qt = scratch, .ot = scratch + a->head_dim * T};
    const struct query_tile *t = &w.t;

    w.st = w.ot + a->v_head_dim * T;
    w.zt = w.st + T * T;
    w.kv = w.zt + T * T;
    query_tile_init(a, b, h, i0, &w.t);
    for (int i = 0; i < T; i++) {
        w.m[i] = -__builtin_inff();
    }
    /* The keys' room is free until the first key tile. */
    transpose_in(rows_of(query_rows(t), a->ldq, t->n, a->head_dim, w.kv), t->n, a->head_dim,
                 a->scale, w.qt);
    if (first_tile(t) >= i0 + t->n) { /* no query of this tile sees a key */
        memset(w.ot, 0, (size_t)(a->v_head_dim * T) * sizeof *w.ot);
    }
    for (int64_t j0 = first_tile(t); j0 < i0 + t->n; j0 += T) {
        forward_tile(&w, j0);
    }
    forward_finish(t, w.ot, w.m, w.l);
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
    struct rows q, dout;
    float *qt, *dot, *dqt; /* [D,T] scaled, [Dv,T], [D,T] */
    float *pt, *dst, *zt;  /* [T,T]: probabilities, gradients of scores, dropout */
    float *kv, *queries;   /* [T,D+Dv] each: room for widened keys and values, queries and dout */
    float *dk, *dv;        /* [S,D], [S,Dv]: sums of the unit */
    float lse[T], delta[T];
};

V_INLINE const elem *dout_rows(const struct backward *w)
{
    return (const elem *)w->g->dout + token_row(&w->t) * w->g->lddo + w->t.h * w->t.a->v_head_dim;
}

/* delta = dout . out of each query */
static void fill_delta(struct backward *w)
{
    const struct pf_attention_fwd_args *a = w->t.a;
    const elem *out = (const elem *)a->out + token_row(&w->t) * a->ldo + w->t.h * a->v_head_dim;

    memset(w->delta, 0, sizeof w->delta);
    for (int64_t r = 0; r < w->t.n; r++) {
        const elem *x = out + r * a->ldo;
        const float *y = w->dout.x + r * w->dout.ld;
        vf sum = {0};
        V_LOOP(0, a->v_head_dim, sum = v_fma(e_load_n(x + i, n), v_load_n(y + i, n), sum));
        w->delta[r] = v_sum(sum);
    }
    memcpy(w->g->delta + stat_at(&w->t), w->delta, (size_t)w->t.n * sizeof(float));
}

/* For vector v of one tile, in place: p = exp(s - lse) and ds = scale p (dp - delta); with dropout,
 * zt not NULL, dp and the p that is left are multiplied by it. */
V_INLINE void gradient_lanes(const struct backward *w, const struct key_tile *k, bool masked, int v,
                             const float *zt)
{
    const vf lse = v_load(w->lse + v * VL), delta = v_load(w->delta + v * VL);
    const int64_t nj = keys_of_vector(k, v);

    for (int64_t j = 0; j < nj; j++) {
        float *p_at = w->pt + j * T + v * VL, *ds_at = w->dst + j * T + v * VL;
        vf p = v_exp(v_load(p_at) - lse);
        if (masked) {
            p = v_select(hidden(&w->t, v, k->j0 + j), (vf){0}, p);
        }
        const vf z = zt ? v_load(zt + j * T + v * VL) : v_set(1.0f);
        v_store(p_at, zt ? p * z : p);
        v_store(ds_at,
                p * (zt ? v_load(ds_at) * z - delta : v_load(ds_at) - delta) * w->t.a->scale);
    }
}

/* dk or dv rows += st x, where x are nq rows of d_n elements. */
V_INLINE void add_to_rows(const struct key_tile *k, const float *st, int64_t nq, struct rows x,
                          int64_t d_n, float *rows)
{
    const int64_t step = k->diagonal ? HALF : T;

    for (int64_t j = 0; j < k->n; j += step) {
        const int64_t m = k->n - j < step ? k->n - j : step, query = k->diagonal ? j : 0;
        const struct tile mul = {.k = nq - query,
                                 .a = st + j * T + query,
                                 .a_row = T,
                                 .a_col = 1,
                                 .b = x.x + query * x.ld,
                                 .ldb = x.ld,
                                 .c = rows + j * d_n,
                                 .ldc = d_n,
                                 .accumulate = true};
        tile_mul(m, d_n, &mul);
    }
}

/* One key tile of a query tile: adds to dqt and to rows of dk and dv. */
static void backward_tile(struct backward *w, int64_t j0)
{
    const struct query_tile *t = &w->t;
    const struct pf_attention_fwd_args *a = t->a;
    const struct key_tile k = key_tile_at(t, j0, w->kv);
    float *zt = a->dropout_p > 0.0f ? w->zt : NULL;

    scores(&k, k.k, a->head_dim, w->qt, w->pt);
    scores(&k, k.v, a->v_head_dim, w->dot, w->dst);
    if (zt) {
        fill_kept(t, &k, zt);
    }
    for (int v = 0; v < TV; v++) {
        if (zt || k.masked) {
            gradient_lanes(w, &k, true, v, zt);
        } else {
            gradient_lanes(w, &k, false, v, NULL);
        }
    }
    add_to_rows(&k, w->pt, t->n, w->dout, a->v_head_dim, w->dv + k.j0 * a->v_head_dim);
    add_to_rows(&k, w->dst, t->n, w->q, a->head_dim, w->dk + k.j0 * a->head_dim);
    weighted(&k, k.k, a->head_dim, w->dst, j0 != first_tile(t), w->dqt);
}

static void backward_queries(struct backward *w, int64_t b, int64_t h, int64_t i0)
{
    const struct pf_attention_fwd_args *a = &w->g->fwd;
    const struct query_tile *t = &w->t;
    float ones[T];

    query_tile_init(a, b, h, i0, &w->t);
    for (int i = 0; i < T; i++) {
        ones[i] = 1.0f;
    }
    w->q = rows_of(query_rows(t), a->ldq, t->n, a->head_dim, w->queries);
    w->dout = rows_of(dout_rows(w), w->g->lddo, t->n, a->v_head_dim, w->queries + T * a->head_dim);
    transpose_in(w->q, t->n, a->head_dim, a->scale, w->qt);
    transpose_in(w->dout, t->n, a->v_head_dim, 1.0f, w->dot);
    memset(w->lse, 0, sizeof w->lse);
    memcpy(w->lse, a->lse + stat_at(t), (size_t)t->n * sizeof(float));
    fill_delta(w);
    if (first_tile(t) >= i0 + t->n) { /* no query of this tile sees a key */
        memset(w->dqt, 0, (size_t)(a->head_dim * T) * sizeof(float));
    }
    for (int64_t j0 = first_tile(t); j0 < i0 + t->n; j0 += T) {
        backward_tile(w, j0);
    }
    transpose_out(w->dqt, t->n, a->head_dim, ones,
                  (elem *)w->g->dq + token_row(t) * a->ldq + h * a->head_dim, a->ldq);
}

/* Into how many units a key head is cut. */
V_INLINE int64_t cuts_of(const struct pf_kctx *ctx, const struct pf_attention_fwd_args *a)
{
    const int64_t heads = a->batch * a->n_kv_heads;

    return heads < ctx->n_threads ? (ctx->n_threads + heads - 1) / heads : 1;
}

/* The sums of a unit: dk, then dv. They stand behind all threads' work space. */
V_INLINE float *unit_sums(const struct pf_kctx *ctx, const struct pf_attention_fwd_args *a,
                          int64_t unit)
{
    return scratch_of(ctx, a, ctx->n_threads) + unit * a->seq * (a->head_dim + a->v_head_dim);
}

/* Query tiles [lo, hi) of the group of key head kv: tile u is tile u % n_tiles of its head. */
static void backward_tiles(struct backward *w, int64_t b, int64_t kv, bool fold, int64_t lo,
                           int64_t hi)
{
    const struct pf_attention_fwd_args *a = &w->g->fwd;
    const int64_t n_tiles = (a->seq + T - 1) / T, group = a->n_heads / a->n_kv_heads;

    for (int64_t u = lo; u < hi; u++) {
        const int64_t tile = fold ? folded(u % n_tiles, n_tiles) : u % n_tiles;
        backward_queries(w, b, kv * group + u / n_tiles, tile * T);
    }
}

/* A row of dk or dv: the sum of n rows at distance stride. */
V_INLINE void finish_row(const float *sums, int64_t stride, int64_t n_sums, int64_t width, elem *to)
{
    for (int64_t i = 0; i < width; i += VL) {
        const int64_t n = width - i < VL ? width - i : VL;
        vf total = v_load_n(sums + i, n);
        for (int64_t u = 1; u < n_sums; u++) {
            total += v_load_n(sums + u * stride + i, n);
        }
        e_store_n(to + i, total, n);
    }
}

/* Rows [lo, hi) of key head kv of sequence b: dk and dv from the sums of n units, one after another. */
static void finish_rows(const struct pf_attention_bwd_args *g, int64_t b, int64_t kv, int64_t lo,
                        int64_t hi, const float *sums, int64_t n)
{
    const struct pf_attention_fwd_args *a = &g->fwd;
    const int64_t d = a->head_dim, dv = a->v_head_dim, stride = a->seq * (d + dv);
    elem *dk_to = (elem *)g->dk + b * a->seq * a->ldk + kv * d;
    elem *dv_to = (elem *)g->dv + b * a->seq * a->ldv + kv * dv;

    for (int64_t r = lo; r < hi; r++) {
        finish_row(sums + r * d, stride, n, d, dk_to + r * a->ldk);
        finish_row(sums + a->seq * d + r * dv, stride, n, dv, dv_to + r * a->ldv);
    }
}

static void backward_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                          int64_t hi)
{
    const struct pf_attention_bwd_args *g = args;
    const struct pf_attention_fwd_args *a = &g->fwd;
    const int64_t cuts = cuts_of(ctx, a);
    const int64_t n = a->n_heads / a->n_kv_heads * ((a->seq + T - 1) / T);
    struct backward w = {.g = g, .qt = scratch_of(ctx, a, part)};

    w.dot = w.qt + a->head_dim * T;
    w.dqt = w.dot + a->v_head_dim * T;
    w.pt = w.dqt + a->head_dim * T;
    w.dst = w.pt + T * T;
    w.zt = w.dst + T * T;
    w.kv = w.zt + T * T;
    w.queries = w.kv + T * (a->head_dim + a->v_head_dim);
    for (int64_t u = lo; u < hi; u++) {
        const int64_t head = u / cuts, b = head / a->n_kv_heads, kv = head % a->n_kv_heads;
        float *sums = unit_sums(ctx, a, cuts > 1 ? u : part);
        int64_t first, end;
        memset(sums, 0, (size_t)(a->seq * (a->head_dim + a->v_head_dim)) * sizeof *sums);
        w.dk = sums;
        w.dv = sums + a->seq * a->head_dim;
        cpu_part(n, 1, (int)cuts, (int)(u % cuts), &first, &end);
        backward_tiles(&w, b, kv, cuts > 1, first, end);
        if (cuts == 1) {
            finish_rows(g, b, kv, 0, a->seq, sums, 1);
        }
    }
}

/* Rows [lo, hi) of all key heads, where these were cut. */
static void finish_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                        int64_t hi)
{
    const struct pf_attention_bwd_args *g = args;
    const struct pf_attention_fwd_args *a = &g->fwd;
    const int64_t cuts = cuts_of(ctx, a);

    (void)part;
    for (int64_t at = lo; at < hi;) {
        const int64_t head = at / a->seq, row = at % a->seq;
        const int64_t n = hi - at < a->seq - row ? hi - at : a->seq - row;
        finish_rows(g, head / a->n_kv_heads, head % a->n_kv_heads, row, row + n,
                    unit_sums(ctx, a, head * cuts), cuts);
        at += n;
    }
}

int PF_CPU(attention_bwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_attention_bwd_args *g = args;
    const struct pf_attention_fwd_args *a = &g->fwd;
    const int64_t heads = a->batch * a->n_kv_heads, cuts = cuts_of(ctx, a);

    cpu_run(ctx, g, heads * cuts, 1, work_of(a), backward_part);
    if (cuts > 1) {
        cpu_run(ctx, g, heads * a->seq, 1, work_of(a), finish_part);
    }
    return 0;
}
