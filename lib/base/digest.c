/* SPDX-License-Identifier: Apache-2.0 */
/* The one file that knows xxHash. */
#include <pf/digest.h>

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>

#include <xxhash.h>

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

struct pf_digest_state {
    XXH3_state_t *xxh; /* opaque, made by the library: its size may change between versions */
};

static struct pf_digest canonical(XXH128_hash_t hash)
{
    XXH128_canonical_t bytes;
    struct pf_digest digest;

    XXH128_canonicalFromHash(&bytes, hash);
    memcpy(digest.bytes, bytes.digest, sizeof digest.bytes);
    return digest;
}

struct pf_digest pf_digest_of(const void *data, size_t n)
{
    return canonical(XXH3_128bits(data, n));
}

int pf_digest_new(struct pf_digest_state **state_out)
{
    struct pf_digest_state *const state = pf_alloc(sizeof *state);

    if (!state) {
        return PF_ENOMEM;
    }
    state->xxh = XXH3_createState();
    if (!state->xxh) {
        pf_free(state);
        return pf_fail(PF_ENOMEM, "out of memory: cannot make a digest");
    }
    pf_digest_reset(state);
    *state_out = state;
    return 0;
}

void pf_digest_reset(struct pf_digest_state *state)
{
    XXH3_128bits_reset(state->xxh);
}

void pf_digest_update(struct pf_digest_state *state, const void *data, size_t n)
{
    if (n > 0) {
        XXH3_128bits_update(state->xxh, data, n);
    }
}

struct pf_digest pf_digest_result(const struct pf_digest_state *state)
{
    return canonical(XXH3_128bits_digest(state->xxh));
}

void pf_digest_free(struct pf_digest_state *state)
{
    if (state) {
        XXH3_freeState(state->xxh);
        pf_free(state);
    }
}

#define CHUNK_BYTES ((size_t)1 << 18)

static int update_from_fd(struct pf_digest_state *state, int fd, char *chunk, const char *path)
{
    for (;;) {
        size_t n;
        PF_TRY(pf_read_some(fd, chunk, CHUNK_BYTES, path, &n));
        if (n == 0) {
            return 0;
        }
        pf_digest_update(state, chunk, n);
    }
}

int pf_digest_file(const char *path, struct pf_digest *digest_out)
{
    struct pf_digest_state *state = NULL;
    char *chunk = NULL;
    int fd = -1, err = 0;

    PF_TRY_GOTO(pf_open(path, O_RDONLY, &fd), out);
    PF_TRY_GOTO(pf_digest_new(&state), out);
    chunk = pf_alloc(CHUNK_BYTES);
    if (!chunk) {
        err = PF_ENOMEM;
        goto out;
    }
    PF_TRY_GOTO(update_from_fd(state, fd, chunk, path), out);
    *digest_out = pf_digest_result(state);
out:
    pf_free(chunk);
    pf_digest_free(state);
    (void)pf_close(fd, NULL);
    return err;
}

static const char digits[] = "0123456789abcdef";

const char *pf_digest_hex(const struct pf_digest *digest, char hex[PF_DIGEST_HEX_BYTES])
{
    for (size_t i = 0; i < sizeof digest->bytes; i++) {
        hex[2 * i] = digits[digest->bytes[i] >> 4];
        hex[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    hex[2 * sizeof digest->bytes] = '\0';
    return hex;
}

/* 0..15, or -1. Upper case is read too: other tools write it. */
static int digit_value(char c)
{
    const char lower = c >= 'A' && c <= 'F' ? (char)(c - 'A' + 'a') : c;
    const char *const found = lower ? strchr(digits, lower) : NULL;

    return found ? (int)(found - digits) : -1;
}

int pf_digest_parse(const char *hex, struct pf_digest *digest_out)
{
    struct pf_digest digest;

    if (strlen(hex) != 2 * sizeof digest.bytes) {
        return PF_EINVAL;
    }
    for (size_t i = 0; i < sizeof digest.bytes; i++) {
        const int high = digit_value(hex[2 * i]), low = digit_value(hex[2 * i + 1]);
        if (high < 0 || low < 0) {
            return PF_EINVAL;
        }
        digest.bytes[i] = (uint8_t)(high << 4 | low);
    }
    *digest_out = digest;
    return 0;
}

bool pf_digest_equal(const struct pf_digest *a, const struct pf_digest *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

uint64_t pf_hash_string(const char *text)
{
    return pf_hash_bytes(text, strlen(text));
}

uint64_t pf_hash_bytes(const void *data, size_t n)
{
    return XXH3_64bits(data, n);
}
