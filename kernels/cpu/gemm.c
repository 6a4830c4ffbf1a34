/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm.c - matrix product without a library. Panels of b (KC x NC, zero-padded to whole register
 * tiles) and of a (MC x KC) are packed on the thread's stack; tile.h multiplies them.
 * Source for the loop order: Goto & van de Geijn, "Anatomy of high-performance matrix
 * multiplication", 2008.
 *
 * Threads cut the longer of m and n. Each element of c is summed over k in blocks of KC in order, so
 * its bits depend on k alone, not on m, n, the thread count or its place.
 */
#include "cpu.h"
#include "tile.h"

#define KC 256
#define MC (16 * MR)
#define NC (NR > 32 ? 2 * NR : 8 * NR)

/* A block of c that one thread computes. */
struct block {
    int64_t m_lo, m_hi, n_lo, n_hi;
};

/* b[p_lo.., j_lo..] to panels of NR columns: element (p, j) at (j/NR)*NR*kc + p*NR + j%NR. */
static void pack_b(const struct pf_gemm_args *g, int64_t p_lo, int64_t kc, int64_t j_lo, int64_t nc,
                   float *to)
{
    const float *b = g->b;

    for (int64_t j = 0; j < nc; j += NR, to += NR * kc) {
        const int64_t n = nc - j < NR ? nc - j : NR;
        if (!g->trans_b) {
            for (int64_t p = 0; p < kc; p++) {
                const float *from = b + (p_lo + p) * g->ldb + j_lo + j;
                memcpy(to + p * NR, from, (size_t)n * sizeof *to);
                memset(to + p * NR + n, 0, (size_t)(NR - n) * sizeof *to);
            }
            continue;
        }
        for (int64_t i = 0; i < NR; i++) {
            const float *from = i < n ? b + (j_lo + j + i) * g->ldb + p_lo : NULL;
            for (int64_t p = 0; p < kc; p++) {
                to[p * NR + i] = from ? from[p] : 0.0f;
            }
        }
    }
}

/* a[i_lo.., p_lo..] to panels of MR rows: element (i, p) at (i/MR)*MR*kc + p*MR + i%MR. */
static void pack_a(const struct pf_gemm_args *g, int64_t i_lo, int64_t mc, int64_t p_lo, int64_t kc,
                   float *to)
{
    const float *a = g->a;
    const int64_t row = g->trans_a ? 1 : g->lda, column = g->trans_a ? g->lda : 1;

    for (int64_t i = 0; i < mc; i += MR, to += MR * kc) {
        const int64_t m = mc - i < MR ? mc - i : MR;
        const float *from = a + (i_lo + i) * row + p_lo * column;
        for (int64_t p = 0; p < kc; p++) {
            for (int64_t r = 0; r < m; r++) {
                to[p * MR + r] = from[r * row + p * column];
            }
        }
    }
}

/* c's block = bias, or 0, or itself: what the sums over k are added to. */
static void start_c(const struct pf_gemm_args *g, const struct block *w)
{
    const float *bias = g->bias;

    if (g->accumulate) {
        return;
    }
    for (int64_t i = w->m_lo; i < w->m_hi; i++) {
        float *row = (float *)g->c + i * g->ldc;
        for (int64_t j = w->n_lo; j < w->n_hi; j++) {
            row[j] = bias ? bias[j] : 0.0f;
        }
    }
}

static void multiply_panels(const struct pf_gemm_args *g, int64_t kc, const float *a, int64_t i_lo,
                            int64_t mc, const float *b, int64_t j_lo, int64_t nc, bool overwrite)
{
    for (int64_t j = 0; j < nc; j += NR) {
        const int64_t n = nc - j < NR ? nc - j : NR;
        for (int64_t i = 0; i < mc; i += MR) {
            const int64_t m = mc - i < MR ? mc - i : MR;
            const struct tile t = {.k = kc,
                                   .a = a + i * kc,
                                   .a_row = 1,
                                   .a_col = MR,
                                   .b = b + j * kc,
                                   .ldb = NR,
                                   .c = (float *)g->c + (i_lo + i) * g->ldc + j_lo + j,
                                   .ldc = g->ldc,
                                   .accumulate = !overwrite};
            tile_mul(m, n, &t);
        }
    }
}

static void multiply_block(const struct pf_gemm_args *g, const struct block *w)
{
    float a[MC * KC] __attribute__((aligned(64)));
    float b[KC * NC] __attribute__((aligned(64)));
    const bool fresh = !g->accumulate && !g->bias && g->k > 0;

    if (!fresh) {
        start_c(g, w);
    }
    for (int64_t p = 0; p < g->k; p += KC) {
        const int64_t kc = g->k - p < KC ? g->k - p : KC;
        for (int64_t j = w->n_lo; j < w->n_hi; j += NC) {
            const int64_t nc = w->n_hi - j < NC ? w->n_hi - j : NC;
            pack_b(g, p, kc, j, nc, b);
            for (int64_t i = w->m_lo; i < w->m_hi; i += MC) {
                const int64_t mc = w->m_hi - i < MC ? w->m_hi - i : MC;
                pack_a(g, i, mc, p, kc, a);
                multiply_panels(g, kc, a, i, mc, b, j, nc, fresh && p == 0);
            }
        }
    }
}

static void multiply_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                          int64_t hi)
{
    const struct pf_gemm_args *g = args;
    const bool cut_n = g->n >= g->m;
    const struct block w = {.m_lo = cut_n ? 0 : lo,
                            .m_hi = cut_n ? g->m : hi,
                            .n_lo = cut_n ? lo : 0,
                            .n_hi = cut_n ? hi : g->n};

    (void)ctx;
    (void)part;
    if (lo < hi) {
        multiply_block(g, &w);
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
