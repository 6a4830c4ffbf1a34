/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary tables, against frequencies worked out here in another way: angles by complex powers of
 * one step, the scalings from their published descriptions.
 */
#include <pf/error.h>
#include <pf/family.h>

#include "tap.h"

#include <math.h>
#include <stdlib.h>

#define N_POSITIONS 64
#define MAX_PAIRS 64

/* Largest difference of the tables from scale * (cos, sin)(t * frequency[i]). */
static double gap(const struct pf_rope_spec *rope, const double *frequency, double scale)
{
    static float c[N_POSITIONS * MAX_PAIRS], s[N_POSITIONS * MAX_PAIRS];
    const int n = (int)(rope->dim / 2);
    double worst = 0.0;

    pf_rope_tables(rope, N_POSITIONS, c, s);
    for (int i = 0; i < n; i++) {
        double re = scale, im = 0.0; /* turned on by one step at a time */
        const double cf = cos(frequency[i]), sf = sin(frequency[i]);
        for (int t = 0; t < N_POSITIONS; t++) {
            worst = fmax(worst, fabs(c[t * n + i] - re));
            worst = fmax(worst, fabs(s[t * n + i] - im));
            const double next = re * cf - im * sf;
            im = re * sf + im * cf;
            re = next;
        }
    }
    return worst;
}

static void plain_and_linear(void)
{
    struct pf_rope_spec rope = {.kind = PF_ROPE_DEFAULT, .dim = 16, .theta = 10000.0};
    double f[8];

    for (int i = 0; i < 8; i++) {
        f[i] = exp(-log(10000.0) * i / 8.0);
    }
    ok(gap(&rope, f, 1.0) < 1e-7, "plain: pair i turns theta^(-2i/dim) a position");
    rope.kind = PF_ROPE_LINEAR;
    rope.factor = 2.5;
    for (int i = 0; i < 8; i++) {
        f[i] /= 2.5;
    }
    ok(gap(&rope, f, 1.0) < 1e-7, "linear: all pairs turn slower");
}

/* In terms of wavelengths, as Meta describes it. */
static void llama3(void)
{
    const struct pf_rope_spec rope = {.kind = PF_ROPE_LLAMA3,
                                      .dim = 16,
                                      .theta = 10000.0,
                                      .factor = 8.0,
                                      .low_freq_factor = 1.0,
                                      .high_freq_factor = 4.0,
                                      .original_max_positions = 64};
    int n_kept = 0, n_blended = 0, n_slowed = 0;
    double f[8];

    for (int i = 0; i < 8; i++) {
        const double wave = 2.0 * M_PI * pow(10000.0, i / 8.0);
        if (wave < 64.0 / 4.0) {
            f[i] = 2.0 * M_PI / wave;
            n_kept++;
        } else if (wave > 64.0) {
            f[i] = 2.0 * M_PI / (8.0 * wave);
            n_slowed++;
        } else {
            const double s = (64.0 / wave - 1.0) / 3.0;
            f[i] = 2.0 * M_PI / wave * (s + (1.0 - s) / 8.0);
            n_blended++;
        }
    }
    ok(n_kept > 0 && n_blended > 0 && n_slowed > 0, "llama3: the example has all three bands");
    ok(gap(&rope, f, 1.0) < 1e-7, "llama3: short waves kept, long ones slowed, some blended");
}

static void yarn(void)
{
    struct pf_rope_spec rope = {.kind = PF_ROPE_YARN,
                                .dim = 16,
                                .theta = 10000.0,
                                .factor = 8.0,
                                .original_max_positions = 32,
                                .beta_fast = 4.0,
                                .beta_slow = 1.0,
                                .truncate = true};
    double f[8];

    /* Turns over 32 positions fall from 4 to 1 between pairs 0.21 and 1.41: the ramp is 0 to 2. */
    for (int i = 0; i < 8; i++) {
        const double ramp = i >= 2 ? 1.0 : i / 2.0;
        f[i] = pow(10000.0, -i / 8.0) * (1.0 - ramp + ramp / 8.0);
    }
    ok(gap(&rope, f, 0.1 * log(8.0) + 1.0) < 2e-7, "yarn: ramp between floored and ceiled bounds");
    rope.truncate = false;
    const double low = 8.0 * log(32.0 / (8.0 * M_PI)) / log(10000.0);
    const double high = 8.0 * log(32.0 / (2.0 * M_PI)) / log(10000.0);
    for (int i = 0; i < 8; i++) {
        const double ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
        f[i] = pow(10000.0, -i / 8.0) * (1.0 - ramp + ramp / 8.0);
    }
    ok(gap(&rope, f, 0.1 * log(8.0) + 1.0) < 2e-7, "yarn: or between the exact ones");
}

static void attention_factors(void)
{
    struct pf_rope_spec rope = {.kind = PF_ROPE_YARN, .dim = 16, .theta = 10000.0, .factor = 8.0};

    ok(fabs(pf_rope_attention_factor(&rope) - (0.1 * log(8.0) + 1.0)) < 1e-15,
       "yarn's factor grows with the length");
    rope.mscale = 0.5;
    ok(fabs(pf_rope_attention_factor(&rope) - (0.1 * log(8.0) + 1.0)) < 1e-15,
       "one of mscale and mscale_all_dim alone counts for nothing");
    rope.mscale_all_dim = 2.0;
    ok(fabs(pf_rope_attention_factor(&rope) - (0.05 * log(8.0) + 1.0) / (0.2 * log(8.0) + 1.0)) <
           1e-15,
       "both give their ratio");
    rope.attention_factor = 1.5;
    ok(pf_rope_attention_factor(&rope) == 1.5, "a factor that is given wins");
    rope.attention_factor = rope.mscale = 0.0;
    rope.factor = 0.5;
    ok(pf_rope_attention_factor(&rope) == 1.0, "without growth there is none");
    rope.kind = PF_ROPE_LLAMA3;
    rope.factor = 8.0;
    ok(pf_rope_attention_factor(&rope) == 1.0, "nor for other kinds");
}

int main(void)
{
    plain_and_linear();
    llama3();
    yarn();
    attention_factors();
    return done();
}
