/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planes.h - lossless compression of arrays of numbers: byte planes, the skewed ones by zstd.
 *
 * The bytes of the numbers of a trained tensor are of two kinds. Those of the exponent are skewed:
 * a code by frequency alone brings them to a third; those of the mantissa are noise and no method
 * shortens them. So a block of elements is taken apart into planes, one for each byte of an element,
 * and each plane is stored by whatever suits it.
 *
 * The format of a block of n elements of w bytes (w of the dtype; a C64 is two elements of 4):
 *
 *     u32 little endian, w times   the stored length of each plane, lowest byte of the elements first
 *     the planes                   one after the other, without gaps
 *
 * Floating elements (F16, BF16, F32, F64, and the halves of C64) are first rotated left by one bit,
 * which brings the sign from the top to the bottom and the exponent into the highest plane. A plane
 * of n bytes is stored as it is; a shorter one is one zstd frame (RFC 8878) of n bytes. What is
 * compressed how is the writer's choice alone. Every bit comes back: NaN payloads, subnormals, -0.
 *
 * A block holds at most PF_PLANES_BLOCK_BYTES, so memory is bounded whatever a stored one says.
 *
 *     PF_TRY(pf_planes_new(&planes));
 *     size_t n;
 *     err = pf_planes_encode(planes, PF_DTYPE_BF16, data, bytes, out, &n);
 *     err = err ? err : pf_planes_decode(planes, PF_DTYPE_BF16, out, n, data, bytes);
 *     pf_planes_free(planes);
 *
 * A struct pf_planes is used by one thread at a time. All functions are local.
 * Source: ZipNN (arXiv 2411.05239) for the idea; pf-checkpoint(5) describes the same format.
 */
#ifndef PF_PLANES_H
#define PF_PLANES_H

#include <pf/dtype.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The most bytes of a block before compression; a multiple of every element. */
#define PF_PLANES_BLOCK_BYTES ((size_t)1 << 20)

/* Is zstd in this build, and which? */
bool pf_planes_is_built(void);
const char *pf_planes_version(void);

/* PF_ENOTSUP in a build without zstd, PF_ENOMEM. */
struct pf_planes;
int pf_planes_new(struct pf_planes **planes_out);
void pf_planes_free(struct pf_planes *planes); /* NULL is fine */

/* What it holds besides its own allocations, which libzstd makes: at most about this many bytes. */
#define PF_PLANES_LIBRARY_BYTES ((size_t)1 << 20)

/* The least and the most that n_bytes > 0 bytes of a dtype take in a block. dtype has whole bytes. */
size_t pf_planes_least(enum pf_dtype dtype, size_t n_bytes);
size_t pf_planes_bound(enum pf_dtype dtype, size_t n_bytes);

/* Encode 0 < n_bytes <= PF_PLANES_BLOCK_BYTES bytes, whole elements, into dst, which has room for
 * pf_planes_bound. The same input gives the same output with one version of libzstd. PF_ENOMEM. */
int pf_planes_encode(struct pf_planes *planes, enum pf_dtype dtype, const void *src, size_t n_bytes,
                     void *dst, size_t *bytes_out);

/* The reverse. PF_EFORMAT without a record unless src is the block of exactly n_bytes bytes: the
 * caller knows the file and tensor to name. PF_ENOMEM. dst is undefined then. */
int pf_planes_decode(struct pf_planes *planes, enum pf_dtype dtype, const void *src, size_t n_src,
                     void *dst, size_t n_bytes);

#endif
