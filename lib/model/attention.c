/* SPDX-License-Identifier: Apache-2.0 */
/* The attention half of a layer: norm, q/k/v, q/k norm, rotation, attention, output projection. */
#include "model_internal.h"

#include <pf/error.h>

#include <string.h>

struct dims {
    int64_t h, d, n_q, n_k, width; /* n_q, n_k: elements of q and of k in a token's row of width */
};

static struct dims dims_of(const struct pf_model *model)
{
    const struct pf_model_spec *const s = model->spec;

    return (struct dims){s->hidden, s->head_dim, s->n_heads * s->head_dim,
                         s->n_kv_heads * s->head_dim,
                         (s->n_heads + 2 * s->n_kv_heads) * s->head_dim};
}

static int project(struct pf_model *model, const struct layer_rows *rows, struct layer_saved *s)
{
    const struct dims n = dims_of(model);

    if (rows->qkv.w) {
        return model_linear(model, rows->qkv, s->h1, n.h, s->qkv, n.width);
    }
    PF_TRY(model_linear(model, rows->q, s->h1, n.h, s->qkv, n.width));
    PF_TRY(model_linear(model, rows->k, s->h1, n.h, model_at(model, s->qkv, n.n_q), n.width));
    return model_linear(model, rows->v, s->h1, n.h, model_at(model, s->qkv, n.n_q + n.n_k),
                        n.width);
}

static int project_backward(struct pf_model *model, const struct layer_rows *rows,
                            const struct layer_saved *s, void *dqkv, void *dh)
{
    const struct dims n = dims_of(model);

    if (rows->qkv.w) {
        return model_linear_backward(model, rows->qkv, s->h1, n.h, dqkv, n.width, dh, n.h, false);
    }
    PF_TRY(model_linear_backward(model, rows->q, s->h1, n.h, dqkv, n.width, dh, n.h, false));
    PF_TRY(model_linear_backward(model, rows->k, s->h1, n.h, model_at(model, dqkv, n.n_q), n.width,
                                 dh, n.h, true));
    return model_linear_backward(model, rows->v, s->h1, n.h, model_at(model, dqkv, n.n_q + n.n_k),
                                 n.width, dh, n.h, true);
}

/* A norm over each head of n_heads; the heads of a token are contiguous, tokens lie ld apart, so it
 * runs token block by token block only where q and k share a row: x is packed [T,(A+G)*D]. */
static int head_norm(struct pf_model *model, const struct pf_tensor_row *weight, const void *x,
                     int64_t n_rows, void *y, float *rstd)
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

static int head_norm_backward(struct pf_model *model, const struct pf_tensor_row *weight,
                              const void *x, int64_t n_rows, const float *rstd, void *dy)
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
static int qk_norm(struct pf_model *model, const struct layer_rows *rows, struct layer_saved *s,
                   void *packed)
{
    const struct dims n = dims_of(model);
    const int64_t n_t = model->n_tokens, d = n.d;
    void *const q_raw = s->qk_raw, *const k_raw = model_at(model, s->qk_raw, n_t * n.n_q);

    copy_rows(model, n.n_q, s->qkv, n.width, q_raw, n.n_q);
    copy_rows(model, n.n_k, model_at(model, s->qkv, n.n_q), n.width, k_raw, n.n_k);
    PF_TRY(head_norm(model, rows->q_norm.w, q_raw, n_t * n.n_q / d, packed, s->q_rstd));
    copy_rows(model, n.n_q, packed, n.n_q, s->qkv, n.width);
    PF_TRY(head_norm(model, rows->k_norm.w, k_raw, n_t * n.n_k / d, packed, s->k_rstd));
    copy_rows(model, n.n_k, packed, n.n_k, model_at(model, s->qkv, n.n_q), n.width);
    return 0;
}

static int qk_norm_backward(struct pf_model *model, const struct layer_rows *rows,
                            struct layer_saved *s, void *dqkv, void *packed)
{
    const struct dims n = dims_of(model);
    const int64_t n_t = model->n_tokens, d = n.d;
    const void *const q_raw = s->qk_raw, *const k_raw = model_at(model, s->qk_raw, n_t * n.n_q);

    copy_rows(model, n.n_q, dqkv, n.width, packed, n.n_q);
    PF_TRY(head_norm_backward(model, rows->q_norm.w, q_raw, n_t * n.n_q / d, s->q_rstd, packed));
    copy_rows(model, n.n_q, packed, n.n_q, dqkv, n.width);
    copy_rows(model, n.n_k, model_at(model, dqkv, n.n_q), n.width, packed, n.n_k);
    PF_TRY(head_norm_backward(model, rows->k_norm.w, k_raw, n_t * n.n_k / d, s->k_rstd, packed));
    copy_rows(model, n.n_k, packed, n.n_k, model_at(model, dqkv, n.n_q), n.width);
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
    const struct pf_model_spec *const s = model->spec;

    if (s->rope.kind == PF_ROPE_NONE) {
        return 0;
    }
    return rotate(model, batch, s->n_heads + s->n_kv_heads, qkv, dims_of(model).width, inverse);
}

static struct pf_attention_fwd_args attention_args(const struct pf_model *model, int64_t layer,
                                                   const struct layer_saved *s,
                                                   const struct pf_model_batch *batch)
{
    const struct pf_model_spec *const spec = model->spec;
    const struct dims n = dims_of(model);

    return (struct pf_attention_fwd_args){
        .batch = model->options.batch,
        .seq = model->options.seq,
        .n_heads = spec->n_heads,
        .n_kv_heads = spec->n_kv_heads,
        .head_dim = n.d,
        .v_head_dim = n.d,
        .ldq = n.width,
        .ldk = n.width,
        .ldv = n.width,
        .ldo = n.n_q,
        .q = s->qkv,
        .k = model_at(model, s->qkv, n.n_q),
        .v = model_at(model, s->qkv, n.n_q + n.n_k),
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
    const struct layer_rows *const rows = &model->rows[layer];

    PF_TRY(model_norm(model, rows->norm1, s->x, s->h1, s->mean1, s->rstd1));
    PF_TRY(project(model, rows, s));
    if (rows->q_norm.w) {
        PF_TRY(qk_norm(model, rows, s, s->attn));
    }
    PF_TRY(rotate_qk(model, batch, s->qkv, false));
    return model_attention_core(model, layer, s, batch);
}

int model_attention(struct pf_model *model, int64_t layer, struct layer_saved *s,
                    const struct pf_model_batch *batch)
{
    const struct dims n = dims_of(model);

    PF_TRY(model_attention_inner(model, layer, s, batch));
    return model_to_residual(model, model->rows[layer].o, s->attn, n.n_q, batch, layer,
                             SITE_ATTENTION_OUT, s->x, s->x_mid);
}

int model_attention_backward(struct pf_model *model, int64_t layer, struct layer_saved *s,
                             const struct pf_model_batch *batch)
{
    const struct layer_rows *const rows = &model->rows[layer];
    const struct dims n = dims_of(model);
    struct work *const w = &model->work;
    const void *dout = w->dx;

    if (model->spec->residual_dropout > 0 && batch->dropout) {
        memcpy(w->dh, w->dx, (size_t)(model->n_tokens * n.h) * model->element);
        PF_TRY(model_dropout(model, batch, layer, SITE_ATTENTION_OUT, model->spec->residual_dropout,
                             w->dh, n.h));
        dout = w->dh;
    }
    PF_TRY(
        model_linear_backward(model, rows->o, s->attn, n.n_q, dout, n.h, w->dattn, n.n_q, false));
    const struct pf_attention_bwd_args args = {.fwd = attention_args(model, layer, s, batch),
                                               .lddo = n.n_q,
                                               .dout = w->dattn,
                                               .delta = w->delta,
                                               .dq = w->dqkv,
                                               .dk = model_at(model, w->dqkv, n.n_q),
                                               .dv = model_at(model, w->dqkv, n.n_q + n.n_k)};
    PF_TRY(pf_op_attention_bwd(model->ops, model->dtype, &args));
    PF_TRY(rotate_qk(model, batch, w->dqkv, true));
    if (rows->q_norm.w) {
        PF_TRY(qk_norm_backward(model, rows, s, w->dqkv, w->dattn));
    }
    PF_TRY(project_backward(model, rows, s, w->dqkv, w->dh));
    return model_norm_backward(model, rows->norm1, s->x, s->mean1, s->rstd1, w->dh, w->dx, true);
}
