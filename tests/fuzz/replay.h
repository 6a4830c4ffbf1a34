/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.h - what a fuzz target does where there is no libFuzzer.
 *
 * Each file of tests/fuzz defines LLVMFuzzerTestOneInput and, unless PF_LIBFUZZER is defined (clang
 * -fsanitize=fuzzer -DPF_LIBFUZZER, which brings a main of its own), a main that ends in
 * `return fuzz_main(argc, argv, seeds, n_seeds)`. Given files it replays them: a corpus, or an input
 * that crashed. Without, it mutates the seeds, a fixed number of times and in the same way on every
 * machine, and goes on from there until FUZZ_SECONDS (of the environment) have passed. Inputs have blocks of exactly their size, so that a sanitizer sees every overrun. A
 * target that finds something wrong prints it and aborts.
 */
#ifndef REPLAY_H
#define REPLAY_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

struct fuzz_seed {
    const void *bytes;
    size_t n_bytes;
};

#ifndef PF_LIBFUZZER

#include "tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef FUZZ_ROUNDS
#define FUZZ_ROUNDS 100000
#endif
#define FUZZ_MAX_BYTES 8192

static inline uint32_t fuzz_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static inline void fuzz_run(const uint8_t *data, size_t n)
{
    uint8_t *exact = malloc(n ? n : 1);

    if (exact) {
        memcpy(exact, data, n);
        LLVMFuzzerTestOneInput(exact, n);
    }
    free(exact);
}

/* Numbers that arithmetic trips over. */
static inline uint64_t fuzz_number(uint64_t *state)
{
    static const uint64_t numbers[] = {
        0,
        1,
        7,
        127,
        128,
        255,
        65535,
        INT32_MAX,
        UINT64_C(1) << 31,
        UINT32_MAX,
        INT64_MAX,
        UINT64_C(1) << 63,
        UINT64_MAX,
        UINT64_MAX / 8,
        UINT64_MAX / 12 + 1,
    };

    return numbers[fuzz_random(state) % (sizeof numbers / sizeof numbers[0])];
}

/* Move the bytes from `at` on by `by` places and return the new length. */
static inline size_t fuzz_insert(uint8_t *data, size_t n, size_t at, size_t by)
{
    if (n + by > FUZZ_MAX_BYTES) {
        return n;
    }
    memmove(data + at + by, data + at, n - at);
    return n + by;
}

/* Change something somewhere; returns the new length. */
static inline size_t fuzz_mutate(uint8_t *data, size_t n, uint64_t *state)
{
    static const char marks[] = "{}[]\",:\\u0123456789eE+-.ntf \n\0\x7f\xc0\xed\xff";
    const size_t at = n ? fuzz_random(state) % n : 0, rest = n - at,
                 length = rest ? 1 + fuzz_random(state) % (rest < 24 ? rest : 24) : 0;
    char text[24];

    if (n == 0) {
        data[0] = (uint8_t)fuzz_random(state);
        return 1;
    }
    switch (fuzz_random(state) % 8) {
    case 0:
        data[at] ^= (uint8_t)(1U << fuzz_random(state) % 8);
        return n;
    case 1:
        data[at] = (uint8_t)marks[fuzz_random(state) % (sizeof marks - 1)];
        return n;
    case 2: { /* a number in binary */
        const uint64_t number = fuzz_number(state);
        memcpy(data + at, &number, rest < sizeof number ? rest : sizeof number);
        return n;
    }
    case 3: { /* a number in digits */
        const size_t n_text =
            (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)fuzz_number(state));
        const size_t longer = fuzz_insert(data, n, at, n_text);
        memcpy(data + at, text, longer > n ? n_text : 0);
        return longer;
    }
    case 4: /* drop a piece */
        memmove(data + at, data + at + length, rest - length);
        return n - length;
    case 5: { /* repeat a piece */
        const size_t longer = fuzz_insert(data, n, at, length);
        return longer;
    }
    case 6: { /* copy a piece elsewhere */
        const size_t to = fuzz_random(state) % (n - length + 1);
        memmove(data + to, data + at, length);
        return n;
    }
    default: /* cut, rarely far from the end */
        return n - fuzz_random(state) % (n < 16 ? n : 16);
    }
}

static inline void fuzz_seeds(const struct fuzz_seed *seeds, size_t n_seeds)
{
    static uint8_t data[FUZZ_MAX_BYTES];
    const char *const wanted = getenv("FUZZ_SECONDS");
    const time_t until = time(NULL) + (wanted ? strtol(wanted, NULL, 10) : 0);
    uint64_t state = 1;
    long long round = 0;

    for (; round < FUZZ_ROUNDS || time(NULL) < until; round++) {
        const struct fuzz_seed *seed = &seeds[(size_t)round % n_seeds];
        size_t n = seed->n_bytes;
        memcpy(data, seed->bytes, n);
        for (uint32_t k = fuzz_random(&state) % 4; round >= (long long)n_seeds && k < 4; k++) {
            n = fuzz_mutate(data, n, &state);
        }
        fuzz_run(data, n);
    }
    ok(true, "%lld inputs made from %zu seeds", round, n_seeds);
}

static inline void fuzz_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t n = 0;
    long length = -1;

    if (f && fseek(f, 0, SEEK_END) == 0 && (length = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0) {
        data = malloc((size_t)length + 1);
        n = data ? fread(data, 1, (size_t)length, f) : 0;
    }
    if (ok(data && n == (size_t)length, "%s", path)) {
        fuzz_run(data, n);
    }
    free(data);
    if (f) {
        fclose(f);
    }
}

static inline int fuzz_main(int argc, char **argv, const struct fuzz_seed *seeds, size_t n_seeds)
{
    for (int i = 1; i < argc; i++) {
        fuzz_file(argv[i]);
    }
    if (argc < 2) {
        fuzz_seeds(seeds, n_seeds);
    }
    return done();
}

#endif
#endif
