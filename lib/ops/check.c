/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - what an op demands of its arguments, and the scratch that its kernels may use. */
#include "ops_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/ops.h>

#include <inttypes.h>

/* One call under examination; the check of an op fills in the last two. */
struct call {
    const char *op;
    enum pf_dtype dtype;
    int n_threads;
    size_t scratch_floats;
    bool empty;
};

static int check_positive(const struct call *c, const char *what, int64_t value)
{
    if (value < 1) {
        return pf_fail(PF_EINVAL, "%s: %s is %" PRId64 ", must be at least 1", c->op, what, value);
    }
    return 0;
}

static int check_count(const struct call *c, const char *what, int64_t value)
{
    if (value < 0) {
        return pf_fail(PF_EINVAL, "%s: %s is negative (%" PRId64 ")", c->op, what, value);
    }
    return 0;
}

/* An array of rows x width elements at distance ld. */
static int check_typed(const struct call *c, const char *what, enum pf_dtype dtype, const void *x,
                       int64_t rows, int64_t width, int64_t ld)
{
    int64_t n;

    PF_TRY(check_count(c, what, rows));
    PF_TRY(check_count(c, what, width));
    if (rows == 0 || width == 0) {
        return 0;
    }
    if (!x) {
        return pf_fail(PF_EINVAL, "%s: '%s' is missing", c->op, what);
    }
    if (ld < width) {
        return pf_fail(PF_EINVAL, "%s: rows of '%s' overlap: distance %" PRId64 ", width %" PRId64,
                       c->op, what, ld, width);
    }
    if (!pf_mul_i64(rows, ld, &n) || !pf_mul_i64(n, 8, &n)) {
        return pf_fail(PF_EINVAL, "%s: '%s' is too large", c->op, what);
    }
    if ((uintptr_t)x % pf_dtype_bytes(dtype) != 0) {
        return pf_fail(PF_EINVAL, "%s: '%s' is not aligned to its elements", c->op, what);
    }
    return 0;
}

static int check_rows(const struct call *c, const char *what, const void *x, int64_t rows,
                      int64_t width, int64_t ld)
{
    return check_typed(c, what, c->dtype, x, rows, width, ld);
}

static int check_f32(const struct call *c, const char *what, const float *x, int64_t n)
{
    return check_typed(c, what, PF_DTYPE_F32, x, 1, n, n);
}

/* May be NULL. */
static int check_f32_or_null(const struct call *c, const char *what, const float *x, int64_t n)
{
    return x ? check_f32(c, what, x, n) : 0;
}

static int check_indices(const struct call *c, const char *what, const int32_t *x, int64_t n,
                         int64_t lowest, int64_t limit)
{
    PF_TRY(check_typed(c, what, PF_DTYPE_I32, x, 1, n, n));
    for (int64_t i = 0; i < n; i++) {
        if (x[i] < lowest || x[i] >= limit) {
            return pf_fail(PF_EINVAL,
                           "%s: %s %d at %" PRId64 " is not in [%" PRId64 ", %" PRId64 ")", c->op,
                           what, (int)x[i], i, lowest, limit);
        }
    }
    return 0;
}

/* Positions of tokens: given, or t mod seq. */
static int check_positions(const struct call *c, const int32_t *positions, int64_t n_tokens,
                           int64_t seq, int64_t n_positions)
{
    if (positions) {
        return check_indices(c, "position", positions, n_tokens, 0, n_positions);
    }
    PF_TRY(check_positive(c, "seq", seq));
    const int64_t used = n_tokens < seq ? n_tokens : seq;
    if (used > n_positions) {
        return pf_fail(PF_EINVAL, "%s: %" PRId64 " positions, but the table has %" PRId64, c->op,
                       used, n_positions);
    }
    return 0;
}

static int check_act_kind(const struct call *c, enum pf_act_kind act)
{
    if ((unsigned)act > PF_ACT_RELU) {
        return pf_fail(PF_EINVAL, "%s: unknown activation %d", c->op, (int)act);
    }
    return 0;
}

/* What is done to a product before it is stored. */
static int check_gemm_end(const struct call *c, const struct pf_gemm_args *a)
{
    if (!a->residual && !a->activate) {
        return 0;
    }
    if (a->accumulate) {
        return pf_fail(PF_EINVAL, "gemm: accumulate excludes residual and activation");
    }
    if (a->c_dtype != c->dtype) {
        return pf_fail(PF_EINVAL, "gemm: with residual or activation c must be %s",
                       pf_dtype_name(c->dtype));
    }
    if (a->residual) {
        PF_TRY(check_rows(c, "residual", a->residual, a->m, a->n, a->ldr));
    }
    if (a->activate && a->pre) {
        PF_TRY(check_rows(c, "pre", a->pre, a->m, a->n, a->ldp));
    }
    return a->activate ? check_act_kind(c, a->act) : 0;
}

static int check_gemm(struct call *c, const void *args)
{
    const struct pf_gemm_args *a = args;

    PF_TRY(check_count(c, "m", a->m));
    PF_TRY(check_count(c, "n", a->n));
    PF_TRY(check_count(c, "k", a->k));
    if (a->c_dtype != c->dtype && a->c_dtype != PF_DTYPE_F32) {
        return pf_fail(PF_EINVAL, "gemm: c must be %s or F32", pf_dtype_name(c->dtype));
    }
    if (a->accumulate && a->bias) {
        return pf_fail(PF_EINVAL, "gemm: bias and accumulate exclude each other");
    }
    PF_TRY(check_rows(c, "a", a->a, a->trans_a ? a->k : a->m, a->trans_a ? a->m : a->k, a->lda));
    PF_TRY(check_rows(c, "b", a->b, a->trans_b ? a->n : a->k, a->trans_b ? a->k : a->n, a->ldb));
    PF_TRY(check_typed(c, "c", a->c_dtype, a->c, a->m, a->n, a->ldc));
    if (a->bias) {
        PF_TRY(check_rows(c, "bias", a->bias, 1, a->n, a->n));
    }
    PF_TRY(check_gemm_end(c, a));
    c->scratch_floats = (size_t)c->n_threads * PF_GEMM_SCRATCH_FLOATS;
    c->empty = a->m == 0 || a->n == 0;
    return 0;
}

/* Here are n of n_vocab things from first on, or, with n_vocab 0, all n; ids lie below *limit_out. */
static int check_part(const struct call *c, int64_t first, int64_t n, int64_t n_vocab,
                      int64_t *limit_out)
{
    PF_TRY(check_count(c, "the number of rows here", n));
    PF_TRY(check_count(c, "the first row here", first));
    PF_TRY(check_count(c, "n_vocab", n_vocab));
    if (n_vocab == 0 && first > 0) {
        return pf_fail(PF_EINVAL,
                       "%s: a part that begins with row %" PRId64
                       " needs n_vocab, the size of the whole",
                       c->op, first);
    }
    if (first > INT64_MAX - n) {
        return pf_fail(PF_EINVAL, "%s: shape is too large", c->op);
    }
    *limit_out = n_vocab > 0 ? n_vocab : n;
    return 0;
}

static int check_embed_fwd(struct call *c, const void *args)
{
    const struct pf_embed_fwd_args *a = args;
    int64_t limit;

    PF_TRY(check_positive(c, "width", a->width));
    PF_TRY(check_part(c, a->first_row, a->n_rows, a->n_vocab, &limit));
    PF_TRY(check_rows(c, "table", a->table, a->n_rows, a->width, a->width));
    PF_TRY(check_rows(c, "y", a->y, a->n_tokens, a->width, a->width));
    PF_TRY(check_indices(c, "token", a->ids, a->n_tokens, 0, limit));
    if (a->pos_table) {
        PF_TRY(check_rows(c, "pos_table", a->pos_table, a->n_positions, a->width, a->width));
        PF_TRY(check_positions(c, a->positions, a->n_tokens, a->seq, a->n_positions));
    }
    c->empty = a->n_tokens == 0;
    return 0;
}

static int check_embed_bwd(struct call *c, const void *args)
{
    const struct pf_embed_bwd_args *a = args;
    int64_t limit;

    PF_TRY(check_positive(c, "width", a->width));
    PF_TRY(check_part(c, a->first_row, a->n_rows, a->n_vocab, &limit));
    PF_TRY(check_rows(c, "dy", a->dy, a->n_tokens, a->width, a->width));
    if (a->dtable) {
        PF_TRY(check_typed(c, "dtable", PF_DTYPE_F32, a->dtable, a->n_rows, a->width, a->width));
    }
    PF_TRY(check_indices(c, "token", a->ids, a->n_tokens, 0, limit));
    if (a->dpos_table) {
        PF_TRY(check_typed(c, "dpos_table", PF_DTYPE_F32, a->dpos_table, a->n_positions, a->width,
                           a->width));
        PF_TRY(check_positions(c, a->positions, a->n_tokens, a->seq, a->n_positions));
    }
    c->empty = a->n_tokens == 0;
    return 0;
}

/* What a norm adds to x first: residual [rows, width] at distance ldr, into sum at lds; both or none. */
static int check_norm_sum(const struct call *c, int64_t rows, int64_t width, const void *residual,
                          int64_t ldr, const void *sum, int64_t lds)
{
    if (!residual && !sum) {
        return 0;
    }
    PF_TRY(check_rows(c, "residual", residual, rows, width, ldr));
    return check_rows(c, "sum", sum, rows, width, lds);
}

static int check_rmsnorm_fwd(struct call *c, const void *args)
{
    const struct pf_rmsnorm_fwd_args *a = args;

    PF_TRY(check_positive(c, "width", a->width));
    PF_TRY(check_rows(c, "x", a->x, a->n_rows, a->width, a->ldx));
    PF_TRY(check_rows(c, "y", a->y, a->n_rows, a->width, a->ldy));
    PF_TRY(check_rows(c, "weight", a->weight, 1, a->width, a->width));
    PF_TRY(check_f32(c, "rstd", a->rstd, a->n_rows));
    PF_TRY(check_norm_sum(c, a->n_rows, a->width, a->residual, a->ldr, a->sum, a->lds));
    c->empty = a->n_rows == 0;
    return 0;
}

/* Room for a row of fp32 that kernels handle in whole vectors. */
static size_t whole_lines(int64_t width)
{
    return ((size_t)width + 63) / 64 * 64;
}

static int check_rmsnorm_bwd(struct call *c, const void *args)
{
    const struct pf_rmsnorm_bwd_args *a = args;

    PF_TRY(check_positive(c, "width", a->width));
    PF_TRY(check_rows(c, "x", a->x, a->n_rows, a->width, a->ldx));
    PF_TRY(check_rows(c, "dy", a->dy, a->n_rows, a->width, a->lddy));
    PF_TRY(check_rows(c, "dx", a->dx, a->n_rows, a->width, a->lddx));
    PF_TRY(check_rows(c, "weight", a->weight, 1, a->width, a->width));
    PF_TRY(check_f32(c, "rstd", a->rstd, a->n_rows));
    PF_TRY(check_f32_or_null(c, "dweight", a->dweight, a->width));
    c->scratch_floats = (size_t)c->n_threads * whole_lines(a->width);
    c->empty = a->n_rows == 0;
    return 0;
}

static int check_layernorm_fwd(struct call *c, const void *args)
{
    const struct pf_layernorm_fwd_args *a = args;

    PF_TRY(check_positive(c, "width", a->width));
    PF_TRY(check_rows(c, "x", a->x, a->n_rows, a->width, a->ldx));
    PF_TRY(check_rows(c, "y", a->y, a->n_rows, a->width, a->ldy));
    PF_TRY(check_rows(c, "weight", a->weight, 1, a->width, a->width));
    if (a->bias) {
        PF_TRY(check_rows(c, "bias", a->bias, 1, a->width, a->width));
    }
    PF_TRY(check_f32(c, "mean", a->mean, a->n_rows));
    PF_TRY(check_f32(c, "rstd", a->rstd, a->n_rows));
    PF_TRY(check_norm_sum(c, a->n_rows, a->width, a->residual, a->ldr, a->sum, a->lds));
    c->empty = a->n_rows == 0;
    return 0;
}

static int check_layernorm_bwd(struct call *c, const void *args)
{
    const struct pf_layernorm_bwd_args *a = args;

    PF_TRY(check_positive(c, "width", a->width));
    PF_TRY(check_rows(c, "x", a->x, a->n_rows, a->width, a->ldx));
    PF_TRY(check_rows(c, "dy", a->dy, a->n_rows, a->width, a->lddy));
    PF_TRY(check_rows(c, "dx", a->dx, a->n_rows, a->width, a->lddx));
    PF_TRY(check_rows(c, "weight", a->weight, 1, a->width, a->width));
    PF_TRY(check_f32(c, "mean", a->mean, a->n_rows));
    PF_TRY(check_f32(c, "rstd", a->rstd, a->n_rows));
    PF_TRY(check_f32_or_null(c, "dweight", a->dweight, a->width));
    PF_TRY(check_f32_or_null(c, "dbias", a->dbias, a->width));
    c->scratch_floats = 2 * (size_t)c->n_threads * whole_lines(a->width);
    c->empty = a->n_rows == 0;
    return 0;
}

static int check_rope(struct call *c, const void *args)
{
    const struct pf_rope_args *a = args;
    int64_t width, table;

    PF_TRY(check_count(c, "n_tokens", a->n_tokens));
    PF_TRY(check_count(c, "n_heads", a->n_heads));
    PF_TRY(check_count(c, "n_pairs", a->n_pairs));
    PF_TRY(check_count(c, "n_positions", a->n_positions));
    if (a->first < 0 || a->head_dim < 0 || a->n_pairs > (a->head_dim - a->first) / 2) {
        return pf_fail(PF_EINVAL,
                       "rope: %" PRId64 " pairs from %" PRId64 " leave a head of %" PRId64,
                       a->n_pairs, a->first, a->head_dim);
    }
    if (!pf_mul_i64(a->n_heads, a->head_dim, &width) ||
        !pf_mul_i64(a->n_positions, a->n_pairs, &table)) {
        return pf_fail(PF_EINVAL, "rope: shape is too large");
    }
    PF_TRY(check_rows(c, "x", a->x, a->n_tokens, width, a->ldx));
    PF_TRY(check_f32(c, "cos_table", a->cos_table, table));
    PF_TRY(check_f32(c, "sin_table", a->sin_table, table));
    c->empty = a->n_tokens == 0 || a->n_heads == 0 || a->n_pairs == 0;
    if (!c->empty) {
        PF_TRY(check_positions(c, a->positions, a->n_tokens, a->seq, a->n_positions));
    }
    return 0;
}

/* Each query sees at least itself. */
static int check_first_key(const struct call *c, const int32_t *first, int64_t batch, int64_t seq)
{
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t i = 0; i < seq; i++) {
            if (first[b * seq + i] < 0 || first[b * seq + i] > i) {
                return pf_fail(PF_EINVAL,
                               "%s: first_key %d of position %" PRId64 " is not in [0, %" PRId64
                               "]",
                               c->op, (int)first[b * seq + i], i, i);
            }
        }
    }
    return 0;
}

/* Heads here are some of all. */
static int check_heads(const struct call *c, const struct pf_attention_fwd_args *a)
{
    const int64_t total = a->n_heads_total ? a->n_heads_total : a->n_heads;

    if (a->first_head < 0 || total < a->n_heads || a->first_head > total - a->n_heads) {
        return pf_fail(PF_EINVAL,
                       "%s: %" PRId64 " heads from head %" PRId64 " on are not among %" PRId64,
                       c->op, a->n_heads, a->first_head, total);
    }
    return 0;
}

static int check_attention_shape(const struct call *c, const struct pf_attention_fwd_args *a)
{
    int64_t n;

    PF_TRY(check_count(c, "batch", a->batch));
    PF_TRY(check_count(c, "seq", a->seq));
    PF_TRY(check_positive(c, "n_kv_heads", a->n_kv_heads));
    PF_TRY(check_positive(c, "n_heads", a->n_heads));
    PF_TRY(check_positive(c, "head_dim", a->head_dim));
    PF_TRY(check_positive(c, "v_head_dim", a->v_head_dim));
    if (a->n_heads % a->n_kv_heads != 0) {
        return pf_fail(PF_EINVAL, "%s: %" PRId64 " heads do not share %" PRId64 " key heads evenly",
                       c->op, a->n_heads, a->n_kv_heads);
    }
    PF_TRY(check_heads(c, a));
    if (!(a->dropout_p >= 0 && a->dropout_p < 1)) {
        return pf_fail(PF_EINVAL, "%s: dropout_p %g is not in [0, 1)", c->op, (double)a->dropout_p);
    }
    if (!pf_mul_i64(a->batch, a->seq, &n) || !pf_mul_i64(n, a->n_heads, &n) ||
        !pf_mul_i64(n, a->seq, &n) || !pf_mul_i64(a->n_heads, a->head_dim, &n) ||
        !pf_mul_i64(a->n_heads, a->v_head_dim, &n)) {
        return pf_fail(PF_EINVAL, "%s: shape is too large", c->op);
    }
    return 0;
}

static int check_attention(struct call *c, const struct pf_attention_fwd_args *a)
{
    PF_TRY(check_attention_shape(c, a));
    const int64_t n_tokens = a->batch * a->seq;
    PF_TRY(check_rows(c, "q", a->q, n_tokens, a->n_heads * a->head_dim, a->ldq));
    PF_TRY(check_rows(c, "k", a->k, n_tokens, a->n_kv_heads * a->head_dim, a->ldk));
    PF_TRY(check_rows(c, "v", a->v, n_tokens, a->n_kv_heads * a->v_head_dim, a->ldv));
    PF_TRY(check_rows(c, "out", a->out, n_tokens, a->n_heads * a->v_head_dim, a->ldo));
    PF_TRY(check_f32(c, "lse", a->lse, n_tokens * a->n_heads));
    if (a->first_key) {
        PF_TRY(check_first_key(c, a->first_key, a->batch, a->seq));
    }
    c->scratch_floats =
        (size_t)c->n_threads * PF_ATTENTION_SCRATCH_FLOATS(a->head_dim, a->v_head_dim);
    c->empty = n_tokens == 0;
    return 0;
}

static int check_attention_fwd(struct call *c, const void *args)
{
    return check_attention(c, args);
}

static int check_attention_bwd(struct call *c, const void *args)
{
    const struct pf_attention_bwd_args *a = args;
    const struct pf_attention_fwd_args *f = &a->fwd;

    PF_TRY(check_attention(c, f));
    const int64_t n_tokens = f->batch * f->seq;
    PF_TRY(check_rows(c, "dout", a->dout, n_tokens, f->n_heads * f->v_head_dim, a->lddo));
    PF_TRY(check_f32(c, "delta", a->delta, n_tokens * f->n_heads));
    PF_TRY(check_rows(c, "dq", a->dq, n_tokens, f->n_heads * f->head_dim, f->ldq));
    PF_TRY(check_rows(c, "dk", a->dk, n_tokens, f->n_kv_heads * f->head_dim, f->ldk));
    PF_TRY(check_rows(c, "dv", a->dv, n_tokens, f->n_kv_heads * f->v_head_dim, f->ldv));
    c->scratch_floats =
        (size_t)c->n_threads * PF_ATTENTION_BWD_SCRATCH_FLOATS(f->head_dim, f->v_head_dim, f->seq);
    return 0;
}

static int check_glu_fwd(struct call *c, const void *args)
{
    const struct pf_glu_fwd_args *a = args;

    PF_TRY(check_act_kind(c, a->act));
    PF_TRY(check_rows(c, "gate", a->gate, a->n_rows, a->width, a->ldg));
    PF_TRY(check_rows(c, "up", a->up, a->n_rows, a->width, a->ldu));
    PF_TRY(check_rows(c, "y", a->y, a->n_rows, a->width, a->ldy));
    c->empty = a->n_rows == 0 || a->width == 0;
    return 0;
}

static int check_glu_bwd(struct call *c, const void *args)
{
    const struct pf_glu_bwd_args *a = args;

    PF_TRY(check_act_kind(c, a->act));
    PF_TRY(check_rows(c, "gate", a->gate, a->n_rows, a->width, a->ldg));
    PF_TRY(check_rows(c, "up", a->up, a->n_rows, a->width, a->ldu));
    PF_TRY(check_rows(c, "dy", a->dy, a->n_rows, a->width, a->lddy));
    PF_TRY(check_rows(c, "dgate", a->dgate, a->n_rows, a->width, a->ldg));
    PF_TRY(check_rows(c, "dup", a->dup, a->n_rows, a->width, a->ldu));
    c->empty = a->n_rows == 0 || a->width == 0;
    return 0;
}

static int check_act_fwd(struct call *c, const void *args)
{
    const struct pf_act_fwd_args *a = args;

    PF_TRY(check_act_kind(c, a->act));
    PF_TRY(check_rows(c, "x", a->x, 1, a->n, a->n));
    PF_TRY(check_rows(c, "y", a->y, 1, a->n, a->n));
    c->empty = a->n == 0;
    return 0;
}

static int check_act_bwd(struct call *c, const void *args)
{
    const struct pf_act_bwd_args *a = args;

    PF_TRY(check_act_kind(c, a->act));
    PF_TRY(check_rows(c, "x", a->x, 1, a->n, a->n));
    PF_TRY(check_rows(c, "dy", a->dy, 1, a->n, a->n));
    PF_TRY(check_rows(c, "dx", a->dx, 1, a->n, a->n));
    c->empty = a->n == 0;
    return 0;
}

static int check_bias_grad(struct call *c, const void *args)
{
    const struct pf_bias_grad_args *a = args;

    PF_TRY(check_rows(c, "dy", a->dy, a->n_rows, a->width, a->lddy));
    PF_TRY(check_f32(c, "dbias", a->dbias, a->width));
    c->scratch_floats = whole_lines(a->width);
    c->empty = a->n_rows == 0 || a->width == 0;
    return 0;
}

static int check_add(struct call *c, const void *args)
{
    const struct pf_add_args *a = args;

    PF_TRY(check_rows(c, "a", a->a, 1, a->n, a->n));
    PF_TRY(check_rows(c, "b", a->b, 1, a->n, a->n));
    PF_TRY(check_rows(c, "y", a->y, 1, a->n, a->n));
    c->empty = a->n == 0;
    return 0;
}

static int check_scale(struct call *c, const void *args)
{
    const struct pf_scale_args *a = args;

    PF_TRY(check_rows(c, "x", a->x, 1, a->n, a->n));
    c->empty = a->n == 0;
    return 0;
}

static int check_dropout(struct call *c, const void *args)
{
    const struct pf_dropout_args *a = args;

    if (!(a->p >= 0 && a->p < 1)) {
        return pf_fail(PF_EINVAL, "dropout: p %g is not in [0, 1)", (double)a->p);
    }
    PF_TRY(check_rows(c, "x", a->x, 1, a->n, a->n));
    PF_TRY(check_rows(c, "y", a->y, 1, a->n, a->n));
    c->empty = a->n == 0;
    return 0;
}

static int check_cross_entropy(struct call *c, const void *args)
{
    const struct pf_cross_entropy_args *a = args;

    PF_TRY(check_positive(c, "vocab", a->vocab));
    PF_TRY(check_rows(c, "logits", a->logits, a->n_rows, a->vocab, a->ld));
    PF_TRY(check_indices(c, "target", a->targets, a->n_rows, -1, a->vocab));
    PF_TRY(check_f32(c, "loss", a->loss, a->n_rows));
    c->scratch_floats = (size_t)c->n_threads * whole_lines(a->vocab);
    c->empty = a->n_rows == 0;
    return 0;
}

static int check_vocab_ce_fwd(struct call *c, const void *args)
{
    const struct pf_vocab_ce_fwd_args *a = args;
    int64_t limit;

    PF_TRY(check_part(c, a->first_vocab, a->vocab, a->n_vocab, &limit));
    PF_TRY(check_rows(c, "logits", a->logits, a->n_rows, a->vocab, a->ld));
    PF_TRY(check_indices(c, "target", a->targets, a->n_rows, -1, limit));
    PF_TRY(check_typed(c, "stats", PF_DTYPE_F32, a->stats, a->n_rows, 3, 3));
    c->empty = a->n_rows == 0;
    return 0;
}

static int check_vocab_ce_bwd(struct call *c, const void *args)
{
    const struct pf_vocab_ce_bwd_args *a = args;
    int64_t limit;

    PF_TRY(check_part(c, a->first_vocab, a->vocab, a->n_vocab, &limit));
    PF_TRY(check_rows(c, "logits", a->logits, a->n_rows, a->vocab, a->ld));
    PF_TRY(check_indices(c, "target", a->targets, a->n_rows, -1, limit));
    PF_TRY(check_typed(c, "whole", PF_DTYPE_F32, a->whole, a->n_rows, 2, 2));
    c->empty = a->n_rows == 0 || a->vocab == 0;
    return 0;
}

static int check_adamw(struct call *c, const void *args)
{
    const struct pf_adamw_args *a = args;

    PF_TRY(check_f32(c, "grad", a->grad, a->n));
    PF_TRY(check_f32(c, "param", a->param, a->n));
    PF_TRY(check_f32(c, "moment1", a->moment1, a->n));
    PF_TRY(check_f32(c, "moment2", a->moment2, a->n));
    if (a->weight_out) {
        PF_TRY(check_rows(c, "weight_out", a->weight_out, 1, a->n, a->n));
    }
    c->empty = a->n == 0;
    return 0;
}

static int (*const checks[PF_OP_COUNT])(struct call *, const void *) = {
    [PF_OP_GEMM] = check_gemm,
    [PF_OP_EMBED_FWD] = check_embed_fwd,
    [PF_OP_EMBED_BWD] = check_embed_bwd,
    [PF_OP_RMSNORM_FWD] = check_rmsnorm_fwd,
    [PF_OP_RMSNORM_BWD] = check_rmsnorm_bwd,
    [PF_OP_LAYERNORM_FWD] = check_layernorm_fwd,
    [PF_OP_LAYERNORM_BWD] = check_layernorm_bwd,
    [PF_OP_ROPE] = check_rope,
    [PF_OP_ATTENTION_FWD] = check_attention_fwd,
    [PF_OP_ATTENTION_BWD] = check_attention_bwd,
    [PF_OP_GLU_FWD] = check_glu_fwd,
    [PF_OP_GLU_BWD] = check_glu_bwd,
    [PF_OP_ACT_FWD] = check_act_fwd,
    [PF_OP_ACT_BWD] = check_act_bwd,
    [PF_OP_BIAS_GRAD] = check_bias_grad,
    [PF_OP_ADD] = check_add,
    [PF_OP_SCALE] = check_scale,
    [PF_OP_DROPOUT] = check_dropout,
    [PF_OP_CROSS_ENTROPY] = check_cross_entropy,
    [PF_OP_VOCAB_CE_FWD] = check_vocab_ce_fwd,
    [PF_OP_VOCAB_CE_BWD] = check_vocab_ce_bwd,
    [PF_OP_ADAMW] = check_adamw,
};

int pf_ops_check(enum pf_op op, enum pf_dtype dtype, const void *args, int n_threads,
                 size_t *scratch_bytes_out, bool *empty_out)
{
    struct call c = {.op = pf_op_name(op), .dtype = dtype, .n_threads = n_threads};

    if (!args) {
        return pf_fail(PF_EINVAL, "%s: no arguments", c.op);
    }
    PF_TRY(checks[op](&c, args));
    if (!pf_mul_size(c.scratch_floats, sizeof(float), scratch_bytes_out)) {
        return pf_fail(PF_EINVAL, "%s: shape is too large", c.op);
    }
    *empty_out = c.empty;
    return 0;
}
