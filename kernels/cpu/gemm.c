/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm.c - matrix product without a library. Blocks of a and b are packed into panels in the thread's
 * scratch; dot.h multiplies panels.
 * Source for the loop order: Goto & van de Geijn, "Anatomy of high-performance matrix
 * multiplication", 2008; but it is a panel of a that stays in the first cache, since long sums (K_WORDS)
 * touch c less often, and the block of b in the second.
 *
 * Threads cut c in both directions. Each element of c is summed over blocks of k whose length depends
 * on k alone, in order, so its bits depend on k alone, not on m, n, the thread count or its place.
 * Sums of one block go from registers to c by way of the first cache, where bias, residual and
 * activation are taken; those of several are kept in scratch until the last; fp32 sums without any
 * of these are kept in c itself.
 */
#include "act.h"
#include "cpu.h"
#include "dot.h"

/* Words of a block: along k, of a (A_WORDS), of b and of sums. */
#define K_WORDS 512
#define A_WORDS (512 * 1024)
#define B_WORDS (120 * 1024)
#define C_WORDS (PF_GEMM_SCRATCH_FLOATS - A_WORDS - B_WORDS - DOT_SLACK)

/* A part of c, and how it is computed. */
struct part {
    const struct pf_gemm_args *g;
    int64_t m_lo, m_hi, n_lo, n_hi;
    int64_t k_block;          /* elements, whole words */
    int64_t m_block, n_block; /* of c */
    int64_t b_block;          /* columns packed at a time */
    bool in_c;                /* sums are kept in c */
    float *a, *b, *sums;
    int64_t b_column, b_k; /* where the packed columns begin */
};

/* Elements of c that are multiplied now, over elements [p, p+k) of k; sums are those of (i, j). */
struct block {
    int64_t i, m, j, n, p, k;
    float *sums;
    int64_t ld;
    bool add; /* to sums, or overwrite */
    bool is_last;
};

V_INLINE int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

V_INLINE int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Packing ---------------------------------------------------------------------------------------- */

static void pack_a(const struct part *w, int64_t i, int64_t m, int64_t p, int64_t k)
{
    const struct pf_gemm_args *g = w->g;
    const elem *a = g->a;
    const int64_t step = round_up(k, DOT_K) / DOT_K * DOT_M;

    if (g->trans_a) {
        dot_pack_a_across(a + p * g->lda + i, g->lda, k, m, step, w->a);
        return;
    }
    float *to = w->a;
    for (int64_t r = 0; r < m; r += DOT_M, to += step) {
        dot_pack_along(a + (i + r) * g->lda + p, g->lda, k, smaller(m - r, DOT_M), DOT_M, to);
    }
}

static void pack_b(const struct part *w, int64_t j, int64_t n, int64_t p, int64_t k)
{
    const struct pf_gemm_args *g = w->g;
    const elem *b = g->b;
    const int64_t step = round_up(k, DOT_K) / DOT_K * DOT_N;
    float *to = w->b;

    if (!g->trans_b) {
        dot_pack_b_across(b + p * g->ldb + j, g->ldb, k, n, to);
        return;
    }
    for (int64_t r = 0; r < n; r += DOT_N, to += step) {
        dot_pack_along(b + (j + r) * g->ldb + p, g->ldb, k, smaller(n - r, DOT_N), DOT_N, to);
    }
}

/* From sums to c ----------------------------------------------------------------------------------- */

/* A tile of c: m rows from row on, width columns from column on. */
struct place {
    int64_t row, m, column, width;
};

/* n elements of c from (row, column) on, whose product is x: stored, or, where an activation follows,
 * left rounded in kept. */
V_INLINE void finish_n(const struct pf_gemm_args *g, int64_t row, int64_t column, vf x, int64_t n,
                       float *kept)
{
    elem *const to = (elem *)g->c + row * g->ldc + column;

    if (g->bias) {
        x += e_load_n((const elem *)g->bias + column, n);
    }
    if (g->c_dtype != ELEM_DTYPE) {
        v_store_n((float *)g->c + row * g->ldc + column, x, n);
        return;
    }
    if (g->residual) {
        x += e_load_n((const elem *)g->residual + row * g->ldr + column, n);
    }
    if (g->accumulate) {
        x += e_load_n(to, n);
    }
    if (!g->activate) {
        e_store_n(to, x, n);
        return;
    }
    if (g->pre) {
        e_store_n((elem *)g->pre + row * g->ldp + column, x, n);
    }
    v_store_n(kept, e_round(x), n);
}

/* c = act(x), rows of x DOT_N apart. */
static void activate_tile(const struct pf_gemm_args *g, struct place at, const float *x)
{
#define ROWS(kind)                                                                                 \
    for (int64_t r = 0; r < at.m; r++) {                                                           \
        elem *const to = (elem *)g->c + (at.row + r) * g->ldc + at.column;                         \
        V_LOOP(0, at.width,                                                                        \
               e_store_n(to + i, act_any(kind, v_load_n(x + r * DOT_N + i, n)).y, n));             \
    }
    WITH_KIND(g->act, ROWS)
#undef ROWS
}

/* A tile of the last block of k; x holds its product, sums what came before, or NULL. */
static void finish_tile(const struct pf_gemm_args *g, struct place at, float *x, const float *sums,
                        int64_t ld)
{
    for (int64_t r = 0; r < at.m; r++) {
        float *const row = x + r * DOT_N;
        const float *const before = sums ? sums + r * ld : NULL;
        if (before) {
            V_LOOP(0, at.width,
                   v_store_n(row + i, v_load_n(before + i, n) + v_load_n(row + i, n), n));
        }
        V_LOOP(0, at.width,
               finish_n(g, at.row + r, at.column + i, v_load_n(row + i, n), n, row + i));
    }
    if (g->activate) {
        activate_tile(g, at, x);
    }
}

/* c and what is added to it are fetched while a tile is multiplied. */
V_INLINE void fetch_tile(const struct pf_gemm_args *g, int64_t row, int64_t m, int64_t column,
                         int64_t width)
{
    const size_t bytes = g->c_dtype == PF_DTYPE_F32 ? sizeof(float) : sizeof(elem);

    for (int64_t r = row; r < row + m; r++) {
        const char *const c = (const char *)g->c + (size_t)(r * g->ldc + column) * bytes;
        __builtin_prefetch(c, 1);
        __builtin_prefetch(c + (size_t)(width - 1) * bytes, 1);
        if (g->residual) {
            const elem *const x = (const elem *)g->residual + r * g->ldr + column;
            __builtin_prefetch(x);
            __builtin_prefetch(x + width - 1);
        }
        if (g->activate && g->pre) {
            const elem *const x = (const elem *)g->pre + r * g->ldp + column;
            __builtin_prefetch(x, 1);
            __builtin_prefetch(x + width - 1, 1);
        }
    }
}

/* Multiplying ------------------------------------------------------------------------------------ */

static void multiply_tile(const struct part *w, const struct block *t, int64_t i, int64_t m,
                          const float *a, int64_t j, int64_t n, const float *b)
{
    const int64_t n_words = (t->k + DOT_K - 1) / DOT_K;
    float *const sums = t->sums ? t->sums + (i - t->i) * t->ld + j - t->j : NULL;

    if (w->in_c || !t->is_last) {
        dot_tile(m, n, n_words, a, b, t->add, sums, t->ld);
    } else {
        float x[DOT_M * DOT_N] __attribute__((aligned(64)));
        fetch_tile(w->g, i, m, j, n);
        dot_tile(m, n, n_words, a, b, false, x, DOT_N);
        finish_tile(w->g, (struct place){i, m, j, n}, x, t->add ? sums : NULL, t->ld);
    }
}

static void multiply_panels(const struct part *w, const struct block *t, int64_t j_lo, int64_t n)
{
    const int64_t n_words = (t->k + DOT_K - 1) / DOT_K;
    const float *a = w->a;

    for (int64_t i = 0; i < t->m; i += DOT_M, a += DOT_M * n_words) {
        const float *b = w->b;
        for (int64_t j = 0; j < n; j += DOT_N, b += DOT_N * n_words) {
            multiply_tile(w, t, t->i + i, smaller(t->m - i, DOT_M), a, j_lo + j,
                          smaller(n - j, DOT_N), b);
        }
    }
}

static void multiply_block(struct part *w, const struct block *t)
{
    if (t->k > 0) {
        pack_a(w, t->i, t->m, t->p, t->k);
    }
    for (int64_t j = t->j; j < t->j + t->n; j += w->b_block) {
        const int64_t n = smaller(t->j + t->n - j, w->b_block);
        if (t->k > 0 &&
            (j != w->b_column || t->p != w->b_k)) { /* the same columns serve the next rows */
            pack_b(w, j, n, t->p, t->k);
            w->b_column = j;
            w->b_k = t->p;
        }
        multiply_panels(w, t, j, n);
    }
}

static void multiply(struct part *w)
{
    const struct pf_gemm_args *g = w->g;

    for (int64_t j = w->n_lo; j < w->n_hi; j += w->n_block) {
        for (int64_t i = w->m_lo; i < w->m_hi; i += w->m_block) {
            struct block t = {.i = i,
                              .m = smaller(w->m_hi - i, w->m_block),
                              .j = j,
                              .n = smaller(w->n_hi - j, w->n_block),
                              .sums = w->in_c ? (float *)g->c + i * g->ldc + j : w->sums,
                              .ld = w->in_c ? g->ldc : w->n_block,
                              .add = w->in_c && g->accumulate};
            do { /* once even where k is 0 */
                t.k = smaller(g->k - t.p, w->k_block);
                t.is_last = t.p + t.k == g->k;
                multiply_block(w, &t);
                t.p += t.k;
                t.add = true;
            } while (t.p < g->k);
        }
    }
}

/* Cutting ---------------------------------------------------------------------------------------- */

/* The largest multiple of unit within most, but evenly cut: no small block is left at the end. */
V_INLINE int64_t block_size(int64_t n, int64_t most, int64_t unit)
{
    const int64_t whole = most / unit * unit, n_blocks = (n + whole - 1) / whole;

    return n_blocks > 1 ? round_up((n + n_blocks - 1) / n_blocks, unit) : round_up(n, unit);
}

static void plan_blocks(struct part *w)
{
    const struct pf_gemm_args *g = w->g;
    const int64_t n_words = (g->k + DOT_K - 1) / DOT_K;
    const int64_t words = n_words > 0 ? block_size(n_words, K_WORDS, 1) : 1;
    const int64_t n = w->n_hi - w->n_lo;
    int64_t most_m = A_WORDS / words;

    w->in_c = g->c_dtype == PF_DTYPE_F32 && !g->bias && !g->residual && !g->activate;
    w->k_block = words * DOT_K;
    w->n_block = round_up(n, DOT_N);
    if (!w->in_c && words < n_words) {
        w->n_block = block_size(n, 768, DOT_N);
        most_m = smaller(most_m, C_WORDS / w->n_block);
    }
    w->m_block = block_size(w->m_hi - w->m_lo, most_m, DOT_M);
    w->b_block = block_size(smaller(n, w->n_block), B_WORDS / words, DOT_N);
}

/* How c is cut among n_parts threads: into columns, and rows of each. */
static int columns_of_parts(const struct pf_gemm_args *g, int n_parts)
{
    int best = 1;
    int64_t least = INT64_MAX;

    for (int columns = 1; columns <= n_parts; columns++) {
        const int rows = n_parts / columns;
        if (rows < 1 || rows * columns != n_parts) {
            continue;
        }
        const int64_t m = round_up((g->m + rows - 1) / rows, DOT_M),
                      n = round_up((g->n + columns - 1) / columns, DOT_N);
        const int64_t cost = m * n + 4 * (m + n); /* an element packed costs four multiplied */
        if (cost < least) {
            least = cost;
            best = columns;
        }
    }
    return best;
}

static void multiply_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                          int64_t hi)
{
    const struct pf_gemm_args *g = args;
    const int n_columns = columns_of_parts(g, ctx->n_threads);
    struct part w = {.g = g, .b_column = -1};

    (void)lo;
    (void)hi;
    cpu_part(g->m, DOT_M, ctx->n_threads / n_columns, part / n_columns, &w.m_lo, &w.m_hi);
    cpu_part(g->n, DOT_N, n_columns, part % n_columns, &w.n_lo, &w.n_hi);
    if (w.m_lo >= w.m_hi || w.n_lo >= w.n_hi) {
        return;
    }
    w.a = (float *)ctx->scratch + (int64_t)part * PF_GEMM_SCRATCH_FLOATS;
    w.b = w.a + A_WORDS + DOT_SLACK;
    w.sums = w.b + B_WORDS;
    plan_blocks(&w);
    multiply(&w);
}

int PF_CPU(gemm)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_gemm_args *g = args;

    if (g->m > 0 && g->n > 0) {
        cpu_run(ctx, g, ctx->n_threads, 1, g->m * g->n * (g->k + 1), multiply_part);
    }
    return 0;
}
