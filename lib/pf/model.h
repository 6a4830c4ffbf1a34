/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - one decoder for every dense family, built from a spec and read off a tensor table.
 *
 * A model owns activations and work space, planned whole at creation; parameters and gradients live
 * in fused buffers that the trainer owns and binds. forward and backward run one micro-batch through
 * the whole stack. Activations of several micro-batches may be alive at once, one in each `live`
 * slot, as the schedule demands.
 *
 * The head and the loss are one operation, in chunks of tokens: logits of a chunk, its cross-entropy
 * and, when training, the gradients that follow from it are made before the next chunk overwrites it;
 * no [T,V] matrix exists. So forward leaves the gradient of the final hidden state
 * behind, and has added the head's weight gradient.
 *
 * Weights and activations have one dtype, F32, BF16 or F16; sums, norms' statistics, losses and
 * gradients of weights are fp32 in all of them. Gradients accumulate (+=) into the bound buffer,
 * unscaled but for batch->grad_scale. Nothing is allocated after pf_model_new except library scratch
 * in the first step.
 *
 * Recomputation trades time for memory: what a recomputed part would have saved lies in buffers that
 * all such parts share, and backward runs the part's forward again first, with the same kernels and
 * the same draws, so that no bit changes.
 *
 *     PF_TRY(pf_model_new(&spec, table, layout, ops, &options, &model));
 *     pf_model_bind(model, params, grads);
 *     for each micro-batch:
 *             PF_TRY(pf_model_forward(model, 0, 0, &batch, true, token_loss));
 *             PF_TRY(pf_model_backward(model, 0, 0, &batch));
 *
 * A rank may have a part of the model. Pipeline stages have chunks of consecutive layers: a chunk
 * reads the residual stream that the one before it made (pf_model_input) and leaves its own
 * (pf_model_output); backward takes the gradient of the output where it leaves that of the input
 * (pf_model_gradient). Who moves them is the caller's business. Tensor-parallel ranks have parts of
 * every matrix (pf/table.h) and compute a chunk together: forward and backward are then collective
 * over options.tp, with the same arguments on each of its ranks. They sum the outputs of the
 * projections that their parts enter (attention's output, down, the embedding) and the gradients of
 * what their parts read; the loss is taken on columns of logits, never gathered. With sequence
 * parallelism the residual stream, its norms and dropout lie on the ranks by tokens, T / n_tp
 * neighbours each, are gathered before a projection and the sums are scattered. Gradients of weights
 * that the ranks have copies of are then, and those of q and k norms and shared key heads always,
 * each rank's part of a sum: pf_model_grad_ranks tells which.
 *
 * Source of the mathematics: the families' Hugging Face implementations as restated in the golden
 * fixtures' README; of the parallel forms Shoeybi et al. 2019 (Megatron-LM) and Korthikanti et al. 2022
 * (sequence parallelism). One model is used by one thread, that of the communicator.
 */
#ifndef PF_MODEL_H
#define PF_MODEL_H

#include <pf/comm.h>
#include <pf/layout.h>
#include <pf/ops.h>
#include <pf/spec.h>
#include <pf/table.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pf_model;

/* Does this build compute the model of a spec? Returns 0, or PF_ENOTSUP naming the family and what is
 * missing. Asked before anything is made of a spec that is to be trained. */
int pf_model_check(const struct pf_model_spec *spec);

/* What backward computes again instead of finding it saved (Megatron's and PaddleFormers' names). */
enum pf_recompute {
    PF_RECOMPUTE_NONE,
    PF_RECOMPUTE_FULL,      /* whole layers; only their inputs are saved */
    PF_RECOMPUTE_FULL_ATTN, /* the attention half: norm, projections, rotation, attention */
    PF_RECOMPUTE_CORE_ATTN, /* the attention itself; its q, k and v are saved */
};

enum pf_recompute_method {
    PF_RECOMPUTE_UNIFORM, /* every layer; whole layers in groups of n of which only the first one's
                             input is saved */
    PF_RECOMPUTE_BLOCK,   /* the first n layers, each by itself; the others save everything */
};

/* Consecutive layers of one pipeline stage, with what comes before the first or behind the last. */
struct pf_model_chunk {
    int64_t first_layer, end_layer;
    bool embed, head;
};

struct pf_model_options {
    int64_t batch, seq;  /* of every micro-batch; T = batch * seq */
    enum pf_dtype dtype; /* of weights and activations: F32, BF16, F16 */
    enum pf_recompute recompute;
    enum pf_recompute_method recompute_method;
    int64_t recompute_layers;       /* n of the method; 0: uniform 1, block all */
    int n_live;                     /* micro-batches whose activations are held at once */
    bool train;                     /* false: no backward buffers */
    int64_t loss_chunk;             /* tokens whose logits are held at once; 0: chosen from V */
    uint64_t seed;                  /* of dropout */
    bool padding_row_gets_gradient; /* false: as transformers (nn.Embedding's padding_idx) */
    /* The rank's part. */
    const struct pf_model_chunk *chunks; /* [n_chunks], copied; NULL: one, the whole model */
    int n_chunks;
    int n_tp, tp_rank;      /* 0: 1; number and coordinate of tensor-parallel ranks */
    struct pf_comm *tp;     /* these ranks; NULL where there is one, and to plan */
    bool sequence_parallel; /* n_tp must divide T */
    bool overlap_sums;      /* weight gradients are computed while sums over tp go on */
    bool split_backward;    /* pf_model_backward_weights is called apart; not with recompute */
};

/* A micro-batch, in host memory, owned by the caller. */
struct pf_model_batch {
    const int32_t *ids;       /* [batch, seq] */
    const int32_t *targets;   /* [batch, seq], -1: does not count */
    const int32_t *first_key; /* [batch, seq] first visible key, or NULL: 0 */
    const int32_t *positions; /* [batch, seq] position for embedding and rotation, or NULL: s */
    int64_t first_sequence;   /* global number of sequence 0: dropout draws by it */
    float grad_scale;         /* on the gradient of the summed loss */
    bool dropout;             /* false: evaluation */
};

/* Bytes that pf_model_new will allocate, by purpose; the figures of --plan. */
struct pf_model_plan {
    size_t activation_bytes; /* all live slots */
    size_t work_bytes;
    size_t logits_bytes;
};
int pf_model_plan(const struct pf_model_spec *spec, const struct pf_model_options *options,
                  struct pf_model_plan *plan_out);

/* A pass of one micro-batch through a chunk; its backward is in two parts with split_backward. */
enum pf_model_pass { PF_MODEL_FORWARD, PF_MODEL_BACKWARD, PF_MODEL_BACKWARD_WEIGHTS };

/* Add to bytes[kind] what a pass of training brings to the collectives and messages of the
 * tensor-parallel ranks, as pf_comm_stats counts it on each of them. For any rank, without a model. */
void pf_model_traffic(const struct pf_model_spec *spec, const struct pf_table *table,
                      const struct pf_model_options *options, int chunk, enum pf_model_pass pass,
                      uint64_t bytes[PF_COMM_KIND_COUNT]);

/*
 * spec, table, layout and ops must outlive the model. Errors: PF_EINVAL (a sequence longer than the
 * learned positions, tokens that n_tp does not divide), PF_ENOTSUP, PF_ENOMEM.
 */
int pf_model_new(const struct pf_model_spec *spec, const struct pf_table *table,
                 const struct pf_layout *layout, struct pf_ops *ops,
                 const struct pf_model_options *options, struct pf_model **model_out);
void pf_model_free(struct pf_model *model);

/* Use these fused buffers at the layout's offsets: params of the model's dtype, grads fp32 (NULL for
 * a model that only evaluates). */
void pf_model_bind(struct pf_model *model, const void *params, float *grads);

/*
 * One micro-batch forward through a chunk, 0 <= chunk < n_chunks, into a live slot, which any chunk may
 * use. Without the embedding its input lies at pf_model_input already. With the head token_loss [T] is
 * overwritten with each position's loss (0 where the target is -1), and with_grad also adds the head's
 * weight gradient and leaves what backward needs. Elsewhere token_loss is not touched.
 */
int pf_model_forward(struct pf_model *model, int chunk, int live,
                     const struct pf_model_batch *batch, bool with_grad, float *token_loss);

/*
 * Backward of the chunk's forward that filled this live slot. Without the head pf_model_gradient holds
 * the gradient of its output; without the embedding it then holds that of its input. Adds all other
 * weight gradients; with split_backward those of matrices are left to pf_model_backward_weights, until
 * which the slot stays taken.
 */
int pf_model_backward(struct pf_model *model, int chunk, int live,
                      const struct pf_model_batch *batch);
int pf_model_backward_weights(struct pf_model *model, int chunk, int live);

/* The residual stream between chunks, [pf_model_n_rows, H] of the model's dtype: where a chunk without
 * the embedding reads in a slot, what a chunk without the head leaves there; and the gradient of
 * either. */
void *pf_model_input(struct pf_model *model, int live);
const void *pf_model_output(const struct pf_model *model, int chunk, int live);
void *pf_model_gradient(struct pf_model *model);
int64_t pf_model_n_rows(const struct pf_model *model);

/*
 * Over how many neighbouring tensor-parallel ranks (n_tp, or those that share a key head) must the
 * gradient of a row be summed after the last backward? 1: none. The groups are [k n, (k + 1) n).
 */
int pf_model_grad_ranks(const struct pf_table *table, const struct pf_tensor_row *row, int n_tp,
                        bool sequence_parallel);

/* Logits [T,V] of the forward of the chunk with the head in a live slot as floats, for dumps. Overwrites
 * logits on every tensor-parallel rank. */
int pf_model_logits(struct pf_model *model, int live, float *logits);

/* Logits [V] of one token, 0 <= token < T, of that forward: what follows it. Overwrites logits. */
int pf_model_token_logits(struct pf_model *model, int live, int64_t token, float *logits);

/*
 * Hidden state [T,H] of the chunk's forward in a live slot as floats, for dumps, on every
 * tensor-parallel rank: i = 0 is the input of the first layer, i <= n_layers the output of layer i-1,
 * n_layers + 1 the normed output of the last. A chunk has the inputs of its layers, and with the head
 * both last ones. PF_EINVAL where recomputation did not keep it, or it is another chunk's.
 */
int pf_model_hidden(struct pf_model *model, int chunk, int live, int64_t i, float *hidden);

int64_t pf_model_n_tokens(const struct pf_model *model);

/* Multiply-adds times two of one forward and backward of a micro-batch of T tokens (attention causal,
 * recomputation not counted): what mfu is measured against. */
double pf_model_step_flops(const struct pf_model_spec *spec, int64_t batch, int64_t seq);

#endif
