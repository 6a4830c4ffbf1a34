/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vec.h - fp32 vectors as wide as the instruction set of this compilation, and functions on them.
 *
 * One source serves AVX-512 (16 lanes), AVX2 (8) and everything else (4 lanes, GCC's vector
 * extensions). Lanes never meet except in v_sum and v_max_lane, whose order is fixed, so that an
 * elementwise kernel gives the same bits wherever an element lies: tails are loaded into a whole
 * vector, the other lanes zero, and take the same path.
 *
 * v_fma rounds once where the machine has the instruction and twice elsewhere: results differ
 * between instruction sets, never between calls.
 */
#ifndef PF_CPU_VEC_H
#define PF_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VL 16
#elif defined(__AVX2__)
#define VL 8
#else
#define VL 4
#endif

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef float vf_mem __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t vi_mem __attribute__((vector_size(4 * VL), aligned(4), may_alias));

#define V_INLINE static inline __attribute__((always_inline, unused))

/* A truth value for each lane. */
#if defined(__AVX512F__)
typedef __mmask16 vm;
#else
typedef vi vm;
#endif

V_INLINE vf v_set(float x)
{
    return x - (vf){0};
}

V_INLINE vi vi_set(int32_t x)
{
    return x - (vi){0};
}

V_INLINE vf v_load(const float *p)
{
    return *(const vf_mem *)p;
}

V_INLINE void v_store(float *p, vf x)
{
    *(vf_mem *)p = x;
}

/* The first n lanes (0 < n <= VL) of memory; the others are 0 / left alone. */
V_INLINE vf v_load_n(const float *p, int64_t n)
{
    if (n >= VL) {
        return v_load(p);
    }
#if defined(__AVX512F__)
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    vf x = {0};
    for (int i = 0; i < VL; i++) {
        if (i < n) {
            x[i] = p[i];
        }
    }
    return x;
#endif
}

V_INLINE void v_store_n(float *p, vf x, int64_t n)
{
    if (n >= VL) {
        v_store(p, x);
        return;
    }
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
#else
    for (int i = 0; i < VL; i++) {
        if (i < n) {
            p[i] = x[i];
        }
    }
#endif
}

V_INLINE vi vi_load_n(const int32_t *p, int64_t n)
{
    if (n >= VL) {
        return *(const vi_mem *)p;
    }
    vi x = {0};
    for (int i = 0; i < VL; i++) {
        if (i < n) {
            x[i] = p[i];
        }
    }
    return x;
}

/* 0, 1, 2, ... */
V_INLINE vi vi_iota(void)
{
    vi x = {0};

    for (int i = 0; i < VL; i++) {
        x[i] = i;
    }
    return x;
}

/* a*b + c */
V_INLINE vf v_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

#if defined(__AVX512F__)
V_INLINE vm v_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
V_INLINE vm vi_gt(vi a, vi b)
{
    return _mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b);
}
V_INLINE vm vm_or(vm a, vm b)
{
    return (vm)(a | b);
}
V_INLINE vf v_select(vm m, vf yes, vf no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}
#else
V_INLINE vm v_lt(vf a, vf b)
{
    return a < b;
}
V_INLINE vm vi_gt(vi a, vi b)
{
    return a > b;
}
V_INLINE vm vm_or(vm a, vm b)
{
    return a | b;
}
V_INLINE vf v_select(vm m, vf yes, vf no)
{
#if defined(__AVX2__)
    return _mm256_blendv_ps(no, yes, (vf)m);
#else
    return (vf)((m & (vi)yes) | (~m & (vi)no));
#endif
}
#endif

/* b where a < b or either is NaN; so v_max(x, limit) drops a NaN and v_max(limit, x) keeps it. */
V_INLINE vf v_max(vf a, vf b)
{
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
    return _mm_max_ps(a, b);
#else
    return v_select(v_lt(b, a), a, b);
#endif
}

V_INLINE vf v_min(vf a, vf b)
{
#if defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_min_ps(a, b);
#elif defined(__SSE2__)
    return _mm_min_ps(a, b);
#else
    return v_select(v_lt(a, b), a, b);
#endif
}

V_INLINE vf v_sqrt(vf a)
{
#if defined(__AVX512F__)
    return _mm512_sqrt_ps(a);
#elif defined(__AVX2__)
    return _mm256_sqrt_ps(a);
#elif defined(__SSE2__)
    return _mm_sqrt_ps(a);
#else
    for (int i = 0; i < VL; i++) {
        a[i] = __builtin_sqrtf(a[i]);
    }
    return a;
#endif
}

V_INLINE vf v_abs(vf a)
{
    return (vf)((vi)a & 0x7fffffff);
}

/* Do `statement` for elements lo..hi-1: i is the first of n elements, n = VL except at the end. */
#define V_LOOP(lo, hi, statement)                                                                  \
    do {                                                                                           \
        int64_t i = (lo);                                                                          \
        for (; i + VL <= (hi); i += VL) {                                                          \
            const int64_t n = VL;                                                                  \
            statement;                                                                             \
        }                                                                                          \
        if (i < (hi)) {                                                                            \
            const int64_t n = (hi)-i;                                                              \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

/* Sum of the lanes, halves added to each other. */
V_INLINE float v_sum(vf x)
{
#if defined(__AVX512DQ__)
    const __m256 by8 = _mm512_castps512_ps256(x) + _mm512_extractf32x8_ps(x, 1);
#elif defined(__AVX2__)
    const __m256 by8 = x;
#endif
#if defined(__AVX2__)
    const __m128 by4 = _mm256_castps256_ps128(by8) + _mm256_extractf128_ps(by8, 1);
    const __m128 by2 = by4 + _mm_movehl_ps(by4, by4);
    return by2[0] + by2[1];
#else
    float lane[VL];

    v_store(lane, x);
    for (int half = VL / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            lane[i] += lane[i + half];
        }
    }
    return lane[0];
#endif
}

V_INLINE float v_max_lane(vf x)
{
    float lane[VL];

    v_store(lane, x);
    for (int i = 1; i < VL; i++) {
        lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
    }
    return lane[0];
}

/* x 2^n, in two steps, since 2^n alone may not be a normal number. */
V_INLINE vf v_scale2(vf x, vi n)
{
    const vi half = n >> 1;

    return x * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}

/*
 * exp(x): x = n ln2 + r with |r| <= ln2/2; a polynomial of degree 6 for exp(r) (error 1e-8
 * relative before rounding), then times 2^n. Error below 1.1 ulp where the result is normal; 0 below
 * -104, infinity above 88.73, NaN for NaN.
 */
V_INLINE vf v_exp(vf x)
{
    const vf magic = v_set(0x1.8p23f);

    x = v_min(v_set(89.0f), v_max(v_set(-105.0f), x));
    const vf t = v_fma(x, v_set(0x1.715476p0f), magic);
    const vf n = t - magic;
    /* ln2 in two parts; the first has zeros below, so n times it is exact without fma too. */
    const vf r = v_fma(n, v_set(-0x1.7f7d1cp-20f), v_fma(n, v_set(-0x1.62e4p-1f), x));
    vf p = v_set(0x1.6d117cp-10f);

    p = v_fma(p, r, v_set(0x1.120be2p-7f));
    p = v_fma(p, r, v_set(0x1.555518p-5f));
    p = v_fma(p, r, v_set(0x1.5554dcp-3f));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r * r, r) + 1.0f;
#if defined(__AVX512F__)
    return _mm512_scalef_ps(p, n);
#else
    return v_scale2(p, (vi)t - (vi)magic);
#endif
}

/*
 * 2^x: x = n + r with |r| <= 1/2; a polynomial of degree 5 for 2^r, whose error of 1.1e-7 is less than
 * what rounding leaves of a score, then times 2^n. Exactly 1 at 0, 0 at -infinity, NaN for NaN.
 */
V_INLINE vf v_exp2(vf x)
{
#if defined(__AVX512DQ__)
    const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const vf magic = v_set(0x1.8p23f);

    x = v_min(v_set(129.0f), v_max(v_set(-152.0f), x));
    const vf t = x + magic, r = x - (t - magic);
#endif
    vf p = v_fma(v_set(0x1.5bba14p-10f), r, v_set(0x1.3cea88p-7f));

    p = v_fma(p, r, v_set(0x1.c6b752p-5f));
    p = v_fma(p, r, v_set(0x1.ebf9bcp-3f));
    p = v_fma(p, r, v_set(0x1.62e42ap-1f));
    p = v_fma(p, r, v_set(1.0f));
#if defined(__AVX512DQ__)
    return _mm512_scalef_ps(p, x - r);
#else
    return v_scale2(p, (vi)t - (vi)magic);
#endif
}

/* exp(x) for sums in which 1 is the largest: x log2(e) is rounded, so that the error is 1e-7 and |x|
 * 1e-7 of what is small then; 1 for 0, 0 for minus infinity. */
V_INLINE vf v_exp_below(vf x)
{
    return v_exp2(x * 1.4426950408889634f);
}

/*
 * log(x) of one positive number, in double and rounded once (error below 0.5001 ulp): x = m 2^e
 * with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m-1)/(m+1)). NaN for negative, as libm.
 */
V_INLINE float s_log(float x)
{
    if (!(x > 0.0f)) {
        return x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
    }
    if (!(x < __builtin_inff())) {
        return x;
    }

    double m = x;
    int64_t bits;
    memcpy(&bits, &m, sizeof bits);
    const int64_t e = (bits - 0x3fe6a09e667f3bcd) >> 52;
    bits -= e * ((int64_t)1 << 52);
    memcpy(&m, &bits, sizeof m);
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 0.0;
    for (int k = 15; k >= 1; k -= 2) {
        p = p * z + 1.0 / k;
    }
    return (float)(2.0 * s * p + (double)e * 0x1.62e42fefa39efp-1);
}

#endif
