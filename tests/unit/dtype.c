/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: every 16-bit pattern there and back, and rounding against a search for the nearest
 * representable value. */
#include <pf/dtype.h>
#include <pf/error.h>

#include "tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void names_and_widths(void)
{
    static const char *const order[] = {
        "BOOL",    "F4",          "F6_E2M3",     "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3",
        "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",     "U16", "F16", "BF16",    "I32",
        "U32",     "F32",         "C64",         "F64",     "I64", "U64"};
    static const int bits[] = {8,  4,  6,  6,  8,  8,  8,  8,  8,  8,  8,
                               16, 16, 16, 16, 32, 32, 32, 64, 64, 64, 64};
    static const char *const wrong[] = {"f32", "F8_E4M3FN", "F4_E2M1", "BF32", "C128", "I4",
                                        "U1",  "Q4",        "",        "F32 ", "F32F", "float32"};
    enum pf_dtype d = PF_DTYPE_U64;
    int bad = 0;

    ok(sizeof order / sizeof order[0] == PF_DTYPE_COUNT, "22 dtypes");
    for (int i = 0; i < PF_DTYPE_COUNT; i++) {
        bad += pf_dtype_parse(order[i], &d) != 0 || d != (enum pf_dtype)i ||
               pf_dtype_bits(d) != bits[i] || strcmp(pf_dtype_name(d), order[i]) != 0;
    }
    ok(bad == 0, "names, order and widths are those of safetensors");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        bad += pf_dtype_parse(wrong[i], &d) != PF_EINVAL;
    }
    ok(bad == 0 && d == PF_DTYPE_U64, "look-alikes are refused");
}

static void torch_names(void)
{
    enum pf_dtype d = PF_DTYPE_BOOL;
    int bad = 0;

    ok(pf_dtype_from_torch_name("bfloat16", &d) == 0 && d == PF_DTYPE_BF16, "bfloat16");
    ok(pf_dtype_from_torch_name("torch.float16", &d) == 0 && d == PF_DTYPE_F16, "torch.float16");
    ok(pf_dtype_from_torch_name("BF16", &d) == PF_EINVAL, "a safetensors name is not torch's");
    for (int i = 0; i < PF_DTYPE_COUNT; i++) {
        const char *const name = pf_dtype_torch_name((enum pf_dtype)i);
        bad += name && (pf_dtype_from_torch_name(name, &d) != 0 || d != (enum pf_dtype)i);
    }
    ok(bad == 0, "every torch name leads back");
}

static void sizes_are_checked(void)
{
    size_t bytes = 7;

    ok(pf_dtype_array_bytes(PF_DTYPE_F6_E2M3, 4, &bytes) == 0 && bytes == 3, "4 F6 are 3 bytes");
    ok(pf_dtype_array_bytes(PF_DTYPE_F4, 3, &bytes) == PF_EINVAL, "3 F4 do not fill bytes");
    ok(pf_dtype_array_bytes(PF_DTYPE_F64, INT64_MAX, &bytes) == PF_EINVAL, "overflow is refused");
    ok(pf_dtype_array_bytes(PF_DTYPE_F32, -1, &bytes) == PF_EINVAL && bytes == 3,
       "a negative count is refused and the result left alone");
}

/* The value of a pattern, from its definition: sign, exponent of `e_bits`, the rest mantissa. */
static double defined_value(uint16_t bits, int e_bits)
{
    const int m_bits = 15 - e_bits, bias = (1 << (e_bits - 1)) - 1;
    const int e = bits >> m_bits & ((1 << e_bits) - 1), m = bits & ((1 << m_bits) - 1);
    const double sign = bits >> 15 ? -1 : 1;

    if (e == (1 << e_bits) - 1) {
        return m ? NAN : sign * INFINITY;
    }
    return sign * (e ? ldexp((1 << m_bits) + m, e - bias - m_bits) : ldexp(m, 1 - bias - m_bits));
}

static bool same(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void every_pattern_widens_and_returns(int e_bits, float (*widen)(uint16_t),
                                             uint16_t (*narrow)(float), const char *name)
{
    int bad_value = 0, bad_return = 0, bad_nan = 0;

    for (int i = 0; i < 65536; i++) {
        const uint16_t bits = (uint16_t)i, back = narrow(widen(bits));
        const double want = defined_value(bits, e_bits);
        bad_value += !same((double)widen(bits), want);
        if (isnan(want)) {
            bad_nan += back != (bits | 1 << (14 - e_bits));
        } else {
            bad_return += back != bits;
        }
    }
    ok(bad_value == 0, "%s: all 65536 patterns have the defined value", name);
    ok(bad_return == 0, "%s: all come back", name);
    ok(bad_nan == 0, "%s: NaNs come back quiet with sign and payload", name);
}

/* Midpoints between neighbours, and the doubles next to them, decide how rounding behaves. */
static void rounding_at_every_midpoint(enum pf_dtype dtype, int e_bits)
{
    const uint16_t top = (uint16_t)(((1 << e_bits) - 1) << (15 - e_bits)); /* infinity */
    int bad = 0, bad_f32 = 0;

    for (uint16_t low = 0; low < top; low++) {
        const double a = defined_value(low, e_bits);
        const double b = low + 1 == top ? 2 * a - defined_value((uint16_t)(low - 1), e_bits)
                                        : defined_value((uint16_t)(low + 1), e_bits);
        const double middle = a + (b - a) / 2; /* exact */
        const double x[6] = {nextafter(middle, 0),  middle,  nextafter(middle, INFINITY),
                             -nextafter(middle, 0), -middle, -nextafter(middle, INFINITY)};
        const uint16_t up = (uint16_t)(low + 1), even = low & 1 ? up : low;
        const uint16_t want[6] = {
            low, even, up, low | 0x8000, (uint16_t)(even | 0x8000), (uint16_t)(up | 0x8000)};
        uint16_t got[6];
        pf_dtype_convert(PF_DTYPE_F64, x, dtype, got, 6);
        bad += memcmp(got, want, sizeof got) != 0;
        const float single[3] = {nextafterf((float)middle, 0), (float)middle,
                                 nextafterf((float)middle, INFINITY)};
        if ((double)single[1] == middle) { /* BF16's lowest midpoint is no normal float */
            pf_dtype_convert(PF_DTYPE_F32, single, dtype, got, 3);
            bad_f32 += memcmp(got, want, 3 * sizeof got[0]) != 0;
        }
    }
    ok(bad == 0, "%s from F64: every midpoint goes to even, its neighbours to theirs",
       pf_dtype_name(dtype));
    ok(bad_f32 == 0, "%s from F32: likewise", pf_dtype_name(dtype));
}

static void extremes(void)
{
    const double wide[] = {1e300, -1e300, 1e-300, 65519.999999, 65520.0, 0.0, -0.0};
    uint16_t f16[7], bf16[7];
    float f32[2];

    pf_dtype_convert(PF_DTYPE_F64, wide, PF_DTYPE_F16, f16, 7);
    pf_dtype_convert(PF_DTYPE_F64, wide, PF_DTYPE_BF16, bf16, 7);
    ok(f16[0] == 0x7c00 && f16[1] == 0xfc00 && bf16[0] == 0x7f80, "overflow gives infinities");
    ok(f16[2] == 0 && bf16[2] == 0 && f16[6] == 0x8000, "underflow gives zero, signs are kept");
    ok(f16[3] == 0x7bff && f16[4] == 0x7c00, "F16 overflows at 65520");
    ok(pf_bf16_from_f32(3.4e38f) == 0x7f80 && pf_bf16_from_f32(3.38e38f) == 0x7f7e,
       "BF16 rounds up to infinity only above its largest");
    pf_dtype_convert(PF_DTYPE_F64, wide, PF_DTYPE_F32, f32, 2);
    ok(isinf(f32[0]) && isinf(f32[1]) && f32[1] < 0, "F64 to F32 overflows");
}

static void arrays(void)
{
    const enum pf_dtype types[] = {PF_DTYPE_F16, PF_DTYPE_BF16, PF_DTYPE_F32, PF_DTYPE_F64};
    const float x[5] = {1.5f, -2.0f, 0.0f, 0.15625f, 96.0f}; /* exact in all */
    unsigned char buf[41] = {0}, back[41];
    float got[5];
    int bad = 0;

    for (int a = 0; a < 4; a++) {
        for (int b = 0; b < 4; b++) {
            /* one byte off: nothing may assume alignment */
            bad += pf_dtype_convert(PF_DTYPE_F32, x, types[a], buf + 1, 5) != 0;
            bad += pf_dtype_convert(types[a], buf + 1, types[b], back + 1, 5) != 0;
            bad += pf_dtype_convert(types[b], back + 1, PF_DTYPE_F32, got, 5) != 0;
            bad += memcmp(got, x, sizeof x) != 0;
        }
    }
    ok(bad == 0, "all 16 pairs, unaligned, keep exact values");
    ok(pf_dtype_convert(PF_DTYPE_I32, x, PF_DTYPE_F32, got, 1) == PF_ENOTSUP,
       "I32 to F32 is not supported: '%s'", pf_error_message());
    const uint32_t nan_bits = 0x7f812345;
    uint32_t copy = 0;
    ok(pf_dtype_convert(PF_DTYPE_F32, &nan_bits, PF_DTYPE_F32, &copy, 1) == 0 && copy == nan_bits,
       "equal dtypes are copied bit by bit");
    uint16_t in_place[2] = {0x3f80, 0xc000};
    ok(pf_dtype_convert(PF_DTYPE_BF16, in_place, PF_DTYPE_F16, in_place, 2) == 0 &&
           in_place[0] == 0x3c00 && in_place[1] == 0xc000,
       "in place between equal widths");
}

/* Largest, least normal and least positive number, and how many patterns are NaN and infinite, as
 * the specifications' tables give them. */
static void f8_numbers(void)
{
    static const struct {
        enum pf_dtype dtype;
        double largest, least_normal, least;
        int n_nan, n_inf;
    } formats[] = {
        {PF_DTYPE_F8_E5M2, 57344, 0x1p-14, 0x1p-16, 6, 2},
        {PF_DTYPE_F8_E4M3, 448, 0x1p-6, 0x1p-9, 2, 0},
        {PF_DTYPE_F8_E4M3FNUZ, 240, 0x1p-7, 0x1p-10, 1, 0},
        {PF_DTYPE_F8_E5M2FNUZ, 57344, 0x1p-15, 0x1p-17, 1, 0},
    };

    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        const enum pf_dtype dtype = formats[f].dtype;
        float largest = 0, least = INFINITY, before = -1;
        int n_nan = 0, n_inf = 0, bad = 0;
        for (int bits = 0; bits < 256; bits++) {
            const float x = pf_f32_from_f8(dtype, (uint8_t)bits);
            n_nan += isnan(x);
            n_inf += isinf(x) != 0;
            largest = isfinite(x) && x > largest ? x : largest;
            least = x > 0 && x < least ? x : least;
            if (bits < 128 && isfinite(x)) {
                const float y = pf_f32_from_f8(dtype, (uint8_t)(bits + 128));
                bad += !(x > before) || (x > 0 && y != -x);
                before = x;
            }
        }
        ok(bad == 0 && largest == formats[f].largest && least == formats[f].least &&
               n_nan == formats[f].n_nan && n_inf == formats[f].n_inf &&
               pf_dtype_least_normal(dtype) == formats[f].least_normal,
           "%s: largest %g, least %g, %d NaN", pf_dtype_name(dtype), (double)largest, (double)least,
           n_nan);
    }
    ok(pf_f32_from_f8(PF_DTYPE_F8_E4M3, 0x38) == 1 &&
           pf_f32_from_f8(PF_DTYPE_F8_E5M2, 0xbc) == -1 &&
           pf_f32_from_f8(PF_DTYPE_F8_E4M3FNUZ, 0x41) == 1.125f &&
           pf_f32_from_f8(PF_DTYPE_F8_E5M2FNUZ, 0x40) == 1,
       "one in each");
    ok(pf_f32_from_f8(PF_DTYPE_F8_E8M0, 0) == 0x1p-127f &&
           pf_f32_from_f8(PF_DTYPE_F8_E8M0, 127) == 1 &&
           pf_f32_from_f8(PF_DTYPE_F8_E8M0, 254) == 0x1p127f &&
           isnan(pf_f32_from_f8(PF_DTYPE_F8_E8M0, 255)),
       "F8_E8M0 is a power of two");
    ok(pf_dtype_is_f8(PF_DTYPE_F8_E8M0) && !pf_dtype_is_f8(PF_DTYPE_U8) &&
           !pf_dtype_is_float(PF_DTYPE_F8_E4M3),
       "which are F8");
}

int main(void)
{
    names_and_widths();
    torch_names();
    sizes_are_checked();
    every_pattern_widens_and_returns(8, pf_f32_from_bf16, pf_bf16_from_f32, "BF16");
    every_pattern_widens_and_returns(5, pf_f32_from_f16, pf_f16_from_f32, "F16");
    rounding_at_every_midpoint(PF_DTYPE_BF16, 8);
    rounding_at_every_midpoint(PF_DTYPE_F16, 5);
    extremes();
    arrays();
    f8_numbers();
    return done();
}
