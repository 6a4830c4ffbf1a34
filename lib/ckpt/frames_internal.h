/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frames_internal.h - pieces that are stored compressed, read block by block.
 *
 * The entry of such a piece holds its elements, row-major, in blocks of PF_PLANES_BLOCK_BYTES (the last
 * one shorter), each compressed for itself (pf/planes.h), one after the other; then for each block its
 * stored length as a little-endian u32. So any element is found by reading the lengths and one block.
 *
 * A struct ckpt_frames holds the lengths of one piece and one decoded block, whatever the size of the
 * piece, and is used by one thread. Source: pf-checkpoint(5).
 */
#ifndef FRAMES_INTERNAL_H
#define FRAMES_INTERNAL_H

#include "ckpt_internal.h"

#include <pf/planes.h>

struct ckpt_frames {
    struct pf_planes *planes;
    uint8_t *block, *stored;           /* decoded, and as it was read */
    const struct pf_ckpt_piece *piece; /* whose lengths are held */
    uint64_t *ends;                    /* by block: where it ends, from the start of the entry */
    size_t n_blocks, room;
    size_t number; /* of the decoded block; SIZE_MAX: none */
};

/* Read n bytes of the piece's file. ahead: they are not next in the order of the file, and will be
 * passed over again. */
typedef int ckpt_read_fn(void *context, void *dst, size_t n, uint64_t offset, bool ahead);

/* Zeroed is a good beginning: memory is taken when it is first needed. Release also after a failure. */
void ckpt_frames_release(struct ckpt_frames *f);

/* Take all the memory that does not depend on a piece, and put it into use. */
int ckpt_frames_prepare(struct ckpt_frames *f);

/* What a prepared one takes. */
size_t ckpt_frames_bytes(void);

/* The bytes of a block, decoded; good until the next call. PF_EFORMAT where they are damaged, PF_ENOTSUP
 * in a build without zstd, or what read returns. */
int ckpt_frames_block(struct ckpt_frames *f, const struct pf_ckpt *ckpt,
                      const struct pf_ckpt_tensor *tensor, const struct pf_ckpt_piece *piece,
                      size_t number, ckpt_read_fn *read, void *context, const uint8_t **bytes_out,
                      size_t *n_out);

/* Bytes of a piece's elements, and of block `number` of it; blocks that it has. */
uint64_t ckpt_piece_bytes(const struct pf_ckpt_tensor *tensor, const struct pf_ckpt_piece *piece);
size_t ckpt_n_blocks(uint64_t piece_bytes);
size_t ckpt_block_bytes(uint64_t piece_bytes, size_t number);

/* The least and the most that a compressed entry of so many bytes of elements may take. */
uint64_t ckpt_stored_least(enum pf_dtype dtype, uint64_t piece_bytes);
uint64_t ckpt_stored_bound(enum pf_dtype dtype, uint64_t piece_bytes);

#endif
