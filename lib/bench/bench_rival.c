/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rivals: oneDNN's plain product, through its row of the registry, and OpenBLAS, found at run time.
 * Source: the C interface of BLAS (cblas_sgemm, netlib.org/blas), OpenBLAS's additions to it.
 */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                      const float *a, int lda, const float *b, int ldb, float beta, float *c,
                      int ldc);
typedef void set_threads_fn(int n);
typedef const char *describe_fn(void);

struct bench_rival {
    const char *name;
    char version[144];
    struct pf_ops *dnnl; /* oneDNN: a registry in which its rows serve */
    void *library;       /* OpenBLAS */
    sgemm_fn *sgemm;
};

static bool choose_dnnl(struct pf_ops *ops, enum pf_dtype dtype)
{
    if (pf_ops_choose(ops, PF_OP_GEMM, dtype, "dnnl") != 0) {
        pf_error_clear();
        return false;
    }
    return true;
}

static int open_dnnl(const struct pf_ops *ops, struct bench_rival *r)
{
    const struct pf_ops_options options = {.n_threads = pf_ops_threads(ops),
                                           .isa = pf_ops_isa(ops)};

    PF_TRY(pf_ops_open(&options, &r->dnnl));
    (void)snprintf(r->version, sizeof r->version, "%s", pf_ops_library(r->dnnl));
    if (!choose_dnnl(r->dnnl, PF_DTYPE_F32) && !choose_dnnl(r->dnnl, PF_DTYPE_BF16)) {
        return pf_fail(PF_ENOTSUP, "oneDNN is not in this build, or PF_KERNELS forbids it");
    }
    return 0;
}

/* C has no cast from an object pointer to a function pointer; POSIX promises that this works. */
#define SYMBOL(library, name, to)                                                                  \
    do {                                                                                           \
        void *const symbol_ = dlsym((library), (name));                                            \
        memcpy(&(to), &symbol_, sizeof(to));                                                       \
    } while (0)

static int open_openblas(const struct pf_ops *ops, struct bench_rival *r)
{
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    set_threads_fn *set_threads;
    describe_fn *config, *core;

    for (size_t i = 0; i < sizeof names / sizeof names[0] && !r->library; i++) {
        r->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (!r->library) {
        return pf_fail(PF_ENOTSUP, "OpenBLAS is not on this machine (Debian: libopenblas0)");
    }
    SYMBOL(r->library, "cblas_sgemm", r->sgemm);
    SYMBOL(r->library, "openblas_set_num_threads", set_threads);
    SYMBOL(r->library, "openblas_get_config", config);
    SYMBOL(r->library, "openblas_get_corename", core);
    if (!r->sgemm || !set_threads || !config || !core) {
        return pf_fail(PF_ENOTSUP, "this OpenBLAS lacks cblas_sgemm or its own functions");
    }
    set_threads(pf_ops_threads(ops));
    (void)snprintf(r->version, sizeof r->version, "%.90s, kernels for %.30s", config(), core());
    return 0;
}

int bench_rival_open(const char *name, const struct pf_ops *ops, struct bench_rival **rival_out)
{
    struct bench_rival *const r = pf_alloc(sizeof *r);
    int err = r ? 0 : PF_ENOMEM;

    if (!err && strcmp(name, "onednn") == 0) {
        r->name = "onednn";
        err = open_dnnl(ops, r);
    } else if (!err && strcmp(name, "openblas") == 0) {
        r->name = "openblas";
        err = open_openblas(ops, r);
    } else if (!err) {
        err = pf_fail(PF_EUSAGE, "--against is onednn or openblas, not '%s'", name);
    }
    if (err) {
        bench_rival_free(r);
        return err;
    }
    *rival_out = r;
    return 0;
}

void bench_rival_free(struct bench_rival *rival)
{
    if (!rival) {
        return;
    }
    pf_ops_free(rival->dnnl);
    if (rival->library) {
        (void)dlclose(rival->library);
    }
    pf_free(rival);
}

const char *bench_rival_name(const struct bench_rival *rival)
{
    return rival->name;
}

void bench_rival_describe(const struct bench_rival *rival, char *text, size_t bytes)
{
    (void)snprintf(text, bytes, "%s: %s", rival->name, rival->version);
}

static bool fits_int(const struct bench_shape *s)
{
    return s->d[0] <= INT32_MAX && s->d[1] <= INT32_MAX && s->d[2] <= INT32_MAX;
}

bool bench_rival_serves(const struct bench_rival *rival, const struct bench_item *item)
{
    if (item->op->op != PF_OP_GEMM) {
        return false;
    }
    if (rival->sgemm) {
        return item->dtype == PF_DTYPE_F32 && fits_int(&item->shape) && !item->shape.residual &&
               !item->shape.activate;
    }
    return choose_dnnl(rival->dnnl, item->dtype);
}

static int run_dnnl(void *state, const struct bench_op *op, const struct bench_call *call)
{
    return op->call(((struct bench_rival *)state)->dnnl, call);
}

static int run_openblas(void *state, const struct bench_op *op, const struct bench_call *call)
{
    const struct bench_rival *const r = state;
    const struct pf_gemm_args *const g = &call->args.gemm;

    (void)op;
    r->sgemm(ROW_MAJOR, g->trans_a ? TRANS : NO_TRANS, g->trans_b ? TRANS : NO_TRANS, (int)g->m,
             (int)g->n, (int)g->k, 1, g->a, (int)g->lda, g->b, (int)g->ldb, g->accumulate ? 1 : 0,
             g->c, (int)g->ldc);
    return 0;
}

struct bench_contestant bench_rival_contestant(struct bench_rival *rival)
{
    return (struct bench_contestant){rival->sgemm ? run_openblas : run_dnnl, rival};
}

double bench_rival_rest(const struct bench_rival *rival)
{
    /* OpenMP's threads spin for some milliseconds after a call, OpenBLAS has threads of its own. */
    return rival->sgemm ? 5e-3 : 0;
}
