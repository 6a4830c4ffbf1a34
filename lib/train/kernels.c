/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernels a run uses (DESIGN section 5): ranks agree on the lowest instruction set, rank 0's
 * choices are everybody's, they are written to pf.json and every manifest, and a resume (or
 * kernels_from) uses the recorded ones again, or says that bits may differ.
 */
#include "train_internal.h"

#include <pf/dev.h>
#include <pf/error.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <stdlib.h>
#include <string.h>

static const char *const isas[] = {"generic", "avx2", "avx512"};

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
    const char *op_name, *dtype_name, *variant;
    enum pf_op op;
    enum pf_dtype dtype;

    PF_TRY(pf_json_need_string(row, "op", &op_name));
    PF_TRY(pf_json_need_string(row, "dtype", &dtype_name));
    PF_TRY(pf_json_need_string(row, "variant", &variant));
    if (pf_op_from_name(op_name, &op) != 0 || pf_dtype_parse(dtype_name, &dtype) != 0 ||
        pf_ops_choose(t->ops, op, dtype, variant) != 0) {
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
    return apply_recorded(t);
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
        pf_json_out_member_string(out, "variant", choice.variant);
        pf_json_out_object_end(out);
    }
    pf_json_out_array_end(out);
    pf_json_out_object_end(out);
}

enum { PEAK_SIDE = 512, PEAK_ROUNDS = 6 };

size_t train_peak_bytes(void)
{
    return 3 * (size_t)PEAK_SIDE * PEAK_SIDE * sizeof(float);
}

/* The best of a few products of square matrices that fit the cache: what mfu is measured against. */
int train_measure_peak(struct pf_trainer *t)
{
    float *const m = pf_calloc_array(3 * (size_t)PEAK_SIDE * PEAK_SIDE, sizeof *m);
    const struct pf_gemm_args args = {.m = PEAK_SIDE,
                                      .n = PEAK_SIDE,
                                      .k = PEAK_SIDE,
                                      .lda = PEAK_SIDE,
                                      .ldb = PEAK_SIDE,
                                      .ldc = PEAK_SIDE,
                                      .c_dtype = PF_DTYPE_F32,
                                      .a = m,
                                      .b = m + (size_t)PEAK_SIDE * PEAK_SIDE,
                                      .c = m ? m + 2 * (size_t)PEAK_SIDE * PEAK_SIDE : NULL};
    int err = m ? 0 : PF_ENOMEM;

    for (size_t i = 0; m && i < 2 * (size_t)PEAK_SIDE * PEAK_SIDE; i++) {
        m[i] = (float)(i % 251) * 0.01f; /* never zeros: some units are faster on them */
    }
    for (int i = 0; !err && i < PEAK_ROUNDS; i++) {
        const double started = pf_time_monotonic();
        err = pf_op_gemm(t->ops, PF_DTYPE_F32, &args);
        const double rate =
            2.0 * PEAK_SIDE * PEAK_SIDE * PEAK_SIDE / (pf_time_monotonic() - started);
        t->peak_flops = rate > t->peak_flops ? rate : t->peak_flops;
    }
    pf_free(m);
    return err;
}
