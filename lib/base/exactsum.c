/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/exactsum.h>

#include "base_internal.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define N PF_EXACTSUM_N_LIMBS
#define LOWEST_EXPONENT (-1074) /* of the last bit of a double */

/* |limb| stays at most n_pending * 2^32: below 2^62 with this many. */
#define MAX_PENDING (INT64_C(1) << 30)

void pf_exactsum_init(struct pf_exactsum *sum)
{
    memset(sum, 0, sizeof *sum);
}

void pf_exactsum_normalise(struct pf_exactsum *sum)
{
    int64_t carry = 0;

    for (int i = 0; i < N - 1; i++) {
        const int64_t value = sum->limb[i] + carry;
        const int64_t digit = value & 0xffffffff;
        /* An arithmetic shift, written so that it is exact for negative values in any C. */
        carry = (value - digit) / (INT64_C(1) << 32);
        sum->limb[i] = digit;
    }
    sum->limb[N - 1] += carry;
    sum->n_pending = 1;
}

/* Account for more additions to come, each at most 2^32 to a limb. */
static void expect(struct pf_exactsum *sum, int64_t n)
{
    if (sum->n_pending > MAX_PENDING - n) {
        pf_exactsum_normalise(sum);
    }
    sum->n_pending += n;
}

/* Add mantissa * 2^exponent, the exponent counted from LOWEST_EXPONENT. */
static void add_scaled(struct pf_exactsum *sum, uint64_t mantissa, int exponent, bool negative)
{
    const int limb = exponent / 32, shift = exponent % 32;
    const unsigned __int128 wide = (unsigned __int128)mantissa << shift;
    const int64_t low = (int64_t)(wide & 0xffffffff), mid = (int64_t)(wide >> 32 & 0xffffffff);
    const int64_t high = (int64_t)(wide >> 64);

    sum->limb[limb] += negative ? -low : low;
    sum->limb[limb + 1] += negative ? -mid : mid;
    sum->limb[limb + 2] += negative ? -high : high;
}

static void add_special(struct pf_exactsum *sum, double x)
{
    sum->n_nan += isnan(x) != 0;
    sum->n_pos_inf += isinf(x) && x > 0;
    sum->n_neg_inf += isinf(x) && x < 0;
}

void pf_exactsum_add(struct pf_exactsum *sum, double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    const int biased = (int)(bits >> 52 & 0x7ff);
    const uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    if (biased == 0x7ff) {
        add_special(sum, x);
        return;
    }
    expect(sum, 1);
    if (biased == 0) {
        add_scaled(sum, fraction, 0, bits >> 63);
    } else {
        add_scaled(sum, fraction | UINT64_C(1) << 52, biased - 1, bits >> 63);
    }
}

void pf_exactsum_add_array_f64(struct pf_exactsum *sum, const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        pf_exactsum_add(sum, x[i]);
    }
}

/*
 * Arrays of floats. Floats of one exponent add up as integers, so each of the 256 biased exponents
 * has a bin, and only full bins go to the limbs. LANES tables side by side: neighbours mostly share
 * an exponent, and one table would make each addition wait for the one before it.
 */
#define LANES 4
#define BLOCK                                                                                      \
    ((size_t)1                                                                                     \
     << 15) /* squares are below 2^48: a bin of the sum of lanes, below 2^63             \
                       */

/* The float's mantissa with the hidden bit; subnormals count from the same place as exponent 1. */
static uint32_t mantissa_of(uint32_t bits)
{
    return (bits & 0x7fffff) | (uint32_t)((bits & 0x7f800000) != 0) << 23;
}

/* bins[e]: integers in units of 2^(e-150), or with squares 2^(2*(e-150)), e being at least 1. */
static void flush_bins(struct pf_exactsum *sum, int64_t bins[256][LANES], bool squares)
{
    expect(sum, 255);
    for (int e = 0; e < 255; e++) {
        const int64_t total = bins[e][0] + bins[e][1] + bins[e][2] + bins[e][3];
        const int from = e > 0 ? e : 1, exponent = squares ? 2 * (from - 150) : from - 150;
        if (total != 0) {
            const uint64_t size = total < 0 ? -(uint64_t)total : (uint64_t)total;
            add_scaled(sum, size, exponent - LOWEST_EXPONENT, total < 0);
        }
    }
    memset(bins, 0, 256 * LANES * sizeof(int64_t));
}

/* Infinities and NaNs met in the block: bin 255 took nothing of use. */
static void count_specials(struct pf_exactsum *sum, const float *x, size_t n, bool squares)
{
    for (size_t i = 0; i < n; i++) {
        add_special(sum, squares ? fabs((double)x[i]) : (double)x[i]);
    }
}

static inline int64_t term_of(uint32_t bits, bool squares)
{
    const int64_t m = mantissa_of(bits);

    if (squares) {
        return m * m;
    }
    const int64_t sign = -(int64_t)(bits >> 31);
    return (m ^ sign) - sign;
}

static inline void bin_blocks(struct pf_exactsum *sum, const float *x, size_t n, bool squares)
{
    int64_t bins[256][LANES] = {{0}};

    for (size_t begin = 0; begin < n; begin += BLOCK) {
        const size_t len = n - begin < BLOCK ? n - begin : BLOCK;
        uint32_t has_special = 0;
        for (size_t i = 0; i < len; i++) {
            uint32_t bits;
            memcpy(&bits, &x[begin + i], sizeof bits);
            const uint32_t e = bits >> 23 & 0xff;
            has_special |= e == 255;
            bins[e][i % LANES] += term_of(bits, squares);
        }
        if (has_special) {
            count_specials(sum, x + begin, len, squares);
        }
        flush_bins(sum, bins, squares);
    }
}

void pf_exactsum_add_array_f32(struct pf_exactsum *sum, const float *x, size_t n)
{
    bin_blocks(sum, x, n, false);
}

void pf_exactsum_add_squares_f32(struct pf_exactsum *sum, const float *x, size_t n)
{
    double sums[3];
    size_t at = 0;

    for (; n - at >= PF_BASE_SQUARES_BLOCK; at += PF_BASE_SQUARES_BLOCK) {
        if (pf_base_squares(x + at, sums)) {
            pf_exactsum_add_array_f64(sum, sums, 3);
        } else {
            bin_blocks(sum, x + at, PF_BASE_SQUARES_BLOCK, true);
        }
    }
    if (at < n) {
        bin_blocks(sum, x + at, n - at, true);
    }
}

void pf_exactsum_merge(struct pf_exactsum *sum, const struct pf_exactsum *other)
{
    struct pf_exactsum part = *other;

    if (sum->n_pending + part.n_pending > MAX_PENDING) {
        pf_exactsum_normalise(sum);
        pf_exactsum_normalise(&part);
    }
    for (int i = 0; i < N; i++) {
        sum->limb[i] += part.limb[i];
    }
    sum->n_pos_inf += part.n_pos_inf;
    sum->n_neg_inf += part.n_neg_inf;
    sum->n_nan += part.n_nan;
    sum->n_pending += part.n_pending;
}

/* The 32-bit digits of |sum|, lowest first, the topmost holding what is left; returns the sign. */
static bool magnitude_of(const struct pf_exactsum *sum, uint64_t digit[N])
{
    struct pf_exactsum s = *sum;

    pf_exactsum_normalise(&s);
    const bool negative = s.limb[N - 1] < 0;
    if (negative) {
        for (int i = 0; i < N; i++) {
            s.limb[i] = -s.limb[i];
        }
        pf_exactsum_normalise(&s);
    }
    for (int i = 0; i < N; i++) {
        digit[i] = (uint64_t)s.limb[i];
    }
    return negative;
}

static bool any_below(const uint64_t digit[N], int top)
{
    for (int i = 0; i < top; i++) {
        if (digit[i] != 0) {
            return true;
        }
    }
    return false;
}

/* Round digits to 53 bits, or fewer where the result is subnormal, ties to even. */
static double round_magnitude(const uint64_t digit[N])
{
    int top = N - 1;

    while (top > 0 && digit[top] == 0) {
        top--;
    }
    /* Three digits hold at least 65 significant bits; the rest only matters as "there is more". */
    const int base = top > 2 ? top - 2 : 0;
    unsigned __int128 value = 0;
    for (int i = top; i >= base; i--) {
        value = value << 32 | digit[i];
    }
    int n_bits = 0;
    while (n_bits < 128 && value >> n_bits != 0) {
        n_bits++;
    }
    /* Below limb 0 there is nothing, so a subnormal sum is exact without further care. */
    const int drop = n_bits > 53 ? n_bits - 53 : 0;
    uint64_t kept = (uint64_t)(value >> drop);
    if (drop > 0) {
        const unsigned __int128 half = (unsigned __int128)1 << (drop - 1),
                                rest = value - ((unsigned __int128)kept << drop);
        const bool more = rest > half || (rest == half && any_below(digit, base));
        kept += more || (rest == half && (kept & 1));
    }
    return ldexp((double)kept, 32 * base + drop + LOWEST_EXPONENT);
}

double pf_exactsum_round(const struct pf_exactsum *sum)
{
    uint64_t digit[N];

    if (sum->n_nan > 0 || (sum->n_pos_inf > 0 && sum->n_neg_inf > 0)) {
        return (double)NAN;
    }
    if (sum->n_pos_inf > 0 || sum->n_neg_inf > 0) {
        return sum->n_pos_inf > 0 ? (double)INFINITY : -(double)INFINITY;
    }
    const bool negative = magnitude_of(sum, digit);
    const double size = round_magnitude(digit);
    return negative ? -size : size;
}
