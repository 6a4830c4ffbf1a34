/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a stored block. The first two say the dtype and the number of elements. What decodes
 * encodes again to a block that decodes to the same.
 */
#define FUZZ_ROUNDS 60000

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/planes.h>

#include "replay.h"

#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)256 * 8 * 8)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static struct pf_planes *planes;
    static uint8_t again[MOST_BYTES], stored[MOST_BYTES + 64];
    size_t bytes = 0;

    if (n_bytes < 2 || (!planes && pf_planes_new(&planes) != 0)) {
        return 0;
    }
    const enum pf_dtype dtype = (enum pf_dtype)(data[0] % PF_DTYPE_COUNT);
    const size_t n = (size_t)data[1] * 8 * pf_dtype_bytes(dtype);
    uint8_t *const out = malloc(n ? n : 1); /* of exactly its size, for sanitizers */
    if (out && pf_planes_decode(planes, dtype, data + 2, n_bytes - 2, out, n) == 0) {
        if (pf_planes_encode(planes, dtype, out, n, stored, &bytes) != 0 ||
            pf_planes_decode(planes, dtype, stored, bytes, again, n) != 0 ||
            memcmp(out, again, n) != 0) {
            fprintf(stderr, "a block that decodes does not encode to the same\n");
            abort();
        }
    }
    free(out);
    return 0;
}

#ifndef PF_LIBFUZZER

/* A block of 8 * eights elements: of noise, or with skewed planes. */
static struct fuzz_seed seed_of(struct pf_planes *planes, enum pf_dtype dtype, uint8_t eights,
                                bool skewed)
{
    const size_t n = (size_t)eights * 8 * pf_dtype_bytes(dtype);
    uint8_t *const raw = pf_alloc(n), *const seed = pf_alloc(2 + pf_planes_bound(dtype, n));
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++) {
        raw[i] = (uint8_t)(skewed ? i * i % 97 / 30 : i * i * 131 >> 3);
    }
    seed[0] = (uint8_t)dtype;
    seed[1] = eights;
    (void)pf_planes_encode(planes, dtype, raw, n, seed + 2, &bytes);
    pf_free(raw);
    return (struct fuzz_seed){seed, 2 + bytes};
}

int main(int argc, char **argv)
{
    struct pf_planes *planes;

    if (pf_planes_new(&planes) != 0) {
        skip("stored blocks", "this build has no zstd");
        return done();
    }
    const struct fuzz_seed seeds[] = {
        seed_of(planes, PF_DTYPE_BF16, 40, true),  seed_of(planes, PF_DTYPE_F32, 60, true),
        seed_of(planes, PF_DTYPE_I64, 20, false),  seed_of(planes, PF_DTYPE_U8, 200, true),
        seed_of(planes, PF_DTYPE_C64, 100, false),
    };
    const int status = fuzz_main(argc, argv, seeds, sizeof seeds / sizeof seeds[0]);
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        pf_free((void *)(uintptr_t)seeds[i].bytes);
    }
    pf_planes_free(planes);
    return status;
}

#endif
