/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed files of a job: blocks encoded by threads, placed in turn, the head last. Source:
 * pf-checkpoint(5). */
#include "job_internal.h"

#include <pf/file.h>
#include <pf/mem.h>

#include <string.h>

#define LENGTH_BYTES sizeof(uint32_t)

void ckpt_encoder_release(struct ckpt_encoder *e)
{
    pf_planes_free(e->planes);
    pf_free(e->bytes);
    *e = (struct ckpt_encoder){.n = 0};
}

/* Blocks ------------------------------------------------------------------------------------------
 */

static const struct pf_ckpt_tensor *tensor_of(const struct ckpt_image *image,
                                              const struct pf_ckpt *target, size_t block)
{
    return &target->tensors[image->entries[image->blocks[block].entry].part->tensor];
}

static size_t block_bytes(const struct ckpt_image *image, size_t block)
{
    const struct ckpt_block *const b = &image->blocks[block];

    return ckpt_block_bytes(image->entries[b->entry].bytes, b->number);
}

/* The list of lengths that follows a block: of all blocks of its entry after the last of them. */
static size_t n_lengths(const struct ckpt_image *image, size_t block)
{
    const struct ckpt_block *const b = &image->blocks[block];
    const size_t n = ckpt_n_blocks(image->entries[b->entry].bytes);

    return b->number + (size_t)1 == n ? n : 0;
}

/* The most that a block takes in the file, with what follows it. */
static size_t most_stored(const struct ckpt_image *image, const struct pf_ckpt *target,
                          size_t block)
{
    return pf_planes_bound(tensor_of(image, target, block)->dtype, block_bytes(image, block)) +
           n_lengths(image, block) * LENGTH_BYTES;
}

uint64_t ckpt_coded_take(const struct ckpt_image *image, const struct pf_ckpt *target, size_t first,
                         size_t most_bytes, size_t *end_out)
{
    uint64_t bytes = 0;
    size_t stored = 0, end = first;

    while (end < image->n_blocks &&
           (end == first || stored + most_stored(image, target, end) <= most_bytes)) {
        stored += most_stored(image, target, end);
        bytes += block_bytes(image, end++);
    }
    *end_out = end;
    return bytes;
}

/* Encoding ----------------------------------------------------------------------------------------
 */

static int prepare(struct ckpt_encoder *e, const struct ckpt_image *image,
                   const struct pf_ckpt *target, size_t first, size_t end)
{
    size_t most = 0;

    for (size_t b = first; b < end; b++) {
        most += most_stored(image, target, b);
    }
    if (most > e->room) {
        pf_free(e->bytes);
        e->room = 0;
        e->bytes = pf_alloc(most);
        PF_TRY(e->bytes ? 0 : PF_ENOMEM);
        e->room = most;
    }
    return e->planes ? 0 : pf_planes_new(&e->planes);
}

int ckpt_coded_encode(struct ckpt_encoder *e, struct ckpt_image *image,
                      const struct pf_ckpt *target, const struct pf_ckpt_live *live,
                      const uint8_t *bytes, size_t first, size_t end)
{
    PF_TRY(prepare(e, image, target, first, end));
    e->n = 0;
    for (size_t i = first; i < end; i++) {
        struct ckpt_block *const b = &image->blocks[i];
        const size_t n = block_bytes(image, i);
        const uint8_t *from = bytes;
        size_t stored = 0;
        if (live) {
            from = live[image->entries[b->entry].part->live].data;
            from += (size_t)b->number * PF_PLANES_BLOCK_BYTES;
        }
        PF_TRY(pf_planes_encode(e->planes, tensor_of(image, target, i)->dtype, from, n,
                                e->bytes + e->n, &stored));
        b->stored = (uint32_t)stored;
        e->n += stored + n_lengths(image, i) * LENGTH_BYTES;
        bytes += live ? 0 : n;
    }
    return 0;
}

/* Placing -----------------------------------------------------------------------------------------
 */

/* The lengths of the n blocks up to `last`. */
static void put_lengths(const struct ckpt_image *image, size_t last, size_t n, uint8_t *to)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t length = image->blocks[last + 1 - n + i].stored;
        for (size_t k = 0; k < LENGTH_BYTES; k++, length >>= 8) {
            to[i * LENGTH_BYTES + k] = (uint8_t)(length & 0xff);
        }
    }
}

uint64_t ckpt_coded_place(struct ckpt_encoder *e, struct ckpt_output *o, struct pf_ckpt *target,
                          size_t first, size_t end)
{
    const struct ckpt_image *const image = &o->image;
    const uint64_t start = o->end;
    size_t at = 0;

    for (size_t i = first; i < end; i++) {
        const struct ckpt_block *const b = &image->blocks[i];
        const struct ckpt_part *const part = image->entries[b->entry].part;
        struct pf_ckpt_piece *const piece = &target->tensors[part->tensor].pieces[part->piece];
        const size_t n = n_lengths(image, i);
        if (b->number == 0) {
            piece->offset = start + at;
        }
        at += b->stored;
        put_lengths(image, i, n, e->bytes + at);
        at += n * LENGTH_BYTES;
        if (n > 0) {
            piece->stored_bytes = start + at - piece->offset;
        }
    }
    o->end = start + at;
    return start;
}

/* The head ----------------------------------------------------------------------------------------
 */

int ckpt_coded_finish(struct ckpt_output *o, struct pf_ckpt *target)
{
    const struct ckpt_image *const image = &o->image;
    uint8_t *const head = image->head; /* as long as it can get: what is left over are blanks */
    uint8_t *real = NULL;
    size_t n = 0;
    int err = ckpt_image_head(target, image->parts, image->n, &real, &n);

    if (!err) {
        PF_ASSERT(n <= image->head_bytes);
        uint64_t length = image->head_bytes - sizeof length;
        memset(head, ' ', image->head_bytes);
        memcpy(head, real, n);
        for (size_t k = 0; k < sizeof length; k++, length >>= 8) {
            head[k] = (uint8_t)(length & 0xff);
        }
        err = pf_pwrite_full(o->fd, head, image->head_bytes, 0, o->path);
    }
    pf_free(real);
    PF_TRY(err);
    target->files[o->file].bytes = o->end;
    return ckpt_output_hash(o, o->end);
}
