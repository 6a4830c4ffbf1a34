/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elem.h - the elements of `void *` arrays: fp32, bf16 or fp16, one of them a compilation.
 *
 * Kernels compute in fp32 vectors whatever the elements are: e_load_n widens, e_store_n rounds, to
 * nearest and ties to even, once. Both give what pf/dtype.h's conversions give, NaN included; but
 * AVX512-BF16's instruction takes numbers below 2^-126 for 0.
 */
#ifndef PF_CPU_ELEM_H
#define PF_CPU_ELEM_H

#include "vec.h"

#include <pf/dtype.h>

#include <stdbool.h>

#if defined(PF_ELEM_f32)

typedef float elem;
#define ELEM_DTYPE PF_DTYPE_F32
#define ELEM_IS_F32 1

V_INLINE vf e_load_n(const elem *p, int64_t n)
{
    return v_load_n(p, n);
}

V_INLINE void e_store_n(elem *p, vf x, int64_t n)
{
    v_store_n(p, x, n);
}

V_INLINE vf e_round(vf x)
{
    return x;
}

#else

typedef uint16_t elem;
#define ELEM_IS_F32 0

typedef uint16_t vh __attribute__((vector_size(2 * VL)));
typedef uint16_t vh_mem __attribute__((vector_size(2 * VL), aligned(2), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * VL)));

/* The first n halves (0 < n <= VL) of memory; the others are 0 / left alone. */
V_INLINE vh vh_load_n(const uint16_t *p, int64_t n)
{
    if (n >= VL) {
        return *(const vh_mem *)p;
    }
#if defined(__AVX512F__)
    return (vh)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
#else
    vh x = {0};
    for (int i = 0; i < VL; i++) {
        if (i < n) {
            x[i] = p[i];
        }
    }
    return x;
#endif
}

V_INLINE void vh_store_n(uint16_t *p, vh x, int64_t n)
{
    if (n >= VL) {
        *(vh_mem *)p = x;
        return;
    }
#if defined(__AVX512F__)
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), (__m256i)x);
#else
    for (int i = 0; i < VL; i++) {
        if (i < n) {
            p[i] = x[i];
        }
    }
#endif
}

#if defined(PF_ELEM_bf16)

#define ELEM_DTYPE PF_DTYPE_BF16

V_INLINE vf half_widen(vh x)
{
    /* GCC 12 does not find these instructions itself. */
#if defined(__AVX512F__)
    return (vf)((vu)_mm512_cvtepu16_epi32((__m256i)x) << 16);
#elif defined(__AVX2__)
    return (vf)((vu)_mm256_cvtepu16_epi32((__m128i)x) << 16);
#else
    return (vf)(__builtin_convertvector(x, vu) << 16);
#endif
}

#if defined(__AVX512BF16__)

V_INLINE vh half_narrow(vf x)
{
    return (vh)_mm512_cvtneps_pbh(x);
}

V_INLINE vf e_round(vf x)
{
    return half_widen(half_narrow(x));
}

#else

/* The rounded bits, in the upper half; a NaN stays one by its quiet bit. */
V_INLINE vu bf16_bits(vf x)
{
    const vu bits = (vu)x;
    const vu rounded = bits + (bits >> 16 & 1u) + 0x7fffu;
    const vm is_nan = vi_gt((vi)(bits & 0x7fffffffu), vi_set(0x7f800000));

    return (vu)v_select(is_nan, (vf)(bits | 0x400000u), (vf)rounded);
}

V_INLINE vh half_narrow(vf x)
{
    const vu bits = bf16_bits(x) >> 16;

#if defined(__AVX512F__)
    return (vh)_mm512_cvtepi32_epi16((__m512i)bits);
#elif defined(__AVX2__)
    const __m256i packed = _mm256_packus_epi32((__m256i)bits, (__m256i)bits);
    return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
    return __builtin_convertvector(bits, vh);
#endif
}

V_INLINE vf e_round(vf x)
{
    return (vf)(bf16_bits(x) & 0xffff0000u);
}

#endif

#elif defined(PF_ELEM_f16)

#define ELEM_DTYPE PF_DTYPE_F16

V_INLINE vf half_widen(vh x)
{
#if defined(__AVX512F__)
    return _mm512_cvtph_ps((__m256i)x);
#elif defined(__F16C__)
    return _mm256_cvtph_ps((__m128i)x);
#else
    vf y;
    for (int i = 0; i < VL; i++) {
        y[i] = pf_f32_from_f16(x[i]);
    }
    return y;
#endif
}

V_INLINE vh half_narrow(vf x)
{
#if defined(__AVX512F__)
    return (vh)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    return (vh)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
#else
    vh y;
    for (int i = 0; i < VL; i++) {
        y[i] = pf_f16_from_f32(x[i]);
    }
    return y;
#endif
}

V_INLINE vf e_round(vf x)
{
    return half_widen(half_narrow(x));
}

#else
#error "define PF_ELEM_f32, PF_ELEM_bf16 or PF_ELEM_f16"
#endif

V_INLINE vf e_load_n(const elem *p, int64_t n)
{
    return half_widen(vh_load_n(p, n));
}

V_INLINE void e_store_n(elem *p, vf x, int64_t n)
{
    vh_store_n(p, half_narrow(x), n);
}

#endif

/* Past the caches: p is aligned to whole vectors of elements. Other threads see it after e_fence. */
V_INLINE void e_stream(elem *p, vf x)
{
#if ELEM_IS_F32 && defined(__AVX512F__)
    _mm512_stream_ps(p, x);
#elif ELEM_IS_F32 && defined(__AVX2__)
    _mm256_stream_ps(p, x);
#elif ELEM_IS_F32 && defined(__SSE2__)
    _mm_stream_ps(p, x);
#elif defined(__AVX512F__)
    _mm256_stream_si256((__m256i *)(void *)p, (__m256i)half_narrow(x));
#elif defined(__AVX2__)
    _mm_stream_si128((__m128i *)(void *)p, (__m128i)half_narrow(x));
#else
    e_store_n(p, x, VL);
#endif
}

V_INLINE void e_fence(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

V_INLINE void e_put_n(elem *p, vf x, int64_t n, bool stream)
{
    if (stream && n == VL) {
        e_stream(p, x);
    } else {
        e_store_n(p, x, n);
    }
}

/* One element. */
V_INLINE float e_get(const elem *p)
{
#if ELEM_IS_F32
    return *p;
#elif defined(PF_ELEM_bf16)
    const uint32_t bits = (uint32_t)*p << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
#elif defined(__F16C__)
    return _cvtsh_ss(*p);
#else
    return pf_f32_from_f16(*p);
#endif
}

V_INLINE void e_put(elem *p, float x)
{
    e_store_n(p, v_set(x), 1);
}

/* A row to fp32, and back. */
V_INLINE void e_widen(const elem *from, int64_t width, float *to)
{
    V_LOOP(0, width, v_store_n(to + i, e_load_n(from + i, n), n));
}

V_INLINE void e_narrow(const float *from, int64_t width, elem *to)
{
    V_LOOP(0, width, e_store_n(to + i, v_load_n(from + i, n), n));
}

#endif
