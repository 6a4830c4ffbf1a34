/* SPDX-License-Identifier: Apache-2.0 */
/* The views: which intervals of a dimension each coordinate of an axis has. */
#include <pf/table.h>

#include <pf/error.h>

#include "shard_internal.h"

/* Block t of n units cut into d parts. */
static struct shard_span block_of(int64_t n, int64_t d, int64_t t)
{
    return (struct shard_span){t * n / d, (t + 1) * n / d};
}

static struct shard_span kv_heads_of(int64_t n, int64_t d, int64_t t)
{
    if (d > n) {
        return (struct shard_span){t * n / d, t * n / d + 1};
    }
    return block_of(n, d, t);
}

static int scale_spans(struct shard_span *spans, int n, int64_t unit)
{
    for (int i = 0; i < n; i++) {
        spans[i].lo *= unit;
        spans[i].hi *= unit;
    }
    return n;
}

static int qkv_spans(const struct pf_cut *cut, int64_t n_heads, int64_t d, int64_t t,
                     struct shard_span out[SHARD_MAX_SPANS])
{
    const int64_t q = cut->n_q_heads, kv = (n_heads - q) / 2;
    const struct shard_span key = kv_heads_of(kv, d, t);

    out[0] = block_of(q, d, t);
    out[1] = (struct shard_span){q + key.lo, q + key.hi};
    out[2] = (struct shard_span){q + kv + key.lo, q + kv + key.hi};
    return 3;
}

/* Groups of r query heads with their key and value head. More ranks than groups: those of one group
 * share its query heads and have its key and value, which are neighbours, each. */
static int group_spans(const struct pf_cut *cut, int64_t n_heads, int64_t d, int64_t t,
                       struct shard_span out[SHARD_MAX_SPANS])
{
    const int64_t groups = (n_heads - cut->n_q_heads) / 2, r = cut->n_q_heads / groups;
    const int64_t g = t * groups / d, first = g * (r + 2);

    if (d <= groups) {
        out[0] = block_of(groups, d, t);
        return scale_spans(out, 1, r + 2);
    }
    const int64_t rank_0 = (g * d + groups - 1) / groups;
    const int64_t rank_1 = ((g + 1) * d + groups - 1) / groups;
    const struct shard_span q = block_of(r, rank_1 - rank_0, t - rank_0);
    out[0] = (struct shard_span){first + q.lo, first + q.hi};
    out[1] = (struct shard_span){first + r, first + r + 2};
    return 2;
}

static int gate_up_spans(int64_t n, int64_t d, int64_t t, struct shard_span out[SHARD_MAX_SPANS])
{
    out[0] = block_of(n / 2, d, t);
    out[1] = (struct shard_span){n / 2 + out[0].lo, n / 2 + out[0].hi};
    return 2;
}

static struct shard_span vocabulary_of(int64_t size, int64_t d, int64_t t)
{
    const int64_t c = (size + d - 1) / d, lo = t * c, hi = lo + c;

    return (struct shard_span){lo < size ? lo : size, hi < size ? hi : size};
}

int shard_cut_spans(const struct pf_cut *cut, int64_t size, int64_t d, int64_t t,
                    struct shard_span out[SHARD_MAX_SPANS])
{
    const int64_t n = cut->unit > 0 ? size / cut->unit : size;

    /* What is not cut is one box, also where a view would take it apart: it lies as in the file. */
    switch (d > 1 ? cut->view : PF_CUT_NONE) {
    case PF_CUT_NONE:
        break;
    case PF_CUT_BLOCK:
    case PF_CUT_EXPERTS:
        out[0] = block_of(n, d, t);
        return scale_spans(out, 1, cut->unit);
    case PF_CUT_KV_HEADS:
        out[0] = kv_heads_of(n, d, t);
        return scale_spans(out, 1, cut->unit);
    case PF_CUT_QKV:
        return scale_spans(out, qkv_spans(cut, n, d, t, out), cut->unit);
    case PF_CUT_QKV_GROUPS:
        return scale_spans(out, group_spans(cut, n, d, t, out), cut->unit);
    case PF_CUT_GATE_UP:
        return scale_spans(out, gate_up_spans(n, d, t, out), cut->unit);
    case PF_CUT_VOCAB:
        out[0] = vocabulary_of(size, d, t);
        return 1;
    }
    out[0] = (struct shard_span){0, size};
    return 1;
}

int64_t shard_cut_memory(const struct pf_cut *cut, int64_t size, int64_t d)
{
    struct shard_span spans[SHARD_MAX_SPANS];
    const int n = shard_cut_spans(cut, size, d, 0, spans);
    int64_t sum = 0;

    for (int i = 0; i < n; i++) {
        sum += spans[i].hi - spans[i].lo;
    }
    return sum;
}

/* Replace each of the n boxes by its parts inside the spans of dimension d; empty ones vanish. At
 * most one dimension of a row has more than one span, so PF_TABLE_MAX_BOXES are enough. */
static int cut_boxes(struct pf_box *boxes, int n, int d, const struct shard_span *spans,
                     int n_spans)
{
    struct pf_box cut[PF_TABLE_MAX_BOXES];
    int n_cut = 0;

    for (int i = 0; i < n; i++) {
        for (int s = 0; s < n_spans; s++) {
            if (spans[s].lo < spans[s].hi) {
                PF_ASSERT(n_cut < PF_TABLE_MAX_BOXES);
                cut[n_cut] = boxes[i];
                cut[n_cut].lo[d] = spans[s].lo;
                cut[n_cut++].hi[d] = spans[s].hi;
            }
        }
    }
    for (int i = 0; i < n_cut; i++) {
        boxes[i] = cut[i];
    }
    return n_cut;
}

int shard_row_boxes(const struct pf_table *table, const struct pf_tensor_row *row,
                    const int coord[PF_AXIS_COUNT], int ep_coord,
                    struct pf_box boxes_out[PF_TABLE_MAX_BOXES])
{
    int n = 1;

    boxes_out[0] = (struct pf_box){.n_dims = row->n_dims};
    for (int d = 0; d < row->n_dims; d++) {
        const struct pf_cut *const cut = &row->cut[d];
        const bool by_ep = cut->view == PF_CUT_EXPERTS;
        struct shard_span spans[SHARD_MAX_SPANS];
        const int n_spans = shard_cut_spans(cut, row->shape[d],
                                            by_ep ? table->mesh.ep : table->mesh.degree[cut->axis],
                                            by_ep ? ep_coord : coord[cut->axis], spans);
        n = cut_boxes(boxes_out, n, d, spans, n_spans);
    }
    return n;
}

int pf_table_local_boxes(const struct pf_table *table, const struct pf_tensor_row *row, int rank,
                         struct pf_box boxes_out[PF_TABLE_MAX_BOXES])
{
    int coord[PF_AXIS_COUNT], plane[2];

    pf_mesh_coords(&table->mesh, rank, coord);
    pf_mesh_expert_coords(&table->mesh, coord, plane);
    return shard_row_boxes(table, row, coord, plane[0], boxes_out);
}
