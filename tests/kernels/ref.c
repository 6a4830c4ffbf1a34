/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref.c - is the reference right? Everything else is compared with it, so here it is held against
 * what it does not know: slopes of its own forward pass, formulas written out again in double, known
 * values, and identities.
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
static uint64_t next_stream;

/* Fill x with multiples of 2^-10 in [-1, 1], so that small steps from them are exact in fp32. */
static void fill(float *x, int64_t n)
{
    next_stream++;
    for (int64_t i = 0; i < n; i++) {
        x[i] = floorf(pf_rng_uniform_f32(3, next_stream, (uint64_t)i) * 2048) / 1024 - 1;
    }
}

static bool is_near(double x, double y, double tolerance)
{
    return fabs(x - y) <= tolerance * (1 + fabs(y));
}

static double worst_difference(const float *x, const float *y, int64_t n)
{
    double worst = 0;

    for (int64_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
    }
    return worst;
}

/* Sum of w*y in double: a loss whose gradient with respect to y is w. */
static double weighted(const float *w, const float *y, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += (double)w[i] * (double)y[i];
    }
    return sum;
}

/*
 * Slopes. A forward pass that ends in a number is called with x[i] moved by h and 2h to both sides;
 * (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h differs from the derivative by O(h^4). What is left is
 * the rounding of f, about 1e-7/h.
 */
#define STEP (1.0f / 32)
#define SLOPE_TOLERANCE 1e-4

typedef double (*loss_fn)(void);

static double slope(loss_fn loss, float *x)
{
    static const float steps[4] = {1, -1, 2, -2};
    static const double weights[4] = {8, -8, -1, 1};
    const float old = *x;
    double sum = 0;

    for (int s = 0; s < 4; s++) {
        *x = old + steps[s] * STEP;
        sum += weights[s] * loss();
    }
    *x = old;
    return sum / (12 * (double)STEP);
}

/* Does grad hold the slopes of loss over x? Looks at up to 60 elements spread over n. */
static void check_slopes(const char *what, loss_fn loss, float *x, int64_t n, const float *grad)
{
    double worst = 0, largest = 0;

    for (int64_t i = 0; i < n; i += n / 60 + 1) {
        worst = fmax(worst, fabs(slope(loss, &x[i]) - (double)grad[i]));
        largest = fmax(largest, fabs((double)grad[i]));
    }
    ok(worst <= SLOPE_TOLERANCE * (1 + largest),
       "%s is the slope of the loss (off by %.1e of %.1e)", what, worst, largest);
}

static void must(int err)
{
    if (err != 0) {
        ok(false, "call succeeds: %s", pf_error_message());
        exit(done());
    }
}

/* Matrix product ------------------------------------------------------------------------------- */

/* Every transpose against sums written out; bias, accumulation and k = 0. */
static void gemm_agrees_with_its_definition(void)
{
    enum { M = 3, N = 5, K = 7 };
    float a[M * K], b[K * N], bias[N], c[M * N];
    double worst = 0;

    fill(a, M * K);
    fill(b, K * N);
    fill(bias, N);
    for (int trans = 0; trans < 4; trans++) {
        const bool ta = trans & 1, tb = trans & 2;
        must(pf_op_gemm(ops, PF_DTYPE_F32,
                        &(struct pf_gemm_args){.m = M,
                                               .n = N,
                                               .k = K,
                                               .a = a,
                                               .lda = ta ? M : K,
                                               .trans_a = ta,
                                               .b = b,
                                               .ldb = tb ? K : N,
                                               .trans_b = tb,
                                               .c = c,
                                               .ldc = N,
                                               .c_dtype = PF_DTYPE_F32,
                                               .bias = bias}));
        for (int i = 0; i < M * N; i++) {
            double sum = (double)bias[i % N];
            for (int p = 0; p < K; p++) {
                sum += (double)(ta ? a[p * M + i / N] : a[i / N * K + p]) *
                       (double)(tb ? b[i % N * K + p] : b[p * N + i % N]);
            }
            worst = fmax(worst, fabs(sum - (double)c[i]));
        }
    }
    ok(worst < 1e-6, "gemm multiplies in all four orders and adds the bias (%.1e)", worst);

    float old[M * N];
    memcpy(old, c, sizeof c);
    struct pf_gemm_args none = {.n = N,
                                .m = M,
                                .a = a,
                                .lda = K,
                                .b = b,
                                .ldb = N,
                                .c = c,
                                .ldc = N,
                                .c_dtype = PF_DTYPE_F32,
                                .accumulate = true};
    must(pf_op_gemm(ops, PF_DTYPE_F32, &none));
    ok(memcmp(old, c, sizeof c) == 0, "gemm with k = 0 accumulates nothing");
    none.accumulate = false;
    must(pf_op_gemm(ops, PF_DTYPE_F32, &none));
    ok(c[0] == 0 && c[M * N - 1] == 0, "gemm with k = 0 overwrites with zero");
}

/* Norms ---------------------------------------------------------------------------------------- */

enum { NORM_ROWS = 3, NORM_WIDTH = 19, NORM_N = NORM_ROWS * NORM_WIDTH };
static float norm_x[NORM_N], norm_w[NORM_WIDTH], norm_b[NORM_WIDTH], norm_y[NORM_N];
static float norm_mean[NORM_ROWS], norm_rstd[NORM_ROWS], norm_dy[NORM_N];

static double rmsnorm_loss(void)
{
    must(pf_op_rmsnorm_fwd(ops, PF_DTYPE_F32,
                           &(struct pf_rmsnorm_fwd_args){.n_rows = NORM_ROWS,
                                                         .width = NORM_WIDTH,
                                                         .ldx = NORM_WIDTH,
                                                         .ldy = NORM_WIDTH,
                                                         .x = norm_x,
                                                         .weight = norm_w,
                                                         .eps = 1e-5f,
                                                         .y = norm_y,
                                                         .rstd = norm_rstd}));
    return weighted(norm_dy, norm_y, NORM_N);
}

static double layernorm_loss(void)
{
    must(pf_op_layernorm_fwd(ops, PF_DTYPE_F32,
                             &(struct pf_layernorm_fwd_args){.n_rows = NORM_ROWS,
                                                             .width = NORM_WIDTH,
                                                             .ldx = NORM_WIDTH,
                                                             .ldy = NORM_WIDTH,
                                                             .x = norm_x,
                                                             .weight = norm_w,
                                                             .bias = norm_b,
                                                             .eps = 1e-5f,
                                                             .y = norm_y,
                                                             .mean = norm_mean,
                                                             .rstd = norm_rstd}));
    return weighted(norm_dy, norm_y, NORM_N);
}

static void fill_norm(void)
{
    fill(norm_x, NORM_N);
    fill(norm_w, NORM_WIDTH);
    fill(norm_b, NORM_WIDTH);
    fill(norm_dy, NORM_N);
}

static void rmsnorm_backward_is_the_slope(void)
{
    float dx[NORM_N], dw[NORM_WIDTH] = {0}, sum[NORM_N];

    fill_norm();
    (void)rmsnorm_loss();
    struct pf_rmsnorm_bwd_args args = {NORM_ROWS,  NORM_WIDTH, NORM_WIDTH, NORM_WIDTH,
                                       NORM_WIDTH, norm_x,     norm_w,     norm_dy,
                                       norm_rstd,  dx,         false,      dw};
    must(pf_op_rmsnorm_bwd(ops, PF_DTYPE_F32, &args));
    check_slopes("rmsnorm dx", rmsnorm_loss, norm_x, NORM_N, dx);
    check_slopes("rmsnorm dweight", rmsnorm_loss, norm_w, NORM_WIDTH, dw);

    memcpy(sum, dx, sizeof sum);
    args.dx = sum;
    args.dx_accumulate = true;
    args.dweight = NULL;
    must(pf_op_rmsnorm_bwd(ops, PF_DTYPE_F32, &args));
    bool doubled = true;
    for (int i = 0; i < NORM_N; i++) {
        doubled = doubled && is_near((double)sum[i], 2 * (double)dx[i], 1e-6);
    }
    ok(doubled, "rmsnorm adds to dx when asked, and does without dweight");
}

static void layernorm_backward_is_the_slope(void)
{
    float dx[NORM_N], dw[NORM_WIDTH] = {0}, db[NORM_WIDTH] = {0};

    fill_norm();
    (void)layernorm_loss();
    must(pf_op_layernorm_bwd(ops, PF_DTYPE_F32,
                             &(struct pf_layernorm_bwd_args){
                                 NORM_ROWS, NORM_WIDTH, NORM_WIDTH, NORM_WIDTH, NORM_WIDTH, norm_x,
                                 norm_w, norm_dy, norm_mean, norm_rstd, dx, false, dw, db}));
    check_slopes("layernorm dx", layernorm_loss, norm_x, NORM_N, dx);
    check_slopes("layernorm dweight", layernorm_loss, norm_w, NORM_WIDTH, dw);
    check_slopes("layernorm dbias", layernorm_loss, norm_b, NORM_WIDTH, db);
}

/* The normalised rows themselves: mean square 1; mean 0 and variance 1. */
static void norms_normalise(void)
{
    double square = 0, mean = 0, variance = 0;

    fill_norm();
    for (int j = 0; j < NORM_WIDTH; j++) {
        norm_w[j] = 1;
        norm_b[j] = 0;
    }
    (void)rmsnorm_loss();
    for (int j = 0; j < NORM_WIDTH; j++) {
        square += (double)norm_y[j] * (double)norm_y[j] / NORM_WIDTH;
    }
    (void)layernorm_loss();
    for (int j = 0; j < NORM_WIDTH; j++) {
        mean += (double)norm_y[j] / NORM_WIDTH;
        variance += (double)norm_y[j] * (double)norm_y[j] / NORM_WIDTH;
    }
    ok(is_near(square, 1, 2e-4), "rmsnorm leaves mean square 1 (%.6f)", square);
    ok(is_near(mean, 0, 1e-6) && is_near(variance, 1, 2e-4), "layernorm leaves mean 0, variance 1");
}

/* In bf16 x*rstd is rounded before the weight multiplies: with x = 1.5, 2 and w = 1.0078125 the
 * product rounded once differs. */
static void rmsnorm_rounds_before_the_weight(void)
{
    uint16_t x[2] = {pf_bf16_from_f32(1.5f), pf_bf16_from_f32(2.0f)}, w[2], y[2];
    float rstd;
    bool as_defined = true, differs = false;

    for (int k = 1; k < 40; k++) {
        w[0] = w[1] = pf_bf16_from_f32(1 + (float)k / 128);
        must(pf_op_rmsnorm_fwd(ops, PF_DTYPE_BF16,
                               &(struct pf_rmsnorm_fwd_args){.n_rows = 1,
                                                             .width = 2,
                                                             .ldx = 2,
                                                             .ldy = 2,
                                                             .x = x,
                                                             .weight = w,
                                                             .y = y,
                                                             .rstd = &rstd}));
        for (int i = 0; i < 2; i++) {
            const float h = pf_f32_from_bf16(x[i]) * rstd, weight = pf_f32_from_bf16(w[i]);
            const uint16_t twice = pf_bf16_from_f32(pf_f32_from_bf16(pf_bf16_from_f32(h)) * weight);
            as_defined = as_defined && y[i] == twice;
            differs = differs || twice != pf_bf16_from_f32(h * weight);
        }
    }
    ok(as_defined && differs, "rmsnorm in bf16 rounds x*rstd before the weight multiplies");
}

/* Activations ---------------------------------------------------------------------------------- */

enum { ACT_N = 59 };
static float act_x[ACT_N], act_up[ACT_N], act_y[ACT_N], act_dy[ACT_N];
static enum pf_act_kind act_kind;
static const char *const act_names[] = {"silu", "gelu_tanh", "gelu_erf", "relu"};

static double act_loss(void)
{
    must(
        pf_op_act_fwd(ops, PF_DTYPE_F32, &(struct pf_act_fwd_args){ACT_N, act_kind, act_x, act_y}));
    return weighted(act_dy, act_y, ACT_N);
}

static double glu_loss(void)
{
    must(pf_op_glu_fwd(
        ops, PF_DTYPE_F32,
        &(struct pf_glu_fwd_args){1, ACT_N, ACT_N, ACT_N, ACT_N, act_kind, act_x, act_up, act_y}));
    return weighted(act_dy, act_y, ACT_N);
}

/* Wide enough for the tails, and no step crosses the corner of relu. */
static void fill_act(void)
{
    fill(act_x, ACT_N);
    fill(act_up, ACT_N);
    fill(act_dy, ACT_N);
    for (int i = 0; i < ACT_N; i++) {
        act_x[i] = act_x[i] * 5 + (act_x[i] < 0 ? -0.125f : 0.125f);
    }
}

static void activation_backward_is_the_slope(enum pf_act_kind act)
{
    float dx[ACT_N], dup[ACT_N];
    char what[64];

    act_kind = act;
    fill_act();
    must(
        pf_op_act_bwd(ops, PF_DTYPE_F32, &(struct pf_act_bwd_args){ACT_N, act, act_x, act_dy, dx}));
    (void)snprintf(what, sizeof what, "%s dx", act_names[act]);
    check_slopes(what, act_loss, act_x, ACT_N, dx);
    must(pf_op_glu_bwd(ops, PF_DTYPE_F32,
                       &(struct pf_glu_bwd_args){1, ACT_N, ACT_N, ACT_N, ACT_N, act, act_x, act_up,
                                                 act_dy, dx, dup}));
    (void)snprintf(what, sizeof what, "gated %s dgate", act_names[act]);
    check_slopes(what, glu_loss, act_x, ACT_N, dx);
    (void)snprintf(what, sizeof what, "gated %s dup", act_names[act]);
    check_slopes(what, glu_loss, act_up, ACT_N, dup);
}

/* Values that tables and other programs give. */
static void activations_have_known_values(void)
{
    /* at 1, and at -100 where nothing may overflow */
    static const double at_one[] = {0.7310585786300049, 0.8411919906082768, 0.8413447460685429, 1};
    float x[2] = {1, -100}, y[2];

    for (int act = 0; act < 4; act++) {
        must(pf_op_act_fwd(ops, PF_DTYPE_F32,
                           &(struct pf_act_fwd_args){2, (enum pf_act_kind)act, x, y}));
        ok(is_near((double)y[0], at_one[act], 1e-7) && fabs((double)y[1]) < 1e-30,
           "%s of 1 is %.9f and of -100 nothing", act_names[act], (double)y[0]);
    }
}

/* Rotary embedding ----------------------------------------------------------------------------- */

enum { ROPE_S = 6, ROPE_HEADS = 2, ROPE_D = 12, ROPE_FIRST = 2, ROPE_PAIRS = 5 };
enum { ROPE_ROW = ROPE_HEADS * ROPE_D, ROPE_N = ROPE_S * ROPE_ROW };

static struct pf_rope_args rope_args(bool adjacent, float *c, float *s, float *x)
{
    for (int p = 0; p < ROPE_S; p++) {
        for (int i = 0; i < ROPE_PAIRS; i++) {
            c[p * ROPE_PAIRS + i] = (float)cos(p * pow(100, -i / (double)ROPE_PAIRS));
            s[p * ROPE_PAIRS + i] = (float)sin(p * pow(100, -i / (double)ROPE_PAIRS));
        }
    }
    return (struct pf_rope_args){.n_tokens = ROPE_S,
                                 .n_heads = ROPE_HEADS,
                                 .head_dim = ROPE_D,
                                 .ldx = ROPE_ROW,
                                 .first = ROPE_FIRST,
                                 .n_pairs = ROPE_PAIRS,
                                 .n_positions = ROPE_S,
                                 .seq = ROPE_S,
                                 .pairs_adjacent = adjacent,
                                 .cos_table = c,
                                 .sin_table = s,
                                 .x = x};
}

/* Element 1 of head 1 turns as a complex number does; the elements before `first` stay. */
static void check_rotation(const float *x, const float *y, bool adjacent)
{
    double worst = 0;
    bool kept = true;

    for (int p = 0; p < ROPE_S; p++) {
        for (int i = 0; i < ROPE_PAIRS; i++) {
            const int head = p * ROPE_ROW + ROPE_D + ROPE_FIRST;
            const int u = head + (adjacent ? 2 * i : i), v = adjacent ? u + 1 : u + ROPE_PAIRS;
            const double angle = p * pow(100, -i / (double)ROPE_PAIRS);
            const double length = hypot((double)x[u], (double)x[v]);
            const double from = atan2((double)x[v], (double)x[u]);
            worst = fmax(worst, fabs((double)y[u] - length * cos(from + angle)));
            worst = fmax(worst, fabs((double)y[v] - length * sin(from + angle)));
        }
        kept = kept && x[p * ROPE_ROW] == y[p * ROPE_ROW] &&
               x[p * ROPE_ROW + 1] == y[p * ROPE_ROW + 1];
    }
    ok(worst < 1e-6 && kept, "rope turns %s pairs by their angles and no others (%.1e)",
       adjacent ? "adjacent" : "half-split", worst);
}

static void rope_turns_and_turns_back(bool adjacent)
{
    float c[ROPE_S * ROPE_PAIRS], s[ROPE_S * ROPE_PAIRS], x[ROPE_N], y[ROPE_N];
    struct pf_rope_args args = rope_args(adjacent, c, s, y);

    fill(x, ROPE_N);
    memcpy(y, x, sizeof y);
    must(pf_op_rope(ops, PF_DTYPE_F32, &args));
    check_rotation(x, y, adjacent);
    args.inverse = true;
    must(pf_op_rope(ops, PF_DTYPE_F32, &args));
    ok(worst_difference(x, y, ROPE_N) < 1e-6, "r61_rope_and_its_inverse_give_back_the_input");

    /* <R x, y> = <x, R' y> makes the inverse the gradient. */
    float dy[ROPE_N], dx[ROPE_N];
    fill(dy, ROPE_N);
    memcpy(dx, dy, sizeof dx);
    args.x = dx;
    must(pf_op_rope(ops, PF_DTYPE_F32, &args));
    args.x = y;
    args.inverse = false;
    must(pf_op_rope(ops, PF_DTYPE_F32, &args));
    ok(is_near(weighted(dy, y, ROPE_N), weighted(dx, x, ROPE_N), 1e-6),
       "r61_the_inverse_rotation_is_the_gradient");
}

static void rope_reads_given_positions(void)
{
    float c[ROPE_S * ROPE_PAIRS], s[ROPE_S * ROPE_PAIRS], x[ROPE_N], y[ROPE_N];
    const int32_t positions[ROPE_S] = {0, 1, 2, 0, 1, 2};
    struct pf_rope_args args = rope_args(false, c, s, x);

    fill(x, ROPE_N / 2);
    memcpy(x + ROPE_N / 2, x, sizeof x / 2);
    memcpy(y, x, sizeof y);
    args.positions = positions;
    must(pf_op_rope(ops, PF_DTYPE_F32, &args));
    ok(memcmp(x, x + ROPE_N / 2, sizeof x / 2) == 0, "rope turns equal positions equally");
    args.positions = NULL;
    args.seq = ROPE_S / 2;
    args.x = y;
    must(pf_op_rope(ops, PF_DTYPE_F32, &args));
    ok(memcmp(x, y, sizeof x) == 0, "rope counts positions from the start of each sequence");
}

/* Row 61: a rotation of the last part of each head is the whole rotation of that part taken out. */
static void partial_rope_is_rope_of_a_part(struct pf_ops *with, enum pf_dtype dtype,
                                           const char *whose)
{
    enum { PART = 2 * ROPE_PAIRS, N_PARTS = ROPE_N / ROPE_D };
    float c[ROPE_S * ROPE_PAIRS], s[ROPE_S * ROPE_PAIRS];
    uint32_t x[ROPE_N], was[ROPE_N], part[N_PARTS * PART]; /* room for any dtype */
    const size_t e = pf_dtype_bytes(dtype);
    unsigned char *const at = (unsigned char *)x, *const dense = (unsigned char *)part;
    struct pf_rope_args args = rope_args(false, c, s, (float *)(void *)x);
    float wide[ROPE_N];
    bool same = true;

    fill(wide, ROPE_N);
    for (int i = 0; i < ROPE_N; i++) {
        if (dtype == PF_DTYPE_F32) {
            memcpy(at + (size_t)i * e, &wide[i], e);
        } else {
            const uint16_t narrow = pf_bf16_from_f32(wide[i]);
            memcpy(at + (size_t)i * e, &narrow, e);
        }
    }
    memcpy(was, x, sizeof was);
    args.first = ROPE_D - PART;
    for (int i = 0; i < N_PARTS; i++) {
        memcpy(dense + (size_t)(i * PART) * e, at + (size_t)(i * ROPE_D + ROPE_D - PART) * e,
               PART * e);
    }
    must(pf_op_rope(with, dtype, &args));
    args.x = part;
    args.first = 0;
    args.head_dim = PART;
    args.ldx = args.n_heads * PART;
    must(pf_op_rope(with, dtype, &args));
    for (int i = 0; i < N_PARTS; i++) {
        const unsigned char *const head = at + (size_t)(i * ROPE_D) * e;
        same = same && memcmp(head, (unsigned char *)was + (size_t)(i * ROPE_D) * e,
                              (ROPE_D - PART) * e) == 0;
        same = same &&
               memcmp(head + (ROPE_D - PART) * e, dense + (size_t)(i * PART) * e, PART * e) == 0;
    }
    ok(same && memcmp(was, x, sizeof was) != 0, "r61_partial_rope_is_rope_of_a_part (%s, %s)",
       whose, pf_dtype_name(dtype));
}

static void partial_rope_everywhere(void)
{
    struct pf_ops *fast;

    must(pf_ops_open(&(struct pf_ops_options){.n_threads = 2}, &fast));
    for (int d = 0; d < 2; d++) {
        const enum pf_dtype dtype = d ? PF_DTYPE_BF16 : PF_DTYPE_F32;
        partial_rope_is_rope_of_a_part(ops, dtype, "reference");
        partial_rope_is_rope_of_a_part(fast, dtype, "chosen");
    }
    pf_ops_free(fast);
}

/* Attention ------------------------------------------------------------------------------------ */

enum { AT_B = 2, AT_S = 9, AT_A = 4, AT_G = 2, AT_D = 6, AT_DV = 5, AT_T = AT_B * AT_S };
static float at_q[AT_T * AT_A * AT_D], at_k[AT_T * AT_G * AT_D], at_v[AT_T * AT_G * AT_DV];
static float at_out[AT_T * AT_A * AT_DV], at_lse[AT_T * AT_A], at_dout[AT_T * AT_A * AT_DV];
static int32_t at_first[AT_T];
static struct pf_attention_fwd_args at_args;

static void fill_attention(bool documents, float dropout_p)
{
    fill(at_q, COUNT(at_q));
    fill(at_k, COUNT(at_k));
    fill(at_v, COUNT(at_v));
    fill(at_dout, COUNT(at_dout));
    for (int t = 0; t < AT_T; t++) {
        at_first[t] = t % AT_S < 4 ? 0 : t % AT_S < 5 ? 4 : 5; /* lengths 4, 1, 4 */
    }
    at_args = (struct pf_attention_fwd_args){.batch = AT_B,
                                             .seq = AT_S,
                                             .n_heads = AT_A,
                                             .n_kv_heads = AT_G,
                                             .head_dim = AT_D,
                                             .v_head_dim = AT_DV,
                                             .ldq = AT_A * AT_D,
                                             .ldk = AT_G * AT_D,
                                             .ldv = AT_G * AT_DV,
                                             .ldo = AT_A * AT_DV,
                                             .q = at_q,
                                             .k = at_k,
                                             .v = at_v,
                                             .first_key = documents ? at_first : NULL,
                                             .scale = 0.8f,
                                             .dropout_p = dropout_p,
                                             .dropout_key = 12,
                                             .first_sequence = 5,
                                             .out = at_out,
                                             .lse = at_lse};
}

static double attention_loss(void)
{
    must(pf_op_attention_fwd(ops, PF_DTYPE_F32, &at_args));
    return weighted(at_dout, at_out, COUNT(at_out));
}

/* exp of the scaled score of (b, h, i, j), 0 where it is masked. */
static double plain_weight(int b, int h, int i, int j)
{
    const int first = at_args.first_key ? at_first[b * AT_S + i] : 0;
    double sum = 0;

    if (j < first || j > i) {
        return 0;
    }
    for (int d = 0; d < AT_D; d++) {
        sum += (double)at_q[((b * AT_S + i) * AT_A + h) * AT_D + d] *
               (double)at_k[((b * AT_S + j) * AT_G + h / (AT_A / AT_G)) * AT_D + d];
    }
    return exp(sum * (double)at_args.scale);
}

static double plain_keep(int b, int h, int i, int j)
{
    const uint64_t index =
        (((at_args.first_sequence + (uint64_t)b) * AT_A + (uint64_t)h) * AT_S + (uint64_t)i) *
            AT_S +
        (uint64_t)j;

    if (at_args.dropout_p == 0) {
        return 1;
    }
    return pf_dropout_keep(at_args.dropout_key, index, at_args.dropout_p)
               ? 1 / (1 - (double)at_args.dropout_p)
               : 0;
}

/* Errors of one output vector and its lse against the matrix form. */
static double attention_row_error(int b, int h, int i)
{
    double sum[AT_DV] = {0}, total = 0, worst = 0;

    for (int j = 0; j < AT_S; j++) {
        const double w = plain_weight(b, h, i, j), z = plain_keep(b, h, i, j);
        total += w;
        for (int d = 0; d < AT_DV; d++) {
            sum[d] += w * z * (double)at_v[((b * AT_S + j) * AT_G + h / (AT_A / AT_G)) * AT_DV + d];
        }
    }
    for (int d = 0; d < AT_DV; d++) {
        const double out = (double)at_out[((b * AT_S + i) * AT_A + h) * AT_DV + d];
        worst = fmax(worst, fabs(out - sum[d] / total));
    }
    return fmax(worst, fabs((double)at_lse[(b * AT_A + h) * AT_S + i] - log(total)));
}

static void attention_agrees_with_its_definition(const char *what, bool documents, float dropout_p)
{
    double worst = 0;

    fill_attention(documents, dropout_p);
    (void)attention_loss();
    for (int r = 0; r < AT_B * AT_A * AT_S; r++) {
        worst = fmax(worst, attention_row_error(r / (AT_A * AT_S), r / AT_S % AT_A, r % AT_S));
    }
    ok(worst < 1e-6, "attention %s agrees with the softmax of a score matrix (%.1e)", what, worst);
}

static void attention_backward_is_the_slope(bool documents, float dropout_p)
{
    static float dq[COUNT(at_q)], dk[COUNT(at_k)], dv[COUNT(at_v)], delta[COUNT(at_lse)];

    fill_attention(documents, dropout_p);
    (void)attention_loss();
    must(pf_op_attention_bwd(
        ops, PF_DTYPE_F32,
        &(struct pf_attention_bwd_args){at_args, AT_A * AT_DV, at_dout, delta, dq, dk, dv}));
    check_slopes("attention dq", attention_loss, at_q, COUNT(at_q), dq);
    check_slopes("attention dk", attention_loss, at_k, COUNT(at_k), dk);
    check_slopes("attention dv", attention_loss, at_v, COUNT(at_v), dv);
}

/* With one position the softmax has one entry. */
static void attention_of_one_position_is_v(void)
{
    float q[8], k[8], v[8], out[8], lse[1];

    fill(q, 8);
    fill(k, 8);
    fill(v, 8);
    must(pf_op_attention_fwd(ops, PF_DTYPE_F32,
                             &(struct pf_attention_fwd_args){.batch = 1,
                                                             .seq = 1,
                                                             .n_heads = 1,
                                                             .n_kv_heads = 1,
                                                             .head_dim = 8,
                                                             .v_head_dim = 8,
                                                             .ldq = 8,
                                                             .ldk = 8,
                                                             .ldv = 8,
                                                             .ldo = 8,
                                                             .q = q,
                                                             .k = k,
                                                             .v = v,
                                                             .scale = 1,
                                                             .out = out,
                                                             .lse = lse}));
    ok(memcmp(out, v, sizeof v) == 0, "attention of one position is v");
}

/* Grouped heads give what the same key heads, repeated, give. */
static void grouped_heads_equal_repeated_heads(void)
{
    static float k[AT_T * AT_A * AT_D], v[AT_T * AT_A * AT_DV], out[COUNT(at_out)];

    fill_attention(true, 0.2f);
    (void)attention_loss();
    for (int t = 0; t < AT_T; t++) {
        for (int h = 0; h < AT_A; h++) {
            const int g = t * AT_G + h / (AT_A / AT_G);
            memcpy(&k[(t * AT_A + h) * AT_D], &at_k[g * AT_D], AT_D * sizeof *k);
            memcpy(&v[(t * AT_A + h) * AT_DV], &at_v[g * AT_DV], AT_DV * sizeof *v);
        }
    }
    at_args.n_kv_heads = AT_A;
    at_args.k = k;
    at_args.v = v;
    at_args.ldk = AT_A * AT_D;
    at_args.ldv = AT_A * AT_DV;
    at_args.out = out;
    must(pf_op_attention_fwd(ops, PF_DTYPE_F32, &at_args));
    ok(memcmp(out, at_out, sizeof out) == 0, "grouped key heads equal repeated ones");
}

/* A document in a packed sequence gives what it gives alone. */
static void documents_do_not_see_each_other(void)
{
    float out[4 * AT_A * AT_DV], lse[4 * AT_A];

    fill_attention(true, 0);
    (void)attention_loss();
    at_args.batch = 1;
    at_args.seq = 4;
    at_args.first_key = NULL;
    at_args.q = at_q + 5 * AT_A * AT_D;
    at_args.k = at_k + 5 * AT_G * AT_D;
    at_args.v = at_v + 5 * AT_G * AT_DV;
    at_args.out = out;
    at_args.lse = lse;
    must(pf_op_attention_fwd(ops, PF_DTYPE_F32, &at_args));
    ok(memcmp(out, at_out + 5 * AT_A * AT_DV, sizeof out) == 0,
       "a packed document attends as if it were alone");
}

/* Scores around 1e4 would overflow exp. */
static void attention_survives_large_scores(void)
{
    bool finite = true;

    fill_attention(false, 0);
    at_args.scale = 1e4f;
    (void)attention_loss();
    for (int i = 0; i < COUNT(at_out); i++) {
        finite = finite && isfinite(at_out[i]) && fabsf(at_out[i]) <= 1;
    }
    ok(finite, "attention with scores in the thousands stays finite");
}

/* Loss ----------------------------------------------------------------------------------------- */

enum { CE_ROWS = 5, CE_V = 11, CE_N = CE_ROWS * CE_V };
static float ce_x[CE_N];
static const int32_t ce_targets[CE_ROWS] = {0, 10, -1, 4, 4};
static const float ce_scale = 0.3f;

static void ce_call(float *logits, float *loss, bool with_grad)
{
    must(pf_op_cross_entropy(ops, PF_DTYPE_F32,
                             &(struct pf_cross_entropy_args){CE_ROWS, CE_V, CE_V, ce_targets,
                                                             logits, loss, with_grad, ce_scale}));
}

static double ce_loss(void)
{
    float copy[CE_N], loss[CE_ROWS];
    double sum = 0;

    memcpy(copy, ce_x, sizeof copy);
    ce_call(copy, loss, false);
    for (int i = 0; i < CE_ROWS; i++) {
        sum += (double)loss[i] * (double)ce_scale;
    }
    return sum;
}

static void cross_entropy_backward_is_the_slope(void)
{
    float grad[CE_N], loss[CE_ROWS];
    double worst = 0;

    fill(ce_x, CE_N);
    memcpy(grad, ce_x, sizeof grad);
    ce_call(grad, loss, false);
    ok(memcmp(grad, ce_x, sizeof grad) == 0, "cross entropy leaves logits alone without gradient");
    ce_call(grad, loss, true);
    check_slopes("cross entropy's gradient", ce_loss, ce_x, CE_N, grad);
    for (int i = 0; i < CE_ROWS; i++) {
        double sum = 0;
        for (int j = 0; j < CE_V; j++) {
            sum += (double)grad[i * CE_V + j];
        }
        worst = fmax(worst, fabs(sum));
    }
    ok(worst < 1e-7, "the rows of cross entropy's gradient sum to nothing (%.1e)", worst);
    ok(loss[2] == 0 && grad[2 * CE_V] == 0 && grad[3 * CE_V - 1] == 0,
       "a row without target has neither loss nor gradient");
}

static void cross_entropy_has_known_values(void)
{
    float same[CE_N] = {0}, far[2] = {3e4f, -3e4f}, loss[CE_ROWS];
    const int32_t target = 1;

    ce_call(same, loss, false);
    ok(is_near((double)loss[0], log(CE_V), 1e-7), "equal logits lose log V");
    must(pf_op_cross_entropy(
        ops, PF_DTYPE_F32, &(struct pf_cross_entropy_args){1, 2, 2, &target, far, loss, true, 1}));
    ok(loss[0] == 6e4f && far[0] == 1 && far[1] == -1, "logits far apart do not overflow");
}

/* Masked logits; 40, so that whole vectors are at work too. */
static void cross_entropy_gives_nothing_to_masked_logits(struct pf_ops *with, const char *whose)
{
    enum { N = 40 };
    float x[N], loss;
    const int32_t target = 3;
    bool right = true;

    for (int i = 0; i < N; i++) {
        x[i] = i % 2 ? 2.0f : -INFINITY;
    }
    must(pf_op_cross_entropy(with, PF_DTYPE_F32,
                             &(struct pf_cross_entropy_args){1, N, N, &target, x, &loss, true, 1}));
    for (int i = 0; i < N; i += 2) {
        right = right && x[i] == 0 && (i + 1 == target || is_near((double)x[i + 1], 0.05, 1e-7));
    }
    ok(right && is_near((double)loss, log(N / 2.0), 1e-6),
       "cross entropy gives nothing to logits of minus infinity (%s)", whose);
}

static void masked_logits_everywhere(void)
{
    struct pf_ops *fast;

    must(pf_ops_open(&(struct pf_ops_options){.n_threads = 1}, &fast));
    cross_entropy_gives_nothing_to_masked_logits(ops, "reference");
    cross_entropy_gives_nothing_to_masked_logits(fast, "chosen");
    pf_ops_free(fast);
}

/* Embedding ------------------------------------------------------------------------------------ */

static void embedding_gathers_and_scatters(void)
{
    enum { T = 6, H = 3, V = 4, P = 3 };
    const int32_t ids[T] = {1, 0, 1, 3, 0, 1};
    float table[V * H], pos[P * H], y[T * H], dtable[V * H] = {0}, dpos[P * H] = {0};
    bool gathered = true;

    fill(table, V * H);
    fill(pos, P * H);
    must(pf_op_embed_fwd(
        ops, PF_DTYPE_F32,
        &(struct pf_embed_fwd_args){T, H, V, P, 3, 0, 0, ids, NULL, table, pos, y}));
    for (int i = 0; i < T * H; i++) {
        gathered = gathered && y[i] == table[ids[i / H] * H + i % H] + pos[i / H % 3 * H + i % H];
    }
    ok(gathered, "embedding adds the row of the token and the row of the position");
    must(pf_op_embed_bwd(
        ops, PF_DTYPE_F32,
        &(struct pf_embed_bwd_args){T, H, V, P, 3, 0, 0, ids, NULL, -1, y, dtable, dpos}));
    ok(is_near((double)dtable[H], (double)y[0] + (double)y[2 * H] + (double)y[5 * H], 1e-6) &&
           dtable[2 * H] == 0,
       "its backward sums over the tokens that chose a row");
    ok(is_near((double)dpos[0], (double)y[0] + (double)y[3 * H], 1e-6), "and over positions");

    float skipped[V * H] = {0}, skipped_pos[P * H] = {0};
    must(pf_op_embed_bwd(
        ops, PF_DTYPE_F32,
        &(struct pf_embed_bwd_args){T, H, V, P, 3, 0, 0, ids, NULL, 1, y, skipped, skipped_pos}));
    ok(skipped[H] == 0 && skipped[0] == dtable[0] && memcmp(skipped_pos, dpos, sizeof dpos) == 0,
       "padding_idx gets no gradient, its positions do");
}

/* Elementwise ---------------------------------------------------------------------------------- */

static void sums_are_as_defined(void)
{
    float a[7], b[7], y[7], dbias[7] = {1, 1, 1, 1, 1, 1, 1}, rows[21];
    bool added = true, summed = true;

    fill(a, 7);
    fill(b, 7);
    fill(rows, 21);
    must(pf_op_add(ops, PF_DTYPE_F32, &(struct pf_add_args){7, a, b, y}));
    must(pf_op_bias_grad(ops, PF_DTYPE_F32, &(struct pf_bias_grad_args){3, 7, 7, rows, dbias}));
    for (int i = 0; i < 7; i++) {
        added = added && y[i] == a[i] + b[i];
        summed = summed &&
                 is_near((double)dbias[i],
                         1 + (double)rows[i] + (double)rows[7 + i] + (double)rows[14 + i], 1e-6);
    }
    must(pf_op_scale(ops, PF_DTYPE_F32, &(struct pf_scale_args){7, -2, a}));
    ok(added && summed && y[0] == b[0] - a[0] / 2, "add, scale and bias gradient do what they say");
}

static void dropout_keeps_the_right_share(void)
{
    enum { N = 40000 };
    static float x[N], y[N], part[N];
    const float p = 0.3f;
    int64_t kept = 0;
    bool scaled = true;

    for (int i = 0; i < N; i++) {
        x[i] = 1;
    }
    must(pf_op_dropout(ops, PF_DTYPE_F32, &(struct pf_dropout_args){N, p, 8, 100, x, y}));
    for (int i = 0; i < N; i++) {
        kept += y[i] != 0;
        scaled = scaled && (y[i] == 0 || is_near((double)y[i], 1 / (1 - (double)p), 1e-7));
    }
    /* the standard deviation of the share is 0.0023 */
    ok(fabs((double)kept / N - 0.7) < 0.01 && scaled, "dropout keeps 70 %% and scales them (%.4f)",
       (double)kept / N);
    must(pf_op_dropout(ops, PF_DTYPE_F32, &(struct pf_dropout_args){N - 33, p, 8, 133, x, part}));
    ok(memcmp(part, y + 33, (N - 33) * sizeof *y) == 0,
       "its mask depends on the global index only");
    must(pf_op_dropout(ops, PF_DTYPE_F32, &(struct pf_dropout_args){N, p, 9, 100, x, part}));
    ok(memcmp(part, y, sizeof y) != 0, "another key gives another mask");
    must(pf_op_dropout(ops, PF_DTYPE_F32, &(struct pf_dropout_args){N, 0, 8, 100, x, part}));
    ok(memcmp(part, x, sizeof x) == 0, "with p = 0 nothing changes");
}

static void dropout_words_are_philox(void)
{
    bool same = true;

    for (uint64_t block = 0; block < 50; block++) {
        uint32_t a[4], b[4];
        pf_dropout_words(0x123456789abcdefu, block << 28, a);
        pf_rng_block(0x123456789abcdefu, 0, block << 28, b);
        same = same && memcmp(a, b, sizeof a) == 0;
    }
    ok(same, "dropout draws the words of pf_rng_block");
}

/* Optimizer ------------------------------------------------------------------------------------ */

/* Ten steps beside torch's order of operations in double. */
static void adamw_follows_the_formula(void)
{
    enum { N = 13 };
    const double lr = 1e-2, b1 = 0.9, b2 = 0.999, eps = 1e-8, decay = 0.1, scale = 0.5;
    float g[N], param[N], m[N] = {0}, v[N] = {0};
    uint16_t copy[N];
    double dp[N], dm[N] = {0}, dv[N] = {0}, worst = 0;

    fill(param, N);
    for (int i = 0; i < N; i++) {
        dp[i] = (double)param[i];
    }
    for (int t = 1; t <= 10; t++) {
        const double c1 = 1 - pow(b1, t), c2 = 1 - pow(b2, t);
        fill(g, N);
        must(pf_op_adamw(ops, PF_DTYPE_BF16,
                         &(struct pf_adamw_args){N, (float)scale, (float)(1 - lr * decay),
                                                 (float)(1 - b1), (float)b2, (float)(1 - b2),
                                                 (float)eps, (float)(lr / c1),
                                                 (float)(1 / sqrt(c2)), g, param, m, v, copy}));
        for (int i = 0; i < N; i++) {
            const double grad = (double)g[i] * scale;
            dp[i] -= dp[i] * lr * decay;
            dm[i] = b1 * dm[i] + (1 - b1) * grad;
            dv[i] = b2 * dv[i] + (1 - b2) * grad * grad;
            dp[i] -= lr * (dm[i] / c1) / (sqrt(dv[i] / c2) + eps);
            worst = fmax(worst, fabs(dp[i] - (double)param[i]));
        }
    }
    ok(worst < 1e-6, "ten steps of adamw follow the formula in double (%.1e)", worst);
    ok(copy[3] == pf_bf16_from_f32(param[3]), "adamw rounds the new value into the weight");
}

int main(void)
{
    if (pf_ops_open(&(struct pf_ops_options){.n_threads = 1, .ref_only = true}, &ops) != 0) {
        ok(false, "the registry opens: %s", pf_error_message());
        return done();
    }
    gemm_agrees_with_its_definition();
    rmsnorm_backward_is_the_slope();
    layernorm_backward_is_the_slope();
    norms_normalise();
    rmsnorm_rounds_before_the_weight();
    for (int act = 0; act < COUNT(act_names); act++) {
        activation_backward_is_the_slope((enum pf_act_kind)act);
    }
    activations_have_known_values();
    rope_turns_and_turns_back(false);
    rope_turns_and_turns_back(true);
    rope_reads_given_positions();
    partial_rope_everywhere();
    attention_agrees_with_its_definition("of whole sequences", false, 0);
    attention_agrees_with_its_definition("of documents", true, 0);
    attention_agrees_with_its_definition("with dropout", true, 0.25f);
    attention_backward_is_the_slope(false, 0);
    attention_backward_is_the_slope(true, 0.25f);
    attention_of_one_position_is_v();
    grouped_heads_equal_repeated_heads();
    documents_do_not_see_each_other();
    attention_survives_large_scores();
    cross_entropy_backward_is_the_slope();
    cross_entropy_has_known_values();
    masked_logits_everywhere();
    embedding_gathers_and_scatters();
    sums_are_as_defined();
    dropout_keeps_the_right_share();
    dropout_words_are_philox();
    adamw_follows_the_formula();
    pf_ops_free(ops);
    return done();
}
