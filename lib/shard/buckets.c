/* SPDX-License-Identifier: Apache-2.0 */
/* Fused buffers: which row lies where in which. */
#include <pf/placement.h>

#include <pf/error.h>
#include <pf/mem.h>

#include "shard_internal.h"

int64_t shard_row_memory(const struct pf_placement *place, const struct pf_tensor_row *row)
{
    const struct pf_mesh *const mesh = &place->table->mesh;
    int64_t count = 1;

    for (int d = 0; d < row->n_dims; d++) {
        const struct pf_cut *const cut = &row->cut[d];
        count *= shard_cut_memory(cut, row->shape[d],
                                  cut->view == PF_CUT_EXPERTS ? mesh->ep : mesh->degree[cut->axis]);
    }
    return count;
}

int64_t shard_align(int64_t elements)
{
    return (elements + PF_LAYOUT_ALIGN - 1) / PF_LAYOUT_ALIGN * PF_LAYOUT_ALIGN;
}

/* The bucket now being filled of one kind, of rows that are frozen or that are not. */
struct filling {
    int64_t bucket; /* -1: none yet */
    int chunk, layer;
};

static int new_bucket(struct pf_placement *place, const struct shard_bucket *empty,
                      int64_t *index_out)
{
    if (place->n_buckets == place->room) {
        const int64_t room = place->room > 0 ? 2 * place->room : 64;
        struct shard_bucket *const grown =
            pf_realloc_array(place->buckets, (size_t)room, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        place->buckets = grown;
        place->room = room;
    }
    place->buckets[place->n_buckets] = *empty;
    *index_out = place->n_buckets++;
    return 0;
}

/* Put a row behind what its kind's bucket has, or into a new one where that is full or another's. */
static int put_row(struct pf_placement *place, int64_t i, struct filling *filling)
{
    const struct pf_tensor_row *const row = &place->table->rows[i];
    struct shard_row_place *const at = &place->rows[i];
    const int64_t n = shard_align(shard_row_memory(place, row));
    const int64_t most = place->par.bucket_bytes / 4;
    bool fits = filling->bucket >= 0 && filling->chunk == at->chunk &&
                (place->par.stage < 3 || filling->layer == row->layer);

    fits = fits && place->buckets[filling->bucket].elements + n <= most;
    if (!fits) {
        filling->chunk = at->chunk;
        filling->layer = row->layer;
        const struct shard_bucket empty = {
            .stage = at->stage, .kind = at->kind, .frozen = row->frozen};
        PF_TRY(new_bucket(place, &empty, &filling->bucket));
    }
    struct shard_bucket *const bucket = &place->buckets[filling->bucket];
    at->bucket = filling->bucket;
    at->offset = bucket->elements;
    bucket->elements += n;
    return 0;
}

int64_t shard_tied_owner(const struct pf_table *table)
{
    for (int64_t i = table->n_rows - 1; i >= 0; i--) {
        if (table->rows[i].tied_to >= 0) {
            return table->rows[i].tied_to;
        }
    }
    return -1;
}

static int put_rows(struct pf_placement *place, struct filling *filling)
{
    const struct pf_table *const table = place->table;
    const int64_t tied = shard_tied_owner(table);

    if (tied >= 0) {
        struct filling alone = {.bucket = -1};
        PF_TRY(put_row(place, tied, &alone));
        place->buckets[alone.bucket].tied = true;
    }
    for (int64_t i = 0; i < table->n_rows; i++) {
        if (i != tied && table->rows[i].tied_to < 0) {
            PF_TRY(put_row(place, i, &filling[2 * place->rows[i].kind + table->rows[i].frozen]));
        }
    }
    return 0;
}

/* A bucket lies behind what the kind already has; so do its slices. */
static void place_bucket(struct pf_placement *place, struct shard_bucket *bucket, int64_t *at,
                         int64_t *part_at)
{
    const int slices = shard_n_slices(place, bucket->kind);

    bucket->part = shard_align((bucket->elements + slices - 1) / slices);
    bucket->at = *at;
    bucket->part_at = *part_at;
    *at += bucket->elements;
    *part_at += bucket->part;
}

static void place_tied(struct pf_placement *place)
{
    struct shard_bucket *const tied = &place->buckets[0];
    struct shard_stage *const first = &place->stages[tied->stage];
    struct shard_stage *const last =
        &place->stages[pf_parallel_stage_of(&place->par, place->n_chunks - 1)];

    place_bucket(place, tied, &first->whole[SHARD_PLAIN], &first->parts[SHARD_PLAIN]);
    if (last != first) {
        last->whole[SHARD_PLAIN] += tied->elements;
        last->parts[SHARD_PLAIN] += tied->part;
    }
}

/* Those of one stage that are frozen, or that are not. ends: [2, kinds]. */
static void place_stage_part(struct pf_placement *place, int stage, bool frozen, int64_t first,
                             int kinds, int64_t *ends)
{
    for (int64_t b = first; b < place->n_buckets; b++) {
        struct shard_bucket *const bucket = &place->buckets[b];
        if (bucket->stage == stage && bucket->frozen == frozen) {
            place_bucket(place, bucket, &ends[bucket->kind], &ends[kinds + bucket->kind]);
        }
    }
}

/* Those of one stage. ends: [2, ep + 2], scratch. */
static void place_stage(struct pf_placement *place, int stage, int64_t first, int64_t *ends)
{
    struct shard_stage *const s = &place->stages[stage];
    const int kinds = SHARD_EXPERTS_0 + place->table->mesh.ep;

    for (int k = 0; k < kinds; k++) {
        ends[k] = k == SHARD_PLAIN ? s->whole[k] : 0;
        ends[kinds + k] = k == SHARD_PLAIN ? s->parts[k] : 0;
    }
    place_stage_part(place, stage, false, first, kinds, ends);
    s->trained = ends[SHARD_PLAIN];
    place_stage_part(place, stage, true, first, kinds, ends);
    for (int k = 0; k <= SHARD_EXPERTS_0; k++) {
        s->whole[k] = ends[k];
        s->parts[k] = ends[kinds + k];
    }
}

static int place_buckets(struct pf_placement *place)
{
    const bool tied = place->n_buckets > 0 && place->buckets[0].tied;
    int64_t *const ends =
        pf_calloc_array(2 * (size_t)(SHARD_EXPERTS_0 + place->table->mesh.ep), sizeof *ends);

    if (!ends) {
        return PF_ENOMEM;
    }
    if (tied) {
        place_tied(place);
    }
    for (int stage = 0; stage < place->par.degree[PF_AXIS_PP]; stage++) {
        place_stage(place, stage, tied, ends);
    }
    pf_free(ends);
    return 0;
}

int shard_fill_buckets(struct pf_placement *place)
{
    const size_t n = 2 * (size_t)(SHARD_EXPERTS_0 + place->table->mesh.ep);
    struct filling *const filling = pf_calloc_array(n, sizeof *filling);

    if (!filling) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        filling[i].bucket = -1;
    }
    const int err = put_rows(place, filling);
    pf_free(filling);
    return err ? err : place_buckets(place);
}
