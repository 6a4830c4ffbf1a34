/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/family.h>

#include <pf/error.h>

#include <math.h>

static const double two_pi = 6.28318530717958647692;

static double clamp(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* YaRN's growth of the attention temperature, 0.1 m ln(s) + 1. */
static double mscale_of(double factor, double m)
{
    return factor <= 1.0 ? 1.0 : 0.1 * m * log(factor) + 1.0;
}

double pf_rope_attention_factor(const struct pf_rope_spec *rope)
{
    if (rope->kind != PF_ROPE_YARN) {
        return 1.0;
    }
    if (rope->attention_factor > 0.0) {
        return rope->attention_factor;
    }
    if (rope->mscale > 0.0 && rope->mscale_all_dim > 0.0) {
        return mscale_of(rope->factor, rope->mscale) /
               mscale_of(rope->factor, rope->mscale_all_dim);
    }
    return mscale_of(rope->factor, 1.0);
}

/* Wavelengths above the longest are slowed by the factor, those below the shortest are kept, and
 * between them the two are blended. */
static double llama3_frequency(const struct pf_rope_spec *rope, double f)
{
    const double turns = (double)rope->original_max_positions * f / two_pi;
    const double blend =
        (turns - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);

    if (turns < rope->low_freq_factor) {
        return f / rope->factor;
    }
    if (turns > rope->high_freq_factor) {
        return f;
    }
    return (1.0 - blend) * f / rope->factor + blend * f;
}

/* The pair (not rounded) that makes this many turns over the original length. */
static double yarn_pair_of_turns(const struct pf_rope_spec *rope, double turns)
{
    return (double)rope->dim * log((double)rope->original_max_positions / (turns * two_pi)) /
           (2.0 * log(rope->theta));
}

static double yarn_frequency(const struct pf_rope_spec *rope, int64_t pair, double f)
{
    double low = yarn_pair_of_turns(rope, rope->beta_fast);
    double high = yarn_pair_of_turns(rope, rope->beta_slow);

    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low < 0.0 ? 0.0 : low;
    high = high > (double)(rope->dim - 1) ? (double)(rope->dim - 1) : high;
    if (low == high) {
        high += 0.001;
    }
    const double ramp = clamp(((double)pair - low) / (high - low), 0.0, 1.0);
    return f / rope->factor * ramp + f * (1.0 - ramp);
}

static double frequency(const struct pf_rope_spec *rope, int64_t pair)
{
    const double f = pow(rope->theta, -2.0 * (double)pair / (double)rope->dim);

    switch (rope->kind) {
    case PF_ROPE_LINEAR:
        return f / rope->factor;
    case PF_ROPE_LLAMA3:
        return llama3_frequency(rope, f);
    case PF_ROPE_YARN:
        return yarn_frequency(rope, pair, f);
    case PF_ROPE_NONE:
    case PF_ROPE_DEFAULT:
        break;
    }
    return f;
}

void pf_rope_tables(const struct pf_rope_spec *rope, int64_t n_positions, float *cos_out,
                    float *sin_out)
{
    const int64_t n_pairs = rope->dim / 2;
    const double scale = pf_rope_attention_factor(rope);

    PF_ASSERT(rope->kind != PF_ROPE_NONE);
    for (int64_t i = 0; i < n_pairs; i++) {
        const double f = frequency(rope, i);
        for (int64_t t = 0; t < n_positions; t++) {
            cos_out[t * n_pairs + i] = (float)(cos((double)t * f) * scale);
            sin_out[t * n_pairs + i] = (float)(sin((double)t * f) * scale);
        }
    }
}
