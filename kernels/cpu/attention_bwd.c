/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_bwd.c - causal attention, backward. The unit of work is a key head of one sequence, whose
 * dk and dv are summed, in scratch, over the query heads of its group and their query tiles in
 * ascending order; scores are computed again from lse. Where there are fewer key heads than threads,
 * several units share one: each sums a part of its query tiles, and the parts are added in order.
 * Source: Dao et al. 2022, algorithm 4, with the loops exchanged.
 */
#include "attention.h"

struct backward {
    const struct pf_attention_bwd_args *g;
    struct query_tile t;
    /* Columns of queries and of dout, [D,T]; the former stacked, and room for that. */
    float *qt, *dot, *dqt;
    struct words q, dout;
    float *q_room, *dout_room;
    /* Room for keys as rows and stacked, for values as rows. */
    float *k, *ks, *v;
    /* [T,T]: scores, then probabilities; their gradients, then those of scores; dropout. */
    float *st, *dpt, *zt;
    /* As the products want them: probabilities and gradients of scores as rows [T,W(T)], the latter
     * stacked. */
    float *p, *ds, *dst;
    float *dk, *dv; /* [S,D], [S,Dv]: sums of the unit */
    float lse[T], delta[T];
};

/* Shares of scratch. Words of fp32 are the same as rows and stacked, and stay where scores were. */
static void backward_init(struct backward *w, const struct pf_attention_bwd_args *g, float *scratch)
{
    const int64_t d = g->fwd.head_dim * T, dv = g->fwd.v_head_dim * T;

    *w = (struct backward){.g = g, .qt = scratch};
    w->dot = w->qt + d;
    w->dqt = w->dot + dv;
    w->q_room = w->dqt + d;
    w->dout_room = w->q_room + d;
    w->k = w->dout_room + dv;
    w->v = w->k + d;
    w->st = w->v + dv;
    w->dpt = w->st + T * T;
    w->zt = w->dpt + T * T;
#if DOT_K == 1
    w->ks = NULL;
    w->p = w->st;
    w->ds = w->dst = w->dpt;
#else
    w->ks = w->zt + T * T;
    w->p = w->ks + d / DOT_K;
    w->ds = w->p + T * T / DOT_K;
    w->dst = w->ds + T * T / DOT_K;
#endif
}

/* delta = dout . out of each query */
static void fill_delta(struct backward *w, const elem *dout)
{
    const struct pf_attention_fwd_args *a = w->t.a;
    const elem *out = (const elem *)a->out + token_row(&w->t) * a->ldo + w->t.h * a->v_head_dim;

    memset(w->delta, 0, sizeof w->delta);
    for (int64_t r = 0; r < w->t.n; r++) {
        const elem *x = out + r * a->ldo, *y = dout + r * w->g->lddo;
        vf sum = {0};
        V_LOOP(0, a->v_head_dim, sum = v_fma(e_load_n(x + i, n), e_load_n(y + i, n), sum));
        w->delta[r] = v_sum(sum);
    }
    memcpy(w->g->delta + stat_at(&w->t), w->delta, (size_t)w->t.n * sizeof(float));
}

/* What gradient_lanes reads and writes of a vector. */
struct lanes {
    const float *zt;
    vf factor, lse, delta, largest; /* largest: of the probabilities */
    float *st, *dpt, *p, *ds, *dst;
};

#if DOT_K == 2

/* Two neighbours of a tile of BF16 rows. */
V_INLINE void put_rows(float *rows, int64_t j, __m512i x)
{
    _mm256_storeu_si256((__m256i *)(void *)(rows + j * T / 2), _mm512_castsi512_si256(x));
    _mm256_storeu_si256((__m256i *)(void *)(rows + (j + 1) * T / 2),
                        _mm512_extracti64x4_epi64(x, 1));
}

#endif

/* Keys j and, if both, j+1, as the products want them; in fp32 in the place of st and dpt. */
V_INLINE void put_gradients(const struct lanes *x, int64_t j, bool both, const vf p[2],
                            const vf ds[2])
{
#if DOT_K == 2
    const __m512i pair = halves(ds[0], ds[1]);
    put_rows(x->p, j, halves(p[0], p[1]));
    put_rows(x->ds, j, pair);
    v_store(x->dst + j / 2 * T, in_turn(pair));
#endif
    for (int i = 0; i < 1 + both; i++) {
        v_store(x->st + (j + i) * T, p[i]);
        v_store(x->dpt + (j + i) * T, ds[i]);
    }
}

/* Keys j and, if both, j+1: p = 2^(s - lse) and ds = p (dp - delta), in the place of dp; if drop, dp
 * and the p that is left are multiplied by zt. */
V_INLINE void gradient_pair(const struct query_tile *t, struct lanes *x, bool masked, bool drop,
                            int v, int64_t j0, int64_t j, bool both)
{
    vf p[2] = {{0}, {0}}, ds[2] = {{0}, {0}};

#pragma GCC unroll 2
    for (int i = 0; i < 1 + both; i++) {
        const int64_t at = (j + i) * T;
        p[i] = v_exp2(score_less(v_load(x->st + at), x->factor, x->lse));
        if (masked) {
            p[i] = v_select(hidden(t, v, j0 + j + i), (vf){0}, p[i]);
        }
        x->largest = DOT_K == 2 ? v_max(p[i], x->largest) : x->largest;
        const vf z = drop ? v_load(x->zt + at) : v_set(1.0f), dp = v_load(x->dpt + at);
        ds[i] = p[i] * (drop ? dp * z - x->delta : dp - x->delta);
        p[i] = drop ? p[i] * z : p[i];
    }
    put_gradients(x, j, both, p, ds);
}

V_INLINE struct lanes lanes_of(const struct backward *w, int v)
{
    return (struct lanes){.st = w->st + v * VL,
                          .zt = w->zt + v * VL,
                          .factor = score_factor(&w->t),
                          .lse = v_load(w->lse + v * VL),
                          .delta = v_load(w->delta + v * VL),
                          .dpt = w->dpt + v * VL,
                          .p = w->p + v * VL / DOT_K,
                          .ds = w->ds + v * VL / DOT_K,
                          .dst = w->dst + v * VL};
}

/* Returns the largest probability of each lane. */
V_INLINE vf gradient_lanes(const struct backward *w, const struct key_tile *k, bool masked,
                           bool drop, int v)
{
    const int64_t nj = keys_of_vector(k, v);
    struct lanes x = lanes_of(w, v);
    int64_t j = 0;

    for (; j + 2 <= nj; j += 2) {
        gradient_pair(&w->t, &x, masked, drop, v, k->j0, j, true);
    }
    if (j < nj) {
        gradient_pair(&w->t, &x, masked, drop, v, k->j0, j, false);
    }
    return x.largest;
}

/* Probabilities and gradients of scores of a tile; returns the largest probability. */
static float gradients(const struct backward *w, const struct key_tile *k)
{
    const bool drop = w->t.a->dropout_p > 0.0f;
    vf largest = {0};

    if (drop) {
        fill_kept(&w->t, k, w->zt);
    }
    for (int v = 0; v < TV; v++) {
        const vf x = drop        ? gradient_lanes(w, k, true, true, v)
                     : k->masked ? gradient_lanes(w, k, true, false, v)
                                 : gradient_lanes(w, k, false, false, v);
        largest = v_max(x, largest);
    }
    return v_max_lane(largest);
}

/* What rounding to BF16 took from probabilities and gradients of scores, in their place. */
static void keep_remainders(const struct backward *w, const struct key_tile *k)
{
    for (int v = 0; v < TV; v++) {
        const struct lanes x = lanes_of(w, v);
        const int64_t nj = keys_of_vector(k, v);
        for (int64_t j = 0; j < nj; j += 2) {
            vf p[2] = {{0}, {0}}, ds[2] = {{0}, {0}};
            for (int i = 0; i < 2 && j + i < nj; i++) {
                p[i] = v_load(x.st + (j + i) * T);
                p[i] -= e_round(p[i]);
                ds[i] = v_load(x.dpt + (j + i) * T);
                ds[i] -= e_round(ds[i]);
            }
            put_gradients(&x, j, j + 1 < nj, p, ds);
        }
    }
}

/* dk or dv += p y for rows p of the tile and stacked queries' rows y of `width` elements. */
V_INLINE void add_to_rows(const struct backward *w, const struct key_tile *k, const float *p,
                          struct words stacked, int64_t width, float *sums)
{
    const int64_t step = k->diagonal ? STEP : T, ldp = words_of(T);

    for (int64_t j = 0; j < k->n; j += step) {
        const int64_t query = k->diagonal ? j : 0;
        const struct tile mul = {.k = words_of(w->t.n - query),
                                 .a = p + j * ldp + query / DOT_K,
                                 .a_row = ldp,
                                 .a_col = 1,
                                 .b = stacked.x + query / DOT_K * stacked.ld,
                                 .ldb = stacked.ld,
                                 .c = sums + (k->j0 + j) * width,
                                 .ldc = width,
                                 .accumulate = true};
        tile_mul(least(k->n - j, step), width, &mul);
    }
}

/* dv += p^T dout, dk += ds^T q, dqt (+)= k^T ds^T */
static void add_products(struct backward *w, const struct key_tile *k, struct words keys,
                         bool fresh)
{
    const int64_t d = w->t.a->head_dim, dv = w->t.a->v_head_dim;

    add_to_rows(w, k, w->p, w->dout, dv, w->dv);
    add_to_rows(w, k, w->ds, w->q, d, w->dk);
    weighted(k, keys, d, w->dst, !fresh, w->dqt);
}

/* One key tile of a query tile: adds to dqt and to rows of dk and dv. */
static void backward_tile(struct backward *w, int64_t tile)
{
    const struct pf_attention_fwd_args *a = w->t.a;
    const struct key_tile k = key_tile_at(&w->t, tile);
    const elem *keys = keys_of(&w->t, &k);
    const struct words rows = pack_rows(keys, a->ldk, k.n, a->head_dim, w->k);
    const struct words stacked = w->ks ? pack_stacked(keys, a->ldk, k.n, a->head_dim, w->ks) : rows;

    scores(&k, rows, a->head_dim, w->qt, w->st);
    scores(&k, pack_rows(values_of(&w->t, &k), a->ldv, k.n, a->v_head_dim, w->v), a->v_head_dim,
           w->dot, w->dpt);
    const float largest = gradients(w, &k);
    add_products(w, &k, stacked, tile == first_tile(&w->t));
    if (DOT_K == 2 && largest > SHARP) {
        keep_remainders(w, &k);
        add_products(w, &k, stacked, false);
    }
}

/* The query tile's rows in all forms, and its statistics. */
static void pack_tile(struct backward *w)
{
    const struct query_tile *t = &w->t;
    const struct pf_attention_fwd_args *a = t->a;
    const elem *q = (const elem *)a->q + token_row(t) * a->ldq + t->h * a->head_dim;
    const elem *dout = (const elem *)w->g->dout + token_row(t) * w->g->lddo + t->h * a->v_head_dim;

    pack_queries(t, w->qt);
    w->q = pack_stacked(q, a->ldq, t->n, a->head_dim, w->q_room);
    pack_columns(dout, w->g->lddo, t->n, a->v_head_dim, 1.0f, w->dot);
    w->dout = pack_stacked(dout, w->g->lddo, t->n, a->v_head_dim, w->dout_room);
    /* Where no query is, probabilities are 0. */
    for (int64_t i = 0; i < T; i++) {
        w->lse[i] = i < t->n ? a->lse[stat_at(t) + i] * LOG2_E : __builtin_inff();
    }
    fill_delta(w, dout);
}

static void backward_queries(struct backward *w, int64_t b, int64_t h, int64_t i0)
{
    const struct pf_attention_fwd_args *a = &w->g->fwd;
    const struct query_tile *t = &w->t;
    float scale[T];

    query_tile_init(a, b, h, i0, &w->t);
    for (int i = 0; i < T; i++) {
        scale[i] = a->scale;
    }
    pack_tile(w);
    if (first_tile(t) >= i0 + t->n) { /* no query of this tile sees a key */
        memset(w->dqt, 0, (size_t)(a->head_dim * T) * sizeof(float));
    }
    for (int64_t tile = first_tile(t); tile < i0 + t->n; tile += T) {
        backward_tile(w, tile);
    }
    transpose_out(w->dqt, t->n, a->head_dim, scale,
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

/* A row of dk or dv: the sum of n rows at distance stride, times factor. */
V_INLINE void finish_row(const float *sums, int64_t stride, int64_t n_sums, int64_t width,
                         float factor, elem *to)
{
    for (int64_t i = 0; i < width; i += VL) {
        const int64_t n = width - i < VL ? width - i : VL;
        vf total = v_load_n(sums + i, n);
        for (int64_t u = 1; u < n_sums; u++) {
            total += v_load_n(sums + u * stride + i, n);
        }
        e_store_n(to + i, total * factor, n);
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
        finish_row(sums + r * d, stride, n, d, a->scale, dk_to + r * a->ldk);
        finish_row(sums + a->seq * d + r * dv, stride, n, dv, 1.0f, dv_to + r * a->ldv);
    }
}

static void backward_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                          int64_t hi)
{
    const struct pf_attention_bwd_args *g = args;
    const struct pf_attention_fwd_args *a = &g->fwd;
    const int64_t cuts = cuts_of(ctx, a);
    const int64_t n = a->n_heads / a->n_kv_heads * ((a->seq + T - 1) / T);
    struct backward w;

    backward_init(&w, g, scratch_of(ctx, a, part));
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
