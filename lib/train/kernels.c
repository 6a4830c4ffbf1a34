/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernels a run uses (DESIGN section 5): ranks agree on the lowest instruction set, rank 0
 * measures which kernels are fastest and its choices are everybody's, they are written to pf.json and every manifest, and a resume (or
 * kernels_from) uses the recorded ones again, or says that bits may differ.
 */
#include "train_internal.h"

#include <pf/dev.h>
#include <pf/error.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const char *const isas[] = {"generic", "avx2", "avx512", "avx512bf16"};

static int lowest_isa(struct pf_comm *comm, const char **isa_out)
{
    int64_t level = 0;

    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        level = strcmp(pf_ops_best_isa(), isas[i]) == 0 ? (int64_t)i : level;
    }
    PF_TRY(pf_comm_all_reduce(comm, &level, 1, PF_COMM_I64, PF_COMM_MIN));
    *isa_out = isas[level];
    return 0;
}

/* The CPUs of the host's mask shared among its ranks; one where there are more ranks than CPUs. */
static int thread_count(struct pf_trainer *t, int *threads_out)
{
    struct pf_cpu_info info;
    int64_t n = t->config->threads;
    const int local = pf_comm_local_size(t->world);

    PF_TRY(pf_cpu_info(&info));
    if (n == 0) {
        n = info.n_cpus / local > 1 ? info.n_cpus / local : 1;
    }
    const int64_t online = sysconf(_SC_NPROCESSORS_ONLN);
    if (n > 1 && n <= info.n_cpus && online > 0 && n * local > online) {
        pf_log_warn0("train",
                     "%d ranks of %lld threads share the %lld CPUs of a host: lower threads", local,
                     (long long)n, (long long)online);
    }
    if (n > info.n_cpus) {
        pf_log_warn("train",
                    "%lld threads share %d CPUs: start with --bind-to none, or lower threads",
                    (long long)n, info.n_cpus);
    }
    /* Every rank the same count, or bits would depend on the host. */
    PF_TRY(pf_comm_all_reduce(t->world, &n, 1, PF_COMM_I64, PF_COMM_MIN));
    return pf_to_int(n, threads_out);
}

static int choose_one(struct pf_trainer *t, const struct pf_json *row, bool *same_out)
{
    const char *op_name, *dtype_name, *variant, *product_name;
    enum pf_ops_product product;
    enum pf_op op;
    enum pf_dtype dtype;

    PF_TRY(pf_json_need_string(row, "op", &op_name));
    PF_TRY(pf_json_need_string(row, "dtype", &dtype_name));
    PF_TRY(pf_json_need_string(row, "variant", &variant));
    PF_TRY(pf_json_string(row, "product", NULL, &product_name));
    if (pf_op_from_name(op_name, &op) != 0 || pf_dtype_parse(dtype_name, &dtype) != 0 ||
        (product_name ? pf_ops_product_from_name(product_name, &product) != 0 ||
                            pf_ops_choose_product(t->ops, dtype, product, variant) != 0
                      : pf_ops_choose(t->ops, op, dtype, variant) != 0)) {
        pf_error_clear();
        *same_out = false;
    }
    return 0;
}

/* Apply the "kernels" object of a pf.json. Warns in one line where bits may differ from that run. */
static int choose_recorded(struct pf_trainer *t, const struct pf_json *run, const char *from)
{
    const struct pf_json *const kernels = pf_json_get(run, "kernels");
    const struct pf_json *const rows = pf_json_get(kernels, "chosen");
    const char *isa = NULL, *library = NULL;
    int64_t threads = 0;
    bool same = kernels != NULL;

    for (size_t i = 0; i < pf_json_n(rows); i++) {
        PF_TRY(choose_one(t, pf_json_child(rows, i), &same));
    }
    if (kernels) {
        PF_TRY(pf_json_string(kernels, "isa", NULL, &isa));
        PF_TRY(pf_json_string(kernels, "library", NULL, &library));
        PF_TRY(pf_json_i64(kernels, "threads", 0, &threads));
    }
    if (!same || !isa || strcmp(isa, pf_ops_isa(t->ops)) != 0 ||
        threads != pf_ops_threads(t->ops) || !library ||
        strcmp(library, pf_ops_library(t->ops)) != 0) {
        pf_log_warn0(
            "train",
            "results will not be bit-identical to those of %s: kernels, threads (%lld, now "
            "%d), instruction set or library differ",
            from, (long long)threads, pf_ops_threads(t->ops));
    }
    return 0;
}

/* Rank 0's choices, as many as a registry can hold: "" where a pair is not served. */
struct choices {
    char variant[PF_OP_COUNT][PF_DTYPE_COUNT][16];
    char product[PF_OPS_PRODUCT_COUNT][PF_DTYPE_COUNT][16]; /* "": as the others */
};

static void list_choices(const struct pf_ops *ops, struct choices *choices_out)
{
    memset(choices_out, 0, sizeof *choices_out);
    for (int i = 0; i < pf_ops_n_choices(ops); i++) {
        const struct pf_ops_choice c = pf_ops_choice_at(ops, i);
        char *const to = c.product ? choices_out->product[c.product][c.dtype]
                                   : choices_out->variant[c.op][c.dtype];
        (void)snprintf(to, sizeof choices_out->variant[0][0], "%s", c.variant);
    }
}

static int take_choices(struct pf_ops *ops, const struct choices *choices)
{
    for (int d = 0; d < PF_DTYPE_COUNT; d++) {
        for (int op = 0; op < PF_OP_COUNT; op++) {
            const char *const variant = choices->variant[op][d];
            if (*variant) {
                PF_TRY(pf_ops_choose(ops, (enum pf_op)op, (enum pf_dtype)d, variant));
            }
        }
        for (int p = PF_OPS_PRODUCT_OTHER + 1; p < PF_OPS_PRODUCT_COUNT; p++) {
            const char *const variant = choices->product[p][d];
            if (*variant) {
                PF_TRY(
                    pf_ops_choose_product(ops, (enum pf_dtype)d, (enum pf_ops_product)p, variant));
            }
        }
    }
    return 0;
}

/* Rank 0 measures, all follow. A measurement that fails leaves the table's choice, on every rank. */
static int choose_measured(struct pf_trainer *t)
{
    struct choices choices;

    if (pf_comm_rank(t->world) == 0 && pf_ops_measure(t->ops) != 0) {
        pf_log_warn("train", "kernels are chosen by table: %s", pf_error_message());
        pf_error_clear();
    }
    list_choices(t->ops, &choices);
    PF_TRY(pf_comm_broadcast(t->world, &choices, sizeof choices, 0));
    return take_choices(t->ops, &choices);
}

/* What keeps a library below what the CPU can: named once, since nothing else would show it. */
static void warn_of_slow_kernels(void)
{
    static const char *const variables[] = {"DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA",
                                            "OPENBLAS_CORETYPE"};

    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *const value = getenv(variables[i]);
        if (value && *value && strcasecmp(value, "all") != 0 && strcasecmp(value, "default") != 0) {
            pf_log_warn0("train", "%s is set to '%s', which can force slow kernels on that library",
                         variables[i], value);
        }
    }
}

static bool has_record(const struct pf_trainer *t)
{
    return t->config->kernels_from || (t->resume && t->resume->run_json);
}

static int apply_recorded(struct pf_trainer *t)
{
    const char *const path = t->config->kernels_from;
    struct pf_json *run = NULL;
    int err = 0;

    if (path) {
        PF_TRY(pf_json_parse_file(path, &run));
        err = choose_recorded(t, run, path);
    } else if (t->resume && t->resume->run_json) {
        PF_TRY(pf_json_parse_text(t->resume->run_json, strlen(t->resume->run_json), t->resume_path,
                                  &run));
        err = choose_recorded(t, run, t->resume_path);
    }
    pf_json_free(run);
    return err;
}

int train_open_kernels(struct pf_trainer *t)
{
    struct pf_ops_options options = {0};

    PF_TRY(lowest_isa(t->world, &options.isa));
    PF_TRY(thread_count(t, &options.n_threads));
    PF_TRY(pf_ops_open(&options, &t->ops));
    warn_of_slow_kernels();
    return has_record(t) ? apply_recorded(t) : choose_measured(t);
}

void train_print_kernels(const struct pf_trainer *t, struct pf_json_out *out)
{
    pf_json_out_object_begin(out);
    pf_json_out_member_i64(out, "threads", pf_ops_threads(t->ops));
    pf_json_out_member_string(out, "isa", pf_ops_isa(t->ops));
    pf_json_out_member_string(out, "library", pf_ops_library(t->ops));
    pf_json_out_key(out, "chosen");
    pf_json_out_array_begin(out);
    for (int i = 0; i < pf_ops_n_choices(t->ops); i++) {
        const struct pf_ops_choice choice = pf_ops_choice_at(t->ops, i);
        pf_json_out_object_begin(out);
        pf_json_out_member_string(out, "op", pf_op_name(choice.op));
        pf_json_out_member_string(out, "dtype", pf_dtype_name(choice.dtype));
        if (choice.product) { /* the row without is of all other products */
            pf_json_out_member_string(out, "product", pf_ops_product_name(choice.product));
        }
        pf_json_out_member_string(out, "variant", choice.variant);
        pf_json_out_object_end(out);
    }
    pf_json_out_array_end(out);
    pf_json_out_object_end(out);
}

/* GEMM's peak ----------------------------------------------------------------------------------- */

enum { PEAK_ROUNDS = 6 };

/* Matrices that fit the cache and still keep every thread busy. */
static int64_t peak_side(const struct pf_trainer *t)
{
    return pf_ops_threads(t->ops) > 4 ? 1024 : 512;
}

size_t train_peak_bytes(const struct pf_trainer *t)
{
    return 3 * (size_t)(peak_side(t) * peak_side(t)) * pf_dtype_bytes(t->config->dtype);
}

/* The best of a few products; given up after the first if that is far from the best so far. */
static int time_gemm(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_gemm_args *args,
                     double *best_inout)
{
    const double flop = 2 * (double)args->m * (double)args->n * (double)args->k;

    for (int i = 0; i < PEAK_ROUNDS; i++) {
        const double started = pf_time_monotonic();
        PF_TRY(pf_op_gemm(ops, dtype, args));
        const double rate = flop / (pf_time_monotonic() - started);
        if (i == 1 && rate < *best_inout / 2) {
            break;
        }
        *best_inout = rate > *best_inout ? rate : *best_inout;
    }
    return 0;
}

/* Every kernel that could serve, those for no particular instruction set only where they do serve. */
static int time_candidates(const struct pf_trainer *t, struct pf_ops *probe,
                           const struct pf_gemm_args *args, double *best_out)
{
    const enum pf_dtype dtype = t->config->dtype;
    const struct pf_kernel_row *const serving = pf_ops_chosen(t->ops, PF_OP_GEMM, dtype);
    struct pf_ops_row row;
    double best = 0;

    for (int i = 0; pf_ops_row(probe, PF_OP_GEMM, dtype, i, &row); i++) {
        const char *const variant = row.kernel->variant;
        const bool is_plain = strcmp(variant, "ref") == 0 || strcmp(variant, "generic") == 0;
        if (row.usable && (!is_plain || row.kernel == serving)) {
            PF_TRY(pf_ops_choose(probe, PF_OP_GEMM, dtype, variant));
            PF_TRY(time_gemm(probe, dtype, args, &best));
        }
    }
    *best_out = best;
    return 0;
}

/* Never zeros: some units are faster on them. */
static int fill_matrices(enum pf_dtype dtype, char *m, size_t bytes)
{
    enum { PERIOD = 251 };
    float values[PERIOD];
    char stored[PERIOD * sizeof(float)];
    const size_t n = PERIOD * pf_dtype_bytes(dtype);

    for (int i = 0; i < PERIOD; i++) {
        values[i] = (float)i * 0.01f;
    }
    PF_TRY(pf_dtype_convert(PF_DTYPE_F32, values, dtype, stored, PERIOD));
    for (size_t at = 0; at < bytes; at += n) {
        memcpy(m + at, stored, bytes - at < n ? bytes - at : n);
    }
    return 0;
}

/* What mfu is measured against: the best product in the run's dtype of any kernel of this machine. A
 * registry of its own, so that the run's choices stay as they are. */
int train_measure_peak(struct pf_trainer *t)
{
    const enum pf_dtype dtype = t->config->dtype;
    const int64_t side = peak_side(t);
    const size_t matrix = (size_t)(side * side) * pf_dtype_bytes(dtype);
    const struct pf_ops_options options = {.n_threads = pf_ops_threads(t->ops),
                                           .isa = pf_ops_isa(t->ops)};
    struct pf_ops *probe = NULL;
    char *const m = pf_alloc(3 * matrix);
    int err = m ? 0 : PF_ENOMEM;

    PF_TRY(err);
    const struct pf_gemm_args args = {.m = side,
                                      .n = side,
                                      .k = side,
                                      .lda = side,
                                      .ldb = side,
                                      .ldc = side,
                                      .c_dtype = dtype,
                                      .a = m,
                                      .b = m + matrix,
                                      .c = m + 2 * matrix};
    PF_TRY_GOTO(fill_matrices(dtype, m, 2 * matrix), out);
    PF_TRY_GOTO(pf_ops_open(&options, &probe), out);
    PF_TRY_GOTO(time_candidates(t, probe, &args, &t->peak_flops), out);
out:
    pf_ops_free(probe);
    pf_free(m);
    return err;
}
