/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mask.h - the words of pf_dropout_words (pf/rng.h) for many blocks at once. The counter's words
 * stand in the low halves of 64-bit lanes, where one instruction multiplies them; what is in the
 * high halves does not matter.
 * Source: Salmon et al. 2011 (Philox4x32, 10 rounds), as pf/rng.h.
 */
#ifndef PF_CPU_MASK_H
#define PF_CPU_MASK_H

#include "vec.h"

#include <pf/rng.h>

#define MASK_LANES (VL / 2)

typedef uint64_t vq __attribute__((vector_size(4 * VL)));

/* The product of the low halves. */
V_INLINE vq vq_mul_low(vq a, vq b)
{
#if defined(__AVX512F__)
    return (vq)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (vq)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (vq)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

V_INLINE vq vq_set(uint64_t x)
{
    return x - (vq){0};
}

/* first[0], second[0], first[1], ... to memory. */
V_INLINE void mask_zip(vq first, vq second, uint32_t *words)
{
#if defined(__AVX512F__)
    const vq low = {0, 8, 1, 9, 2, 10, 3, 11}, high = {4, 12, 5, 13, 6, 14, 7, 15};
    _mm512_storeu_si512(words,
                        _mm512_permutex2var_epi64((__m512i)first, (__m512i)low, (__m512i)second));
    _mm512_storeu_si512(words + 16,
                        _mm512_permutex2var_epi64((__m512i)first, (__m512i)high, (__m512i)second));
#else
    for (int i = 0; i < MASK_LANES; i++) {
        const uint64_t two[2] = {first[i], second[i]};
        memcpy(words + 4 * i, two, sizeof two);
    }
#endif
}

/* Blocks block .. block+MASK_LANES-1, four words each, in order. */
V_INLINE void mask_blocks(uint64_t key, vq block, uint32_t *words)
{
    const vq m0 = vq_set(0xD2511F53u), m1 = vq_set(0xCD9E8D57u), low = vq_set(0xffffffffu);
    vq c0 = block, c1 = block >> 32, c2 = {0}, c3 = {0};
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    for (int round = 0; round < 10; round++) {
        const vq p0 = vq_mul_low(c0, m0), p1 = vq_mul_low(c2, m1);
        c0 = (p1 >> 32) ^ c1 ^ vq_set(k0);
        c2 = (p0 >> 32) ^ c3 ^ vq_set(k1);
        c1 = p1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const vq first = (c0 & low) | (c1 << 32), second = (c2 & low) | (c3 << 32);
    mask_zip(first, second, words);
}

/* n_blocks blocks from `block` on; words has room for n_blocks rounded up to MASK_LANES. */
V_INLINE void mask_words(uint64_t key, uint64_t block, int64_t n_blocks, uint32_t *words)
{
    vq lane = {0};

    for (int i = 0; i < MASK_LANES; i++) {
        lane[i] = (uint64_t)i;
    }
    for (int64_t b = 0; b < n_blocks; b += MASK_LANES) {
        mask_blocks(key, lane + (block + (uint64_t)b), words + 4 * b);
    }
}

#endif
