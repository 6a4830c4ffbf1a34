/* SPDX-License-Identifier: Apache-2.0 */
/* Ops: check all, then measure them in passes, in turn with a rival. */
#include "bench_internal.h"

#include <pf/dev.h>
#include <pf/error.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PASSES = 3, MAX_SETS = 64 };

struct session {
    const struct pf_bench_ops_options *options;
    struct pf_bench_record *record;
    struct bench_items items;
    struct pf_ops *ops, *reference;
    struct bench_rival *rival;
    int n_passes;
};

static int run_ours(void *state, const struct bench_op *op, const struct bench_call *call)
{
    return op->call(state, call);
}

/* A rival that is told which kernels to use may not be at its best. */
static void warn_of_variables(const struct pf_bench_env *env)
{
    for (size_t i = 0; i < env->variables.n; i++) {
        const char *const v = env->variables.items[i];
        if (pf_str_starts_with(v, "OPENBLAS_") || pf_str_starts_with(v, "MKL_") ||
            pf_str_starts_with(v, "DNNL_") || pf_str_starts_with(v, "ONEDNN_")) {
            pf_log_warn0("bench", "%s is set: the rival may be held back by it", v);
        }
    }
}

/* Rows named variant serve wherever they can. */
static int choose_named(struct pf_ops *ops, const char *variant)
{
    struct pf_ops_row row;
    bool found = false;

    for (int op = 0; op < PF_OP_COUNT; op++) {
        for (int d = 0; d < PF_DTYPE_COUNT; d++) {
            for (int i = 0; pf_ops_row(ops, (enum pf_op)op, (enum pf_dtype)d, i, &row); i++) {
                if (row.usable && strcmp(row.kernel->variant, variant) == 0) {
                    PF_TRY(pf_ops_choose(ops, (enum pf_op)op, (enum pf_dtype)d, variant));
                    found = true;
                }
            }
        }
    }
    return found ? 0 : pf_fail(PF_EUSAGE, "no kernel '%s' serves here", variant);
}

static int open_all(struct session *s)
{
    const struct pf_bench_ops_options *const o = s->options;
    struct pf_bench_env *const env = &s->record->env;
    struct pf_dev *dev;

    PF_TRY(pf_dev_open(o->device ? o->device : "cpu", &dev));
    (void)snprintf(env->device, sizeof env->device, "%s", pf_dev_name(dev));
    PF_TRY(pf_dev_close(dev));
    PF_TRY(pf_ops_open(&(struct pf_ops_options){.n_threads = o->n_threads}, &s->ops));
    PF_TRY(o->kernel ? choose_named(s->ops, o->kernel) : pf_ops_measure(s->ops));
    PF_TRY(pf_ops_open(&(struct pf_ops_options){.n_threads = 1, .ref_only = true}, &s->reference));
    env->n_threads = pf_ops_threads(s->ops);
    (void)snprintf(env->isa, sizeof env->isa, "%s", pf_ops_isa(s->ops));
    (void)snprintf(env->library, sizeof env->library, "%s", pf_ops_library(s->ops));
    if (o->against) {
        warn_of_variables(env);
        PF_TRY(bench_rival_open(o->against, s->ops, &s->rival));
        bench_rival_describe(s->rival, s->record->rival, sizeof s->record->rival);
    }
    return 0;
}

static const struct pf_kernel_row *serving(const struct pf_ops *ops, const struct bench_item *item)
{
    const struct bench_shape *const b = &item->shape;
    const struct pf_gemm_args g = {
        .n = b->d[1],
        .k = b->d[2],
        .trans_a = b->trans_a,
        .trans_b = b->trans_b,
        .accumulate = b->accumulate,
        .c_dtype = b->accumulate ? PF_DTYPE_F32 : item->dtype,
    };

    return item->op->op == PF_OP_GEMM
               ? pf_ops_chosen_product(ops, item->dtype, pf_ops_product_of(&g))
               : pf_ops_chosen(ops, item->op->op, item->dtype);
}

static int add_case(struct session *s, const struct bench_item *item)
{
    const struct pf_kernel_row *const row = serving(s->ops, item);
    const char *const op = pf_op_name(item->op->op), *const dtype = pf_dtype_name(item->dtype);
    struct pf_bench_case *c;

    PF_TRY(pf_bench_add_case(s->record, &c));
    (void)snprintf(c->name, sizeof c->name, "%s %s %s", op, dtype, item->shape_text);
    (void)snprintf(c->what, sizeof c->what, "%s", op);
    (void)snprintf(c->dtype, sizeof c->dtype, "%s", dtype);
    (void)snprintf(c->shape, sizeof c->shape, "%s", item->shape_text);
    (void)snprintf(c->kernel, sizeof c->kernel, "%s", row ? row->variant : "");
    c->unit = item->op->unit;
    c->is_cold = c->unit == PF_BENCH_BYTE;
    if (s->rival && bench_rival_serves(s->rival, item)) {
        (void)snprintf(c->rival, sizeof c->rival, "%s", bench_rival_name(s->rival));
    }
    return row ? 0 : pf_bench_fail(s->record, false, "no kernel serves %s", c->name);
}

/* Checking -------------------------------------------------------------------------------------- */

static int check_rival(struct session *s, const struct bench_item *item, struct pf_bench_case *c)
{
    const struct bench_contestant rival = bench_rival_contestant(s->rival);
    struct bench_outcome outcome;

    PF_TRY(
        bench_check(item->op, item->dtype, &item->shape, s->ops, s->reference, &rival, &outcome));
    if (outcome.right) {
        return 0;
    }
    c->rival[0] = '\0';
    return pf_bench_fail(s->record, true, "wrong result of %s: %s is off by %.2g, not %.2g",
                         bench_rival_name(s->rival), c->name, outcome.error, outcome.tolerance);
}

static int check_case(struct session *s, const struct bench_item *item, struct pf_bench_case *c)
{
    const struct bench_contestant ours = {run_ours, s->ops};
    struct bench_outcome outcome;

    PF_TRY(bench_check(item->op, item->dtype, &item->shape, s->ops, s->reference, &ours, &outcome));
    c->checked = true;
    c->right = outcome.right;
    c->error = outcome.error;
    c->tolerance = outcome.tolerance;
    if (!c->right) {
        PF_TRY(pf_bench_fail(s->record, true,
                             "wrong result: %s by kernel '%s' is off by %.2g, at most %.2g is "
                             "rounding",
                             c->name, c->kernel, c->error, c->tolerance));
    }
    return c->right && c->rival[0] ? check_rival(s, item, c) : 0;
}

/* Measuring ------------------------------------------------------------------------------------- */

static void copy_arrays(const struct bench_call *from, struct bench_call *to)
{
    for (int i = 0; i < from->n_bufs; i++) {
        const struct bench_buf *const b = &from->bufs[i];
        memcpy(to->bufs[i].data, b->data,
               (size_t)b->rows * (size_t)b->width * pf_dtype_bytes(b->dtype));
    }
}

/* As many copies of the arrays as leave the caches cold, or one. */
static int count_sets(const struct bench_item *item, const struct bench_call *first)
{
    const double n = ceil(2 * pf_limits_cache_bytes() / (bench_call_bytes(first) + 1));

    return item->op->unit != PF_BENCH_BYTE ? 1 : n > MAX_SETS ? MAX_SETS : n < 1 ? 1 : (int)n;
}

static int build_sets(struct session *s, const struct bench_item *item, struct bench_call *sets,
                      int *n_sets)
{
    PF_TRY(bench_call_build(item->op, s->ops, item->dtype, &item->shape, &sets[0]));
    *n_sets = 1;
    const int n = count_sets(item, &sets[0]);
    for (int i = 1; i < n; i++) {
        sets[i] = (struct bench_call){.op = item->op->op, .dtype = item->dtype};
        item->op->build(&sets[i], &item->shape);
        ++*n_sets;
        PF_TRY(sets[i].err);
        copy_arrays(&sets[0], &sets[i]);
    }
    return 0;
}

static struct bench_pass pass_of(const struct session *s, int pass)
{
    const struct pf_bench_effort *const e = &s->options->effort;
    const int n = e->repeat;

    return (struct bench_pass){
        .warmup = e->warmup >= 0 ? e->warmup : 2,
        .n_samples = n > 0 ? n * (pass + 1) / s->n_passes - n * pass / s->n_passes : 0,
        .seconds = (e->seconds > 0 ? e->seconds : 0.5) / s->n_passes,
        .rest = s->rival ? bench_rival_rest(s->rival) : 0,
    };
}

static int measure_case(struct session *s, const struct bench_item *item, struct pf_bench_case *c,
                        int number)
{
    const struct bench_pass pass = pass_of(s, number);
    const bool rivalled = c->rival[0] != '\0';
    const struct bench_runner runners[] = {
        {{run_ours, s->ops}, &c->time},
        {rivalled ? bench_rival_contestant(s->rival) : (struct bench_contestant){NULL, NULL},
         &c->rival_time},
    };
    struct bench_call *const sets = pf_calloc_array(MAX_SETS, sizeof *sets);
    int n_sets = 0, err = sets ? 0 : PF_ENOMEM;

    if (!err) {
        err = build_sets(s, item, sets, &n_sets);
    }
    if (!err) {
        const struct pf_op_work work = pf_op_work(item->op->op, item->dtype, &sets[0].args);
        c->work = c->unit == PF_BENCH_FLOP ? work.flop : work.bytes;
        err = bench_time(item->op, sets, n_sets, runners, rivalled ? 2 : 1, &pass);
    }
    for (int i = 0; sets && i < MAX_SETS; i++) {
        bench_call_release(&sets[i]);
    }
    pf_free(sets);
    return err;
}

static int finish_case(const struct session *s, const struct bench_item *item,
                       struct pf_bench_case *c)
{
    const struct pf_limits *const l = &s->record->limits;

    if (c->unit == PF_BENCH_BYTE) {
        c->limit = l->triad_bytes;
        (void)snprintf(c->limit_name, sizeof c->limit_name, "triad");
    } else {
        c->limit = pf_limits_flops(l, item->dtype);
        (void)snprintf(c->limit_name, sizeof c->limit_name, "fma %s",
                       c->limit > l->f32_flops ? "BF16" : "F32");
    }
    PF_TRY(pf_bench_stats(c->time.seconds, c->time.n, &c->stats));
    PF_TRY(pf_bench_stats(c->rival_time.seconds, c->rival_time.n, &c->rival_stats));
    return c->rival[0] ? bench_pair_up(c) : 0;
}

static int measure_limits(struct session *s)
{
    return pf_limits_measure(pf_ops_threads(s->ops), pf_ops_isa(s->ops), &s->record->limits);
}

static void tell(const struct session *s, int64_t done)
{
    const struct pf_bench_ops_options *const o = s->options;

    if (o->progress) {
        o->progress(o->context, done, (int64_t)s->items.n * (1 + s->n_passes));
    }
}

static int measure_all(struct session *s)
{
    int64_t done = 0;

    for (int i = 0; i < s->items.n; i++) {
        struct pf_bench_case *const c = &s->record->cases[i];
        tell(s, done++);
        PF_TRY(c->kernel[0] ? check_case(s, &s->items.items[i], c) : 0);
    }
    PF_TRY(measure_limits(s));
    for (int pass = 0; pass < s->n_passes; pass++) {
        for (int i = 0; i < s->items.n; i++) {
            struct pf_bench_case *const c = &s->record->cases[i];
            tell(s, done++);
            PF_TRY(c->right ? measure_case(s, &s->items.items[i], c, pass) : 0);
        }
    }
    PF_TRY(measure_limits(s));
    tell(s, done);
    for (int i = 0; i < s->items.n; i++) {
        PF_TRY(finish_case(s, &s->items.items[i], &s->record->cases[i]));
    }
    return 0;
}

static int run(struct session *s)
{
    PF_TRY(open_all(s));
    PF_TRY(bench_items_make(s->options, &s->items));
    for (int i = 0; i < s->items.n; i++) {
        PF_TRY(add_case(s, &s->items.items[i]));
    }
    return s->options->list ? 0 : measure_all(s);
}

int pf_bench_ops(const struct pf_bench_ops_options *options, struct pf_bench_record *record)
{
    const double started = pf_time_monotonic();
    const int repeat = options->effort.repeat;
    struct session s = {.options = options, .record = record};

    s.n_passes = repeat > 0 && repeat < PASSES ? repeat : PASSES;
    const int err = run(&s);
    bench_items_release(&s.items);
    bench_rival_free(s.rival);
    pf_ops_free(s.reference);
    pf_ops_free(s.ops);
    record->seconds = pf_time_monotonic() - started;
    return err;
}
