/* SPDX-License-Identifier: Apache-2.0 */
/* recorded.h - what recorder.so writes: for each call this head, then the path, the other path, and the
 * data. Paths begin with a slash and are counted from RECORD_ROOT. */
#ifndef RECORDED_H
#define RECORDED_H

#include <stdint.h>

enum recorded_call {
    RECORDED_CREATE,
    RECORDED_WRITE,
    RECORDED_TRUNCATE, /* to the length `offset` */
    RECORDED_SYNC,     /* of a file or a directory */
    RECORDED_RENAME,
    RECORDED_EXCHANGE,
    RECORDED_LINK,
    RECORDED_UNLINK, /* of a file or an empty directory */
    RECORDED_MKDIR,
};

struct recorded_head {
    uint32_t call, path_bytes, other_bytes, unused;
    uint64_t offset, data_bytes;
};

#endif
