/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_fwd.c - causal attention, forward. The unit of work is a query tile of one head. Running
 * maximum m and sum l of each query follow the key tiles; the output is rescaled when m grows.
 * Source: Dao et al. 2022, algorithm 1.
 */
#include "attention.h"

/* Where a thread works on a query tile. */
struct forward {
    struct query_tile t;
    float *qt, *ot; /* columns of queries; [Dv,T] */
    float *k, *v;   /* room for keys as rows, for values stacked */
    float *st, *zt; /* [T,T]: scores, dropout */
    float *pt;      /* stacked probabilities: words of fp32 in the place of scores */
    float m[T], l[T];
    float sharp[T]; /* above 0 where a probability of the tile is above SHARP */
};

/* Scores of vector v of the tile: their maximum, or m if larger. Where masked, they are scaled and
 * hidden in place. */
V_INLINE vf maximum(const struct forward *w, const struct key_tile *k, bool masked, int v)
{
    const vf none = v_set(-__builtin_inff()), factor = score_factor(&w->t);
    const int64_t nj = keys_of_vector(k, v);
    float *const st = w->st + v * VL;
    vf max[4] = {v_load(w->m + v * VL), none, none, none}; /* chains */

    for (int64_t j = 0; j < nj; j += 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            if (j + i < nj) {
                vf s = v_load(st + (j + i) * T) * factor;
                if (masked) {
                    s = v_select(hidden(&w->t, v, k->j0 + j + i), none, s);
                    v_store(st + (j + i) * T, s);
                }
                max[i] = v_max(max[i], s);
            }
        }
    }
    return v_max(v_max(max[0], max[1]), v_max(max[2], max[3]));
}

/* What softmax_lanes reads and writes of a vector. */
struct lanes {
    float *st, *pt;
    const float *zt;
    vf factor, shift, sum[2], largest;
};

/* Keys j and, if both, j+1: probabilities but for the factor 1/l. */
V_INLINE void probabilities(struct lanes *x, int64_t j, bool both, bool drop)
{
    vf p[2] = {{0}, {0}};

#pragma GCC unroll 2
    for (int i = 0; i < 1 + both; i++) {
        const int64_t at = (j + i) * T;
        p[i] = v_exp2(score_less(v_load(x->st + at), x->factor, x->shift));
        x->sum[i] += p[i];
        p[i] = drop ? p[i] * v_load(x->zt + at) : p[i];
        if (DOT_K == 2) {
            x->largest = v_max(p[i], x->largest);
            v_store(x->st + at, p[i]);
        }
    }
    put_stacked(x->pt, j, p[0], p[1]);
}

/* Turn vector v of scores into 2^(s - m), stacked; update m and l, and return 2^(m_old - m). */
V_INLINE vf softmax_lanes(struct forward *w, const struct key_tile *k, bool masked, bool drop,
                          int v)
{
    const vf m_old = v_load(w->m + v * VL), max = maximum(w, k, masked, v);
    /* A query that has seen nothing yet has no maximum: 2^(-inf - 0) is 0. */
    const vf shift = v_select(v_lt(v_set(-__builtin_inff()), max), max, (vf){0});
    const int64_t nj = keys_of_vector(k, v);
    struct lanes x = {.st = w->st + v * VL,
                      .zt = w->zt + v * VL,
                      .factor = masked ? v_set(1.0f) : score_factor(&w->t),
                      .shift = shift,
                      .pt = w->pt + v * VL};
    int64_t j = 0;

    for (; j + 2 <= nj; j += 2) {
        probabilities(&x, j, true, drop);
    }
    if (j < nj) {
        probabilities(&x, j, false, drop);
    }
    const vf shrink = v_exp2(m_old - shift);
    const vf l = v_fma(v_load(w->l + v * VL), shrink, x.sum[0] + x.sum[1]);
    v_store(w->l + v * VL, l);
    v_store(w->sharp + v * VL, x.largest - l * SHARP);
    v_store(w->m + v * VL, max);
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

/* Softmax of a tile; shrink is by how much what came before it must be multiplied. */
V_INLINE void softmax(struct forward *w, const struct key_tile *k, float *shrink)
{
    const bool drop = w->t.a->dropout_p > 0.0f;

    if (drop) {
        fill_kept(&w->t, k, w->zt);
    }
    for (int v = 0; v < TV; v++) {
        const vf s = drop        ? softmax_lanes(w, k, true, true, v)
                     : k->masked ? softmax_lanes(w, k, true, false, v)
                                 : softmax_lanes(w, k, false, false, v);
        v_store(shrink + v * VL, s);
    }
}

V_INLINE bool any_not_one(const float *x)
{
    bool any = false;

    for (int i = 0; i < T; i++) {
        any |= x[i] != 1.0f;
    }
    return any;
}

V_INLINE bool any_above_zero(const float *x)
{
    bool any = false;

    for (int i = 0; i < T; i++) {
        any |= x[i] > 0.0f;
    }
    return any;
}

/* What rounding to BF16 took from the probabilities, in their place. */
static void keep_remainders(const struct forward *w, const struct key_tile *k)
{
    for (int v = 0; v < TV; v++) {
        const int64_t nj = keys_of_vector(k, v);
        for (int64_t j = 0; j < nj; j += 2) {
            const float *p = w->st + j * T + v * VL;
            const vf a = v_load(p), b = j + 1 < nj ? v_load(p + T) : (vf){0};
            put_stacked(w->pt + v * VL, j, a - e_round(a), b - e_round(b));
        }
    }
}

/* One key tile: scores, softmax, output. */
static void forward_tile(struct forward *w, int64_t tile)
{
    const struct pf_attention_fwd_args *a = w->t.a;
    const struct key_tile k = key_tile_at(&w->t, tile);
    const struct words rows = pack_rows(keys_of(&w->t, &k), a->ldk, k.n, a->head_dim, w->k);
    const struct words stacked =
        pack_stacked(values_of(&w->t, &k), a->ldv, k.n, a->v_head_dim, w->v);
    const bool fresh = tile == first_tile(&w->t);
    float shrink[T];

    scores(&k, rows, a->head_dim, w->qt, w->st);
    softmax(w, &k, shrink);
    if (!fresh && any_not_one(shrink)) {
        rescale(a->v_head_dim, shrink, w->ot);
    }
    weighted(&k, stacked, a->v_head_dim, w->pt, !fresh, w->ot);
    if (DOT_K == 2 && any_above_zero(w->sharp)) {
        keep_remainders(w, &k);
        weighted(&k, stacked, a->v_head_dim, w->pt, true, w->ot);
    }
}

/* out = ot / l and lse = log(l 2^m); a query that sees no key gets 0 and -inf. */
static void forward_finish(const struct forward *w)
{
    const struct query_tile *t = &w->t;
    const struct pf_attention_fwd_args *a = t->a;
    float inverse[T] = {0}, *lse = a->lse + stat_at(t);
    elem *out = (elem *)a->out + token_row(t) * a->ldo + t->h * a->v_head_dim;

    for (int64_t i = 0; i < t->n; i++) {
        const bool any = w->l[i] != 0.0f;
        inverse[i] = any ? 1.0f / w->l[i] : 0.0f;
        lse[i] = any ? (float)(w->m[i] * 0x1.62e42fefa39efp-1 + s_log(w->l[i])) : -__builtin_inff();
    }
    transpose_out(w->ot, t->n, a->v_head_dim, inverse, out, a->ldo);
}

static void forward_unit(const struct pf_attention_fwd_args *a, int64_t b, int64_t h, int64_t i0,
                         float *scratch)
{
    struct forward w = {.qt = scratch, .ot = scratch + a->head_dim * T};
    const struct query_tile *t = &w.t;

    w.k = w.ot + a->v_head_dim * T;
    w.v = w.k + a->head_dim * T;
    w.st = w.v + a->v_head_dim * T;
    w.zt = w.st + T * T;
    w.pt = DOT_K == 1 ? w.st : w.zt + T * T;
    query_tile_init(a, b, h, i0, &w.t);
    for (int i = 0; i < T; i++) {
        w.m[i] = -__builtin_inff();
    }
    pack_queries(t, w.qt);
    if (first_tile(t) >= i0 + t->n) { /* no query of this tile sees a key */
        memset(w.ot, 0, (size_t)(a->v_head_dim * T) * sizeof *w.ot);
    }
    for (int64_t tile = first_tile(t); tile < i0 + t->n; tile += T) {
        forward_tile(&w, tile);
    }
    forward_finish(&w);
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

int PF_CPU(attention_fwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_attention_fwd_args *a = args;

    cpu_run(ctx, a, a->batch * a->n_heads * ((a->seq + T - 1) / T), 1, work_of(a), forward_part);
    return 0;
}
