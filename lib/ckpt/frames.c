/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed pieces, read. Source: pf-checkpoint(5). */
#include "frames_internal.h"

#include <pf/mem.h>

#include <string.h>

#define LENGTH_BYTES sizeof(uint32_t)

/* Lengths -----------------------------------------------------------------------------------------
 */

uint64_t ckpt_piece_bytes(const struct pf_ckpt_tensor *tensor, const struct pf_ckpt_piece *piece)
{
    return (uint64_t)(piece->range_hi - piece->range_lo) * pf_dtype_bytes(tensor->dtype);
}

size_t ckpt_n_blocks(uint64_t piece_bytes)
{
    return (size_t)((piece_bytes + PF_PLANES_BLOCK_BYTES - 1) / PF_PLANES_BLOCK_BYTES);
}

size_t ckpt_block_bytes(uint64_t piece_bytes, size_t number)
{
    const uint64_t left = piece_bytes - (uint64_t)number * PF_PLANES_BLOCK_BYTES;

    return left < PF_PLANES_BLOCK_BYTES ? (size_t)left : PF_PLANES_BLOCK_BYTES;
}

uint64_t ckpt_stored_least(enum pf_dtype dtype, uint64_t piece_bytes)
{
    return (uint64_t)ckpt_n_blocks(piece_bytes) * (pf_planes_least(dtype, 1) + LENGTH_BYTES);
}

uint64_t ckpt_stored_bound(enum pf_dtype dtype, uint64_t piece_bytes)
{
    const uint64_t over = pf_planes_bound(dtype, 0) + LENGTH_BYTES;

    return (uint64_t)ckpt_n_blocks(piece_bytes) * over + piece_bytes;
}

/* Memory ------------------------------------------------------------------------------------------
 */

static size_t stored_room(void)
{
    return pf_planes_bound(PF_DTYPE_U64, PF_PLANES_BLOCK_BYTES);
}

size_t ckpt_frames_bytes(void)
{
    return 2 * PF_PLANES_BLOCK_BYTES + stored_room() + PF_PLANES_LIBRARY_BYTES;
}

int ckpt_frames_prepare(struct ckpt_frames *f)
{
    if (f->planes) {
        return 0;
    }
    f->number = SIZE_MAX;
    f->block = f->block ? f->block : pf_alloc(PF_PLANES_BLOCK_BYTES);
    f->stored = f->stored ? f->stored : pf_alloc(stored_room());
    if (!f->block || !f->stored) {
        return PF_ENOMEM;
    }
    memset(f->block, 0, PF_PLANES_BLOCK_BYTES);
    memset(f->stored, 0, stored_room());
    return pf_planes_new(&f->planes);
}

void ckpt_frames_release(struct ckpt_frames *f)
{
    pf_planes_free(f->planes);
    pf_free(f->block);
    pf_free(f->stored);
    pf_free(f->ends);
    *f = (struct ckpt_frames){.number = SIZE_MAX};
}

/* Reading -----------------------------------------------------------------------------------------
 */

static int damaged(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
                   const struct pf_ckpt_piece *piece, const char *what)
{
    return pf_fail(PF_EFORMAT, "%s of '%s' (%s) in '%s/%s' is damaged", what, tensor->name,
                   pf_role_name(tensor->role), ckpt->dir, ckpt->files[piece->file].name);
}

static int make_room(struct ckpt_frames *f, size_t n_blocks)
{
    if (n_blocks > f->room) {
        uint64_t *const grown = pf_realloc_array(f->ends, n_blocks, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        f->ends = grown;
        f->room = n_blocks;
    }
    return 0;
}

static uint32_t get_u32(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

/* Lengths of blocks first..first+n, which are in f->stored. */
static bool add_ends(struct ckpt_frames *f, enum pf_dtype dtype, uint64_t bytes, size_t first,
                     size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t raw = ckpt_block_bytes(bytes, first + i);
        const uint32_t length = get_u32(f->stored + i * LENGTH_BYTES);
        if (length < pf_planes_least(dtype, raw) || length > pf_planes_bound(dtype, raw)) {
            return false;
        }
        f->ends[first + i] = (first + i > 0 ? f->ends[first + i - 1] : 0) + length;
    }
    return true;
}

/* The lengths at the end of the entry, which must add up to the rest of it. */
static int read_lengths(struct ckpt_frames *f, const struct pf_ckpt *ckpt,
                        const struct pf_ckpt_tensor *tensor, const struct pf_ckpt_piece *piece,
                        ckpt_read_fn *read, void *context)
{
    const uint64_t bytes = ckpt_piece_bytes(tensor, piece);
    const size_t n = ckpt_n_blocks(bytes), at_once = PF_PLANES_BLOCK_BYTES / LENGTH_BYTES;
    const uint64_t at = piece->offset + piece->stored_bytes - n * LENGTH_BYTES;

    f->piece = NULL;
    f->number = SIZE_MAX;
    PF_TRY(make_room(f, n));
    for (size_t i = 0; i < n; i += at_once) {
        const size_t m = n - i < at_once ? n - i : at_once;
        PF_TRY(read(context, f->stored, m * LENGTH_BYTES, at + i * LENGTH_BYTES, true));
        if (!add_ends(f, tensor->dtype, bytes, i, m)) {
            return damaged(ckpt, tensor, piece, "the list of blocks");
        }
    }
    if (f->ends[n - 1] != piece->stored_bytes - n * LENGTH_BYTES) {
        return damaged(ckpt, tensor, piece, "the list of blocks");
    }
    f->n_blocks = n;
    f->piece = piece;
    return 0;
}

int ckpt_frames_block(struct ckpt_frames *f, const struct pf_ckpt *ckpt,
                      const struct pf_ckpt_tensor *tensor, const struct pf_ckpt_piece *piece,
                      size_t number, ckpt_read_fn *read, void *context, const uint8_t **bytes_out,
                      size_t *n_out)
{
    const size_t n = ckpt_block_bytes(ckpt_piece_bytes(tensor, piece), number);

    PF_TRY(ckpt_frames_prepare(f));
    if (f->piece != piece) {
        PF_TRY(read_lengths(f, ckpt, tensor, piece, read, context));
    }
    if (f->number != number) {
        const uint64_t at = number > 0 ? f->ends[number - 1] : 0;
        const size_t n_stored = (size_t)(f->ends[number] - at);
        f->number = SIZE_MAX;
        PF_TRY(read(context, f->stored, n_stored, piece->offset + at, false));
        const int err =
            pf_planes_decode(f->planes, tensor->dtype, f->stored, n_stored, f->block, n);
        if (err != 0) {
            return err == PF_EFORMAT ? damaged(ckpt, tensor, piece, "a block") : err;
        }
        f->number = number;
    }
    *bytes_out = f->block;
    *n_out = n;
    return 0;
}
