/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte planes: every bit of every dtype comes back, whatever it says; Gaussian bf16 reaches the entropy
 * of its exponents; what is no block is refused and writes nowhere else.
 */
#include <pf/error.h>
#include <pf/mem.h>
#include <pf/planes.h>

#include "tap.h"

#include <math.h>
#include <string.h>

#define BLOCK PF_PLANES_BLOCK_BYTES

static struct pf_planes *planes;
static uint8_t *data, *stored, *back;
static uint64_t random_state = 1;

static uint32_t draw(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}

static double draw_gaussian(void)
{
    const double u = (draw() + 1.0) / 4294967297.0, v = draw() / 4294967296.0;

    return sqrt(-2 * log(u)) * cos(2 * acos(-1.0) * v);
}

/* Encode and decode n bytes of data; the stored length, 0 if they do not come back. */
static size_t there_and_back(enum pf_dtype dtype, size_t n)
{
    size_t bytes = 0;

    memset(back, 0xa5, n + 8);
    if (pf_planes_encode(planes, dtype, data, n, stored, &bytes) != 0 ||
        bytes > pf_planes_bound(dtype, n) || bytes < pf_planes_least(dtype, n) ||
        pf_planes_decode(planes, dtype, stored, bytes, back, n) != 0 ||
        memcmp(data, back, n) != 0 || back[n] != 0xa5) {
        return 0;
    }
    return bytes;
}

/* Every dtype with every length up to some, and a few large ones, of four kinds of content. */
static void every_dtype_comes_back(void)
{
    for (int d = 0; d < PF_DTYPE_COUNT; d++) {
        const enum pf_dtype dtype = (enum pf_dtype)d;
        const size_t w = pf_dtype_bytes(dtype);
        bool good = true;
        if (w == 0) {
            ok(pf_planes_encode(planes, dtype, data, 8, stored, &(size_t){0}) == PF_EINVAL,
               "%s has no whole bytes and is refused", pf_dtype_name(dtype));
            continue;
        }
        for (int kind = 0; kind < 4; kind++) {
            for (size_t i = 0; i < BLOCK; i++) {
                data[i] = (uint8_t)(kind == 0   ? draw()
                                    : kind == 1 ? 0
                                    : kind == 2 ? i / w % 7
                                                : (draw() % 50 == 0 ? draw() : 3));
            }
            for (size_t n = 1; n < 200; n++) {
                good = good && there_and_back(dtype, n * w) > 0;
            }
            good = good && there_and_back(dtype, 4099 * w) > 0;
            good = good && there_and_back(dtype, BLOCK - w) > 0;
            good = good && there_and_back(dtype, BLOCK) > 0;
        }
        ok(good, "%s comes back, of odd lengths too", pf_dtype_name(dtype));
    }
}

/* Every bit pattern of the 16-bit types; patterns with payloads of the wide ones. */
static void every_pattern_comes_back(void)
{
    const uint32_t f32[] = {0x7f800001, 0xffc12345, 0x7fc00000, 1,          0x80000001,
                            0x007fffff, 0x80000000, 0x7f800000, 0xff800000, 0x00800000};
    const uint64_t f64[] = {0x7ff0000000000001, 0xfff8123456789abc, 1,
                            0x8000000000000001, 0x000fffffffffffff, 0x8000000000000000,
                            0x7ff0000000000000};

    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t bits = (uint16_t)i;
        memcpy(data + 2 * i, &bits, 2);
    }
    ok(there_and_back(PF_DTYPE_BF16, 131072) > 0 && there_and_back(PF_DTYPE_F16, 131072) > 0,
       "all 65,536 patterns of bf16 and of f16: NaN payloads, subnormals, -0");
    memcpy(data, f32, sizeof f32);
    ok(there_and_back(PF_DTYPE_F32, sizeof f32) > 0 && there_and_back(PF_DTYPE_C64, sizeof f32) > 0,
       "NaN payloads, subnormals and signs of f32");
    memcpy(data, f64, sizeof f64);
    ok(there_and_back(PF_DTYPE_F64, sizeof f64) > 0, "NaN payloads, subnormals and signs of f64");
}

/* Weights of rows with scales of their own. pf-bench ckpt says how fast. */
static void gaussian_weights_shrink(enum pf_dtype dtype, size_t most_percent)
{
    const size_t w = pf_dtype_bytes(dtype);
    double scale = 0;

    for (size_t i = 0; i < BLOCK / w; i++) {
        scale = i % 4096 == 0 ? 0.02 * exp(draw() / 4294967296.0) : scale;
        const float value = (float)(scale * draw_gaussian());
        (void)pf_dtype_convert(PF_DTYPE_F32, &value, dtype, data + i * w, 1);
    }
    const size_t bytes = there_and_back(dtype, BLOCK);
    ok(bytes > 0 && bytes * 100 <= BLOCK * most_percent, "Gaussian %s takes %.1f %%, %zu at most",
       pf_dtype_name(dtype), 100.0 * (double)bytes / BLOCK, most_percent);
}

static void zeros_shrink(void)
{
    memset(data, 0, BLOCK);
    const size_t bytes = there_and_back(PF_DTYPE_F32, BLOCK);
    ok(bytes > 0 && bytes < 1024, "a block of zeros takes %zu bytes", bytes);
}

/* Any byte changed, any length: an error or some bytes, never more than asked for. */
static void damage_stays_inside(void)
{
    const size_t n = 3000;
    size_t bytes = 0;
    int refused = 0;

    for (size_t i = 0; i < n / 2; i++) {
        const uint16_t bits = pf_bf16_from_f32((float)draw_gaussian());
        memcpy(data + 2 * i, &bits, 2);
    }
    ok(pf_planes_encode(planes, PF_DTYPE_BF16, data, n, stored, &bytes) == 0 && bytes < n,
       "a block to be damaged");
    for (size_t cut = 0; cut < bytes; cut++) {
        refused += pf_planes_decode(planes, PF_DTYPE_BF16, stored, cut, back, n) == PF_EFORMAT;
    }
    ok(refused == (int)bytes, "a block cut short anywhere is refused");
    ok(pf_planes_decode(planes, PF_DTYPE_BF16, stored, bytes + 1, back, n) == PF_EFORMAT,
       "a block with a byte more is refused");
    ok(pf_planes_decode(planes, PF_DTYPE_BF16, stored, bytes, back, n - 2) == PF_EFORMAT &&
           pf_planes_decode(planes, PF_DTYPE_BF16, stored, bytes, back, n + 2) == PF_EFORMAT,
       "a block of another number of elements is refused");
    for (int round = 0; round < 20000; round++) {
        const size_t at = draw() % bytes;
        const uint8_t was = stored[at];
        stored[at] ^= (uint8_t)(1U << draw() % 8);
        back[n] = 0x5a;
        (void)pf_planes_decode(planes, PF_DTYPE_BF16, stored, bytes, back, n);
        refused = refused && back[n] == 0x5a;
        stored[at] = was;
    }
    ok(refused, "20,000 bit flips write nothing beyond the block");
    ok(pf_planes_decode(planes, PF_DTYPE_BF16, stored, bytes, back, n) == 0 &&
           memcmp(back, data, n) == 0,
       "and the block itself is still good");
    ok(pf_planes_encode(planes, PF_DTYPE_BF16, data, 0, stored, &bytes) == PF_EINVAL &&
           pf_planes_encode(planes, PF_DTYPE_BF16, data, 3, stored, &bytes) == PF_EINVAL &&
           pf_planes_encode(planes, PF_DTYPE_BF16, data, BLOCK + 2, stored, &bytes) == PF_EINVAL,
       "no elements, half an element, too many are refused");
}

int main(void)
{
    if (!pf_planes_is_built()) {
        ok(pf_planes_new(&planes) == PF_ENOTSUP, "without zstd there is a clear refusal");
        skip("byte planes", "this build has no zstd");
        return done();
    }
    ok(pf_planes_new(&planes) == 0, "a codec on zstd %s", pf_planes_version());
    data = pf_alloc(BLOCK + 8);
    stored = pf_alloc(pf_planes_bound(PF_DTYPE_F64, BLOCK) + 8);
    back = pf_alloc(BLOCK + 16);
    every_dtype_comes_back();
    every_pattern_comes_back();
    gaussian_weights_shrink(PF_DTYPE_BF16, 68);
    gaussian_weights_shrink(PF_DTYPE_F32, 85);
    zeros_shrink();
    damage_stays_inside();
    pf_free(data);
    pf_free(stored);
    pf_free(back);
    pf_planes_free(planes);
    return done();
}
