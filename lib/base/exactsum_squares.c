/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exactsum_squares.c - squares of a block of floats, added up exactly in three doubles.
 *
 * A float's square is exact in a double: 48 bits. Three sums share the bits of all squares of a block:
 * the first takes what is a multiple of a quantum chosen from the largest element, the second what is
 * left above a finer quantum, the third the rest. Each sum then fits 53 bits with room for every
 * element of the block, so no addition rounds, and neither lanes nor instruction sets change a bit.
 * It needs every element other than 0 to lie within 2^-36 of the largest; a block that holds more is
 * left to the caller.
 *
 * Source: Rump, Ogita and Oishi, "Accurate floating-point summation part I", 2008 (extraction of
 * leading bits by a large constant).
 */
#include <pf/exactsum.h>

#include "base_internal.h"

#include <math.h>
#include <string.h>

#define VECTOR 8 /* doubles */
#define N_VECTORS (PF_BASE_SQUARES_BLOCK / VECTOR)
#define CHAINS 4 /* of additions that do not wait for each other */
#define BLOCK_LOG2 12

_Static_assert(PF_BASE_SQUARES_BLOCK == 1 << BLOCK_LOG2, "what the quanta leave room for");

typedef double f64s __attribute__((vector_size(8 * VECTOR)));
typedef float f32s __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
typedef uint32_t u32s __attribute__((vector_size(4 * 2 * VECTOR)));

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* The largest magnitude, and the smallest but 0 less 1, as bit patterns. */
ALWAYS_INLINE void find_range(const float *x, uint32_t *largest_out, uint32_t *smallest_out)
{
    u32s largest = {0}, smallest = ~largest;

    for (int i = 0; i < PF_BASE_SQUARES_BLOCK; i += 2 * VECTOR) {
        u32s bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        const u32s less = bits - 1;
        const u32s rises = (u32s)(bits > largest), falls = (u32s)(less < smallest);
        largest = (bits & rises) | (largest & ~rises);
        smallest = (less & falls) | (smallest & ~falls);
    }
    *largest_out = 0;
    *smallest_out = UINT32_MAX;
    for (int i = 0; i < 2 * VECTOR; i++) {
        *largest_out = largest[i] > *largest_out ? largest[i] : *largest_out;
        *smallest_out = smallest[i] < *smallest_out ? smallest[i] : *smallest_out;
    }
}

/* base[0] and base[1]: 1.5 times 2^52 quanta. Sums that start there stay multiples of the quantum. */
ALWAYS_INLINE void fold(const float *x, const double base[2], double sums_out[3])
{
    f64s first[CHAINS], second[CHAINS], third[CHAINS];

    for (int c = 0; c < CHAINS; c++) {
        first[c] = base[0] - (f64s){0};
        second[c] = base[1] - (f64s){0};
        third[c] = (f64s){0};
    }
    for (int i = 0; i < N_VECTORS; i += CHAINS) {
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; c++) {
            const f64s wide = __builtin_convertvector(*(const f32s *)(x + (i + c) * VECTOR), f64s);
            const f64s square = wide * wide;
            const f64s first_next = first[c] + square, low = square - (first_next - first[c]);
            const f64s second_next = second[c] + low, rest = low - (second_next - second[c]);
            first[c] = first_next;
            second[c] = second_next;
            third[c] += rest;
        }
    }
    memset(sums_out, 0, 3 * sizeof *sums_out);
    for (int c = 0; c < CHAINS; c++) {
        for (int i = 0; i < VECTOR; i++) {
            sums_out[0] += first[c][i] - base[0];
            sums_out[1] += second[c][i] - base[1];
            sums_out[2] += third[c][i];
        }
    }
}

ALWAYS_INLINE bool squares(const float *x, double sums_out[3])
{
    uint32_t largest, smallest;

    find_range(x, &largest, &smallest);
    memset(sums_out, 0, 3 * sizeof *sums_out);
    if (largest == 0) {
        return true;
    }
    const int top = (int)(largest >> 23), bottom = (int)((smallest + 1) >> 23);
    if (top == 255 || bottom == 0 || bottom < top - 36) {
        return false;
    }
    /* Squares lie below 2^(2E+2), E being the exponent of the largest element: a sum below
     * 2^(2E+14), which is 2^51 quanta. What a quantum leaves is at most half of it. */
    const int quantum = 2 * (top - 127) + 2 + BLOCK_LOG2 - 51;
    const int finer = quantum - 1 + BLOCK_LOG2 - 51;
    const double base[2] = {ldexp(1.5, 52 + quantum), ldexp(1.5, 52 + finer)};
    fold(x, base, sums_out);
    return true;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static bool squares_avx512(const float *x, double sums_out[3])
{
    return squares(x, sums_out);
}

__attribute__((target("avx2"))) static bool squares_avx2(const float *x, double sums_out[3])
{
    return squares(x, sums_out);
}
#endif

bool pf_base_squares(const float *x, double sums_out[3])
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        return squares_avx512(x, sums_out);
    }
    if (__builtin_cpu_supports("avx2")) {
        return squares_avx2(x, sums_out);
    }
#endif
    return squares(x, sums_out);
}
