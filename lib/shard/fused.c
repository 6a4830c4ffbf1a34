/* SPDX-License-Identifier: Apache-2.0 */
/* Where rows lie in a rank's fused buffers. */
#include <pf/table.h>

#include <pf/error.h>
#include <pf/mem.h>

static int64_t align_up(int64_t at)
{
    return (at + PF_LAYOUT_ALIGN - 1) / PF_LAYOUT_ALIGN * PF_LAYOUT_ALIGN;
}

static int64_t local_count(const struct pf_table *table, const struct pf_tensor_row *row, int rank)
{
    struct pf_box boxes[PF_TABLE_MAX_BOXES];
    const int n = pf_table_local_boxes(table, row, rank, boxes);
    int64_t count = 0;

    for (int i = 0; i < n; i++) {
        count += pf_box_count(&boxes[i]);
    }
    return count;
}

static void place_params(const struct pf_table *table, int rank, struct pf_layout *layout)
{
    int64_t at = 0;

    for (int64_t i = 0; i < table->n_rows; i++) {
        layout->count[i] = local_count(table, &table->rows[i], rank);
        if (table->rows[i].tied_to < 0) {
            layout->param_at[i] = at;
            at = align_up(at + layout->count[i]);
        }
    }
    for (int64_t i = 0; i < table->n_rows; i++) {
        if (table->rows[i].tied_to >= 0) {
            layout->param_at[i] = layout->param_at[table->rows[i].tied_to];
        }
    }
    layout->param_elements = at;
}

/* Place the gradients of the rows that are tied, or of those that are not; returns the end. */
static int64_t place_grads(const struct pf_table *table, bool tied, int64_t at,
                           struct pf_layout *layout)
{
    for (int64_t i = 0; i < table->n_rows; i++) {
        const struct pf_tensor_row *const row = &table->rows[i];
        if ((row->tied_to >= 0) != tied) {
            continue;
        }
        layout->grad_at[i] = row->frozen ? -1 : at;
        at = row->frozen ? at : align_up(at + layout->count[i]);
    }
    return at;
}

int pf_layout_new(const struct pf_table *table, int rank, struct pf_layout **layout_out)
{
    const size_t n = (size_t)table->n_rows;
    struct pf_layout *const layout = pf_alloc(sizeof *layout);

    if (!layout) {
        return PF_ENOMEM;
    }
    layout->n_rows = table->n_rows;
    layout->param_at = pf_calloc_array(n, sizeof *layout->param_at);
    layout->grad_at = pf_calloc_array(n, sizeof *layout->grad_at);
    layout->count = pf_calloc_array(n, sizeof *layout->count);
    if (!layout->param_at || !layout->grad_at || !layout->count) {
        pf_layout_free(layout);
        return PF_ENOMEM;
    }
    place_params(table, rank, layout);
    layout->grad_reduced_elements = place_grads(table, false, 0, layout);
    layout->grad_elements = place_grads(table, true, layout->grad_reduced_elements, layout);
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
