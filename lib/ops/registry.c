/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c - which kernel serves which (op, dtype), and the typed functions that call it. */
#include <pf/ops.h>

#include "config.h"
#include "ops_internal.h"

#include <pf/dev.h>
#include <pf/error.h>
#include <pf/limits.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <stdlib.h>
#include <string.h>

enum isa { ISA_GENERIC, ISA_AVX2, ISA_AVX512, ISA_AVX512BF16, N_ISAS };
static const char *const isa_names[N_ISAS] = {"generic", "avx2", "avx512", "avx512bf16"};

/* A kernel as it stands on this machine. */
struct entry {
    const struct pf_kernel_row *kernel;
    const char *why_not; /* NULL: usable */
    void *library;
    size_t order; /* of registration: among equals the later serves */
};

struct pf_ops {
    int n_threads;
    enum isa isa;
    bool ref_only;
    bool by_table; /* measure no kernels */
    size_t cache_bytes;
    void *dnnl;
    struct entry *entries; /* sorted by op, dtype, falling preference */
    size_t n_entries;
    struct {
        int first, n;
        int chosen;                        /* index into entries, or -1 */
        int product[PF_OPS_PRODUCT_COUNT]; /* the same for gemm's kinds; elsewhere as chosen */
        bool by_caller;
    } served[PF_OP_COUNT][PF_DTYPE_COUNT];
    void *scratch;
    size_t scratch_bytes;
    pf_ops_observer *observer;
    void *observer_context;
};

static const char *const op_names[PF_OP_COUNT] = {
    [PF_OP_GEMM] = "gemm",
    [PF_OP_EMBED_FWD] = "embed_fwd",
    [PF_OP_EMBED_BWD] = "embed_bwd",
    [PF_OP_RMSNORM_FWD] = "rmsnorm_fwd",
    [PF_OP_RMSNORM_BWD] = "rmsnorm_bwd",
    [PF_OP_LAYERNORM_FWD] = "layernorm_fwd",
    [PF_OP_LAYERNORM_BWD] = "layernorm_bwd",
    [PF_OP_ROPE] = "rope",
    [PF_OP_ATTENTION_FWD] = "attention_fwd",
    [PF_OP_ATTENTION_BWD] = "attention_bwd",
    [PF_OP_GLU_FWD] = "glu_fwd",
    [PF_OP_GLU_BWD] = "glu_bwd",
    [PF_OP_ACT_FWD] = "act_fwd",
    [PF_OP_ACT_BWD] = "act_bwd",
    [PF_OP_BIAS_GRAD] = "bias_grad",
    [PF_OP_ADD] = "add",
    [PF_OP_SCALE] = "scale",
    [PF_OP_DROPOUT] = "dropout",
    [PF_OP_CROSS_ENTROPY] = "cross_entropy",
    [PF_OP_VOCAB_CE_FWD] = "vocab_ce_fwd",
    [PF_OP_VOCAB_CE_BWD] = "vocab_ce_bwd",
    [PF_OP_ADAMW] = "adamw",
};

const char *pf_op_name(enum pf_op op)
{
    return (unsigned)op < PF_OP_COUNT ? op_names[op] : "unknown";
}

int pf_op_from_name(const char *name, enum pf_op *op_out)
{
    for (int op = 0; op < PF_OP_COUNT; op++) {
        if (strcmp(name, op_names[op]) == 0) {
            *op_out = (enum pf_op)op;
            return 0;
        }
    }
    return pf_fail(PF_EINVAL, "unknown op '%s'", name);
}

/* Instruction sets ----------------------------------------------------------------------------- */

static enum isa best_isa(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    return !avx2 ? ISA_GENERIC : !avx512 ? ISA_AVX2 : !bf16 ? ISA_AVX512 : ISA_AVX512BF16;
#else
    return ISA_GENERIC;
#endif
}

const char *pf_ops_best_isa(void)
{
    return isa_names[best_isa()];
}

static int choose_isa(const char *name, enum isa *isa_out)
{
    const enum isa best = best_isa();

    if (!name) {
        *isa_out = best;
        return 0;
    }
    for (int i = 0; i < N_ISAS; i++) {
        if (strcmp(name, isa_names[i]) == 0) {
            if (i > (int)best) {
                return pf_fail(PF_ENOTSUP, "this CPU lacks '%s'", name);
            }
            *isa_out = (enum isa)i;
            return 0;
        }
    }
    return pf_fail(PF_EUSAGE, "unknown instruction set '%s': generic, avx2, avx512 or avx512bf16",
                   name);
}

/* Opening -------------------------------------------------------------------------------------- */

struct kernel_table {
    const struct pf_kernel_row *rows;
    size_t n;
    enum isa isa;
    bool is_ref, is_library;
};

enum { MAX_TABLES = 12 };

static size_t list_tables(struct kernel_table tables[MAX_TABLES])
{
    size_t n = 0;

#define CPU_TABLE(isa, elem, ISA)                                                                  \
    tables[n++] = (struct kernel_table){pf_kernels_cpu_##isa##_##elem,                             \
                                        pf_kernels_cpu_##isa##_##elem##_n, ISA, false, false}
#define CPU_TABLES(isa, ISA)                                                                       \
    CPU_TABLE(isa, f32, ISA);                                                                      \
    CPU_TABLE(isa, bf16, ISA);                                                                     \
    CPU_TABLE(isa, f16, ISA)
    tables[n++] = (struct kernel_table){pf_kernels_ref, pf_kernels_ref_n, ISA_GENERIC, true, false};
    CPU_TABLES(generic, ISA_GENERIC);
    CPU_TABLES(avx2, ISA_AVX2);
    CPU_TABLES(avx512, ISA_AVX512);
    CPU_TABLE(avx512bf16, bf16, ISA_AVX512BF16);
#undef CPU_TABLES
#undef CPU_TABLE
#if PF_HAVE_DNNL
    tables[n++] =
        (struct kernel_table){pf_kernels_dnnl, pf_kernels_dnnl_n, ISA_GENERIC, false, true};
#endif
    return n;
}

/* Why no row of this table serves, or NULL. */
static const char *why_not(const struct pf_ops *ops, const struct kernel_table *table)
{
    static const char *const lacks[N_ISAS] = {"", "CPU lacks avx2", "CPU lacks avx512",
                                              "CPU lacks avx512bf16"};

    if (table->isa > best_isa()) {
        return lacks[table->isa];
    }
    if (table->isa > ops->isa) {
        return "above the instruction set asked for";
    }
    if (ops->ref_only && !table->is_ref) {
        return "only the reference was asked for";
    }
    if (table->is_library && !ops->dnnl) {
        return "the library of this process is bound to another instruction set";
    }
    return NULL;
}

/* Why this row of its table does not serve, or NULL. */
static const char *why_not_row(const struct pf_ops *ops, const struct kernel_table *table,
                               const struct pf_kernel_row *row)
{
    const char *const why = why_not(ops, table);

#if PF_HAVE_DNNL
    if (!why && table->is_library && !pf_dnnl_serves(ops->dnnl, row)) {
        return "the library has no such product for this CPU";
    }
#else
    (void)row;
#endif
    return why;
}

static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    const struct pf_kernel_row *kx = x->kernel, *ky = y->kernel;

    if (kx->op != ky->op) {
        return kx->op < ky->op ? -1 : 1;
    }
    if (kx->dtype != ky->dtype) {
        return kx->dtype < ky->dtype ? -1 : 1;
    }
    if (kx->preference != ky->preference) {
        return kx->preference > ky->preference ? -1 : 1;
    }
    return x->order > y->order ? -1 : x->order < y->order;
}

static int collect(struct pf_ops *ops)
{
    struct kernel_table tables[MAX_TABLES];
    const size_t n_tables = list_tables(tables);
    size_t n = 0;

    for (size_t t = 0; t < n_tables; t++) {
        n += tables[t].n;
    }
    ops->entries = pf_calloc_array(n, sizeof *ops->entries);
    if (!ops->entries) {
        return PF_ENOMEM;
    }
    for (size_t t = 0; t < n_tables; t++) {
        for (size_t i = 0; i < tables[t].n; i++) {
            ops->entries[ops->n_entries] =
                (struct entry){&tables[t].rows[i], why_not_row(ops, &tables[t], &tables[t].rows[i]),
                               tables[t].is_library ? ops->dnnl : NULL, ops->n_entries};
            ops->n_entries++;
        }
    }
    qsort(ops->entries, ops->n_entries, sizeof *ops->entries, compare_entries);
    return 0;
}

/* Entry `at` serves all of a pair. */
static void serve_by(struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype, int at)
{
    ops->served[op][dtype].chosen = at;
    for (int p = 0; p < PF_OPS_PRODUCT_COUNT; p++) {
        ops->served[op][dtype].product[p] = at;
    }
}

static void choose_by_preference(struct pf_ops *ops)
{
    for (int op = 0; op < PF_OP_COUNT; op++) {
        for (int d = 0; d < PF_DTYPE_COUNT; d++) {
            serve_by(ops, (enum pf_op)op, (enum pf_dtype)d, -1);
        }
    }
    for (int i = 0; i < (int)ops->n_entries; i++) {
        const struct entry *e = &ops->entries[i];
        if (ops->served[e->kernel->op][e->kernel->dtype].n++ == 0) {
            ops->served[e->kernel->op][e->kernel->dtype].first = i;
        }
        if (!e->why_not && ops->served[e->kernel->op][e->kernel->dtype].chosen < 0) {
            serve_by(ops, e->kernel->op, e->kernel->dtype, i);
        }
    }
}

/* PF_KERNELS and the options; ops->dnnl is opened only where it can serve. */
static int configure(struct pf_ops *ops, const struct pf_ops_options *options)
{
    const char *forced = getenv("PF_KERNELS");

    ops->by_table = forced && strcmp(forced, "table") == 0;
    if (forced && *forced && !ops->by_table && strcmp(forced, "ref") != 0) {
        return pf_fail(PF_EUSAGE, "PF_KERNELS is '%s': 'ref' and 'table' are known", forced);
    }
    ops->ref_only = options->ref_only || (forced && *forced && !ops->by_table);
    if (options->n_threads < 0) {
        return pf_fail(PF_EINVAL, "thread count %d is negative", options->n_threads);
    }
    ops->n_threads = options->n_threads;
    ops->cache_bytes =
        options->cache_bytes ? options->cache_bytes : (size_t)pf_limits_cache_bytes();
    if (ops->n_threads == 0) {
        struct pf_cpu_info cpu;
        PF_TRY(pf_cpu_info(&cpu));
        ops->n_threads = cpu.n_cpus;
    }
    PF_TRY(choose_isa(options->isa, &ops->isa));
#if PF_HAVE_DNNL
    if (!ops->ref_only) {
        PF_TRY(pf_dnnl_open(ops->n_threads, isa_names[ops->isa], &ops->dnnl));
    }
#endif
    return 0;
}

int pf_ops_open(const struct pf_ops_options *options, struct pf_ops **ops_out)
{
    static const struct pf_ops_options defaults = {.n_threads = 0};
    struct pf_ops *ops = pf_alloc(sizeof *ops);
    int err = 0;

    if (!ops) {
        return PF_ENOMEM;
    }
    PF_TRY_GOTO(configure(ops, options ? options : &defaults), out);
    PF_TRY_GOTO(collect(ops), out);
    choose_by_preference(ops);
    *ops_out = ops;
    ops = NULL;
out:
    pf_ops_free(ops);
    return err;
}

void pf_ops_free(struct pf_ops *ops)
{
    if (!ops) {
        return;
    }
#if PF_HAVE_DNNL
    if (ops->dnnl) {
        pf_dnnl_close(ops->dnnl);
    }
#endif
    pf_free(ops->entries);
    pf_free(ops->scratch);
    pf_free(ops);
}

int pf_ops_threads(const struct pf_ops *ops)
{
    return ops->n_threads;
}

bool pf_ops_by_table(const struct pf_ops *ops)
{
    return ops->by_table;
}

const char *pf_ops_isa(const struct pf_ops *ops)
{
    return isa_names[ops->isa];
}

const char *pf_ops_library(const struct pf_ops *ops)
{
#if PF_HAVE_DNNL
    return ops->ref_only ? "" : pf_dnnl_version();
#else
    (void)ops;
    return "";
#endif
}

const char *pf_ops_library_isa(const struct pf_ops *ops)
{
#if PF_HAVE_DNNL
    return ops->dnnl ? pf_dnnl_isa() : "";
#else
    (void)ops;
    return "";
#endif
}

size_t pf_ops_scratch_bytes(const struct pf_ops *ops)
{
    return ops->scratch_bytes;
}

/* Listing and choosing ------------------------------------------------------------------------- */

static bool is_pair(enum pf_op op, enum pf_dtype dtype)
{
    return (unsigned)op < PF_OP_COUNT && (unsigned)dtype < PF_DTYPE_COUNT;
}

bool pf_ops_row(const struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype, int i,
                struct pf_ops_row *row_out)
{
    if (!is_pair(op, dtype) || i < 0 || i >= ops->served[op][dtype].n) {
        return false;
    }
    const int at = ops->served[op][dtype].first + i;
    const struct entry *e = &ops->entries[at];
    const bool chosen = at == ops->served[op][dtype].chosen;
    *row_out = (struct pf_ops_row){
        .kernel = e->kernel,
        .usable = !e->why_not,
        .chosen = chosen,
        .why = e->why_not                         ? e->why_not
               : !chosen                          ? "fallback"
               : ops->served[op][dtype].by_caller ? "chosen by caller"
                                                  : "highest preference",
    };
    return true;
}

const struct pf_kernel_row *pf_ops_chosen(const struct pf_ops *ops, enum pf_op op,
                                          enum pf_dtype dtype)
{
    if (!is_pair(op, dtype) || ops->served[op][dtype].chosen < 0) {
        return NULL;
    }
    return ops->entries[ops->served[op][dtype].chosen].kernel;
}

const struct pf_kernel_row *pf_ops_chosen_product(const struct pf_ops *ops, enum pf_dtype dtype,
                                                  enum pf_ops_product product)
{
    const bool is_served = is_pair(PF_OP_GEMM, dtype) && ops->served[PF_OP_GEMM][dtype].chosen >= 0;

    return is_served ? ops->entries[ops->served[PF_OP_GEMM][dtype].product[product]].kernel : NULL;
}

static const char *const product_names[PF_OPS_PRODUCT_COUNT] = {
    [PF_OPS_PRODUCT_OTHER] = "",
    [PF_OPS_PRODUCT_LONG] = "long",
    [PF_OPS_PRODUCT_INPUT] = "input",
    [PF_OPS_PRODUCT_INPUT_LONG] = "input_long",
    [PF_OPS_PRODUCT_GRADIENT] = "gradient"};

const char *pf_ops_product_name(enum pf_ops_product product)
{
    return product_names[product];
}

int pf_ops_product_from_name(const char *name, enum pf_ops_product *product_out)
{
    for (int p = 0; p < PF_OPS_PRODUCT_COUNT; p++) {
        if (strcmp(name, product_names[p]) == 0) {
            *product_out = (enum pf_ops_product)p;
            return 0;
        }
    }
    return pf_fail(PF_EINVAL, "unknown kind of product '%s'", name);
}

enum pf_ops_product pf_ops_product_of(const struct pf_gemm_args *g)
{
    const bool is_long = g->k / 2 >= g->n;

    if (g->trans_a) {
        return g->accumulate && g->c_dtype == PF_DTYPE_F32 ? PF_OPS_PRODUCT_GRADIENT
                                                           : PF_OPS_PRODUCT_OTHER;
    }
    if (g->trans_b) {
        return is_long ? PF_OPS_PRODUCT_LONG : PF_OPS_PRODUCT_OTHER;
    }
    return is_long ? PF_OPS_PRODUCT_INPUT_LONG : PF_OPS_PRODUCT_INPUT;
}

/* The entry of a row that can serve. */
static int find_entry(const struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype,
                      const char *variant, int *at_out)
{
    const int n = is_pair(op, dtype) ? ops->served[op][dtype].n : 0;

    for (int i = 0; i < n; i++) {
        const int at = ops->served[op][dtype].first + i;
        if (strcmp(ops->entries[at].kernel->variant, variant) != 0) {
            continue;
        }
        if (ops->entries[at].why_not) {
            return pf_fail(PF_ENOTSUP, "kernel '%s' of %s cannot serve: %s", variant,
                           pf_op_name(op), ops->entries[at].why_not);
        }
        *at_out = at;
        return 0;
    }
    return pf_fail(PF_ENOTSUP, "%s has no kernel '%s' for %s in this build", pf_op_name(op),
                   variant, (unsigned)dtype < PF_DTYPE_COUNT ? pf_dtype_name(dtype) : "this dtype");
}

int pf_ops_choose(struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype, const char *variant)
{
    int at;

    PF_TRY(find_entry(ops, op, dtype, variant, &at));
    serve_by(ops, op, dtype, at);
    ops->served[op][dtype].by_caller = true;
    return 0;
}

int pf_ops_choose_product(struct pf_ops *ops, enum pf_dtype dtype, enum pf_ops_product product,
                          const char *variant)
{
    int at;

    PF_TRY(find_entry(ops, PF_OP_GEMM, dtype, variant, &at));
    ops->served[PF_OP_GEMM][dtype].product[product] = at;
    if (product == PF_OPS_PRODUCT_OTHER) {
        ops->served[PF_OP_GEMM][dtype].chosen = at;
        ops->served[PF_OP_GEMM][dtype].by_caller = true;
    }
    return 0;
}

/* The next kind from `from` on, at least OTHER, that a choice stands for; PF_OPS_PRODUCT_COUNT: none. */
static int next_choice(const struct pf_ops *ops, int op, int dtype, int from)
{
    const int at = ops->served[op][dtype].chosen;

    while (from < PF_OPS_PRODUCT_COUNT &&
           (at < 0 || (from > 0 && ops->served[op][dtype].product[from] == at))) {
        from++;
    }
    return from;
}

int pf_ops_n_choices(const struct pf_ops *ops)
{
    int n = 0;

    for (int op = 0; op < PF_OP_COUNT; op++) {
        for (int d = 0; d < PF_DTYPE_COUNT; d++) {
            for (int p = 0; (p = next_choice(ops, op, d, p)) < PF_OPS_PRODUCT_COUNT; p++) {
                n++;
            }
        }
    }
    return n;
}

struct pf_ops_choice pf_ops_choice_at(const struct pf_ops *ops, int i)
{
    struct pf_ops_choice choice = {.variant = NULL};

    for (int op = 0; op < PF_OP_COUNT && !choice.variant; op++) {
        for (int d = 0; d < PF_DTYPE_COUNT && !choice.variant; d++) {
            for (int p = 0; (p = next_choice(ops, op, d, p)) < PF_OPS_PRODUCT_COUNT; p++) {
                if (i-- == 0) {
                    const int at = ops->served[op][d].product[p];
                    choice = (struct pf_ops_choice){(enum pf_op)op, (enum pf_dtype)d,
                                                    (enum pf_ops_product)p,
                                                    ops->entries[at].kernel->variant};
                }
            }
        }
    }
    PF_ASSERT(choice.variant != NULL);
    return choice;
}

/* FNV-1a over the text and one separator. */
static uint64_t digest_text(uint64_t hash, const char *text, char end)
{
    for (; *text; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    }
    return (hash ^ (unsigned char)end) * 0x100000001b3u;
}

uint64_t pf_ops_choices_digest(const struct pf_ops *ops)
{
    const int n = pf_ops_n_choices(ops);
    uint64_t hash = 0xcbf29ce484222325u;

    for (int i = 0; i < n; i++) {
        const struct pf_ops_choice c = pf_ops_choice_at(ops, i);
        hash = digest_text(hash, pf_op_name(c.op), ' ');
        hash = digest_text(hash, pf_dtype_name(c.dtype), ' ');
        hash = c.product ? digest_text(hash, pf_ops_product_name(c.product), ' ') : hash;
        hash = digest_text(hash, c.variant, '\n');
    }
    hash = digest_text(hash, pf_ops_isa(ops), ' ');
    hash = digest_text(hash, pf_ops_library(ops), ' ');
    return (hash ^ (uint64_t)ops->n_threads) * 0x100000001b3u;
}

void pf_ops_observe(struct pf_ops *ops, pf_ops_observer *observer, void *context)
{
    ops->observer = observer;
    ops->observer_context = context;
}

/* Calling -------------------------------------------------------------------------------------- */

static int reserve(struct pf_ops *ops, size_t bytes)
{
    if (bytes <= ops->scratch_bytes) {
        return 0;
    }
    void *scratch = pf_alloc(bytes);
    if (!scratch) {
        return PF_ENOMEM;
    }
    pf_free(ops->scratch);
    ops->scratch = scratch;
    ops->scratch_bytes = bytes;
    return 0;
}

static int call_observed(struct pf_ops *ops, const struct pf_kernel_row *kernel,
                         const struct pf_kctx *ctx, const void *args)
{
    struct pf_ops_call call = {
        .op = kernel->op, .dtype = kernel->dtype, .kernel = kernel, .args = args};

    call.started = pf_time_monotonic();
    const int err = kernel->fn(ctx, args);
    call.ended = pf_time_monotonic();
    ops->observer(ops->observer_context, &call);
    return err;
}

/* The entry that serves this call, or -1. */
static int entry_for(const struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype, const void *args)
{
    if (!is_pair(op, dtype)) {
        return -1;
    }
    return op == PF_OP_GEMM && args ? ops->served[op][dtype].product[pf_ops_product_of(args)]
                                    : ops->served[op][dtype].chosen;
}

static int call(struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype, const void *args)
{
    const int at = entry_for(ops, op, dtype, args);
    size_t scratch_bytes = 0;
    bool empty = false;

    if (at < 0) {
        return pf_fail(PF_ENOTSUP, "no kernel of %s for %s in this build", pf_op_name(op),
                       (unsigned)dtype < PF_DTYPE_COUNT ? pf_dtype_name(dtype) : "this dtype");
    }
    PF_TRY(pf_ops_check(op, dtype, args, ops->n_threads, &scratch_bytes, &empty));
    if (empty) {
        return 0;
    }
    PF_TRY(reserve(ops, scratch_bytes));
    const struct pf_kctx ctx = {ops->n_threads, ops->scratch, ops->scratch_bytes, ops->cache_bytes,
                                ops->entries[at].library};
    const struct pf_kernel_row *const kernel = ops->entries[at].kernel;
    return ops->observer ? call_observed(ops, kernel, &ctx, args) : kernel->fn(&ctx, args);
}

/* One typed function an op; all they add to call() is the type of args. */
#define FRONT_END(name, OP)                                                                        \
    int pf_op_##name(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_##name##_args *args) \
    {                                                                                              \
        return call(ops, OP, dtype, args);                                                         \
    }

FRONT_END(gemm, PF_OP_GEMM)
FRONT_END(embed_fwd, PF_OP_EMBED_FWD)
FRONT_END(embed_bwd, PF_OP_EMBED_BWD)
FRONT_END(rmsnorm_fwd, PF_OP_RMSNORM_FWD)
FRONT_END(rmsnorm_bwd, PF_OP_RMSNORM_BWD)
FRONT_END(layernorm_fwd, PF_OP_LAYERNORM_FWD)
FRONT_END(layernorm_bwd, PF_OP_LAYERNORM_BWD)
FRONT_END(rope, PF_OP_ROPE)
FRONT_END(attention_fwd, PF_OP_ATTENTION_FWD)
FRONT_END(attention_bwd, PF_OP_ATTENTION_BWD)
FRONT_END(glu_fwd, PF_OP_GLU_FWD)
FRONT_END(glu_bwd, PF_OP_GLU_BWD)
FRONT_END(act_fwd, PF_OP_ACT_FWD)
FRONT_END(act_bwd, PF_OP_ACT_BWD)
FRONT_END(bias_grad, PF_OP_BIAS_GRAD)
FRONT_END(add, PF_OP_ADD)
FRONT_END(scale, PF_OP_SCALE)
FRONT_END(dropout, PF_OP_DROPOUT)
FRONT_END(cross_entropy, PF_OP_CROSS_ENTROPY)
FRONT_END(vocab_ce_fwd, PF_OP_VOCAB_CE_FWD)
FRONT_END(vocab_ce_bwd, PF_OP_VOCAB_CE_BWD)
FRONT_END(adamw, PF_OP_ADAMW)
