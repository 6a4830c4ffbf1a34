/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placement.h - which elements of which tensor lie on which rank: the tensor table, the mesh and the
 * parallel options put together. Loading, saving and re-laying checkpoints, and whoever allocates,
 * read it off here.
 *
 *     struct pf_placement *place;
 *     PF_TRY(pf_table_new(&spec, &mesh, &table));
 *     PF_TRY(pf_placement_new(table, &par, &place));      par and mesh from pf_parallel_resolve
 *     for (int64_t row = 0; row < table->n_rows; row++) {
 *             struct pf_shard_list all = {0};
 *             PF_TRY(pf_placement_shards(place, row, PF_ROLE_MOMENT1, &all));
 *             ... all.items[i].box, .range_lo, .range_hi, of whom .holders have a copy each
 *     }
 *     pf_placement_free(place);                           the table outlives it
 *
 * What a rank holds of a row:
 *   - nothing, where its pipeline stage has no chunk with the row. A tied weight is held by the
 *     stage of the embedding and that of the head; its row is the embedding's, the tied row itself
 *     has no storage and no shards.
 *   - of an expert's row nothing, where the expert is another ep coordinate's: of E experts, ep
 *     coordinate c has [c E / ep, (c + 1) E / ep). Experts are not cut over tp.
 *   - of other rows the boxes that the cuts give for its tp coordinate (pf/table.h), the same on all
 *     dp and cp coordinates.
 *   - of these boxes, laid one behind the other in memory, row-major each, only a slice, where the
 *     role is cut over the sharding axis: masters, moments and ema from stage 1 on, weights in
 *     stage 3. Expert rows are cut over the expert-sharding axis instead (pf/mesh.h), which has one
 *     coordinate where ep = sharding * tp.
 *
 * How slices are made. Rows of a chunk stand in fused buffers (buckets) in table order, each row
 * from a multiple of PF_LAYOUT_ALIGN elements; a bucket holds rows of one kind (plain, experts of
 * one ep coordinate, frozen of either) and is closed when the next row would take it beyond the
 * bucket size, and in stage 3 at the end of each layer. In memory the buckets of a kind stand in this
 * order, those of frozen rows behind the others. A tied weight has a bucket of its own, so
 * that both of its stages cut it in the same places. A bucket of n elements is cut into equal parts
 * of n / d elements, rounded up to PF_LAYOUT_ALIGN, one for each of the d coordinates. With
 * whole_params there are no slices: rows go, the tied one and then the largest first, each to the
 * coordinate that has the fewest elements so far (ties: table order, lowest coordinate), counted for
 * each stage, and for each ep coordinate, by itself.
 * Rows cut as PF_CUT_VOCAB have rows of padding in memory, the same size on every rank; padding is
 * part of buckets, and never of a shard.
 *
 * All functions are local, thread-safe on a const placement.
 * Source: sharding of whole parameters and of fused buffers as PaddlePaddle's
 * DygraphShardingOptimizer (V1, V2) describes it.
 */
#ifndef PF_PLACEMENT_H
#define PF_PLACEMENT_H

#include <pf/box.h>
#include <pf/parallel.h>
#include <pf/role.h>
#include <pf/table.h>

#include <stdbool.h>
#include <stdint.h>

/* Every row begins at a multiple of so many elements of a buffer, so that offsets (and the bits of
 * libraries that care) do not depend on neighbours. */
#define PF_LAYOUT_ALIGN 16

/*
 * Ranks as a product of coordinates: every dp and cp coordinate, one or two pipeline stages, an
 * interval of the plane (tp, or ep for experts) and one of the slices (sharding, or expert
 * sharding).
 */
struct pf_rank_set {
    bool experts;
    int n_stages;
    int stage[2]; /* ascending */
    int plane_lo, plane_hi;
    int slice_lo, slice_hi;
};

/* How many ranks; the i-th of them, each once, the lowest for i = 0; is a rank one of them? */
int64_t pf_rank_set_count(const struct pf_mesh *mesh, const struct pf_rank_set *set);
int pf_rank_set_at(const struct pf_mesh *mesh, const struct pf_rank_set *set, int64_t i);
bool pf_rank_set_has(const struct pf_mesh *mesh, const struct pf_rank_set *set, int rank);

/* A distinct piece of a tensor: a box, or of its elements in row-major order those from range_lo up
 * to range_hi. Never empty. The whole box has the range 0, pf_box_count. */
struct pf_shard {
    struct pf_box box;
    int64_t range_lo, range_hi;
    struct pf_rank_set holders;
};

/* Grows as needed; reuse it from row to row. Zero it before, pf_shard_list_release it after use. */
struct pf_shard_list {
    struct pf_shard *items;
    int64_t n, room;
};
void pf_shard_list_release(struct pf_shard_list *list);

struct pf_placement;

/*
 * Place a table's rows. par and table->mesh come from one pf_parallel_resolve, which is asked again:
 * PF_EINVAL where they do not fit each other or the model, or where a cut of a row (a table that was
 * edited) gives ranks parts of different sizes. PF_ENOMEM. *par is copied, the table is not.
 */
int pf_placement_new(const struct pf_table *table, const struct pf_parallel *par,
                     struct pf_placement **place_out);
void pf_placement_free(struct pf_placement *place);

/*
 * All distinct pieces of a row in a role, each once, with the ranks that hold it: for every rank, the
 * pieces whose holders it is among are what it has. They tile the tensor exactly. A tied row has
 * none. Roles BUFFER and SCALAR lie whole on every rank that has the row's stage. Time proportional
 * to the pieces, whatever the number of ranks. list->items is overwritten. Returns 0 or PF_ENOMEM.
 */
int pf_placement_shards(const struct pf_placement *place, int64_t row, enum pf_role role,
                        struct pf_shard_list *list);

/*
 * What one rank has of a row in a role, in the order of its memory: a subset of the above, with the
 * place of each piece's first element in the rank's buffer of that role, in elements. out has room
 * for PF_TABLE_MAX_BOXES. Returns how many.
 */
struct pf_local_shard {
    struct pf_box box;
    int64_t range_lo, range_hi;
    int64_t at;
};
int pf_placement_local(const struct pf_placement *place, int64_t row, enum pf_role role, int rank,
                       struct pf_local_shard out[PF_TABLE_MAX_BOXES]);

/* Elements of a rank's buffer of a role, padding included. */
int64_t pf_placement_buffer(const struct pf_placement *place, enum pf_role role, int rank);

/* Is the role cut over the sharding axis? */
bool pf_placement_is_sliced(const struct pf_placement *place, enum pf_role role);

/* The chunk that a row is in, counted in the order of the model; of a tied row that of the head. */
int pf_placement_chunk(const struct pf_placement *place, int64_t row);

/* The table, options and first layers (pf_parallel_chunks) it was made with. */
const struct pf_table *pf_placement_table(const struct pf_placement *place);
const struct pf_parallel *pf_placement_parallel(const struct pf_placement *place);
const int64_t *pf_placement_starts(const struct pf_placement *place);

#endif
