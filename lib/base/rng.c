/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/rng.h>

#include <pf/digest.h>
#include <pf/error.h>

#include <math.h>

void pf_rng_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * x0, p1 = (uint64_t)0xCD9E8D57u * x2;
        const uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0, y2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x0 = y0;
        x1 = (uint32_t)p1;
        x2 = y2;
        x3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

void pf_rng_block(uint64_t key, uint64_t stream, uint64_t index, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    const uint32_t words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};

    pf_rng_philox4x32(counter, words, out);
}

static uint64_t join(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

/* Keys below a key come from a stream that no user draws from by accident. */
#define DERIVE_STREAM 0x7066206465726976u

uint64_t pf_rng_derive(uint64_t key, uint64_t value)
{
    uint32_t words[4];

    pf_rng_block(key, DERIVE_STREAM, value, words);
    return join(words[0], words[1]);
}

uint64_t pf_rng_derive_name(uint64_t key, const char *purpose)
{
    return pf_rng_derive(key, pf_hash_string(purpose));
}

static float unit_f32(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

static double unit_f64(uint32_t low, uint32_t high)
{
    return (double)(join(low, high) >> 11) * 0x1p-53;
}

float pf_rng_uniform_f32(uint64_t key, uint64_t stream, uint64_t index)
{
    uint32_t words[4];

    pf_rng_block(key, stream, index / 4, words);
    return unit_f32(words[index % 4]);
}

double pf_rng_uniform_f64(uint64_t key, uint64_t stream, uint64_t index)
{
    const uint64_t half = index % 2 * 2;
    uint32_t words[4];

    pf_rng_block(key, stream, index / 2, words);
    return unit_f64(words[half], words[half + 1]);
}

/* Both normals of a block. The radius takes its uniform from (0,1], where the logarithm is finite.
 */
static void normal_pair(uint64_t key, uint64_t stream, uint64_t block, double pair[2])
{
    uint32_t words[4];

    pf_rng_block(key, stream, block, words);
    const double radius = sqrt(-2.0 * log(1.0 - unit_f64(words[0], words[1])));
    const double angle = 6.283185307179586476925 * unit_f64(words[2], words[3]);
    pair[0] = radius * cos(angle);
    pair[1] = radius * sin(angle);
}

double pf_rng_normal(uint64_t key, uint64_t stream, uint64_t index)
{
    double pair[2];

    normal_pair(key, stream, index / 2, pair);
    return pair[index % 2];
}

void pf_rng_fill_uniform_f32(uint64_t key, uint64_t stream, uint64_t first, float *x, size_t n)
{
    uint32_t words[4];

    for (size_t i = 0; i < n; i++) {
        const uint64_t index = first + i;
        if (i == 0 || index % 4 == 0) {
            pf_rng_block(key, stream, index / 4, words);
        }
        x[i] = unit_f32(words[index % 4]);
    }
}

void pf_rng_fill_normal_f32(uint64_t key, uint64_t stream, uint64_t first, double mean, double std,
                            float *x, size_t n)
{
    double pair[2];

    for (size_t i = 0; i < n; i++) {
        const uint64_t index = first + i;
        if (i == 0 || index % 2 == 0) {
            normal_pair(key, stream, index / 2, pair);
        }
        x[i] = (float)(mean + std * pair[index % 2]);
    }
}

uint64_t pf_rng_bounded(uint64_t key, uint64_t stream, uint64_t index, uint64_t n)
{
    PF_ASSERT(n > 0);
    const uint64_t surplus = -n % n; /* 2^64 mod n: so many low products are one too many */

    for (uint64_t attempt = 0;; attempt++) {
        uint32_t words[4];
        pf_rng_block(attempt == 0 ? key : pf_rng_derive(key, attempt), stream, index, words);
        for (int i = 0; i < 4; i += 2) {
            const unsigned __int128 product = (unsigned __int128)join(words[i], words[i + 1]) * n;
            if ((uint64_t)product >= surplus) {
                return (uint64_t)(product >> 64);
            }
        }
    }
}

/* One pass of the network over 2 * half_bits bits, as a bijection of them. */
static uint64_t feistel(uint64_t key, uint64_t n, int half_bits, uint64_t x)
{
    const uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask;

    /* The counter (half, round, n) is another one for each round and each size of set. */
    for (uint32_t round = 0; round < 10; round++) {
        const uint32_t counter[4] = {(uint32_t)right, round, (uint32_t)n, (uint32_t)(n >> 32)};
        const uint32_t words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
        uint32_t out[4];
        pf_rng_philox4x32(counter, words, out);
        const uint64_t next = left ^ (out[0] & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

uint64_t pf_rng_permute(uint64_t key, uint64_t n, uint64_t i)
{
    int half_bits = 1;

    PF_ASSERT(i < n);
    while (half_bits < 32 && n > UINT64_C(1) << 2 * half_bits) {
        half_bits++;
    }
    /* The network permutes the smallest such set around [0, n), less than four times as large: from
     * a member, its cycle comes back to a member. */
    do {
        i = feistel(key, n, half_bits, i);
    } while (i >= n);
    return i;
}
