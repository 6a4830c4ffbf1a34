/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tile.h - the register-blocked product on which attention.h stands: of words (dot.h), like gemm.c's, but of matrices
 * that lie in other ways than in panels.
 *
 * c[m,n] = or += a[m,k] b[k,n]. Lanes run along n; elements of a are broadcast, so a may lie in any
 * order (element (i,p) at a[i*a_row + p*a_col]) while rows of b and c are contiguous, at distances
 * ldb and ldc. Each element of c is one chain of v_fma over p = 0..k-1, then at most one addition,
 * whatever m, n and the place of the element: blocking does not change a bit.
 */
#ifndef PF_CPU_TILE_H
#define PF_CPU_TILE_H

#include "dot.h"

#include <stdbool.h>

/* MR rows by NV vectors of accumulators: as many as the registers hold beside a row of b. */
#if defined(__AVX512F__)
#define MR 6
#define NV 4
#elif defined(__AVX2__)
#define MR 6
#define NV 2
#else
#define MR 4
#define NV 2
#endif
#define NR (NV * VL)

struct tile {
    int64_t k;
    const float *a;
    int64_t a_row, a_col;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    bool accumulate;
};

/* rows and vectors are constants after inlining; last is the number of columns of the last vector. */
V_INLINE void tile_block(const int rows, const int vectors, const int64_t last,
                         const struct tile *t, const float *a, const float *b, float *c)
{
    const int64_t k = t->k, a_row = t->a_row, a_col = t->a_col, ldb = t->ldb, ldc = t->ldc;
    vf sum[MR][NV];

#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            sum[i][j] = (vf){0};
        }
    }
    for (int64_t p = 0; p < k; p++) {
        vf row[NV];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            row[j] = v_load_n(b + p * ldb + j * VL, j == vectors - 1 ? last : VL);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const vf x = dot_spread(a + i * a_row + p * a_col);
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
            float *to = c + i * ldc + j * VL;
            v_store_n(to, t->accumulate ? v_load_n(to, n) + sum[i][j] : sum[i][j], n);
        }
    }
}

/* All rows of a column block. */
V_INLINE void tile_columns(int64_t m, const int vectors, const int64_t last, const struct tile *t,
                           int64_t column)
{
    const float *a = t->a, *b = t->b + column;
    float *c = t->c + column;

    for (; m >= MR; m -= MR, a += MR * t->a_row, c += MR * t->ldc) {
        tile_block(MR, vectors, last, t, a, b, c);
    }
    switch (m) {
#if MR > 4
    case 5:
        tile_block(5, vectors, last, t, a, b, c);
        break;
    case 4:
        tile_block(4, vectors, last, t, a, b, c);
        break;
#endif
    case 3:
        tile_block(3, vectors, last, t, a, b, c);
        break;
    case 2:
        tile_block(2, vectors, last, t, a, b, c);
        break;
    case 1:
        tile_block(1, vectors, last, t, a, b, c);
        break;
    default:
        break;
    }
}

static __attribute__((unused, noinline)) void tile_mul(int64_t m, int64_t n, const struct tile *t)
{
    int64_t j = 0;

    for (; j + NR <= n; j += NR) {
        tile_columns(m, NV, VL, t, j);
    }
#if NV > 2
    for (; j + 2 * VL <= n; j += 2 * VL) {
        tile_columns(m, 2, VL, t, j);
    }
#endif
    for (; j + VL <= n; j += VL) {
        tile_columns(m, 1, VL, t, j);
    }
    if (j < n) {
        tile_columns(m, 1, n - j, t, j);
    }
}

#endif
