/* SPDX-License-Identifier: Apache-2.0 */
/* command.h - what the commands of pf-bench share. One command is one file, named after it. */
#ifndef BENCH_COMMAND_H
#define BENCH_COMMAND_H

#include <pf/bench.h>
#include <pf/opts.h>
#include <pf/progress.h>

#include <stdbool.h>
#include <stdint.h>

#define SEE_HELP "; see 'pf-bench --help'"

struct options {
    struct pf_opts_shared shared;
    const char *json, *baseline; /* files; NULL: not given */
    double max_slowdown, min_ratio;
    int64_t warmup, repeat, steps, threads; /* -1: not given */
    double seconds;                         /* NAN: not given */
    const char *device, *shape, *model, *against, *kernel, *dir;
    size_t bytes; /* 0: not given */
    struct pf_opt_list dtypes;
    bool list, force, markdown;
    bool answered; /* the record is out */
    struct pf_progress progress;
    bool progress_shown;
};

/* Each gives the error code that the program ends with. */
int command_ops(struct options *o, int n, char **operands);
int command_ckpt(struct options *o, int n, char **operands);
int command_step(struct options *o, int n, char **operands);
int command_compare(struct options *o, int n, char **operands);

/* output.c: finish a record: compare it with --baseline, require --min-ratio, print it as a table
 * and, with --json, as a document. err is what measuring it gave. Returns how the program ends. */
int finish_record(struct options *o, struct pf_bench_record *record, int err);

/* The names of the cases, a line each. */
void print_names(const struct pf_bench_record *record);

/* What went wrong, as a document, where --json asks for one and there is no record. */
void answer_failure(struct options *o, int err);

struct pf_bench_effort effort_of(const struct options *o);

/* For pf_bench_*_options: how far it is, on stderr. context is struct options. */
void show_progress(void *context, int64_t done, int64_t total);

#endif
