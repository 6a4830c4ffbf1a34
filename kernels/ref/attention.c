/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.c - causal attention, one query row at a time. For query i of head h and keys j that it
 * sees:
 *
 *     s[j] = scale * q[i].k[j],  lse = log sum_j exp(s[j]),  p[j] = exp(s[j] - lse)
 *     out[i] = sum_j p[j] z[j] v[j]
 *
 * where z[j] is 1, or with dropout 0 or 1/(1-p). Backward, with delta = dout[i].out[i]:
 *
 *     ds[j] = p[j] (z[j] dout[i].v[j] - delta)
 *     dq[i] = scale sum_j ds[j] k[j]
 *     dk[j] = scale sum_i ds[j] q[i]
 *     dv[j] = sum_i p[j] z[j] dout[i]
 *
 * The sums over i of dk and dv run over all query heads that share the key head. Scores are
 * computed again wherever they are needed, so that nothing of size S is stored.
 *
 * Source: Vaswani et al. 2017, equation 1; the form of ds is Dao et al. 2022, appendix B.
 */
#include "ref.h"

#include <pf/rng.h>

/* Offsets of one head's vector in each array: query head h and its key head at batch b. */
struct head {
    const struct pf_attention_fwd_args *a;
    enum pf_dtype dtype;
    int64_t b, h;
};

static int64_t token(const struct head *s, int64_t i)
{
    return s->b * s->a->seq + i;
}

static int64_t q_at(const struct head *s, int64_t i)
{
    return token(s, i) * s->a->ldq + s->h * s->a->head_dim;
}

static int64_t k_at(const struct head *s, int64_t j)
{
    const int64_t group = s->a->n_heads / s->a->n_kv_heads;
    return token(s, j) * s->a->ldk + s->h / group * s->a->head_dim;
}

static int64_t v_at(const struct head *s, int64_t j)
{
    const int64_t group = s->a->n_heads / s->a->n_kv_heads;
    return token(s, j) * s->a->ldv + s->h / group * s->a->v_head_dim;
}

static int64_t lse_at(const struct head *s, int64_t i)
{
    return (s->b * s->a->n_heads + s->h) * s->a->seq + i;
}

static int64_t first_key(const struct head *s, int64_t i)
{
    return s->a->first_key ? s->a->first_key[token(s, i)] : 0;
}

static double dot(enum pf_dtype dtype, const void *x, int64_t x_at, const void *y, int64_t y_at,
                  int64_t n)
{
    double sum = 0;

    for (int64_t d = 0; d < n; d++) {
        sum += ref_load(dtype, x, x_at + d) * ref_load(dtype, y, y_at + d);
    }
    return sum;
}

static double score(const struct head *s, int64_t i, int64_t j)
{
    return (double)s->a->scale *
           dot(s->dtype, s->a->q, q_at(s, i), s->a->k, k_at(s, j), s->a->head_dim);
}

/* z[j] of query i. */
static double kept(const struct head *s, int64_t i, int64_t j)
{
    const double p = (double)s->a->dropout_p;

    if (s->a->dropout_p <= 0) {
        return 1;
    }
    const uint64_t sequence = s->a->first_sequence + (uint64_t)s->b;
    const int64_t n_heads = s->a->n_heads_total ? s->a->n_heads_total : s->a->n_heads;
    const uint64_t row =
        (sequence * (uint64_t)n_heads + (uint64_t)(s->a->first_head + s->h)) * (uint64_t)s->a->seq;
    const uint64_t index = (row + (uint64_t)i) * (uint64_t)s->a->seq + (uint64_t)j;
    return pf_dropout_keep(s->a->dropout_key, index, s->a->dropout_p) ? 1 / (1 - p) : 0;
}

static void forward_row(const struct head *s, int64_t i, double *sum)
{
    const struct pf_attention_fwd_args *a = s->a;
    double largest = -INFINITY, total = 0;

    for (int64_t j = first_key(s, i); j <= i; j++) {
        largest = fmax(largest, score(s, i, j));
    }
    for (int64_t d = 0; d < a->v_head_dim; d++) {
        sum[d] = 0;
    }
    for (int64_t j = first_key(s, i); j <= i; j++) {
        const double e = exp(score(s, i, j) - largest), z = kept(s, i, j);
        total += e;
        for (int64_t d = 0; d < a->v_head_dim; d++) {
            sum[d] += e * z * ref_load(s->dtype, a->v, v_at(s, j) + d);
        }
    }
    for (int64_t d = 0; d < a->v_head_dim; d++) {
        ref_store(s->dtype, a->out, token(s, i) * a->ldo + s->h * a->v_head_dim + d,
                  sum[d] / total);
    }
    a->lse[lse_at(s, i)] = (float)(largest + log(total));
}

static int attention_fwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_attention_fwd_args *a = args;

    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->n_heads; h++) {
            const struct head s = {a, dtype, b, h};
            for (int64_t i = 0; i < a->seq; i++) {
                forward_row(&s, i, ctx->scratch);
            }
        }
    }
    return 0;
}

/* What the backward pass needs of the pair (i, j). */
struct pair {
    double p, z, ds;
};

static struct pair pair_of(const struct head *s, const struct pf_attention_bwd_args *g, int64_t i,
                           int64_t j)
{
    const struct pf_attention_fwd_args *a = s->a;
    const double p = exp(score(s, i, j) - (double)a->lse[lse_at(s, i)]), z = kept(s, i, j);
    const double dp = dot(s->dtype, g->dout, token(s, i) * g->lddo + s->h * a->v_head_dim, a->v,
                          v_at(s, j), a->v_head_dim);

    return (struct pair){p, z, p * (z * dp - (double)g->delta[lse_at(s, i)])};
}

static void fill_delta(const struct head *s, const struct pf_attention_bwd_args *g)
{
    const struct pf_attention_fwd_args *a = s->a;

    for (int64_t i = 0; i < a->seq; i++) {
        const int64_t dout_at = token(s, i) * g->lddo + s->h * a->v_head_dim;
        const int64_t out_at = token(s, i) * a->ldo + s->h * a->v_head_dim;
        g->delta[lse_at(s, i)] =
            (float)dot(s->dtype, g->dout, dout_at, a->out, out_at, a->v_head_dim);
    }
}

static void backward_query(const struct head *s, const struct pf_attention_bwd_args *g, int64_t i,
                           double *dq)
{
    const struct pf_attention_fwd_args *a = s->a;

    for (int64_t d = 0; d < a->head_dim; d++) {
        dq[d] = 0;
    }
    for (int64_t j = first_key(s, i); j <= i; j++) {
        const double ds = pair_of(s, g, i, j).ds;
        for (int64_t d = 0; d < a->head_dim; d++) {
            dq[d] += ds * ref_load(s->dtype, a->k, k_at(s, j) + d);
        }
    }
    for (int64_t d = 0; d < a->head_dim; d++) {
        ref_store(s->dtype, g->dq, q_at(s, i) + d, (double)a->scale * dq[d]);
    }
}

/* What query head s->h adds to the sums of key j. */
static void add_to_key(const struct head *s, const struct pf_attention_bwd_args *g, int64_t j,
                       double *dk, double *dv)
{
    const struct pf_attention_fwd_args *a = s->a;

    for (int64_t i = j; i < a->seq; i++) {
        if (j < first_key(s, i)) {
            continue;
        }
        const struct pair at = pair_of(s, g, i, j);
        const int64_t dout_at = token(s, i) * g->lddo + s->h * a->v_head_dim;
        for (int64_t d = 0; d < a->head_dim; d++) {
            dk[d] += at.ds * ref_load(s->dtype, a->q, q_at(s, i) + d);
        }
        for (int64_t d = 0; d < a->v_head_dim; d++) {
            dv[d] += at.p * at.z * ref_load(s->dtype, g->dout, dout_at + d);
        }
    }
}

/* Key head kv of batch b, position j: the sum over its group of query heads. */
static void backward_key(enum pf_dtype dtype, const struct pf_attention_bwd_args *g, int64_t b,
                         int64_t kv, int64_t j, double *dk)
{
    const struct pf_attention_fwd_args *a = &g->fwd;
    const int64_t group = a->n_heads / a->n_kv_heads;
    const struct head first = {a, dtype, b, kv * group};
    double *dv = dk + a->head_dim;

    for (int64_t d = 0; d < a->head_dim + a->v_head_dim; d++) {
        dk[d] = 0;
    }
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        const struct head s = {a, dtype, b, h};
        add_to_key(&s, g, j, dk, dv);
    }
    for (int64_t d = 0; d < a->head_dim; d++) {
        ref_store(dtype, g->dk, k_at(&first, j) + d, (double)a->scale * dk[d]);
    }
    for (int64_t d = 0; d < a->v_head_dim; d++) {
        ref_store(dtype, g->dv, v_at(&first, j) + d, dv[d]);
    }
}

static int attention_bwd(enum pf_dtype dtype, const struct pf_kctx *ctx, const void *args)
{
    const struct pf_attention_bwd_args *g = args;
    const struct pf_attention_fwd_args *a = &g->fwd;

    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->n_heads; h++) {
            const struct head s = {a, dtype, b, h};
            fill_delta(&s, g);
            for (int64_t i = 0; i < a->seq; i++) {
                backward_query(&s, g, i, ctx->scratch);
            }
        }
        for (int64_t kv = 0; kv < a->n_kv_heads; kv++) {
            for (int64_t j = 0; j < a->seq; j++) {
                backward_key(dtype, g, b, kv, j, ctx->scratch);
            }
        }
    }
    return 0;
}

REF_KERNEL(attention_fwd);
REF_KERNEL(attention_bwd);
