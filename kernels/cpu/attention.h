/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.h - what the passes of causal attention share: tiles of 64 queries by 64 keys, what is
 * hidden in them, and their products.
 *
 * Everything stands with queries along the lanes: the scores of a tile are S^T [keys, queries] =
 * K Q^T, so the softmax works down columns without ever summing across lanes. Scores are kept as
 * powers of two, log2(e) having been multiplied into the scale: exp is 2^x then.
 *
 * Narrow elements are widened and multiplied in fp32, but for BF16 with AVX512-BF16 (pack.h), whose
 * instruction multiplies BF16 exactly and adds in fp32. There probabilities and the gradients of
 * scores are rounded to BF16, as factors of products and nowhere else: maxima, sums, lse and delta
 * are of what they were before (Dao et al. 2022 in half precision). Where a query looks at few keys
 * that error would be seen, and its tile is multiplied by what rounding took, too (SHARP).
 */
#ifndef PF_CPU_ATTENTION_H
#define PF_CPU_ATTENTION_H

#include "cpu.h"
#include "mask.h"
#include "pack.h"

#define LOG2_E 0x1.715476p0f

/* One query tile of one head: where its rows are, and which queries they belong to. */
struct query_tile {
    const struct pf_attention_fwd_args *a;
    int64_t b, h, kv_head;
    int64_t i0, n;      /* queries i0 .. i0+n-1 */
    int64_t first;      /* no query here sees a key below */
    int64_t last_first; /* every query here sees the keys from this one on, up to itself */
    int32_t first_key[T];
};

static void query_tile_init(const struct pf_attention_fwd_args *a, int64_t b, int64_t h, int64_t i0,
                            struct query_tile *t)
{
    t->a = a;
    t->b = b;
    t->h = h;
    t->kv_head = h / (a->n_heads / a->n_kv_heads);
    t->i0 = i0;
    t->n = least(a->seq - i0, T);
    t->first = 0;
    t->last_first = 0;
    memset(t->first_key, 0, sizeof t->first_key);
    if (!a->first_key) {
        return;
    }
    t->first = i0 + t->n;
    for (int64_t i = 0; i < t->n; i++) {
        t->first_key[i] = a->first_key[b * a->seq + i0 + i];
        t->first = least(t->first, t->first_key[i]);
        t->last_first = t->first_key[i] > t->last_first ? t->first_key[i] : t->last_first;
    }
    t->first = t->first > 0 ? t->first : 0;
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

/* Queries as columns, scaled if they can be. */
V_INLINE void pack_queries(const struct query_tile *t, float *to)
{
    const struct pf_attention_fwd_args *a = t->a;

    pack_columns((const elem *)a->q + token_row(t) * a->ldq + t->h * a->head_dim, a->ldq, t->n,
                 a->head_dim, a->scale * LOG2_E, to);
}

/* What is left to multiply scores by, and that done, less y. */
V_INLINE vf score_factor(const struct query_tile *t)
{
    return v_set(DOT_K == 1 ? 1.0f : t->a->scale * LOG2_E);
}

V_INLINE vf score_less(vf s, vf factor, vf y)
{
    return DOT_K == 1 ? s - y : v_fma(s, factor, -y);
}

/* Lanes of vector v whose query does not see key j. */
V_INLINE vm hidden(const struct query_tile *t, int v, int64_t j)
{
    const vi query = vi_iota() + (int32_t)(t->i0 + v * VL), key = vi_set((int32_t)j);

    return vm_or(vi_gt(key, query), vi_gt(vi_load_n(t->first_key + v * VL, VL), key));
}

/*
 * The tile on the diagonal is cut in steps each way, and of its parts those that no query sees are
 * neither computed nor read: keys from j on meet only queries from j on.
 */
#define STEP (T / 4)

struct key_tile {
    int64_t j0, n; /* keys j0 .. j0+n-1 */
    bool diagonal, masked;
};

/* The tile that starts at a multiple of T, less the keys that come before those that any query sees. */
V_INLINE struct key_tile key_tile_at(const struct query_tile *t, int64_t tile)
{
    const int64_t j0 = tile < t->i0 && tile < t->first ? t->first : tile;

    return (struct key_tile){.j0 = j0,
                             .n = least(t->i0 + t->n, tile + T) - j0,
                             .diagonal = j0 == t->i0,
                             .masked = j0 == t->i0 || j0 < t->last_first};
}

V_INLINE int64_t key_row(const struct query_tile *t, const struct key_tile *k)
{
    return t->b * t->a->seq + k->j0;
}

V_INLINE const elem *keys_of(const struct query_tile *t, const struct key_tile *k)
{
    return (const elem *)t->a->k + key_row(t, k) * t->a->ldk + t->kv_head * t->a->head_dim;
}

V_INLINE const elem *values_of(const struct query_tile *t, const struct key_tile *k)
{
    return (const elem *)t->a->v + key_row(t, k) * t->a->ldv + t->kv_head * t->a->v_head_dim;
}

/* How many keys of the tile meet the queries of vector v. */
V_INLINE int64_t keys_of_vector(const struct key_tile *k, int v)
{
    return k->diagonal ? least((v * VL / STEP + 1) * STEP, k->n) : k->n;
}

/* zt[j][i] = 0 where dropout drops (i, j), else what a kept probability is multiplied by. */
static void fill_kept(const struct query_tile *t, const struct key_tile *k, float *zt)
{
    const struct pf_attention_fwd_args *a = t->a;
    const float factor = 1.0f / (1.0f - a->dropout_p);
    const uint32_t threshold = pf_dropout_threshold(a->dropout_p);
    const uint64_t sequence = a->first_sequence + (uint64_t)t->b;
    const int64_t n_heads = a->n_heads_total ? a->n_heads_total : a->n_heads;
    const uint64_t head = sequence * (uint64_t)n_heads + (uint64_t)(a->first_head + t->h);
    const uint64_t row0 = head * (uint64_t)a->seq + (uint64_t)t->i0;

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

/* Units of a head that are summed in one chain: longer ones lose digits of the scores, and the part of xt
 * that belongs to a chain stays in the first cache. */
#define CHAIN 32

/* st[j][i] = x_j . y_i for keys' rows x of `width` elements and columns xt of queries' rows y. */
V_INLINE void scores(const struct key_tile *k, struct words rows, int64_t width, const float *xt,
                     float *st)
{
    const int64_t step = k->diagonal ? STEP : T, words = words_of(width);

    for (int64_t j = 0; j < k->n; j += step) {
        const int64_t lane = k->diagonal ? j : 0;
        for (int64_t d = 0; d < words; d += CHAIN) {
            const struct tile mul = {.k = least(words - d, CHAIN),
                                     .a = rows.x + j * rows.ld + d,
                                     .a_row = rows.ld,
                                     .a_col = 1,
                                     .b = xt + d * T + lane,
                                     .ldb = T,
                                     .c = st + j * T + lane,
                                     .ldc = T,
                                     .accumulate = d > 0};
            tile_mul(least(k->n - j, step), T - lane, &mul);
        }
    }
}

/* yt[d][i] (+)= sum_j x_j[d] p_ji for stacked keys' rows x of `width` elements and stacked p. */
V_INLINE void weighted(const struct key_tile *k, struct words stacked, int64_t width,
                       const float *p, bool accumulate, float *yt)
{
    const int64_t step = k->diagonal ? STEP : T;

    for (int64_t lane = 0; lane < T; lane += step) {
        const struct tile mul = {.k = words_of(k->diagonal ? least(lane + step, k->n) : k->n),
                                 .a = stacked.x,
                                 .a_row = 1,
                                 .a_col = stacked.ld,
                                 .b = p + lane,
                                 .ldb = T,
                                 .c = yt + lane,
                                 .ldc = T,
                                 .accumulate = accumulate};
        tile_mul(width, step, &mul);
    }
}

/* Rows j and j+1 of a vector of a stacked tile, j even. */
V_INLINE void put_stacked(float *p, int64_t j, vf x0, vf x1)
{
#if DOT_K == 2
    v_store(p + j / 2 * T, in_turn(halves(x0, x1)));
#else
    v_store(p + j * T, x0);
    v_store(p + (j + 1) * T, x1);
#endif
}

/*
 * Does a tile with this probability keep what rounding to BF16 takes? An error is 2^-9 of a term at most,
 * and errors of many terms cancel, so a query's results suffer in proportion to their size; but those
 * of a query with few large probabilities are far larger than the others', and so would be their errors.
 * With 1/8, results stay within the bounds that hold for fp32 products rounded once.
 */
#define SHARP 0.125f

/* Query tiles of a head in the order 0, last, 1, last-1, ...: neighbours cost the same together, so
 * that equal cuts are equal work. */
V_INLINE int64_t folded(int64_t x, int64_t n)
{
    return x % 2 == 0 ? x / 2 : n - 1 - x / 2;
}

V_INLINE float *scratch_of(const struct pf_kctx *ctx, const struct pf_attention_fwd_args *a,
                           int part)
{
    return (float *)ctx->scratch +
           (size_t)part * PF_ATTENTION_SCRATCH_FLOATS(a->head_dim, a->v_head_dim);
}

V_INLINE int64_t work_of(const struct pf_attention_fwd_args *a)
{
    return a->batch * a->n_heads * a->seq * a->seq / 2 * (a->head_dim + a->v_head_dim);
}

#endif
