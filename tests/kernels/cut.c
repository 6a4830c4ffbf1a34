/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cut.c - ops on a part of a vocabulary or of the heads: what the parts give together is what the whole
 * gives, with every instruction set of this machine and the reference, in every dtype. One thread: with
 * more, how a key head's gradients are cut and summed depends on how many heads there are.
 */
#include <pf/error.h>
#include <pf/ops.h>
#include <pf/rng.h>

#include "tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static struct pf_ops *ops;
static enum pf_dtype dtype;
static size_t element;
static char what[64]; /* "avx2 BF16" */
static uint64_t next_stream;

static void must(int err)
{
    if (err) {
        ok(false, "call succeeds: %s", pf_error_message());
        exit(done());
    }
}

static void put(void *x, int64_t i, float value)
{
    must(pf_dtype_convert(PF_DTYPE_F32, &value, dtype, (char *)x + (size_t)i * element, 1));
}

static float get(const void *x, int64_t i)
{
    float value = 0;

    must(pf_dtype_convert(dtype, (const char *)x + (size_t)i * element, PF_DTYPE_F32, &value, 1));
    return value;
}

/* Uniform in [-size, size). */
static void fill(void *x, int64_t n, float size)
{
    next_stream++;
    for (int64_t i = 0; i < n; i++) {
        put(x, i, (2 * pf_rng_uniform_f32(11, next_stream, (uint64_t)i) - 1) * size);
    }
}

static void *at(void *x, int64_t i)
{
    return (char *)x + (size_t)i * element;
}

/* Embedding ------------------------------------------------------------------------------------ */

enum { T = 45, H = 37, V = 21, P = 15, PADDED = 24 };

/* Of 21 rows, the last part being padded; one part is empty. */
static const int64_t cuts[] = {0, 5, 5, 16, PADDED};
enum { N_PARTS = COUNT(cuts) - 1 };

static float table[PADDED * H], pos_table[P * H], y[T * H], part_y[T * H], sum[T * H];
static float dtable[PADDED * H], parts_dtable[PADDED * H], dpos[P * H], part_dpos[P * H];
static int32_t ids[T];

static void fill_embedding(void)
{
    fill(table, V * H, 1);
    fill(pos_table, P * H, 1);
    for (int i = 0; i < T; i++) {
        ids[i] = (int32_t)pf_rng_bounded(11, 99, (uint64_t)i, V);
    }
}

/* Only one part adds positions; the sums are rounded as a reduction in dtype would. */
static void embedding_of_parts_sums_to_that_of_the_whole(void)
{
    struct pf_embed_fwd_args e = {.n_tokens = T, .width = H, .n_rows = V, .n_positions = P};

    e.seq = P;
    e.ids = ids;
    e.table = table;
    e.pos_table = pos_table;
    e.y = y;
    must(pf_op_embed_fwd(ops, dtype, &e));
    memset(sum, 0, sizeof sum);
    e.y = part_y;
    e.n_vocab = V;
    for (int p = 0; p < N_PARTS; p++) {
        e.first_row = cuts[p];
        e.n_rows = cuts[p + 1] - cuts[p];
        e.table = e.n_rows ? at(table, cuts[p] * H) : NULL;
        e.pos_table = p == 1 ? pos_table : NULL;
        must(pf_op_embed_fwd(ops, dtype, &e));
        for (int i = 0; i < T * H; i++) {
            put(sum, i, get(sum, i) + get(part_y, i));
        }
    }
    ok(memcmp(sum, y, T * H * element) == 0, "r41_embedding: parts sum to that of the whole (%s)",
       what);
}

static void gradients_of_parts_are_those_of_the_whole(void)
{
    struct pf_embed_bwd_args e = {.n_tokens = T, .width = H, .n_rows = V, .n_positions = P};
    bool same = true;

    memset(dtable, 0, sizeof dtable);
    memset(parts_dtable, 0, sizeof parts_dtable);
    memset(dpos, 0, sizeof dpos);
    e.seq = P;
    e.skip_id = 7;
    e.ids = ids;
    e.dy = y;
    e.dtable = dtable;
    e.dpos_table = dpos;
    must(pf_op_embed_bwd(ops, dtype, &e));
    e.n_vocab = V;
    for (int p = 0; p < N_PARTS; p++) {
        e.first_row = cuts[p];
        e.n_rows = cuts[p + 1] - cuts[p];
        e.dtable = parts_dtable + cuts[p] * H;
        e.dpos_table = part_dpos;
        memset(part_dpos, 0, sizeof part_dpos);
        must(pf_op_embed_bwd(ops, dtype, &e));
        same = same && memcmp(part_dpos, dpos, sizeof dpos) == 0;
    }
    ok(memcmp(parts_dtable, dtable, sizeof dtable) == 0,
       "gradients of parts are those of the whole (%s)", what);
    ok(same, "and each part has all of the positions' (%s)", what);
    memset(part_dpos, 0, sizeof part_dpos);
    e.dtable = NULL;
    must(pf_op_embed_bwd(ops, dtype, &e));
    ok(memcmp(part_dpos, dpos, sizeof dpos) == 0, "and so has a call without a table (%s)", what);
}

/* Attention ------------------------------------------------------------------------------------ */

/* A key head's group is one part. */
enum {
    B = 2,
    S = 83,
    A = 6,
    G = 3,
    D = 16,
    DV = 24,
    Q = A * D,
    K = G * D,
    VV = G * DV,
    O = A * DV
};
static float q[B * S * Q], k[B * S * K], v[B * S * VV], dout[B * S * O];

struct results {
    float out[B * S * O], lse[B * A * S], delta[B * A * S];
    float dq[B * S * Q], dk[B * S * K], dv[B * S * VV];
};
static struct results whole, parts;

/* Key heads [g, g + n) of all, forward and backward, into r. */
static void attend(int g, int n, struct results *r)
{
    const int h = g * (A / G);
    struct pf_attention_bwd_args a = {
        .fwd = {.batch = B, .seq = S, .head_dim = D, .v_head_dim = DV}, .lddo = O};
    struct pf_attention_fwd_args *const f = &a.fwd;

    f->n_heads = n * (A / G);
    f->n_kv_heads = n;
    f->ldq = Q;
    f->ldk = K;
    f->ldv = VV;
    f->ldo = O;
    f->q = at(q, h * D);
    f->k = at(k, g * D);
    f->v = at(v, g * DV);
    f->scale = 0.3f;
    f->dropout_p = 0.25f;
    f->dropout_key = 77;
    f->first_sequence = 4;
    f->first_head = h;
    f->n_heads_total = n == G ? 0 : A; /* the whole need not say */
    f->out = at(r->out, h * DV);
    f->lse = r->lse;
    a.dout = at(dout, h * DV);
    a.delta = r->delta;
    a.dq = at(r->dq, h * D);
    a.dk = at(r->dk, g * D);
    a.dv = at(r->dv, g * DV);
    must(pf_op_attention_fwd(ops, dtype, f));
    must(pf_op_attention_bwd(ops, dtype, &a));
}

static void dropout_of_some_heads_is_that_of_all(void)
{
    fill(q, COUNT(q), 1);
    fill(k, COUNT(k), 1);
    fill(v, COUNT(v), 1);
    fill(dout, COUNT(dout), 1);
    attend(0, G, &whole);
    for (int g = 0; g < G; g++) {
        attend(g, 1, &parts);
    }
    ok(memcmp(parts.out, whole.out, B * S * O * element) == 0,
       "some heads drop what all heads drop there (%s)", what);
    ok(memcmp(parts.dq, whole.dq, B * S * Q * element) == 0 &&
           memcmp(parts.dk, whole.dk, B * S * K * element) == 0 &&
           memcmp(parts.dv, whole.dv, B * S * VV * element) == 0,
       "and backward (%s)", what);
}

/* Cross-entropy -------------------------------------------------------------------------------- */

enum { R = 7, C = 203 };
static const int64_t columns[] = {0, 67, 67, 100, C};
enum { N_CUTS = COUNT(columns) - 1 };
static const int32_t goals[R] = {0, 202, -1, 66, 67, 99, 100};
static const float grad_scale = 0.3f;

static float logits[R * C], dense[R * C], parted[R * C];
static float dense_loss[R], parted_loss[R], stats[N_CUTS * R * 3], joined[R * 2];

/* Loss and gradient of the rows as they are, and in parts. */
static void lose(const int32_t *targets)
{
    memcpy(dense, logits, sizeof dense);
    memcpy(parted, logits, sizeof parted);
    must(pf_op_cross_entropy(
        ops, dtype,
        &(struct pf_cross_entropy_args){R, C, C, targets, dense, dense_loss, true, grad_scale}));
    for (int p = 0; p < N_CUTS; p++) {
        const int64_t first = columns[p], n = columns[p + 1] - first;
        must(pf_op_vocab_ce_fwd(ops, dtype,
                                &(struct pf_vocab_ce_fwd_args){R, n, C, first, C, targets,
                                                               n ? at(parted, first) : NULL,
                                                               stats + (int64_t)p * R * 3}));
    }
    pf_vocab_ce_combine(stats, N_CUTS, R, targets, joined, parted_loss);
    for (int p = 0; p < N_CUTS; p++) {
        const int64_t first = columns[p], n = columns[p + 1] - first;
        must(pf_op_vocab_ce_bwd(ops, dtype,
                                &(struct pf_vocab_ce_bwd_args){R, n, C, first, C, targets,
                                                               n ? at(parted, first) : NULL, joined,
                                                               grad_scale}));
    }
}

/* Two roundings of halves may fall on two sides: one unit of them. */
static void parts_lose_what_the_whole_loses(const char *of)
{
    const float unit = dtype == PF_DTYPE_F32 ? 1e-6f : dtype == PF_DTYPE_BF16 ? 0x1p-7f : 0x1p-10f;
    float worst_loss = 0, worst = 0;
    bool finite = true;

    for (int r = 0; r < R; r++) {
        const float off = fabsf(parted_loss[r] - dense_loss[r]) / (1 + fabsf(dense_loss[r]));
        worst_loss = fmaxf(worst_loss, off);
        finite = finite && isfinite(parted_loss[r]);
    }
    for (int i = 0; i < R * C; i++) {
        const float x = get(parted, i), want = get(dense, i);
        worst = fmaxf(worst, fabsf(x - want) / (1e-3f + fabsf(want)));
        finite = finite && isfinite(x);
    }
    ok(finite && worst_loss < 1e-6f,
       "r42_cross_entropy: parts lose what the whole loses, of %s (%s, %.1e)", of, what,
       (double)worst_loss);
    ok(worst <= unit, "and have its gradient (%s, %.1e)", what, (double)worst);
    ok(parted_loss[2] == 0 && get(parted, 2 * C) == 0 && get(parted, 3 * C - 1) == 0,
       "and nothing of a row without target (%s)", what);
}

static void cross_entropy_of_parts(void)
{
    static const int32_t none[R] = {-1, -1, -1, -1, -1, -1, -1};
    bool nothing = true;

    fill(logits, R * C, 9);
    lose(goals);
    parts_lose_what_the_whole_loses("common logits");
    fill(logits, R * C, 1e4f);
    for (int r = 0; r < R; r++) {
        put(logits, r * C + 3, 1e4f);
        put(logits, r * C + 101, 1e4f);
        put(logits, r * C + 5, -1e4f);
    }
    lose(goals);
    parts_lose_what_the_whole_loses("logits of ten thousand");
    lose(none);
    for (int i = 0; i < R * C; i++) {
        nothing = nothing && get(parted, i) == 0 && parted_loss[i / C] == 0;
    }
    ok(nothing, "rows none of which counts have neither loss nor gradient (%s)", what);
}

/* Masked logits fill a part, but for row 4; row 3 holds a NaN among them. */
static void masked_parts_add_nothing(void)
{
    fill(logits, R * C, 2);
    for (int r = 0; r < R; r++) {
        for (int j = 0; j < 66 && r != 4; j++) {
            put(logits, r * C + j, -INFINITY);
        }
    }
    put(logits, 0, 1);
    put(logits, 3 * C + 66, -INFINITY);
    put(logits, C + 66, -INFINITY);
    const int32_t targets[R] = {0, 202, -1, 67, 67, 99, 100};
    lose(targets);
    parts_lose_what_the_whole_loses("masked logits");
    put(logits, 3 * C + 20, NAN);
    lose(targets);
    ok(isnan(parted_loss[3]) && isnan(get(parted, 4 * C - 1)) && isfinite(parted_loss[4]),
       "a NaN among masked logits is found (%s)", what);
}

/* ---------------------------------------------------------------------------------------------- */

static void everything(void)
{
    static const enum pf_dtype dtypes[] = {PF_DTYPE_F32, PF_DTYPE_BF16, PF_DTYPE_F16};
    const char *const whose = pf_ops_chosen(ops, PF_OP_EMBED_FWD, PF_DTYPE_F32)->variant;

    for (int d = 0; d < COUNT(dtypes); d++) {
        dtype = dtypes[d];
        element = pf_dtype_bytes(dtype);
        (void)snprintf(what, sizeof what, "%s %s", whose, pf_dtype_name(dtype));
        fill_embedding();
        embedding_of_parts_sums_to_that_of_the_whole();
        gradients_of_parts_are_those_of_the_whole();
        dropout_of_some_heads_is_that_of_all();
        cross_entropy_of_parts();
        masked_parts_add_nothing();
    }
}

int main(void)
{
    static const struct pf_ops_options options[] = {{.n_threads = 1, .ref_only = true},
                                                    {.n_threads = 1, .isa = "generic"},
                                                    {.n_threads = 1, .isa = "avx2"},
                                                    {.n_threads = 1, .isa = "avx512"},
                                                    {.n_threads = 1, .isa = "avx512bf16"}};

    for (int i = 0; i < COUNT(options); i++) {
        const int err = pf_ops_open(&options[i], &ops);
        if (err == PF_ENOTSUP) {
            printf("# skipped: %s\n", pf_error_message());
            pf_error_clear();
            continue;
        }
        must(err);
        everything();
        pf_ops_free(ops);
    }
    return done();
}
