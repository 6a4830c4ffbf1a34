/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers: the published vectors, and that each draw depends on its index only. */
#include <pf/rng.h>

#include "tap.h"

#include <math.h>
#include <string.h>

/* The known answers that the authors of Philox publish for philox4x32 with 10 rounds. */
static void known_answers(void)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    uint32_t out[4];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pf_rng_philox4x32(cases[i].counter, cases[i].key, out);
        ok(memcmp(out, cases[i].want, sizeof out) == 0, "known answer %zu", i + 1);
    }
    pf_rng_block(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, out);
    ok(memcmp(out, cases[2].want, sizeof out) == 0, "a block is (index, stream) under the key");
}

static void fills_equal_single_draws(void)
{
    float uniform[37], normal[37];
    int bad = 0;

    for (uint64_t first = 0; first < 9; first++) {
        pf_rng_fill_uniform_f32(3, 4, first, uniform, 37);
        pf_rng_fill_normal_f32(3, 4, first, 0.5, 2.0, normal, 37);
        for (uint64_t i = 0; i < 37; i++) {
            const float z = (float)(0.5 + 2.0 * pf_rng_normal(3, 4, first + i));
            bad += uniform[i] != pf_rng_uniform_f32(3, 4, first + i) || normal[i] != z;
        }
    }
    ok(bad == 0, "any range of draws has the bits of single draws");
}

static void moments(void)
{
    const int n = 200000;
    double u1 = 0, u2 = 0, z1 = 0, z2 = 0, z4 = 0;
    bool inside = true;

    for (int i = 0; i < n; i++) {
        const double f = (double)pf_rng_uniform_f32(1, 2, (uint64_t)i);
        const double u = pf_rng_uniform_f64(1, 3, (uint64_t)i),
                     z = pf_rng_normal(1, 4, (uint64_t)i);
        inside = inside && f >= 0 && f < 1 && u >= 0 && u < 1 && isfinite(z);
        u1 += u / n;
        u2 += f / n;
        z1 += z / n;
        z2 += z * z / n;
        z4 += z * z * z * z / n;
    }
    ok(inside, "uniforms lie in [0,1), normals are finite");
    ok(fabs(u1 - 0.5) < 0.004 && fabs(u2 - 0.5) < 0.004, "uniforms have mean 1/2");
    ok(fabs(z1) < 0.012 && fabs(z2 - 1) < 0.02 && fabs(z4 - 3) < 0.15,
       "normals have moments 0, 1, 3 (%.4f %.4f %.4f)", z1, z2, z4);
}

static void bounded_is_even(void)
{
    int count[7] = {0};
    bool inside = true;

    for (uint64_t i = 0; i < 70000; i++) {
        count[pf_rng_bounded(5, 6, i, 7)]++;
    }
    for (int v = 0; v < 7; v++) {
        inside = inside && count[v] > 9600 && count[v] < 10400;
    }
    ok(inside, "70000 draws below 7 fill each of 7 evenly");
    /* A bound above 2^63 makes nearly half of the words be rejected. */
    const uint64_t wide = (UINT64_C(1) << 63) + 1;
    uint64_t above = 0;
    for (uint64_t i = 0; i < 4000; i++) {
        const uint64_t x = pf_rng_bounded(5, 6, i, wide);
        inside = inside && x < wide;
        above += x >= wide / 2;
    }
    ok(inside && above > 1850 && above < 2150, "a bound just above 2^63");
    ok(pf_rng_bounded(1, 1, 1, 1) == 0, "below 1 there is only 0");
}

static bool is_bijection(uint64_t key, uint64_t n)
{
    static unsigned char seen[5000];

    memset(seen, 0, sizeof seen);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t image = pf_rng_permute(key, n, i);
        if (image >= n || seen[image]++) {
            return false;
        }
    }
    return true;
}

static void permutations(void)
{
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 15, 16, 17, 100, 1023, 1024, 1025, 4999};
    int fixed = 0, same = 0, place[3][3] = {{0}};
    bool all = true;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (uint64_t key = 0; key < 4; key++) {
            all = all && is_bijection(key, sizes[i]);
        }
    }
    ok(all, "bijections of sets of 1 to 4999");
    for (uint64_t i = 0; i < 4999; i++) {
        fixed += pf_rng_permute(7, 4999, i) == i;
        same += pf_rng_permute(7, 4999, i) == pf_rng_permute(8, 4999, i);
    }
    ok(fixed < 10 && same < 10, "few fixed points, and another key is another order");
    for (uint64_t key = 0; key < 9000; key++) {
        for (uint64_t i = 0; i < 3; i++) {
            place[i][pf_rng_permute(key, 3, i)]++;
        }
    }
    for (int i = 0; i < 9; i++) {
        all = all && place[i / 3][i % 3] > 2700 && place[i / 3][i % 3] < 3300;
    }
    ok(all, "over the keys, each of three goes everywhere equally often");
    const uint64_t huge = UINT64_MAX - 5;
    ok(pf_rng_permute(1, huge, 12345) < huge &&
           pf_rng_permute(1, huge, 12345) != pf_rng_permute(1, huge, 12346),
       "a set of nearly 2^64");
}

static void keys_differ(void)
{
    ok(pf_rng_derive(1, 2) != pf_rng_derive(2, 1) && pf_rng_derive(1, 2) != pf_rng_derive(1, 3),
       "derived keys differ");
    ok(pf_rng_derive_name(1, "dropout") != pf_rng_derive_name(1, "init"), "so do named ones");
}

int main(void)
{
    known_answers();
    fills_equal_single_draws();
    moments();
    bounded_is_even();
    permutations();
    keys_differ();
    return done();
}
