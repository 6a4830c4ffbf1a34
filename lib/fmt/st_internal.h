/* SPDX-License-Identifier: Apache-2.0 */
/* st_internal.h - what the parts of the safetensors reader share. */
#ifndef PF_FMT_ST_INTERNAL_H
#define PF_FMT_ST_INTERNAL_H

#include <pf/safetensors.h>

struct pf_st {
    char *path;
    int fd; /* -1: a header without a file */
    uint64_t file_bytes, data_offset;
    struct pf_st_tensor *tensors; /* as in the header, then sorted by (begin, end) */
    size_t n_tensors;
    struct pf_st_metadata *metadata; /* as in the header, then sorted by key, repeats dropped */
    size_t n_metadata;
    char *strings;    /* all names, keys and values */
    uint64_t *shapes; /* all shapes */
    uint32_t *slots;  /* open-addressed table of tensor number + 1; 0 is a free slot */
    uint64_t slot_mask;
    uint64_t hash_key[2];
};

/* Turn what the grammar gave into what the handle promises: sizes, cover, unique names, order. */
int pf_st_check(struct pf_st *st);

/* Bytes of a tensor. Returns NULL, or why there is no such number. */
const char *pf_st_tensor_size(enum pf_dtype dtype, int n_dims, const uint64_t *shape,
                              uint64_t *bytes_out);

/* Byte order of two texts; a prefix comes first. */
int pf_st_compare_text(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

#endif
