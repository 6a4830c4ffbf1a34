/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/model.h>

#include "model_internal.h"

#include <pf/error.h>
#include <pf/family.h>
#include <pf/mem.h>
#include <pf/rng.h>

static struct weight_pair pair(const struct pf_table *t, int layer, enum pf_slot w, enum pf_slot b)
{
    return (struct weight_pair){pf_table_find(t, layer, w), pf_table_find(t, layer, b)};
}

static struct weight_pair alone(const struct pf_table *t, int layer, enum pf_slot w)
{
    return (struct weight_pair){pf_table_find(t, layer, w), NULL};
}

static void find_layer_rows(const struct pf_table *t, int layer, struct layer_rows *rows)
{
    rows->norm1 = pair(t, layer, PF_SLOT_NORM1_W, PF_SLOT_NORM1_B);
    rows->norm2 = pair(t, layer, PF_SLOT_NORM2_W, PF_SLOT_NORM2_B);
    rows->qkv = pair(t, layer, PF_SLOT_QKV_W, PF_SLOT_QKV_B);
    rows->q = pair(t, layer, PF_SLOT_Q_W, PF_SLOT_Q_B);
    rows->k = pair(t, layer, PF_SLOT_K_W, PF_SLOT_K_B);
    rows->v = pair(t, layer, PF_SLOT_V_W, PF_SLOT_V_B);
    rows->o = pair(t, layer, PF_SLOT_O_W, PF_SLOT_O_B);
    rows->gate = pair(t, layer, PF_SLOT_GATE_W, PF_SLOT_GATE_B);
    rows->up = pair(t, layer, PF_SLOT_UP_W, PF_SLOT_UP_B);
    rows->down = pair(t, layer, PF_SLOT_DOWN_W, PF_SLOT_DOWN_B);
    rows->q_norm = alone(t, layer, PF_SLOT_Q_NORM_W);
    rows->k_norm = alone(t, layer, PF_SLOT_K_NORM_W);
}

static int find_rows(struct pf_model *model)
{
    const struct pf_table *const t = model->table;

    model->rows = pf_calloc_array((size_t)model->spec->n_layers, sizeof *model->rows);
    if (!model->rows) {
        return PF_ENOMEM;
    }
    for (int i = 0; i < model->spec->n_layers; i++) {
        find_layer_rows(t, i, &model->rows[i]);
    }
    model->embed = alone(t, -1, PF_SLOT_EMBED);
    model->pos_embed = alone(t, -1, PF_SLOT_POS_EMBED);
    model->final_norm = pair(t, -1, PF_SLOT_FINAL_NORM_W, PF_SLOT_FINAL_NORM_B);
    model->head = pair(t, -1, PF_SLOT_HEAD_W, PF_SLOT_HEAD_B);
    return 0;
}

static int make_rope_tables(struct pf_model *model)
{
    const struct pf_rope_spec *const rope = &model->spec->rope;

    if (rope->kind == PF_ROPE_NONE) {
        return 0;
    }
    const size_t n = (size_t)model->options.seq * (size_t)(rope->dim / 2);
    model->cos_table = pf_calloc_array(n, sizeof *model->cos_table);
    model->sin_table = pf_calloc_array(n, sizeof *model->sin_table);
    if (!model->cos_table || !model->sin_table) {
        return PF_ENOMEM;
    }
    pf_rope_tables(rope, model->options.seq, model->cos_table, model->sin_table);
    return 0;
}

int pf_model_check(const struct pf_model_spec *spec)
{
    const char *const name = pf_family_name(spec->family);

    if (spec->moe.n_experts > 0) {
        return pf_fail(PF_ENOTSUP, "%s needs experts, which this build does not train yet", name);
    }
    if (spec->mla.kv_rank > 0) {
        return pf_fail(PF_ENOTSUP, "%s needs latent attention, which this build does not train yet",
                       name);
    }
    return 0;
}

int pf_model_new(const struct pf_model_spec *spec, const struct pf_table *table,
                 const struct pf_layout *layout, struct pf_ops *ops,
                 const struct pf_model_options *options, struct pf_model **model_out)
{
    struct pf_model *const model = pf_alloc(sizeof *model);
    int err = pf_model_check(spec);

    if (err || !model) {
        pf_free(model);
        return err ? err : PF_ENOMEM;
    }
    *model = (struct pf_model){.spec = spec,
                               .table = table,
                               .layout = layout,
                               .ops = ops,
                               .options = *options,
                               .n_tokens = options->batch * options->seq,
                               .dtype = options->dtype,
                               .element = pf_dtype_bits(options->dtype) / 8,
                               .dropout_key = pf_rng_derive_name(options->seed, "dropout")};
    if (spec->learned_positions && options->seq > spec->max_positions) {
        err = pf_fail(PF_EINVAL, "sequences of %lld tokens do not fit the model's %lld positions",
                      (long long)options->seq, (long long)spec->max_positions);
        goto out;
    }
    PF_TRY_GOTO(find_rows(model), out);
    PF_TRY_GOTO(make_rope_tables(model), out);
    PF_TRY_GOTO(model_allocate(model), out);
    *model_out = model;
    return 0;
out:
    pf_model_free(model);
    return err;
}

void pf_model_free(struct pf_model *model)
{
    if (!model) {
        return;
    }
    for (int i = 0; model->live && i < model->options.n_live; i++) {
        pf_free(model->live[i].layers);
    }
    pf_free(model->live);
    pf_free(model->work.shared);
    pf_free(model->arena);
    pf_free(model->cos_table);
    pf_free(model->sin_table);
    pf_free(model->rows);
    pf_free(model);
}

void pf_model_bind(struct pf_model *model, const void *params, float *grads)
{
    model->params = params;
    model->grads = grads;
}

int64_t pf_model_n_tokens(const struct pf_model *model)
{
    return model->n_tokens;
}

static int embed(struct pf_model *model, const struct pf_model_batch *batch, void *x)
{
    PF_TRY(pf_op_embed_fwd(
        model->ops, model->dtype,
        &(struct pf_embed_fwd_args){.n_tokens = model->n_tokens,
                                    .width = model->spec->hidden,
                                    .n_rows = model->spec->vocab_size,
                                    .n_positions = model->spec->max_positions,
                                    .seq = model->options.seq,
                                    .ids = batch->ids,
                                    .positions = batch->positions,
                                    .table = model_param(model, model->embed.w),
                                    .pos_table = model_param(model, model->pos_embed.w),
                                    .y = x}));
    return model_dropout(model, batch, -1, SITE_EMBED, model->spec->embed_dropout, x,
                         model->spec->hidden);
}

static int embed_backward(struct pf_model *model, const struct pf_model_batch *batch, void *dx)
{
    float *const dtable = model_grad(model, model->embed.w);
    float *const dpos = model_grad(model, model->pos_embed.w);

    if (!dtable && !dpos) {
        return 0;
    }
    PF_TRY(model_dropout(model, batch, -1, SITE_EMBED, model->spec->embed_dropout, dx,
                         model->spec->hidden));
    return pf_op_embed_bwd(
        model->ops, model->dtype,
        &(struct pf_embed_bwd_args){
            .n_tokens = model->n_tokens,
            .width = model->spec->hidden,
            .n_rows = model->spec->vocab_size,
            .n_positions = model->spec->max_positions,
            .seq = model->options.seq,
            .ids = batch->ids,
            .positions = batch->positions,
            .skip_id = model->options.padding_row_gets_gradient ? -1 : model->spec->padding_id,
            .dy = dx,
            .dtable = dtable,
            .dpos_table = dpos});
}

static int forward_layer(struct pf_model *model, struct live_saved *saved, int64_t i,
                         const struct pf_model_batch *batch)
{
    void *const y = i + 1 < model->spec->n_layers ? saved->layers[i + 1].x : saved->x_out;

    PF_TRY(model_attention(model, i, &saved->layers[i], batch));
    return model_ffn(model, i, &saved->layers[i], batch, y);
}

int pf_model_forward(struct pf_model *model, int live, const struct pf_model_batch *batch,
                     bool with_grad, float *token_loss)
{
    struct live_saved *const saved = &model->live[live];
    const int64_t n = model->spec->n_layers;

    PF_TRY(embed(model, batch, n > 0 ? saved->layers[0].x : saved->x_out));
    for (int64_t i = 0; i < n; i++) {
        PF_TRY(forward_layer(model, saved, i, batch));
    }
    return model_head(model, saved, batch, with_grad, token_loss);
}

/* Make what backward of layers [first, end) needs and forward did not keep. In a whole group the
 * output of each layer but the last is the next one's input. */
static int recompute(struct pf_model *model, struct live_saved *saved, int64_t first, int64_t end,
                     const struct pf_model_batch *batch)
{
    switch (model->options.recompute) {
    case PF_RECOMPUTE_CORE_ATTN:
        return model_attention_core(model, first, &saved->layers[first], batch);
    case PF_RECOMPUTE_FULL_ATTN:
        return model_attention_inner(model, first, &saved->layers[first], batch);
    case PF_RECOMPUTE_FULL:
        for (int64_t i = first; i + 1 < end; i++) {
            PF_TRY(forward_layer(model, saved, i, batch));
        }
        PF_TRY(model_attention(model, end - 1, &saved->layers[end - 1], batch));
        return model_ffn_inner(model, end - 1, &saved->layers[end - 1]);
    case PF_RECOMPUTE_NONE:
        break;
    }
    return 0;
}

int pf_model_backward(struct pf_model *model, int live, const struct pf_model_batch *batch)
{
    struct live_saved *const saved = &model->live[live];
    const int64_t group = model_group_size(model->spec, &model->options);
    int64_t end = model->spec->n_layers;

    PF_TRY(model_head_backward(model, saved));
    while (end > 0) {
        const int64_t first = (end - 1) / group * group;
        if (model_recomputes(model->spec, &model->options, first)) {
            PF_TRY(recompute(model, saved, first, end, batch));
        }
        for (; end > first; end--) {
            PF_TRY(model_ffn_backward(model, end - 1, &saved->layers[end - 1], batch));
            PF_TRY(model_attention_backward(model, end - 1, &saved->layers[end - 1], batch));
        }
    }
    return embed_backward(model, batch, model->work.dx);
}

int pf_model_logits(struct pf_model *model, int live, float *logits)
{
    const int64_t chunk = model_loss_chunk(model->spec, &model->options),
                  v = model->spec->vocab_size, stride = model_logits_stride(model->spec);

    for (int64_t first = 0; first < model->n_tokens; first += chunk) {
        const int64_t left = model->n_tokens - first, n = left < chunk ? left : chunk;
        PF_TRY(model_logits_chunk(model, model->live[live].final_h, first, n, model->work.logits));
        for (int64_t i = 0; i < n; i++) {
            PF_TRY(pf_dtype_convert(model->dtype, model_at(model, model->work.logits, i * stride),
                                    PF_DTYPE_F32, logits + (first + i) * v, (size_t)v));
        }
    }
    return 0;
}

int pf_model_token_logits(struct pf_model *model, int live, int64_t token, float *logits)
{
    void *const chunk = model->work.logits;

    PF_TRY(model_logits_chunk(model, model->live[live].final_h, token, 1, chunk));
    return pf_dtype_convert(model->dtype, chunk, PF_DTYPE_F32, logits,
                            (size_t)model->spec->vocab_size);
}

int pf_model_hidden(const struct pf_model *model, int live, int64_t i, float *hidden)
{
    const struct live_saved *const saved = &model->live[live];
    const int64_t n = model->spec->n_layers, group = model_group_size(model->spec, &model->options);
    const void *x = i < n ? saved->layers[i].x : saved->x_out;

    if (i < n && i % group != 0) {
        return pf_fail(PF_EINVAL,
                       "hidden state %lld is not kept when layers are recomputed in groups "
                       "of %lld",
                       (long long)i, (long long)group);
    }
    x = i > n ? saved->final_h : x;
    return pf_dtype_convert(model->dtype, x, PF_DTYPE_F32, hidden,
                            (size_t)(model->n_tokens * model->spec->hidden));
}
