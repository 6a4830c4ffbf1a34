/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/dtype.h>

#include <pf/error.h>

#include <math.h>
#include <string.h>

static const struct {
    int bits;
    const char *name;
    const char *torch_name;
} dtypes[PF_DTYPE_COUNT] = {
    [PF_DTYPE_BOOL] = {8, "BOOL", "bool"},
    [PF_DTYPE_F4] = {4, "F4", "float4_e2m1fn_x2"},
    [PF_DTYPE_F6_E2M3] = {6, "F6_E2M3", NULL},
    [PF_DTYPE_F6_E3M2] = {6, "F6_E3M2", NULL},
    [PF_DTYPE_U8] = {8, "U8", "uint8"},
    [PF_DTYPE_I8] = {8, "I8", "int8"},
    [PF_DTYPE_F8_E5M2] = {8, "F8_E5M2", "float8_e5m2"},
    [PF_DTYPE_F8_E4M3] = {8, "F8_E4M3", "float8_e4m3fn"},
    [PF_DTYPE_F8_E8M0] = {8, "F8_E8M0", "float8_e8m0fnu"},
    [PF_DTYPE_F8_E4M3FNUZ] = {8, "F8_E4M3FNUZ", "float8_e4m3fnuz"},
    [PF_DTYPE_F8_E5M2FNUZ] = {8, "F8_E5M2FNUZ", "float8_e5m2fnuz"},
    [PF_DTYPE_I16] = {16, "I16", "int16"},
    [PF_DTYPE_U16] = {16, "U16", "uint16"},
    [PF_DTYPE_F16] = {16, "F16", "float16"},
    [PF_DTYPE_BF16] = {16, "BF16", "bfloat16"},
    [PF_DTYPE_I32] = {32, "I32", "int32"},
    [PF_DTYPE_U32] = {32, "U32", "uint32"},
    [PF_DTYPE_F32] = {32, "F32", "float32"},
    [PF_DTYPE_C64] = {64, "C64", "complex64"},
    [PF_DTYPE_F64] = {64, "F64", "float64"},
    [PF_DTYPE_I64] = {64, "I64", "int64"},
    [PF_DTYPE_U64] = {64, "U64", "uint64"},
};

static bool is_known(enum pf_dtype dtype)
{
    return (unsigned)dtype < PF_DTYPE_COUNT;
}

int pf_dtype_bits(enum pf_dtype dtype)
{
    PF_ASSERT(is_known(dtype));
    return dtypes[dtype].bits;
}

size_t pf_dtype_bytes(enum pf_dtype dtype)
{
    const int bits = pf_dtype_bits(dtype);

    return bits % 8 == 0 ? (size_t)bits / 8 : 0;
}

int pf_dtype_array_bytes(enum pf_dtype dtype, int64_t n, size_t *bytes_out)
{
    size_t bits;

    if (n < 0 || __builtin_mul_overflow((size_t)n, (size_t)pf_dtype_bits(dtype), &bits) ||
        bits % 8 != 0) {
        return PF_EINVAL;
    }
    *bytes_out = bits / 8;
    return 0;
}

const char *pf_dtype_name(enum pf_dtype dtype)
{
    PF_ASSERT(is_known(dtype));
    return dtypes[dtype].name;
}

int pf_dtype_parse(const char *name, enum pf_dtype *dtype_out)
{
    for (int d = 0; d < PF_DTYPE_COUNT; d++) {
        if (strcmp(dtypes[d].name, name) == 0) {
            *dtype_out = (enum pf_dtype)d;
            return 0;
        }
    }
    return PF_EINVAL;
}

int pf_dtype_from_torch_name(const char *name, enum pf_dtype *dtype_out)
{
    static const char prefix[] = "torch.";

    if (strncmp(name, prefix, sizeof prefix - 1) == 0) {
        name += sizeof prefix - 1;
    }
    for (int d = 0; d < PF_DTYPE_COUNT; d++) {
        if (dtypes[d].torch_name && strcmp(dtypes[d].torch_name, name) == 0) {
            *dtype_out = (enum pf_dtype)d;
            return 0;
        }
    }
    return PF_EINVAL;
}

const char *pf_dtype_torch_name(enum pf_dtype dtype)
{
    PF_ASSERT(is_known(dtype));
    return dtypes[dtype].torch_name;
}

bool pf_dtype_is_float(enum pf_dtype dtype)
{
    return dtype == PF_DTYPE_F16 || dtype == PF_DTYPE_BF16 || dtype == PF_DTYPE_F32 ||
           dtype == PF_DTYPE_F64;
}

/* An F8 with sign, exponent, mantissa: its widths, and whether it is one of the FNUZ kind. */
static const struct f8 {
    int mantissa_bits, bias;
    bool fnuz, has_inf;
} f8_formats[PF_DTYPE_COUNT] = {
    [PF_DTYPE_F8_E5M2] = {2, 15, false, true},
    [PF_DTYPE_F8_E4M3] = {3, 7, false, false},
    [PF_DTYPE_F8_E4M3FNUZ] = {3, 8, true, false},
    [PF_DTYPE_F8_E5M2FNUZ] = {2, 16, true, false},
};

bool pf_dtype_is_f8(enum pf_dtype dtype)
{
    return is_known(dtype) && (dtype == PF_DTYPE_F8_E8M0 || f8_formats[dtype].bias != 0);
}

float pf_f32_from_f8(enum pf_dtype dtype, uint8_t bits)
{
    PF_ASSERT(pf_dtype_is_f8(dtype));
    if (dtype == PF_DTYPE_F8_E8M0) {
        return bits == 0xff ? NAN : ldexpf(1.0f, (int)bits - 127);
    }
    const struct f8 *const f = &f8_formats[dtype];
    const int units = 1 << f->mantissa_bits, magnitude = bits & 0x7f;
    const int exponent = magnitude >> f->mantissa_bits, mantissa = magnitude & (units - 1);
    const int highest = 0x7f >> f->mantissa_bits;
    const float sign = bits & 0x80 ? -1.0f : 1.0f;

    if (f->fnuz ? bits == 0x80 : f->has_inf ? magnitude > 0x7c : magnitude == 0x7f) {
        return NAN;
    }
    if (f->has_inf && exponent == highest) {
        return sign * INFINITY;
    }
    return exponent == 0
               ? sign * ldexpf((float)mantissa, 1 - f->bias - f->mantissa_bits)
               : sign * ldexpf((float)(units + mantissa), exponent - f->bias - f->mantissa_bits);
}

double pf_dtype_least_normal(enum pf_dtype dtype)
{
    PF_ASSERT(is_known(dtype));
    switch (dtype) {
    case PF_DTYPE_F16:
        return 0x1p-14;
    case PF_DTYPE_BF16:
    case PF_DTYPE_F32:
    case PF_DTYPE_C64:
        return 0x1p-126;
    case PF_DTYPE_F64:
        return 0x1p-1022;
    default:
        return f8_formats[dtype].bias ? ldexp(1.0, 1 - f8_formats[dtype].bias) : 0;
    }
}

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

uint16_t pf_bf16_from_f32(float x)
{
    const uint32_t bits = bits_of(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float pf_f32_from_bf16(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

/* A magnitude below 2^-14: count units of 2^-24, the spacing of F16's subnormals. */
static uint32_t f16_subnormal(uint32_t magnitude)
{
    const uint32_t exponent = magnitude >> 23;

    if (exponent < 102) { /* under half a unit */
        return 0;
    }
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u, shift = 126 - exponent;
    const uint32_t whole = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u);
    const uint32_t half = 1u << (shift - 1);
    return whole + (rest > half || (rest == half && (whole & 1u)));
}

uint16_t pf_f16_from_f32(float x)
{
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (magnitude >= 0x47800000u) { /* 2^16 and infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* 2^-14 */
        return (uint16_t)(sign | f16_subnormal(magnitude));
    }
    /* Move the exponent's bias from 127 to 15; a carry out of the mantissa steps the exponent. */
    const uint32_t rebased = magnitude - (112u << 23);
    return (uint16_t)(sign | (rebased + 0xfffu + (rebased >> 13 & 1u)) >> 13);
}

float pf_f32_from_f16(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;

    if (magnitude >= 0x7c00u) {
        return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    }
    if (magnitude >= 0x400u) {
        return float_of(sign | ((magnitude << 13) + (112u << 23)));
    }
    return float_of(sign | bits_of((float)magnitude * 0x1p-24f));
}

/* Round to odd: the truncated float, its last bit set if anything was cut off. With at least two
 * bits to spare a second rounding to nearest then gives what one rounding would. */
static float f32_to_odd_from_f64(double x)
{
    const float near = (float)x;
    uint32_t bits = bits_of(near);

    if (x != x || (double)near == x) {
        return near;
    }
    const bool too_big = x < 0 ? (double)near < x : (double)near > x;
    bits = (too_big ? bits - 1 : bits) | 1u;
    return float_of(bits);
}

static double load_f64(enum pf_dtype from, const unsigned char *src, size_t i)
{
    uint16_t half;
    float single;
    double wide;

    switch (from) {
    case PF_DTYPE_BF16:
        memcpy(&half, src + i * 2, 2);
        return (double)pf_f32_from_bf16(half);
    case PF_DTYPE_F16:
        memcpy(&half, src + i * 2, 2);
        return (double)pf_f32_from_f16(half);
    case PF_DTYPE_F32:
        memcpy(&single, src + i * 4, 4);
        return (double)single;
    default:
        memcpy(&wide, src + i * 8, 8);
        return wide;
    }
}

static void store_f64(enum pf_dtype to, unsigned char *dst, size_t i, double x)
{
    uint16_t half;
    float single;

    switch (to) {
    case PF_DTYPE_BF16:
        half = pf_bf16_from_f32(f32_to_odd_from_f64(x));
        memcpy(dst + i * 2, &half, 2);
        return;
    case PF_DTYPE_F16:
        half = pf_f16_from_f32(f32_to_odd_from_f64(x));
        memcpy(dst + i * 2, &half, 2);
        return;
    case PF_DTYPE_F32:
        single = (float)x;
        memcpy(dst + i * 4, &single, 4);
        return;
    default:
        memcpy(dst + i * 8, &x, 8);
        return;
    }
}

/* The pairs that checkpoints are full of get loops of their own. */
static void f32_from_halves(enum pf_dtype from, const unsigned char *src, unsigned char *dst,
                            size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, src + i * 2, 2);
        const float x = from == PF_DTYPE_BF16 ? pf_f32_from_bf16(half) : pf_f32_from_f16(half);
        memcpy(dst + i * 4, &x, 4);
    }
}

static void halves_from_f32(enum pf_dtype to, const unsigned char *src, unsigned char *dst,
                            size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, src + i * 4, 4);
        const uint16_t half = to == PF_DTYPE_BF16 ? pf_bf16_from_f32(x) : pf_f16_from_f32(x);
        memcpy(dst + i * 2, &half, 2);
    }
}

static int copy_equal(enum pf_dtype dtype, const void *src, void *dst, size_t n)
{
    size_t bytes;

    if (n > INT64_MAX || pf_dtype_array_bytes(dtype, (int64_t)n, &bytes) != 0) {
        return pf_fail(PF_EINVAL, "%zu elements of %s do not fill whole bytes", n,
                       pf_dtype_name(dtype));
    }
    if (bytes > 0) {
        memmove(dst, src, bytes);
    }
    return 0;
}

int pf_dtype_convert(enum pf_dtype from, const void *src, enum pf_dtype to, void *dst, size_t n)
{
    if (from == to) {
        return copy_equal(from, src, dst, n);
    }
    if (!pf_dtype_is_float(from) || !pf_dtype_is_float(to)) {
        return pf_fail(PF_ENOTSUP, "cannot convert %s to %s", pf_dtype_name(from),
                       pf_dtype_name(to));
    }
    if (to == PF_DTYPE_F32 && from != PF_DTYPE_F64) {
        f32_from_halves(from, src, dst, n);
    } else if (from == PF_DTYPE_F32 && to != PF_DTYPE_F64) {
        halves_from_f32(to, src, dst, n);
    } else {
        for (size_t i = 0; i < n; i++) {
            store_f64(to, dst, i, load_f64(from, src, i));
        }
    }
    return 0;
}
