/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a training step of a config: read off its tensor table and its spec. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/model.h>

/* What all shapes follow from. */
struct sizes {
    const struct pf_bench_ops_options *options;
    struct bench_items *items;
    const struct pf_model_spec *spec;
    int64_t batch, seq, tokens;
    int64_t chunk; /* tokens of the loss at once */
};

static int add(const struct sizes *z, enum pf_op op, struct bench_shape shape)
{
    if (!bench_wants(z->options, op)) {
        return 0;
    }
    return bench_items_add(z->items, z->options, bench_op_find(op), &shape);
}

static enum pf_act_kind act_of(const struct pf_model_spec *spec)
{
    return spec->act == PF_SPEC_ACT_SILU        ? PF_ACT_SILU
           : spec->act == PF_SPEC_ACT_GELU_TANH ? PF_ACT_GELU_TANH
           : spec->act == PF_SPEC_ACT_GELU_ERF  ? PF_ACT_GELU_ERF
                                                : PF_ACT_RELU;
}

/* y = x W^T or x W of n rows, and the two products of its backward pass, as lib/model calls them. */
static int add_products(const struct sizes *z, int64_t n, const struct pf_tensor_row *w)
{
    const int64_t n_in = w->in_out ? w->shape[0] : w->shape[1];
    const int64_t n_out = w->in_out ? w->shape[1] : w->shape[0];

    const bool to_residual = w->slot == PF_SLOT_O_W || w->slot == PF_SLOT_DOWN_W;
    const struct bench_shape forward = {.d = {n, n_out, n_in},
                                        .trans_b = !w->in_out,
                                        .residual = to_residual && !(z->spec->residual_dropout > 0),
                                        .activate = w->slot == PF_SLOT_UP_W && !z->spec->gated,
                                        .act = act_of(z->spec)};

    PF_TRY(add(z, PF_OP_GEMM, forward));
    PF_TRY(add(z, PF_OP_GEMM, (struct bench_shape){.d = {n, n_in, n_out}, .trans_b = w->in_out}));
    return add(z, PF_OP_GEMM,
               (struct bench_shape){
                   .d = {w->shape[0], w->shape[1], n}, .trans_a = true, .accumulate = true});
}

static bool is_linear(const struct pf_tensor_row *row)
{
    return row->n_dims == 2 && row->slot != PF_SLOT_EMBED && row->slot != PF_SLOT_POS_EMBED;
}

/* Every linear layer, the head by chunks; and biases, whose gradient is a sum over rows. */
static int add_linears(const struct sizes *z, const struct pf_table *table)
{
    for (int64_t i = 0; i < table->n_rows; i++) {
        const struct pf_tensor_row *const row = &table->rows[i];
        const int64_t n = row->slot == PF_SLOT_HEAD_W ? z->chunk : z->tokens;
        if (is_linear(row)) {
            PF_TRY(add_products(z, n, row));
        }
    }
    for (int64_t i = 0; i < table->n_rows; i++) {
        const enum pf_slot slot = table->rows[i].slot;
        if (slot == PF_SLOT_QKV_B || slot == PF_SLOT_Q_B || slot == PF_SLOT_K_B ||
            slot == PF_SLOT_V_B || slot == PF_SLOT_O_B || slot == PF_SLOT_GATE_B ||
            slot == PF_SLOT_UP_B || slot == PF_SLOT_DOWN_B) {
            PF_TRY(add(z, PF_OP_BIAS_GRAD,
                       (struct bench_shape){.d = {z->tokens, table->rows[i].shape[0]}}));
        }
    }
    return 0;
}

static int add_norms(const struct sizes *z)
{
    const struct pf_model_spec *const s = z->spec;
    const bool rms = s->norm == PF_NORM_RMS;
    const struct bench_shape rows = {.d = {z->tokens, s->hidden}};

    PF_TRY(add(z, rms ? PF_OP_RMSNORM_FWD : PF_OP_LAYERNORM_FWD, rows));
    PF_TRY(add(z, rms ? PF_OP_RMSNORM_BWD : PF_OP_LAYERNORM_BWD, rows));
    if (s->qk_norm) {
        const struct bench_shape heads = {.d = {z->tokens * s->n_heads, s->head_dim}};
        PF_TRY(add(z, PF_OP_RMSNORM_FWD, heads));
        PF_TRY(add(z, PF_OP_RMSNORM_BWD, heads));
    }
    return 0;
}

static int add_attention(const struct sizes *z)
{
    const struct pf_model_spec *const s = z->spec;
    const struct bench_shape shape = {
        .d = {z->batch, z->seq, s->n_heads, s->n_kv_heads, s->head_dim}};

    if (s->rope.kind != PF_ROPE_NONE && s->rope.dim == s->head_dim) {
        PF_TRY(add(z, PF_OP_ROPE, (struct bench_shape){.d = {z->tokens, s->n_heads, s->head_dim}}));
    }
    PF_TRY(add(z, PF_OP_ATTENTION_FWD, shape));
    return add(z, PF_OP_ATTENTION_BWD, shape);
}

static int add_rest(const struct sizes *z, const struct pf_table *table)
{
    const struct pf_model_spec *const s = z->spec;
    const struct bench_shape rows = {.d = {z->tokens, s->ffn}};
    const struct bench_shape all = {.d = {z->tokens * s->ffn}};
    const struct bench_shape embed = {.d = {z->tokens, s->hidden, s->vocab_size}};
    const struct bench_shape hidden = {.d = {z->tokens * s->hidden}};
    int64_t n_parameters = 0;

    for (int64_t i = 0; i < table->n_rows; i++) {
        const bool own = table->rows[i].tied_to < 0;
        n_parameters += own ? pf_tensor_row_count(&table->rows[i]) : 0;
    }
    if (s->gated) { /* without a gate the activation ends a product */
        PF_TRY(add(z, PF_OP_GLU_FWD, rows));
    }
    PF_TRY(add(z, s->gated ? PF_OP_GLU_BWD : PF_OP_ACT_BWD, s->gated ? rows : all));
    if (s->residual_dropout > 0) {
        PF_TRY(add(z, PF_OP_ADD, hidden));
    }
    if (s->residual_dropout > 0 || s->embed_dropout > 0) {
        PF_TRY(add(z, PF_OP_DROPOUT, hidden));
    }
    PF_TRY(add(z, PF_OP_EMBED_FWD, embed));
    PF_TRY(add(z, PF_OP_EMBED_BWD, embed));
    PF_TRY(add(z, PF_OP_CROSS_ENTROPY, (struct bench_shape){.d = {z->chunk, s->vocab_size}}));
    return add(z, PF_OP_ADAMW, (struct bench_shape){.d = {n_parameters}});
}

/* The tokens of a chunk, from the bytes that a model plans for its logits. */
static int find_chunk(const struct pf_config *config, struct sizes *z)
{
    const struct pf_model_options options = {
        .batch = z->batch, .seq = z->seq, .dtype = config->dtype, .n_live = 1, .train = true};
    struct pf_model_plan plan;

    PF_TRY(pf_model_plan(z->spec, &options, &plan));
    z->chunk = (int64_t)(plan.logits_bytes / pf_dtype_bytes(config->dtype)) / z->spec->vocab_size;
    z->chunk = z->chunk > z->tokens ? z->tokens : z->chunk < 1 ? 1 : z->chunk;
    return 0;
}

int bench_items_of_model(const struct pf_bench_ops_options *options, struct bench_items *items)
{
    struct bench_trainer t;
    struct sizes z = {.options = options, .items = items};
    int err = 0;

    PF_TRY_GOTO(bench_trainer_open(options->model, NULL, 0, NULL, &t), out);
    const struct pf_table *const table = pf_trainer_table(t.trainer);
    z.spec = pf_trainer_spec(t.trainer);
    z.batch = t.config.per_device_train_batch_size;
    z.seq = t.config.max_seq_length;
    z.tokens = z.batch * z.seq;
    PF_TRY_GOTO(find_chunk(&t.config, &z), out);
    PF_TRY_GOTO(add_linears(&z, table), out);
    PF_TRY_GOTO(add_norms(&z), out);
    PF_TRY_GOTO(add_attention(&z), out);
    PF_TRY_GOTO(add_rest(&z, table), out);
out:
    bench_trainer_close(&t);
    return err;
}
