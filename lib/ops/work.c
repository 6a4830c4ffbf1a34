/* SPDX-License-Identifier: Apache-2.0 */
/* work.c - what an op must do at least: arithmetic, and bytes to and from memory. */
#include <pf/ops.h>

/* Elements of the call's dtype, of fp32 arrays, and of index arrays, each counted once for each
 * direction in which the op needs it; and arithmetic. */
struct count {
    double narrow, f32, index, flop;
};

static double product(int64_t a, int64_t b)
{
    return (double)a * (double)b;
}

static struct count count_gemm(const struct pf_gemm_args *a)
{
    const int arrays = 1 + (a->accumulate || a->residual) + (a->activate && a->pre);
    const double c = arrays * product(a->m, a->n);
    const bool is_f32 = a->c_dtype == PF_DTYPE_F32;

    return (struct count){.flop = 2 * product(a->m, a->n) * (double)a->k,
                          .narrow = product(a->m, a->k) + product(a->k, a->n) + (is_f32 ? 0 : c),
                          .f32 = is_f32 ? c : 0};
}

static struct count count_embed_fwd(const struct pf_embed_fwd_args *a)
{
    const double x = product(a->n_tokens, a->width);

    return (struct count){.narrow = (a->pos_table ? 3 : 2) * x, .index = (double)a->n_tokens};
}

static struct count count_embed_bwd(const struct pf_embed_bwd_args *a)
{
    const double x = product(a->n_tokens, a->width);

    return (struct count){.narrow = x,
                          .f32 = ((a->dtable ? 2 : 0) + (a->dpos_table ? 2 : 0)) * x,
                          .index = (double)a->n_tokens};
}

static struct count count_norm(int64_t n_rows, int64_t width, int arrays, int statistics)
{
    return (struct count){.narrow = arrays * product(n_rows, width),
                          .f32 = (double)statistics * (double)n_rows};
}

static struct count count_rope(const struct pf_rope_args *a)
{
    return (struct count){.narrow = 2 * product(a->n_tokens, a->n_heads) * 2 * (double)a->n_pairs,
                          .f32 = 2 * product(a->n_tokens, a->n_pairs)};
}

/* Query i sees i + 1 keys; `products` of width D or Dv for each pair. */
static struct count count_attention(const struct pf_attention_fwd_args *a, bool backward)
{
    const double tokens = product(a->batch, a->seq);
    const double pairs = tokens * (double)a->n_heads * ((double)a->seq + 1) / 2;
    const double d = (double)a->head_dim, dv = (double)a->v_head_dim;
    const double q = tokens * (double)a->n_heads * d, k = tokens * (double)a->n_kv_heads * d,
                 v = tokens * (double)a->n_kv_heads * dv, o = tokens * (double)a->n_heads * dv;

    if (!backward) {
        return (struct count){.flop = 2 * pairs * (d + dv),
                              .narrow = q + k + v + o,
                              .f32 = tokens * (double)a->n_heads};
    }
    /* The scores again, dv, dp, dq, dk. */
    return (struct count){.flop = 2 * pairs * (3 * d + 2 * dv),
                          .narrow = 2 * (q + k + v + o),
                          .f32 = 2 * tokens * (double)a->n_heads};
}

static struct count count_elements(double n, int arrays)
{
    return (struct count){.narrow = n * arrays};
}

static struct count count_cross_entropy(const struct pf_cross_entropy_args *a)
{
    return (struct count){.narrow = (a->with_grad ? 2 : 1) * product(a->n_rows, a->vocab),
                          .f32 = (double)a->n_rows,
                          .index = (double)a->n_rows};
}

static struct count count_vocab_ce_fwd(const struct pf_vocab_ce_fwd_args *a)
{
    return (struct count){.narrow = product(a->n_rows, a->vocab),
                          .f32 = 3 * (double)a->n_rows,
                          .index = (double)a->n_rows};
}

static struct count count_vocab_ce_bwd(const struct pf_vocab_ce_bwd_args *a)
{
    return (struct count){.narrow = 2 * product(a->n_rows, a->vocab),
                          .f32 = 2 * (double)a->n_rows,
                          .index = (double)a->n_rows};
}

static struct count count_adamw(const struct pf_adamw_args *a)
{
    return (struct count){.f32 = 7 * (double)a->n, .narrow = a->weight_out ? (double)a->n : 0};
}

static struct count count_norm_op(enum pf_op op, const void *args)
{
    if (op == PF_OP_RMSNORM_FWD) {
        const struct pf_rmsnorm_fwd_args *const a = args;
        return count_norm(a->n_rows, a->width, a->residual ? 4 : 2, 1);
    }
    if (op == PF_OP_RMSNORM_BWD) {
        const struct pf_rmsnorm_bwd_args *const a = args;
        return count_norm(a->n_rows, a->width, a->dx_accumulate ? 4 : 3, 1);
    }
    if (op == PF_OP_LAYERNORM_FWD) {
        const struct pf_layernorm_fwd_args *const a = args;
        return count_norm(a->n_rows, a->width, a->residual ? 4 : 2, 2);
    }
    const struct pf_layernorm_bwd_args *const a = args;
    return count_norm(a->n_rows, a->width, a->dx_accumulate ? 4 : 3, 2);
}

static struct count count_elementwise(enum pf_op op, const void *args)
{
    const struct pf_glu_fwd_args *const glu = args;
    const struct pf_glu_bwd_args *const glu_bwd = args;
    const struct pf_bias_grad_args *const bias = args;

    switch (op) {
    case PF_OP_GLU_FWD:
        return count_elements(product(glu->n_rows, glu->width), 3);
    case PF_OP_GLU_BWD:
        return count_elements(product(glu_bwd->n_rows, glu_bwd->width), 5);
    case PF_OP_BIAS_GRAD:
        return count_elements(product(bias->n_rows, bias->width), 1);
    case PF_OP_ACT_FWD:
        return count_elements((double)((const struct pf_act_fwd_args *)args)->n, 2);
    case PF_OP_ACT_BWD:
        return count_elements((double)((const struct pf_act_bwd_args *)args)->n, 3);
    case PF_OP_ADD:
        return count_elements((double)((const struct pf_add_args *)args)->n, 3);
    case PF_OP_SCALE:
        return count_elements((double)((const struct pf_scale_args *)args)->n, 2);
    case PF_OP_DROPOUT:
        return count_elements((double)((const struct pf_dropout_args *)args)->n, 2);
    default:
        return (struct count){0};
    }
}

static struct count count_op(enum pf_op op, const void *args)
{
    switch (op) {
    case PF_OP_GEMM:
        return count_gemm(args);
    case PF_OP_EMBED_FWD:
        return count_embed_fwd(args);
    case PF_OP_EMBED_BWD:
        return count_embed_bwd(args);
    case PF_OP_RMSNORM_FWD:
    case PF_OP_RMSNORM_BWD:
    case PF_OP_LAYERNORM_FWD:
    case PF_OP_LAYERNORM_BWD:
        return count_norm_op(op, args);
    case PF_OP_ROPE:
        return count_rope(args);
    case PF_OP_ATTENTION_FWD:
        return count_attention(args, false);
    case PF_OP_ATTENTION_BWD:
        return count_attention(&((const struct pf_attention_bwd_args *)args)->fwd, true);
    case PF_OP_CROSS_ENTROPY:
        return count_cross_entropy(args);
    case PF_OP_VOCAB_CE_FWD:
        return count_vocab_ce_fwd(args);
    case PF_OP_VOCAB_CE_BWD:
        return count_vocab_ce_bwd(args);
    case PF_OP_ADAMW:
        return count_adamw(args);
    default:
        return count_elementwise(op, args);
    }
}

struct pf_op_work pf_op_work(enum pf_op op, enum pf_dtype dtype, const void *args)
{
    const struct count c = count_op(op, args);

    return (struct pf_op_work){
        .flop = c.flop, .bytes = c.narrow * (double)pf_dtype_bytes(dtype) + 4 * (c.f32 + c.index)};
}
