/* SPDX-License-Identifier: Apache-2.0 */
/* zstd_frame.h - the one door to libzstd: single frames of known length, from memory to memory. */
#ifndef ZSTD_FRAME_H
#define ZSTD_FRAME_H

#include <stdbool.h>
#include <stddef.h>

bool zstd_is_built(void);
const char *zstd_version(void); /* of the library, "not in this build" without it */

/* How hard to look for repetitions. */
enum zstd_effort {
    EFFORT_HUFFMAN, /* not at all: bytes are only given codes by how often they come */
    EFFORT_REPEATS, /* for what is mostly one byte */
};

struct zstd_frames; /* contexts for both directions; used by one thread at a time */

/* PF_ENOTSUP in a build without libzstd, PF_ENOMEM. */
int zstd_frames_new(struct zstd_frames **frames_out);
void zstd_frames_free(struct zstd_frames *frames); /* NULL is fine */

/* One frame; *bytes_out 0: it would not fit into room bytes. */
int zstd_frame_encode(struct zstd_frames *frames, enum zstd_effort effort, const void *src,
                      size_t n, void *dst, size_t room, size_t *bytes_out);

/* PF_EFORMAT without a record unless src is one frame that holds exactly n bytes. Allocates nothing for
 * what it says; PF_ENOMEM when there is none for the decoder. */
int zstd_frame_decode(struct zstd_frames *frames, const void *src, size_t n_src, void *dst,
                      size_t n);

#endif
