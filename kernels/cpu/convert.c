/* SPDX-License-Identifier: Apache-2.0 */
/* convert.c - matrices between elements and fp32, for libraries that do not know the elements. */
#include "cpu.h"

struct conversion {
    int64_t width, ld;
    elem *narrow;
    float *wide; /* rows at distance width */
};

static void widen_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                       int64_t hi)
{
    const struct conversion *c = args;

    (void)ctx;
    (void)part;
    for (int64_t r = lo; r < hi; r++) {
        e_widen(c->narrow + r * c->ld, c->width, c->wide + r * c->width);
    }
}

static void narrow_part(const struct pf_kctx *ctx, const void *args, int part, int64_t lo,
                        int64_t hi)
{
    const struct conversion *c = args;

    (void)ctx;
    (void)part;
    for (int64_t r = lo; r < hi; r++) {
        e_narrow(c->wide + r * c->width, c->width, c->narrow + r * c->ld);
    }
}

void PF_CPU(widen)(const struct pf_kctx *ctx, const void *from, int64_t ld, int64_t n_rows,
                   int64_t width, float *to)
{
    const struct conversion c = {width, ld, (elem *)(uintptr_t)from, to};

    cpu_run(ctx, &c, n_rows, 1, n_rows * width, widen_part);
}

void PF_CPU(narrow)(const struct pf_kctx *ctx, const float *from, int64_t n_rows, int64_t width,
                    void *to, int64_t ld)
{
    const struct conversion c = {width, ld, to, (float *)(uintptr_t)from};

    cpu_run(ctx, &c, n_rows, 1, n_rows * width, narrow_part);
}
