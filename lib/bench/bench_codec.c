/* SPDX-License-Identifier: Apache-2.0 */
/* Compression of weights as checkpoints have it: bf16, Gaussian, each row of another size; one thread. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/rng.h>

#include <math.h>
#include <string.h>

#define ROW 4096
#define RAW_BYTES ((size_t)32 << 20)

static int fill(uint16_t *to, size_t n)
{
    float *const row = pf_alloc(ROW * sizeof *row);

    if (!row) {
        return PF_ENOMEM;
    }
    for (size_t r = 0; r < n / ROW; r++) {
        const double scale = 0.02 * exp2((double)(r % 17) / 8 - 1);
        pf_rng_fill_normal_f32(1, r, 0, 0, scale, row, ROW);
        (void)pf_dtype_convert(PF_DTYPE_F32, row, PF_DTYPE_BF16, to + r * ROW, ROW);
    }
    pf_free(row);
    return 0;
}

int bench_codec_open(struct bench_codec *c)
{
    const size_t n = RAW_BYTES / PF_PLANES_BLOCK_BYTES;

    c->room = pf_planes_bound(PF_DTYPE_BF16, PF_PLANES_BLOCK_BYTES);
    PF_TRY(pf_planes_new(&c->planes));
    c->raw_bytes = RAW_BYTES;
    c->raw = pf_alloc(RAW_BYTES);
    c->back = pf_alloc(RAW_BYTES);
    c->coded = pf_alloc(n * c->room);
    c->lengths = pf_calloc_array(n, sizeof *c->lengths);
    if (!c->raw || !c->back || !c->coded || !c->lengths) {
        return PF_ENOMEM;
    }
    PF_TRY(fill((uint16_t *)(void *)c->raw, RAW_BYTES / sizeof(uint16_t)));
    return bench_codec_encode(c);
}

int bench_codec_encode(struct bench_codec *c)
{
    c->coded_bytes = 0;
    for (size_t i = 0; i < c->raw_bytes / PF_PLANES_BLOCK_BYTES; i++) {
        PF_TRY(pf_planes_encode(c->planes, PF_DTYPE_BF16, c->raw + i * PF_PLANES_BLOCK_BYTES,
                                PF_PLANES_BLOCK_BYTES, c->coded + i * c->room, &c->lengths[i]));
        c->coded_bytes += c->lengths[i];
    }
    return 0;
}

int bench_codec_decode(struct bench_codec *c)
{
    for (size_t i = 0; i < c->raw_bytes / PF_PLANES_BLOCK_BYTES; i++) {
        PF_TRY(pf_planes_decode(c->planes, PF_DTYPE_BF16, c->coded + i * c->room, c->lengths[i],
                                c->back + i * PF_PLANES_BLOCK_BYTES, PF_PLANES_BLOCK_BYTES));
    }
    return 0;
}

bool bench_codec_is_right(struct bench_codec *c)
{
    memset(c->back, 0, c->raw_bytes);
    return bench_codec_decode(c) == 0 && memcmp(c->back, c->raw, c->raw_bytes) == 0;
}

void bench_codec_close(struct bench_codec *c)
{
    pf_planes_free(c->planes);
    pf_free(c->raw);
    pf_free(c->back);
    pf_free(c->coded);
    pf_free(c->lengths);
}
