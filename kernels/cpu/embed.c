/* SPDX-License-Identifier: Apache-2.0 */
/* embed.c - table look-up, its gradient, and rotary embedding. */
#include "cpu.h"

V_INLINE int64_t position_of(const int32_t *positions, int64_t seq, int64_t token)
{
    return positions ? positions[token] : token % seq;
}

/* Is row (of an id, counted from the first here) one of n_rows? */
V_INLINE bool is_here(int64_t row, int64_t n_rows)
{
    return row >= 0 && row < n_rows;
}

/* y = row + pos, either of which may be NULL. */
V_INLINE void embed_row(const elem *row, const elem *pos, int64_t width, elem *y)
{
    if (row && pos) {
        V_LOOP(0, width, e_store_n(y + i, e_load_n(row + i, n) + e_load_n(pos + i, n), n));
    } else if (row || pos) {
        memcpy(y, row ? row : pos, (size_t)width * sizeof *y);
    } else {
        memset(y, 0, (size_t)width * sizeof *y);
    }
}

static void embed_fwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                           int64_t hi)
{
    const struct pf_embed_fwd_args *a = args;

    (void)ctx;
    (void)part;
    for (int64_t t = lo; t < hi; t++) {
        const int64_t row = a->ids[t] - a->first_row;
        embed_row(is_here(row, a->n_rows) ? (const elem *)a->table + row * a->width : NULL,
                  a->pos_table
                      ? (const elem *)a->pos_table + position_of(a->positions, a->seq, t) * a->width
                      : NULL,
                  a->width, (elem *)a->y + t * a->width);
    }
}

int PF_CPU(embed_fwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_embed_fwd_args *a = args;

    cpu_run(ctx, a, a->n_tokens, 1, a->n_tokens * a->width, embed_fwd_part);
    return 0;
}

/* A thread owns columns [lo, hi) of both tables, so each row is summed in token order. */
static void embed_bwd_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                           int64_t hi)
{
    const struct pf_embed_bwd_args *a = args;

    (void)ctx;
    (void)part;
    for (int64_t t = 0; t < a->n_tokens; t++) {
        const elem *dy = (const elem *)a->dy + t * a->width;
        const int64_t at = a->ids[t] - a->first_row;
        if (a->dtable && is_here(at, a->n_rows) && a->ids[t] != a->skip_id) {
            float *row = a->dtable + at * a->width;
            V_LOOP(lo, hi, v_store_n(row + i, v_load_n(row + i, n) + e_load_n(dy + i, n), n));
        }
        if (a->dpos_table) {
            float *pos = a->dpos_table + position_of(a->positions, a->seq, t) * a->width;
            V_LOOP(lo, hi, v_store_n(pos + i, v_load_n(pos + i, n) + e_load_n(dy + i, n), n));
        }
    }
}

int PF_CPU(embed_bwd)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_embed_bwd_args *a = args;

    cpu_run(ctx, a, a->width, VL, a->n_tokens * a->width, embed_bwd_part);
    return 0;
}

/* Turn n_pairs pairs (x[i], y[i]). No fused operation: adjacent pairs, below, give the same bits. */
V_INLINE void turn_at(const float *cosine, const float *sine, float direction, elem *x, elem *y,
                      int64_t n)
{
    const vf c = v_load_n(cosine, n), s = direction * v_load_n(sine, n);
    const vf x0 = e_load_n(x, n), y0 = e_load_n(y, n);

    e_store_n(x, x0 * c - y0 * s, n);
    e_store_n(y, y0 * c + x0 * s, n);
}

/* Pairs (x[2i], x[2i+1]) of fp32. */
V_INLINE void turn_adjacent(int64_t n_pairs, const float *cosine, const float *sine,
                            float direction, float *x)
{
#pragma omp simd
    for (int64_t i = 0; i < n_pairs; i++) {
        const float c = cosine[i], s = direction * sine[i], x0 = x[2 * i], y0 = x[2 * i + 1];
        x[2 * i] = x0 * c - y0 * s;
        x[2 * i + 1] = y0 * c + x0 * s;
    }
}

#define TURN_PAIRS 128

/* The same of elements, some pairs at a time. */
V_INLINE void turn_adjacent_elems(int64_t n_pairs, const float *cosine, const float *sine,
                                  float direction, elem *x)
{
    float wide[2 * TURN_PAIRS];

    for (int64_t i = 0; i < n_pairs; i += TURN_PAIRS) {
        const int64_t n = n_pairs - i < TURN_PAIRS ? n_pairs - i : TURN_PAIRS;
        e_widen(x + 2 * i, 2 * n, wide);
        turn_adjacent(n, cosine + i, sine + i, direction, wide);
        e_narrow(wide, 2 * n, x + 2 * i);
    }
}

static void rope_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo, int64_t hi)
{
    const struct pf_rope_args *a = args;
    const float direction = a->inverse ? -1.0f : 1.0f;

    (void)ctx;
    (void)part;
    for (int64_t t = lo; t < hi; t++) {
        const int64_t at = position_of(a->positions, a->seq, t) * a->n_pairs;
        const float *cosine = a->cos_table + at, *sine = a->sin_table + at;
        for (int64_t h = 0; h < a->n_heads; h++) {
            elem *x = (elem *)a->x + t * a->ldx + h * a->head_dim + a->first;
            if (a->pairs_adjacent) {
                turn_adjacent_elems(a->n_pairs, cosine, sine, direction, x);
            } else {
                elem *y = x + a->n_pairs;
                V_LOOP(0, a->n_pairs, turn_at(cosine + i, sine + i, direction, x + i, y + i, n));
            }
        }
    }
}

int PF_CPU(rope)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_rope_args *a = args;

    cpu_run(ctx, a, a->n_tokens, 1, a->n_tokens * a->n_heads * a->n_pairs * 2, rope_part);
    return 0;
}
