/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_internal.h - the copy: from where elements are stored to where they are wanted.
 *
 * Wants are gathered into a batch, each one cut into transfers: strided copies out of one file. The
 * batch is then done in the order of the files and of the bytes in them, neighbours read together, so
 * that a file is read forwards and once whatever the order of the wants. One struct ckpt_io is used by
 * one thread; it keeps few files open and one buffer, and its memory does not depend on the size of
 * the tensors.
 *
 *     struct ckpt_io io;
 *     PF_TRY(ckpt_io_init(&io, ckpt, 1 << 20, 8));
 *     err = ckpt_io_want(&io, tensor, &want);       as often as is convenient, after a proof
 *     err = err ? err : ckpt_io_run(&io);           now want.dst is filled
 *     ckpt_io_release(&io);
 *
 * `dry` set after init makes ckpt_io_run count what it would read, and touch neither files nor dst.
 */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include "frames_internal.h"

#define CKPT_IO_MAX_OPEN 16

/* Elements that follow each other on both sides, repeated over loops, the innermost first. */
struct ckpt_loop {
    int64_t n;
    int64_t from_step, to_step; /* bytes */
};

struct ckpt_transfer {
    int file;
    /* Of a compressed piece; then offset is counted in its elements' bytes. NULL: it is plain. */
    const struct pf_ckpt_tensor *tensor;
    const struct pf_ckpt_piece *piece;
    enum pf_dtype from, to;
    uint64_t offset, end; /* in the file: of the first byte, past the last one */
    uint8_t *dst;
    int64_t run;   /* elements */
    bool through;  /* gaps between runs are so small that reading over them is cheaper */
    uint64_t upto; /* how far reading on is worth it: end, or that of neighbours after it */
    int n_loops;
    struct ckpt_loop loops[PF_BOX_MAX_DIMS];
};

struct ckpt_open_file {
    int file, fd;
    char *path;
    uint64_t used; /* by io->clock: the longest unused is closed for another */
};

struct ckpt_io {
    const struct pf_ckpt *ckpt;
    struct ckpt_open_file open[CKPT_IO_MAX_OPEN];
    int max_open;
    const struct ckpt_open_file *now;
    uint64_t clock;
    uint8_t *buffer; /* a window of `now` */
    size_t buffer_bytes;
    uint64_t window_lo, window_hi;
    struct ckpt_frames frames; /* of compressed pieces */
    struct ckpt_transfer *transfers;
    size_t n, room;
    bool dry;
    uint64_t bytes_read, n_reads;
};

int ckpt_io_init(struct ckpt_io *io, const struct pf_ckpt *ckpt, size_t buffer_bytes, int max_open);
void ckpt_io_release(struct ckpt_io *io);

/* Add to the batch. The want is copied, want->dst is kept. */
int ckpt_io_want(struct ckpt_io *io, const struct pf_ckpt_tensor *tensor,
                 const struct ckpt_want *want);

/* Do the batch, which is empty afterwards. */
int ckpt_io_run(struct ckpt_io *io);

/* Give the want those of its elements that `bytes` holds: the elements of a stored piece (box and
 * range of `piece`), dense, of the tensor's dtype. */
int ckpt_scatter(const struct pf_ckpt_tensor *tensor, const struct ckpt_want *piece,
                 const void *bytes, const struct ckpt_want *want);

#endif
