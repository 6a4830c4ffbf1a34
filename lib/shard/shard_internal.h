/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of lib/shard share. */
#ifndef SHARD_INTERNAL_H
#define SHARD_INTERNAL_H

#include <pf/mesh.h>
#include <pf/parallel.h>
#include <pf/placement.h>
#include <pf/table.h>

#include <stdint.h>

/* Are the segments of a form that pf_parallel_chunks knows? 0 or PF_EUSAGE. */
int shard_segments_check(const char *segments);

/* Compile a POSIX extended regular expression into a regex_t. PF_EUSAGE without a record, and why; or
 * PF_ENOMEM. */
int shard_compile(const char *pattern, int flags, void *regex_out, char why_out[128]);

/* Set one option by its name in the text of a layout. */
int shard_parallel_set(const char *key, const char *value, struct pf_parallel *par);

/* An interval of a dimension. */
#define SHARD_MAX_SPANS 3
struct shard_span {
    int64_t lo, hi;
};

/* What coordinate t of d has of a dimension of `size` elements; returns how many intervals, of which
 * some may be empty. */
int shard_cut_spans(const struct pf_cut *cut, int64_t size, int64_t d, int64_t t,
                    struct shard_span out[SHARD_MAX_SPANS]);

/* Elements of the dimension that a rank's memory has room for, padding included: those of coordinate
 * 0, which has the most where not all have the same. */
int64_t shard_cut_memory(const struct pf_cut *cut, int64_t size, int64_t d);

/* The boxes of a row at these coordinates. */
int shard_row_boxes(const struct pf_table *table, const struct pf_tensor_row *row,
                    const int coord[PF_AXIS_COUNT], int ep_coord,
                    struct pf_box boxes_out[PF_TABLE_MAX_BOXES]);

/*
 * Rows that are cut alike. Kind 0 are the plain ones, cut over the sharding axis; kind 1 those that
 * have all experts of a layer in one tensor, cut over expert sharding; kind 2 + c the experts of ep
 * coordinate c, likewise. A rank has, in this order in memory, what kinds 0, 1 and one of the others
 * give it.
 */
enum { SHARD_PLAIN, SHARD_FUSED_EXPERTS, SHARD_EXPERTS_0 };

/* Where a row lies, the same on every rank that has it. */
struct shard_row_place {
    int chunk, stage, kind;
    int64_t bucket;
    int64_t offset; /* of its first element in the bucket */
    int owner;      /* whole_params: the slice coordinate that has its state */
    int64_t own_at; /* whole_params: its first element among those of its kind there */
};

/* A fused buffer. Lengths are multiples of PF_LAYOUT_ALIGN. */
struct shard_bucket {
    int stage, kind;
    bool tied; /* the first of its stage, and of the last stage also */
    bool frozen;
    int64_t elements, part;
    int64_t at, part_at; /* in a rank's memory among those of its kind, whole and sliced */
};

/* Elements that a rank has of a stage's buckets, by kind (that of all experts' coordinates is the
 * same): whole, and its slices of them. */
struct shard_stage {
    int64_t whole[3], parts[3];
    int64_t trained; /* of whole[SHARD_PLAIN], the leading part that is not frozen */
};

struct pf_placement {
    const struct pf_table *table;
    struct pf_parallel par;
    int n_chunks;
    int64_t starts[PF_PARALLEL_MAX_CHUNKS + 1];
    int n_slices, n_expert_slices; /* sharding and expert-sharding degrees */
    int64_t n_buckets, room;
    struct shard_bucket *buckets;
    struct shard_row_place *rows; /* [table->n_rows] */
    struct shard_stage *stages;   /* [pp] */
    int64_t *owned; /* whole_params: [pp, shard_n_lanes], elements of one kind at one coordinate */
};

/* How many coordinates the rows of a kind are sliced over. */
int shard_n_slices(const struct pf_placement *place, int kind);

/* Whole parameters are counted for each coordinate of each kind by itself: lanes of a stage. */
int64_t shard_n_lanes(const struct pf_placement *place);
int64_t shard_lane(const struct pf_placement *place, int kind, int slice);

/* Elements of the row in a rank's memory. */
int64_t shard_row_memory(const struct pf_placement *place, const struct pf_tensor_row *row);

/* The row with the storage of a tied weight, or -1. */
int64_t shard_tied_owner(const struct pf_table *table);

int64_t shard_align(int64_t elements);

/* pf_placement_local of a role that is cut over the sharding axis, or of one that is not. */
int shard_local(const struct pf_placement *place, int64_t row, bool sliced, int rank,
                struct pf_local_shard out[PF_TABLE_MAX_BOXES]);

/* Fill in buckets and the lengths of stages, after each row's chunk, stage and kind; and owners. */
int shard_fill_buckets(struct pf_placement *place);
int shard_assign_owners(struct pf_placement *place);

#endif
