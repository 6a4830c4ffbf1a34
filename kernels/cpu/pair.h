/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pair.h - elements two vectors at a time, for ops that run at the speed of memory.
 *
 * Half-width elements fill only half a register as they are loaded: twice as many are taken at
 * once, so that each load and store is a whole line of the cache, and two chains of arithmetic
 * overlap. Where bf16 fills 512 bits, `a` holds the elements at even places and `b` those at odd
 * ones, which needs no shuffle to widen; otherwise `a` holds the first VL and `b` the others.
 * pair_place says which; what is stored beside elements (sums for columns) lies in that order.
 *
 *     P_LOOP(0, width, pair_put(y + i, pair_scale(pair_load(x + i, n), 2), n, false));
 */
#ifndef PF_CPU_PAIR_H
#define PF_CPU_PAIR_H

#include "elem.h"

#define PL (2 * VL)

struct pair {
    vf a, b;
};

#if defined(PF_ELEM_bf16) && defined(__AVX512F__)
#define PAIR_INTERLEAVED 1
#else
#define PAIR_INTERLEAVED 0
#endif

/* Where element j of PL lies in {a, b}. */
V_INLINE int64_t pair_place(int64_t j)
{
    return PAIR_INTERLEAVED ? j % 2 * VL + j / 2 : j;
}

#if PAIR_INTERLEAVED

typedef uint16_t vw __attribute__((vector_size(4 * VL)));

V_INLINE struct pair pair_widen(vw x)
{
    return (struct pair){(vf)((vu)x << 16), (vf)((vu)x & 0xffff0000u)};
}

V_INLINE vw pair_narrow(struct pair x)
{
#if defined(__AVX512BF16__)
    /* The instruction packs b above a; this is the order of memory. */
    const vw order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (vw)_mm512_permutexvar_epi16((__m512i)order, (__m512i)_mm512_cvtne2ps_pbh(x.b, x.a));
#else
    return (vw)(bf16_bits(x.a) >> 16 | (bf16_bits(x.b) & 0xffff0000u));
#endif
}

/* The first n (0 < n <= PL) elements; the others are 0. */
V_INLINE struct pair pair_load(const elem *p, int64_t n)
{
    return pair_widen(n >= PL ? (vw)_mm512_loadu_si512(p)
                              : (vw)_mm512_maskz_loadu_epi16((1u << n) - 1, p));
}

/* The first n elements rounded to memory; past the caches where stream, which p's place must allow
 * (cpu_streams). */
V_INLINE void pair_put(elem *p, struct pair x, int64_t n, bool stream)
{
    if (n < PL) {
        _mm512_mask_storeu_epi16(p, (1u << n) - 1, (__m512i)pair_narrow(x));
    } else if (stream) {
        _mm512_stream_si512((__m512i *)(void *)p, (__m512i)pair_narrow(x));
    } else {
        _mm512_storeu_si512(p, (__m512i)pair_narrow(x));
    }
}

V_INLINE struct pair pair_round(struct pair x)
{
    return pair_widen(pair_narrow(x));
}

#else

V_INLINE struct pair pair_load(const elem *p, int64_t n)
{
    return (struct pair){e_load_n(p, n < VL ? n : VL), n > VL ? e_load_n(p + VL, n - VL) : (vf){0}};
}

V_INLINE void pair_put(elem *p, struct pair x, int64_t n, bool stream)
{
    e_put_n(p, x.a, n < VL ? n : VL, stream);
    if (n > VL) {
        e_put_n(p + VL, x.b, n - VL, stream);
    }
}

V_INLINE struct pair pair_round(struct pair x)
{
    return (struct pair){e_round(x.a), e_round(x.b)};
}

#endif

V_INLINE struct pair pair_add(struct pair x, struct pair y)
{
    return (struct pair){x.a + y.a, x.b + y.b};
}

V_INLINE struct pair pair_mul(struct pair x, struct pair y)
{
    return (struct pair){x.a * y.a, x.b * y.b};
}

V_INLINE struct pair pair_scale(struct pair x, float factor)
{
    return (struct pair){x.a * factor, x.b * factor};
}

/* x*y + z */
V_INLINE struct pair pair_fma(struct pair x, struct pair y, struct pair z)
{
    return (struct pair){v_fma(x.a, y.a, z.a), v_fma(x.b, y.b, z.b)};
}

/* The first n elements of x, 0 in place of the others. */
V_INLINE struct pair pair_first(struct pair x, int64_t n)
{
    if (n >= PL) {
        return x;
    }
    const int32_t n_a = (int32_t)(PAIR_INTERLEAVED ? (n + 1) / 2 : n),
                  n_b = (int32_t)(PAIR_INTERLEAVED ? n / 2 : n - VL);
    return (struct pair){v_select(vi_gt(vi_set(n_a), vi_iota()), x.a, (vf){0}),
                         v_select(vi_gt(vi_set(n_b), vi_iota()), x.b, (vf){0})};
}

/* fp32 that lies beside elements, in their order within each PL; always whole. */
V_INLINE struct pair pair_beside(const float *p)
{
    return (struct pair){v_load(p), v_load(p + VL)};
}

V_INLINE void pair_put_beside(float *p, struct pair x)
{
    v_store(p, x.a);
    v_store(p + VL, x.b);
}

/* Do `statement` for elements lo..hi-1: i is the first of n elements, n = PL except at the end. */
#define P_LOOP(lo, hi, statement)                                                                  \
    do {                                                                                           \
        int64_t i = (lo);                                                                          \
        for (; i + PL <= (hi); i += PL) {                                                          \
            const int64_t n = PL;                                                                  \
            statement;                                                                             \
        }                                                                                          \
        if (i < (hi)) {                                                                            \
            const int64_t n = (hi)-i;                                                              \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

#endif
