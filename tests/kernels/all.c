/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all.c - every row of every kernel table against the reference, over shapes that are odd, tiny,
 * padded and larger than a tile; with 1, 2 and 3 threads, those of two past the caches. Rows are read from the registry, so a new
 * table is tested without a change here.
 *
 * Every buffer lies between guards, and the gaps between its rows are filled too: of inputs with
 * bytes 0xff, NaN in each float dtype, of outputs with 0xfe, a huge number or NaN. So an input read
 * out of bounds poisons a result, an output that is not written is far off, and one written out of
 * bounds is seen, even if it is with what lies beyond the inputs (NaN operands keep their bits).
 */
#include <pf/error.h>
#include <pf/mem.h>
#include <pf/ops.h>
#include <pf/tolerance.h>
#include <pf/rng.h>

#include "tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Buffers -------------------------------------------------------------------------------------- */

#define GUARD 128
#define INPUT_POISON 0xff
#define OUTPUT_POISON 0xfe
#define MAX_BUFS 14
#define MAX_THREADS 3

struct buf {
    enum pf_dtype dtype;
    int64_t rows, width, ld;
    bool is_output;
    unsigned char *raw, *data;
    size_t raw_bytes;
};

/* One call: the memory of all its arrays and its argument struct. */
struct run {
    enum pf_dtype dtype;
    int n_bufs;
    struct buf bufs[MAX_BUFS];
    union pf_op_args args;
};

static struct pf_ops *reference;

static double load(enum pf_dtype dtype, const void *x, int64_t i)
{
    return dtype == PF_DTYPE_F32    ? (double)((const float *)x)[i]
           : dtype == PF_DTYPE_BF16 ? (double)pf_f32_from_bf16(((const uint16_t *)x)[i])
                                    : (double)pf_f32_from_f16(((const uint16_t *)x)[i]);
}

static void store(enum pf_dtype dtype, void *x, int64_t i, float value)
{
    if (dtype == PF_DTYPE_F32) {
        ((float *)x)[i] = value;
    } else {
        ((uint16_t *)x)[i] =
            dtype == PF_DTYPE_BF16 ? pf_bf16_from_f32(value) : pf_f16_from_f32(value);
    }
}

static int poison_of(const struct buf *b)
{
    return b->is_output ? OUTPUT_POISON : INPUT_POISON;
}

/* A poisoned array; every second one starts one element off a cache line. */
static struct buf *new_buf(struct run *r, enum pf_dtype dtype, int64_t rows, int64_t width,
                           int64_t ld, bool is_output)
{
    struct buf *b = &r->bufs[r->n_bufs];
    const size_t element = pf_dtype_bytes(dtype);
    const size_t skew = r->n_bufs % 2 ? element : 0;

    *b = (struct buf){
        .dtype = dtype, .rows = rows, .width = width, .ld = ld, .is_output = is_output};
    b->raw_bytes = 2 * GUARD + skew + (size_t)(rows * ld) * element;
    b->raw = pf_alloc(b->raw_bytes);
    if (!b->raw) {
        exit(1);
    }
    memset(b->raw, poison_of(b), b->raw_bytes);
    b->data = b->raw + GUARD + skew;
    r->n_bufs++;
    return b;
}

/* Uniform in [lo, hi), the same for the same place in the argument list. */
static void *filled(struct run *r, enum pf_dtype dtype, int64_t rows, int64_t width, int64_t ld,
                    double lo, double hi, bool is_output)
{
    const uint64_t stream = (uint64_t)r->n_bufs;
    struct buf *b = new_buf(r, dtype, rows, width, ld, is_output);

    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < width; j++) {
            const double u = (double)pf_rng_uniform_f32(7, stream, (uint64_t)(i * width + j));
            store(dtype, b->data, i * ld + j, (float)(lo + (hi - lo) * u));
        }
    }
    return b->data;
}

static void *input(struct run *r, int64_t rows, int64_t width, int64_t ld)
{
    return filled(r, r->dtype, rows, width, ld, -2, 2, false);
}

/* For activations: into their tails. */
static void *input_wide(struct run *r, int64_t rows, int64_t width, int64_t ld)
{
    return filled(r, r->dtype, rows, width, ld, -8, 8, false);
}

static float *input_f32(struct run *r, int64_t n, double lo, double hi)
{
    return filled(r, PF_DTYPE_F32, 1, n, n, lo, hi, false);
}

/* Read and written. */
static void *inout_typed(struct run *r, enum pf_dtype dtype, int64_t rows, int64_t width,
                         int64_t ld)
{
    return filled(r, dtype, rows, width, ld, -2, 2, true);
}

static void *inout(struct run *r, int64_t rows, int64_t width, int64_t ld)
{
    return inout_typed(r, r->dtype, rows, width, ld);
}

static float *inout_f32(struct run *r, int64_t n, double lo, double hi)
{
    return filled(r, PF_DTYPE_F32, 1, n, n, lo, hi, true);
}

static void *output_typed(struct run *r, enum pf_dtype dtype, int64_t rows, int64_t width,
                          int64_t ld)
{
    return new_buf(r, dtype, rows, width, ld, true)->data;
}

static void *output(struct run *r, int64_t rows, int64_t width, int64_t ld)
{
    return output_typed(r, r->dtype, rows, width, ld);
}

static float *output_f32(struct run *r, int64_t n)
{
    return output_typed(r, PF_DTYPE_F32, 1, n, n);
}

/* Integers in [lo, hi). */
static int32_t *indices(struct run *r, int64_t n, int64_t lo, int64_t hi)
{
    const uint64_t stream = (uint64_t)r->n_bufs;
    int32_t *x = (int32_t *)(void *)new_buf(r, PF_DTYPE_I32, 1, n, n, false)->data;

    for (int64_t i = 0; i < n; i++) {
        x[i] = (int32_t)(lo + (int64_t)pf_rng_bounded(7, stream, (uint64_t)i, (uint64_t)(hi - lo)));
    }
    return x;
}

static void release(struct run *r)
{
    for (int i = 0; i < r->n_bufs; i++) {
        pf_free(r->bufs[i].raw);
    }
    r->n_bufs = 0;
}

/* Calls, one builder an op: shape i into r, or false when there are no more --------------------- */

static const int64_t row_shapes[][2] = {{1, 1},  {1, 7},   {3, 16},  {5, 33},
                                        {2, 64}, {67, 48}, {9, 257}, {130, 96}};
static const int64_t lengths[] = {1, 2, 15, 16, 33, 255, 1000, 40000};

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))
#define TAKE(i, list)                                                                              \
    if ((i) >= COUNT(list)) {                                                                      \
        return false;                                                                              \
    }

/* Rows are dense or padded by some elements in turn. */
static int64_t padded(int i, int64_t width)
{
    return i % 2 ? width + 5 : width;
}

/* What a product comes with: nothing, bias, c, residual, activation, all but c. */
static void finish_gemm(struct run *r, struct pf_gemm_args *g, int mode, int i)
{
    g->bias = mode == 1 || mode == 5 ? input(r, 1, g->n, g->n) : NULL;
    g->c_dtype = mode >= 3 || i % 3 ? r->dtype : PF_DTYPE_F32;
    g->accumulate = mode == 2;
    g->activate = mode >= 4;
    g->act = (enum pf_act_kind)(i % 4);
    g->ldc = g->ldr = g->ldp = padded(i / 5, g->n);
    g->c = g->accumulate || (mode == 3 && i % 2) ? inout_typed(r, g->c_dtype, g->m, g->n, g->ldc)
                                                 : output_typed(r, g->c_dtype, g->m, g->n, g->ldc);
    if (mode == 3 && i % 2) {
        g->residual = g->c;
    } else if (mode == 3 || mode == 5) {
        g->ldr = padded(i / 7, g->n);
        g->residual = input(r, g->m, g->n, g->ldr);
    }
    if (mode == 4) {
        g->ldp = padded(i / 7, g->n);
        g->pre = output(r, g->m, g->n, g->ldp);
    }
}

static bool build_gemm(struct run *r, int i)
{
    static const int64_t shapes[][3] = {
        {1, 1, 1},      {3, 5, 7},     {4, 9, 0},     {1, 70, 40},    {65, 1, 19},
        {33, 130, 300}, {129, 65, 64}, {40, 48, 520}, {13, 53, 1031}, {10, 51, 2055}};
    enum { MODES = 6 };
    const int trans = i % 4, mode = i / 4 % MODES, shape = i / (4 * MODES);
    struct pf_gemm_args *g = &r->args.gemm;

    TAKE(shape, shapes);
    *g = (struct pf_gemm_args){.m = shapes[shape][0],
                               .n = shapes[shape][1],
                               .k = shapes[shape][2],
                               .trans_a = trans & 1,
                               .trans_b = trans & 2};
    const int64_t a_width = g->trans_a ? g->m : g->k, b_width = g->trans_b ? g->k : g->n;
    g->lda = padded(i / 2, a_width);
    g->ldb = padded(i / 3, b_width);
    g->a = input(r, g->trans_a ? g->k : g->m, a_width, g->lda);
    g->b = input(r, g->trans_b ? g->n : g->k, b_width, g->ldb);
    finish_gemm(r, g, mode, i);
    return true;
}

enum { EMBED_VOCAB = 13 };

/* Parts of a table: the whole, the middle, the end and more, nothing. */
static const struct {
    int64_t first, n, n_vocab;
} embed_parts[] = {
    {0, EMBED_VOCAB, 0}, {4, 5, EMBED_VOCAB}, {8, 8, EMBED_VOCAB}, {9, 0, EMBED_VOCAB}};

static bool build_embed_fwd(struct run *r, int i)
{
    struct pf_embed_fwd_args *e = &r->args.embed_fwd;
    const int part = i / COUNT(row_shapes);

    TAKE(part, embed_parts);
    i %= COUNT(row_shapes);
    *e = (struct pf_embed_fwd_args){.n_tokens = row_shapes[i][0], .width = row_shapes[i][1]};
    e->first_row = embed_parts[part].first;
    e->n_rows = embed_parts[part].n;
    e->n_vocab = embed_parts[part].n_vocab;
    e->n_positions = 11;
    e->seq = 7;
    e->ids = indices(r, e->n_tokens, 0, EMBED_VOCAB);
    e->positions = i % 4 == 3 ? indices(r, e->n_tokens, 0, e->n_positions) : NULL;
    e->table = input(r, e->n_rows, e->width, e->width);
    e->pos_table = i % 2 ? input(r, e->n_positions, e->width, e->width) : NULL;
    e->y = output(r, e->n_tokens, e->width, e->width);
    return true;
}

static bool build_embed_bwd(struct run *r, int i)
{
    struct pf_embed_bwd_args *e = &r->args.embed_bwd;
    const int part = i / COUNT(row_shapes);

    TAKE(part, embed_parts);
    i %= COUNT(row_shapes);
    *e = (struct pf_embed_bwd_args){.n_tokens = row_shapes[i][0], .width = row_shapes[i][1]};
    e->first_row = embed_parts[part].first;
    e->n_rows = embed_parts[part].n;
    e->n_vocab = embed_parts[part].n_vocab;
    e->n_positions = 11;
    e->seq = 7;
    e->skip_id = i % 3 ? -1 : 4;
    e->ids = indices(r, e->n_tokens, 0, EMBED_VOCAB);
    e->positions = i % 4 == 3 ? indices(r, e->n_tokens, 0, e->n_positions) : NULL;
    e->dy = input(r, e->n_tokens, e->width, e->width);
    e->dtable = part == 0 && i == 1 ? NULL : inout_f32(r, e->n_rows * e->width, -1, 1);
    e->dpos_table = i % 2 ? inout_f32(r, e->n_positions * e->width, -1, 1) : NULL;
    return true;
}

/* What a norm's x comes with: nothing, a residual and its sum, and a sum in place of x or residual. */
struct norm_sum {
    const void *x, *residual;
    void *sum;
    int64_t ldr, lds;
};
enum { NORM_MODES = 4 };

static struct norm_sum norm_sum(struct run *r, int mode, int i, int64_t rows, int64_t width,
                                int64_t ldx)
{
    struct norm_sum n = {.ldr = padded(i / 3, width)};

    n.x = mode == 2 ? n.sum = inout(r, rows, width, ldx) : input(r, rows, width, ldx);
    n.lds = mode == 2 ? ldx : n.ldr;
    if (mode == 3) {
        n.residual = n.sum = inout(r, rows, width, n.ldr);
    } else if (mode) {
        n.residual = input(r, rows, width, n.ldr);
    }
    if (mode == 1) {
        n.lds = padded(i / 2, width);
        n.sum = output(r, rows, width, n.lds);
    }
    return n;
}

static bool build_rmsnorm_fwd(struct run *r, int i)
{
    struct pf_rmsnorm_fwd_args *n = &r->args.rmsnorm_fwd;
    const int shape = i / NORM_MODES, mode = i % NORM_MODES;

    TAKE(shape, row_shapes);
    *n =
        (struct pf_rmsnorm_fwd_args){.n_rows = row_shapes[shape][0], .width = row_shapes[shape][1]};
    n->ldx = padded(shape, n->width);
    n->ldy = padded(shape / 2, n->width);
    n->eps = 1e-5f;
    const struct norm_sum s = norm_sum(r, mode, i, n->n_rows, n->width, n->ldx);
    n->x = s.x;
    n->residual = s.residual;
    n->ldr = s.ldr;
    n->sum = s.sum;
    n->lds = s.lds;
    n->weight = input(r, 1, n->width, n->width);
    n->y = output(r, n->n_rows, n->width, n->ldy);
    n->rstd = output_f32(r, n->n_rows);
    return true;
}

static bool build_rmsnorm_bwd(struct run *r, int i)
{
    struct pf_rmsnorm_bwd_args *n = &r->args.rmsnorm_bwd;
    const int shape = i / 3, mode = i % 3;

    TAKE(shape, row_shapes);
    *n =
        (struct pf_rmsnorm_bwd_args){.n_rows = row_shapes[shape][0], .width = row_shapes[shape][1]};
    n->ldx = padded(i, n->width);
    n->lddy = n->lddx = padded(i / 2, n->width);
    n->x = input(r, n->n_rows, n->width, n->ldx);
    n->weight = input(r, 1, n->width, n->width);
    n->rstd = input_f32(r, n->n_rows, 0.5, 1.5);
    n->dweight = i % 4 ? inout_f32(r, n->width, -1, 1) : NULL;
    n->dx_accumulate = mode == 1;
    n->dy = mode == 2 ? NULL : input(r, n->n_rows, n->width, n->lddy);
    n->dx = mode ? inout(r, n->n_rows, n->width, n->lddx) : output(r, n->n_rows, n->width, n->lddx);
    n->dy = n->dy ? n->dy : n->dx; /* mode 2: in place */
    return true;
}

static bool build_layernorm_fwd(struct run *r, int i)
{
    struct pf_layernorm_fwd_args *n = &r->args.layernorm_fwd;
    const int shape = i / NORM_MODES, mode = i % NORM_MODES;

    TAKE(shape, row_shapes);
    *n = (struct pf_layernorm_fwd_args){.n_rows = row_shapes[shape][0],
                                        .width = row_shapes[shape][1]};
    n->ldx = padded(shape, n->width);
    n->ldy = padded(shape / 2, n->width);
    n->eps = 1e-2f; /* rows of one element have no variance: their rstd is that of eps */
    const struct norm_sum s = norm_sum(r, mode, i, n->n_rows, n->width, n->ldx);
    n->x = s.x;
    n->residual = s.residual;
    n->ldr = s.ldr;
    n->sum = s.sum;
    n->lds = s.lds;
    n->weight = input(r, 1, n->width, n->width);
    n->bias = i % 3 ? input(r, 1, n->width, n->width) : NULL;
    n->y = output(r, n->n_rows, n->width, n->ldy);
    n->mean = output_f32(r, n->n_rows);
    n->rstd = output_f32(r, n->n_rows);
    return true;
}

static bool build_layernorm_bwd(struct run *r, int i)
{
    struct pf_layernorm_bwd_args *n = &r->args.layernorm_bwd;
    const int shape = i / 3, mode = i % 3;

    TAKE(shape, row_shapes);
    *n = (struct pf_layernorm_bwd_args){.n_rows = row_shapes[shape][0],
                                        .width = row_shapes[shape][1]};
    n->ldx = padded(i, n->width);
    n->lddy = n->lddx = padded(i / 2, n->width);
    n->x = input(r, n->n_rows, n->width, n->ldx);
    n->weight = input(r, 1, n->width, n->width);
    n->mean = input_f32(r, n->n_rows, -0.2, 0.2);
    n->rstd = input_f32(r, n->n_rows, 0.5, 1.5);
    n->dweight = i % 4 ? inout_f32(r, n->width, -1, 1) : NULL;
    n->dbias = i % 5 ? inout_f32(r, n->width, -1, 1) : NULL;
    n->dx_accumulate = mode == 1;
    n->dy = mode == 2 ? NULL : input(r, n->n_rows, n->width, n->lddy);
    n->dx = mode ? inout(r, n->n_rows, n->width, n->lddx) : output(r, n->n_rows, n->width, n->lddx);
    n->dy = n->dy ? n->dy : n->dx;
    return true;
}

static bool build_rope(struct run *r, int i)
{
    /* tokens, heads, head_dim, first, n_pairs */
    static const int64_t shapes[][5] = {{1, 1, 2, 0, 1},    {5, 3, 16, 0, 8}, {7, 2, 24, 8, 8},
                                        {33, 4, 64, 0, 32}, {6, 3, 20, 3, 5}, {64, 2, 128, 0, 64}};
    struct pf_rope_args *p = &r->args.rope;
    const int shape = i / 4;

    TAKE(shape, shapes);
    const int64_t *s = shapes[shape];
    *p = (struct pf_rope_args){.n_tokens = s[0], .n_heads = s[1], .head_dim = s[2], .first = s[3]};
    p->n_pairs = s[4];
    p->ldx = padded(shape, p->n_heads * p->head_dim);
    p->n_positions = 40;
    p->seq = 32;
    p->pairs_adjacent = i & 1;
    p->inverse = i & 2;
    p->positions = shape % 2 ? indices(r, p->n_tokens, 0, p->n_positions) : NULL;
    p->cos_table = input_f32(r, p->n_positions * p->n_pairs, -1, 1);
    p->sin_table = input_f32(r, p->n_positions * p->n_pairs, -1, 1);
    p->x = inout(r, p->n_tokens, p->n_heads * p->head_dim, p->ldx);
    return true;
}

/* Documents of 1 to 9 positions. */
static void cut_documents(int32_t *first, int64_t n_tokens, int64_t seq)
{
    int64_t start = 0, length = 1;

    for (int64_t t = 0; t < n_tokens; t++) {
        const int64_t i = t % seq;
        if (i == 0) {
            start = 0;
        } else if (i >= start + length) {
            start = i;
            length = 1 + (length * 5 + 3) % 9;
        }
        first[t] = (int32_t)start;
    }
}

static bool build_attention_fwd(struct run *r, int i)
{
    /* batch, seq, heads, key heads, D, Dv, documents, dropout in percent */
    static const int64_t shapes[][8] = {
        {1, 1, 1, 1, 8, 8, 0, 0},       {2, 5, 4, 2, 16, 16, 0, 0},
        {1, 17, 3, 1, 7, 5, 0, 0},      {1, 65, 2, 1, 64, 64, 1, 0},
        {2, 130, 6, 2, 24, 40, 1, 0},   {2, 70, 4, 4, 16, 16, 0, 10},
        {1, 140, 2, 1, 128, 128, 0, 0}, {2, 33, 4, 2, 32, 16, 1, 50},
        {1, 203, 2, 1, 33, 65, 1, 10}};
    struct pf_attention_fwd_args *a = &r->args.attention_fwd;

    TAKE(i, shapes);
    const int64_t *s = shapes[i];
    *a = (struct pf_attention_fwd_args){
        .batch = s[0], .seq = s[1], .n_heads = s[2], .n_kv_heads = s[3], .head_dim = s[4]};
    a->v_head_dim = s[5];
    a->scale = 0.3f;
    a->dropout_p = (float)s[7] / 100;
    a->dropout_key = 99;
    a->first_sequence = 3;
    if (i % 2) {
        a->first_head = 5;
        a->n_heads_total = a->n_heads + 9;
    }
    const int64_t n_tokens = a->batch * a->seq;
    a->ldq = padded(i, a->n_heads * a->head_dim);
    a->ldk = padded(i / 2, a->n_kv_heads * a->head_dim);
    a->ldv = padded(i / 3, a->n_kv_heads * a->v_head_dim);
    a->ldo = padded(i, a->n_heads * a->v_head_dim);
    a->q = input(r, n_tokens, a->n_heads * a->head_dim, a->ldq);
    a->k = input(r, n_tokens, a->n_kv_heads * a->head_dim, a->ldk);
    a->v = input(r, n_tokens, a->n_kv_heads * a->v_head_dim, a->ldv);
    int32_t *first = indices(r, n_tokens, 0, 1);
    cut_documents(first, n_tokens, a->seq);
    a->first_key = s[6] ? first : NULL;
    a->out = output(r, n_tokens, a->n_heads * a->v_head_dim, a->ldo);
    a->lse = output_f32(r, n_tokens * a->n_heads);
    return true;
}

static bool build_attention_bwd(struct run *r, int i)
{
    /* Not the first shape: where a query sees one key, dq and dk are 0 but for rounding, and two
     * roundings cannot be compared. The others hold such queries beside larger ones. */
    if (!build_attention_fwd(r, i + 1) ||
        pf_op_attention_fwd(reference, r->dtype, &r->args.attention_fwd) != 0) {
        return false;
    }
    const struct pf_attention_fwd_args f = r->args.attention_fwd;
    struct pf_attention_bwd_args *a = &r->args.attention_bwd;
    const int64_t n_tokens = f.batch * f.seq;
    *a = (struct pf_attention_bwd_args){.fwd = f};
    a->lddo = padded(i / 2, f.n_heads * f.v_head_dim);
    a->dout = input(r, n_tokens, f.n_heads * f.v_head_dim, a->lddo);
    a->delta = output_f32(r, n_tokens * f.n_heads);
    a->dq = output(r, n_tokens, f.n_heads * f.head_dim, f.ldq);
    a->dk = output(r, n_tokens, f.n_kv_heads * f.head_dim, f.ldk);
    a->dv = output(r, n_tokens, f.n_kv_heads * f.v_head_dim, f.ldv);
    return true;
}

static bool build_glu_fwd(struct run *r, int i)
{
    struct pf_glu_fwd_args *g = &r->args.glu_fwd;
    const int shape = i / 4;

    TAKE(shape, row_shapes);
    *g = (struct pf_glu_fwd_args){.n_rows = row_shapes[shape][0], .width = row_shapes[shape][1]};
    g->act = (enum pf_act_kind)(i % 4);
    g->ldg = padded(i, g->width);
    g->ldu = padded(i / 2, g->width);
    g->ldy = padded(i / 3, g->width);
    g->gate = input_wide(r, g->n_rows, g->width, g->ldg);
    g->up = input(r, g->n_rows, g->width, g->ldu);
    g->y = output(r, g->n_rows, g->width, g->ldy);
    return true;
}

static bool build_glu_bwd(struct run *r, int i)
{
    struct pf_glu_bwd_args *g = &r->args.glu_bwd;
    const int shape = i / 4;

    TAKE(shape, row_shapes);
    *g = (struct pf_glu_bwd_args){.n_rows = row_shapes[shape][0], .width = row_shapes[shape][1]};
    g->act = (enum pf_act_kind)(i % 4);
    g->ldg = padded(i, g->width);
    g->ldu = padded(i / 2, g->width);
    g->lddy = padded(i / 3, g->width);
    g->dy = input(r, g->n_rows, g->width, g->lddy);
    if (shape % 2) { /* in place */
        g->gate = g->dgate = inout(r, g->n_rows, g->width, g->ldg);
        g->up = g->dup = inout(r, g->n_rows, g->width, g->ldu);
        return true;
    }
    g->gate = input(r, g->n_rows, g->width, g->ldg);
    g->up = input(r, g->n_rows, g->width, g->ldu);
    g->dgate = output(r, g->n_rows, g->width, g->ldg);
    g->dup = output(r, g->n_rows, g->width, g->ldu);
    return true;
}

static bool build_act_fwd(struct run *r, int i)
{
    struct pf_act_fwd_args *a = &r->args.act_fwd;

    TAKE(i / 4, lengths);
    *a = (struct pf_act_fwd_args){.n = lengths[i / 4], .act = (enum pf_act_kind)(i % 4)};
    a->x = input_wide(r, 1, a->n, a->n);
    a->y = output(r, 1, a->n, a->n);
    return true;
}

static bool build_act_bwd(struct run *r, int i)
{
    struct pf_act_bwd_args *a = &r->args.act_bwd;

    TAKE(i / 4, lengths);
    *a = (struct pf_act_bwd_args){.n = lengths[i / 4], .act = (enum pf_act_kind)(i % 4)};
    a->x = input_wide(r, 1, a->n, a->n);
    a->dy = i / 4 % 2 ? inout(r, 1, a->n, a->n) : input(r, 1, a->n, a->n);
    a->dx = i / 4 % 2 ? (void *)(uintptr_t)a->dy : output(r, 1, a->n, a->n);
    return true;
}

static bool build_bias_grad(struct run *r, int i)
{
    struct pf_bias_grad_args *b = &r->args.bias_grad;

    TAKE(i, row_shapes);
    *b = (struct pf_bias_grad_args){.n_rows = row_shapes[i][0], .width = row_shapes[i][1]};
    b->lddy = padded(i, b->width);
    b->dy = input(r, b->n_rows, b->width, b->lddy);
    b->dbias = inout_f32(r, b->width, -1, 1);
    return true;
}

static bool build_add(struct run *r, int i)
{
    struct pf_add_args *a = &r->args.add;

    TAKE(i, lengths);
    *a = (struct pf_add_args){.n = lengths[i]};
    a->b = input(r, 1, a->n, a->n);
    a->a = i % 2 ? inout(r, 1, a->n, a->n) : input(r, 1, a->n, a->n);
    a->y = i % 2 ? (void *)(uintptr_t)a->a : output(r, 1, a->n, a->n);
    return true;
}

static bool build_scale(struct run *r, int i)
{
    struct pf_scale_args *s = &r->args.scale;

    TAKE(i, lengths);
    *s = (struct pf_scale_args){.n = lengths[i], .factor = 0.7f};
    s->x = inout(r, 1, s->n, s->n);
    return true;
}

static bool build_dropout(struct run *r, int i)
{
    struct pf_dropout_args *d = &r->args.dropout;

    TAKE(i, lengths);
    *d = (struct pf_dropout_args){.n = lengths[i], .p = i % 3 ? 0.1f : 0, .key = 5};
    d->first = i % 2 ? 0xfffffffdu : 1;
    d->x = i % 2 ? inout(r, 1, d->n, d->n) : input(r, 1, d->n, d->n);
    d->y = i % 2 ? (void *)(uintptr_t)d->x : output(r, 1, d->n, d->n);
    return true;
}

static bool build_cross_entropy(struct run *r, int i)
{
    struct pf_cross_entropy_args *c = &r->args.cross_entropy;
    const int shape = i / 2;

    TAKE(shape, row_shapes);
    *c = (struct pf_cross_entropy_args){.n_rows = row_shapes[shape][0],
                                        .vocab = row_shapes[shape][1],
                                        .with_grad = i % 2,
                                        .grad_scale = 0.25f};
    c->ld = padded(shape, c->vocab);
    c->targets = indices(r, c->n_rows, -1, c->vocab);
    c->logits = filled(r, r->dtype, c->n_rows, c->vocab, c->ld, -9, 9, true);
    c->loss = output_f32(r, c->n_rows);
    return true;
}

/* Columns of a vocabulary: what comes before, how many follow. */
static const struct {
    int64_t before, after;
    bool is_empty;
} vocab_parts[] = {{0, 0, false}, {3, 0, false}, {2, 9, false}, {5, 1, true}};

static bool build_vocab_ce_fwd(struct run *r, int i)
{
    struct pf_vocab_ce_fwd_args *c = &r->args.vocab_ce_fwd;
    const int part = i / COUNT(row_shapes), shape = i % COUNT(row_shapes);

    TAKE(part, vocab_parts);
    *c = (struct pf_vocab_ce_fwd_args){.n_rows = row_shapes[shape][0],
                                       .vocab =
                                           vocab_parts[part].is_empty ? 0 : row_shapes[shape][1],
                                       .first_vocab = vocab_parts[part].before};
    c->n_vocab = part ? c->first_vocab + c->vocab + vocab_parts[part].after : 0;
    c->ld = padded(shape, c->vocab);
    c->targets = indices(r, c->n_rows, -1, part ? c->n_vocab : c->vocab);
    c->logits = filled(r, r->dtype, c->n_rows, c->vocab, c->ld, -9, 9, false);
    c->stats = output_typed(r, PF_DTYPE_F32, c->n_rows, 3, 3);
    return true;
}

static bool build_vocab_ce_bwd(struct run *r, int i)
{
    struct pf_vocab_ce_bwd_args *c = &r->args.vocab_ce_bwd;
    const int part = i / COUNT(row_shapes), shape = i % COUNT(row_shapes);

    TAKE(part, vocab_parts);
    *c = (struct pf_vocab_ce_bwd_args){.n_rows = row_shapes[shape][0],
                                       .vocab =
                                           vocab_parts[part].is_empty ? 0 : row_shapes[shape][1],
                                       .first_vocab = vocab_parts[part].before,
                                       .grad_scale = 0.25f};
    c->n_vocab = part ? c->first_vocab + c->vocab + vocab_parts[part].after : 0;
    c->ld = padded(shape, c->vocab);
    c->targets = indices(r, c->n_rows, -1, part ? c->n_vocab : c->vocab);
    c->logits = filled(r, r->dtype, c->n_rows, c->vocab, c->ld, -9, 9, true);
    c->whole = filled(r, PF_DTYPE_F32, c->n_rows, 2, 2, 9, 20, false);
    return true;
}

static bool build_adamw(struct run *r, int i)
{
    struct pf_adamw_args *a = &r->args.adamw;

    TAKE(i, lengths);
    *a = (struct pf_adamw_args){.n = lengths[i],
                                .grad_scale = 0.5f,
                                .decay_factor = 0.999f,
                                .one_minus_beta1 = 0.1f,
                                .beta2 = 0.95f,
                                .one_minus_beta2 = 0.05f,
                                .eps = 1e-8f,
                                .step_size = 2e-3f,
                                .inv_sqrt_bias2 = 1.7f};
    a->grad = input_f32(r, a->n, -1, 1);
    a->param = inout_f32(r, a->n, -1, 1);
    a->moment1 = inout_f32(r, a->n, -0.1, 0.1);
    a->moment2 = inout_f32(r, a->n, 0, 0.1);
    a->weight_out = i % 2 ? output(r, 1, a->n, a->n) : NULL;
    return true;
}

/* The suite ------------------------------------------------------------------------------------ */

static const struct {
    bool (*build)(struct run *r, int i);
} suite[PF_OP_COUNT] = {
    [PF_OP_GEMM] = {build_gemm},
    [PF_OP_EMBED_FWD] = {build_embed_fwd},
    [PF_OP_EMBED_BWD] = {build_embed_bwd},
    [PF_OP_RMSNORM_FWD] = {build_rmsnorm_fwd},
    [PF_OP_RMSNORM_BWD] = {build_rmsnorm_bwd},
    [PF_OP_LAYERNORM_FWD] = {build_layernorm_fwd},
    [PF_OP_LAYERNORM_BWD] = {build_layernorm_bwd},
    [PF_OP_ROPE] = {build_rope},
    [PF_OP_ATTENTION_FWD] = {build_attention_fwd},
    [PF_OP_ATTENTION_BWD] = {build_attention_bwd},
    [PF_OP_GLU_FWD] = {build_glu_fwd},
    [PF_OP_GLU_BWD] = {build_glu_bwd},
    [PF_OP_ACT_FWD] = {build_act_fwd},
    [PF_OP_ACT_BWD] = {build_act_bwd},
    [PF_OP_BIAS_GRAD] = {build_bias_grad},
    [PF_OP_ADD] = {build_add},
    [PF_OP_SCALE] = {build_scale},
    [PF_OP_DROPOUT] = {build_dropout},
    [PF_OP_CROSS_ENTROPY] = {build_cross_entropy},
    [PF_OP_VOCAB_CE_FWD] = {build_vocab_ce_fwd},
    [PF_OP_VOCAB_CE_BWD] = {build_vocab_ce_bwd},
    [PF_OP_ADAMW] = {build_adamw},
};

static int call(struct pf_ops *ops, enum pf_op op, struct run *r)
{
    switch (op) {
    case PF_OP_GEMM:
        return pf_op_gemm(ops, r->dtype, &r->args.gemm);
    case PF_OP_EMBED_FWD:
        return pf_op_embed_fwd(ops, r->dtype, &r->args.embed_fwd);
    case PF_OP_EMBED_BWD:
        return pf_op_embed_bwd(ops, r->dtype, &r->args.embed_bwd);
    case PF_OP_RMSNORM_FWD:
        return pf_op_rmsnorm_fwd(ops, r->dtype, &r->args.rmsnorm_fwd);
    case PF_OP_RMSNORM_BWD:
        return pf_op_rmsnorm_bwd(ops, r->dtype, &r->args.rmsnorm_bwd);
    case PF_OP_LAYERNORM_FWD:
        return pf_op_layernorm_fwd(ops, r->dtype, &r->args.layernorm_fwd);
    case PF_OP_LAYERNORM_BWD:
        return pf_op_layernorm_bwd(ops, r->dtype, &r->args.layernorm_bwd);
    case PF_OP_ROPE:
        return pf_op_rope(ops, r->dtype, &r->args.rope);
    case PF_OP_ATTENTION_FWD:
        return pf_op_attention_fwd(ops, r->dtype, &r->args.attention_fwd);
    case PF_OP_ATTENTION_BWD:
        return pf_op_attention_bwd(ops, r->dtype, &r->args.attention_bwd);
    case PF_OP_GLU_FWD:
        return pf_op_glu_fwd(ops, r->dtype, &r->args.glu_fwd);
    case PF_OP_GLU_BWD:
        return pf_op_glu_bwd(ops, r->dtype, &r->args.glu_bwd);
    case PF_OP_ACT_FWD:
        return pf_op_act_fwd(ops, r->dtype, &r->args.act_fwd);
    case PF_OP_ACT_BWD:
        return pf_op_act_bwd(ops, r->dtype, &r->args.act_bwd);
    case PF_OP_BIAS_GRAD:
        return pf_op_bias_grad(ops, r->dtype, &r->args.bias_grad);
    case PF_OP_ADD:
        return pf_op_add(ops, r->dtype, &r->args.add);
    case PF_OP_SCALE:
        return pf_op_scale(ops, r->dtype, &r->args.scale);
    case PF_OP_DROPOUT:
        return pf_op_dropout(ops, r->dtype, &r->args.dropout);
    case PF_OP_CROSS_ENTROPY:
        return pf_op_cross_entropy(ops, r->dtype, &r->args.cross_entropy);
    case PF_OP_VOCAB_CE_FWD:
        return pf_op_vocab_ce_fwd(ops, r->dtype, &r->args.vocab_ce_fwd);
    case PF_OP_VOCAB_CE_BWD:
        return pf_op_vocab_ce_bwd(ops, r->dtype, &r->args.vocab_ce_bwd);
    case PF_OP_ADAMW:
        return pf_op_adamw(ops, r->dtype, &r->args.adamw);
    default:
        return PF_EBUG;
    }
}

/* Guards and gaps still hold the poison. */
static bool is_fenced(const struct run *r)
{
    for (int i = 0; i < r->n_bufs; i++) {
        const struct buf *b = &r->bufs[i];
        const size_t element = pf_dtype_bytes(b->dtype), row = (size_t)b->ld * element;
        const size_t begin = (size_t)(b->data - b->raw), used = (size_t)b->width * element;
        const size_t end = begin + (size_t)b->rows * row;
        for (size_t at = 0; at < b->raw_bytes; at++) {
            const bool inside = at >= begin && at < end && (at - begin) % row < used;
            if (!inside && b->raw[at] != poison_of(b)) {
                return false;
            }
        }
    }
    return true;
}

/* Root mean square of an array. */
static double size_of(const struct buf *b)
{
    double sum = 0;

    for (int64_t i = 0; i < b->rows; i++) {
        for (int64_t j = 0; j < b->width; j++) {
            const double x = load(b->dtype, b->data, i * b->ld + j);
            sum += x * x;
        }
    }
    return sqrt(sum / (double)(b->rows * b->width));
}

/* Worst error of the elements of an output; infinite where one is not finite. */
static double worst_error(const struct buf *got, const struct buf *want)
{
    const double size = size_of(want);
    double worst = 0;

    for (int64_t i = 0; i < want->rows; i++) {
        for (int64_t j = 0; j < want->width; j++) {
            const double x = load(got->dtype, got->data, i * got->ld + j);
            const double r = load(want->dtype, want->data, i * want->ld + j);
            const double error = x == r ? 0 : fabs(x - r) / (fabs(r) + size);
            worst = error <= worst ? worst : isfinite(error) ? error : INFINITY;
        }
    }
    return worst;
}

/* What was found about one row of the registry. */
struct verdict {
    const char *variant;
    int n_calls;
    bool failed, leaked, changed;
    double worst, worst_half; /* of fp32 and of half outputs */
    int worst_shape, worst_threads;
    char message[200];
};

static void weigh(struct verdict *v, const struct run *got, const struct run *want, int shape,
                  int n_threads)
{
    for (int i = 0; i < want->n_bufs; i++) {
        if (!want->bufs[i].is_output) {
            continue;
        }
        const double error = worst_error(&got->bufs[i], &want->bufs[i]);
        double *worst = want->bufs[i].dtype == PF_DTYPE_F32 ? &v->worst : &v->worst_half;
        if (error > *worst) {
            *worst = error;
            v->worst_shape = shape;
            v->worst_threads = n_threads;
        }
    }
}

static bool same_outputs(const struct run *a, const struct run *b)
{
    for (int i = 0; i < a->n_bufs; i++) {
        if (a->bufs[i].is_output &&
            memcmp(a->bufs[i].raw, b->bufs[i].raw, a->bufs[i].raw_bytes) != 0) {
            return false;
        }
    }
    return true;
}

/* One row at one shape and thread count: twice, for the same bits. */
static void try_row(struct verdict *v, struct pf_ops *ops, enum pf_op op, const struct run *want,
                    int shape)
{
    struct run got = {.dtype = want->dtype}, again = {.dtype = want->dtype};
    const bool built = suite[op].build(&got, shape) && suite[op].build(&again, shape);

    v->n_calls++;
    if (!built || pf_ops_choose(ops, op, want->dtype, v->variant) != 0 ||
        call(ops, op, &got) != 0 || call(ops, op, &again) != 0) {
        v->failed = true;
        (void)snprintf(v->message, sizeof v->message, "%s", pf_error_message());
    } else {
        v->leaked |= !is_fenced(&got);
        v->changed |= !same_outputs(&got, &again);
        weigh(v, &got, want, shape, pf_ops_threads(ops));
    }
    release(&got);
    release(&again);
}

static void report(const struct verdict *v, enum pf_op op, enum pf_dtype dtype)
{
    const struct pf_tolerance *t = &pf_tolerances[op];
    const char *name = pf_op_name(op), *type = pf_dtype_name(dtype);
    const bool close = v->worst <= t->pass && v->worst_half <= t->half_pass;

    ok(!v->failed, "%s %s %s serves %d calls", name, type, v->variant, v->n_calls);
    if (v->failed) {
        printf("# %s\n", v->message);
        return;
    }
    ok(close, "%s %s %s agrees with the reference (%.1e, half %.1e)", name, type, v->variant,
       v->worst, v->worst_half);
    if (!close || v->worst > t->warn || v->worst_half > t->half_warn) {
        printf("# warning: worst at shape %d with %d threads\n", v->worst_shape, v->worst_threads);
    }
    ok(!v->leaked, "%s %s %s writes only what it should", name, type, v->variant);
    ok(!v->changed, "%s %s %s gives the same bits twice", name, type, v->variant);
}

static void test_pair(struct pf_ops *const ops[MAX_THREADS], enum pf_op op, enum pf_dtype dtype)
{
    struct verdict verdicts[8] = {{.variant = NULL}};
    struct pf_ops_row row;
    int n = 0;

    for (int i = 0; n < COUNT(verdicts) && pf_ops_row(ops[0], op, dtype, i, &row); i++) {
        if (row.usable) {
            verdicts[n++].variant = row.kernel->variant;
        }
    }
    for (int shape = 0;; shape++) {
        struct run want = {.dtype = dtype};
        if (!suite[op].build(&want, shape)) {
            release(&want);
            break;
        }
        if (call(reference, op, &want) != 0) {
            ok(false, "reference of %s: %s", pf_op_name(op), pf_error_message());
        }
        for (int v = 0; v < n; v++) {
            /* the reference is single-threaded, and slow */
            const int n_threads = strcmp(verdicts[v].variant, "ref") == 0 ? 1 : MAX_THREADS;
            for (int t = 0; t < n_threads; t++) {
                try_row(&verdicts[v], ops[t], op, &want, shape);
            }
        }
        release(&want);
    }
    for (int v = 0; v < n; v++) {
        report(&verdicts[v], op, dtype);
    }
}

/* Elementwise ops: the bits of an element do not depend on its place ---------------------------- */

/* Elements [first, first+n) of arrays that hold many. */
struct part {
    int64_t first, n;
};

static void *at(const struct run *r, int buf, int64_t first)
{
    return r->bufs[buf].data + (size_t)first * pf_dtype_bytes(r->bufs[buf].dtype);
}

/* Arrays 0 and 1 are inputs, 2 and 3 outputs, of r->dtype; 4 to 7 are fp32 and changed in place. */
static bool call_part(struct pf_ops *ops, enum pf_op op, struct run *r, struct part p)
{
    const void *x = at(r, 0, p.first), *z = at(r, 1, p.first);
    void *y = at(r, 2, p.first), *y2 = at(r, 3, p.first);
    const enum pf_act_kind act = PF_ACT_SILU;

    switch (op) {
    case PF_OP_ACT_FWD:
        r->args.act_fwd = (struct pf_act_fwd_args){p.n, PF_ACT_GELU_TANH, x, y};
        break;
    case PF_OP_ACT_BWD:
        r->args.act_bwd = (struct pf_act_bwd_args){p.n, PF_ACT_GELU_ERF, x, z, y};
        break;
    case PF_OP_GLU_FWD:
        r->args.glu_fwd = (struct pf_glu_fwd_args){1, p.n, p.n, p.n, p.n, act, x, z, y};
        break;
    case PF_OP_GLU_BWD:
        r->args.glu_bwd = (struct pf_glu_bwd_args){1, p.n, p.n, p.n, p.n, act, x, z, x, y, y2};
        break;
    case PF_OP_ADD:
        r->args.add = (struct pf_add_args){p.n, x, z, y};
        break;
    case PF_OP_SCALE:
        memcpy(y, x, (size_t)p.n * pf_dtype_bytes(r->dtype));
        r->args.scale = (struct pf_scale_args){p.n, 0.3f, y};
        break;
    case PF_OP_DROPOUT:
        r->args.dropout = (struct pf_dropout_args){p.n, 0.3f, 17, (uint64_t)p.first, x, y};
        break;
    case PF_OP_ADAMW:
        r->args.adamw = (struct pf_adamw_args){p.n,
                                               0.7f,
                                               0.99f,
                                               0.1f,
                                               0.95f,
                                               0.05f,
                                               1e-8f,
                                               1e-3f,
                                               1.3f,
                                               at(r, 4, p.first),
                                               at(r, 5, p.first),
                                               at(r, 6, p.first),
                                               at(r, 7, p.first),
                                               y};
        break;
    default:
        return false;
    }
    return call(ops, op, r) == 0;
}

#define PLACE_N 700

static void build_places(struct run *r)
{
    (void)input_wide(r, 1, PLACE_N, PLACE_N);
    (void)input(r, 1, PLACE_N, PLACE_N);
    (void)output(r, 1, PLACE_N, PLACE_N);
    (void)output(r, 1, PLACE_N, PLACE_N);
    for (int i = 0; i < 3; i++) {
        (void)inout_f32(r, PLACE_N, -1, 1);
    }
    (void)inout_f32(r, PLACE_N, 0, 1);
}

static void test_places(struct pf_ops *const ops[MAX_THREADS], enum pf_op op, enum pf_dtype dtype,
                        const char *variant)
{
    static const int64_t steps[] = {1, 3, 16, 31, 64, 129};
    struct run whole = {.dtype = dtype};
    bool same = pf_ops_choose(ops[0], op, dtype, variant) == 0;

    build_places(&whole);
    same = same && call_part(ops[0], op, &whole, (struct part){0, PLACE_N});
    for (int s = 0; same && s < COUNT(steps) * MAX_THREADS; s++) {
        struct run parts = {.dtype = dtype};
        struct pf_ops *o = ops[s % MAX_THREADS];
        build_places(&parts);
        same = pf_ops_choose(o, op, dtype, variant) == 0;
        for (int64_t at = 0, n = 0; same && at < PLACE_N; at += n) {
            n = steps[s / MAX_THREADS] + at % 2;
            n = n < PLACE_N - at ? n : PLACE_N - at;
            same = call_part(o, op, &parts, (struct part){at, n});
        }
        same = same && same_outputs(&whole, &parts) && is_fenced(&parts);
        release(&parts);
    }
    ok(same, "%s %s %s gives an element the same bits at any place and thread count",
       pf_op_name(op), pf_dtype_name(dtype), variant);
    release(&whole);
}

static void test_elementwise(struct pf_ops *const ops[MAX_THREADS], enum pf_dtype dtype)
{
    static const enum pf_op elementwise[] = {PF_OP_ACT_FWD, PF_OP_ACT_BWD, PF_OP_GLU_FWD,
                                             PF_OP_GLU_BWD, PF_OP_ADD,     PF_OP_SCALE,
                                             PF_OP_DROPOUT, PF_OP_ADAMW};
    struct pf_ops_row row;

    for (int e = 0; e < COUNT(elementwise); e++) {
        for (int i = 0; pf_ops_row(ops[0], elementwise[e], dtype, i, &row); i++) {
            if (row.usable) {
                test_places(ops, elementwise[e], dtype, row.kernel->variant);
            }
        }
    }
}

/* Three threads on two cores mostly spin unless OpenMP is told, before it starts, to sleep. */
static void start_again_with_passive_waits(char **argv)
{
    if (!getenv("OMP_WAIT_POLICY") && setenv("OMP_WAIT_POLICY", "passive", 1) == 0) {
        (void)execv("/proc/self/exe", argv);
    }
}

/* An optional argument limits the run to one op: build/.../all gemm. */
int main(int argc, char **argv)
{
    static const enum pf_dtype dtypes[] = {PF_DTYPE_F32, PF_DTYPE_BF16, PF_DTYPE_F16};
    struct pf_ops *ops[MAX_THREADS] = {NULL};

    start_again_with_passive_waits(argv);
    if (pf_ops_open(&(struct pf_ops_options){.n_threads = 1, .ref_only = true}, &reference) != 0) {
        ok(false, "the registry opens: %s", pf_error_message());
        return done();
    }
    for (int t = 0; t < MAX_THREADS; t++) {
        if (pf_ops_open(&(struct pf_ops_options){.n_threads = t + 1, .cache_bytes = t == 1 ? 1 : 0},
                        &ops[t]) != 0) {
            ok(false, "the registry opens: %s", pf_error_message());
            return done();
        }
    }
    printf("# instruction set %s, library '%s'\n", pf_ops_isa(ops[0]), pf_ops_library(ops[0]));
    for (int d = 0; d < COUNT(dtypes); d++) {
        for (int op = 0; op < PF_OP_COUNT; op++) {
            if (argc < 2 || strcmp(argv[1], pf_op_name((enum pf_op)op)) == 0) {
                test_pair(ops, (enum pf_op)op, dtypes[d]);
            }
        }
        if (argc < 2) {
            test_elementwise(ops, dtypes[d]);
        }
    }
    for (int t = 0; t < MAX_THREADS; t++) {
        pf_ops_free(ops[t]);
    }
    pf_ops_free(reference);
    return done();
}
