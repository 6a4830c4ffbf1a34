/* SPDX-License-Identifier: Apache-2.0 */
/* The ops as cases: arrays and arguments of a call, its work, what of it is compared. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

/* Arrays ---------------------------------------------------------------------------------------- */

enum use { READ = 1, WRITE = 2, BOTH = 3 };

static void *add(struct bench_call *c, enum pf_dtype dtype, int64_t rows, int64_t width,
                 enum use use)
{
    struct bench_buf *const b = &c->bufs[c->n_bufs];
    size_t bytes, n;

    PF_ASSERT(c->n_bufs < BENCH_MAX_BUFS);
    *b = (struct bench_buf){.dtype = dtype, .rows = rows, .width = width, .is_output = use & WRITE};
    if (!pf_mul_size((size_t)rows, (size_t)width, &n) ||
        !pf_mul_size(n, pf_dtype_bytes(dtype), &bytes)) {
        c->err = pf_fail(PF_EINVAL, "an array of %lld x %lld is too large", (long long)rows,
                         (long long)width);
        return NULL;
    }
    b->data = c->err ? NULL : pf_alloc(bytes);
    if (!b->data) {
        c->err = c->err ? c->err : PF_ENOMEM;
        return NULL;
    }
    c->n_bufs++;
    return b->data;
}

static void *add_filled(struct bench_call *c, enum pf_dtype dtype, int64_t rows, int64_t width,
                        enum use use, float lo, float hi)
{
    const uint32_t stream = (uint32_t)c->n_bufs;
    void *const data = add(c, dtype, rows, width, use);

    if (data) {
        bench_fill(dtype, data, rows * width, stream, lo, hi);
    }
    return data;
}

static void *in(struct bench_call *c, int64_t rows, int64_t width)
{
    return add_filled(c, c->dtype, rows, width, READ, -1, 1);
}

static void *in_f32(struct bench_call *c, int64_t rows, int64_t width, float lo, float hi)
{
    return add_filled(c, PF_DTYPE_F32, rows, width, READ, lo, hi);
}

static void *in_out(struct bench_call *c, int64_t rows, int64_t width)
{
    return add_filled(c, c->dtype, rows, width, BOTH, -1, 1);
}

static void *in_out_f32(struct bench_call *c, int64_t rows, int64_t width, float lo, float hi)
{
    return add_filled(c, PF_DTYPE_F32, rows, width, BOTH, lo, hi);
}

static void *out(struct bench_call *c, int64_t rows, int64_t width)
{
    return add(c, c->dtype, rows, width, WRITE);
}

static void *out_f32(struct bench_call *c, int64_t rows, int64_t width)
{
    return add(c, PF_DTYPE_F32, rows, width, WRITE);
}

static int32_t *indices(struct bench_call *c, int64_t n, int64_t hi)
{
    const uint32_t stream = (uint32_t)c->n_bufs;
    int32_t *const data = add(c, PF_DTYPE_I32, 1, n, READ);

    if (data) {
        bench_fill_indices(data, n, stream, 0, hi);
    }
    return data;
}

/* gemm: MxNxK ------------------------------------------------------------------------------------ */

static void build_gemm(struct bench_call *c, const struct bench_shape *s)
{
    struct pf_gemm_args *const g = &c->args.gemm;
    const int64_t m = s->d[0], n = s->d[1], k = s->d[2];

    *g =
        (struct pf_gemm_args){.m = m, .n = n, .k = k, .trans_a = s->trans_a, .trans_b = s->trans_b};
    g->accumulate = s->accumulate;
    g->c_dtype = s->accumulate ? PF_DTYPE_F32 : c->dtype;
    g->lda = s->trans_a ? m : k;
    g->ldb = s->trans_b ? k : n;
    g->ldc = n;
    g->a = in(c, s->trans_a ? k : m, g->lda);
    g->b = in(c, s->trans_b ? n : k, g->ldb);
    g->c = s->accumulate ? in_out_f32(c, m, n, -1, 1) : out(c, m, n);
    if (s->residual) {
        g->residual = in(c, m, n);
        g->ldr = n;
    }
    if (s->activate) {
        g->activate = true;
        g->act = s->act;
        g->pre = out(c, m, n);
        g->ldp = n;
    }
}

static int64_t sum_gemm(const struct bench_shape *s)
{
    return s->d[2];
}

/* Flop that the plain reference may spend on one slice. */
#define SLICE_FLOP 5e7

static int64_t clamp(double x, int64_t lo, int64_t hi)
{
    return x < (double)lo ? lo : x > (double)hi ? hi : (int64_t)x;
}

/* Rows from the beginning, the middle and the end: all columns and the whole sum. */
static bool slice_gemm(const struct bench_shape *s, int i, struct bench_slice *slice)
{
    const int64_t m = s->d[0], most = m < 8 ? m : 8;
    const int64_t n = clamp(SLICE_FLOP / (2.0 * (double)s->d[1] * (double)s->d[2]), 1, most);
    const int64_t at = i * (m - n) / 2;

    if (i > 2 || (i > 0 && m == n)) {
        return false;
    }
    *slice = (struct bench_slice){.narrow = *s};
    slice->narrow.d[0] = n;
    slice->row[0] = s->trans_a ? 0 : at;
    slice->column[0] = s->trans_a ? at : 0;
    slice->row[2] = slice->row[3] = at; /* c, and residual or sum before the activation */
    return true;
}

/* Rows: ROWSxWIDTH ------------------------------------------------------------------------------- */

static void build_rmsnorm_fwd(struct bench_call *c, const struct bench_shape *s)
{
    const int64_t n = s->d[0], w = s->d[1];
    struct pf_rmsnorm_fwd_args *const a = &c->args.rmsnorm_fwd;

    *a = (struct pf_rmsnorm_fwd_args){.n_rows = n, .width = w, .ldx = w, .ldy = w, .eps = 1e-5f};
    a->x = in(c, n, w);
    a->weight = in(c, 1, w);
    a->y = out(c, n, w);
    a->rstd = out_f32(c, 1, n);
    if (s->residual) {
        a->residual = in(c, n, w);
        a->sum = out(c, n, w);
        a->ldr = a->lds = w;
    }
}

/* Behind a residual the gradient of the sum is there already, and is added to. */
static void build_rmsnorm_bwd(struct bench_call *c, const struct bench_shape *s)
{
    const int64_t n = s->d[0], w = s->d[1];
    struct pf_rmsnorm_bwd_args *const a = &c->args.rmsnorm_bwd;

    *a = (struct pf_rmsnorm_bwd_args){.n_rows = n, .width = w, .ldx = w, .lddy = w, .lddx = w};
    a->x = in(c, n, w);
    a->weight = in(c, 1, w);
    a->dy = in(c, n, w);
    a->rstd = in_f32(c, 1, n, 0.5f, 1.5f);
    a->dx_accumulate = s->residual;
    a->dx = s->residual ? in_out(c, n, w) : out(c, n, w);
    a->dweight = in_out_f32(c, 1, w, -1, 1);
}

static void build_layernorm_fwd(struct bench_call *c, const struct bench_shape *s)
{
    const int64_t n = s->d[0], w = s->d[1];
    struct pf_layernorm_fwd_args *const a = &c->args.layernorm_fwd;

    *a = (struct pf_layernorm_fwd_args){.n_rows = n, .width = w, .ldx = w, .ldy = w, .eps = 1e-5f};
    a->x = in(c, n, w);
    a->weight = in(c, 1, w);
    a->bias = in(c, 1, w);
    a->y = out(c, n, w);
    a->mean = out_f32(c, 1, n);
    a->rstd = out_f32(c, 1, n);
    if (s->residual) {
        a->residual = in(c, n, w);
        a->sum = out(c, n, w);
        a->ldr = a->lds = w;
    }
}

static void build_layernorm_bwd(struct bench_call *c, const struct bench_shape *s)
{
    const int64_t n = s->d[0], w = s->d[1];
    struct pf_layernorm_bwd_args *const a = &c->args.layernorm_bwd;

    *a = (struct pf_layernorm_bwd_args){.n_rows = n, .width = w, .ldx = w, .lddy = w, .lddx = w};
    a->x = in(c, n, w);
    a->weight = in(c, 1, w);
    a->dy = in(c, n, w);
    a->mean = in_f32(c, 1, n, -0.2f, 0.2f);
    a->rstd = in_f32(c, 1, n, 0.5f, 1.5f);
    a->dx_accumulate = s->residual;
    a->dx = s->residual ? in_out(c, n, w) : out(c, n, w);
    a->dweight = in_out_f32(c, 1, w, -1, 1);
    a->dbias = in_out_f32(c, 1, w, -1, 1);
}

static void build_glu_fwd(struct bench_call *c, const struct bench_shape *s)
{
    const int64_t n = s->d[0], w = s->d[1];
    struct pf_glu_fwd_args *const a = &c->args.glu_fwd;

    *a = (struct pf_glu_fwd_args){.n_rows = n, .width = w, .ldg = w, .ldu = w, .ldy = w};
    a->act = PF_ACT_SILU;
    a->gate = add_filled(c, c->dtype, n, w, READ, -6, 6);
    a->up = in(c, n, w);
    a->y = out(c, n, w);
}

static void build_glu_bwd(struct bench_call *c, const struct bench_shape *s)
{
    const int64_t n = s->d[0], w = s->d[1];
    struct pf_glu_bwd_args *const a = &c->args.glu_bwd;

    *a = (struct pf_glu_bwd_args){.n_rows = n, .width = w, .ldg = w, .ldu = w, .lddy = w};
    a->act = PF_ACT_SILU;
    a->gate = add_filled(c, c->dtype, n, w, READ, -6, 6);
    a->up = in(c, n, w);
    a->dy = in(c, n, w);
    a->dgate = out(c, n, w);
    a->dup = out(c, n, w);
}

static void build_bias_grad(struct bench_call *c, const struct bench_shape *s)
{
    struct pf_bias_grad_args *const a = &c->args.bias_grad;

    *a = (struct pf_bias_grad_args){.n_rows = s->d[0], .width = s->d[1], .lddy = s->d[1]};
    a->dy = in(c, s->d[0], s->d[1]);
    a->dbias = in_out_f32(c, 1, s->d[1], -1, 1);
}

static int64_t sum_rows(const struct bench_shape *s)
{
    return s->d[0] > s->d[1] ? s->d[0] : s->d[1];
}

static int64_t sum_width(const struct bench_shape *s)
{
    return s->d[1];
}

/* Elements: N ------------------------------------------------------------------------------------ */

static void build_act_fwd(struct bench_call *c, const struct bench_shape *s)
{
    struct pf_act_fwd_args *const a = &c->args.act_fwd;

    *a = (struct pf_act_fwd_args){.n = s->d[0], .act = PF_ACT_GELU_TANH};
    a->x = add_filled(c, c->dtype, 1, s->d[0], READ, -6, 6);
    a->y = out(c, 1, s->d[0]);
}

static void build_act_bwd(struct bench_call *c, const struct bench_shape *s)
{
    struct pf_act_bwd_args *const a = &c->args.act_bwd;

    *a = (struct pf_act_bwd_args){.n = s->d[0], .act = PF_ACT_GELU_TANH};
    a->x = add_filled(c, c->dtype, 1, s->d[0], READ, -6, 6);
    a->dy = in(c, 1, s->d[0]);
    a->dx = out(c, 1, s->d[0]);
}

static void build_add(struct bench_call *c, const struct bench_shape *s)
{
    struct pf_add_args *const a = &c->args.add;

    *a = (struct pf_add_args){.n = s->d[0]};
    a->a = in(c, 1, s->d[0]);
    a->b = in(c, 1, s->d[0]);
    a->y = out(c, 1, s->d[0]);
}

/* The factor keeps the size of numbers through any number of calls. */
static void build_scale(struct bench_call *c, const struct bench_shape *s)
{
    c->args.scale = (struct pf_scale_args){.n = s->d[0], .factor = -1};
    c->args.scale.x = in_out(c, 1, s->d[0]);
}

static void build_dropout(struct bench_call *c, const struct bench_shape *s)
{
    struct pf_dropout_args *const a = &c->args.dropout;

    *a = (struct pf_dropout_args){.n = s->d[0], .p = 0.1f, .key = 5};
    a->x = in(c, 1, s->d[0]);
    a->y = out(c, 1, s->d[0]);
}

static void build_adamw(struct bench_call *c, const struct bench_shape *s)
{
    struct pf_adamw_args *const a = &c->args.adamw;

    *a = (struct pf_adamw_args){.n = s->d[0],
                                .grad_scale = 0.5f,
                                .decay_factor = 0.9999f,
                                .one_minus_beta1 = 0.1f,
                                .beta2 = 0.95f,
                                .one_minus_beta2 = 0.05f,
                                .eps = 1e-8f,
                                .step_size = 2e-3f,
                                .inv_sqrt_bias2 = 1.7f};
    a->grad = in_f32(c, 1, a->n, -1, 1);
    a->param = in_out_f32(c, 1, a->n, -1, 1);
    a->moment1 = in_out_f32(c, 1, a->n, -0.1f, 0.1f);
    a->moment2 = in_out_f32(c, 1, a->n, 0.01f, 0.1f);
    a->weight_out = c->dtype == PF_DTYPE_F32 ? NULL : out(c, 1, a->n);
}

/* Rotation: TOKENSxHEADSxDIM --------------------------------------------------------------------- */

static void build_rope(struct bench_call *c, const struct bench_shape *s)
{
    const int64_t t = s->d[0], heads = s->d[1], dim = s->d[2], positions = t < 1024 ? t : 1024;
    struct pf_rope_args *const a = &c->args.rope;

    *a = (struct pf_rope_args){.n_tokens = t,
                               .n_heads = heads,
                               .head_dim = dim,
                               .ldx = heads * dim,
                               .n_pairs = dim / 2,
                               .n_positions = positions,
                               .seq = positions};
    a->cos_table = in_f32(c, positions, dim / 2, 0.6f, 0.8f);
    a->sin_table = in_f32(c, positions, dim / 2, 0.6f, 0.8f);
    a->x = in_out(c, t, heads * dim);
}

/* Attention: BATCHxSEQxHEADSxKVxDIM -------------------------------------------------------------- */

static void build_attention_fwd(struct bench_call *c, const struct bench_shape *s)
{
    const int64_t t = s->d[0] * s->d[1], wide = s->d[2] * s->d[4], narrow = s->d[3] * s->d[4];
    struct pf_attention_fwd_args *const a = &c->args.attention_fwd;

    *a = (struct pf_attention_fwd_args){.batch = s->d[0],
                                        .seq = s->d[1],
                                        .n_heads = s->d[2],
                                        .n_kv_heads = s->d[3],
                                        .head_dim = s->d[4],
                                        .v_head_dim = s->d[4],
                                        .ldq = wide,
                                        .ldk = narrow,
                                        .ldv = narrow,
                                        .ldo = wide,
                                        .scale = 0.25f};
    a->q = in(c, t, wide);
    a->k = in(c, t, narrow);
    a->v = in(c, t, narrow);
    a->out = out(c, t, wide);
    a->lse = out_f32(c, a->batch * a->n_heads, a->seq);
}

enum { Q, K, V, OUT, LSE, DOUT, DELTA, DQ, DK, DV };

static void build_attention_bwd(struct bench_call *c, const struct bench_shape *s)
{
    const int64_t t = s->d[0] * s->d[1], wide = s->d[2] * s->d[4], narrow = s->d[3] * s->d[4];
    struct pf_attention_bwd_args *const a = &c->args.attention_bwd;

    build_attention_fwd(c, s);
    const struct pf_attention_fwd_args fwd = c->args.attention_fwd;
    *a = (struct pf_attention_bwd_args){.fwd = fwd, .lddo = wide};
    a->dout = in(c, t, wide);
    a->delta = out_f32(c, fwd.batch * fwd.n_heads, fwd.seq);
    a->dq = out(c, t, wide);
    a->dk = out(c, t, narrow);
    a->dv = out(c, t, narrow);
}

/* Of the backward pass: five products of half a square. */
static double flop_attention(const struct bench_shape *s)
{
    return 5.0 * (double)s->d[0] * (double)s->d[2] * (double)s->d[1] * (double)s->d[1] *
           (double)s->d[4];
}

/* The heads of the first group, from the first position on, as far as the reference may go: what a
 * causal query sees does not depend on what follows it. */
static bool slice_attention(const struct bench_shape *s, int i, struct bench_slice *slice)
{
    if (i > 0) {
        return false;
    }
    *slice = (struct bench_slice){.narrow = *s};
    struct bench_shape *const n = &slice->narrow;
    n->d[0] = 1;
    n->d[2] = s->d[2] / s->d[3];
    n->d[3] = 1;
    while (n->d[1] > 16 && flop_attention(n) > 6 * SLICE_FLOP) {
        n->d[1] = n->d[1] * 3 / 4;
    }
    return true;
}

static int forward_of(struct pf_ops *ops, struct bench_call *c)
{
    return pf_op_attention_fwd(ops, c->dtype, &c->args.attention_bwd.fwd);
}

/* Later queries would add to the gradients of keys in the slice: theirs is made zero. */
static void isolate_attention_bwd(struct bench_call *c, const struct bench_slice *slice)
{
    const struct bench_buf *const dout = &c->bufs[DOUT];

    for (int64_t i = slice->narrow.d[1] * dout->width; i < dout->rows * dout->width; i++) {
        if (c->dtype == PF_DTYPE_F32) {
            ((float *)dout->data)[i] = 0;
        } else {
            ((uint16_t *)dout->data)[i] = 0;
        }
    }
}

/* Embedding: TOKENSxWIDTHxROWS ------------------------------------------------------------------- */

static void build_embed_fwd(struct bench_call *c, const struct bench_shape *s)
{
    const int64_t t = s->d[0], w = s->d[1], rows = s->d[2];
    struct pf_embed_fwd_args *const a = &c->args.embed_fwd;

    *a = (struct pf_embed_fwd_args){.n_tokens = t, .width = w, .n_rows = rows, .seq = t};
    a->ids = indices(c, t, rows);
    a->table = in(c, rows, w);
    a->y = out(c, t, w);
}

static void build_embed_bwd(struct bench_call *c, const struct bench_shape *s)
{
    const int64_t t = s->d[0], w = s->d[1], rows = s->d[2];
    struct pf_embed_bwd_args *const a = &c->args.embed_bwd;

    *a = (struct pf_embed_bwd_args){.n_tokens = t, .width = w, .n_rows = rows, .seq = t};
    a->skip_id = -1;
    a->ids = indices(c, t, rows);
    a->dy = in(c, t, w);
    a->dtable = in_out_f32(c, rows, w, -1, 1);
}

/* Loss: ROWSxVOCAB ------------------------------------------------------------------------------- */

static void build_cross_entropy(struct bench_call *c, const struct bench_shape *s)
{
    struct pf_cross_entropy_args *const a = &c->args.cross_entropy;

    *a = (struct pf_cross_entropy_args){
        .n_rows = s->d[0], .vocab = s->d[1], .ld = s->d[1], .with_grad = true, .grad_scale = 0.25f};
    a->targets = indices(c, s->d[0], s->d[1]);
    a->logits = add_filled(c, c->dtype, s->d[0], s->d[1], BOTH, -6, 6);
    a->loss = out_f32(c, 1, s->d[0]);
}

static bool slice_cross_entropy(const struct bench_shape *s, int i, struct bench_slice *slice)
{
    const int64_t n = clamp(2e6 / (double)s->d[1], 1, s->d[0]), at = i * (s->d[0] - n) / 2;

    if (i > 2 || (i > 0 && n == s->d[0])) {
        return false;
    }
    *slice = (struct bench_slice){.narrow = {{n, s->d[1]}}};
    slice->column[0] = at; /* targets */
    slice->row[1] = at;
    slice->column[2] = at; /* losses */
    return true;
}

/* The part of a vocabulary is the second half, so half of the targets are elsewhere. */
static void build_vocab_ce_fwd(struct bench_call *c, const struct bench_shape *s)
{
    struct pf_vocab_ce_fwd_args *const a = &c->args.vocab_ce_fwd;

    *a = (struct pf_vocab_ce_fwd_args){.n_rows = s->d[0], .vocab = s->d[1], .ld = s->d[1]};
    a->first_vocab = a->vocab;
    a->n_vocab = 2 * a->vocab;
    a->targets = indices(c, a->n_rows, a->n_vocab);
    a->logits = add_filled(c, c->dtype, a->n_rows, a->vocab, READ, -6, 6);
    a->stats = out_f32(c, a->n_rows, 3);
}

static void build_vocab_ce_bwd(struct bench_call *c, const struct bench_shape *s)
{
    struct pf_vocab_ce_bwd_args *const a = &c->args.vocab_ce_bwd;

    *a = (struct pf_vocab_ce_bwd_args){.n_rows = s->d[0], .vocab = s->d[1], .ld = s->d[1]};
    a->first_vocab = a->vocab;
    a->n_vocab = 2 * a->vocab;
    a->grad_scale = 0.25f;
    a->targets = indices(c, a->n_rows, a->n_vocab);
    a->logits = add_filled(c, c->dtype, a->n_rows, a->vocab, BOTH, -6, 6);
    a->whole = in_f32(c, a->n_rows, 2, 6, 7);
}

static bool slice_vocab_ce(const struct bench_shape *s, int i, struct bench_slice *slice)
{
    if (!slice_cross_entropy(s, i, slice)) {
        return false;
    }
    slice->column[2] = 0; /* stats and whole are rows */
    slice->row[2] = slice->row[1];
    return true;
}

/* The table -------------------------------------------------------------------------------------- */

#define CALL(name)                                                                                 \
    static int call_##name(struct pf_ops *ops, const struct bench_call *c)                         \
    {                                                                                              \
        return pf_op_##name(ops, c->dtype, &c->args.name);                                         \
    }
CALL(gemm)
CALL(embed_fwd)
CALL(embed_bwd)
CALL(rmsnorm_fwd)
CALL(rmsnorm_bwd)
CALL(layernorm_fwd)
CALL(layernorm_bwd)
CALL(rope)
CALL(attention_fwd)
CALL(attention_bwd)
CALL(glu_fwd)
CALL(glu_bwd)
CALL(act_fwd)
CALL(act_bwd)
CALL(bias_grad)
CALL(add)
CALL(scale)
CALL(dropout)
CALL(cross_entropy)
CALL(vocab_ce_fwd)
CALL(vocab_ce_bwd)
CALL(adamw)
#undef CALL

#define ROWS "ROWSxWIDTH", 2, "4096x1024"
#define NORMS "ROWSxWIDTH[+residual]", 2, "4096x1024,4096x1024+residual"
#define ELEMENTS "N", 1, "4194304"
/* Each weight of GPT-2 124M and of a model of 6 layers x 384 at 1024 tokens: the product forward, that
 * of the input's gradient, and that of the weight's (tn: fp32, added to). Then GPT-2's products that
 * end in the residual stream, or an activation. */
#define GEMM_SHAPES                                                                                \
    "1024x1152x384,1024x384x384,1024x1536x384,1024x384x1536,"                                      \
    "1024x2304x768,1024x768x768,1024x3072x768,1024x768x3072,"                                      \
    "1024x768x768:nt+residual,1024x768x3072:nt+residual,1024x3072x768:nt+gelu_tanh"
#define ATTENTION                                                                                  \
    "BATCHxSEQxHEADSxKVxDIM", 5,                                                                   \
        "4x256x6x6x64,1x1024x4x4x64,1x2048x4x4x64,1x4096x2x2x64,1x2048x2x2x128"

const struct bench_op bench_ops[] = {
    {PF_OP_GEMM, "MxNxK[:nn|nt|tn][+residual|+silu|+gelu_tanh|+gelu_erf|+relu]", 3, GEMM_SHAPES,
     PF_BENCH_FLOP, build_gemm, sum_gemm, slice_gemm, NULL, NULL, call_gemm},
    {PF_OP_EMBED_FWD, "TOKENSxWIDTHxROWS", 3, "4096x1024x8192", PF_BENCH_BYTE, build_embed_fwd,
     NULL, NULL, NULL, NULL, call_embed_fwd},
    {PF_OP_EMBED_BWD, "TOKENSxWIDTHxROWS", 3, "4096x1024x8192", PF_BENCH_BYTE, build_embed_bwd,
     NULL, NULL, NULL, NULL, call_embed_bwd},
    {PF_OP_RMSNORM_FWD, NORMS, PF_BENCH_BYTE, build_rmsnorm_fwd, sum_width, NULL, NULL, NULL,
     call_rmsnorm_fwd},
    {PF_OP_RMSNORM_BWD, NORMS, PF_BENCH_BYTE, build_rmsnorm_bwd, sum_rows, NULL, NULL, NULL,
     call_rmsnorm_bwd},
    {PF_OP_LAYERNORM_FWD, NORMS, PF_BENCH_BYTE, build_layernorm_fwd, sum_width, NULL, NULL, NULL,
     call_layernorm_fwd},
    {PF_OP_LAYERNORM_BWD, NORMS, PF_BENCH_BYTE, build_layernorm_bwd, sum_rows, NULL, NULL, NULL,
     call_layernorm_bwd},
    {PF_OP_ROPE, "TOKENSxHEADSxDIM", 3, "4096x16x64", PF_BENCH_BYTE, build_rope, NULL, NULL, NULL,
     NULL, call_rope},
    {PF_OP_ATTENTION_FWD, ATTENTION, PF_BENCH_FLOP, build_attention_fwd, sum_width, slice_attention,
     NULL, NULL, call_attention_fwd},
    {PF_OP_ATTENTION_BWD, ATTENTION, PF_BENCH_FLOP, build_attention_bwd, sum_width, slice_attention,
     forward_of, isolate_attention_bwd, call_attention_bwd},
    {PF_OP_GLU_FWD, ROWS, PF_BENCH_BYTE, build_glu_fwd, NULL, NULL, NULL, NULL, call_glu_fwd},
    {PF_OP_GLU_BWD, ROWS, PF_BENCH_BYTE, build_glu_bwd, NULL, NULL, NULL, NULL, call_glu_bwd},
    {PF_OP_ACT_FWD, ELEMENTS, PF_BENCH_BYTE, build_act_fwd, NULL, NULL, NULL, NULL, call_act_fwd},
    {PF_OP_ACT_BWD, ELEMENTS, PF_BENCH_BYTE, build_act_bwd, NULL, NULL, NULL, NULL, call_act_bwd},
    {PF_OP_BIAS_GRAD, ROWS, PF_BENCH_BYTE, build_bias_grad, sum_rows, NULL, NULL, NULL,
     call_bias_grad},
    {PF_OP_ADD, ELEMENTS, PF_BENCH_BYTE, build_add, NULL, NULL, NULL, NULL, call_add},
    {PF_OP_SCALE, ELEMENTS, PF_BENCH_BYTE, build_scale, NULL, NULL, NULL, NULL, call_scale},
    {PF_OP_DROPOUT, ELEMENTS, PF_BENCH_BYTE, build_dropout, NULL, NULL, NULL, NULL, call_dropout},
    {PF_OP_CROSS_ENTROPY, "ROWSxVOCAB", 2, "1024x8192,512x50257", PF_BENCH_BYTE,
     build_cross_entropy, sum_width, slice_cross_entropy, NULL, NULL, call_cross_entropy},
    {PF_OP_VOCAB_CE_FWD, "ROWSxVOCAB", 2, "1024x4096", PF_BENCH_BYTE, build_vocab_ce_fwd, sum_width,
     slice_vocab_ce, NULL, NULL, call_vocab_ce_fwd},
    {PF_OP_VOCAB_CE_BWD, "ROWSxVOCAB", 2, "1024x4096", PF_BENCH_BYTE, build_vocab_ce_bwd, NULL,
     slice_vocab_ce, NULL, NULL, call_vocab_ce_bwd},
    {PF_OP_ADAMW, ELEMENTS, PF_BENCH_BYTE, build_adamw, NULL, NULL, NULL, NULL, call_adamw},
};
const int bench_n_ops = (int)(sizeof bench_ops / sizeof bench_ops[0]);

const struct bench_op *bench_op_find(enum pf_op op)
{
    for (int i = 0; i < bench_n_ops; i++) {
        if (bench_ops[i].op == op) {
            return &bench_ops[i];
        }
    }
    return NULL;
}

int bench_call_build(const struct bench_op *op, struct pf_ops *ops, enum pf_dtype dtype,
                     const struct bench_shape *shape, struct bench_call *call)
{
    *call = (struct bench_call){.op = op->op, .dtype = dtype};
    op->build(call, shape);
    PF_TRY(call->err);
    return op->prepare ? op->prepare(ops, call) : 0;
}
