/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exactsum.h - sums that do not depend on order.
 *
 * The accumulator is one fixed-point number wide enough for every double and for a carry: digit
 * limb[i] has the weight 2^(32*i - 1074) and is a signed 64-bit integer with room to spare. Adding
 * is exact, so any order, any split over threads or ranks and any merge gives the same number, and
 * pf_exactsum_round turns it into a double once, correctly rounded.
 *
 * Merging is addition word by word: the struct is PF_EXACTSUM_N_WORDS int64_t and nothing else, so
 * an integer all-reduce (sum) over it merges ranks. Call pf_exactsum_normalise before that: then up
 * to 2^30 ranks cannot overflow.
 *
 *     struct pf_exactsum sum;
 *     pf_exactsum_init(&sum);
 *     pf_exactsum_add_squares_f32(&sum, grad, n);
 *     pf_exactsum_normalise(&sum);
 *     all_reduce_sum_i64((int64_t *)&sum, PF_EXACTSUM_N_WORDS);
 *     norm = sqrt(pf_exactsum_round(&sum));
 *
 * An accumulator may take 2^60 additions in all. Infinities and NaNs are counted and decide the
 * result by IEEE 754: NaN if there was one or infinities of both signs.
 *
 * Source: Kulisch and Miranker, "The arithmetic of the digital computer: a new approach", 1986 (the
 * long accumulator); Neal, "Fast exact summation using small and large superaccumulators", 2015.
 *
 * All functions are local; one accumulator is used by one thread at a time.
 */
#ifndef PF_EXACTSUM_H
#define PF_EXACTSUM_H

#include <stddef.h>
#include <stdint.h>

#define PF_EXACTSUM_N_LIMBS 68

struct pf_exactsum {
    int64_t limb[PF_EXACTSUM_N_LIMBS];
    int64_t n_pos_inf;
    int64_t n_neg_inf;
    int64_t n_nan;
    int64_t n_pending; /* each |limb| is at most this many times 2^32 */
};

#define PF_EXACTSUM_N_WORDS (PF_EXACTSUM_N_LIMBS + 4)

_Static_assert(sizeof(struct pf_exactsum) == PF_EXACTSUM_N_WORDS * sizeof(int64_t),
               "an all-reduce sees the struct as an array");

void pf_exactsum_init(struct pf_exactsum *sum);
void pf_exactsum_add(struct pf_exactsum *sum, double x);

/* Add x[i], or x[i]^2 (the exact square, which a double holds), for n floats. */
void pf_exactsum_add_array_f32(struct pf_exactsum *sum, const float *x, size_t n);
void pf_exactsum_add_squares_f32(struct pf_exactsum *sum, const float *x, size_t n);
void pf_exactsum_add_array_f64(struct pf_exactsum *sum, const double *x, size_t n);

/* Bring every limb but the last into [0, 2^32): one representation for one number. */
void pf_exactsum_normalise(struct pf_exactsum *sum);

/* sum += other. */
void pf_exactsum_merge(struct pf_exactsum *sum, const struct pf_exactsum *other);

/* The double nearest to the sum, ties to even; a sum of nothing or an exact zero is +0. */
double pf_exactsum_round(const struct pf_exactsum *sum);

#endif
