/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm.c - matrix product without a library. Panels of b (KC x NC, zero-padded to whole register
 * tiles) and of a (MC x KC) are packed on the thread's stack; tile.h multiplies them.
 * Source for the loop order: Goto & van de Geijn, "Anatomy of high-performance matrix
 * multiplication", 2008.
 *
 * Narrow elements are widened as they are packed. Threads cut the longer of m and n. Each element of
 * c is summed over k in blocks of KC in order, so its bits depend on k alone, not on m, n, the thread
 * count or its place.
 */
#include "cpu.h"
#include "tile.h"

#define KC 256
#define MC (16 * MR)
#define NC (NR > 32 ? 2 * NR : 8 * NR)

/* Rows of a block of narrow sums, which wait in fp32 until they are whole. */
#define CM (2 * MC)

/* A block of c, and where it is summed: fp32, element (m_lo, n_lo) at c. */
struct block {
    int64_t m_lo, m_hi, n_lo, n_hi;
    float *c;
    int64_t ldc;
};

V_INLINE int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* to[i*step] = from[i], widened; n is at most KC. */
V_INLINE void scatter(const elem *from, int64_t n, int64_t step, float *to)
{
    float row[KC];

    e_widen(from, n, row);
    for (int64_t i = 0; i < n; i++) {
        to[i * step] = row[i];
    }
}

/* b[p_lo.., j_lo..] to panels of NR columns: element (p, j) at (j/NR)*NR*kc + p*NR + j%NR. */
static void pack_b(const struct pf_gemm_args *g, int64_t p_lo, int64_t kc, int64_t j_lo, int64_t nc,
                   float *to)
{
    const elem *b = g->b;

    for (int64_t j = 0; j < nc; j += NR, to += NR * kc) {
        const int64_t n = smaller(nc - j, NR);
        if (n < NR) {
            memset(to, 0, (size_t)(NR * kc) * sizeof *to);
        }
        for (int64_t p = 0; p < kc && !g->trans_b; p++) {
            e_widen(b + (p_lo + p) * g->ldb + j_lo + j, n, to + p * NR);
        }
        for (int64_t i = 0; i < n && g->trans_b; i++) {
            scatter(b + (j_lo + j + i) * g->ldb + p_lo, kc, NR, to + i);
        }
    }
}

/* a[i_lo.., p_lo..] to panels of MR rows: element (i, p) at (i/MR)*MR*kc + p*MR + i%MR. */
static void pack_a(const struct pf_gemm_args *g, int64_t i_lo, int64_t mc, int64_t p_lo, int64_t kc,
                   float *to)
{
    const elem *a = g->a;

    for (int64_t i = 0; i < mc; i += MR, to += MR * kc) {
        const int64_t m = smaller(mc - i, MR);
        for (int64_t p = 0; p < kc && g->trans_a; p++) {
            for (int64_t r = 0; r < m; r++) {
                to[p * MR + r] = e_get(a + (p_lo + p) * g->lda + i_lo + i + r);
            }
        }
        for (int64_t r = 0; r < m && !g->trans_a; r++) {
            scatter(a + (i_lo + i + r) * g->lda + p_lo, kc, MR, to + r);
        }
    }
}

/* The block's sums start from bias, or 0, or c itself; nothing to do where fp32 c adds to itself. */
static void start_block(const struct pf_gemm_args *g, const struct block *w)
{
    const elem *bias = g->bias;
    const int64_t n_columns = w->n_hi - w->n_lo;

    for (int64_t i = 0; i < w->m_hi - w->m_lo; i++) {
        float *row = w->c + i * w->ldc;
        if (bias) {
            e_widen(bias + w->n_lo, n_columns, row);
        } else if (!g->accumulate) {
            memset(row, 0, (size_t)n_columns * sizeof *row);
        } else if (g->c_dtype != PF_DTYPE_F32) {
            e_widen((const elem *)g->c + (w->m_lo + i) * g->ldc + w->n_lo, n_columns, row);
        }
    }
}

static void multiply_panels(int64_t kc, const float *a, int64_t mc, const float *b, int64_t nc,
                            bool overwrite, float *c, int64_t ldc)
{
    for (int64_t j = 0; j < nc; j += NR) {
        for (int64_t i = 0; i < mc; i += MR) {
            const struct tile t = {.k = kc,
                                   .a = a + i * kc,
                                   .a_row = 1,
                                   .a_col = MR,
                                   .b = b + j * kc,
                                   .ldb = NR,
                                   .c = c + i * ldc + j,
                                   .ldc = ldc,
                                   .accumulate = !overwrite};
            tile_mul(smaller(mc - i, MR), smaller(nc - j, NR), &t);
        }
    }
}

static void multiply_block(const struct pf_gemm_args *g, const struct block *w)
{
    float a[MC * KC] __attribute__((aligned(64)));
    float b[KC * NC] __attribute__((aligned(64)));
    const bool fresh = !g->accumulate && !g->bias && g->k > 0;

    if (!fresh) {
        start_block(g, w);
    }
    for (int64_t p = 0; p < g->k; p += KC) {
        const int64_t kc = smaller(g->k - p, KC);
        for (int64_t j = w->n_lo; j < w->n_hi; j += NC) {
            const int64_t nc = smaller(w->n_hi - j, NC);
            pack_b(g, p, kc, j, nc, b);
            for (int64_t i = w->m_lo; i < w->m_hi; i += MC) {
                const int64_t mc = smaller(w->m_hi - i, MC);
                pack_a(g, i, mc, p, kc, a);
                multiply_panels(kc, a, mc, b, nc, fresh && p == 0,
                                w->c + (i - w->m_lo) * w->ldc + j - w->n_lo, w->ldc);
            }
        }
    }
}

/* Narrow c: blocks of it are summed aside, and each sum is rounded once. */
static void multiply_narrow(const struct pf_gemm_args *g, const struct block *part)
{
    float sums[CM * NC] __attribute__((aligned(64)));

    for (int64_t j = part->n_lo; j < part->n_hi; j += NC) {
        for (int64_t i = part->m_lo; i < part->m_hi; i += CM) {
            const struct block w = {.m_lo = i,
                                    .m_hi = smaller(part->m_hi, i + CM),
                                    .n_lo = j,
                                    .n_hi = smaller(part->n_hi, j + NC),
                                    .c = sums,
                                    .ldc = NC};
            multiply_block(g, &w);
            for (int64_t r = i; r < w.m_hi; r++) {
                e_narrow(sums + (r - i) * NC, w.n_hi - j, (elem *)g->c + r * g->ldc + j);
            }
        }
    }
}

static void multiply_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                          int64_t hi)
{
    const struct pf_gemm_args *g = args;
    const bool cut_n = g->n >= g->m;
    struct block w = {.m_lo = cut_n ? 0 : lo,
                      .m_hi = cut_n ? g->m : hi,
                      .n_lo = cut_n ? lo : 0,
                      .n_hi = cut_n ? hi : g->n,
                      .ldc = g->ldc};

    (void)ctx;
    (void)part;
    if (lo >= hi) {
        return;
    }
    if (g->c_dtype == PF_DTYPE_F32) {
        w.c = (float *)g->c + w.m_lo * g->ldc + w.n_lo;
        multiply_block(g, &w);
    } else {
        multiply_narrow(g, &w);
    }
}

int PF_CPU(gemm)(const struct pf_kctx *ctx, const void *args)
{
    const struct pf_gemm_args *g = args;
    const bool cut_n = g->n >= g->m;

    if (g->m > 0 && g->n > 0) {
        cpu_run(ctx, g, cut_n ? g->n : g->m, cut_n ? NR : MR, g->m * g->n * (g->k + 1),
                multiply_part);
    }
    return 0;
}
