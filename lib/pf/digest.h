/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest.h - XXH3-128 (seed 0): fast, not cryptographic; it finds damage, not malice.
 *
 * The 16 bytes are the canonical (big-endian) form, so the hex string equals what `xxhsum -H128`
 * prints. Source: xxHash specification, doc/xxhash_spec.md, section XXH3 128 bits.
 *
 * All functions are local and safe to call from any thread (one state by one thread at a time).
 */
#ifndef PF_DIGEST_H
#define PF_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pf_digest {
    uint8_t bytes[16];
};

#define PF_DIGEST_HEX_BYTES 33 /* 32 digits and a NUL */

struct pf_digest pf_digest_of(const void *data, size_t n);

/* Streaming: any split of the data gives the same digest. */
struct pf_digest_state;
int pf_digest_new(struct pf_digest_state **state_out); /* PF_ENOMEM */
void pf_digest_reset(struct pf_digest_state *state);
void pf_digest_update(struct pf_digest_state *state, const void *data, size_t n);
struct pf_digest pf_digest_result(const struct pf_digest_state *state); /* may go on after it */
void pf_digest_free(struct pf_digest_state *state);                     /* NULL is fine */

/* The digest of a whole file. PF_EIO. */
int pf_digest_file(const char *path, struct pf_digest *digest_out);

/* 32 lower-case hexadecimal digits; returns hex. */
const char *pf_digest_hex(const struct pf_digest *digest, char hex[PF_DIGEST_HEX_BYTES]);

/* The reverse; PF_EINVAL without a record if it is not 32 hexadecimal digits. */
int pf_digest_parse(const char *hex, struct pf_digest *digest_out);

bool pf_digest_equal(const struct pf_digest *a, const struct pf_digest *b);

/* 64 bits of a string: for hash tables and for seeds that a name decides. XXH3-64, seed 0. */
uint64_t pf_hash_string(const char *text);
uint64_t pf_hash_bytes(const void *data, size_t n);

#endif
