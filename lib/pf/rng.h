/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng.h - random numbers as a pure function of (key, stream, index).
 *
 * There is no state: a draw depends on what it is for, never on which rank or in which order it is
 * made, so no layout changes a draw and a resume needs no saved generator. Derive a key from the
 * seed and the purpose, use the stream for the step or tensor, the index for the position.
 *
 *     const uint64_t key = pf_rng_derive_name(seed, "dropout");
 *     keep = pf_rng_uniform_f32(key, step, position) >= p;
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011:
 * Philox4x32 with 10 rounds. The 128-bit counter is (index, stream), low words first; the key is 64
 * bits.
 *
 * All functions are local, pure, and safe to call from any thread.
 */
#ifndef PF_RNG_H
#define PF_RNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The bare generator, words as in the paper. */
void pf_rng_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Block number `index` of a stream: four independent words. */
void pf_rng_block(uint64_t key, uint64_t stream, uint64_t index, uint32_t out[4]);

/* Another key, of equal quality, for a purpose or a number below an existing key. */
uint64_t pf_rng_derive(uint64_t key, uint64_t value);
uint64_t pf_rng_derive_name(uint64_t key, const char *purpose);

/* Draw `index` of a stream, in [0,1): 24 bits (four draws a block) and 53 bits (two a block). */
float pf_rng_uniform_f32(uint64_t key, uint64_t stream, uint64_t index);
double pf_rng_uniform_f64(uint64_t key, uint64_t stream, uint64_t index);

/* Draw `index` of a stream of standard normals (Box-Muller, draws 2i and 2i+1 from block i, 53-bit
 * uniforms). Its bits depend on libm's log, sin and cos. */
double pf_rng_normal(uint64_t key, uint64_t stream, uint64_t index);

/* Draws first .. first+n-1, the same bits as one by one. Normals are mean + std * normal, computed
 * in double and rounded once. */
void pf_rng_fill_uniform_f32(uint64_t key, uint64_t stream, uint64_t first, float *x, size_t n);
void pf_rng_fill_normal_f32(uint64_t key, uint64_t stream, uint64_t first, double mean, double std,
                            float *x, size_t n);

/* Draw `index` of a stream of integers in [0, n), each equally likely. n > 0.
 * Source: Lemire, "Fast random integer generation in an interval", 2019. */
uint64_t pf_rng_bounded(uint64_t key, uint64_t stream, uint64_t index, uint64_t n);

/*
 * The image of i under a permutation of [0, n) that the key chooses; i < n. For fixed (key, n) it is
 * a bijection, so a shuffled order needs no memory. A ten-round Feistel network on the smallest
 * even number of bits that holds n, walked along its cycle until it lands inside; less than four
 * rounds of the walk are expected.
 * Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
 */
uint64_t pf_rng_permute(uint64_t key, uint64_t n, uint64_t i);

/*
 * Dropout masks (pf/kernel.h). Written out here, and not in lib/base, because kernels inline them
 * into vector loops. The words are those of pf_rng_block(key, 0, block), so element i of a mask is
 * word i mod 4 of block i/4.
 */
static inline void pf_dropout_words(uint64_t key, uint64_t block, uint32_t words_out[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words_out[0] = c0;
    words_out[1] = c1;
    words_out[2] = c2;
    words_out[3] = c3;
}

/* An element is kept if its word is at least this; 0 <= p < 1. */
static inline uint32_t pf_dropout_threshold(float p)
{
    return (uint32_t)((double)p * 4294967296.0);
}

/* Is element `index` of the mask of `key` kept, when a share p is to be dropped? */
static inline bool pf_dropout_keep(uint64_t key, uint64_t index, float p)
{
    uint32_t words[4];

    pf_dropout_words(key, index / 4, words);
    return words[index % 4] >= pf_dropout_threshold(p);
}

#ifdef __cplusplus
}
#endif

#endif
