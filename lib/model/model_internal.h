/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_internal.h - how a decoder keeps its buffers and weights. For lib/model alone.
 *
 * All buffers lie in one arena. The plan runs twice over the same code: once without memory to learn
 * the size, once to hand out addresses.
 */
#ifndef MODEL_INTERNAL_H
#define MODEL_INTERNAL_H

#include <pf/model.h>

/* The two tensors of a linear layer or a norm; NULL where the table has no row. */
struct weight_pair {
    const struct pf_tensor_row *w, *b;
};

/* Rows of one layer, by what the decoder does with them. */
struct layer_rows {
    struct weight_pair norm1, norm2, qkv, q, k, v, o, gate, up, down, q_norm, k_norm;
};

/* What forward leaves for backward, for one layer of one live micro-batch. T = tokens, A = query
 * heads, G = key/value heads, D = head width, W = (A + 2G) * D, I = feed-forward width. `void *` has
 * the model's dtype. Parts that are recomputed point into buffers that other layers use too. */
struct layer_saved {
    void *x;                /* [T,H] input; NULL inside a recomputed group */
    void *h1;               /* [T,H] normed */
    float *mean1, *rstd1;   /* [T] */
    void *qkv;              /* [T,W] q, k, v after norm and rotation */
    void *qk_raw;           /* [T,(A+G)*D] before the norm; only with qk_norm */
    float *q_rstd, *k_rstd; /* [T*A], [T*G] */
    void *attn;             /* [T,A*D] */
    float *lse;             /* [B,A,S] */
    void *x_mid;            /* [T,H] after attention */
    void *h2;               /* [T,H] */
    float *mean2, *rstd2;
    void *gate; /* [T,I] only when gated */
    void *up;   /* [T,I] */
    void *act;  /* [T,I] */
};

struct live_saved {
    struct layer_saved *layers; /* [L] */
    void *x_out;                /* [T,H] output of the last layer */
    void *final_h;              /* [T,H] final norm */
    float *final_mean, *final_rstd;
    void *dfinal_h; /* [T,H] gradient of final_h, left by the head */
};

/* Space for one op at a time, shared by all layers and live slots. */
struct work {
    void *dx;     /* [T,H] gradient of the residual stream */
    void *dh;     /* [T,H] gradient of a normed input; output of a projection before its dropout */
    void *dqkv;   /* [T,W] */
    void *dattn;  /* [T,A*D] */
    float *delta; /* [B,A,S] */
    void *dact;   /* [T,I] */
    void *logits; /* [loss_chunk,V], rows at model_logits_stride */
    struct layer_saved *shared; /* [n_shared] what recomputed layers use in turn */
    int64_t n_shared;
};

struct pf_model {
    const struct pf_model_spec *spec;
    const struct pf_table *table;
    const struct pf_layout *layout;
    struct pf_ops *ops;
    struct pf_model_options options;
    int64_t n_tokens;
    enum pf_dtype dtype;
    size_t element;          /* bytes of one activation or weight */
    const void *params;      /* bound, not owned */
    float *grads;            /* bound, not owned; NULL: evaluation only */
    struct layer_rows *rows; /* [L] */
    struct weight_pair embed, pos_embed, final_norm, head;
    float *cos_table, *sin_table; /* [seq, rope.dim/2] */
    struct live_saved *live;      /* [n_live] */
    struct work work;
    uint64_t dropout_key;
    void *arena;
};

/* Dropout sites of a layer; with the layer number they choose the stream of random numbers. */
enum dropout_site { SITE_EMBED, SITE_ATTENTION, SITE_ATTENTION_OUT, SITE_FFN_OUT, SITE_COUNT };

/* plan.c: tokens whose logits are held at once. */
int64_t model_loss_chunk(const struct pf_model_spec *spec, const struct pf_model_options *options);
/* Elements between rows of logits: whole cache lines whatever V. */
int64_t model_logits_stride(const struct pf_model_spec *spec);
/* plan.c: is a layer, or a part of it, computed again in backward; how many layers form a group of
 * which only the first one's input is kept. */
bool model_recomputes(const struct pf_model_spec *spec, const struct pf_model_options *options,
                      int64_t layer);
int64_t model_group_size(const struct pf_model_spec *spec, const struct pf_model_options *options);
/* plan.c: allocate the arena and hand out the buffers of a model whose other fields are set. */
int model_allocate(struct pf_model *model);

/* Element n of an array of the model's dtype. */
static inline void *model_at(const struct pf_model *model, const void *array, int64_t n)
{
    return (char *)(uintptr_t)array + (size_t)n * model->element;
}

/* The value, or the gradient accumulator, of a row; NULL for NULL, or for a frozen row's gradient. */
const void *model_param(const struct pf_model *model, const struct pf_tensor_row *row);
float *model_grad(const struct pf_model *model, const struct pf_tensor_row *row);

/* linear.c: y [T,n_out] = x [T,n_in] W (+ b), and its backward: dx is overwritten, or added to;
 * dx NULL: not wanted. Weight gradients accumulate. */
int model_linear(struct pf_model *model, struct weight_pair weight, const void *x, int64_t ldx,
                 void *y, int64_t ldy);
/* The same, and in one op what follows it: y = x W (+ b) (+ residual), rows at distance ldy, or, with
 * activate, act of that, which itself goes to pre (rows at distance ldy too). */
struct linear_end {
    const void *residual; /* NULL: none */
    bool activate;
    enum pf_act_kind act;
    void *pre;
};
int model_linear_end(struct pf_model *model, struct weight_pair weight, const void *x, int64_t ldx,
                     void *y, int64_t ldy, struct linear_end end);
/* linear.c: the end of half a layer: y [T,H] = residual + dropout(x W (+ b)); one op where nothing is
 * dropped. */
int model_to_residual(struct pf_model *model, struct weight_pair weight, const void *x, int64_t ldx,
                      const struct pf_model_batch *batch, int64_t layer, enum dropout_site site,
                      const void *residual, void *y);
int model_linear_backward(struct pf_model *model, struct weight_pair weight, const void *x,
                          int64_t ldx, const void *dy, int64_t lddy, void *dx, int64_t lddx,
                          bool dx_accumulate);
/* linear.c: y = norm(x), rows of H; and backward into dx (overwrite or accumulate). */
int model_norm(struct pf_model *model, struct weight_pair weight, const void *x, void *y,
               float *mean, float *rstd);
int model_norm_backward(struct pf_model *model, struct weight_pair weight, const void *x,
                        const float *mean, const float *rstd, const void *dy, void *dx,
                        bool dx_accumulate);
/* linear.c: dropout of a site in place (forward on values, backward on gradients); nothing at p 0. */
int model_dropout(struct pf_model *model, const struct pf_model_batch *batch, int64_t layer,
                  enum dropout_site site, double p, void *x, int64_t width);
uint64_t model_dropout_key(const struct pf_model *model, int64_t layer, enum dropout_site site);

/* attention.c, ffn.c: the two halves of a layer. Forward reads the residual stream x and writes y = x
 * + half(norm(x)); backward turns work.dx, the gradient of y, into the gradient of x. */
int model_attention(struct pf_model *model, int64_t layer, struct layer_saved *saved,
                    const struct pf_model_batch *batch);
int model_attention_backward(struct pf_model *model, int64_t layer, struct layer_saved *saved,
                             const struct pf_model_batch *batch);
int model_ffn(struct pf_model *model, int64_t layer, struct layer_saved *saved,
              const struct pf_model_batch *batch, void *y);
int model_ffn_backward(struct pf_model *model, int64_t layer, struct layer_saved *saved,
                       const struct pf_model_batch *batch);

/* What backward needs of a half, without its output: the attention alone, the half up to it, the
 * feed-forward half up to its activation. Each overwrites the parts of saved that it makes. */
int model_attention_core(struct pf_model *model, int64_t layer, struct layer_saved *saved,
                         const struct pf_model_batch *batch);
int model_attention_inner(struct pf_model *model, int64_t layer, struct layer_saved *saved,
                          const struct pf_model_batch *batch);
int model_ffn_inner(struct pf_model *model, int64_t layer, struct layer_saved *saved);

/* head.c: final norm, logits in chunks, loss, and with_grad the gradients that follow. */
int model_head(struct pf_model *model, struct live_saved *live, const struct pf_model_batch *batch,
               bool with_grad, float *token_loss);
/* head.c: turn live->dfinal_h into work.dx, the gradient of the last layer's output. */
int model_head_backward(struct pf_model *model, struct live_saved *live);
/* head.c: logits of tokens [first, first + n) into logits [n,V]. */
int model_logits_chunk(struct pf_model *model, const void *final_h, int64_t first, int64_t n,
                       void *logits);

#endif
