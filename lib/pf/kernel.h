/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel.h - the C ABI between lib/ops and the kernels: one argument struct for each op.
 *
 * A kernel is a pure function of its arguments: it reads and writes only what the struct points to,
 * allocates nothing, keeps no state between calls, and gives the same bits for the same arguments
 * and the same n_threads. Elementwise kernels give the same bits at any offset and length.
 * kernels/ref defines what each op means; every other kernel is compared with it.
 *
 * Conventions. Arrays are row-major. T = B*S tokens of a micro-batch (batch-major: token b*S+s), H
 * hidden width, A query heads, G key/value heads (A a multiple of G), D head width, V vocabulary.
 * Pointers `void *` have the dtype under which the kernel is registered (the `dtype` of the call);
 * pointers `float *` are always fp32. "overwrite" and "accumulate" (+=) are said for each output.
 * ld* are leading dimensions in elements: the distance between rows.
 *
 * The library's front end (pf/ops.h) has checked shapes, alignment and NULLs before a kernel is
 * called: kernels do not check again. A kernel returns 0, or a pf_error code where a library under
 * it failed.
 */
#ifndef PF_KERNEL_H
#define PF_KERNEL_H

#include <pf/dtype.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum pf_op {
    PF_OP_GEMM,
    PF_OP_EMBED_FWD,
    PF_OP_EMBED_BWD,
    PF_OP_RMSNORM_FWD,
    PF_OP_RMSNORM_BWD,
    PF_OP_LAYERNORM_FWD,
    PF_OP_LAYERNORM_BWD,
    PF_OP_ROPE,
    PF_OP_ATTENTION_FWD,
    PF_OP_ATTENTION_BWD,
    PF_OP_GLU_FWD,
    PF_OP_GLU_BWD,
    PF_OP_ACT_FWD,
    PF_OP_ACT_BWD,
    PF_OP_BIAS_GRAD,
    PF_OP_ADD,
    PF_OP_SCALE,
    PF_OP_DROPOUT,
    PF_OP_CROSS_ENTROPY,
    PF_OP_VOCAB_CE_FWD,
    PF_OP_VOCAB_CE_BWD,
    PF_OP_ADAMW,
    PF_OP_COUNT
};

/* What a kernel may use besides its arguments. */
struct pf_kctx {
    int n_threads; /* work is cut into this many parts, always the same way */
    void *scratch; /* at least what the op's scratch rule asks for, 64-byte aligned */
    size_t scratch_bytes;
    size_t cache_bytes; /* of the last-level cache; 0: unknown */
    void *library;      /* state of a library behind the kernel (oneDNN's engine), or NULL */
};

/* Every kernel has this type; args points to the struct of its op below. */
typedef int (*pf_kernel_fn)(const struct pf_kctx *ctx, const void *args);

/* Activations. GELU: Hendrycks & Gimpel 2016; TANH is its tanh form (gelu_new, gelu_pytorch_tanh). */
enum pf_act_kind { PF_ACT_SILU, PF_ACT_GELU_TANH, PF_ACT_GELU_ERF, PF_ACT_RELU };

/*
 * GEMM: c[m,n] = op(a)[m,k] op(b)[k,n] (+ bias[n]) (+ residual[m,n]) (+ c if accumulate), or, with
 * activate, act of that. a is stored [m,k] with lda, or [k,m] if trans_a; b [k,n], or [n,k] if
 * trans_b. Sums are fp32 and rounded once, to c_dtype: the dtype of the call, or PF_DTYPE_F32 for
 * weight gradients whatever a and b are. k may be 0 (then the product is 0).
 *
 * accumulate excludes bias, residual and activate; these two ask for a c of the call's dtype.
 * residual may be c itself (then ldr is ldc). act is taken of the rounded sum, and gives what
 * act_fwd gives for it; the sum itself goes to pre, unless that is NULL. pre must not overlap c.
 *
 * Scratch: PF_GEMM_SCRATCH_FLOATS a thread.
 */
#define PF_GEMM_SCRATCH_FLOATS (1024 * 1024)
struct pf_gemm_args {
    int64_t m, n, k;
    const void *a;
    int64_t lda;
    bool trans_a;
    const void *b;
    int64_t ldb;
    bool trans_b;
    void *c;
    int64_t ldc;
    enum pf_dtype c_dtype;
    bool accumulate;
    const void *bias;     /* [n] or NULL */
    const void *residual; /* [m,n] or NULL */
    int64_t ldr;
    bool activate;
    enum pf_act_kind act;
    void *pre; /* [m,n] or NULL; read only with activate */
    int64_t ldp;
};

/* y[t,:] = table[ids[t],:] (+ pos_table[positions[t],:]). Overwrites y [T,H]. positions NULL means
 * t mod seq; they lie in [0, n_positions); n_positions (P) is read only with a pos_table.
 *
 * The table may be a part of the vocabulary: it holds rows [first_row, first_row + n_rows) of it, and
 * ids, which lie in [0, n_vocab), are of the whole. A token whose row is elsewhere has 0 for it, so that
 * the sum over all parts, of which one adds positions, is what the whole table gives. n_rows may be 0
 * and may reach beyond n_vocab (padding). n_vocab 0: the table is whole, so ids lie in [0, n_rows) and
 * first_row is 0. */
struct pf_embed_fwd_args {
    int64_t n_tokens, width, n_rows, n_positions, seq, first_row, n_vocab;
    const int32_t *ids;       /* [T] */
    const int32_t *positions; /* [T] or NULL */
    const void *table;        /* [n_rows, H] */
    const void *pos_table;    /* [P, H] or NULL */
    void *y;                  /* [T, H] */
};

/* dtable[ids[t],:] += dy[t,:] and dpos_table[positions[t],:] += dy[t,:], in token order for each
 * row. Rows with ids[t] == skip_id get nothing (nn.Embedding's padding_idx; -1 for none); their
 * position rows do. So it is with tokens whose row is elsewhere, where dtable is a part: first_row and
 * n_vocab are as in the forward pass. skip_id, too, is of the whole vocabulary. */
struct pf_embed_bwd_args {
    int64_t n_tokens, width, n_rows, n_positions, seq, first_row, n_vocab;
    const int32_t *ids;
    const int32_t *positions;
    int64_t skip_id;
    const void *dy;    /* [T, H] */
    float *dtable;     /* [n_rows, H] accumulate, or NULL */
    float *dpos_table; /* [P, H] accumulate, or NULL */
};

/*
 * RMSNorm, Source: Zhang & Sennrich 2019; as transformers' LlamaRMSNorm: rstd = 1/sqrt(mean(x^2) +
 * eps) in fp32, y = round(x*rstd) * weight, where round is to the dtype of x. Rows are n_rows
 * vectors of width elements at distance ldx, ldy. Overwrites y and rstd.
 *
 * With a residual, x is x + residual, rounded to the dtype, in all of the above, and is written to sum:
 * the bits of add, then norm. residual and sum are both given or both NULL; sum may be x or residual
 * (at its distance), y may not be sum.
 */
struct pf_rmsnorm_fwd_args {
    int64_t n_rows, width, ldx, ldy;
    const void *x, *weight;
    float eps;
    void *y;
    float *rstd; /* [n_rows] saved for backward */
    const void *residual;
    void *sum;
    int64_t ldr, lds; /* of residual and sum */
};

/* dx (=, or += if dx_accumulate) and dweight[width] += from dy, x, rstd. dx may be dy. The sum over
 * rows has a fixed order for a given n_threads. Scratch: n_threads * width floats. */
struct pf_rmsnorm_bwd_args {
    int64_t n_rows, width, ldx, lddy, lddx;
    const void *x, *weight, *dy;
    const float *rstd;
    void *dx;
    bool dx_accumulate;
    float *dweight; /* accumulate; NULL if frozen */
};

/* LayerNorm, Source: Ba et al. 2016, biased variance: y = (x - mean) * rstd * weight + bias.
 * residual and sum: as for rmsnorm_fwd. */
struct pf_layernorm_fwd_args {
    int64_t n_rows, width, ldx, ldy;
    const void *x, *weight, *bias; /* bias may be NULL */
    float eps;
    void *y;
    float *mean, *rstd; /* [n_rows] each */
    const void *residual;
    void *sum;
    int64_t ldr, lds; /* of residual and sum */
};

/* Scratch: 2 * n_threads * width floats. */
struct pf_layernorm_bwd_args {
    int64_t n_rows, width, ldx, lddy, lddx;
    const void *x, *weight, *dy;
    const float *mean, *rstd;
    void *dx;
    bool dx_accumulate;
    float *dweight, *dbias; /* accumulate; NULL if frozen or absent */
};

/*
 * Rotary embedding, in place, Source: Su et al. 2021. x holds n_tokens rows at distance ldx, each
 * n_heads vectors of head_dim elements; of each vector the elements [first, first + 2*n_pairs) turn:
 * with pairs_adjacent elements (2i, 2i+1), otherwise (i, i + n_pairs), counted from first. Pair i at
 * position p turns by the angle whose cosine and sine stand at cos_table[p*n_pairs + i] and
 * sin_table[...], tables of n_positions rows. inverse turns back (it is the backward pass).
 */
struct pf_rope_args {
    int64_t n_tokens, n_heads, head_dim, ldx, first, n_pairs, n_positions, seq;
    bool pairs_adjacent, inverse;
    const int32_t *positions; /* [T], NULL: t mod seq */
    const float *cos_table, *sin_table;
    void *x;
};

/*
 * Causal attention with grouped key/value heads, Source: Vaswani et al. 2017; tiles and online
 * softmax as Dao et al. 2022. Query head h uses key head h / (A/G). Query at position i of sequence
 * b sees keys j with first_key[b*S+i] <= j <= i (first_key NULL: 0). Never holds a [S,S] matrix.
 * q, k, v, out: token rows at distance ldq..., head h at offset h*D (h*Dv for v and out).
 * lse [B,A,S] = log sum exp of the scaled scores. Dropout on the probabilities where dropout_p > 0:
 * element (b,h,i,j) is kept if pf_dropout_keep (pf/rng.h) of (dropout_key,
 * (((first_sequence+b)*N+first_head+h)*S+i)*S+j), and is then scaled by 1/(1-p); N is n_heads_total, or
 * A where that is 0. Overwrites out and lse.
 * A kernel may round probabilities, and backward the gradients of scores, to the dtype where they are
 * factors of products; lse and delta are of unrounded ones.
 * Scratch: PF_ATTENTION_SCRATCH_FLOATS(D, Dv) floats a thread.
 */
#define PF_ATTENTION_TILE 64
#define PF_ATTENTION_SCRATCH_FLOATS(d, dv)                                                         \
    ((size_t)PF_ATTENTION_TILE *                                                                   \
     (4 * (size_t)PF_ATTENTION_TILE + 6 * ((size_t)(d) + (size_t)(dv)) + 64))
struct pf_attention_fwd_args {
    int64_t batch, seq, n_heads, n_kv_heads, head_dim, v_head_dim;
    int64_t ldq, ldk, ldv, ldo;
    const void *q, *k, *v;
    const int32_t *first_key; /* [B,S] or NULL */
    float scale;
    float dropout_p;
    uint64_t dropout_key;
    uint64_t first_sequence; /* global number of sequence 0, so that no layout changes a draw */
    /* Which heads of how many these are, for the same reason. n_heads_total 0: all, and first_head is 0. */
    int64_t first_head, n_heads_total;
    void *out;
    float *lse;
};

/* Overwrites dq, dk, dv (same strides as q, k, v, which they must not overlap). delta [B,A,S] is
 * work space owned by the caller: sum over Dv of dout * out.
 * Deterministic for a given n_threads: each dk, dv row is summed over heads of its group and query
 * tiles in an order that depends on shape and n_threads alone.
 * Scratch: PF_ATTENTION_BWD_SCRATCH_FLOATS(D, Dv, S) floats a thread. */
#define PF_ATTENTION_BWD_SCRATCH_FLOATS(d, dv, seq)                                                \
    (PF_ATTENTION_SCRATCH_FLOATS(d, dv) + 2 * (size_t)(seq) * ((size_t)(d) + (size_t)(dv)))
struct pf_attention_bwd_args {
    struct pf_attention_fwd_args
        fwd; /* as given to the forward pass; out and lse are its results */
    int64_t lddo;
    const void *dout;
    float *delta;
    void *dq, *dk, *dv;
};

/* y[i,j] = act(gate[i,j]) * up[i,j] (SwiGLU for SILU, Source: Shazeer 2020). Overwrites y. */
struct pf_glu_fwd_args {
    int64_t n_rows, width, ldg, ldu, ldy;
    enum pf_act_kind act;
    const void *gate, *up;
    void *y;
};
/* Overwrites dgate and dup (strides ldg, ldu); they may be gate and up themselves. */
struct pf_glu_bwd_args {
    int64_t n_rows, width, ldg, ldu, lddy;
    enum pf_act_kind act;
    const void *gate, *up, *dy;
    void *dgate, *dup;
};

/* y = act(x), elementwise over n. */
struct pf_act_fwd_args {
    int64_t n;
    enum pf_act_kind act;
    const void *x;
    void *y;
};
/* dx = dy * act'(x). Overwrites; dx may be dy. */
struct pf_act_bwd_args {
    int64_t n;
    enum pf_act_kind act;
    const void *x, *dy;
    void *dx;
};

/* dbias[j] += sum over rows of dy[i,j]; fixed order for a given n_threads. Scratch: n_threads *
 * width floats. */
struct pf_bias_grad_args {
    int64_t n_rows, width, lddy;
    const void *dy;
    float *dbias;
};

/* y = a + b, elementwise over n; y may be a or b. */
struct pf_add_args {
    int64_t n;
    const void *a, *b;
    void *y;
};

/* x *= factor, elementwise over n. */
struct pf_scale_args {
    int64_t n;
    float factor;
    void *x;
};

/* y[i] = keep(key, first + i) ? x[i] / (1-p) : 0 with pf_dropout_keep (pf/rng.h), so the mask
 * depends on the element's global index alone. The backward pass is the same call on dy. y may be
 * x. */
struct pf_dropout_args {
    int64_t n;
    float p;
    uint64_t key, first;
    const void *x;
    void *y;
};

/*
 * Softmax cross-entropy of rows of logits, Source: the definition; fp32 throughout.
 * targets[i] in [0, vocab), or -1: the row does not count (loss 0, gradient 0).
 * loss[i] = log sum exp(logits[i,:]) - logits[i,targets[i]], overwritten. If with_grad, logits[i,:]
 * becomes (softmax - onehot) * grad_scale in place.
 */
struct pf_cross_entropy_args {
    int64_t n_rows, vocab, ld;
    const int32_t *targets;
    void *logits;
    float *loss;
    bool with_grad;
    float grad_scale;
};

/*
 * Cross-entropy of a vocabulary cut by columns, in two steps, Source: Shoeybi et al. 2019, section 3.
 * Here are columns [first_vocab, first_vocab + vocab) of the logits; targets are of the whole, in
 * [0, n_vocab), or -1 where the row does not count. n_vocab 0: the columns are all, so targets lie below
 * vocab and first_vocab is 0. vocab may be 0. Between the steps stands pf_vocab_ce_combine (pf/ops.h).
 *
 * Forward: stats of each row's columns here, overwritten: the largest logit m, the sum of
 * exp(logit - m), and the target's logit, 0 where its column is elsewhere. Where there are no columns,
 * or all are minus infinity, m is minus infinity and the sum 0. A row that does not count has 0, 1, 0.
 */
struct pf_vocab_ce_fwd_args {
    int64_t n_rows, vocab, ld, first_vocab, n_vocab;
    const int32_t *targets; /* [n_rows] */
    const void *logits;     /* [n_rows, vocab] */
    float *stats;           /* [n_rows, 3] */
};
/* Backward: logits become (exp(logit - m)/s - onehot) * grad_scale in place, and 0 in rows that do not
 * count, where m and s are of the whole row. They are two numbers, as log(sum exp) in one would lose
 * the digits of large logits. */
struct pf_vocab_ce_bwd_args {
    int64_t n_rows, vocab, ld, first_vocab, n_vocab;
    const int32_t *targets;
    void *logits;
    const float *whole; /* [n_rows, 2]: m, s */
    float grad_scale;
};

/*
 * AdamW with decoupled decay, Source: Loshchilov & Hutter 2019 in the order of torch.optim.AdamW:
 *     g = grad * grad_scale
 *     p = p * (1 - lr*weight_decay)
 *     m = m + (1-beta1)(g - m);  v = beta2*v + (1-beta2) g*g
 *     p = p - (lr / (1-beta1^t)) * m / (sqrt(v) / sqrt(1-beta2^t) + eps)
 * over n elements; step_size = lr/(1-beta1^t), inv_sqrt_bias2 = 1/sqrt(1-beta2^t) and the two
 * one_minus_beta are computed by the caller in double (1 - 0.999f is off by 1e-5; and no kernel
 * needs beta1). param is the fp32 master. If weight_out is not NULL the new value, rounded to the
 * call's dtype, goes there; it must not be param.
 */
struct pf_adamw_args {
    int64_t n;
    float grad_scale, decay_factor; /* 1 - lr*weight_decay */
    float one_minus_beta1, beta2, one_minus_beta2;
    float eps, step_size, inv_sqrt_bias2;
    const float *grad;
    float *param, *moment1, *moment2;
    void *weight_out;
};

/* The arguments of a call whose op is known at run time only. */
union pf_op_args {
    struct pf_gemm_args gemm;
    struct pf_embed_fwd_args embed_fwd;
    struct pf_embed_bwd_args embed_bwd;
    struct pf_rmsnorm_fwd_args rmsnorm_fwd;
    struct pf_rmsnorm_bwd_args rmsnorm_bwd;
    struct pf_layernorm_fwd_args layernorm_fwd;
    struct pf_layernorm_bwd_args layernorm_bwd;
    struct pf_rope_args rope;
    struct pf_attention_fwd_args attention_fwd;
    struct pf_attention_bwd_args attention_bwd;
    struct pf_glu_fwd_args glu_fwd;
    struct pf_glu_bwd_args glu_bwd;
    struct pf_act_fwd_args act_fwd;
    struct pf_act_bwd_args act_bwd;
    struct pf_bias_grad_args bias_grad;
    struct pf_add_args add;
    struct pf_scale_args scale;
    struct pf_dropout_args dropout;
    struct pf_cross_entropy_args cross_entropy;
    struct pf_vocab_ce_fwd_args vocab_ce_fwd;
    struct pf_vocab_ce_bwd_args vocab_ce_bwd;
    struct pf_adamw_args adamw;
};

/* One row of a device's kernel table. Among rows of one (op, dtype) the last usable one with the
 * highest preference serves; ref has preference 0. */
struct pf_kernel_row {
    enum pf_op op;
    enum pf_dtype dtype;
    const char
        *variant; /* "ref", "generic", "avx2", "avx512", "avx512bf16", "dnnl", "dnnl_widen" */
    int preference;
    pf_kernel_fn fn;
};

#ifdef __cplusplus
}
#endif

#endif
