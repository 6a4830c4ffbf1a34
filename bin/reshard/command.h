/* SPDX-License-Identifier: Apache-2.0 */
/* command.h - the parts of pf-reshard: options, what they mean for a source, what is printed. */
#ifndef RESHARD_COMMAND_H
#define RESHARD_COMMAND_H

#include <pf/comm.h>
#include <pf/opts.h>
#include <pf/parallel.h>
#include <pf/progress.h>
#include <pf/reshard.h>

#define THREADS_UNSET (-1)
#define SEE_HELP "; see 'pf-reshard --help'"

struct options {
    struct pf_opts_shared shared;
    const char *src, *dst;
    const char *to, *config, *dtype, *compress;
    int64_t world, threads;
    size_t max_memory;
    bool weights_only, dry_run, resume, verify;
};

/* A layout for a model: what pf_reshard_run needs. Zero it; setup_release also after a failure. */
struct setup {
    struct pf_ckpt *src;
    struct pf_json *config; /* of --config, or NULL */
    struct pf_parallel par;
    struct pf_table *table;
    struct pf_placement *place;
    const char *embed_from, *drop; /* as in struct pf_reshard */
    enum pf_dtype dtype;
    char *config_json; /* NULL: the source's will do */
};

/* Misuse that shows without looking at any file. */
int setup_check(const struct options *o);

/* Open the source, read the model from it and the layout from the options. Local, every rank. */
int setup_make(const struct options *o, struct setup *s);
void setup_release(struct setup *s);

/* How far it is, on stderr. */
struct bar {
    struct pf_progress progress;
    enum pf_reshard_phase phase;
    bool begun, enabled;
};
void bar_update(void *context, enum pf_reshard_phase phase, uint64_t done, uint64_t total);

/* The result, or with err the failure, as the options ask. Rank 0. */
int print_result(const struct options *o, const struct setup *s,
                 const struct pf_reshard_report *report, int n_processes);
int print_failure(const struct options *o, int err);

#endif
