/* SPDX-License-Identifier: Apache-2.0 */
/* Sharding by whole parameters: who has the state of which row. */
#include <pf/placement.h>

#include <pf/error.h>
#include <pf/mem.h>

#include "shard_internal.h"

#include <stdlib.h>

int64_t shard_n_lanes(const struct pf_placement *place)
{
    return place->n_slices + (int64_t)(place->table->mesh.ep + 1) * place->n_expert_slices;
}

int64_t shard_lane(const struct pf_placement *place, int kind, int slice)
{
    return kind == SHARD_PLAIN
               ? slice
               : place->n_slices + (int64_t)(kind - 1) * place->n_expert_slices + slice;
}

/* A row to be given away. */
struct item {
    int64_t row, elements;
    int stage, kind;
    bool tied;
};

static int compare_items(const void *a, const void *b)
{
    const struct item *const x = a, *const y = b;

    if (x->stage != y->stage) {
        return x->stage < y->stage ? -1 : 1;
    }
    if (x->kind != y->kind) {
        return x->kind < y->kind ? -1 : 1;
    }
    if (x->tied != y->tied) {
        return x->tied ? -1 : 1;
    }
    if (x->elements != y->elements) {
        return x->elements > y->elements ? -1 : 1;
    }
    return x->row < y->row ? -1 : x->row > y->row;
}

/* Coordinates as a heap, the one with the fewest elements (the lowest of equals) at the top. */
struct load {
    int64_t elements;
    int slice;
};

static bool is_lighter(const struct load *a, const struct load *b)
{
    return a->elements != b->elements ? a->elements < b->elements : a->slice < b->slice;
}

static void sift_down(struct load *heap, int n, int at)
{
    for (;;) {
        const int left = 2 * at + 1, right = left + 1;
        int least = at;
        if (left < n && is_lighter(&heap[left], &heap[least])) {
            least = left;
        }
        if (right < n && is_lighter(&heap[right], &heap[least])) {
            least = right;
        }
        if (least == at) {
            return;
        }
        const struct load moved = heap[at];
        heap[at] = heap[least];
        heap[least] = moved;
        at = least;
    }
}

/* Give the items of one stage and kind away. `before`: what coordinate 0 has of a tied weight. */
static void share_out(struct pf_placement *place, const struct item *items, int64_t n,
                      int64_t before, struct load *heap)
{
    const int slices = shard_n_slices(place, items[0].kind);

    for (int k = 0; k < slices; k++) {
        heap[k] = (struct load){k == 0 ? before : 0, k};
    }
    sift_down(heap, slices, 0);
    for (int64_t i = 0; i < n; i++) {
        place->rows[items[i].row].owner = heap[0].slice;
        heap[0].elements += items[i].elements;
        sift_down(heap, slices, 0);
    }
}

static int64_t list_items(const struct pf_placement *place, struct item *items)
{
    const struct pf_table *const table = place->table;
    const int64_t tied = shard_tied_owner(table);
    int64_t n = 0;

    for (int64_t i = 0; i < table->n_rows; i++) {
        const struct shard_row_place *const at = &place->rows[i];
        if (table->rows[i].tied_to < 0) {
            items[n++] = (struct item){i, shard_align(shard_row_memory(place, &table->rows[i])),
                                       at->stage, at->kind, i == tied};
        }
    }
    qsort(items, (size_t)n, sizeof *items, compare_items);
    return n;
}

/* The stage that also has the tied weight, or -1. */
static int second_stage(const struct pf_placement *place, int64_t tied)
{
    const int last = pf_parallel_stage_of(&place->par, place->n_chunks - 1);

    return tied >= 0 && last != place->rows[tied].stage ? last : -1;
}

/* After owners are known: rows lie in table order at each. */
static void place_owned(struct pf_placement *place)
{
    const struct pf_table *const table = place->table;
    const int64_t lanes = shard_n_lanes(place), tied = shard_tied_owner(table);
    const int second = second_stage(place, tied);

    if (second >= 0) {
        place->owned[second * lanes] = shard_align(shard_row_memory(place, &table->rows[tied]));
    }
    for (int64_t i = 0; i < table->n_rows; i++) {
        struct shard_row_place *const at = &place->rows[i];
        if (table->rows[i].tied_to < 0) {
            int64_t *const end =
                &place->owned[at->stage * lanes + shard_lane(place, at->kind, at->owner)];
            at->own_at = *end;
            *end += shard_align(shard_row_memory(place, &table->rows[i]));
        }
    }
}

int shard_assign_owners(struct pf_placement *place)
{
    const struct pf_table *const table = place->table;
    const int64_t tied = shard_tied_owner(table);
    const int second = second_stage(place, tied);
    const int most =
        place->n_slices > place->n_expert_slices ? place->n_slices : place->n_expert_slices;
    struct item *const items = pf_calloc_array((size_t)table->n_rows, sizeof *items);
    struct load *const heap = pf_calloc_array((size_t)most, sizeof *heap);

    place->owned = pf_calloc_array(
        (size_t)place->par.degree[PF_AXIS_PP] * (size_t)shard_n_lanes(place), sizeof(int64_t));
    const int err = items && heap && place->owned ? 0 : PF_ENOMEM;
    const int64_t n = err ? 0 : list_items(place, items);
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1;
             end < n && items[end].stage == items[i].stage && items[end].kind == items[i].kind;
             end++) {
        }
        const bool again = items[i].stage == second && items[i].kind == SHARD_PLAIN;
        share_out(place, items + i, end - i,
                  again ? shard_align(shard_row_memory(place, &table->rows[tied])) : 0, heap);
    }
    if (!err) {
        place_owned(place);
    }
    pf_free(items);
    pf_free(heap);
    return err;
}
