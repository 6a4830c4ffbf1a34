/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack.h - the matrices of attention.h as tile.h wants them, in words along k.
 *
 * A word (dot.h) is one fp32 number, widened where the elements are narrow; or, with AVX512-BF16, a
 * pair of BF16 as they are, neighbours along the k of a product, the last one beside a 0 where k is
 * odd. Of the same rows x [n, width] three forms are made, each for other places in a product:
 *
 *     rows    [n][W(width)]      a, k along a row          (x y^T, from the left)
 *     columns [W(width)][T]      b, k along a row          (from the right)
 *     stacked [W(n)][width]      a or b, k along the rows  (y x, y^T x)
 *
 * where W(m) is the words of m elements. What lies as it should already is used as it lies: to copy
 * keys and values costs up to a tenth of the time of a tile.
 */
#ifndef PF_CPU_PACK_H
#define PF_CPU_PACK_H

#include "tile.h"

#define T PF_ATTENTION_TILE
#define TV (T / VL)            /* vectors along the queries of a tile */
#define WORD_LOAD (VL * DOT_K) /* elements of a vector of words */

V_INLINE int64_t words_of(int64_t n)
{
    return (n + DOT_K - 1) / DOT_K;
}

V_INLINE int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Neighbours n of a row as words, 0 < n <= WORD_LOAD. */
V_INLINE vf word_load_n(const elem *p, int64_t n)
{
#if DOT_K == 2
    return (vf)_mm512_maskz_loadu_epi16(n >= WORD_LOAD ? ~0u : (1u << n) - 1, p);
#else
    return e_load_n(p, n);
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

/* A matrix of words, rows at distance ld. */
struct words {
    const float *x;
    int64_t ld;
};

/* Do x's rows already lie as words? */
V_INLINE bool lie_as_words(const elem *x, int64_t ld, int64_t width)
{
    return ELEM_IS_F32 || (DOT_K == 2 && (uintptr_t)x % sizeof(float) == 0 && ld % DOT_K == 0 &&
                           width % DOT_K == 0);
}

/* x [n, width] as rows: where they lie, or copied into room. */
static __attribute__((unused)) struct words pack_rows(const elem *x, int64_t ld, int64_t n,
                                                      int64_t width, float *room)
{
    const int64_t words = words_of(width);

    if (lie_as_words(x, ld, width)) {
        return (struct words){(const float *)(const void *)x, ld / DOT_K};
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t d = 0; d < width; d += WORD_LOAD) {
            const int64_t some = least(width - d, WORD_LOAD);
            v_store_n(room + i * words + d / DOT_K, word_load_n(x + i * ld + d, some),
                      words_of(some));
        }
    }
    return (struct words){room, words};
}

/* Columns n..T-1 are 0. Units of fp32 are multiplied by factor; pairs cannot be without rounding. */
static __attribute__((unused)) void pack_columns(const elem *x, int64_t ld, int64_t n,
                                                 int64_t width, float factor, float *to)
{
    vf block[VL];

    (void)factor;
    for (int64_t d = 0; d < width; d += WORD_LOAD) {
        const int64_t some = least(width - d, WORD_LOAD), words = words_of(some);
        for (int64_t i = 0; i < T; i += VL) {
#pragma GCC unroll 16
            for (int r = 0; r < VL; r++) {
                block[r] = i + r < n ? word_load_n(x + (i + r) * ld + d, some) : (vf){0};
#if DOT_K == 1
                block[r] = block[r] * factor;
#endif
            }
            transpose(block);
#pragma GCC unroll 16
            for (int r = 0; r < VL; r++) {
                if (r < words) {
                    v_store(to + (d / DOT_K + r) * T + i, block[r]);
                }
            }
        }
    }
}

#if DOT_K == 2

/* Rounded to BF16: a in the lower half of the bits, b in the upper. */
V_INLINE __m512i halves(vf a, vf b)
{
    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}

/* The halves in turn. */
V_INLINE vf in_turn(__m512i x)
{
    const __m512i lane = (__m512i)vi_iota();
    const __m512i from =
        _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(VL)), 16));

    return (vf)_mm512_permutexvar_epi16(from, x);
}

#endif

/* x [n_rows, width] stacked. */
static __attribute__((unused)) struct words pack_stacked(const elem *x, int64_t ld, int64_t n_rows,
                                                         int64_t width, float *room)
{
    if (DOT_K == 1) {
        return pack_rows(x, ld, n_rows, width, room);
    }
    for (int64_t r = 0; r < n_rows; r += DOT_K) {
        const elem *const row = x + r * ld, *const below = r + 1 < n_rows ? row + ld : NULL;
        float *const to = room + r / DOT_K * width;
        V_LOOP(0, width, v_store_n(to + i, dot_words_n(row + i, below ? below + i : NULL, n), n));
    }
    return (struct words){room, width};
}

/* to[i*ld + d] = factor[i] * from[d*T + i]. */
static __attribute__((unused)) void transpose_out(const float *from, int64_t n, int64_t d_n,
                                                  const float *factor, elem *to, int64_t ld)
{
    vf x[VL];

    for (int64_t i = 0; i < n; i += VL) {
        const vf f = v_load(factor + i);
        for (int64_t d = 0; d < d_n; d += VL) {
            const int64_t width = least(d_n - d, VL);
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

#endif
