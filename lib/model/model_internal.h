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

/* Where a tensor and its gradient lie in the bound buffers, in elements; -1: there is none. */
struct place {
    int64_t at, grad;
};

/* What this rank has of a linear layer: y [.,n_out] = x [.,n_in] w (+ b). */
struct linear {
    struct place w, b;
    int64_t n_in, n_out;
    bool in_out; /* w is stored [in, out] */
    bool
        row_cut; /* tensor-parallel ranks each have a part of the sum; the bias is the first one's */
};

struct norm {
    struct place w, b;
};

/* The weights of one layer, by what the decoder does with them. */
struct layer_weights {
    struct norm norm1, norm2;
    bool fused_qkv; /* one product makes q, k and v */
    struct linear qkv, q, k, v, o, gate, up, down;
    struct place q_norm, k_norm;
};

/* The sizes of this rank's part of a layer. T = tokens of a micro-batch. */
struct dims {
    int64_t n_heads, n_kv_heads, first_head; /* query and key heads here; the first one's number */
    int64_t d;                               /* width of a head */
    int64_t n_q, n_k, width;                 /* elements of q and of k in a token's row of width */
    int64_t ffn;
    int64_t vocab, first_vocab; /* columns of logits here */
    int64_t vocab_room;         /* the most that a rank has */
    int64_t n_rows, first_row;  /* tokens of the residual stream here: T, or a part of them */
};

/* What forward leaves for backward, for one layer of one live micro-batch. T = tokens, R = rows of the
 * residual stream here (T, or with sequence parallelism a part), A = query heads here, G = key/value
 * heads here, D = head width, W = (A + 2G) * D, I = feed-forward width here. `void *` has the model's
 * dtype. Parts that are recomputed point into buffers that other layers use too. */
struct layer_saved {
    void *x;                /* [R,H] input; NULL inside a recomputed group */
    void *h1;               /* [R,H] normed */
    float *mean1, *rstd1;   /* [R] */
    void *qkv;              /* [T,W] q, k, v after norm and rotation */
    void *qk_raw;           /* [T,(A+G)*D] before the norm; only with qk_norm */
    float *q_rstd, *k_rstd; /* [T*A], [T*G] */
    void *attn;             /* [T,A*D] */
    float *lse;             /* [B,A,S] */
    void *x_mid;            /* [R,H] after attention */
    void *h2;               /* [R,H] */
    float *mean2, *rstd2;
    void *gate; /* [T,I] only when gated */
    void *up;   /* [T,I] */
    void *act;  /* [T,I] */
    /* Gradients, which a split backward leaves for the weights' part, and other layers use too where it
     * is not split. Those of gate and up overwrite gate and up, or, not gated, that of up dact. */
    void *dqkv;    /* [T,W] */
    void *dact;    /* [T,I] of act */
    void *dattn_y; /* [R,H] of what the output projection gives; only where split */
    void *dffn_y;  /* [R,H] of what down gives; only where split */
};

struct live_saved {
    struct layer_saved *layers; /* [n_layers_max] of the chunk that it holds */
    void *x_out;                /* [R,H] output of its last layer */
    void *final_h;              /* [R,H] final norm; where the rank has the head */
    float *final_mean, *final_rstd;
    void *dfinal_h; /* [R,H] gradient of final_h, left by the head */
};

/* Space for one op at a time, shared by all layers and live slots. */
struct work {
    void *dx;      /* [R,H] gradient of the residual stream */
    void *dh;      /* [T,H] gradient of a normed input; output of a projection before its dropout */
    void *staging; /* [n_tp - 1, T H / n_tp] of sums that go on; only where they do */
    void *full;    /* [T,H] rows of all tensor-parallel ranks; with sequence parallelism */
    void *dattn;   /* [T,A*D] */
    float *delta;  /* [B,A,S] */
    void *logits;  /* [loss_chunk,V here], rows at model_logits_stride */
    float *stats;  /* [1 + n_tp, loss_chunk, 3] of a cut vocabulary */
    struct layer_saved backward; /* the gradients of a backward that is not split */
    struct layer_saved *shared;  /* [n_shared] what recomputed layers use in turn */
    int64_t n_shared;
};

struct pf_model {
    const struct pf_model_spec *spec;
    const struct pf_table *table;
    const struct pf_layout *layout;
    struct pf_ops *ops;
    struct pf_model_options options; /* n_tp, chunks and n_chunks filled in */
    struct pf_model_chunk *chunks;   /* [options.n_chunks] */
    struct dims dims;
    int64_t n_tokens;
    enum pf_dtype dtype;
    size_t element;                /* bytes of one activation or weight */
    const void *params;            /* bound, not owned */
    float *grads;                  /* bound, not owned; NULL: evaluation only */
    struct layer_weights *weights; /* [L] */
    struct place embed, pos_embed;
    struct norm final_norm;
    struct linear head;
    float *cos_table, *sin_table; /* [seq, rope.dim/2] */
    struct live_saved *live;      /* [n_live] */
    struct work work;
    struct pf_comm_sum sum; /* under way */
    uint64_t dropout_key;
    void *arena;
};

/* Dropout sites of a layer; with the layer number they choose the stream of random numbers. */
enum dropout_site { SITE_EMBED, SITE_ATTENTION, SITE_ATTENTION_OUT, SITE_FFN_OUT, SITE_COUNT };

/* plan.c: the sizes of a rank's part. PF_EINVAL where tokens cannot be shared evenly. */
int model_dims(const struct pf_model_spec *spec, const struct pf_model_options *options,
               struct dims *dims_out);
/* plan.c: tokens whose logits are held at once. */
int64_t model_loss_chunk(const struct pf_model_spec *spec, const struct pf_model_options *options);
/* Elements between rows of logits: whole cache lines whatever V. */
int64_t model_logits_stride(const struct dims *dims);
/* plan.c: layers of the largest chunk; is layer i of a chunk, or a part of it, computed again in
 * backward; how many layers form a group of which only the first one's input is kept. */
int64_t model_layers_max(const struct pf_model_spec *spec, const struct pf_model_options *options);
bool model_recomputes(const struct pf_model_spec *spec, const struct pf_model_options *options,
                      int64_t i);
int64_t model_group_size(const struct pf_model_spec *spec, const struct pf_model_options *options);
/* Do sums of backward go on in slices, one for each rank, while the rank computes? */
bool model_sums_overlap(const struct pf_model_spec *spec, const struct pf_model_options *options);
struct pf_model_chunk model_chunk(const struct pf_model_spec *spec,
                                  const struct pf_model_options *options, int chunk);
/* plan.c: allocate the arena and hand out the buffers of a model whose other fields are set. */
int model_allocate(struct pf_model *model);
/* weights.c: find the weights of this rank's chunks. */
int model_find_weights(struct pf_model *model);

/* Element n of an array of the model's dtype. */
static inline void *model_at(const struct pf_model *model, const void *array, int64_t n)
{
    return (char *)(uintptr_t)array + (size_t)n * model->element;
}

/* The value, or the gradient accumulator; NULL where there is none. */
const void *model_param(const struct pf_model *model, struct place place);
float *model_grad(const struct pf_model *model, struct place place);

/*
 * tensor.c: between tensor-parallel ranks; nothing, or a pointer, where there is one. Rows are of H.
 *   model_sum         every rank's [T,H] in place, or with sequence parallelism this rank's rows of the
 *                     sum, which then begin at *sum_out within it
 *   model_sum_begin, _end   the same in two parts, between which the rank may compute
 *   model_share       the rows of all ranks, from each one's own: x itself, or work.full
 *   model_is_first    is this the rank that adds what is to be added once?
 */
int model_sum(struct pf_model *model, void *x, void **sum_out);
int model_sum_begin(struct pf_model *model, void *x);
int model_sum_end(struct pf_model *model, void *x, void **sum_out);
int model_share(struct pf_model *model, const void *x, const void **full_out);
bool model_is_first(const struct pf_model *model);
bool model_shares_rows(const struct pf_model *model);

/* linear.c: y [T,n_out] = x [T,n_in] W (+ b). */
int model_linear(struct pf_model *model, const struct linear *linear, const void *x, int64_t ldx,
                 void *y, int64_t ldy);
/* The same, and in one op what follows it: y = x W (+ b) (+ residual), rows at distance ldy, or, with
 * activate, act of that, which itself goes to pre (rows at distance ldy too). */
struct linear_end {
    const void *residual; /* NULL: none */
    bool activate;
    enum pf_act_kind act;
    void *pre;
};
int model_linear_end(struct pf_model *model, const struct linear *linear, const void *x,
                     int64_t ldx, void *y, int64_t ldy, struct linear_end end);
/* linear.c: the end of half a layer: y [R,H] = residual + dropout(x W (+ b)), summed over
 * tensor-parallel ranks; one op where nothing is dropped. */
int model_to_residual(struct pf_model *model, const struct linear *linear, const void *x,
                      int64_t ldx, const struct pf_model_batch *batch, int64_t layer,
                      enum dropout_site site, const void *residual, void *y);
/* linear.c: its backward, as far as the projection's output: the gradient of the residual stream after
 * dropout, [T,H] of all ranks' rows; kept too where keep is not NULL. */
int model_residual_gradient(struct pf_model *model, const struct pf_model_batch *batch,
                            int64_t layer, enum dropout_site site, void *keep, const void **dy_out);
/* linear.c: the two parts of the backward pass: dx overwritten, or added to; gradients of weights
 * accumulated. */
int model_linear_dx(struct pf_model *model, const struct linear *linear, const void *dy,
                    int64_t lddy, void *dx, int64_t lddx, bool dx_accumulate);
int model_linear_dw(struct pf_model *model, const struct linear *linear, const void *x, int64_t ldx,
                    const void *dy, int64_t lddy);
/* linear.c: y = norm(x), rows of H; and backward into dx (overwrite or accumulate). */
int model_norm(struct pf_model *model, const struct norm *norm, const void *x, void *y, float *mean,
               float *rstd);
int model_norm_backward(struct pf_model *model, const struct norm *norm, const void *x,
                        const float *mean, const float *rstd, const void *dy, void *dx,
                        bool dx_accumulate);
/* linear.c: dropout of a site in place on [R,H] (forward on values, backward on gradients); nothing
 * at p 0. */
int model_dropout(struct pf_model *model, const struct pf_model_batch *batch, int64_t layer,
                  enum dropout_site site, double p, void *x);
uint64_t model_dropout_key(const struct pf_model *model, int64_t layer, enum dropout_site site);

/*
 * attention.c, ffn.c: the two halves of a layer. Forward reads the residual stream x and writes y = x
 * + half(norm(x)); backward turns work.dx, the gradient of y, into the gradient of x. Where it is split
 * it leaves the gradients of matrices and their biases to model_X_weights.
 */
int model_attention(struct pf_model *model, int64_t layer, struct layer_saved *saved,
                    const struct pf_model_batch *batch);
int model_attention_backward(struct pf_model *model, int64_t layer, struct layer_saved *saved,
                             const struct pf_model_batch *batch, bool split);
int model_attention_weights(struct pf_model *model, int64_t layer, struct layer_saved *saved);
int model_ffn(struct pf_model *model, int64_t layer, struct layer_saved *saved,
              const struct pf_model_batch *batch, void *y);
int model_ffn_backward(struct pf_model *model, int64_t layer, struct layer_saved *saved,
                       const struct pf_model_batch *batch, bool split);
int model_ffn_weights(struct pf_model *model, int64_t layer, struct layer_saved *saved);

/* What backward needs of a half, without its output: the attention alone, the half up to it, the
 * feed-forward half up to its activation. Each overwrites the parts of saved that it makes. */
int model_attention_core(struct pf_model *model, int64_t layer, struct layer_saved *saved,
                         const struct pf_model_batch *batch);
int model_attention_inner(struct pf_model *model, int64_t layer, struct layer_saved *saved,
                          const struct pf_model_batch *batch);
int model_ffn_inner(struct pf_model *model, int64_t layer, struct layer_saved *saved);

/* embed.c: tokens to the residual stream x [R,H], and back: adds the gradients of the tables. */
int model_embed(struct pf_model *model, const struct pf_model_batch *batch, void *x);
int model_embed_backward(struct pf_model *model, const struct pf_model_batch *batch, void *dx);

/* head.c: final norm, logits in chunks, loss, and with_grad the gradients that follow. */
int model_head(struct pf_model *model, struct live_saved *live, const struct pf_model_batch *batch,
               bool with_grad, float *token_loss);
/* head.c: turn live->dfinal_h into work.dx, the gradient of the last layer's output. */
int model_head_backward(struct pf_model *model, struct live_saved *live);
/* head.c: logits of tokens [first, first + n) of final_h [T,H] into logits [n, V here]. */
int model_logits_chunk(struct pf_model *model, const void *final_h, int64_t first, int64_t n,
                       void *logits);

#endif
