/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of a rank's part of a decoder, read off the tensor table and the layout. */
#include "model_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

static const struct place nowhere = {-1, -1};

static int64_t shifted(int64_t at, int64_t by)
{
    return at < 0 ? -1 : at + by;
}

/* Box `part` of a row (a fused row has several), and its extent. */
static struct place place_of(const struct pf_model *model, const struct pf_tensor_row *row,
                             int part, int64_t extent_out[2])
{
    struct pf_box boxes[PF_TABLE_MAX_BOXES];
    int64_t before = 0;

    extent_out[0] = extent_out[1] = 0;
    if (!row) {
        return nowhere;
    }
    const int64_t i = row - model->table->rows;
    const int n = pf_table_local_boxes(model->table, row, model->layout->rank, boxes);
    if (part >= n) {
        return nowhere;
    }
    for (int b = 0; b < part; b++) {
        before += pf_box_count(&boxes[b]);
    }
    for (int d = 0; d < row->n_dims && d < 2; d++) {
        extent_out[d] = boxes[part].hi[d] - boxes[part].lo[d];
    }
    return (struct place){shifted(model->layout->param_at[i], before),
                          shifted(model->layout->grad_at[i], before)};
}

static struct place alone(const struct pf_model *model, int layer, enum pf_slot slot)
{
    int64_t extent[2];

    return place_of(model, pf_table_find(model->table, layer, slot), 0, extent);
}

static struct norm norm_of(const struct pf_model *model, int layer, enum pf_slot w, enum pf_slot b)
{
    return (struct norm){alone(model, layer, w), alone(model, layer, b)};
}

static struct linear linear_part(const struct pf_model *model, int layer, enum pf_slot w,
                                 enum pf_slot b, int part)
{
    const struct pf_tensor_row *const row = pf_table_find(model->table, layer, w),
                                      *const bias = pf_table_find(model->table, layer, b);
    struct linear linear = {.w = nowhere, .b = nowhere};
    int64_t extent[2], unused[2];

    if (row) {
        linear.w = place_of(model, row, part, extent);
        linear.b = place_of(model, bias, part, unused);
        linear.in_out = row->in_out;
        linear.n_in = extent[row->in_out ? 0 : 1];
        linear.n_out = extent[row->in_out ? 1 : 0];
    }
    return linear;
}

static struct linear linear_of(const struct pf_model *model, int layer, enum pf_slot w,
                               enum pf_slot b)
{
    return linear_part(model, layer, w, b, 0);
}

/* One whose input is cut. */
static struct linear row_cut(const struct pf_model *model, int layer, enum pf_slot w,
                             enum pf_slot b)
{
    struct linear linear = linear_of(model, layer, w, b);

    linear.row_cut = true;
    return linear;
}

static void find_qkv(const struct pf_model *model, int layer, struct layer_weights *weights)
{
    const bool fused = pf_table_find(model->table, layer, PF_SLOT_QKV_W) != NULL;

    weights->fused_qkv = fused && model->options.n_tp == 1;
    if (weights->fused_qkv) {
        weights->qkv = linear_of(model, layer, PF_SLOT_QKV_W, PF_SLOT_QKV_B);
    } else if (fused) {
        weights->q = linear_part(model, layer, PF_SLOT_QKV_W, PF_SLOT_QKV_B, 0);
        weights->k = linear_part(model, layer, PF_SLOT_QKV_W, PF_SLOT_QKV_B, 1);
        weights->v = linear_part(model, layer, PF_SLOT_QKV_W, PF_SLOT_QKV_B, 2);
    } else {
        weights->q = linear_of(model, layer, PF_SLOT_Q_W, PF_SLOT_Q_B);
        weights->k = linear_of(model, layer, PF_SLOT_K_W, PF_SLOT_K_B);
        weights->v = linear_of(model, layer, PF_SLOT_V_W, PF_SLOT_V_B);
    }
}

static void find_layer(const struct pf_model *model, int layer, struct layer_weights *weights)
{
    find_qkv(model, layer, weights);
    weights->norm1 = norm_of(model, layer, PF_SLOT_NORM1_W, PF_SLOT_NORM1_B);
    weights->norm2 = norm_of(model, layer, PF_SLOT_NORM2_W, PF_SLOT_NORM2_B);
    weights->o = row_cut(model, layer, PF_SLOT_O_W, PF_SLOT_O_B);
    weights->gate = linear_of(model, layer, PF_SLOT_GATE_W, PF_SLOT_GATE_B);
    weights->up = linear_of(model, layer, PF_SLOT_UP_W, PF_SLOT_UP_B);
    weights->down = row_cut(model, layer, PF_SLOT_DOWN_W, PF_SLOT_DOWN_B);
    weights->q_norm = alone(model, layer, PF_SLOT_Q_NORM_W);
    weights->k_norm = alone(model, layer, PF_SLOT_K_NORM_W);
}

int model_find_weights(struct pf_model *model)
{
    model->weights = pf_calloc_array((size_t)model->spec->n_layers + 1, sizeof *model->weights);
    if (!model->weights) {
        return PF_ENOMEM;
    }
    for (int c = 0; c < model->options.n_chunks; c++) {
        const struct pf_model_chunk *const chunk = &model->options.chunks[c];
        for (int64_t i = chunk->first_layer; i < chunk->end_layer; i++) {
            find_layer(model, (int)i, &model->weights[i]);
        }
    }
    model->embed = alone(model, -1, PF_SLOT_EMBED);
    model->pos_embed = alone(model, -1, PF_SLOT_POS_EMBED);
    model->final_norm = norm_of(model, -1, PF_SLOT_FINAL_NORM_W, PF_SLOT_FINAL_NORM_B);
    model->head = linear_of(model, -1, PF_SLOT_HEAD_W, PF_SLOT_HEAD_B);
    return 0;
}

const void *model_param(const struct pf_model *model, struct place place)
{
    return place.at < 0 ? NULL : model_at(model, model->params, place.at);
}

float *model_grad(const struct pf_model *model, struct place place)
{
    return place.grad < 0 || !model->grads ? NULL : model->grads + place.grad;
}
