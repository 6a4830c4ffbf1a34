/* SPDX-License-Identifier: Apache-2.0 */
/* The attention half of a layer: norm, q/k/v, q/k norm, rotation, attention, output projection. */
#include "model_internal.h"

#include <pf/error.h>

#include <string.h>

/* Where k and v begin in an array of rows like qkv. */
static void *k_of(const struct pf_model *model, const void *qkv)
{
    return model_at(model, qkv, model->dims.n_q);
}

static void *v_of(const struct pf_model *model, const void *qkv)
{
    return model_at(model, qkv, model->dims.n_q + model->dims.n_k);
}

static int project(struct pf_model *model, const struct layer_weights *weights, const void *x,
                   void *qkv)
{
    const int64_t h = model->spec->hidden, width = model->dims.width;

    if (weights->fused_qkv) {
        return model_linear(model, &weights->qkv, x, h, qkv, width);
    }
    PF_TRY(model_linear(model, &weights->q, x, h, qkv, width));
    PF_TRY(model_linear(model, &weights->k, x, h, k_of(model, qkv), width));
    return model_linear(model, &weights->v, x, h, v_of(model, qkv), width);
}

static int project_dx(struct pf_model *model, const struct layer_weights *weights, const void *dqkv,
                      void *dx)
{
    const int64_t h = model->spec->hidden, width = model->dims.width;

    if (weights->fused_qkv) {
        return model_linear_dx(model, &weights->qkv, dqkv, width, dx, h, false);
    }
    PF_TRY(model_linear_dx(model, &weights->q, dqkv, width, dx, h, false));
    PF_TRY(model_linear_dx(model, &weights->k, k_of(model, dqkv), width, dx, h, true));
    return model_linear_dx(model, &weights->v, v_of(model, dqkv), width, dx, h, true);
}

/* The gradients of q, k and v's weights, from the normed rows of all ranks. */
static int project_dw(struct pf_model *model, const struct layer_weights *weights,
                      const struct layer_saved *s)
{
    const int64_t h = model->spec->hidden, width = model->dims.width;
    const void *x;

    PF_TRY(model_share(model, s->h1, &x));
    if (weights->fused_qkv) {
        return model_linear_dw(model, &weights->qkv, x, h, s->dqkv, width);
    }
    PF_TRY(model_linear_dw(model, &weights->q, x, h, s->dqkv, width));
    PF_TRY(model_linear_dw(model, &weights->k, x, h, k_of(model, s->dqkv), width));
    return model_linear_dw(model, &weights->v, x, h, v_of(model, s->dqkv), width);
}

/* A norm over each head of n_heads; the heads of a token are contiguous, tokens lie ld apart, so it
 * runs token block by token block only where q and k share a row: x is packed [T,(A+G)*D]. */
static int head_norm(struct pf_model *model, struct place weight, const void *x, int64_t n_rows,
                     void *y, float *rstd)
{
    const int64_t d = model->spec->head_dim;

    return pf_op_rmsnorm_fwd(model->ops, model->dtype,
                             &(struct pf_rmsnorm_fwd_args){.n_rows = n_rows,
                                                           .width = d,
                                                           .ldx = d,
                                                           .ldy = d,
                                                           .x = x,
                                                           .weight = model_param(model, weight),
                                                           .eps = (float)model->spec->norm_eps,
                                                           .y = y,
                                                           .rstd = rstd});
}

static int head_norm_backward(struct pf_model *model, struct place weight, const void *x,
                              int64_t n_rows, const float *rstd, void *dy)
{
    const int64_t d = model->spec->head_dim;

    return pf_op_rmsnorm_bwd(model->ops, model->dtype,
                             &(struct pf_rmsnorm_bwd_args){.n_rows = n_rows,
                                                           .width = d,
                                                           .ldx = d,
                                                           .lddy = d,
                                                           .lddx = d,
                                                           .x = x,
                                                           .weight = model_param(model, weight),
                                                           .dy = dy,
                                                           .rstd = rstd,
                                                           .dx = dy,
                                                           .dweight = model_grad(model, weight)});
}

/* Copy n elements of each token between rows of different length. */
static void copy_rows(const struct pf_model *model, int64_t n, const void *from, int64_t ld_from,
                      void *to, int64_t ld_to)
{
    for (int64_t t = 0; t < model->n_tokens; t++) {
        memcpy(model_at(model, to, t * ld_to), model_at(model, from, t * ld_from),
               (size_t)n * model->element);
    }
}

/* The heads of q (and of k) are packed densely, head after head, for the norm, then put back. */
static int qk_norm(struct pf_model *model, const struct layer_weights *weights,
                   struct layer_saved *s, void *packed)
{
    const struct dims n = model->dims;
    const int64_t n_t = model->n_tokens, d = n.d;
    void *const q_raw = s->qk_raw, *const k_raw = model_at(model, s->qk_raw, n_t * n.n_q);

    copy_rows(model, n.n_q, s->qkv, n.width, q_raw, n.n_q);
    copy_rows(model, n.n_k, k_of(model, s->qkv), n.width, k_raw, n.n_k);
    PF_TRY(head_norm(model, weights->q_norm, q_raw, n_t * n.n_q / d, packed, s->q_rstd));
    copy_rows(model, n.n_q, packed, n.n_q, s->qkv, n.width);
    PF_TRY(head_norm(model, weights->k_norm, k_raw, n_t * n.n_k / d, packed, s->k_rstd));
    copy_rows(model, n.n_k, packed, n.n_k, k_of(model, s->qkv), n.width);
    return 0;
}

static int qk_norm_backward(struct pf_model *model, const struct layer_weights *weights,
                            struct layer_saved *s, void *dqkv, void *packed)
{
    const struct dims n = model->dims;
    const int64_t n_t = model->n_tokens, d = n.d;
    const void *const q_raw = s->qk_raw, *const k_raw = model_at(model, s->qk_raw, n_t * n.n_q);

    copy_rows(model, n.n_q, dqkv, n.width, packed, n.n_q);
    PF_TRY(head_norm_backward(model, weights->q_norm, q_raw, n_t * n.n_q / d, s->q_rstd, packed));
    copy_rows(model, n.n_q, packed, n.n_q, dqkv, n.width);
    copy_rows(model, n.n_k, k_of(model, dqkv), n.width, packed, n.n_k);
    PF_TRY(head_norm_backward(model, weights->k_norm, k_raw, n_t * n.n_k / d, s->k_rstd, packed));
    copy_rows(model, n.n_k, packed, n.n_k, k_of(model, dqkv), n.width);
    return 0;
}

static int rotate(struct pf_model *model, const struct pf_model_batch *batch, int64_t n_heads,
                  void *x, int64_t ldx, bool inverse)
{
    const struct pf_rope_spec *const rope = &model->spec->rope;

    return pf_op_rope(model->ops, model->dtype,
                      &(struct pf_rope_args){.n_tokens = model->n_tokens,
                                             .n_heads = n_heads,
                                             .head_dim = model->spec->head_dim,
                                             .ldx = ldx,
                                             .first = 0,
                                             .n_pairs = rope->dim / 2,
                                             .n_positions = model->options.seq,
                                             .seq = model->options.seq,
                                             .pairs_adjacent = rope->pairs_adjacent,
                                             .inverse = inverse,
                                             .positions = batch->positions,
                                             .cos_table = model->cos_table,
                                             .sin_table = model->sin_table,
                                             .x = x});
}

/* q and k are neighbours in a token's row: one call turns the heads of both. */
static int rotate_qk(struct pf_model *model, const struct pf_model_batch *batch, void *qkv,
                     bool inverse)
{
    if (model->spec->rope.kind == PF_ROPE_NONE) {
        return 0;
    }
    return rotate(model, batch, model->dims.n_heads + model->dims.n_kv_heads, qkv,
                  model->dims.width, inverse);
}

static struct pf_attention_fwd_args attention_args(const struct pf_model *model, int64_t layer,
                                                   const struct layer_saved *s,
                                                   const struct pf_model_batch *batch)
{
    const struct pf_model_spec *const spec = model->spec;
    const struct dims n = model->dims;

    return (struct pf_attention_fwd_args){
        .batch = model->options.batch,
        .seq = model->options.seq,
        .n_heads = n.n_heads,
        .n_kv_heads = n.n_kv_heads,
        .first_head = n.first_head,
        .n_heads_total = spec->n_heads,
        .head_dim = n.d,
        .v_head_dim = n.d,
        .ldq = n.width,
        .ldk = n.width,
        .ldv = n.width,
        .ldo = n.n_q,
        .q = s->qkv,
        .k = k_of(model, s->qkv),
        .v = v_of(model, s->qkv),
        .first_key = batch->first_key,
        .scale = (float)spec->attention_scale,
        .dropout_p = batch->dropout ? (float)spec->attention_dropout : 0,
        .dropout_key = model_dropout_key(model, layer, SITE_ATTENTION),
        .first_sequence = (uint64_t)batch->first_sequence,
        .out = s->attn,
        .lse = s->lse};
}

int model_attention_core(struct pf_model *model, int64_t layer, struct layer_saved *s,
                         const struct pf_model_batch *batch)
{
    const struct pf_attention_fwd_args args = attention_args(model, layer, s, batch);

    return pf_op_attention_fwd(model->ops, model->dtype, &args);
}

int model_attention_inner(struct pf_model *model, int64_t layer, struct layer_saved *s,
                          const struct pf_model_batch *batch)
{
    const struct layer_weights *const weights = &model->weights[layer];

    const void *x;

    PF_TRY(model_norm(model, &weights->norm1, s->x, s->h1, s->mean1, s->rstd1));
    PF_TRY(model_share(model, s->h1, &x));
    PF_TRY(project(model, weights, x, s->qkv));
    if (weights->q_norm.at >= 0) {
        PF_TRY(qk_norm(model, weights, s, s->attn));
    }
    PF_TRY(rotate_qk(model, batch, s->qkv, false));
    return model_attention_core(model, layer, s, batch);
}

int model_attention(struct pf_model *model, int64_t layer, struct layer_saved *s,
                    const struct pf_model_batch *batch)
{
    PF_TRY(model_attention_inner(model, layer, s, batch));
    return model_to_residual(model, &model->weights[layer].o, s->attn, model->dims.n_q, batch,
                             layer, SITE_ATTENTION_OUT, s->x, s->x_mid);
}

int model_attention_backward(struct pf_model *model, int64_t layer, struct layer_saved *s,
                             const struct pf_model_batch *batch, bool split)
{
    const struct layer_weights *const weights = &model->weights[layer];
    const int64_t h = model->spec->hidden, n_q = model->dims.n_q;
    struct work *const w = &model->work;
    const void *dy;
    void *sum;

    PF_TRY(model_residual_gradient(model, batch, layer, SITE_ATTENTION_OUT,
                                   split ? s->dattn_y : NULL, &dy));
    PF_TRY(split ? 0 : model_linear_dw(model, &weights->o, s->attn, n_q, dy, h));
    PF_TRY(model_linear_dx(model, &weights->o, dy, h, w->dattn, n_q, false));
    const struct pf_attention_bwd_args args = {.fwd = attention_args(model, layer, s, batch),
                                               .lddo = n_q,
                                               .dout = w->dattn,
                                               .delta = w->delta,
                                               .dq = s->dqkv,
                                               .dk = k_of(model, s->dqkv),
                                               .dv = v_of(model, s->dqkv)};
    PF_TRY(pf_op_attention_bwd(model->ops, model->dtype, &args));
    PF_TRY(rotate_qk(model, batch, s->dqkv, true));
    if (weights->q_norm.at >= 0) {
        PF_TRY(qk_norm_backward(model, weights, s, s->dqkv, w->dattn));
    }
    PF_TRY(project_dx(model, weights, s->dqkv, w->dh));
    PF_TRY(model_sum_begin(model, w->dh));
    PF_TRY(split ? 0 : project_dw(model, weights, s));
    PF_TRY(model_sum_end(model, w->dh, &sum));
    return model_norm_backward(model, &weights->norm1, s->x, s->mean1, s->rstd1, sum, w->dx, true);
}

int model_attention_weights(struct pf_model *model, int64_t layer, struct layer_saved *s)
{
    const struct layer_weights *const weights = &model->weights[layer];
    const void *dy;

    PF_TRY(model_share(model, s->dattn_y, &dy));
    PF_TRY(model_linear_dw(model, &weights->o, s->attn, model->dims.n_q, dy, model->spec->hidden));
    return project_dw(model, weights, s);
}
