/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dot.h - products of packed panels: what gemm.c stands on.
 *
 * A panel holds 32-bit words. A word is one element widened to fp32; or, where the CPU multiplies
 * bf16 itself (AVX512-BF16), two elements that follow each other along k, which one instruction
 * multiplies and adds: half the bytes, twice the rate. DOT_K tells how many elements of k a word is.
 * Word p of column j of a panel of width w stands at p*w + j:
 *
 *     panel of a: DOT_M rows of op(a);  panel of b: DOT_N columns of op(b);  missing ones are 0.
 *
 * dot_pack_along packs a matrix whose rows run along k, dot_pack_a_across and dot_pack_b_across one
 * whose columns do. dot_tile multiplies. Each sum is one chain over the words of k in order,
 * whatever rows and columns the tile has. A k that is not whole words is filled up with 0.
 *
 * Source: vdpbf16ps, Intel's manual volume 2: sums in fp32, numbers below 2^-126 count as 0.
 */
#ifndef PF_CPU_DOT_H
#define PF_CPU_DOT_H

#include "elem.h"

#if defined(__AVX512BF16__) && defined(PF_ELEM_bf16)
#define DOT_K 2
#else
#define DOT_K 1
#endif

/* DOT_M rows by DOT_V vectors of sums: as many as the registers hold beside a row of b. */
#if defined(__AVX512F__)
#define DOT_M 8
#define DOT_V 3
#elif defined(__AVX2__)
#define DOT_M 6
#define DOT_V 2
#else
#define DOT_M 4
#define DOT_V 2
#endif
#define DOT_N (DOT_V * VL)

/* Words that packing may write behind a panel, on its way to the next. */
#define DOT_SLACK 16

/* sum + a b, of fp32 or of pairs of bf16. */
V_INLINE vf dot_word(vf a, vf b, vf sum)
{
#if DOT_K == 2
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    return v_fma(a, b, sum);
#endif
}

/* A word in every lane; no arithmetic, which would change a pair that looks like a NaN. */
V_INLINE vf dot_spread(const float *word)
{
#if defined(__AVX512F__)
    return _mm512_set1_ps(*word);
#else
    return v_set(*word);
#endif
}

/* Packing, k running across the rows ------------------------------------------------------------- */

/* n elements of a row, and of the one below it (NULL: none), to words. */
V_INLINE vf dot_words_n(const elem *row, const elem *below, int64_t n)
{
#if DOT_K == 2
    static const uint16_t zip[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const vh lo = vh_load_n(row, n), hi = below ? vh_load_n(below, n) : (vh){0};
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)lo), (__m256i)hi, 1);

    return (vf)_mm512_permutexvar_epi16(_mm512_loadu_si512(zip), both);
#else
    (void)below;
    return e_load_n(row, n);
#endif
}

/* Rows this far ahead are fetched: their distance defeats the hardware's guess. */
#define DOT_AHEAD (12 * DOT_K)

V_INLINE void dot_fetch_row(const elem *row, int64_t n)
{
    for (int64_t j = 0; j < n; j += 64 / (int)sizeof *row) {
        __builtin_prefetch(row + j);
    }
}

/* Rows from[p*ld], 0 <= p < k, of n columns to panels of b; all of them at once, since long pieces of
 * rows are read faster. */
V_INLINE void dot_pack_b_across(const elem *from, int64_t ld, int64_t k, int64_t n, float *to)
{
    const int64_t step = (k + DOT_K - 1) / DOT_K * DOT_N;

    for (int64_t p = 0; p < k; p += DOT_K, from += DOT_K * ld, to += DOT_N) {
        const elem *const below = p + 1 < k ? from + ld : NULL;
        for (int64_t q = 0; q < DOT_K && p + DOT_AHEAD + q < k; q++) {
            dot_fetch_row(from + (DOT_AHEAD + q) * ld, n);
        }
        float *panel = to;
        for (int64_t j = 0; j < n; panel += step) {
            for (int v = 0; v < DOT_V; v++, j += VL) {
                const vf x =
                    j < n ? dot_words_n(from + j, below ? below + j : NULL, n - j) : (vf){0};
                v_store(panel + v * VL, x);
            }
        }
    }
}

/* The same for panels of a, which are narrower than a vector: what a store writes too far, the next
 * word or the next panel overwrites. */
V_INLINE void dot_pack_one_a_across(const elem *from, int64_t ld, int64_t k, int64_t n, float *to)
{
    for (int64_t p = 0; p < k; p += DOT_K, from += DOT_K * ld, to += DOT_M) {
        v_store(to, dot_words_n(from, p + 1 < k ? from + ld : NULL, n));
    }
}

#if defined(__AVX512F__)

/* Four panels at once, so that each line of memory is read once. */
V_INLINE void dot_pack_four_a_across(const elem *from, int64_t ld, int64_t k, int64_t step,
                                     float *to)
{
    for (int64_t p = 0; p < k; p += DOT_K, from += DOT_K * ld, to += DOT_M) {
        const elem *const below = p + 1 < k ? from + ld : NULL;
        for (int64_t q = 0; q < DOT_K && p + DOT_AHEAD + q < k; q++) {
            __builtin_prefetch(from + (DOT_AHEAD + q) * ld);
        }
        for (int j = 0; j < 2; j++) {
            const vf x = dot_words_n(from + j * VL, below ? below + j * VL : NULL, VL);
            _mm256_storeu_ps(to + 2 * j * step, _mm512_castps512_ps256(x));
            _mm256_storeu_ps(to + (2 * j + 1) * step, _mm512_extractf32x8_ps(x, 1));
        }
    }
}

#endif

/* n columns to panels of a, at distance step. */
V_INLINE void dot_pack_a_across(const elem *from, int64_t ld, int64_t k, int64_t n, int64_t step,
                                float *to)
{
    int64_t j = 0;

#if defined(__AVX512F__)
    for (; j + 4 * DOT_M <= n; j += 4 * DOT_M, to += 4 * step) {
        dot_pack_four_a_across(from + j, ld, k, step, to);
    }
#endif
    for (; j < n; j += DOT_M, to += step) {
        dot_pack_one_a_across(from + j, ld, k, n - j, to);
    }
}

/* Packing, k running along the rows --------------------------------------------------------------- */

#if defined(__AVX2__)

/* Eight words of a row that has n elements left. */
V_INLINE __m256 dot_load_8(const elem *from, int64_t n)
{
    elem padded[8 * DOT_K] = {0};

    if (n <= 0) {
        return _mm256_setzero_ps();
    }
    if (n < 8 * DOT_K) {
        memcpy(padded, from, (size_t)n * sizeof *from);
        from = padded;
    }
#if DOT_K == 2
    return (__m256)_mm256_loadu_si256((const __m256i_u *)from);
#elif ELEM_IS_F32
    return _mm256_loadu_ps(from);
#elif defined(PF_ELEM_bf16)
    return (__m256)_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i_u *)from)), 16);
#else
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)from));
#endif
}

V_INLINE void dot_transpose_8(__m256 x[8])
{
    __m256 y[8];

    for (int i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
        x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        y[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
        y[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++) {
        x[i] = y[i];
    }
}

/* Up to eight words of each of n rows, as columns at distance width of a panel; k elements are left.
 * Rows from n to 7 count as 0. */
V_INLINE void dot_pack_8x8(const elem *from, int64_t ld, int64_t k, int64_t n, const int width,
                           float *to)
{
    __m256 x[8];

    if (n >= 8 && k >= 8 * DOT_K) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            x[i] = dot_load_8(from + i * ld, 8 * DOT_K);
            __builtin_prefetch(from + i * ld + 64 * DOT_K);
        }
        dot_transpose_8(x);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            _mm256_storeu_ps(to + i * width, x[i]);
        }
        return;
    }
    for (int i = 0; i < 8; i++) {
        x[i] = i < n ? dot_load_8(from + i * ld, k) : _mm256_setzero_ps();
    }
    dot_transpose_8(x);
    for (int i = 0; i < 8 && i * DOT_K < k; i++) {
        _mm256_storeu_ps(to + i * width, x[i]);
    }
}

/* n <= width rows of k elements to a panel; width is DOT_M or DOT_N. */
V_INLINE void dot_pack_along(const elem *from, int64_t ld, int64_t k, int64_t n, const int width,
                             float *to)
{
    enum { STEP = 16 * DOT_K }; /* two blocks of a row, a line of it, before the next row */

    for (int64_t p = 0; p < k; p += STEP, to += 16 * width) {
        for (int i = 0; i < width; i += 8) {
            dot_pack_8x8(from + i * ld + p, ld, k - p, n - i, width, to + i);
            dot_pack_8x8(from + i * ld + p + STEP / 2, ld, k - p - STEP / 2, n - i, width,
                         to + 8 * width + i);
        }
    }
}

#else

V_INLINE void dot_pack_along(const elem *from, int64_t ld, int64_t k, int64_t n, const int width,
                             float *to)
{
    for (int64_t p = 0; p < k; p++) {
        for (int i = 0; i < width; i++) {
            to[p * width + i] = i < n ? e_get(from + i * ld + p) : 0.0f;
        }
    }
}

#endif

/* Multiplying ------------------------------------------------------------------------------------ */

/* sums[i*ld + j] = or += the product of a panel of a and one of b, both of n_words words. rows and
 * vectors are constants after inlining; last is the number of columns of the last vector. */
V_INLINE void dot_tile_of(const int rows, const int vectors, int64_t last, int64_t n_words,
                          const float *a, const float *b, bool add, float *sums, int64_t ld)
{
    vf sum[DOT_M][DOT_V];

#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        __builtin_prefetch(sums + i * ld + (vectors - 1) * VL + last - 1, 1);
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            __builtin_prefetch(sums + i * ld + j * VL, 1);
            sum[i][j] = (vf){0};
        }
    }
    for (int64_t p = 0; p < n_words; p++, a += DOT_M, b += DOT_N) {
        vf row[DOT_V];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            row[j] = v_load(b + j * VL);
            __builtin_prefetch(b + 8 * DOT_N + j * VL);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const vf x = dot_spread(a + i);
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) {
                sum[i][j] = dot_word(x, row[j], sum[i][j]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            const int64_t n = j == vectors - 1 ? last : VL;
            float *const to = sums + i * ld + j * VL;
            v_store_n(to, add ? v_load_n(to, n) + sum[i][j] : sum[i][j], n);
        }
    }
}

/* A full tile of DOT_M rows, or fewer, which takes the smallest of a few sizes that holds them. */
V_INLINE void dot_tile_rows(int64_t rows, const int vectors, int64_t last, int64_t n_words,
                            const float *a, const float *b, bool add, float *sums, int64_t ld)
{
    switch (rows) {
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        dot_tile_of(n, vectors, last, n_words, a, b, add, sums, ld);                               \
        break
#if DOT_M > 6
        CASE(8);
        CASE(7);
#endif
#if DOT_M > 4
        CASE(6);
        CASE(5);
#endif
        CASE(4);
        CASE(3);
        CASE(2);
    default:
        CASE(1);
#undef CASE
    }
}

/* rows <= DOT_M and columns <= DOT_N of the product, both more than 0. */
static __attribute__((unused, noinline)) void dot_tile(int64_t rows, int64_t columns,
                                                       int64_t n_words, const float *a,
                                                       const float *b, bool add, float *sums,
                                                       int64_t ld)
{
#if DOT_V > 2
    if (columns > 2 * VL) {
        dot_tile_rows(rows, 3, columns - 2 * VL, n_words, a, b, add, sums, ld);
        return;
    }
#endif
    if (columns > VL) {
        dot_tile_rows(rows, 2, columns - VL, n_words, a, b, add, sums, ld);
    } else {
        dot_tile_rows(rows, 1, columns, n_words, a, b, add, sums, ld);
    }
}

#endif
