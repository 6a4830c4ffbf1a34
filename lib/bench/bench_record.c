/* SPDX-License-Identifier: Apache-2.0 */
/* The record: where, cases, failures. */
#include <pf/bench.h>

#include <pf/dev.h>
#include <pf/error.h>
#include <pf/mem.h>
#include <pf/ops.h>
#include <pf/time.h>
#include <pf/version.h>

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

extern char **environ;

#define COPY(to, from) ((void)snprintf((to), sizeof(to), "%s", (from)))

/* What libraries under a kernel listen to: a run in which one is forced must be told from others. */
static int list_variables(struct pf_str_list *list)
{
    static const char *const prefixes[] = {"OMP_",  "GOMP_",   "KMP_",  "OPENBLAS_",  "MKL_",
                                           "DNNL_", "ONEDNN_", "BLIS_", "PF_KERNELS="};

    for (char **e = environ; e && *e; e++) {
        for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
            if (pf_str_starts_with(*e, prefixes[i])) {
                PF_TRY(pf_str_list_append(list, *e));
            }
        }
    }
    return 0;
}

static int describe_environment(struct pf_bench_env *env, int n_threads)
{
    struct pf_cpu_info cpu;
    struct utsname system;

    PF_TRY(pf_cpu_info(&cpu));
    COPY(env->cpu, cpu.model);
    COPY(env->cpu_isa, cpu.isa);
    COPY(env->device, "cpu");
    COPY(env->isa, pf_ops_best_isa());
    COPY(env->build, pf_version_build());
    env->n_cpus = cpu.n_cpus;
    env->n_threads = n_threads > 0 ? n_threads : cpu.n_cpus;
    env->n_ranks = 1;
    if (uname(&system) == 0) {
        (void)snprintf(env->system, sizeof env->system, "%.40s %.60s %.40s", system.sysname,
                       system.release, system.machine);
    }
    return list_variables(&env->variables);
}

int pf_bench_record_init(struct pf_bench_record *record, const char *command, int n_threads)
{
    memset(record, 0, sizeof *record);
    COPY(record->command, command);
    record->started = pf_time_wall();
    return describe_environment(&record->env, n_threads);
}

void pf_bench_record_release(struct pf_bench_record *record)
{
    for (int i = 0; i < record->n_cases; i++) {
        pf_free(record->cases[i].time.seconds);
        pf_free(record->cases[i].rival_time.seconds);
    }
    pf_free(record->cases);
    pf_free(record->failures);
    pf_str_list_release(&record->env.variables);
    memset(record, 0, sizeof *record);
}

int pf_bench_add_case(struct pf_bench_record *record, struct pf_bench_case **case_out)
{
    if (record->n_cases == record->case_capacity) {
        const int capacity = record->case_capacity ? 2 * record->case_capacity : 16;
        struct pf_bench_case *const grown =
            pf_realloc_array(record->cases, (size_t)capacity, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        record->cases = grown;
        record->case_capacity = capacity;
    }
    *case_out = &record->cases[record->n_cases++];
    memset(*case_out, 0, sizeof **case_out);
    return 0;
}

const struct pf_bench_case *pf_bench_find(const struct pf_bench_record *record, const char *name)
{
    for (int i = 0; i < record->n_cases; i++) {
        if (strcmp(record->cases[i].name, name) == 0) {
            return &record->cases[i];
        }
    }
    return NULL;
}

int pf_bench_fail(struct pf_bench_record *record, bool is_numeric, const char *format, ...)
{
    struct pf_bench_failure *const grown =
        pf_realloc_array(record->failures, (size_t)record->n_failures + 1, sizeof *grown);
    va_list args;

    if (!grown) {
        return PF_ENOMEM;
    }
    record->failures = grown;
    struct pf_bench_failure *const failure = &grown[record->n_failures++];
    failure->is_numeric = is_numeric;
    va_start(args, format);
    (void)vsnprintf(failure->text, sizeof failure->text, format, args);
    va_end(args);
    return 0;
}

int pf_bench_verdict(struct pf_bench_record *record)
{
    if (record->n_cases == 0 && record->n_failures == 0) {
        PF_TRY(pf_bench_fail(record, false, "there is no case"));
    }
    for (int numeric = 1; numeric >= 0; numeric--) {
        for (int i = 0; i < record->n_failures; i++) {
            if (record->failures[i].is_numeric != (numeric == 1)) {
                continue;
            }
            if (record->n_failures == 1) {
                return pf_fail(PF_EDIFFER, "%s", record->failures[i].text);
            }
            return pf_fail(PF_EDIFFER, "%s (and %d more)", record->failures[i].text,
                           record->n_failures - 1);
        }
    }
    return 0;
}
