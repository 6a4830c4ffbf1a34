/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job_internal.h - files of a plan written, from live memory or from a checkpoint.
 *
 * A file that will be is an image: its head, and its pieces in the order of their offsets. Images are
 * cut into windows at multiples of window_bytes from their start. Threads take windows in order; each
 * fills its own from the source, waits until the window before it is hashed, hashes it, and writes it.
 * So one file is read, hashed and written by many threads, its digest comes along, and memory is
 * threads times (window + read buffer) whatever the size of a tensor.
 *
 * Of a file whose pieces are compressed the image is over their elements' bytes, and a window is some
 * blocks. They are compressed by the threads, put one after the other in their turn, and when the last
 * one is there the head is written, the file is read once more, and that is hashed.
 *
 *     struct ckpt_job job = {.plan = &plan, .dir = staging, .live = live, ...};
 *     PF_TRY(ckpt_job_run(&job));       plan.ckpt has lengths and digests of the files, offsets of pieces
 */
#ifndef JOB_INTERNAL_H
#define JOB_INTERNAL_H

#include "frames_internal.h"
#include "plan_internal.h"

#include <pf/digest.h>

#define CKPT_WINDOW_ALIGN ((size_t)4096)
#define CKPT_PREFIX_BYTES ((uint64_t)128 << 20)

/* A piece in its file. */
struct ckpt_entry {
    const struct ckpt_part *part;
    uint64_t offset, bytes;
};

struct ckpt_image {
    uint8_t *head;
    size_t head_bytes;
    uint64_t bytes;                /* of the whole file */
    const struct ckpt_part *parts; /* [n], as they were given */
    struct ckpt_entry *entries;    /* by offset */
    size_t n;
    /* Of a compressed file: head_bytes is kept free for the head, `bytes` is the sum of those of the
     * entries, whose offsets are counted from there; blocks stand in the order of the entries. */
    bool coded;
    struct ckpt_block *blocks;
    size_t n_blocks;
};

/* A block of a compressed file. */
struct ckpt_block {
    uint32_t entry, number; /* of the block in its entry */
    uint32_t stored;        /* bytes, when it is compressed */
};

struct ckpt_counts {
    uint64_t bytes_read, n_reads;       /* of the source's files */
    uint64_t bytes_written, bytes_kept; /* kept: of files that an earlier run began */
    int64_t n_files, n_pieces;
};

/* The beginning of a file that is written and synced; bytes 0: nothing. */
struct ckpt_prefix {
    uint64_t bytes;
    char digest[33];
};

struct ckpt_job {
    struct ckpt_plan *plan; /* its parts are sorted by file (ckpt_plan_by_file) */
    const char *dir;
    /* The source: live state, or a checkpoint with, by tensor of the plan, the tensor to read. */
    const struct pf_ckpt_live *live;
    const struct pf_ckpt *source;
    const struct pf_ckpt_tensor **from;
    int threads;         /* 1: the caller's own */
    size_t window_bytes; /* a multiple of CKPT_WINDOW_ALIGN */
    size_t buffer_bytes; /* of reads from the source */
    int max_open;        /* files of the source that a thread keeps open */
    bool dry;            /* count; touch neither the source nor dir */
    /* By file of the plan, or NULL: how far an earlier run came. What is there is hashed, and gone on
     * with if it is as it was; else the file is made new. */
    const struct ckpt_prefix *prefixes;
    /* All may be NULL. `moved`: bytes written so far, now and then, by the caller's thread. `done`: a
     * file is whole and synced, its length and digest are in the plan; `begun`: so much of one is
     * synced, every CKPT_PREFIX_BYTES. Both by any thread, one at a time. */
    void (*moved)(void *context, uint64_t bytes);
    int (*done)(void *context, int file);
    int (*begun)(void *context, int file, const struct ckpt_prefix *prefix);
    void *context;
    struct ckpt_counts counts; /* the result, also after a failure */
};

/*
 * Write the files that the plan's parts belong to, those that have a digest already left out. Each is
 * made new (one that is there is an error), synced, and closed. An error ends all threads and is the
 * caller's record; what was written stays.
 */
int ckpt_job_run(struct ckpt_job *job);

/* Files being written -----------------------------------------------------------------------------
 */

struct ckpt_output {
    int file, fd;
    char *path;
    struct ckpt_image image;
    struct pf_digest_state *digest;
    uint64_t taken, hashed, written; /* bytes; the first two only grow in order */
    bool direct;                     /* past the page cache */
    size_t next_block;               /* of a compressed file: the first that nobody has taken */
    uint64_t end;                    /* of one: where the next block goes */
    uint64_t next_mark;        /* the digest of so much or a little more is kept for `begun` */
    struct ckpt_prefix marked; /* until all of it is written */
};

/* Open the file of parts[0..n), all that belong to it, new or where an earlier run came to; in a dry run
 * only its image is made. Counts it. */
int ckpt_output_open(struct ckpt_job *job, const struct ckpt_part *parts, size_t n, bool direct,
                     struct ckpt_output **output_out);

/* All its bytes are written: sync it, close it, put its digest into the plan. */
int ckpt_output_finish(struct ckpt_job *job, struct ckpt_output *o);
void ckpt_output_free(struct ckpt_output *o); /* NULL is fine */

/* Compressed files --------------------------------------------------------------------------------
 */

/* What a thread needs to compress, and what it has compressed. Zeroed is a good beginning. */
struct ckpt_encoder {
    struct pf_planes *planes;
    uint8_t *bytes;
    size_t n, room;
};

void ckpt_encoder_release(struct ckpt_encoder *e);

/* Blocks first up to *end_out, at least one, that take about most_bytes or less, before or after; tells
 * how many bytes of elements that is. */
uint64_t ckpt_coded_take(const struct ckpt_image *image, const struct pf_ckpt *target, size_t first,
                         size_t most_bytes, size_t *end_out);

/* Compress blocks first..end of a file. Their elements are in live state, or (live NULL) at `bytes`, the
 * first block's first. */
int ckpt_coded_encode(struct ckpt_encoder *e, struct ckpt_image *image,
                      const struct pf_ckpt *target, const struct pf_ckpt_live *live,
                      const uint8_t *bytes, size_t first, size_t end);

/* In their turn: where they go in the file, which is where the result says, and into the plan. */
uint64_t ckpt_coded_place(struct ckpt_encoder *e, struct ckpt_output *o, struct pf_ckpt *target,
                          size_t first, size_t end);

/* All blocks are written: the head, and the digest of all. */
int ckpt_coded_finish(struct ckpt_output *o, struct pf_ckpt *target);

/* Hash the first n bytes of a file into o->digest. */
int ckpt_output_hash(const struct ckpt_output *o, uint64_t n);

/* The file that a part belongs to. */
int ckpt_part_file(const struct pf_ckpt *ckpt, const struct ckpt_part *part);

/* Bytes of the plan's parts in files that are not done yet. */
uint64_t ckpt_job_bytes(const struct ckpt_plan *plan);

/* Past the page cache ------------------------------------------------------------------------------
 */

/* What writes less is not worth a probe, and goes by way of the cache. */
#define CKPT_DIRECT_LEAST ((uint64_t)256 << 20)

/* Is writing so many bytes to dir faster past the page cache? Tried out with a file of the name ".probe-"
 * and `name`, which is another for each process, once for a device; PF_DIRECT_IO=0 or 1 says it
 * instead. */
bool ckpt_direct_is_better(const char *dir, const char *name, uint64_t bytes);

/* As pf_open, past the cache if *direct_inout; it becomes false where the filesystem has no such
 * thing. */
int ckpt_direct_open(const char *path, int flags, bool *direct_inout, int *fd_out);

/* Write n bytes from a buffer that is aligned to CKPT_WINDOW_ALIGN, and so long that n can be rounded up to
 * it, at an offset that is a multiple of it: the file may become so much longer, to be cut off. */
int ckpt_direct_write(int fd, uint8_t *bytes, size_t n, uint64_t offset, const char *path);

/* Sort the parts by file, as jobs need them; parts of one file keep their order. PF_ENOMEM. */
int ckpt_plan_by_file(struct ckpt_plan *plan);

/* The image of one file: parts[0..n) are all that belong to it. Sets the length of the file and the
 * offsets of the pieces in plan->ckpt. Release also after a failure. */
int ckpt_image_make(struct pf_ckpt *target, int file, const struct ckpt_part *parts, size_t n,
                    struct ckpt_image *image_out);

/* The head of a compressed file, with the lengths in the plan or, where they are 0, the most they can
 * be. *head_out is freed with pf_free. */
int ckpt_image_head(const struct pf_ckpt *target, const struct ckpt_part *parts, size_t n,
                    uint8_t **head_out, size_t *bytes_out);
void ckpt_image_release(struct ckpt_image *image);

/* The first entry that ends after an offset of the file; image->n if none does. */
size_t ckpt_image_find(const struct ckpt_image *image, uint64_t offset);

#endif
