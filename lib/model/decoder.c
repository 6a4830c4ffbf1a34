/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/model.h>

#include "model_internal.h"

#include <pf/error.h>
#include <pf/family.h>
#include <pf/mem.h>
#include <pf/rng.h>

#include <string.h>

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

/* Fill in what the options leave out, and keep the chunks. */
static int keep_part(struct pf_model *model)
{
    struct pf_model_options *const o = &model->options;
    const int n = o->n_chunks > 0 ? o->n_chunks : 1;
    struct pf_model_chunk *const chunks = pf_calloc_array((size_t)n, sizeof *chunks);

    model->chunks = chunks;
    if (!chunks) {
        return PF_ENOMEM;
    }
    for (int c = 0; c < n; c++) {
        chunks[c] = model_chunk(model->spec, o, c);
    }
    o->chunks = chunks;
    o->n_chunks = n;
    o->n_tp = o->n_tp > 0 ? o->n_tp : 1;
    if (o->split_backward && o->recompute != PF_RECOMPUTE_NONE) {
        return pf_fail(PF_ENOTSUP, "a split backward does not recompute activations");
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
    PF_TRY_GOTO(keep_part(model), out);
    PF_TRY_GOTO(model_dims(spec, &model->options, &model->dims), out);
    PF_TRY_GOTO(model_find_weights(model), out);
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
    pf_free(model->weights);
    pf_free(model->chunks);
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

int64_t pf_model_n_rows(const struct pf_model *model)
{
    return model->dims.n_rows;
}

static int64_t n_layers_of(const struct pf_model *model, int chunk)
{
    return model->chunks[chunk].end_layer - model->chunks[chunk].first_layer;
}

static void *input_of(const struct pf_model *model, int live)
{
    return model_layers_max(model->spec, &model->options) > 0 ? model->live[live].layers[0].x
                                                              : model->live[live].x_out;
}

void *pf_model_input(struct pf_model *model, int live)
{
    return input_of(model, live);
}

const void *pf_model_output(const struct pf_model *model, int chunk, int live)
{
    /* A chunk without layers passes on what it read. */
    return n_layers_of(model, chunk) > 0 ? model->live[live].x_out : input_of(model, live);
}

void *pf_model_gradient(struct pf_model *model)
{
    return model->work.dx;
}

/* Layer i of a chunk. */
static int forward_layer(struct pf_model *model, struct live_saved *saved, int chunk, int64_t i,
                         const struct pf_model_batch *batch)
{
    const int64_t layer = model->chunks[chunk].first_layer + i;
    void *const y = i + 1 < n_layers_of(model, chunk) ? saved->layers[i + 1].x : saved->x_out;

    PF_TRY(model_attention(model, layer, &saved->layers[i], batch));
    return model_ffn(model, layer, &saved->layers[i], batch, y);
}

int pf_model_forward(struct pf_model *model, int chunk, int live,
                     const struct pf_model_batch *batch, bool with_grad, float *token_loss)
{
    struct live_saved *const saved = &model->live[live];
    const struct pf_model_chunk *const c = &model->chunks[chunk];
    const int64_t n = n_layers_of(model, chunk);
    void *const input = pf_model_input(model, live);

    if (c->embed) {
        PF_TRY(model_embed(model, batch, input));
    }
    for (int64_t i = 0; i < n; i++) {
        PF_TRY(forward_layer(model, saved, chunk, i, batch));
    }
    if (!c->head) {
        return 0;
    }
    if (n == 0 && input != saved->x_out) {
        memcpy(saved->x_out, input,
               (size_t)(model->dims.n_rows * model->spec->hidden) * model->element);
    }
    return model_head(model, saved, batch, with_grad, token_loss);
}

/* Make what backward of layers [first, end) of a chunk needs and forward did not keep. In a whole group
 * the output of each layer but the last is the next one's input. */
static int recompute(struct pf_model *model, struct live_saved *saved, int chunk, int64_t first,
                     int64_t end, const struct pf_model_batch *batch)
{
    const int64_t before = model->chunks[chunk].first_layer;

    switch (model->options.recompute) {
    case PF_RECOMPUTE_CORE_ATTN:
        return model_attention_core(model, before + first, &saved->layers[first], batch);
    case PF_RECOMPUTE_FULL_ATTN:
        return model_attention_inner(model, before + first, &saved->layers[first], batch);
    case PF_RECOMPUTE_FULL:
        for (int64_t i = first; i + 1 < end; i++) {
            PF_TRY(forward_layer(model, saved, chunk, i, batch));
        }
        PF_TRY(model_attention(model, before + end - 1, &saved->layers[end - 1], batch));
        return model_ffn_inner(model, before + end - 1, &saved->layers[end - 1]);
    case PF_RECOMPUTE_NONE:
        break;
    }
    return 0;
}

int pf_model_backward(struct pf_model *model, int chunk, int live,
                      const struct pf_model_batch *batch)
{
    struct live_saved *const saved = &model->live[live];
    const struct pf_model_chunk *const c = &model->chunks[chunk];
    const int64_t group = model_group_size(model->spec, &model->options);
    const bool split = model->options.split_backward;
    int64_t end = n_layers_of(model, chunk);

    if (c->head) {
        PF_TRY(model_head_backward(model, saved));
    }
    while (end > 0) {
        const int64_t first = (end - 1) / group * group;
        if (model_recomputes(model->spec, &model->options, first)) {
            PF_TRY(recompute(model, saved, chunk, first, end, batch));
        }
        for (; end > first; end--) {
            const int64_t i = end - 1, layer = c->first_layer + i;
            PF_TRY(model_ffn_backward(model, layer, &saved->layers[i], batch, split));
            PF_TRY(model_attention_backward(model, layer, &saved->layers[i], batch, split));
        }
    }
    return c->embed ? model_embed_backward(model, batch, model->work.dx) : 0;
}

int pf_model_backward_weights(struct pf_model *model, int chunk, int live)
{
    struct live_saved *const saved = &model->live[live];

    for (int64_t i = n_layers_of(model, chunk) - 1; i >= 0; i--) {
        const int64_t layer = model->chunks[chunk].first_layer + i;
        PF_TRY(model_ffn_weights(model, layer, &saved->layers[i]));
        PF_TRY(model_attention_weights(model, layer, &saved->layers[i]));
    }
    return 0;
}

/* Rows of the residual stream as floats, of all tensor-parallel ranks. */
static int whole_hidden(struct pf_model *model, const void *x, float *hidden)
{
    const void *full;

    PF_TRY(model_share(model, x, &full));
    return pf_dtype_convert(model->dtype, full, PF_DTYPE_F32, hidden,
                            (size_t)(model->n_tokens * model->spec->hidden));
}

int pf_model_hidden(struct pf_model *model, int chunk, int live, int64_t i, float *hidden)
{
    const struct pf_model_chunk *const c = &model->chunks[chunk];
    const struct live_saved *const saved = &model->live[live];
    const int64_t n = model->spec->n_layers, group = model_group_size(model->spec, &model->options);

    if (i >= n && c->head) {
        return whole_hidden(model, i > n ? saved->final_h : saved->x_out, hidden);
    }
    if (i < c->first_layer || i >= c->end_layer) {
        return pf_fail(PF_EINVAL, "hidden state %lld is another chunk's", (long long)i);
    }
    if ((i - c->first_layer) % group != 0) {
        return pf_fail(PF_EINVAL,
                       "hidden state %lld is not kept when layers are recomputed in groups "
                       "of %lld",
                       (long long)i, (long long)group);
    }
    return whole_hidden(model, saved->layers[i - c->first_layer].x, hidden);
}
