/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums: the same bits in any order and split, and the right bits. */
#include <pf/exactsum.h>
#include <pf/rng.h>
#include <pf/time.h>

#include "tap.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N 4096

static double sum_of(const double *x, size_t n)
{
    struct pf_exactsum s;

    pf_exactsum_init(&s);
    pf_exactsum_add_array_f64(&s, x, n);
    return pf_exactsum_round(&s);
}

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void small_sums(void)
{
    ok(same_bits(sum_of(NULL, 0), 0.0), "a sum of nothing is +0");
    ok(same_bits(sum_of((double[]){-0.0, -0.0}, 2), 0.0), "an exact zero is +0");
    ok(sum_of((double[]){1e308, 1e308, -1e308, -1e308, 1}, 5) == 1.0, "no overflow on the way");
    ok(sum_of((double[]){1e308, 1e308}, 2) == INFINITY, "overflow at the end");
    ok(sum_of((double[]){1, 1e-300, -1}, 3) == 1e-300, "nothing is lost");
    ok(sum_of((double[]){5e-324, 5e-324, -1.5e-323}, 3) == -5e-324, "subnormals");
    ok(sum_of((double[]){-DBL_MAX, DBL_MIN, DBL_MAX}, 3) == DBL_MIN, "the ends of the range");
}

static void rounding_to_nearest_even(void)
{
    const double u = 0x1p-53;

    ok(sum_of((double[]){1, u}, 2) == 1, "a tie goes to even (down)");
    ok(sum_of((double[]){1 + 2 * u, u}, 2) == 1 + 4 * u, "a tie goes to even (up)");
    ok(sum_of((double[]){1, u, 5e-324}, 3) == 1 + 2 * u, "a little more than a tie goes up");
    ok(sum_of((double[]){1, u, -5e-324}, 3) == 1, "a little less goes down");
    ok(sum_of((double[]){-1, -u, -5e-324}, 3) == -1 - 2 * u, "likewise below zero");
    ok(sum_of((double[]){DBL_MAX, 0x1p970}, 2) == INFINITY, "half beyond the largest overflows");
    ok(sum_of((double[]){DBL_MAX, 0x1p970, -5e-324}, 3) == DBL_MAX, "a little less does not");
}

static void specials(void)
{
    ok(sum_of((double[]){1, INFINITY}, 2) == INFINITY, "an infinity wins");
    ok(sum_of((double[]){-INFINITY, 1e308}, 2) == -INFINITY, "with its sign");
    ok(isnan(sum_of((double[]){INFINITY, -INFINITY}, 2)), "two of them are NaN");
    ok(isnan(sum_of((double[]){1, NAN}, 2)), "NaN stays");
    struct pf_exactsum s;
    pf_exactsum_init(&s);
    pf_exactsum_add_squares_f32(&s, (float[]){1, -INFINITY}, 2);
    ok(pf_exactsum_round(&s) == INFINITY, "the square of -infinity is infinity");
    pf_exactsum_add_squares_f32(&s, (float[]){NAN}, 1);
    ok(isnan(pf_exactsum_round(&s)), "the square of NaN is NaN");
}

/* Any double but infinities and NaNs, in exponent range [low, low + span). */
static void random_doubles(double *x, size_t n, uint64_t key, int low, int span)
{
    for (size_t i = 0; i < n; i++) {
        const double m = 2 * pf_rng_uniform_f64(key, 0, i) - 1;
        x[i] = ldexp(m, low + (int)pf_rng_bounded(key, 1, i, (uint64_t)span));
    }
}

static void order_and_split_do_not_matter(void)
{
    static double x[N], y[N];
    bool same = true;

    for (uint64_t key = 0; key < 8; key++) {
        random_doubles(x, N, key, -1070, 2080);
        const double want = sum_of(x, N);
        for (size_t i = 0; i < N; i++) {
            y[pf_rng_permute(key, N, i)] = x[i];
        }
        struct pf_exactsum a, b, c;
        const size_t cut = 1 + (size_t)pf_rng_bounded(key, 2, 0, N - 2);
        pf_exactsum_init(&a);
        pf_exactsum_init(&b);
        pf_exactsum_add_array_f64(&a, y, cut);
        pf_exactsum_add_array_f64(&b, y + cut, N - cut);
        c = b;
        pf_exactsum_merge(&c, &a);
        pf_exactsum_normalise(&a);
        pf_exactsum_normalise(&b);
        for (int w = 0; w < PF_EXACTSUM_N_WORDS; w++) { /* what an integer all-reduce does */
            ((int64_t *)&a)[w] += ((int64_t *)&b)[w];
        }
        same = same && same_bits(want, sum_of(y, N)) && same_bits(want, pf_exactsum_round(&a)) &&
               same_bits(want, pf_exactsum_round(&c));
        pf_exactsum_normalise(&a);
        pf_exactsum_normalise(&c);
        same = same && memcmp(&a, &c, sizeof a) == 0;
    }
    ok(same, "permuted, split, merged, added word by word: the same bits");
}

/* Doubles that are integers below 2^72 or so: the true sum fits 128 bits. */
static void agrees_with_integers(void)
{
    static double x[N];
    int bad = 0;

    for (uint64_t key = 0; key < 8; key++) {
        __int128 want = 0;
        for (size_t i = 0; i < N; i++) {
            const int shift = (int)pf_rng_bounded(key, 1, i, 20);
            const int64_t m = (int64_t)pf_rng_bounded(key, 0, i, UINT64_C(1) << 54) - (1LL << 53);
            x[i] = ldexp((double)m, shift);
            want += (__int128)m * (1 << shift);
        }
        bad += sum_of(x, N) != (double)want; /* gcc rounds this to nearest even */
    }
    ok(bad == 0, "random integers of 72 bits against 128-bit arithmetic");
}

/*
 * Round 0: any finite pattern; then values of one size, where bins fill up; then for each exponent
 * the largest one and others down to 2^-36 and 2^-37 of it, with zeros: as far as blocks go.
 */
static uint32_t pattern_of(uint64_t round, size_t i, const uint32_t words[4])
{
    if (round < 3) {
        return round == 0   ? words[0] & ~(UINT32_C(1) << 30)
               : round == 1 ? (words[0] & 0x807fffff) | 0x3f800000
                            : 0x7f7fffff;
    }
    const uint32_t top = (uint32_t)(round - 3) / 2 + 1, depth = 37 + (uint32_t)(round - 3) % 2;
    const uint32_t below = i % 4096 == 77 ? 0 : words[1] % depth;
    const uint32_t exponent = below < top ? top - below : 0;
    return words[2] % 16 == 0 ? 0 : exponent << 23 | (words[0] & 0x807fffff);
}

static void float_arrays_agree_with_single_adds(void)
{
    static float x[40000];
    int bad = 0;

    for (uint64_t round = 0; round < 3 + 2 * 254; round++) {
        const size_t n = round < 3 ? 40000 : 9000;
        struct pf_exactsum sums, squares, sums_by_one, squares_by_one;
        for (size_t i = 0; i < n; i++) {
            uint32_t words[4];
            pf_rng_block(9, round, i, words);
            const uint32_t bits = pattern_of(round, i, words);
            memcpy(&x[i], &bits, sizeof bits);
        }
        pf_exactsum_init(&sums);
        squares = sums_by_one = squares_by_one = sums;
        pf_exactsum_add_array_f32(&sums, x, n);
        pf_exactsum_add_squares_f32(&squares, x, n);
        for (size_t i = 0; i < n; i++) {
            pf_exactsum_add(&sums_by_one, (double)x[i]);
            pf_exactsum_add(&squares_by_one, (double)x[i] * (double)x[i]);
        }
        pf_exactsum_normalise(&sums);
        pf_exactsum_normalise(&squares);
        pf_exactsum_normalise(&sums_by_one);
        pf_exactsum_normalise(&squares_by_one);
        bad += memcmp(&sums, &sums_by_one, sizeof sums) != 0;
        bad += memcmp(&squares, &squares_by_one, sizeof squares) != 0;
    }
    ok(bad == 0, "arrays of floats and their squares have the digits of single additions");
}

static void many_additions_do_not_overflow(void)
{
    struct pf_exactsum s;

    pf_exactsum_init(&s);
    pf_exactsum_add(&s, -DBL_MAX);
    for (int i = 0; i < 40; i++) { /* doubling: 2^40 terms */
        const struct pf_exactsum copy = s;
        pf_exactsum_merge(&s, &copy);
    }
    pf_exactsum_add(&s, 1);
    struct pf_exactsum t;
    pf_exactsum_init(&t);
    pf_exactsum_add(&t, DBL_MAX);
    for (int i = 0; i < 40; i++) {
        const struct pf_exactsum copy = t;
        pf_exactsum_merge(&t, &copy);
    }
    ok(pf_exactsum_round(&s) == -INFINITY, "2^40 times the largest overflows only when rounded");
    pf_exactsum_merge(&s, &t);
    ok(pf_exactsum_round(&s) == 1, "and cancels exactly");
}

static void speed(void)
{
    const size_t n = (size_t)1 << 22;
    float *const x = malloc(n * sizeof *x);
    struct pf_exactsum s;
    double best = 1e9;

    pf_rng_fill_normal_f32(1, 2, 0, 0, 1e-3, x, n);
    for (int round = 0; round < 3; round++) {
        const double start = pf_time_monotonic();
        pf_exactsum_init(&s);
        pf_exactsum_add_squares_f32(&s, x, n);
        const double seconds = pf_time_monotonic() - start;
        best = seconds < best ? seconds : best;
    }
    ok(fabs(sqrt(pf_exactsum_round(&s) / (double)n) - 1e-3) < 1e-5, "the norm of 4M normals");
    printf("# squares: %.0f M elements/s\n", (double)n / best * 1e-6);
    free(x);
}

int main(void)
{
    small_sums();
    rounding_to_nearest_even();
    specials();
    order_and_split_do_not_matter();
    agrees_with_integers();
    float_arrays_agree_with_single_adds();
    many_additions_do_not_overflow();
    speed();
    return done();
}
