/* SPDX-License-Identifier: Apache-2.0 */
/* Where rows lie in a rank's fused buffers. */
#include <pf/layout.h>

#include <pf/error.h>
#include <pf/mem.h>

#include "shard_internal.h"

static void place_rows(const struct pf_placement *place, int rank, struct pf_layout *layout)
{
    const struct pf_table *const table = place->table;
    struct pf_local_shard parts[PF_TABLE_MAX_BOXES];

    for (int64_t i = 0; i < table->n_rows; i++) {
        const int n = shard_local(place, i, false, rank, parts);
        layout->param_at[i] = n > 0 ? parts[0].at : -1;
        layout->grad_at[i] = n > 0 && !table->rows[i].frozen ? parts[0].at : -1;
        for (int k = 0; k < n; k++) {
            layout->count[i] += pf_box_count(&parts[k].box);
        }
    }
}

/* The use of a tied weight at the head, on the last stage; its accumulator, if it needs one, begins
 * at `at`. Returns where that ends. */
static int64_t place_tied(const struct pf_placement *place, int64_t row, int rank, int64_t at,
                          struct pf_layout *layout)
{
    const int owner = place->table->rows[row].tied_to;
    const int stage = place->rows[row].stage, embed_stage = place->rows[owner].stage;
    int coord[PF_AXIS_COUNT];

    pf_mesh_coords(&place->table->mesh, rank, coord);
    if (coord[PF_AXIS_PP] != stage) {
        return at;
    }
    layout->param_at[row] = layout->param_at[owner];
    layout->count[row] = layout->count[owner];
    if (stage != embed_stage || layout->grad_at[owner] < 0) {
        layout->grad_at[row] = layout->grad_at[owner];
        return at;
    }
    layout->grad_at[row] = at;
    return at + shard_align(layout->count[row]);
}

static void fill(const struct pf_placement *place, int rank, struct pf_layout *layout)
{
    int coord[PF_AXIS_COUNT];

    pf_mesh_coords(&place->table->mesh, rank, coord);
    const struct shard_stage *const stage = &place->stages[coord[PF_AXIS_PP]];
    for (int k = SHARD_PLAIN; k <= SHARD_EXPERTS_0; k++) {
        layout->param_elements += stage->whole[k];
    }
    layout->grad_reduced_elements = layout->param_elements == stage->whole[SHARD_PLAIN]
                                        ? stage->trained
                                        : layout->param_elements;
    layout->grad_elements = layout->grad_reduced_elements;
    place_rows(place, rank, layout);
    for (int64_t i = 0; i < layout->n_rows; i++) {
        if (place->table->rows[i].tied_to >= 0) {
            layout->grad_elements = place_tied(place, i, rank, layout->grad_elements, layout);
        }
    }
}

int pf_layout_new(const struct pf_placement *place, int rank, struct pf_layout **layout_out)
{
    const size_t n = (size_t)place->table->n_rows;
    struct pf_layout *const layout = pf_alloc(sizeof *layout);

    if (!layout) {
        return PF_ENOMEM;
    }
    *layout = (struct pf_layout){.rank = rank, .n_rows = place->table->n_rows};
    layout->param_at = pf_calloc_array(n, sizeof *layout->param_at);
    layout->grad_at = pf_calloc_array(n, sizeof *layout->grad_at);
    layout->count = pf_calloc_array(n, sizeof *layout->count);
    if (!layout->param_at || !layout->grad_at || !layout->count) {
        pf_layout_free(layout);
        return PF_ENOMEM;
    }
    fill(place, rank, layout);
    *layout_out = layout;
    return 0;
}

void pf_layout_free(struct pf_layout *layout)
{
    if (layout) {
        pf_free(layout->param_at);
        pf_free(layout->grad_at);
        pf_free(layout->count);
        pf_free(layout);
    }
}
